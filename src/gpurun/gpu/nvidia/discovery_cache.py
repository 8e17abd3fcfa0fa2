"""Answers of the discovery that are used again while all that was looked at for them is as it was.

A host's driver changes once in months, its containers start every second: comparing takes a quarter of the time that
looking takes.  An entry of the cache (:mod:`gpurun.cachefile`) is named by the question: what the container asks, what of
gpurun's own environment counts, and the build of gpurun.  It has the facts (:mod:`gpurun.gpu.host.facts`) and the edits.
"""

from __future__ import annotations

import marshal
import posix

from gpurun import log
from gpurun.cachefile import entry_name, load, save, this_build
from gpurun.cdi.edits import ContainerEdits
from gpurun.gpu.host.access import nvidia_closed_by_job
from gpurun.gpu.host.facts import first_change
from gpurun.record import from_wire, to_wire

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from gpurun.gpu.host.facts import Listener

#: What of gpurun's own environment the discovery and the site's settings depend on.
_OWN = ("GPURUN_SYSROOT", "GPURUN_MODE", "NVIDIA_CTK_CONFIG_FILE_PATH", "XDG_CONFIG_HOME", "HOME", "CUDA_MPS_PIPE_DIRECTORY")
_ASKING = ("NVIDIA_", "CUDA_VERSION=", "CUDA_VISIBLE_DEVICES=")
_MOUNTS = "/var/run/nvidia-container-devices"
_LIMIT = 4 << 20


def question(env: tuple[str, ...], privileged: bool, own_env: Mapping[str, str], mounts: tuple[tuple[str, str], ...]) -> str:
    """The name of what a container asks."""
    host = posix.uname()
    return entry_name(
        this_build(),
        ContainerEdits._fields,
        (host.release, host.machine, posix.geteuid()),
        [e for e in env if e.startswith(_ASKING)],
        privileged,
        [mount for mount in mounts if mount[1].startswith(_MOUNTS)],
        [own_env.get(name) for name in _OWN],
        sorted(nvidia_closed_by_job(own_env.get("GPURUN_SYSROOT", "").rstrip("/") + "/dev")),
    )


def recall(directory: str, name: str) -> ContainerEdits | None:
    """The answer kept under *name*, if it still holds."""
    data = load(directory, name, _LIMIT)
    if not data:
        log.debug("GPU discovery: nothing is remembered for this request")
        return None
    try:
        facts, wire = marshal.loads(data)
        changed = first_change(facts)
        if changed:
            log.debug(f"GPU discovery: {changed} is not as it was remembered")
            return None
        edits: ContainerEdits = from_wire(wire)
    except (EOFError, KeyError, TypeError, ValueError):
        return None  # written by a gpurun whose records were others
    log.debug(f"GPU discovery: answered by {directory}/{name}: all that was looked at is as it was")
    return edits


def remember(directory: str, name: str, looked: Listener, edits: ContainerEdits) -> None:
    """Keep *edits*, if they depend on nothing but what was *looked* at."""
    facts = looked.facts()
    if facts is not None:
        save(directory, name, marshal.dumps((facts, to_wire(edits))))
