"""The GPUs of this host, as procfs and sysfs show them."""

from __future__ import annotations

from gpurun.decimals import decimal
from gpurun.gpu.host.reads import HostNode, fields, names_in, read_text
from gpurun.gpu.nvidia.host.device_numbers import NVIDIA_MAJOR
from gpurun.gpu.nvidia.host.nodes import MAX_MAJOR, MAX_MINOR, find_node, read_majors
from gpurun.gpu.nvidia.host.roots import PROC, Roots, bus_order, dev_root
from gpurun.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from gpurun.gpu.nvidia.host.mig import MigDevice

_UNKNOWN_UUID = "?"
_EXCLUDED = "config.toml excludes it (gpurun.excluded-devices)"


#: Where a Thor has its own GPU, which the driver of graphics cards serves as well; an Orin's is not in procfs.
_THOR_BUS_ID = "0000:01:00.0"


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
    apart: str = ""  # why it is not one of "all"
    mig: tuple[MigDevice, ...] = ()  # what the GPU is divided into; empty for a GPU that is not, or has no MIG


def read_gpus(roots: Roots) -> tuple[Gpu, ...]:
    """Only the GPUs; none when the kernel module is not loaded."""
    return gpus_of(roots, dev_root(roots), read_majors(roots), graphics=True)


def numa_nodes(roots: Roots, minors: tuple[int, ...]) -> tuple[int, ...]:
    """The NUMA node of each of the GPUs with these *minors* that this host has, -1 where it does not say."""
    if not minors:
        return ()
    base = f"{roots.sysroot}{PROC}/gpus"
    found: dict[int, int] = {}
    for bus_id in names_in(base):
        minor = decimal(fields(f"{base}/{bus_id}/information").get("Device Minor", ""), MAX_MINOR)
        if minor is not None and minor in minors:
            found[minor] = _numa_node(_pci_directory(roots, bus_id))
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
    divided = _divided_minors(roots)
    mig = _mig_of(roots, dev, majors) if divided else None
    gpus: list[Gpu] = []
    for bus_id in sorted(names, key=bus_order):
        info = fields(f"{directory}/{bus_id}/information")
        minor = decimal(info.get("Device Minor", ""), MAX_MINOR)
        if info.get("GPU Excluded") == "Yes" or minor is None:
            continue
        pci = _pci_directory(roots, bus_id)
        uuid = info.get("GPU UUID", _UNKNOWN_UUID)
        gpus.append(
            Gpu(
                index=len(gpus),
                minor=minor,
                uuid=uuid,
                bus_id=bus_id,
                model=info.get("Model", "unknown model"),
                numa_node=_numa_node(pci),
                node=find_node(dev, f"/dev/nvidia{minor}", major, minor),
                drm=_drm_nodes(pci, dev) if graphics else (),
                apart=_EXCLUDED if roots.excluded and _is_excluded(roots, len(gpus), uuid, bus_id) else "",
                mig=mig(minor) if mig is not None and str(minor) in divided else (),
            )
        )
    return tuple(gpus)


def _is_excluded(roots: Roots, index: int, uuid: str, bus_id: str) -> bool:
    """Whether the site excludes the GPU, by its index, UUID or PCI bus id."""
    own = (str(index), uuid.lower())
    return any(name.lower() in own or (":" in name and bus_order(name) == bus_order(bus_id)) for name in roots.excluded)


def _divided_minors(roots: Roots) -> set[str]:
    """The minors of the GPUs that have GPU instances (``mig.py``, imported only where there are any)."""
    base = f"{roots.sysroot}{PROC}/capabilities"
    minors = [n[3:] for n in names_in(base) if n.startswith("gpu")]
    return {m for m in minors if any(n.startswith("gi") for n in names_in(f"{base}/gpu{m}/mig"))}


def _mig_of(roots: Roots, dev: str, majors: dict[str, int]) -> Callable[[int], tuple[MigDevice, ...]]:
    from gpurun.gpu.nvidia.host.mig import read_mig, read_minors

    minors = read_minors(roots, dev, majors)
    return lambda minor: read_mig(roots, minor, minors)


def _pci_directory(roots: Roots, bus_id: str) -> str:
    domain, _, rest = bus_id.partition(":")
    return f"{roots.sysroot}/sys/bus/pci/devices/" + f"{domain.lstrip('0'):0>4}:{rest}".lower()


def _numa_node(pci: str) -> int:
    node = decimal(read_text(f"{pci}/numa_node").strip())
    return -1 if node is None else node


def _drm_nodes(pci: str, dev: str) -> tuple[HostNode, ...]:
    """The card and render nodes of one PCI device (sysfs names them, and has their numbers)."""
    nodes = []
    for name in names_in(f"{pci}/drm"):  # none without nvidia-drm, or for a card without display engine
        first, _, second = read_text(f"{pci}/drm/{name}/dev").strip().partition(":")
        major, minor = decimal(first, MAX_MAJOR), decimal(second, MAX_MINOR)
        if name.startswith(("card", "renderD")) and major is not None and minor is not None:
            nodes.append(find_node(dev, f"/dev/dri/{name}", major, minor))
    return tuple([node for node in nodes if node.exists])


def has_cards_alone(roots: Roots) -> bool:
    """Whether the driver has GPUs, and none of them is a part of a Tegra; all else is another module's subject."""
    from gpurun.gpu.host.reads import fields, names_in

    directory = f"{roots.sysroot}/proc/driver/nvidia/gpus"
    try:
        found = names_in(directory)
    except OSError:
        return False
    if _THOR_BUS_ID in found and is_integrated(fields(f"{directory}/{_THOR_BUS_ID}/information").get("Model", "")):
        return False
    return bool(found)


def is_integrated(model: str) -> bool:
    """Whether the GPU of that name is a part of a Tegra: its name is all that tells."""
    return "(nvgpu)" in model or "NVIDIA Thor" in model
