"""The leases of this host: a file for each container that has one, in a directory that all engines' containers share.

``/run/gpurun-leases`` (of a user who is not root, ``$XDG_RUNTIME_DIR/gpurun-leases``); below GPURUN_SYSROOT, where that is
set.
Engines have state roots of their own, and one's containers must not get the GPUs of another's, so it is none of them.

Nothing is ever promised to be cleaned up.  A lease holds while the process that was to make the container lives and, once
there is one, while the container's init does: a pidfd says so, the start time that the pid is the same process.  Where
killing the init does not end the container (a shared pid namespace) its cgroup counts too.  So a lease ends with its
container, however that ends, and a file that is left says nothing; whoever looks next under the lock removes it.

Files are written by rename: a reader sees the old one or the new one.  Choosing is done under ``lock`` (flock(2)).
"""

from __future__ import annotations

import fcntl
import posix
import select
import time
from _blake2 import blake2b
from _stat import S_ISDIR
from errno import EACCES, EAGAIN

from gpurun import log
from gpurun.errors import GpurunError, StepError, oserror_text
from gpurun.formats.jsontext import dumps
from gpurun.linux import procfs
from gpurun.linux.files import O_CLOEXEC, mkdir_p, read_fd, read_file, write_atomically
from gpurun.oci.reader import as_object, parse_json
from gpurun.record import Record, to_plain

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

#: Seconds that the lock may be held by others: choosing takes milliseconds, so a longer wait is a stopped process.
LOCK_SECONDS = 10.0

_NAME = "gpurun-leases"
_LIMIT = 1 << 16
_USED = "used"  # when each GPU was last seen in use


class Leased(Record):
    """One GPU or MIG device of a lease, as :class:`gpurun.gpu.leases.choice.Unit` has it."""

    key: str
    name: str
    index: int
    minor: int


class Lease(Record):
    """A container (*id* in the state directory *root*) and the GPUs that it has.

    *maker* is the process that makes the container, *pid* its init (0 until there is one), each with its start time.
    *kind* is ``lease``; ``named`` for GPUs that were asked for by name, and are noted where the site wants to know; or
    ``released`` when an administrator has taken the lease away; or ``share``, of *memory* bytes and *threads* percent of the
    GPU (0: not limited), which others may have shares of as well.  *since* is in nanoseconds since 1970.
    """

    id: str
    root: str
    units: tuple[Leased, ...]
    maker: int
    maker_start: int
    boot: str
    pid_namespace: int
    since: int
    kind: str = "lease"
    request: str = ""
    name: str = ""  # as the engine calls the container
    engine: str = ""
    user: int = 0
    labels: tuple[tuple[str, str], ...] = ()
    pid: int = 0
    start_time: int = 0
    cgroup: str = ""  # empty where the end of the init is that of the container
    cgroup_inode: int = 0
    part: str = ""  # of GPUs that came to a container that ran: such leases are beside the one that it was made with
    memory: int = 0
    threads: int = 0

    @property
    def file(self) -> str:
        """The name of its file."""
        return blake2b(f"{self.root}\0{self.id}\0{self.part}".encode("utf-8", "surrogateescape"), digest_size=16).hexdigest()

    @property
    def shown(self) -> str:
        """What a sentence calls the container."""
        return f"{self.name} ({self.id[:12]})" if self.name and self.name != self.id else self.id[:64]


def directory(own_env: Mapping[str, str]) -> str:
    """Where this caller's leases are kept."""
    base = own_env.get("GPURUN_SYSROOT", "").rstrip("/")
    if posix.geteuid() == 0 and not (procfs.in_user_namespace() and own_env.get("XDG_RUNTIME_DIR")):
        return f"{base}/run/{_NAME}"
    runtime = own_env.get("XDG_RUNTIME_DIR") or f"/run/user/{posix.geteuid()}"
    return f"{base}{runtime.rstrip('/')}/{_NAME}"


def other_directories(own: str, own_env: Mapping[str, str]) -> tuple[str, ...]:
    """Where the leases of others are that can be seen: the host's, and for root those of users."""
    base = own_env.get("GPURUN_SYSROOT", "").rstrip("/")
    found = [f"{base}/run/{_NAME}"]
    try:
        found += [f"{base}/run/user/{name}/{_NAME}" for name in sorted(posix.listdir(f"{base}/run/user"))]
    except OSError:
        pass  # no users' managers
    return tuple([path for path in found if path != own])


