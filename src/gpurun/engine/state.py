"""The state store: ``<root>/<id>/`` with a small text file that is read without a parser.

    state       one ``name=value`` a line (see :class:`State`), written by rename
    config.json a copy of the bundle's, as it was at create: later changes to the bundle must not matter
    exec.fifo   there from create until start
    created     the journal of what gpurun makes in the rootfs for devices, undone by delete (:mod:`gpurun.ns.journal`)
    edits       the variables and groups that the container's devices brought, if any: exec gives them too
    exclusive   the CPUs that cgroups above leave to this one, and these cgroups
    gpus        the minors of the GPUs' device nodes, if it has any
    seccomp     the flags and the program of the container's filter, if it has one, for exec

The directory is made, and the cgroup's path written into it, before anything else that outlives the process is made: so a
create that was killed can always be undone.
"""

from __future__ import annotations

import posix
import time

from gpurun.errors import ContainerExists, ContainerNotFound, GpurunError, StepError
from gpurun.jsontext import dumps
from gpurun.linux.files import O_CLOEXEC, read_file, write_all
from gpurun.linux.proc import is_alive
from gpurun.oci.version import SPEC_VERSION
from gpurun.record import Record

_ID_CHARACTERS = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_+-.")

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


#: The fields of :class:`State` that are numbers.
_NUMBERS = ("pid", "start_time", "keeper", "oom_kills")


class State(Record):
    """What later commands need to know of a container.  *pid* is 0 until the init exists; *created* is RFC 3339, UTC."""

    id: str
    bundle: str
    rootfs: str
    cgroup: str  # absolute directory
    private_pid: bool  # whether killing the init kills all of the container
    pid: int = 0
    start_time: int = 0  # clock ticks since boot: guards against a reused pid
    created: str = ""
    annotations: str = "{}"  # JSON text
    unit: str = ""  # the systemd unit whose cgroup it is; empty when gpurun has made the cgroup itself
    session_keyring: bool = True  # whether its processes have a session keyring of their own
    manager: str = ""  # where the unit's service manager is reached, if it is not the system's
    keeper: int = 0  # a process in the cgroup that is none of the container's; 0 for none
    oom_kills: int = -1  # linux.proc.oom_kills when it was made, if it is in a unit: more by now may tell of its end
    streams: str = ""  # what its descriptors 0 to 2 are, if they were the caller's: see own_streams


def check_id(container_id: str) -> str:
    """*container_id* if it may name a directory of the store; raises :class:`GpurunError` with runc's texts."""
    if not container_id:
        raise GpurunError("container id cannot be empty")
    if container_id[0] == "." or not _ID_CHARACTERS.issuperset(container_id):  # names with a dot are the store's own
        raise GpurunError("invalid container ID format")
    return container_id


def directory(root: str, container_id: str) -> str:
    """The state directory of *container_id*."""
    return f"{root}/{check_id(container_id)}"


def fifo_path(root: str, container_id: str) -> str:
    """The FIFO at which a created init waits for ``start``."""
    return f"{root}/{container_id}/exec.fifo"


def make_directory(root: str, container_id: str) -> str:
    """Make the store and the container's directory in it (0711, so that a mapped root can reach the FIFO)."""
    path = directory(root, container_id)
    make_store(root)
    try:
        posix.mkdir(path, 0o711)
    except FileExistsError:
        raise ContainerExists from None
    except OSError as e:
        raise StepError("make the state directory", path, e.errno) from None
    return path


def make_store(root: str) -> None:
    """Make the state root, 0700; one that is there already stays as it is.

    The one in $XDG_RUNTIME_DIR is sticky, or systemd-tmpfiles would clear it away after six hours (file-hierarchy(7)).
    """
    path = ""
    runtime_dir = posix.environ.get(b"XDG_RUNTIME_DIR", b"").decode("utf-8", "surrogateescape").rstrip("/")
    sticky = bool(runtime_dir) and root.startswith(f"{runtime_dir}/")
    for part in root.strip("/").split("/"):
        path += "/" + part
        try:
            posix.mkdir(path, 0o1700 if sticky and path == root else 0o700)
        except FileExistsError:
            pass  # made before, or by another gpurun just now
        except OSError as e:
            raise StepError("make the state root", path, e.errno) from None


