"""AMD's GPUs as a CDI specification, by AMD's indices and ``all``; gpurun's own, and the text that amd-ctk writes."""

from __future__ import annotations

from gpurun.cdi.document import CdiDevice, CdiEdits, CdiNode, CdiSpec, minimum_version
from gpurun.cdi.write import to_value
from gpurun.errors import GpuError
from gpurun.formats.jsontext import dumps
from gpurun.gpu.amd.host import amd_gpus
from gpurun.gpu.amd.resolve import device_edits
from gpurun.gpu.host.drm_cdi import cdi_edits
from gpurun.record import replace

TYPE_CHECKING = False
if TYPE_CHECKING:
    from gpurun.cdi.edits import ContainerEdits

KIND = "amd.com/gpu"
#: What amd-ctk writes into its files, whatever they use.
_AMD_CTK_VERSION = "0.6.0"


def generate(sysroot: str) -> CdiSpec:
    """The specification of the GPUs and partitions below *sysroot*: nodes by path, groups, udev's names.

    Raises :class:`GpuError` for a host without GPUs, and for one that lacks their nodes.
    """
    devices = [CdiDevice(name, cdi_edits(made)) for name, made in _devices(sysroot)]
    spec = CdiSpec("", KIND, tuple(devices))
    return replace(spec, version=minimum_version(spec))


def amd_ctk_text(sysroot: str) -> str:
    """The file that ``amd-ctk cdi generate`` (container-toolkit 1.3) writes: only nodes, by their present numbers.

    Raises as :func:`generate`.
    """
    devices = []
    for name, made in _devices(sysroot):
        nodes = [CdiNode(n.path, "", "c", n.major, n.minor, n.file_mode, "rwm", 0, n.gid) for n in made.device_nodes]
        devices.append(CdiDevice(name, CdiEdits(device_nodes=tuple(nodes))))
    value = to_value(CdiSpec("", KIND, tuple(devices)))
    return dumps({**value, "cdiVersion": _AMD_CTK_VERSION, "containerEdits": {}}, 2) + "\n"


def _devices(sysroot: str) -> list[tuple[str, ContainerEdits]]:
    gpus = amd_gpus(sysroot)
    if not gpus:
        raise GpuError("no GPU of AMD's on this host: a CDI specification needs at least one device")
    named = [(str(gpu.index), (gpu,)) for gpu in gpus]
    return [(name, device_edits(members, sysroot, f"CDI {name}")) for name, members in (*named, ("all", gpus))]
