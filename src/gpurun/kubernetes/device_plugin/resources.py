"""Which resources the node offers to the kubelet, and the devices of each: node x configuration; pure."""

from __future__ import annotations

from gpurun.errors import GpuError
from gpurun.kubernetes.config import NOT_SHARED, PREFIX, PluginConfig, resource_part
from gpurun.kubernetes.node import NodeGpu, NodeGpus, NodeMig
from gpurun.record import Record, replace

#: Between the UUID of a shared device and the number of the replica, as in NVIDIA's plugin.
SEPARATOR = "::"
_VOLTA = 7  # its compute capability, the major number


class Offered(Record):
    """One device as the kubelet knows it.  *id* is the UUID, with the replica's number where it is shared.

    *index* is ``0``, or ``0:1`` for a MIG device; *bus_id* is of the GPU that it is, or is a part of; *paths* its nodes,
    *links* other names of them (path of the node, name).  *word* is what variables call it where that is not *uuid*, which
    of GPUs that have none is another word that stays.  *before_volta* GPUs serve fewer clients of MPS.
    """

    id: str
    uuid: str
    index: str
    bus_id: str
    numa: int
    memory: int
    paths: tuple[str, ...]
    replica: int = 0
    mig: bool = False
    links: tuple[tuple[str, str], ...] = ()
    word: str = ""
    before_volta: bool = False


class Offer(Record):
    """One resource.  *name* is what pods ask for, *base* what it would be called unshared; *replicas* 1: not shared."""

    name: str
    base: str
    devices: tuple[Offered, ...]
    replicas: int = 1
    strategy: str = NOT_SHARED

    def device(self, identity: str) -> Offered | None:
        """The device with that id."""
        return next((device for device in self.devices if device.id == identity), None)


def offers(node: NodeGpus, config: PluginConfig) -> tuple[Offer, ...]:
    """The resources of *node*, by name.  Raises :class:`GpuError` for a node that the MIG strategy does not fit."""
    found: dict[str, list[Offered]] = {}
    for gpu in node.gpus:
        if gpu.mig_enabled and config.mig_strategy != "none":
            for mig in gpu.migs:
                name = "gpu" if config.mig_strategy == "single" else f"mig-{resource_part(mig.profile)}"
                found.setdefault(f"{PREFIX}/{name}", []).append(_mig(gpu, mig))
        else:
            found.setdefault(f"{PREFIX}/gpu", []).append(_gpu(gpu))
    if config.mig_strategy == "single":
        _check_single(node)
    return tuple([offer_of(name, tuple(devices), config) for name, devices in sorted(found.items())])


def _check_single(node: NodeGpus) -> None:
    """Raises :class:`GpuError` unless all GPUs are divided in the same way, or none is."""
    divided = [gpu for gpu in node.gpus if gpu.mig_enabled]
    if not divided:
        return
    if len(divided) != len(node.gpus):
        whole = next(gpu.index for gpu in node.gpus if not gpu.mig_enabled)
        raise GpuError(f"MIG strategy single: GPU {divided[0].index} has MIG, GPU {whole} has not: use mixed, or divide all")
    for gpu in divided:
        if not gpu.migs:
            raise GpuError(f"MIG strategy single: GPU {gpu.index} has MIG and no MIG device: make some, or use mixed")
    profiles = sorted({mig.profile for gpu in divided for mig in gpu.migs})
    if len(profiles) > 1:
        raise GpuError(f"MIG strategy single: there are MIG devices {' and '.join(profiles)}: use mixed, or make them alike")


def offer_of(name: str, devices: tuple[Offered, ...], config: PluginConfig) -> Offer:
    """The resource *name*, with its *devices* shared as *config* says.  Raises :class:`GpuError` where they cannot be."""
    shared = config.sharing.of(name)
    if shared is None:
        return Offer(name, name, devices)
    if config.sharing.strategy == "mps" and any(device.mig for device in devices):
        raise GpuError(f"sharing {name} by MPS: MIG devices cannot be shared so: take it out of sharing.mps.resources")
    replicas = [_replica(device, number) for device in devices for number in range(shared.replicas)]
    return Offer(shared.rename or name, name, tuple(replicas), shared.replicas, config.sharing.strategy)


def _replica(device: Offered, number: int) -> Offered:
    return replace(device, id=f"{device.uuid}{SEPARATOR}{number}", replica=number)


def _gpu(gpu: NodeGpu) -> Offered:
    old = 0 < int(gpu.compute.partition(".")[0] or 0) < _VOLTA
    return Offered(gpu.uuid, gpu.uuid, str(gpu.index), gpu.bus_id, gpu.numa, gpu.memory, gpu.paths, before_volta=old)


def _mig(gpu: NodeGpu, mig: NodeMig) -> Offered:
    index = f"{gpu.index}:{mig.index}"
    return Offered(mig.uuid, mig.uuid, index, gpu.bus_id, gpu.numa, mig.memory, mig.paths, 0, True)
