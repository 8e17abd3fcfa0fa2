"""The state store: ``<root>/<id>/`` with a small text file that is read without a parser.

    state       one ``name=value`` a line (see :class:`State`), written by rename
    config.json a copy of the bundle's, as it was at create: later changes to the bundle must not matter
    exec.fifo   there from create until start
    created     the journal of what gpurun makes in the rootfs for devices, undone by delete (:mod:`gpurun.ns.journal_store`)
    edits       the variables and groups that the container's devices brought, if any: exec gives them too
    exclusive   the CPUs that cgroups above leave to this one, and these cgroups
    gpus        of each device node of a GPU, if it has any, MAJOR:MINOR=MAKER:KEY (:class:`gpurun.gpu.vendors.GivenGpu`)
    attached    the GPUs that have come while it ran, and those that have gone (:mod:`gpurun.engine.gpus.attached`)
    gpu-change  the attach or detach that is being made, or whose process was killed
    seccomp     the flags and the program of the container's filter, if it has one, for exec
    exec-plan   what is the same at each exec, for the compiled front (:mod:`gpurun.engine.caller.kept_plan`)

The directory is made, and the cgroup's path written into it, before anything else that outlives the process is made: so a
create that was killed can always be undone.
"""

from __future__ import annotations

import posix
import time
from errno import ENODEV, ENOENT, ENOTDIR, ENOTEMPTY

from gpurun.decimals import decimal
from gpurun.engine.state_root import make_root, remedy
from gpurun.errors import ContainerExists, ContainerNotFound, GpurunError, Step, StepError, clean, reason
from gpurun.formats.jsontext import dumps, visible
from gpurun.linux.files import O_CLOEXEC, O_PATH, Fd, read_file, read_regular, write_atomically
from gpurun.linux.owners import is_own_or_roots
from gpurun.linux.procfs import is_alive
from gpurun.oci import SPEC_VERSION
from gpurun.record import Record

_ID_CHARACTERS = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_+-.")

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any


#: The fields of :class:`State` that are numbers.
_NUMBERS = ("pid", "start_time", "keeper", "oom_kills")
_PID_MAX = 1 << 31

#: The largest state file that is written and read, in bytes; nearly all of a large one is annotations.
MAX_BYTES = 16 << 20

#: The largest saved config.json that is read, in bytes: that of the bundle, and what devices have added.
MAX_SAVED_CONFIG = 64 << 20


#: What is left of a state file for the annotations, as JSON: the rest is paths and numbers.
MAX_ANNOTATIONS = MAX_BYTES - (1 << 16)

#: How often a directory is emptied in which others still make files; a gpu attach makes a few, and then no more.
_REMOVE_ATTEMPTS = 100


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
    session_keyring: str = ""  # the name of its processes' own session keyring; "" for none
    manager: str = ""  # where the unit's service manager is reached, if it is not the system's
    keeper: int = 0  # the placeholder process in the cgroup, not one of the container's; 0 if there is none
    oom_kills: int = -1  # linux.proc.oom_kills when it was made, if it is in a unit: more by now may tell of its end
    streams: str = ""  # what its descriptors 0 to 2 are, if they were the caller's: see own_streams
    owner: str = ""  # the name of the user who made it, whose the state directory is: see user_name


class DamagedState(GpurunError):
    """A state file that is not as gpurun writes it; *left* is what its whole lines still tell."""

    def __init__(self, path: str, left: State) -> None:
        super().__init__(f"{path}: the state of the container is damaged: delete --force removes it")
        self.left = left


def check_id(container_id: str) -> str:
    """*container_id* if it may name a directory of the store; raises :class:`GpurunError` with runc's texts."""
    if not container_id:
        raise GpurunError("container id cannot be empty")
    if container_id[0] == "." or not _ID_CHARACTERS.issuperset(container_id):  # names with a dot are the store's own
        text = "letters, digits and _ + - . are allowed, and no dot at the beginning"
        raise GpurunError(f'invalid container ID format: "{clean(container_id)}": {text}')
    return container_id


def directory(root: str, container_id: str) -> str:
    """The state directory of *container_id*."""
    return f"{root}/{check_id(container_id)}"


def fifo_path(root: str, container_id: str) -> str:
    """The FIFO at which a created init waits for ``start``."""
    return f"{root}/{container_id}/exec.fifo"


