"""Ending and reaping processes that were made for us, of a container that could not be made."""

from __future__ import annotations

import posix

from gpurun.engine.signals import SIGKILL, send_signal
from gpurun.linux.files import read_file


def end_all_children() -> None:
    """End all children of this process and reap them: also one that has been made for us, whose maker was ended before it
    could tell us.  A kernel that does not list them (CONFIG_PROC_CHILDREN) leaves such a one to who waits for orphans."""
    try:
        pids = read_file("/proc/thread-self/children").split()
    except OSError:
        return
    kill_children([int(pid) for pid in pids])


def kill_children(pids: list[int]) -> None:
    """:func:`kill_child` for each of *pids*; raises OSError when one of them could not be ended."""
    failed: OSError | None = None
    for pid in pids:
        try:
            kill_child(pid)
        except OSError as e:  # the others are ended all the same
            failed = e
    if failed is not None:
        raise failed


def kill_child(pid: int) -> None:
    """SIGKILL our child *pid* and reap it; one that has been reaped is not ours to touch any more."""
    try:
        if posix.waitpid(pid, posix.WNOHANG)[0] == 0:
            posix.kill(pid, SIGKILL)
            posix.waitpid(pid, 0)
    except ChildProcessError:
        pass


def end_child(pid: int, pidfd: int) -> None:
    """Kill our child *pid*, wait for it, and close its *pidfd*."""
    try:
        send_signal(pidfd, SIGKILL)
    except ProcessLookupError:
        pass  # it has ended by itself
    try:
        posix.waitpid(pid, 0)
    except ChildProcessError:
        pass  # it has been waited for
    posix.close(pidfd)
