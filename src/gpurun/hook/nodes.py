"""Device nodes of edits as steps of :mod:`gpurun.ns.devices`; which of them the host lacks."""

from __future__ import annotations

import posix

from gpurun.ns.steps import DeviceStep

TYPE_CHECKING = False
if TYPE_CHECKING:
    from gpurun.hook.edits import DeviceNode


def node_step(node: DeviceNode) -> DeviceStep:
    """*node* as something to make."""
    kind = "c" if node.type == "u" else node.type
    return DeviceStep(node.path, kind, node.major, node.minor, node.file_mode, node.uid, node.gid)


def missing_nodes(nodes: tuple[DeviceNode, ...]) -> tuple[DeviceStep | None, ...]:
    """For each of *nodes* how to make it, ``None`` for one that the host has and that can be bound from there."""
    return tuple([None if _exists(node.host_path or node.path) else node_step(node) for node in nodes])


def _exists(path: str) -> bool:
    try:
        posix.lstat(path)
    except FileNotFoundError:
        return False
    except OSError:
        pass  # there, but not for us: binding it tells why
    return True