def save(root: str, state: State) -> None:
    """Write the state of a container, by rename: a reader sees the old one or the new one."""
    lines = []
    for name in State._fields:
        value = getattr(state, name)
        text = ("1" if value else "0") if value is True or value is False else str(value)
        if "\n" in text:
            raise GpurunError(f"the {name} of a container cannot contain a line break")
        lines.append(f"{name}={text}\n")
    write_atomically(f"{root}/{state.id}/state", "".join(lines).encode("utf-8", "surrogateescape"), 0o600)


def write_atomically(path: str, data: bytes, mode: int) -> None:
    """Write *data* to a file beside *path* and rename it there; raises OSError naming *path*."""
    folder, _, name = path.rpartition("/")
    temporary = f"{folder}/.{name}"
    try:
        posix.unlink(temporary)  # left by one who was killed while writing
    except FileNotFoundError:
        pass
    fd = posix.open(temporary, posix.O_WRONLY | posix.O_CREAT | posix.O_EXCL | O_CLOEXEC, mode)
    try:
        write_all(fd, data)
    except OSError:
        posix.unlink(temporary)
        raise
    finally:
        posix.close(fd)
    posix.rename(temporary, path)


def write_pid_file(path: str, pid: int) -> None:
    """Write the pid, without a newline, by rename: go-runc and conmon-rs parse the raw bytes."""
    try:
        write_atomically(path, str(pid).encode(), 0o644)
    except OSError as e:
        raise StepError("write the pid file", path, e.errno) from None


def load(root: str, container_id: str) -> State:
    """The saved state; raises :class:`ContainerNotFound` when there is none and says so when it cannot be read."""
    path = f"{directory(root, container_id)}/state"
    try:
        text = read_file(path).decode("utf-8", "surrogateescape")
    except (FileNotFoundError, NotADirectoryError):
        raise ContainerNotFound from None
    except OSError as e:
        raise StepError("read", path, e.errno) from None
    # A container that an older gpurun has made says nothing of these.
    values = {"manager": "", "keeper": "0", "oom_kills": "-1", "streams": ""}
    for line in text.split("\n"):
        name, equals, value = line.partition("=")
        if equals:
            values[name] = value
    if any(name not in values for name in State._fields):
        raise GpurunError(f"{path}: the state of the container is damaged: delete --force removes it")
    typed: dict[str, Any] = {**values, **{name: int(values[name]) for name in _NUMBERS}}
    for name in ("private_pid", "session_keyring"):
        typed[name] = values[name] == "1"
    return State(**{name: typed[name] for name in State._fields})


def own_streams() -> str:
    """What our descriptors 0 to 2 are (``pipe:[123]``, a path), a tab between: a checkpoint must tell a pipe that leads out
    of the container from one inside it."""
    names = []
    for fd in (0, 1, 2):
        try:
            name = posix.readlink(f"/proc/self/fd/{fd}")
        except OSError:  # no procfs
            name = ""
        names.append(name if name.isprintable() else "?")  # a path that nobody needs to know, and that must stay one line
    return "\t".join(names)


def save_edits(root: str, container_id: str, env: tuple[str, ...], gids: tuple[int, ...]) -> None:
    """Keep what exec must add to each process; nothing is written when there is nothing."""
    if env or gids:
        text = "\0".join([" ".join([str(gid) for gid in gids]), *env])
        write_atomically(f"{root}/{container_id}/edits", text.encode("utf-8", "surrogateescape"), 0o600)


def load_edits(root: str, container_id: str) -> tuple[tuple[str, ...], tuple[int, ...]]:
    """(variables, groups) that :func:`save_edits` has kept."""
    try:
        text = read_file(f"{root}/{container_id}/edits").decode("utf-8", "surrogateescape")
    except FileNotFoundError:
        return (), ()
    gids, *env = text.split("\0")
    return tuple(env), tuple([int(gid) for gid in gids.split()])