def make_directory(root: str, container_id: str) -> str:
    """Make the store and in it the container's directory (0711: a mapped root reaches the FIFO).  Raises ContainerExists."""
    path = directory(root, container_id)
    make_root(root)
    check_owner(root)
    try:
        posix.mkdir(path, 0o711)
    except FileExistsError:
        raise ContainerExists from None
    except OSError as e:
        raise StepError("make the state directory", path, e.errno, remedy(e.errno)) from None
    return path


def container_ids(root: str) -> list[str]:
    """The ids in the state root *root*, sorted; what begins with a dot is the store's own.  Raises OSError."""
    return sorted([name for name in posix.listdir(root) if name[0] != "."])


def listed_ids(root: str) -> list[str]:
    """The same, for people: what they may not read is an error with what to do.  Raises FileNotFoundError."""
    try:
        return container_ids(root)
    except PermissionError as e:
        raise StepError("read", root, e.errno, remedy(e.errno, root=root)) from None


def unreadable(roots: Iterable[str]) -> str:
    """Which of *roots* the caller may not read, in one sentence; empty where there is none."""
    closed = [root for root in roots if posix.access(root, posix.F_OK) and not posix.access(root, posix.R_OK | posix.X_OK)]
    return f"gpurun: containers in {', '.join(closed)} are not shown: permission denied: run it as root" if closed else ""


def live_containers(roots: Iterable[str], ids: tuple[str, ...] | None = None) -> list[tuple[str, State]]:
    """(state root, state) of each container in *roots* that has not stopped, or of those called *ids*; what cannot be read,
    another runtime's or one that is just being deleted, is left out."""
    found = []
    for root in roots:
        try:
            names = container_ids(root) if ids is None else ids
        except OSError:
            continue
        for container_id in names:
            try:
                state = load(root, container_id)
                if state.pid and status(root, state) != "stopped":
                    found.append((root, state))
            except (GpurunError, OSError, ValueError):
                continue
    return found


def save(root: str, state: State) -> None:
    """Write the state of a container, by rename: readers see the old or the new one.  Raises :class:`GpurunError`."""
    lines = []
    for name in State._fields:
        value = getattr(state, name)
        text = ("1" if value else "0") if value is True or value is False else str(value)
        if "\n" in text:
            raise GpurunError(f"the {name} of a container cannot contain a line break")
        lines.append(f"{name}={text}\n")
    data = "".join(lines).encode("utf-8", "surrogateescape")
    if len(data) > MAX_BYTES:
        raise GpurunError(f"the state of a container cannot be larger than {MAX_BYTES >> 20} MiB")
    write_atomically(f"{root}/{state.id}/state", data, 0o600)


def check_owner(path: str, follow: bool = True) -> None:
    """Refuse a directory of another user: what is in it decides what is killed, removed and run with our privileges.

    Unless *follow*, a symbolic link of another user that leads to one of ours is refused as well.

    Raises :class:`GpurunError`, and OSError where it is not there.
    """
    with Fd(posix.open(path, O_PATH | O_CLOEXEC | (0 if follow else posix.O_NOFOLLOW))) as fd:
        found = posix.fstat(fd)
        if is_own_or_roots(found, fd):
            return
    raise GpurunError(
        f"{path} belongs to user {found.st_uid}: gpurun does not use the state of another user (chown it, "
        f"or choose another --root)"
    )


def write_pid_file(path: str, pid: int) -> None:
    """Write the pid, without a newline, by rename: go-runc and conmon-rs parse the raw bytes."""
    with Step("write the pid file", path):
        write_atomically(path, str(pid).encode(), 0o644)


def load(root: str, container_id: str) -> State:
    """The saved state; raises :class:`ContainerNotFound` when there is none, :class:`DamagedState` when it is not whole,
    and :class:`StepError` when it cannot be read now, which says nothing of what is in it."""
    path = f"{directory(root, container_id)}/state"
    try:
        check_owner(f"{root}/{container_id}", follow=False)
        data = read_regular(path, MAX_BYTES + 1)
    except (FileNotFoundError, NotADirectoryError):
        raise ContainerNotFound(container_id) from None
    except OSError as e:
        raise StepError("read", path, e.errno, remedy(e.errno, root=root), reason(e)) from None
    # A container that an older gpurun has made says nothing of these.
    values = {"manager": "", "keeper": "0", "oom_kills": "-1", "streams": "", "owner": ""}
    for line in data[:MAX_BYTES].decode("utf-8", "surrogateescape").split("\n")[:-1]:
        name, equals, value = line.partition("=")
        if equals:
            values[name] = value
    try:
        if len(data) > MAX_BYTES:
            raise ValueError
        if values["id"] != container_id:  # a copy: what it tells is another container's, which goes on
            values = {}
        return _parse_values(values)
    except (KeyError, ValueError):
        raise DamagedState(path, _readable_part(container_id, values)) from None