class Store:
    """The leases in *path*, and those of *others* that are only read."""

    def __init__(self, path: str, others: tuple[str, ...] = ()) -> None:
        self.path, self.others = path, others
        self._lock = -1

    def __enter__(self) -> Store:
        """Take the lock, making the directory; raises :class:`GpurunError`."""
        try:
            mkdir_p(self.path, 0o755)
            found = posix.lstat(self.path)
            if found.st_uid != posix.geteuid() or not S_ISDIR(found.st_mode) or found.st_mode & 0o022:
                raise GpurunError(f"{self.path}: others could write here, so no GPU is leased: remove it, it is made again")
            lock = posix.open(f"{self.path}/lock", posix.O_RDWR | posix.O_CREAT | posix.O_NOFOLLOW | O_CLOEXEC, 0o600)
        except OSError as e:
            raise StepError("open the leases of GPUs", self.path, e.errno) from None
        deadline = time.monotonic() + LOCK_SECONDS
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                self._lock = lock
                return self
            except OSError as e:
                if e.errno not in (EAGAIN, EACCES) or time.monotonic() > deadline:
                    posix.close(lock)
                    if e.errno in (EAGAIN, EACCES):
                        raise GpurunError(f"{self.path}/lock: another gpurun has held it for {LOCK_SECONDS:g} s") from None
                    raise StepError("lock", f"{self.path}/lock", e.errno) from None
            time.sleep(0.002)

    def __exit__(self, *_: object) -> None:
        posix.close(self._lock)
        self._lock = -1

    def leases(self, own: bool = True) -> tuple[Lease, ...]:
        """All that hold (not *own*: only those of others), the oldest first.

        With the lock, what is left of our own that do not is removed.
        """
        found = []
        for path in (self.path, *self.others) if own else self.others:
            ours = path == self.path
            for name in _files(path):
                lease = load(f"{path}/{name}", None if ours else path)
                if lease is not None and is_live(lease):
                    found.append(lease)
                elif ours and self._lock >= 0:
                    if lease is not None:
                        self.note_use([unit.key for unit in lease.units])
                    _remove(f"{path}/{name}")
        return tuple(sorted(found, key=lambda lease: lease.since))

    def save(self, lease: Lease) -> None:
        """Write *lease*, in the place of one that the container had."""
        try:
            write_atomically(f"{self.path}/{lease.file}", dumps(to_plain(lease)).encode("utf-8", "replace"), 0o644)
        except OSError as e:
            raise StepError("write a lease of GPUs in", self.path, e.errno) from None

    def remove(self, lease: Lease) -> None:
        """Forget *lease*."""
        _remove(f"{self.path}/{lease.file}")

    def last_used(self) -> dict[str, int]:
        """Key → when it was last seen in use, in nanoseconds since 1970; what was never seen is missing."""
        try:
            text = read_file(f"{self.path}/{_USED}", _LIMIT).decode("utf-8", "replace")
        except OSError:
            return {}
        pairs = [line.rpartition(" ") for line in text.splitlines()]
        return {key: int(when) for key, _, when in pairs if when.isdecimal()}

    def note_use(self, keys: list[str]) -> None:
        """Those are in use now, or were until a moment ago; only an order depends on it, so what fails is no error."""
        now = time.time_ns()
        used = {**self.last_used(), **dict.fromkeys(keys, now)}
        text = "".join([f"{key} {when}\n" for key, when in used.items()])
        try:
            write_atomically(f"{self.path}/{_USED}", text.encode(), 0o644)
        except OSError as e:
            log.debug(f"it is not noted when GPUs were used: {oserror_text(e)}")


def new_lease(container_id: str, root: str, units: tuple[Leased, ...], **more: Any) -> Lease:
    """The lease of a container that this process is making."""
    found = procfs.stat(posix.getpid())
    return Lease(
        container_id,
        root,
        units,
        posix.getpid(),
        found[1] if found is not None else 0,
        boot_id(),
        own_pid_namespace(),
        time.time_ns(),
        **more,
    )