def save_gpus(root: str, container_id: str, minors: tuple[int, ...]) -> None:
    """Keep which GPUs the container has, for what it is asked of their use; nothing is written when it has none."""
    if minors:
        write_atomically(f"{root}/{container_id}/gpus", " ".join([str(minor) for minor in minors]).encode(), 0o600)


def load_gpus(root: str, container_id: str) -> tuple[int, ...]:
    """What :func:`save_gpus` has kept."""
    try:
        return tuple([int(minor) for minor in read_file(f"{root}/{container_id}/gpus").split()])
    except FileNotFoundError:
        return ()


def save_seccomp(root: str, container_id: str, program: bytes, flags: int) -> None:
    """Keep the container's filter for exec."""
    write_atomically(f"{root}/{container_id}/seccomp", flags.to_bytes(8, "little") + program, 0o600)


def load_seccomp(root: str, container_id: str) -> tuple[bytes, int] | None:
    """(program, flags) that :func:`save_seccomp` has kept; None for a container without a filter."""
    try:
        data = read_file(f"{root}/{container_id}/seccomp")
    except FileNotFoundError:
        return None
    return data[8:], int.from_bytes(data[:8], "little")


def status(root: str, state: State) -> str:
    """``creating``, ``created``, ``running``, ``paused`` or ``stopped``, derived from what is there now."""
    if not state.created:
        return "creating" if state.pid == 0 or is_alive(state.pid, state.start_time) else "stopped"
    if not is_alive(state.pid, state.start_time):
        return "stopped"
    if _is_frozen(state.cgroup):
        return "paused"
    try:
        posix.stat(fifo_path(root, state.id))
    except FileNotFoundError:
        return "running"
    return "created"


def _is_frozen(cgroup: str) -> bool:
    try:
        return b"frozen 1" in read_file(f"{cgroup}/cgroup.events", 4096)
    except OSError:
        return False  # no cgroup (or none any more): nothing is frozen


def state_json(
    state: State,
    status_now: str,
    indent: int = 0,
    pid: int | None = None,
    owner: str | None = None,
    oom: dict[str, int] | None = None,
) -> str:
    """The state document of the specification (runtime.md "State"), plus what runc adds to it, and *oom*."""
    document: dict[str, Any] = {
        "ociVersion": SPEC_VERSION,
        "id": state.id,
        "pid": 0 if status_now == "stopped" else state.pid if pid is None else pid,
        "status": status_now,
        "bundle": state.bundle,
        "rootfs": state.rootfs,
    }
    if state.created:
        document["created"] = state.created
    if owner is not None:
        document["owner"] = owner
    if oom:
        document["oom"] = oom
    text = dumps(document, indent)
    if state.annotations == "{}":
        return text
    # The annotations are JSON already: they are spliced in before the closing brace instead of being parsed.
    newline, colon = ("\n" + " " * indent, ": ") if indent else ("", ":")
    return f'{text[:-1].rstrip()},{newline}"annotations"{colon}{state.annotations}{newline[:1]}}}'


def rfc3339_now() -> str:
    """The time as Go's RFC3339Nano prints it, in UTC."""
    now = time.time_ns()
    t = time.gmtime(now // 10**9)
    fraction = f"{now % 10**9:09d}".rstrip("0")
    return f"{time.strftime('%Y-%m-%dT%H:%M:%S', t)}{'.' + fraction if fraction else ''}Z"


def remove_directory(root: str, container_id: str) -> None:
    """Remove the state directory with what is in it; one that is gone already is fine."""
    path = directory(root, container_id)
    try:
        for name in posix.listdir(path):
            try:
                posix.unlink(f"{path}/{name}")
            except IsADirectoryError:  # notify/, with its socket
                for below in posix.listdir(f"{path}/{name}"):
                    posix.unlink(f"{path}/{name}/{below}")
                posix.rmdir(f"{path}/{name}")
        posix.rmdir(path)
    except FileNotFoundError:
        pass  # another delete was faster
