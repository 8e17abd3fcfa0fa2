"""What is in a cgroup: listing, freezing and killing its processes, and removing it with all below it.

A container may have been given its part of the tree to write to, so what lies below its cgroup is hostile: names are
reached one by one by descriptor, no link is followed, no depth is assumed.  ``state``, ``kill`` and ``delete`` need nothing
but this module, and it loads no C library.

Reference: admin-guide/cgroup-v2.rst, "Core Interface Files"; cgroups(7).
"""

from __future__ import annotations

import posix
from errno import EBUSY, EINVAL, ENODEV, ENOENT, ENOTDIR, EOPNOTSUPP, ETIMEDOUT

from gpurun.errors import GpurunError, StepError
from gpurun.linux.files import CHUNK, Fd

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

DIRECTORY = posix.O_RDONLY | posix.O_DIRECTORY | posix.O_NOFOLLOW | posix.O_CLOEXEC
_FILE = posix.O_NOFOLLOW | posix.O_CLOEXEC
_GONE = (ENOENT, ENODEV)  # ENODEV: the file was open when its cgroup was removed
_SIGKILL = 9

#: Seconds that a cgroup may take to freeze (runc's limit), and to lose its last process when it is removed.
FREEZE_TIMEOUT = 10.0
REMOVE_TIMEOUT = 10.0
_END_AGAIN_S = 0.1  # how long processes that were killed may take before those that are there by then are killed


def processes(path: str) -> tuple[int, ...]:
    """The pids in the cgroup and in all below it; none when it does not exist.

    Raises :class:`StepError` when it cannot be read.
    """
    found: list[int] = []
    for fd in _walk(path):
        try:
            try:
                text = _read(fd, "cgroup.procs")
            except OSError as e:
                if e.errno != EOPNOTSUPP:
                    raise
                text = _read(fd, "cgroup.threads")  # a threaded cgroup lists no processes
        except OSError as e:
            if e.errno not in _GONE:
                raise StepError("cannot list the processes of the cgroup", path, e.errno or EINVAL) from None
        else:
            found += [int(pid) for pid in text.split()]
    return tuple(dict.fromkeys(found))


def kill(path: str) -> None:
    """SIGKILL every process in the cgroup and below it, also a frozen one; a cgroup that is gone has none.

    cgroup.kill (Linux 5.14) does it at once.  Where that is not possible (a threaded cgroup) the cgroup is frozen, so that
    nothing can fork away, and the processes are killed one by one.  Raises :class:`StepError`.
    """
    try:
        fd = posix.open(path, DIRECTORY)
    except FileNotFoundError:
        return
    with Fd(fd):
        try:
            _write(fd, "cgroup.kill", "1")
        except OSError as e:
            if e.errno in _GONE and not exists(path):
                return
            if e.errno not in (*_GONE, EOPNOTSUPP) or _is_root(path):
                raise StepError("cannot kill the processes of the cgroup", path, e.errno or EINVAL) from None
            _kill_one_by_one(path)


def _kill_one_by_one(path: str) -> None:
    try:
        freeze(path)
    except (GpurunError, OSError):
        pass  # what cannot be frozen is killed all the same, in several rounds because it may fork
    for _ in range(100):
        pids = processes(path)
        for pid in pids:
            if pid == 0:
                continue  # a process that our pid namespace does not show; kill(0) would be our own process group
            try:
                _kill(pid)
            except ProcessLookupError:
                pass
            except PermissionError as e:
                raise StepError(f"cannot kill process {pid} of the cgroup", path, e.errno or EINVAL) from None
        if not pids or is_frozen(path):
            break
    thaw(path)


def _kill(pid: int) -> None:
    try:
        posix.kill(pid, _SIGKILL)
    except PermissionError:
        from gpurun.security.lsm import leave_own_profile

        if not leave_own_profile():
            raise
        posix.kill(pid, _SIGKILL)


