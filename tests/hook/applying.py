"""Putting edits into a rootfs and taking them back, as create and delete do it, without a container."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from gpurun.cdi.edits import ContainerEdits
from gpurun.gpu.resolve import Inquiry, gpu_edits
from gpurun.hook.apply import Opened, apply_edits
from gpurun.hook.rootfs_target import Target
from gpurun.linux.mount import mount
from gpurun.ns.journal import LINK, TEMPORARY, TIMES, Journal
from gpurun.ns.journal import parse as parse_journal
from gpurun.ns.undo import undo
from tests.simdriver import SimulatedDriver

LIB = (
    "usr/lib/x86_64-linux-gnu/nvidia/current"
    if os.uname().machine == "x86_64"
    else "usr/lib/aarch64-linux-gnu/nvidia/current"
)
V = "999.88.77"


def edits_of(sim: SimulatedDriver, *env: str) -> ContainerEdits:
    made = gpu_edits(Inquiry(env, {}, False, sim.env))
    assert made is not None
    return made


def opened(rootfs: Path) -> int:
    return os.open(rootfs, os.O_PATH | os.O_DIRECTORY)


def mount_basics(rootfs: Path) -> None:
    mount("proc", str(rootfs / "proc"), "proc", 0)
    mount("tmpfs", str(rootfs / "dev"), "tmpfs", 0)


def applied(rootfs: Path, edits: ContainerEdits, *how: Any, **more: Any) -> bytes:
    """As :func:`applied_alone`, with /proc and /dev there."""
    mount_basics(rootfs)
    return applied_alone(rootfs, edits, *how, **more)


def applied_alone(
    rootfs: Path,
    edits: ContainerEdits,
    user_namespace: bool = False,
    readonly: bool = False,
    ahead: Opened | None = None,
) -> bytes:
    """Applies *edits*; the journal, also (in the file beside the rootfs) when that fails."""
    file = rootfs.parent / "journal"
    fd = opened(rootfs)
    journal = Journal(fd, os.open(file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_CLOEXEC))
    try:
        apply_edits(edits, Target(fd, journal, user_namespace, readonly), ahead)
    finally:
        journal.close()
        os.close(fd)
    return file.read_bytes()


def undone(rootfs: Path, journal: bytes) -> tuple[str, ...]:
    fd = opened(rootfs)
    try:
        return tuple([str(kept) for kept in undo(fd, parse_journal(journal))])
    finally:
        os.close(fd)


def made(journal: bytes) -> list[str]:
    """What a journal says was made, as ``path`` or ``path -> target``."""
    found = []
    for trace in parse_journal(journal):
        if trace.kind not in (TIMES, TEMPORARY):
            found.append(trace.path + (f" -> {trace.rest.decode()}" if trace.kind == LINK else ""))
    return found
