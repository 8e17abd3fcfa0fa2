"""Limits of GPU memory that NVML keeps for a container's cgroup: set when it is made, and taken away before it goes.

With the cgroup its own limits go.  But where the kernel's dmem controller keeps them, NVML has added the soft limit to every
cgroup above as well, and only NVML takes it out there, while the cgroup is there (NVIDIA's manual of MPS, "Ancestor
reservation propagation").
"""

from __future__ import annotations

import posix

from gpurun.cdi.edits import MemoryLimit
from gpurun.errors import GpuError
from gpurun.gpu.nvidia.host.nvml import NO_LIMIT, set_memory_limits
from gpurun.linux.files import read_file, write_atomically

#: The file in the state directory that says what was set.
RECORD = "gpu-memory"


def set_limits(root: str, cgroup: str, limits: tuple[MemoryLimit, ...], directory: str) -> None:
    """Set *limits* for the *cgroup* of the tree at *root*, which is there; the state *directory* says so before.

    Raises :class:`GpuError`.
    """
    if any(limit.soft for limit in limits):
        record = f"{directory}/{RECORD}"
        gpus = dict.fromkeys([*_read_record(record)[3:], *[limit.gpu for limit in limits]])
        text = "\n".join([limits[0].library, root, cgroup, *gpus])
        write_atomically(record, text.encode("utf-8", "surrogateescape"), 0o600)
    try:
        set_memory_limits(root, cgroup, limits)
    except GpuError as e:
        raise GpuError(f"{limits[0].where}: the limit of the GPU's memory cannot be set: {e}") from None


def take_away(directory: str) -> tuple[str, ...]:
    """Take back what :func:`set_limits` has recorded in *directory*, as long as the cgroup is there; returns warnings."""
    try:
        library, root, cgroup, *gpus = _read_record(f"{directory}/{RECORD}") or ("", "", "")
    except GpuError as e:
        return (f"{e}: memory of a GPU that it says is reserved stays so",)
    try:
        posix.stat(cgroup)
    except FileNotFoundError:
        return ()  # nothing was set, or the cgroup has gone with its last process
    try:
        set_memory_limits(root, cgroup, tuple([MemoryLimit(gpu, NO_LIMIT, library=library) for gpu in gpus]))
    except GpuError as e:
        return (f"the GPU's memory that is reserved for {cgroup} stays reserved in the cgroups above it: {e}",)
    return ()


def _read_record(record: str) -> list[str]:
    """The library, the root of the tree, the cgroup, and the GPUs; nothing where none are recorded.

    Raises :class:`GpuError` for a record that is damaged, as a machine that lost its power may leave it.
    """
    try:
        text = read_file(record).decode("utf-8", "surrogateescape")
    except FileNotFoundError:
        return []
    fields = text.split("\n")
    if "\0" in text or not all(fields) or not all(path.startswith("/") for path in fields[:3]) or len(fields) < 4:
        raise GpuError(f"{record} is damaged")
    return fields
