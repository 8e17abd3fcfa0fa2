"""AMD's GPUs and partitions as a cluster knows them: ids, resources, labels and attributes in AMD's words.

The words are those of AMD's device plugin, node labeller and DRA driver (gpu.amd.com).  Labels of firmware, which AMD's
labeller asks the driver for by opening each GPU, are not there.
"""

from __future__ import annotations

from gpurun.errors import GpuError
from gpurun.gpu.amd.health import unwell
from gpurun.gpu.amd.host import DRIVER, amd_gpus, kfd_node
from gpurun.gpu.amd.resolve import device_edits
from gpurun.gpu.amd.survey import as_device
from gpurun.gpu.cluster import ClusterGpu, ClusterGpus, count_labels, label_value
from gpurun.gpu.host.drm_cdi import cdi_edits
from gpurun.gpu.host.reads import exists, read_attribute

TYPE_CHECKING = False
if TYPE_CHECKING:
    from gpurun.gpu.amd.host import AmdGpu
    from gpurun.gpu.cluster import Attribute
    from gpurun.gpu.device import GpuDevice

_PREFIX, _BETA = "amd.com/gpu", "beta.amd.com/gpu"
#: Labels of which several values are counted, and those that have one value or are not there.
_COUNTED = ("cu-count", "simd-count", "vram", "device-id", "family", "product-name")
_SINGLE = (
    "driver-version", "driver-src-version", "compute-memory-partition", "compute-partitioning-supported",
    "memory-partitioning-supported",
)  # fmt: skip
LABELS = tuple(
    [f"{prefix}.{kind}" for prefix in (_PREFIX, _BETA) for kind in _COUNTED] + [f"{_PREFIX}.{k}" for k in _SINGLE]
)
#: Families of GPUs (AMDGPU_FAMILY_* of amdgpu_drm.h) by KFD's gfx_target_version: those that are not the rule for their
#: hundred.  10.3.6 is the version of two families, so it has none.
_FAMILY = {
    70000: "KV", 80001: "CZ", 90002: "RV", 90012: "RV", 100303: "VGH", 100305: "YC", 100306: "",
    110003: "GC_11_0_1",
}  # fmt: skip
_FAMILIES = {700: "CI", 800: "VI", 900: "AI", 904: "AI", 905: "AI", 1001: "NV", 1003: "NV"} | {
    1100: "GC_11_0_0", 1105: "GC_11_5_0", 1200: "GC_12_0_0",
}  # fmt: skip


def cluster_gpus(sysroot: str) -> ClusterGpus:
    """The GPUs and partitions of the host below *sysroot* that compute, and the labels of its node."""
    gpus = amd_gpus(sysroot)
    kfd, ill = kfd_node(sysroot), unwell(sysroot, gpus, ask=True)
    version, source = (read_attribute(f"{sysroot}/sys/module/{DRIVER}/{name}", 64) for name in ("version", "srcversion"))
    made = [_gpu(gpu, as_device(gpu, kfd, ill), sysroot, version, source) for gpu in gpus]
    return ClusterGpus(tuple(made), tuple(_labels(gpus, sysroot, version, source).items()) if gpus else ())


def family(version: int) -> str:
    """The family of GPUs with that gfx_target_version, as AMD's labeller names it; empty for one that is not known."""
    return _FAMILY.get(version, _FAMILIES.get(version // 100, ""))


def _gpu(gpu: AmdGpu, unit: GpuDevice, sysroot: str, version: str, source: str) -> ClusterGpu:
    edits, why = None, unit.unwell
    try:
        edits = None if gpu.silent else cdi_edits(device_edits((gpu,), sysroot, gpu.drm.name))
    except GpuError as e:
        why = str(e)
    return ClusterGpu(
        unit,
        gpu.drm.name,
        "-".join(["gpu", *[str(node.minor) for node in gpu.drm.nodes]]),
        "gpu",
        gpu.profile,
        _attributes(gpu, version, source),
        tuple(
            [
                (name, amount)
                for name, amount in (
                    ("memory", gpu.memory), ("computeUnits", gpu.compute_units), ("simdUnits", gpu.kfd.value("simd_count")),
                )
                if amount > 0
            ]
        ),
        edits,
        why,
    )  # fmt: skip


def _attributes(gpu: AmdGpu, version: str, source: str) -> tuple[Attribute, ...]:
    part = gpu.partition >= 0
    found: list[Attribute] = [("type", "string", "amdgpu-partition" if part else "amdgpu")]
    texts = (
        ("parentPciAddr" if part else "pciAddr", gpu.pci),
        ("parentDeviceID" if part else "deviceID", str(gpu.kfd.value("unique_id") or "")),
        ("family", family(gpu.kfd.value("gfx_target_version"))),
        ("productName", _product(gpu)),
        ("driverSrcVersion", source),
        ("partitionProfile", gpu.profile),
        ("resource.kubernetes.io/pcieRoot", gpu.drm.pcie_root),
        ("resource.kubernetes.io/pciBusID", gpu.pci),
    )
    found += [(name, "string", text) for name, text in texts if text]
    for name, node in (("cardIndex", gpu.drm.card), ("renderIndex", gpu.drm.render)):
        if node is not None:
            found.append((name, "int", node.minor))
    if version:
        found.append(("driverVersion", "version", version))
    return tuple(found)


def _product(gpu: AmdGpu) -> str:
    return label_value(gpu.model)


def _labels(gpus: tuple[AmdGpu, ...], sysroot: str, version: str, source: str) -> dict[str, str]:
    found: dict[str, str] = {}
    for gpu_values, kind in zip(zip(*[_values(gpu) for gpu in gpus], strict=True), _COUNTED, strict=True):
        found |= _kind(kind, [value for value in gpu_values if value])
    profiles = {gpu.profile for gpu in gpus if gpu.profile}
    supported = []
    for kind in ("compute", "memory"):
        files = [f"{sysroot}/sys/bus/pci/devices/{gpu.pci}/available_{kind}_partition" for gpu in gpus]
        supported.append("true" if any(exists(path) for path in files) else "false")
    profile = profiles.pop() if len(profiles) == 1 else ""
    single = (label_value(version), label_value(source), profile, *supported)
    return found | {f"{_PREFIX}.{kind}": value for kind, value in zip(_SINGLE, single, strict=True) if value}


def _values(gpu: AmdGpu) -> tuple[str, ...]:
    """What :data:`_COUNTED` are of *gpu*; empty for what is not known."""
    return (
        str(gpu.compute_units or ""),
        str(gpu.kfd.value("simd_count") or ""),
        f"{_gibibytes(gpu.memory)}G" if gpu.memory > 0 else "",
        f"{gpu.drm.device:04x}" if gpu.drm.device else "",
        family(gpu.kfd.value("gfx_target_version")),
        _product(gpu),
    )


def _kind(kind: str, values: list[str]) -> dict[str, str]:
    """Of one value the label has it, of several there is one for each with how many have it; of beta.amd.com both."""
    plain, beta = f"{_PREFIX}.{kind}", f"{_BETA}.{kind}"
    if len(set(values)) != 1:
        return count_labels(plain, values) | count_labels(beta, values)
    return {plain: values[0], beta: values[0]} | count_labels(beta, values)


def _gibibytes(size: int) -> int:
    """Whole MiB, then rounded to GiB, halves up."""
    return ((size >> 20) + 512) >> 10
