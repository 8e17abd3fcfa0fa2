"""The GPUs of this host, as procfs and sysfs show them."""

from __future__ import annotations

from gpurun.hook.gpu import NVIDIA_MAJOR
from gpurun.hook.host import (
    PROC,
    HostNode,
    Roots,
    bus_order,
    dev_root,
    fields,
    find_node,
    names_in,
    read_majors,
    read_text,
)
from gpurun.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from gpurun.hook.mig import MigDevice

_UNKNOWN_UUID = "?"


class Gpu(Record):
    """One GPU; *index* is its place in the order of PCI bus ids, as NVML counts."""

    index: int
    minor: int
    uuid: str
    bus_id: str  # as the kernel writes it: 0000:07:00.0
    model: str
    numa_node: int  # -1 when the machine has but one
    node: HostNode
    drm: tuple[HostNode, ...] = ()
    mig: tuple[MigDevice, ...] = ()  # what the GPU is divided into; empty for a GPU that is not, or has no MIG


def read_gpus(roots: Roots) -> tuple[Gpu, ...]:
    """The GPUs alone; none when the kernel module is not loaded."""
    return gpus_of(roots, dev_root(roots), read_majors(roots), graphics=True)


def numa_nodes(roots: Roots, minors: tuple[int, ...]) -> tuple[int, ...]:
    """The NUMA node of each of the GPUs with these *minors* that this host has, -1 where it does not say."""
    if not minors:
        return ()
    base = f"{roots.sysroot}{PROC}/gpus"
    found: dict[int, int] = {}
    for bus_id in names_in(base):
        minor = fields(f"{base}/{bus_id}/information").get("Device Minor", "")
        if minor.isdigit() and int(minor) in minors:
            found[int(minor)] = _numa_node(_pci_directory(roots, bus_id))
    return tuple([found[minor] for minor in minors if minor in found])


def nvidia_major(majors: dict[str, int]) -> int:
    """The major of nvidiactl and the GPUs, whose name has changed with the drivers; 195 where there is neither."""
    return majors.get("nvidia-frontend", majors.get("nvidia", NVIDIA_MAJOR))


def gpus_of(roots: Roots, dev: str, majors: dict[str, int], graphics: bool) -> tuple[Gpu, ...]:
    """The GPUs by PCI bus id; *dev* is the directory with ``dev/``, *graphics* whether their DRM nodes are wanted."""
    directory = f"{roots.sysroot}{PROC}/gpus"
    names = names_in(directory)
    if not names:
        return ()
    major = nvidia_major(majors)
    divided = _divided(roots)
    mig = _mig_of(roots, dev, majors) if divided else None
    gpus: list[Gpu] = []
    for bus_id in sorted(names, key=bus_order):
        info = fields(f"{directory}/{bus_id}/information")
        minor = info.get("Device Minor", "")
        if info.get("GPU Excluded") == "Yes" or not minor.isdigit():
            continue
        pci = _pci_directory(roots, bus_id)
        gpus.append(
            Gpu(
                index=len(gpus),
                minor=int(minor),
                uuid=info.get("GPU UUID", _UNKNOWN_UUID),
                bus_id=bus_id,
                model=info.get("Model", "unknown model"),
                numa_node=_numa_node(pci),
                node=find_node(dev, f"/dev/nvidia{minor}", major, int(minor)),
                drm=_drm_nodes(pci, dev) if graphics else (),
                mig=mig(int(minor)) if mig is not None and minor in divided else (),
            )
        )
    return tuple(gpus)


def _divided(roots: Roots) -> set[str]:
    """The minors of the GPUs that have GPU instances (see :mod:`gpurun.hook.mig`, imported only where there are any)."""
    base = f"{roots.sysroot}{PROC}/capabilities"
    minors = [n[3:] for n in names_in(base) if n.startswith("gpu")]
    return {m for m in minors if any(n.startswith("gi") for n in names_in(f"{base}/gpu{m}/mig"))}


def _mig_of(roots: Roots, dev: str, majors: dict[str, int]) -> Callable[[int], tuple[MigDevice, ...]]:
    from gpurun.hook.mig import read_mig, read_minors

    minors = read_minors(roots, dev, majors)
    return lambda minor: read_mig(roots, minor, minors)


def _pci_directory(roots: Roots, bus_id: str) -> str:
    domain, _, rest = bus_id.partition(":")
    return f"{roots.sysroot}/sys/bus/pci/devices/" + f"{domain.lstrip('0'):0>4}:{rest}".lower()


def _numa_node(pci: str) -> int:
    text = read_text(f"{pci}/numa_node").strip()
    return int(text) if text.isdigit() else -1


def _drm_nodes(pci: str, dev: str) -> tuple[HostNode, ...]:
    """The card and render nodes of one PCI device (sysfs names them, and has their numbers)."""
    nodes = []
    for name in names_in(f"{pci}/drm"):  # none without nvidia-drm, or for a card without display engine
        major, _, minor = read_text(f"{pci}/drm/{name}/dev").strip().partition(":")
        if name.startswith(("card", "renderD")) and major.isdigit() and minor.isdigit():
            nodes.append(find_node(dev, f"/dev/dri/{name}", int(major), int(minor)))
    return tuple([node for node in nodes if node.exists])