def _parse_values(values: dict[str, str]) -> State:
    """Raises KeyError for a field that is missing, ValueError for a value that is not a number."""
    typed: dict[str, Any] = {name: values[name] for name in State._fields}
    for name in _NUMBERS:
        typed[name] = _number(name, values[name])
    typed["private_pid"] = values["private_pid"] == "1"
    if values["session_keyring"] in ("0", "1"):  # of an older gpurun, whose keyrings all had such a name
        typed["session_keyring"] = f"_ses.{values['id']}" if values["session_keyring"] == "1" else ""
    return State(**typed)


def _readable_part(container_id: str, values: dict[str, str]) -> State:
    """What *values* tell of a container all the same; that killing its init kills all of it is not believed."""
    known: dict[str, Any] = {
        name: values.get(name, "") for name in ("bundle", "rootfs", "cgroup", "unit", "manager", "created")
    }
    numbers: dict[str, Any] = {}
    for name in ("pid", "start_time"):
        try:
            numbers[name] = _number(name, values.get(name, ""))
        except ValueError:
            numbers[name] = 0
    return State(container_id, private_pid=False, **numbers, **known)


def _number(name: str, text: str) -> int:
    """The number *text* of the field *name*; raises ValueError for what the field cannot have."""
    if name == "oom_kills" and text == "-1":
        return -1
    value = decimal(text, (_PID_MAX if name in ("pid", "keeper") else 1 << 63) - 1)
    if value is None:
        raise ValueError
    return value


def own_streams() -> str:
    """What our descriptors 0 to 2 are (``pipe:[123]``, a path), a tab between: a checkpoint must tell a pipe that leads out
    of the container from one inside it."""
    names = []
    for fd in (0, 1, 2):
        try:
            name = posix.readlink(f"/proc/self/fd/{fd}")
        except OSError:  # no procfs
            name = ""
        names.append(name if name.isprintable() else "?")  # a path that is not needed exactly, and that must stay one line
    return "\t".join(names)


def user_name(uid: int) -> str:
    """The name of the user *uid*, as ``list`` and ``state`` show it; ``#1000`` of one without."""
    if uid == 0:
        return "root"  # the one name that is always asked for: looking it up would cost every create
    import pwd

    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"#{uid}"


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
    except OSError as e:
        if e.errno in (ENOENT, ENODEV, ENOTDIR):
            return False  # no cgroup (or none any more): nothing is frozen
        raise


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
    return f'{text[:-1].rstrip()},{newline}"annotations"{colon}{visible(state.annotations)}{newline[:1]}}}'


def rfc3339_now() -> str:
    """The time as Go's RFC3339Nano prints it, in UTC."""
    now = time.time_ns()
    t = time.gmtime(now // 10**9)
    fraction = f"{now % 10**9:09d}".rstrip("0")
    return f"{time.strftime('%Y-%m-%dT%H:%M:%S', t)}{'.' + fraction if fraction else ''}Z"


def remove_tree(path: str, last: tuple[str, ...] = ()) -> None:
    """Remove the directory *path* with all that is in it, those named in *last* as the last ones; what somebody puts there
    or renames meanwhile goes as well.  Raises OSError."""
    for attempt in range(_REMOVE_ATTEMPTS):
        for name in sorted(posix.listdir(path), key=lambda name: last.index(name) + 1 if name in last else 0):
            try:
                posix.unlink(f"{path}/{name}")
            except IsADirectoryError:
                remove_tree(f"{path}/{name}")
            except FileNotFoundError:
                pass  # renamed since we read its name
        try:
            posix.rmdir(path)
            return
        except OSError as e:
            if e.errno != ENOTEMPTY or attempt == _REMOVE_ATTEMPTS - 1:
                raise


def remove_directory(root: str, container_id: str) -> None:
    """Remove the state directory with what is in it (notify/ with its socket, placeholders/ of a restore that was killed);
    one that is gone already is fine.

    The state goes last, the config before it: until then the container can be deleted once more, with its hooks.  A gpu
    attach that is at work does not hold it up: what that one still writes there goes too.
    """
    try:
        remove_tree(directory(root, container_id), ("config.json", "state"))
    except FileNotFoundError:
        pass  # another delete was faster
