"""A node that gpurun is installed on: what it had before, the installer's steps in its root, the command, and its kills."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gpurun.errors import GpurunError
from gpurun.kubernetes.install import program, restart, steps
from gpurun.kubernetes.install.host import on_node
from gpurun.kubernetes.install.node_setup import NodeSetup, with_defaults
from tests.clients.containerd_config import CONTAINERD, V2, V3
from tests.kubernetes import killed
from tests.kubernetes.host_trees import PROGRAM, busybox, contents

needs_chroot = pytest.mark.skipif(os.geteuid() != 0 or busybox() is None, reason="chroot needs root, the tree busybox")
#: What nodes have before: the main file and those beside it.
NODES: dict[str, dict[str, str]] = {
    "no file": {},
    "version 2": {"config.toml": CONTAINERD},
    "version 3": {"config.toml": CONTAINERD.replace(V2, V3).replace("version = 2", "version = 3")},
    "a directory that is imported": {"config.toml": 'version = 3\nimports = ["/etc/containerd/conf.d/*.toml"]\n'},
    "somebody else's file": {
        "config.toml": 'version = 2\nimports = ["conf.d/*.toml"]\n', "conf.d/99-nvidia.toml": CONTAINERD,
    },
}  # fmt: skip
SETUP = with_defaults(NodeSetup("containerd", restart="systemd"))
ENV = os.environ | {"PYTHONPATH": "src"}


def source(root: Path, text: str = PROGRAM) -> int:
    file = root.parent / "program"
    file.write_text(text)
    return os.open(file, os.O_RDONLY)


def install(root: Path, setup: NodeSetup = SETUP, text: str = PROGRAM) -> str:
    fd = source(root, text)
    try:
        return on_node(str(root), lambda: steps.install(setup, fd))
    finally:
        os.close(fd)


def remove(root: Path) -> str:
    return on_node(str(root), steps.remove)


def prepare(root: Path, files: dict[str, str], directory: str = "etc/containerd") -> dict[str, str]:
    for name, text in files.items():
        path = root / directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return contents(root)


def runtimes(root: Path, name: str) -> Any:
    document = tomllib.loads((root / name).read_text())
    return next(document["plugins"][kind] for kind in (V3, V2) if kind in document.get("plugins", {}))["containerd"][
        "runtimes"
    ]


def killed_at(step: int, root: Path, work: Callable[[], str]) -> bool:
    """Do *work* on the node in a child that ends before or after its n-th change of a file; whether it got so far."""

    def dying() -> str:
        counted = killed.ends_at(step)
        for name in ("open", "rename", "fsync", "unlink", "mkdir", "rmdir", "chmod"):
            setattr(os, name, counted(getattr(os, name)))
        for module in (program, restart):
            module.subprocess.run = counted(subprocess.run)  # type: ignore[attr-defined]
        return work()

    try:
        on_node(str(root), dying)
    except GpurunError as e:
        assert str(e) == "the child that works on the node ended with 9"
        return True
    return False


def command(root: Path, *words: str) -> list[str]:
    return [sys.executable, "-m", "gpurun", "kubernetes", *words, "--host-root", str(root)]
