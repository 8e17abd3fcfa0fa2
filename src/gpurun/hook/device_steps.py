"""Device nodes of edits as steps of :mod:`gpurun.ns.devices`."""

from __future__ import annotations

from gpurun.ns.mount_plan import DeviceStep

TYPE_CHECKING = False
if TYPE_CHECKING:
    from gpurun.cdi.edits import DeviceNode


def node_step(node: DeviceNode) -> DeviceStep:
    """*node* as something to make."""
    kind = "c" if node.type == "u" else node.type
    return DeviceStep(node.path, kind, node.major, node.minor, node.file_mode, node.uid, node.gid)
