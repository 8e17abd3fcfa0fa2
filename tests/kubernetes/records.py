"""Nodes as records, for tests of what is pure."""

from __future__ import annotations

from gpurun.kubernetes.node import NodeGpu, NodeGpus, NodeMig, nearness
from tests.simdriver import bus_id, uuid


def gpu(
    index: int, count: int = 1, migs: tuple[NodeMig, ...] = (), model: str = "NVIDIA H100 80GB HBM3", mig: bool = False
) -> NodeGpu:
    """GPU *index* of *count*: two and two joined by NVLink, each half on a NUMA node of its own."""
    peers = []
    for other in range(count):
        if other != index:
            half = "node" if (other < count / 2) == (index < count / 2) else "system"
            peers.append((bus_id(other), nearness(4 if other == index ^ 1 else 0, half)))
    return NodeGpu(
        index=index, minor=index, uuid=uuid(index), bus_id=bus_id(index), model=model, numa=int(index >= count / 2),
        memory=80 << 30, compute="9.0", architecture="Hopper", brand="nvidia", pcie_root="pci0000:00", pci_class=0x030200,
        mig_enabled=mig or bool(migs), mig_capable=True, migs=migs, peers=tuple(peers), paths=(f"/dev/nvidia{index}",),
    )  # fmt: skip


def mig(gpu_index: int, index: int, profile: str = "1g.10gb", start: int = -1, size: int = 0) -> NodeMig:
    return NodeMig(
        index, index + 1, 0, f"MIG-{gpu_index}-{index}", profile, 10 << 30, (("multiprocessorCount", 16),), start, size,
        (f"/dev/nvidia{gpu_index}", f"/dev/nvidia-caps/nvidia-cap{index}"),
    )  # fmt: skip


def node(*gpus: NodeGpu) -> NodeGpus:
    return NodeGpus("570.86.15", "12.8", gpus)


def node_of(count: int) -> NodeGpus:
    return node(*[gpu(index, count) for index in range(count)])
