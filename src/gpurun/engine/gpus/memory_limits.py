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

TYPE_CHECKING = False
if TYPE_CHECKING:
    from gpurun.engine.plan.container import CgroupPlan


def set_limits(cgroup: CgroupPlan, record: str) -> None:
    """Set the limits of *cgroup*, which is there; the file *record* says so before.  Raises :class:`GpuError`."""
    limits = cgroup.memory_limits
    if any(limit.soft for limit in limits):
        text = "\n".join([limits[0].library, cgroup.root, cgroup.path, *[limit.gpu for limit in limits]])
        write_atomically(record, text.encode("utf-8", "surrogateescape"), 0o600)
    try:
        set_memory_limits(cgroup.root, cgroup.path, limits)
    except GpuError as e:
        raise GpuError(f"{limits[0].where}: the limit of the GPU's memory cannot be set: {e}") from None


def take_away(record: str) -> tuple[str, ...]:
    """Take back what :func:`set_limits` has recorded, as long as the cgroup is there; returns warnings."""
    try:
        library, root, cgroup, *gpus = read_file(record).decode("utf-8", "surrogateescape").split("\n")
        posix.stat(cgroup)
    except (FileNotFoundError, ValueError):
        return ()  # nothing was set, or the cgroup has gone with its last process
    try:
        set_memory_limits(root, cgroup, tuple([MemoryLimit(gpu, NO_LIMIT, library=library) for gpu in gpus]))
    except GpuError as e:
        return (f"what is kept of the GPU's memory for {cgroup} stays kept in the cgroups above it: {e}",)
    return ()
