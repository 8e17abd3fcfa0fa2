"""Limits of GPU memory as what the container's cgroup needs for them.  Pure.

Reference: admin-guide/cgroup-v2.rst, "DMEM"; NVIDIA's manual of MPS, "Memory Partitioning".
"""

from __future__ import annotations

from gpurun.cgroup.resources import CgroupWrite, missing_controller
from gpurun.cgroup.tree import UNIFIED_MOUNTPOINT
from gpurun.errors import ConfigError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from gpurun.cdi.edits import MemoryLimit
    from gpurun.cgroup.tree import Tree


def plan_gpu_memory(limits: tuple[MemoryLimit, ...], tree: Tree) -> tuple[CgroupWrite, ...]:
    """The writes of those of *limits* that the dmem controller keeps.

    Raises :class:`ConfigError` where the tree has no such controller, or is not where NVML sets limits.
    """
    writes = tuple([CgroupWrite("dmem.max", f"{one.gpu} {one.hard}", one.where) for one in limits if not one.library])
    if writes and "dmem" not in tree.controllers:
        raise ConfigError(
            writes[0].where, missing_controller(writes[0], "dmem", tree.bound_to_v1, "linux.resources", tree.hint)
        )
    for one in limits:
        if one.library and tree.root != UNIFIED_MOUNTPOINT:
            raise ConfigError(
                one.where,
                f"the driver limits memory only for a cgroup below {UNIFIED_MOUNTPOINT}, "
                f"and this host has its cgroup v2 at {tree.root}: boot with systemd.unified_cgroup_hierarchy=1",
            )
    return writes
