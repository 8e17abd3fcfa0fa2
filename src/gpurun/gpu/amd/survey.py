"""AMD's GPUs and partitions as things to lease, and which processes compute on them, as KFD says."""

from __future__ import annotations

from gpurun.gpu.amd.health import unwell
from gpurun.gpu.amd.host import PCIE as PCIE_LINK
from gpurun.gpu.amd.host import XGMI, amd_gpus, kfd_node, links
from gpurun.gpu.amd.processes import computing
from gpurun.gpu.device import DIRECT, OTHER, PCIE, GpuDevice, Survey

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from gpurun.gpu.amd.host import AmdGpu
    from gpurun.gpu.host.reads import HostNode

_NEARNESS = {XGMI: DIRECT, PCIE_LINK: PCIE}


def survey(own_env: Mapping[str, str], ask: bool = True, more: bool = False) -> Survey:
    """AMD's GPUs; with *ask* their links, errors and processes as well.  *more* adds nothing: the cards are always known."""
    sysroot = own_env.get("GPURUN_SYSROOT", "").rstrip("/")
    gpus = amd_gpus(sysroot)
    every = links(sysroot, gpus) if ask else ((),) * len(gpus)
    kfd, ill = kfd_node(sysroot), unwell(sysroot, gpus, ask)
    units = [
        as_device(gpu, kfd, ill, tuple([(peer, _NEARNESS.get(kind, OTHER)) for peer, kind, _ in mine]))
        for gpu, mine in zip(gpus, every, strict=True)
    ]
    return Survey(tuple(units), tuple([(key, pid) for key, pid, _ in computing(sysroot, gpus)]) if ask else ())


def as_device(
    gpu: AmdGpu, kfd: HostNode | None, ill: Mapping[str, str] | None = None, peers: tuple[tuple[int, int], ...] = ()
) -> GpuDevice:
    """*gpu* as leases and lists have it.

    *ill* says by PCI address which GPUs cannot be relied on, and why; *peers* are its links, (index, nearness).
    """
    drm = gpu.drm
    ids = tuple([f"0x{one}" for one in gpu.unique_ids])
    return GpuDevice(
        "amd",
        gpu.key,
        (gpu.key, str(gpu.index), f"amd:{gpu.index}", *ids),
        gpu.index,
        gpu.model,
        drm.driver,
        gpu.numa_node,
        drm.pcie_root,
        gpu.memory,
        gpu.pci if gpu.partition >= 0 else "",
        gpu.profile,
        nodes=(drm.render,) if drm.render is not None else (),
        more_nodes=(drm.card,) if drm.card is not None else (),
        common_nodes=(kfd,) if kfd is not None and kfd.exists else (),
        links=peers,
        unwell=gpu.silent or (ill or {}).get(gpu.pci, ""),
        title=f"AMD GPU {gpu.index}",
        minor=drm.render.minor if drm.render is not None else 0,
    )
