"""The placeholder process: a child that only sleeps and holds a systemd scope until the init has been born in it."""

from __future__ import annotations

import posix

from gpurun.linux.files import Fd

_SIGKILL = 9

#: placeholder → the descriptor whose closing ends it, if release() does not
_held: dict[int, int] = {}


def hold() -> int:
    """Start a child that does nothing and ends when we do; returns its pid."""
    read, write = posix.pipe2(posix.O_CLOEXEC)
    pid = posix.fork()
    if pid == 0:
        posix.close(write)
        posix.read(read, 1)
        posix._exit(0)
    posix.close(read)
    _held[pid] = write
    return pid


def release(pid: int) -> bool:
    """End the placeholder *pid*; one that has ended is fine.  Whether it was there until now."""
    write = _held.pop(pid, -1)
    if write < 0:
        return False
    posix.close(write)
    if posix.waitpid(pid, posix.WNOHANG)[0]:
        return False  # all processes in the scope have been killed
    posix.kill(pid, _SIGKILL)
    posix.waitpid(pid, 0)
    return True


def spare(pid: int) -> None:
    """Have the kernel never choose the placeholder *pid* when memory is short, if we may say so."""
    try:
        fd = posix.open(f"/proc/{pid}/oom_score_adj", posix.O_WRONLY | posix.O_CLOEXEC)
    except OSError:
        return
    with Fd(fd):
        try:
            posix.write(fd, b"-1000")
        except PermissionError:
            pass  # without CAP_SYS_RESOURCE
