"""What a node has of the makers whose rooms describe their GPUs for a cluster (:mod:`gpurun.gpu.cluster`)."""

from __future__ import annotations

from collections.abc import Sequence

from gpurun.cdi.document import CdiDevice, CdiSpec, minimum_version
from gpurun.cdi.names import device_problem
from gpurun.cdi.transform import transform_root
from gpurun.errors import GpurunError, strerror_lower
from gpurun.gpu.cluster import ClusterGpu, ClusterGpus
from gpurun.gpu.vendors import VENDORS, Vendor, module, present
from gpurun.kubernetes.specs import NodeHost
from gpurun.record import replace

#: The maker whose GPUs :mod:`gpurun.kubernetes.node` tells of, and no module ``cluster``.
NVIDIA = "nvidia"


def makers_of(names: Sequence[str]) -> tuple[Vendor, ...]:
    """The rows of those *names* whose rooms have a module ``cluster``."""
    return tuple([row for row in VENDORS if row.name in names and row.driver])


def label_names(vendor: Vendor) -> tuple[str, ...]:
    """The names of all labels that the maker's GPUs may have (:func:`gpurun.gpu.cluster.is_label`)."""
    found: tuple[str, ...] = module(vendor.name, "cluster").LABELS
    return found


def gpus_of(vendor: Vendor, host: NodeHost) -> ClusterGpus:
    """What *host* has of the maker's; none where the driver is not loaded.  Raises :class:`GpurunError`.

    One whose id no CDI file may have is left out: it would make the whole file one that engines do not read.
    """
    sysroot = host.roots.sysroot
    try:
        if vendor not in present({"GPURUN_SYSROOT": sysroot}):
            return ClusterGpus()
        found: ClusterGpus = module(vendor.name, "cluster").cluster_gpus(sysroot)
    except OSError as e:
        raise GpurunError(f"{e.filename}: {strerror_lower(e.errno or 0)}") from None
    return replace(found, gpus=tuple([gpu for gpu in found.gpus if not device_problem(gpu.id)]))


def spec_of(kind: str, named: Sequence[tuple[str, ClusterGpu]], host: NodeHost) -> CdiSpec | None:
    """The specification of the (name, GPU), as the node sees it; GPUs that are not well are left out.

    None where that leaves none: a specification needs a device.
    """
    devices = [CdiDevice(name, gpu.edits) for name, gpu in named if gpu.edits is not None]
    if not devices:
        return None
    spec = CdiSpec("", kind, tuple(devices))
    spec = replace(spec, version=minimum_version(spec))
    return transform_root(spec, host.root, "/") if host.root else spec
