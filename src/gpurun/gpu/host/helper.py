"""Questions that a driver may never answer, asked by a process of their own.

It is in a process group of its own, with an environment that has nothing of the caller's, and answers on a pipe.  At the
deadline the group is killed; what cannot be killed, because the kernel holds it in the driver, is left behind rather than
waited for.
"""

from __future__ import annotations

import posix
import select
import time

from gpurun.launcher.fresh_interpreter import child_command
from gpurun.linux.files import CHUNK, Fd
from gpurun.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

_ENVIRONMENT = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C.UTF-8"}
_LIMIT = 8 << 20  # bytes of an answer: eight GPUs with a thousand processes each are below one
_SIGKILL, _SIGNALS = 9, 64
_GRACE_S = 0.5  # after SIGKILL; a process that the driver holds in the kernel does not die at all
#: Key of :func:`finish` → the helpers that were left behind; they are children of this process until they die.
_left: dict[str, list[int]] = {}


class HelperAnswer(Record):
    """*data* is what a helper has written, None where it did not end in time; *status* its wait status, None while it
    will not die."""

    data: bytes | None
    status: int | None


def ask(entry: str, words: Sequence[str], timeout_s: float, key: str = "") -> HelperAnswer:
    """What the helper *entry* (of :mod:`gpurun.launcher.fresh_interpreter`) writes when its ``sys.argv[1:]`` are *words*.

    It is given up after *timeout_s* seconds; :func:`is_held` knows it by *key*, or by the entry where that is empty.  Raises
    OSError when no process can be made.
    """
    deadline = time.monotonic() + timeout_s
    pid, read = start(entry, words)
    try:
        data = _read_until(read, deadline)
    finally:
        posix.close(read)
        status = finish(pid, deadline, key or entry)
    return HelperAnswer(data, status)


def finish(pid: int, deadline: float, key: str) -> int | None:
    """As :func:`end`; a helper that will not die is what :func:`is_held` knows by *key* from now on."""
    status = end(pid, deadline)
    if status is None:
        _left.setdefault(key, []).append(pid)
    return status


def is_held(key: str) -> bool:
    """Whether a helper *key* that :func:`finish` has killed is still there, because the kernel holds it in a driver."""
    left = _left.get(key, [])
    _left[key] = [pid for pid in left if not _is_reaped(pid)]
    return bool(_left[key])


def _is_reaped(pid: int) -> bool:
    try:
        return posix.waitpid(pid, posix.WNOHANG)[0] == pid
    except ChildProcessError:
        return True  # by another thread that asks the same


def start(entry: str, words: Sequence[str]) -> tuple[int, int]:
    """Start the helper; its pid, and the descriptor of what it answers.

    Returns (pid, descriptor).  Raises OSError when no process can be made.
    """
    command = child_command(entry)
    read, write = posix.pipe()
    null = posix.open("/dev/null", posix.O_RDWR | posix.O_CLOEXEC)
    # The helper's standard descriptors; two steps, because any of the numbers may be 0 to 2 here.
    high = max(read, write, null, 2 if command.fd is None else command.fd) + 1
    actions: list[tuple[int, ...]] = [(posix.POSIX_SPAWN_DUP2, null, high), (posix.POSIX_SPAWN_DUP2, write, high + 1)]
    argv = list(command.argv)
    if command.fd is not None:
        actions.append((posix.POSIX_SPAWN_DUP2, command.fd, high + 2))
        actions.append((posix.POSIX_SPAWN_DUP2, high + 2, 3))
        actions.append((posix.POSIX_SPAWN_CLOSE, high + 2))
        argv[argv.index(str(command.fd), 1)] = "3"
    actions += [(posix.POSIX_SPAWN_DUP2, high, 0), (posix.POSIX_SPAWN_DUP2, high + 1, 1), (posix.POSIX_SPAWN_DUP2, high, 2)]
    actions += [(posix.POSIX_SPAWN_CLOSE, high), (posix.POSIX_SPAWN_CLOSE, high + 1)]
    with Fd(write), Fd(null):
        try:
            pid = posix.posix_spawn(
                command.executable, (*argv, *words), _ENVIRONMENT, file_actions=actions, setpgroup=0,
                setsigmask=(), setsigdef=[n for n in range(1, _SIGNALS + 1) if n not in (_SIGKILL, 19, 32, 33)],
            )  # fmt: skip
        except OSError:
            posix.close(read)
            raise
    return pid, read


def end(pid: int, deadline: float) -> int | None:
    """End what is left of the helper's process group and return the helper's wait status, None when it will not die.

    It is not reaped before the group is killed: until then no other process can have the number.
    """
    if not _has_ended(pid, min(deadline, time.monotonic() + _GRACE_S)):
        posix.kill(pid, _SIGKILL)
    try:
        posix.killpg(pid, _SIGKILL)  # programs that the helper started, too
    except OSError:
        pass  # all gone
    return posix.waitpid(pid, 0)[1] if _has_ended(pid, time.monotonic() + _GRACE_S) else None


def _read_until(fd: int, deadline: float) -> bytes | None:
    """What is written to *fd* until its end; None when that has not come by *deadline*."""
    chunks: list[bytes] = []
    size = 0
    poll = select.poll()
    poll.register(fd, select.POLLIN | select.POLLHUP)
    while size < _LIMIT:
        left = deadline - time.monotonic()
        if left <= 0 or not poll.poll(left * 1000):
            return None
        chunk = posix.read(fd, CHUNK)
        if not chunk:
            break
        chunks.append(chunk)
        size += len(chunk)
    return b"".join(chunks)


def _has_ended(pid: int, deadline: float) -> bool:
    while posix.waitid(posix.P_PID, pid, posix.WEXITED | posix.WNOHANG | posix.WNOWAIT) is None:
        if time.monotonic() >= deadline:
            return False
        time.sleep(0.002)
    return True
