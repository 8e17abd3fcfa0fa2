"""``<root>/<id>/attached``: the GPUs that have come to a container while it ran, and those that have gone.

Written before anything is changed, so that whoever comes after a killed attach or detach knows what may have been done.
JSON: ``gpus``, each with ``key``, ``name`` and ``nodes``; ``denied``: nodes that the container had from the beginning and
has no more; ``verdicts``: what may stand first in its device program, in hexadecimal.
"""

from __future__ import annotations

from gpurun.cdi.edits import DeviceNode
from gpurun.engine import state as store
from gpurun.errors import GpurunError
from gpurun.formats.jsontext import dumps
from gpurun.linux.files import read_file, write_atomically
from gpurun.oci.reader import as_object, parse_json
from gpurun.record import Record

_LIMIT = 4 << 20


class AttachedGpu(Record):
    """A GPU or MIG device by its *key* (:mod:`gpurun.gpu.leases.choice`), the *name* that programs get, and its nodes."""

    key: str
    name: str
    nodes: tuple[DeviceNode, ...]


class Attached(Record):
    """The whole record."""

    gpus: tuple[AttachedGpu, ...] = ()
    denied: tuple[DeviceNode, ...] = ()
    verdicts: tuple[bytes, ...] = ()

    @property
    def nodes(self) -> tuple[DeviceNode, ...]:
        """All nodes that have come, each once."""
        return tuple({node.path: node for gpu in self.gpus for node in gpu.nodes}.values())


def load_attached(root: str, container_id: str) -> Attached:
    """What is recorded; raises :class:`GpurunError` for a damaged record."""
    path = f"{store.directory(root, container_id)}/attached"
    try:
        data = read_file(path, _LIMIT)
    except FileNotFoundError:
        return Attached()
    try:
        document = as_object(parse_json(data, path), path)
        gpus = tuple([AttachedGpu(g["key"], g["name"], _nodes(g["nodes"])) for g in document["gpus"]])
        return Attached(gpus, _nodes(document["denied"]), tuple([bytes.fromhex(text) for text in document["verdicts"]]))
    except (KeyError, TypeError, ValueError):
        raise GpurunError(f"{path}: is damaged: delete the container") from None


def save_attached(root: str, container_id: str, attached: Attached) -> None:
    """Write *attached* by rename."""
    gpus = [{"key": gpu.key, "name": gpu.name, "nodes": _plain(gpu.nodes)} for gpu in attached.gpus]
    verdicts = [code.hex() for code in dict.fromkeys(attached.verdicts)]
    text = dumps({"gpus": gpus, "denied": _plain(attached.denied), "verdicts": verdicts})
    write_atomically(f"{root}/{container_id}/attached", text.encode("utf-8", "surrogateescape"), 0o600)


def _nodes(listed: list[list[object]]) -> tuple[DeviceNode, ...]:
    made = []
    for path, kind, major, minor, mode, gid in listed:
        if type(major) is not int or type(minor) is not int or type(mode) is not int or type(gid) is not int:
            raise ValueError
        made.append(DeviceNode(str(path), "", str(kind), major, minor, mode, 0, gid))
    return tuple(made)


def _plain(nodes: tuple[DeviceNode, ...]) -> list[list[object]]:
    return [[node.path, node.type, node.major, node.minor, node.file_mode, node.gid] for node in nodes]