def freeze(path: str) -> None:
    """Stop every process in the cgroup and below it; returns when they have stopped.

    Raises :class:`StepError`; after FREEZE_TIMEOUT seconds (a process in uninterruptible sleep) the cgroup is thawed again.
    """
    _set_freeze(path, "1")
    if not _wait_event(path, b"frozen 1", FREEZE_TIMEOUT):
        thaw(path)
        raise StepError("cannot freeze the cgroup", path, ETIMEDOUT)


def thaw(path: str) -> None:
    """Let the processes in the cgroup go on; a cgroup that is gone has none."""
    try:
        _set_freeze(path, "0")
    except StepError as e:
        if e.errno not in _GONE:
            raise


def wake_watchers(path: str) -> None:
    """Have whoever watches cgroup.events of the cgroup, in which nothing runs, look once more: each freeze changes it."""
    for value in ("1", "0"):
        try:
            _write(None, f"{path}/cgroup.freeze", value)
        except OSError:
            return  # whoever watches is woken by the kernel, all the same


def _set_freeze(path: str, value: str) -> None:
    try:
        _write(None, f"{path}/cgroup.freeze", value)
    except OSError as e:
        step = "cannot freeze the cgroup" if value == "1" else "cannot thaw the cgroup"
        raise StepError(step, path, e.errno or EINVAL) from None


def is_frozen(path: str) -> bool:
    """Whether the cgroup is frozen: asked for, and done (that is waited for).  A cgroup that is gone is not.

    Raises :class:`StepError` when it cannot be read.
    """
    try:
        asked = _read(None, f"{path}/cgroup.freeze").strip() == "1"
    except OSError as e:
        if e.errno in (*_GONE, ENOTDIR):
            return False
        raise StepError("cannot ask whether the cgroup is frozen:", path, e.errno or EINVAL) from None
    return asked and _wait_event(path, b"frozen 1", FREEZE_TIMEOUT)


def _wait_event(path: str, line: bytes, timeout: float) -> bool:
    """Wait until cgroup.events of *path* has *line*, at most *timeout* seconds; False when it does not come.

    The kernel makes the file readable (POLLPRI) at each change, so nothing is polled.
    """
    try:
        fd = posix.open(f"{path}/cgroup.events", posix.O_RDONLY | _FILE)
    except FileNotFoundError:
        return False
    with Fd(fd):
        try:
            deadline = None
            while True:
                posix.lseek(fd, 0, 0)
                if line in posix.read(fd, 4096).split(b"\n"):
                    return True
                from select import POLLPRI, poll
                from time import monotonic

                now = monotonic()
                deadline = now + timeout if deadline is None else deadline
                if now >= deadline:
                    return False
                poller = poll()
                poller.register(fd, POLLPRI)
                poller.poll((deadline - now) * 1000)
        except OSError as e:
            if e.errno in _GONE:
                return False
            raise


def remove(path: str, end: bool = False) -> None:
    """Remove the cgroup and all below it; one that is gone is removed.

    A cgroup whose last process is just exiting is busy: that is waited for, REMOVE_TIMEOUT seconds at most.  With *end*
    processes that are in it, or come meanwhile (an exec that is beginning, which a pause may have frozen), are killed.
    Raises :class:`StepError` when processes stay, or for another reason of the kernel.
    """
    delay = 0.001
    deadline = 0.0
    while True:
        try:
            posix.rmdir(path)
            return
        except OSError as e:
            if e.errno in _GONE:
                return
            if e.errno != EBUSY:
                raise StepError("cannot remove the cgroup", path, e.errno or EINVAL) from None
        from time import monotonic, sleep

        if _is_root(path):
            raise StepError("cannot remove the cgroup", path, EBUSY)
        _remove_children(path)
        if deadline == 0.0:
            deadline = monotonic() + REMOVE_TIMEOUT
            continue
        if end:
            kill(path)
        rest = deadline - monotonic()
        if rest <= 0 or not _wait_event(path, b"populated 0", min(rest, _END_AGAIN_S) if end else rest):
            if not exists(path):
                return
            if end and rest > 0:
                continue
            raise StepError("cannot remove the cgroup", path, EBUSY)
        # Nothing lives in it and it is busy all the same: the kernel is not done with the processes that left.
        sleep(delay)
        delay = min(2 * delay, 0.1)


