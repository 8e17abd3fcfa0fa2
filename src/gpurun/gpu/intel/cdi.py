"""Intel's GPUs as a CDI specification, with the names of both its tools: of the card, and of PCI address and id."""

from __future__ import annotations

from gpurun.cdi.document import CdiDevice, CdiEdits, CdiMount, CdiNode, CdiSpec, minimum_version
from gpurun.errors import GpuError
from gpurun.gpu.host.drm_edits import drm_edits
from gpurun.gpu.intel.host import intel_gpus
from gpurun.record import replace

TYPE_CHECKING = False
if TYPE_CHECKING:
    from gpurun.cdi.edits import ContainerEdits

KIND = "intel.com/gpu"
#: For a bind mount of what udev's link on the host leads to.
_OPTIONS = ("bind", "rw", "nosuid", "noexec")


def generate(sysroot: str) -> CdiSpec:
    """The specification of the GPUs below *sysroot*; nodes by path, for their numbers may be others after the next boot.

    A runtime that knows no links gets udev's names as mounts of the nodes, as in Intel's files.  There is no device ``all``.
    Raises :class:`GpuError` for a host without GPUs, and for one that lacks its nodes.
    """
    gpus = intel_gpus(sysroot)
    if not gpus:
        raise GpuError("no GPU of Intel's on this host: a CDI specification needs at least one device")
    devices = []
    for gpu in gpus:
        edits = _edits(drm_edits(((gpu.label, gpu.drm),)))
        devices += [CdiDevice(name, edits) for name in gpu.cdi_names]
    spec = CdiSpec("", KIND, tuple(devices))
    return replace(spec, version=minimum_version(spec))


def _edits(made: ContainerEdits) -> CdiEdits:
    nodes = {node.path.rpartition("/")[2]: node for node in made.device_nodes}
    mounts = [(nodes[link.target.rpartition("/")[2]], link.path) for link in made.links]
    return CdiEdits(
        device_nodes=tuple(
            [
                CdiNode(n.path, n.host_path if n.host_path != n.path else "", permissions="rw", gid=n.gid or None)
                for n in nodes.values()
            ]
        ),
        mounts=tuple([CdiMount(node.host_path or node.path, path, _OPTIONS) for node, path in mounts]),
        additional_gids=made.additional_gids,
    )
