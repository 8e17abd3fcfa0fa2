"""The containers in the state directories that engines keep, of gpurun, runc and crun: `list --all`, and where one is.

An engine gives its runtime a root of its own: ``gpurun list`` shows what is in one of them.  What cannot be read, or goes
away meanwhile, is left out.
"""

from __future__ import annotations

import glob
import json
import posix

from gpurun.commands.gpu_use import state_roots
from gpurun.engine import state as store
from gpurun.errors import GpurunError
from gpurun.formats.jsontext import dumps
from gpurun.gpu.leases.names import of_container
from gpurun.linux.files import O_CLOEXEC, O_PATH, Fd, read_regular
from gpurun.linux.owners import is_own_or_roots
from gpurun.linux.procfs import is_alive, parent
from gpurun.record import Record, to_plain

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

#: Where other runtimes keep the containers of engines that name no root.
_OTHER_ROOTS = ("/run/crun", "/run/user/*/crun", "/run/user/*/runc")
_DOCUMENT = 64 << 20  # bytes


class Listed(Record):
    """A container: *name* and *engine* are empty where they are not known; *root* is the runtime's ``--root``."""

    id: str
    name: str
    engine: str
    runtime: str
    status: str
    pid: int  # 0 for one that has stopped
    bundle: str
    created: str
    root: str


def all_roots(root: str) -> tuple[str, ...]:
    """*root*, and the state directories of the engines on this host."""
    more = [path for pattern in _OTHER_ROOTS for path in sorted(glob.glob(pattern))]
    return tuple(dict.fromkeys([*state_roots(root, False), *more]))


def all_containers(root: str) -> list[Listed]:
    """The containers in all of them."""
    return [found for one in all_roots(root) for found in containers_in(one)]


def containers_in(root: str) -> list[Listed]:
    """The containers in the state directory *root*, whichever of the runtimes has made them."""
    try:
        names = store.container_ids(root)
    except OSError:
        return []
    found = []
    for name in names:
        for runtime, read in _READERS.items():
            try:
                listed = _describe(root, runtime, name, read(root, name))
            except (GpurunError, OSError, ValueError, KeyError, TypeError, AttributeError):
                continue  # another runtime's, or damaged, or just being deleted
            found.append(listed)
            break
    return found


def of_gpurun(root: str, name: str) -> Listed:
    """The container *name* of the state directory *root*; raises GpurunError, OSError, ValueError."""
    return _describe(root, "gpurun", name, _read_gpurun(root, name))


class _Saved(Record):
    """What the file of a runtime says of a container; *annotations* and *mounts* may be of any type."""

    status: str
    pid: int
    bundle: str
    created: str
    annotations: Any
    mounts: Any


def _read_gpurun(root: str, name: str) -> _Saved:
    state = store.load(root, name)
    mounts = _document(f"{root}/{name}/config.json").get("mounts")
    annotations = json.loads(state.annotations or "{}")
    return _Saved(store.status(root, state), state.pid, state.bundle, state.created, annotations, mounts)


def _read_runc(root: str, name: str) -> _Saved:
    """libcontainer's ``state.json``."""
    document = _document(f"{root}/{name}/state.json")
    labels = dict([label.partition("=")[::2] for label in document["config"].get("labels") or ()])
    pid = int(document["init_process_pid"])
    status = "running" if is_alive(pid, int(document["init_process_start"])) else "stopped"
    if status == "running" and _exists(f"{root}/{name}/exec.fifo"):
        status = "created"
    return _Saved(status, pid, labels.get("bundle", ""), document["created"], labels, document["config"].get("mounts"))


def _read_crun(root: str, name: str) -> _Saved:
    """crun's file ``status``."""
    document = _document(f"{root}/{name}/status")
    pid, bundle = int(document["pid"]), str(document["bundle"])
    alive = is_alive(pid, int(document["process-start-time"]))
    status = "stopped" if not alive else "created" if _exists(f"{root}/{name}/exec.fifo") else "running"
    config = _document(f"{bundle}/config.json") if is_ours(root) and _exists(f"{bundle}/config.json") else {}
    return _Saved(status, pid, bundle, document["created"], config.get("annotations") or {}, config.get("mounts"))


_READERS = {"gpurun": _read_gpurun, "runc": _read_runc, "crun": _read_crun}


def is_ours(root: str) -> bool:
    """Whether the state directory *root* is ours or root's: paths out of files of other users are not opened."""
    with Fd(posix.open(root, O_PATH | O_CLOEXEC)) as fd:
        return is_own_or_roots(posix.fstat(fd), fd)


def _document(path: str) -> dict[str, Any]:
    document = json.loads(read_regular(path, _DOCUMENT))
    if not isinstance(document, dict):
        raise ValueError
    return document


def _exists(path: str) -> bool:
    return posix.access(path, posix.F_OK)


def _describe(root: str, runtime: str, name: str, saved: _Saved) -> Listed:
    mounts = [mount for mount in (saved.mounts or () if is_ours(root) else ()) if isinstance(mount, dict)]
    pairs = tuple([(str(mount.get("source", "")), str(mount.get("destination", ""))) for mount in mounts])
    texts = {key: value for key, value in saved.annotations.items() if isinstance(value, str)}
    pid = 0 if saved.status == "stopped" else saved.pid
    known = of_container(name, texts, pairs, parent(pid), saved.bundle if is_ours(root) else "")
    engine = known.engine or _engine(root)
    return Listed(name, known.name, engine, runtime, saved.status, pid, saved.bundle, str(saved.created), root)


def _engine(root: str) -> str:
    """Whose the state directory is, by where it is."""
    if root.startswith("/run/docker/"):
        return "Docker"
    if root.startswith("/run/containerd/"):
        return f"containerd ({root.rpartition('/')[2]})"
    return "Podman" if root.startswith("/run/containers/") else ""


def rows(found: list[Listed]) -> list[tuple[str, ...]]:
    """The table for people; ids as long as engines show them."""
    made: list[tuple[str, ...]] = [("ID", "NAME", "ENGINE", "STATUS", "PID", "RUNTIME", "ROOT")]
    for one in found:
        made.append((short_id(one.id), one.name or "-", one.engine or "-", one.status, str(one.pid), one.runtime, one.root))
    return made


def short_id(container_id: str) -> str:
    """*container_id* as long as engines show theirs."""
    return container_id[:12] if len(container_id) == 64 else container_id


def as_json(found: list[Listed]) -> str:
    """The same for programs: an array of objects with the fields of :class:`Listed`."""
    return dumps([to_plain(one) for one in found], 2) + "\n"


def where_it_is(word: str, root: str) -> str:
    """What to say of a container *word* that is not in *root*: where one of that id or name is, and how to reach it."""
    others = [one for one in all_containers(root) if one.root != root]
    same = [one for one in others if word in (one.id, one.name) or (len(word) > 3 and one.id.startswith(word))]
    if not same:
        more = len(all_roots(root)) - 1
        looked = f" and {more} other state director{'y' if more == 1 else 'ies'}" if more else ""
        return f': there is no "{word}" in {root}{looked} (`gpurun list --all` shows all there are)'
    one = same[0]
    whose = f"{one.engine}'s" if one.engine else f"{one.runtime}'s"
    name = f" ({one.name})" if one.name and one.name != one.id else ""
    return f" in {root}: {whose} {short_id(one.id)}{name} is in {one.root}: {one.runtime} --root {one.root} COMMAND {one.id}"