def _remove_children(path: str) -> None:
    """Remove the cgroups below *path*, deepest first; what is busy stays.

    Goes down and up (``..``) with one descriptor: a container can nest cgroups deeper than a path or a stack can be.
    """
    try:
        fd = posix.open(path, DIRECTORY)
    except FileNotFoundError:
        return
    with Fd(fd):
        pending, names = [_children(fd)], [""]
        while True:
            if pending[-1]:
                name = pending[-1].pop()
                if _remove_child(fd, name):
                    continue
                try:
                    child = posix.open(name, DIRECTORY, dir_fd=fd)
                except OSError:
                    continue  # gone by now
                names.append(name)
                posix.dup2(child, fd, False)
                posix.close(child)
                pending.append(_children(fd))
                continue
            if len(pending) == 1:
                return
            pending.pop()
            _up(fd)
            _remove_child(fd, names.pop())


def _remove_child(fd: int, name: str) -> bool:
    try:
        posix.rmdir(name, dir_fd=fd)
    except OSError as e:
        return e.errno in _GONE
    return True


def _walk(path: str) -> Iterator[int]:
    """A descriptor of the cgroup and then of each one below it; it is the same descriptor, valid until the next step."""
    try:
        fd = posix.open(path, DIRECTORY)
    except FileNotFoundError:
        return
    except OSError as e:
        raise StepError("cannot open the cgroup", path, e.errno or EINVAL) from None
    with Fd(fd):
        yield fd
        pending = [_children(fd)]
        while pending:
            if not pending[-1]:
                pending.pop()
                if pending:
                    _up(fd)
                continue
            try:
                child = posix.open(pending[-1].pop(), DIRECTORY, dir_fd=fd)
            except OSError as e:
                if e.errno in _GONE:
                    continue
                raise StepError("cannot open a cgroup below", path, e.errno or EINVAL) from None
            posix.dup2(child, fd, False)
            posix.close(child)
            yield fd
            pending.append(_children(fd))


def _up(fd: int) -> None:
    parent = posix.open("..", DIRECTORY, dir_fd=fd)
    posix.dup2(parent, fd, False)
    posix.close(parent)


def _children(fd: int) -> list[str]:
    try:
        with posix.scandir(fd) as entries:
            return [entry.name for entry in entries if entry.is_dir(follow_symlinks=False)]
    except OSError as e:
        if e.errno in _GONE:
            return []
        raise


def _is_root(path: str) -> bool:
    """Only the root of the tree has no cgroup.type; what is below it is all that runs on the host."""
    return exists(path) and not exists(f"{path}/cgroup.type")


def exists(path: str) -> bool:
    """Whether the cgroup is there."""
    try:
        posix.stat(path, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return True


def oom_kill_count(path: str) -> int:
    """How many processes of the cgroup the OOM killer has killed; 0 without a memory controller or a cgroup."""
    try:
        lines = _read(None, f"{path}/memory.events").split("\n")
    except OSError:
        return 0  # asked to explain a failure: not knowing is an answer
    counts = [int(line[9:]) for line in lines if line.startswith("oom_kill ")]
    return counts[0] if counts else 0


def _read(dir_fd: int | None, name: str) -> str:
    with Fd(posix.open(name, posix.O_RDONLY | _FILE, dir_fd=dir_fd)) as fd:
        text = b""
        while chunk := posix.read(fd, CHUNK):
            text += chunk
        return text.decode()


def _write(dir_fd: int | None, name: str, value: str) -> None:
    with Fd(posix.open(name, posix.O_WRONLY | _FILE, dir_fd=dir_fd)) as fd:
        posix.write(fd, value.encode())
