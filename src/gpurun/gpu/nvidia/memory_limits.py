"""The limits of GPU memory that NVIDIA's variables ask for, on the GPUs that a container has.

NVIDIA's toolkit sets them in a hook that its CDI files name; gpurun sets them for every container with these variables,
however it got its GPUs.  They are limits and no shares: who wrote the variables has counted what is given to whom.
"""

from __future__ import annotations

import posix

from gpurun.cdi.edits import ContainerEdits, MemoryLimit
from gpurun.errors import ConfigError, GpuError
from gpurun.gpu.nvidia.host.gpus import read_gpus
from gpurun.gpu.nvidia.host.nvml import NO_LIMIT, find_nvml, query
from gpurun.gpu.nvidia.host.roots import bus_order
from gpurun.gpu.nvidia.request.memory_limits import read_memory_limits
from gpurun.linux.procfs import in_user_namespace
from gpurun.record import replace

TYPE_CHECKING = False
if TYPE_CHECKING:
    from gpurun.gpu.nvidia.host.roots import Roots

#: Why NVML sets no limit, as a sentence goes on.
NOT_KNOWN = "this driver cannot limit a GPU's memory for a container: that is in drivers from 615 (CUDA 13.4) on"


def with_memory_limits(
    made: ContainerEdits, numbers: frozenset[tuple[int, int]], env: tuple[str, ...], roots: Roots
) -> ContainerEdits:
    """*made* with what *env* asks for on each whole GPU whose node's (major, minor) is among *numbers*.

    MIG devices have memory of their own and stay as they are, as with NVIDIA's hook.  Raises :class:`ConfigError` for bad
    values, :class:`GpuError` where nothing would hold the container to them.
    """
    asked = read_memory_limits(env, NO_LIMIT)
    gpus = [gpu for gpu in read_gpus(roots) if (gpu.node.major, gpu.node.minor) in numbers]
    gpus = [g for g in gpus if not any(all((n.major, n.minor) in numbers for n in mig.nodes) for mig in g.mig if mig.nodes)]
    if asked is None or not gpus:
        return made
    soft, hard, where = asked
    if posix.geteuid() != 0 or in_user_namespace():
        raise ConfigError(where, "only root of the host can limit a GPU's memory")
    library = find_nvml(roots)
    answer = query(library)
    if not answer.get("memoryLimits"):
        raise GpuError(f"{where}: {NOT_KNOWN}")
    known = [gpu for gpu in answer["gpus"] if gpu.get("busId") and gpu.get("uuid")]
    uuids = {bus_order(str(gpu["busId"])): str(gpu["uuid"]) for gpu in known}
    limits = []
    for gpu in gpus:
        uuid = uuids.get(bus_order(gpu.bus_id))
        if uuid is None:
            raise GpuError(f"{where}: NVML does not know GPU {gpu.index} ({gpu.bus_id}), so its memory cannot be limited")
        limits.append(MemoryLimit(uuid, hard, soft, library, where))
    return replace(made, memory_limits=(*made.memory_limits, *limits))
