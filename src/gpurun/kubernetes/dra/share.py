"""Shares of a GPU's memory: what a claim consumes of a GPU that several claims have, as limits that the driver keeps.

The scheduler sees to it that the claims of a GPU together consume no more than it has (KEP-5075, consumable capacity).
"""

from __future__ import annotations

from gpurun.cdi.document import CdiEdits, CdiHook
from gpurun.errors import GpurunError
from gpurun.gpu.nvidia.cdi.known_hooks import LIMITS
from gpurun.kubernetes.dra.claim import Allocated
from gpurun.kubernetes.dra.slices import Allocatable
from gpurun.kubernetes.specs import NodeHost


def limit_of(where: str, wanted: Allocated, found: Allocatable) -> int:
    """How many bytes of the memory of *found* a container with *wanted* may have at most; 0: all of it.

    Where NVML does not tell just now how much *found* has, a share is limited all the same: the hook asks NVML again.

    Raises :class:`GpurunError` for a part that is also to be shared in another way, which would concern the other claims.
    """
    if wanted.admin or not wanted.share or not wanted.memory or wanted.memory >= found.memory > 0:
        return 0
    if wanted.config.strategy:
        raise GpurunError(
            f"{where}: {found.name} is shared with other claims, so {wanted.config.strategy} cannot be set for this one: "
            "leave the sharing out of its configuration, or ask for all of the GPU's memory"
        )
    return wanted.memory


def limit_edits(host: NodeHost, uuid: str, size: int) -> CdiEdits:
    """What limits a container to *size* bytes of the memory of the GPU *uuid*: a hook, which has the driver keep it."""
    sysroot = host.roots.sysroot.removeprefix(host.root)
    words = (LIMITS, "--driver-root", host.roots.driver_root or "/", "--gpu-id", uuid, "--limit", str(size))
    program, *more = host.hook
    # A hook without an environment inherits one in some runtimes, that of the container even (CVE-2025-23266).
    env = ("NVIDIA_CTK_DEBUG=false", *((f"GPURUN_SYSROOT={sysroot}",) if sysroot else ()))
    return CdiEdits(hooks=(CdiHook("createRuntime", program, (program.rpartition("/")[2], *more, *words), env),))
