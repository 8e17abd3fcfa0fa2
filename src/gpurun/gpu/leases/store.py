"""The leases of this host: a file for each container that has one, in a directory that all engines' containers share.

``/run/gpurun-leases`` (of a user who is not root, ``$XDG_RUNTIME_DIR/gpurun-leases``); below GPURUN_SYSROOT, where that is
set.
Each engine has its own state root, and the containers of two engines must not get the same GPUs: so the leases are in none
of these roots.

Nothing is ever promised to be cleaned up.  A lease holds while the process that was to make the container lives and, once
there is one, while the container's init does: a pidfd says so, the start time that the pid is the same process.  Where
killing the init does not end the container (a shared pid namespace) its cgroup counts too.  So a lease ends with its
container, however that ends, and a file that is left says nothing; whoever looks next under the lock removes it.

Files are written by rename: a reader sees the old one or the new one.  Choosing is done under ``lock`` (flock(2)).
"""

from __future__ import annotations

import fcntl
import posix
import time
from _stat import S_ISDIR
from errno import EACCES, EAGAIN, ENOENT

from gpurun import log
from gpurun.errors import GpurunError, StepError, oserror_text
from gpurun.formats.jsontext import dumps
from gpurun.gpu.leases import files
from gpurun.gpu.leases.lease import Lease, Leased
from gpurun.gpu.leases.liveness import is_live, own_pid_namespace
from gpurun.linux import procfs
from gpurun.linux.files import O_CLOEXEC, Fd, mkdir_p, read_file, unlink_if_there, write_atomically
from gpurun.linux.owners import is_own
from gpurun.paths import runtime_directory
from gpurun.record import to_plain

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any

#: Seconds that one process may hold the lock: choosing takes milliseconds, on a machine that has no time for it seconds, and
#: one that holds it for longer is stopped.
LOCK_SECONDS = 60.0
_TURN = 64  # bytes of its file, which say when it was last taken

_NAME = "gpurun-leases"
_LIMIT = 1 << 16
_USED = "used"  # when each GPU was last seen in use
_USERS = "/run/user"


