"""Intel's GPUs as a CDI specification, with the names of both its tools: of the card, and of PCI address and id."""

from __future__ import annotations

from gpurun.cdi.document import CdiDevice, CdiSpec, minimum_version
from gpurun.errors import GpuError
from gpurun.gpu.host.drm_cdi import cdi_edits
from gpurun.gpu.host.drm_edits import drm_edits
from gpurun.gpu.intel.host import intel_gpus
from gpurun.record import replace

KIND = "intel.com/gpu"


def generate(sysroot: str) -> CdiSpec:
    """The specification of the GPUs below *sysroot*; nodes by path, for their numbers may be others after the next boot.

    There is no device ``all``.  Raises :class:`GpuError` for a host without GPUs, and for one that lacks its nodes.
    """
    gpus = intel_gpus(sysroot)
    if not gpus:
        raise GpuError("no GPU of Intel's on this host: a CDI specification needs at least one device")
    devices = []
    for gpu in gpus:
        edits = cdi_edits(drm_edits(((gpu.label, gpu.qualified, gpu.drm),)))
        devices += [CdiDevice(name, edits) for name in gpu.cdi_names]
    spec = CdiSpec("", KIND, tuple(devices))
    return replace(spec, version=minimum_version(spec))
