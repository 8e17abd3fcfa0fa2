"""Device nodes of edits that the host lacks: they are made for containers in whose user namespace none can be made."""

from __future__ import annotations

import posix

from gpurun.hook.device_steps import node_step
from gpurun.linux.files import read_file
from gpurun.ns.devices import lend_nodes
from gpurun.ns.namespaces import host_id

TYPE_CHECKING = False
if TYPE_CHECKING:
    from gpurun.cdi.edits import DeviceNode
    from gpurun.ns.mount_plan import DeviceStep


def missing_nodes(nodes: tuple[DeviceNode, ...]) -> tuple[DeviceStep | None, ...]:
    """For each of *nodes* how to make it, ``None`` for one that the host has and that can be bound from there."""
    return tuple([None if _exists(node.host_path or node.path) else node_step(node) for node in nodes])


def lend_missing(pid: int, nodes: tuple[DeviceNode, ...], label: str) -> int:
    """Those of *nodes* that the host lacks, as :func:`gpurun.ns.devices.lend_nodes` has them, for the container of the
    process *pid*, in whose user namespace none can be made; -1 where the host has them all, or we may make none."""
    missing = missing_nodes(nodes)
    if not any(missing):
        return -1
    maps = [read_file(f"/proc/{pid}/{name}").decode() for name in ("uid_map", "gid_map")]
    return lend_nodes(missing, lambda uid, gid: (host_id(maps[0], uid), host_id(maps[1], gid)), label)


def _exists(path: str) -> bool:
    try:
        posix.lstat(path)
    except FileNotFoundError:
        return False
    except OSError:
        pass  # there, but not for us: binding it tells why
    return True
