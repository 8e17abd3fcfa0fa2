"""What the doctor says of limits of GPU memory that the kernel keeps: does it count the memory of all GPUs.

Reference: admin-guide/cgroup-v2.rst, "DMEM".
"""

from __future__ import annotations

from gpurun.cgroup.tree import UNIFIED_MOUNTPOINT, dmem_capacity, find_tree
from gpurun.errors import GpurunError
from gpurun.gpu.host.finding import Finding
from gpurun.gpu.leases.limits import regions_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

SUBJECT = "limits of GPU memory"


def examine_limits(sysroot: str, addresses: Iterable[str]) -> Finding:
    """Whether GPURUN_GPU_MEMORY can be held for the GPUs at PCI *addresses*; a host without that is not broken."""
    try:
        capacity = dmem_capacity(f"{sysroot}{UNIFIED_MOUNTPOINT}" if sysroot else find_tree().root)
    except GpurunError:
        capacity = ""
    lacking = [address for address in dict.fromkeys(addresses) if not regions_of(capacity, address)]
    if not lacking:
        return Finding(SUBJECT, "ok", "the kernel's dmem controller counts the memory of all GPUs")
    if not capacity:
        text = (
            "cgroup v2 has no dmem controller: it needs Linux 6.14 or newer with CONFIG_CGROUP_DMEM (`uname -r` says which)"
        )
    else:
        text = f"the kernel's dmem controller does not count the memory of {', '.join(lacking)}: amdgpu and xe have it do so"
    return Finding(SUBJECT, "note", f"{text}; GPURUN_GPU_MEMORY is refused there")
