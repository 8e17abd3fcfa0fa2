"""Intel's GPUs as a cluster knows them: resources by driver, labels and attributes in Intel's words.

The words are those of Intel's device plugin, of its rules for Node Feature Discovery, and of its DRA driver (gpu.intel.com).
"""

from __future__ import annotations

from gpurun.errors import GpuError
from gpurun.gpu.cluster import ClusterGpu, ClusterGpus, count_labels
from gpurun.gpu.host.drm_cdi import cdi_edits
from gpurun.gpu.host.drm_edits import drm_edits
from gpurun.gpu.host.reads import read_attribute
from gpurun.gpu.intel.host import intel_gpus
from gpurun.gpu.intel.survey import as_device

TYPE_CHECKING = False
if TYPE_CHECKING:
    from gpurun.gpu.cluster import Attribute
    from gpurun.gpu.intel.host import IntelGpu

_PREFIX = "gpu.intel.com"
LABELS = tuple([f"{_PREFIX}/{word}" for word in ("device-id", "family", "product", "device.count")])
#: What a whole GPU is in thousandths, as a capacity that claims may ask for.
_MILLICORES = 1000
_ALCHEMIST, _ALCHEMIST_PRO, _FLEX, _MAX = "Arc A-Series", "Arc Pro A-Series", "Data Center Flex", "Data Center Max"
_BATTLEMAGE, _BATTLEMAGE_PRO = "Arc B-Series", "Arc Pro B-Series"
#: PCI id → (model, family), as Intel's DRA driver has them; others are ``Unknown``.
_MODELS = {
    0x0BD5: ("Max 1550", _MAX), 0x0BD6: ("Max 1450", _MAX), 0x0BD9: ("Max 1100", _MAX), 0x0BDA: ("Max 1100", _MAX),
    0x0BDB: ("Max 1100", _MAX),
    0x56A0: ("A770", _ALCHEMIST), 0x56A1: ("A750", _ALCHEMIST), 0x56A2: ("A580", _ALCHEMIST), 0x56A5: ("A380", _ALCHEMIST),
    0x56A6: ("A310", _ALCHEMIST), 0x56B0: ("A30M", _ALCHEMIST_PRO), 0x56B1: ("A40/A50", _ALCHEMIST_PRO),
    0x56B2: ("A60M", _ALCHEMIST_PRO), 0x56B3: ("A60", _ALCHEMIST_PRO),
    0x56C0: ("Flex 170", _FLEX), 0x56C1: ("Flex 140", _FLEX),
    0xE20B: ("B580", _BATTLEMAGE), 0xE20C: ("B570", _BATTLEMAGE), 0xE211: ("B60", _BATTLEMAGE_PRO),
    0xE212: ("B50", _BATTLEMAGE_PRO), 0xE222: ("B65", _BATTLEMAGE_PRO), 0xE223: ("B70", _BATTLEMAGE_PRO),
}  # fmt: skip
_UNKNOWN = ("Unknown", "Unknown")
#: What the labels say of a family, and of which PCI ids they name the product; display GPUs have no product there.
_LABELLED = {_ALCHEMIST: "A_Series", _ALCHEMIST_PRO: "A_Series", _FLEX: "Flex_Series", _MAX: "Max_Series"}
_PRODUCTS = {0x56C0: "Flex_170", 0x56C1: "Flex_140", 0x0BDA: "Max_1100", 0x0BD5: "Max_1550"}


def cluster_gpus(sysroot: str) -> ClusterGpus:
    """The GPUs and virtual functions of the host below *sysroot* that are offered, and the labels of its node."""
    gpus = intel_gpus(sysroot)
    return ClusterGpus(tuple([_gpu(gpu) for gpu in gpus]), tuple(_labels(gpus).items()))


def _gpu(gpu: IntelGpu) -> ClusterGpu:
    unit, edits = as_device(gpu), None
    why = unit.unwell
    try:
        edits = cdi_edits(drm_edits(((gpu.label, gpu.qualified, gpu.drm),)))
    except GpuError as e:
        why = str(e)
    capacity = (("millicores", _MILLICORES),)
    return ClusterGpu(
        unit,
        gpu.key,
        gpu.cdi_names[-1],
        gpu.drm.driver,
        attributes=_attributes(gpu, not why),
        capacity=(("memory", gpu.memory), *capacity) if gpu.memory > 0 else capacity,
        edits=edits,
        why=why,
    )


def _attributes(gpu: IntelGpu, well: bool) -> tuple[Attribute, ...]:
    model, family = _MODELS.get(gpu.drm.device, _UNKNOWN)
    texts = (
        ("type", "vf" if gpu.drm.physfn else "gpu"),
        ("model", model),
        ("family", family),
        ("driver", gpu.drm.driver),
        ("pciId", f"{gpu.drm.device:#06x}"),
        ("health", "Healthy" if well else "Unhealthy"),
        ("resource.kubernetes.io/pcieRoot", gpu.drm.pcie_root),
        ("resource.kubernetes.io/pciBusID", gpu.key),
    )
    found: list[Attribute] = [(name, "string", text) for name, text in texts if text]
    divisible = read_attribute(f"{gpu.drm.path}/sriov_totalvfs", 64) not in ("", "0")
    return (*found, ("sriov", "bool", divisible))


def _labels(gpus: tuple[IntelGpu, ...]) -> dict[str, str]:
    """What Intel's rules say: how many of each PCI class and id there are, the family, and the product of servers' GPUs."""
    found: dict[str, str] = {}
    ids = [f"{_class(gpu)}-{gpu.drm.device:04x}" for gpu in gpus]
    for name, count in count_labels(f"{_PREFIX}/device-id", ids).items():
        found[f"{name}.present"], found[f"{name}.count"] = "true", count
    families = {_LABELLED.get(_MODELS.get(gpu.drm.device, _UNKNOWN)[1], "") for gpu in gpus} - {""}
    if len(families) == 1:
        found[f"{_PREFIX}/family"] = families.pop()
    products = [_PRODUCTS[gpu.drm.device] for gpu in gpus if gpu.drm.device in _PRODUCTS]
    if len(set(products)) == 1:
        found[f"{_PREFIX}/product"], found[f"{_PREFIX}/device.count"] = products[0], str(len(products))
    return found


def _class(gpu: IntelGpu) -> str:
    """The PCI class and subclass, ``0300`` for a display and ``0380`` for a GPU without one."""
    text = read_attribute(f"{gpu.drm.path}/class", 64).lower()
    digits = text.removeprefix("0x")[:4]
    return digits if len(text) == 8 and all(c in "0123456789abcdef" for c in digits) else "0300"
