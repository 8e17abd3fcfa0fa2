"""Which processes compute on AMD's GPUs, and how much memory they have of each, as KFD says."""

from __future__ import annotations

from gpurun.decimals import decimal
from gpurun.gpu.amd.host import TOPOLOGY
from gpurun.gpu.host.reads import names_in, read_attribute

TYPE_CHECKING = False
if TYPE_CHECKING:
    from gpurun.gpu.amd.host import AmdGpu

_PROCESSES = "/sys/class/kfd/kfd/proc"
_MOST_PROCESSES = 1 << 16


def computing(sysroot: str, gpus: tuple[AmdGpu, ...]) -> tuple[tuple[str, int, int], ...]:
    """(key of the GPU, pid, bytes) of each process that KFD knows, on each of *gpus* on which it has memory."""
    ids = {read_attribute(f"{sysroot}{TOPOLOGY}/{gpu.kfd.number}/gpu_id", 64): gpu.key for gpu in gpus}
    found: list[tuple[str, int, int]] = []
    for name in names_in(sysroot + _PROCESSES)[:_MOST_PROCESSES]:
        pid = decimal(name)
        if pid is None:
            continue
        base = f"{sysroot}{_PROCESSES}/{name}"
        for gpu_id, key in ids.items():
            size = decimal(read_attribute(f"{base}/vram_{gpu_id}", 64)) if gpu_id else None
            if size:
                found.append((key, pid, size))
    return tuple(found)
