"""What is recorded of GPUs that come to a container while it runs, and go: two files in its state directory.

``attached``: the GPUs that have come, and the nodes of those that have gone.  JSON: ``gpus``, each with ``key``, ``name``
and ``nodes``; ``denied``: nodes that the container had from the beginning and has no more; ``verdicts``: what stands first
in its device program, in hexadecimal; ``again``: the driver's files are to be made once more, because an attach was undone.

``gpu-change``: the change that is being made, written before its first step and removed after its last.  Who finds it, and
gets the lock, has found a change whose process was killed, and completes or undoes it
(:mod:`gpurun.engine.gpus.attach_steps`).
"""

from __future__ import annotations

from gpurun.cdi.edits import DeviceNode
from gpurun.engine import kept
from gpurun.engine import state as store
from gpurun.errors import GpurunError
from gpurun.formats.jsontext import dumps
from gpurun.gpu.vendors import GivenGpu
from gpurun.linux.files import read_file, unlink_if_there, write_atomically
from gpurun.oci.reader import as_object, parse_json
from gpurun.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_LIMIT = 4 << 20


class AttachedGpu(Record):
    """A GPU or MIG device by its *key* (:mod:`gpurun.gpu.device`), the *name* that programs get, and its nodes."""

    key: str
    name: str
    nodes: tuple[DeviceNode, ...]


class Attached(Record):
    """The record of what has come and gone."""

    gpus: tuple[AttachedGpu, ...] = ()
    denied: tuple[DeviceNode, ...] = ()
    verdicts: tuple[bytes, ...] = ()
    again: bool = False

    @property
    def nodes(self) -> tuple[DeviceNode, ...]:
        """All nodes that have come, each once."""
        return tuple({node.path: node for gpu in self.gpus for node in gpu.nodes}.values())


class ExecFacts(Record):
    """What later commands tell of the container's GPUs: the variables and groups of each exec, and which GPUs it has."""

    env: tuple[str, ...] = ()
    gids: tuple[int, ...] = ()
    given: tuple[GivenGpu, ...] = ()


class GpuChange(Record):
    """An attach or a detach with all that it takes to complete or to undo it.

    *going* is set when a detach has found no process that uses the devices: from then on it is completed, until then undone,
    as an attach always is.  *nodes* and *entries* (of /proc/driver/nvidia) are what is taken out then: what an attach has
    brought, what a detach takes away.  *journal* is the length in bytes of the container's journal before.  *leases* are the
    files (directory, name) of leases that have come, *keys* the GPUs whose leases end.
    """

    before: Attached
    after: Attached
    facts_before: ExecFacts
    facts_after: ExecFacts
    nodes: tuple[DeviceNode, ...] = ()
    entries: tuple[str, ...] = ()
    journal: int = -1
    leases: tuple[tuple[str, str], ...] = ()
    keys: tuple[str, ...] = ()
    going: bool = False


def load_attached(root: str, container_id: str) -> Attached:
    """What is recorded; raises :class:`GpurunError` for a damaged record."""
    document = _document(f"{store.directory(root, container_id)}/attached")
    return Attached() if document is None else _read(document, f"{root}/{container_id}/attached", _read_attached_document)


def save_attached(root: str, container_id: str, attached: Attached) -> None:
    """Write *attached* by rename.  Raises OSError."""
    _write(f"{root}/{container_id}/attached", _plain_attached(attached))


def load_change(root: str, container_id: str) -> GpuChange | None:
    """The change that was begun and not ended; raises :class:`GpurunError` for a damaged record."""
    path = f"{store.directory(root, container_id)}/{kept.CHANGE}"
    document = _document(path)
    return None if document is None else _read(document, path, _change)


def save_change(root: str, container_id: str, change: GpuChange) -> None:
    """Write *change* by rename.  Raises OSError."""
    document: dict[str, Any] = {
        "before": _plain_attached(change.before),
        "after": _plain_attached(change.after),
        "facts_before": _plain_facts(change.facts_before),
        "facts_after": _plain_facts(change.facts_after),
        "nodes": _plain(change.nodes),
        "entries": list(change.entries),
        "journal": change.journal,
        "leases": [list(pair) for pair in change.leases],
        "keys": list(change.keys),
        "going": change.going,
    }
    _write(f"{root}/{container_id}/{kept.CHANGE}", document)


def forget_change(root: str, container_id: str) -> None:
    """The change has come to its end.  Raises OSError."""
    unlink_if_there(f"{root}/{container_id}/{kept.CHANGE}")  # deleted with its container


def _document(path: str) -> dict[str, Any] | None:
    try:
        data = read_file(path, _LIMIT)
    except FileNotFoundError:
        return None
    return as_object(parse_json(data, path), path)


def _read(document: dict[str, Any], path: str, read: Any) -> Any:
    try:
        return read(document)
    except (KeyError, TypeError, ValueError):
        raise GpurunError(f"{path}: is damaged: delete the container") from None


def _write(path: str, document: dict[str, Any]) -> None:
    write_atomically(path, dumps(document).encode("utf-8", "surrogateescape"), 0o600)


def _read_attached_document(document: dict[str, Any]) -> Attached:
    return Attached(
        tuple([AttachedGpu(g["key"], g["name"], _nodes(g["nodes"])) for g in document["gpus"]]),
        _nodes(document["denied"]),
        tuple([bytes.fromhex(text) for text in document["verdicts"]]),
        bool(document.get("again")),  # an older gpurun has not written it
    )


def _plain_attached(attached: Attached) -> dict[str, Any]:
    return {
        "gpus": [{"key": gpu.key, "name": gpu.name, "nodes": _plain(gpu.nodes)} for gpu in attached.gpus],
        "denied": _plain(attached.denied),
        "verdicts": [code.hex() for code in dict.fromkeys(attached.verdicts)],
        "again": attached.again,
    }


def _change(document: dict[str, Any]) -> GpuChange:
    return GpuChange(
        _read_attached_document(document["before"]),
        _read_attached_document(document["after"]),
        _facts(document["facts_before"]),
        _facts(document["facts_after"]),
        _nodes(document["nodes"]),
        tuple([str(entry) for entry in document["entries"]]),
        _number(document["journal"]),
        tuple([(str(path), str(name)) for path, name in document["leases"]]),
        tuple([str(key) for key in document["keys"]]),
        bool(document["going"]),
    )


def _facts(document: dict[str, Any]) -> ExecFacts:
    return ExecFacts(
        tuple([str(entry) for entry in document["env"]]),
        tuple([_number(gid) for gid in document["gids"]]),
        tuple([GivenGpu(_number(major), _number(minor), *map(str, gpu)) for major, minor, *gpu in document["numbers"]]),
    )


def _plain_facts(facts: ExecFacts) -> dict[str, Any]:
    return {
        "env": list(facts.env),
        "gids": list(facts.gids),
        "numbers": [[one.major, one.minor, one.gpu] for one in facts.given],
    }


def _number(value: object) -> int:
    if type(value) is not int:
        raise ValueError
    return value


def _nodes(listed: list[list[object]]) -> tuple[DeviceNode, ...]:
    made = []
    for path, kind, major, minor, mode, gid in listed:
        if type(major) is not int or type(minor) is not int or type(mode) is not int or type(gid) is not int:
            raise ValueError
        made.append(DeviceNode(str(path), "", str(kind), major, minor, mode, 0, gid))
    return tuple(made)


def _plain(nodes: tuple[DeviceNode, ...]) -> list[list[object]]:
    return [[node.path, node.type, node.major, node.minor, node.file_mode, node.gid] for node in nodes]