def boot_id() -> str:
    """What is another after each boot."""
    return read_file("/proc/sys/kernel/random/boot_id", 64).decode().strip()


def own_pid_namespace() -> int:
    """The inode of our pid namespace: pids of another one say nothing to us."""
    return posix.stat("/proc/self/ns/pid").st_ino


def is_live(lease: Lease) -> bool:
    """Whether the container of *lease* is there, or is still being made."""
    if lease.boot != boot_id():
        return False
    if lease.pid_namespace != own_pid_namespace():
        return True  # not ours to judge: who made it takes it away
    if not lease.pid:
        return lives(lease.maker, lease.maker_start)
    return lives(lease.pid, lease.start_time) or _populated(lease.cgroup, lease.cgroup_inode)


def lives(pid: int, start_time: int) -> bool:
    """Whether any thread of the process *pid* that started at *start_time* is left."""
    pidfd = open_process(pid, start_time)
    if pidfd < 0:
        return False
    try:
        ended = select.poll()
        ended.register(pidfd, select.POLLIN)
        return not ended.poll(0)
    finally:
        posix.close(pidfd)


def open_process(pid: int, start_time: int) -> int:
    """A pidfd of *pid*, looked at again after opening, for pids are reused; -1 when it is another by now, or none."""
    try:
        pidfd = posix.pidfd_open(pid, 0)
    except OSError:
        return -1
    found = procfs.stat(pid)
    if found is not None and found[1] == start_time:
        return pidfd
    posix.close(pidfd)
    return -1


def _populated(cgroup: str, inode: int) -> bool:
    if not cgroup:
        return False
    try:
        return posix.stat(cgroup).st_ino == inode and b"populated 1" in read_file(f"{cgroup}/cgroup.events", 4096)
    except OSError:
        return False


def cgroup_inode(cgroup: str) -> int:
    """What tells the cgroup from a later one of its name; 0 where there is none."""
    try:
        return posix.stat(cgroup).st_ino
    except OSError:
        return 0


def load(path: str, of_user: str | None = None) -> Lease | None:
    """The lease in the file *path*, None for what is none; *of_user* is the directory of a user whom it must belong to."""
    try:
        fd = posix.open(path, posix.O_RDONLY | posix.O_NOFOLLOW | posix.O_NONBLOCK | O_CLOEXEC)
    except OSError:
        return None
    try:
        if of_user is not None and posix.fstat(fd).st_uid not in (0, posix.stat(of_user).st_uid):
            return None
        document = as_object(parse_json(read_fd(fd, _LIMIT), path), path)
        units = tuple([Leased(**unit) for unit in document.pop("units")])
        labels = tuple([(str(name), str(value)) for name, value in document.pop("labels")])
        lease = Lease(units=units, labels=labels, **document)
        return lease if _is_sound(lease) else None
    except (GpurunError, OSError, TypeError, ValueError, KeyError):
        return None  # written by another gpurun, or by nobody who should
    finally:
        posix.close(fd)


def _is_sound(lease: Lease) -> bool:
    """Whether each field has the type that it is written with."""
    numbers = [lease.maker, lease.maker_start, lease.pid_namespace, lease.since, lease.user, lease.pid, lease.start_time]
    numbers += [lease.memory, lease.threads]
    numbers += [lease.cgroup_inode, *[n for unit in lease.units for n in (unit.index, unit.minor)]]
    texts = [lease.id, lease.root, lease.boot, lease.kind, lease.request, lease.name, lease.engine, lease.cgroup, lease.part]
    texts += [text for unit in lease.units for text in (unit.key, unit.name)]
    return all(type(n) is int and n >= 0 for n in numbers) and all(type(text) is str for text in texts)


def _files(path: str) -> list[str]:
    """The names of the leases in the directory *path*."""
    try:
        return sorted([name for name in posix.listdir(path) if len(name) == 32 and name.isalnum()])
    except OSError:
        return []  # nobody has leased anything there, or it is not ours to see


def _remove(path: str) -> None:
    try:
        posix.unlink(path)
    except FileNotFoundError:
        pass  # somebody else saw the same