def directory(own_env: Mapping[str, str]) -> str:
    """Where this caller's leases are kept."""
    base = own_env.get("GPURUN_SYSROOT", "").rstrip("/")
    if posix.geteuid() == 0 and not (procfs.in_user_namespace() and own_env.get("XDG_RUNTIME_DIR")):
        return f"{base}/run/{_NAME}"
    return f"{base}{runtime_directory(own_env.get('XDG_RUNTIME_DIR', ''), posix.geteuid())}/{_NAME}"


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
            self._check()
            lock = posix.open(f"{self.path}/lock", posix.O_RDWR | posix.O_CREAT | posix.O_NOFOLLOW | O_CLOEXEC, 0o600)
        except OSError as e:
            raise StepError("open the leases of GPUs", self.path, e.errno) from None
        try:
            self._await_turn(lock)
        except BaseException:  # ^C too
            posix.close(lock)
            raise
        self._lock = lock
        return self

    def _await_turn(self, lock: int) -> None:
        """Take the lock that *lock* is open on.  Raises :class:`GpurunError` where another process does not let go of it.

        However many are before us, and however slow the machine is, each of them has the whole time.
        """
        deadline, turn = time.monotonic() + LOCK_SECONDS, b""
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except OSError as e:
                if e.errno not in (EAGAIN, EACCES):
                    raise StepError("lock", f"{self.path}/lock", e.errno) from None
            if (now := posix.pread(lock, _TURN, 0)) != turn:
                deadline, turn = time.monotonic() + LOCK_SECONDS, now
            elif time.monotonic() > deadline:
                raise GpurunError(f"{self.path}/lock: another gpurun has held it for {LOCK_SECONDS:g} s")
            time.sleep(0.002)
        try:
            posix.pwrite(lock, b"%-*d" % (_TURN, time.monotonic_ns()), 0)
        except OSError:
            pass  # a full disk: whoever waits for us waits no longer than for one process

    def __exit__(self, *_: object) -> None:
        posix.close(self._lock)
        self._lock = -1

    def leases(self) -> tuple[Lease, ...]:
        """All that hold, the oldest first; with the lock, what is left of our own that do not is removed.

        Raises :class:`GpurunError` where it cannot be found out whether one holds.
        """
        return tuple(sorted(self.own_leases() + self.foreign_leases(), key=lambda lease: lease.since))

    def _check(self) -> None:
        """Refuse a directory that others could have written in.  Raises OSError where there is none."""
        found = posix.lstat(self.path)
        if not S_ISDIR(found.st_mode) or found.st_mode & 0o022 or not is_own(found, self.path):
            raise GpurunError(
                f"{self.path}: other users can write here, so no GPU is leased: remove it, and gpurun makes it again"
            )

    def _open(self) -> int:
        """A descriptor of the directory; -1 where there is none yet.  Raises :class:`GpurunError`."""
        try:
            self._check()
        except OSError as e:
            if e.errno == ENOENT:
                return -1  # nothing has been leased since this host booted
            raise StepError("open the leases of GPUs", self.path, e.errno) from None
        return files.open_own(self.path)

    def own_leases(self) -> tuple[Lease, ...]:
        """Those of :meth:`leases` that are ours to change.  Raises :class:`StepError` when the store cannot be read."""
        fd = self._open()
        if fd < 0:
            return ()
        found = []
        with Fd(fd):
            try:
                for name in files.names(fd):
                    lease = self._own(fd, name)
                    if lease is not None:
                        found.append(lease)
                if self._lock >= 0:
                    files.remove_left(fd)
            except OSError as e:
                raise StepError("read the leases of GPUs in", self.path, e.errno) from None
        return tuple(sorted(found, key=lambda lease: lease.since))

    def _own(self, directory_fd: int, name: str) -> Lease | None:
        try:
            lease = files.load(directory_fd, name)
            if lease is None:
                return None
            if (live := _live(lease, lambda: files.load(directory_fd, name))) is not None:
                return live
            keys = [unit.key for unit in lease.units]
        except files.Damaged:
            if self._lock >= 0:
                log.warning(f"{self.path}/{name} is not a lease of a GPU and was removed")
            keys = []
        if self._lock >= 0:
            if keys:
                self.note_use(keys)
            posix.unlink(name, dir_fd=directory_fd)
        return None

    def foreign_leases(self) -> tuple[Lease, ...]:
        """Those of :meth:`leases` that others have written, as far as they are believed."""
        found = []
        for path in self.others:
            of_user = path.rpartition("/")[0].rpartition("/")[0].endswith(_USERS)
            fd = files.open_foreign(path, of_user)
            if fd < 0:
                continue
            with Fd(fd):
                try:
                    names = files.names(fd, files.MAX_FOREIGN if of_user else 0)
                except OSError:
                    continue  # it was taken away
                for name in names:
                    lease = self._foreign(fd, name, of_user)
                    if lease is not None:
                        found.append(lease)
        return tuple(sorted(found, key=lambda lease: lease.since))

    def _foreign(self, directory_fd: int, name: str, of_user: bool) -> Lease | None:
        def load() -> Lease | None:
            return files.load_foreign(directory_fd, name, of_user)

        lease = load()
        return _live(lease, load, of_user) if lease is not None else None

    def current(self, lease: Lease) -> Lease | None:
        """*lease* as it is written now; None where it is not any more.  Raises :class:`GpurunError`."""
        fd = self._open()
        if fd < 0:
            return None
        with Fd(fd):
            try:
                return files.load(fd, lease.file)
            except files.Damaged:
                return None
            except OSError as e:
                raise StepError("read a lease of GPUs in", self.path, e.errno) from None

    def save(self, lease: Lease) -> None:
        """Write *lease*, in the place of one that the container had.

        Raises :class:`StepError` when it cannot be written.
        """
        try:
            write_atomically(f"{self.path}/{lease.file}", dumps(to_plain(lease)).encode("utf-8", "replace"), 0o644)
        except OSError as e:
            raise StepError("write a lease of GPUs in", self.path, e.errno) from None

    def remove(self, lease: Lease) -> None:
        """Forget *lease*."""
        unlink_if_there(f"{self.path}/{lease.file}")

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


def _live(lease: Lease, load: Callable[[], Lease | None], foreign: bool = False) -> Lease | None:
    """*lease*, or what *load* finds in its file by now, if that holds; None where neither does.

    Without the lock of its directory its file may change between the two looks, at the file and at the process: who makes a
    container writes its init down and ends, and the lease that was read, which names only the maker, holds no more.
    """
    if is_live(lease, foreign):
        return lease
    now = load()
    return now if now is not None and now != lease and is_live(now, foreign) else None


def new_lease(container_id: str, root: str, units: tuple[Leased, ...], **more: Any) -> Lease:
    """The lease of a container that this process is making."""
    found = procfs.stat(posix.getpid())
    return Lease(
        container_id,
        root,
        units,
        posix.getpid(),
        found[1] if found is not None else 0,
        procfs.boot_id(),
        own_pid_namespace(),
        time.time_ns(),
        **more,
    )
