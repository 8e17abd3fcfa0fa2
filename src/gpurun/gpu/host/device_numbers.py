"""By which numbers and names the device nodes of GPUs are known."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

    from gpurun.cdi.edits import DeviceNode
    from gpurun.ns.mount_plan import DeviceStep
    from gpurun.oci.config import Device

#: The node of a GPU has the number 195:0 to 195:253, what follows are the driver's own.  LANANA has registered it.
NVIDIA_MAJOR, MAX_GPU_MINOR = 195, 253


def node_minors(nodes: Iterable[Device | DeviceNode | DeviceStep]) -> tuple[int, ...]:
    """The minors of the GPUs among device *nodes*, each once: by their numbers, for they may have any path."""
    found = [n.minor for n in nodes if n.major == NVIDIA_MAJOR and n.minor <= MAX_GPU_MINOR and n.type in ("c", "u")]
    return tuple(dict.fromkeys(found))
