"""A child that is born in another cgroup (clone3(2), CLONE_INTO_CGROUP), or moved there where the kernel kills it at birth.

Since Linux 6.14 (and 6.1.129, 6.6.78, 6.12.14) the kernel kills such a child before it has run, if cgroup.kill was ever
written to for its parent's cgroup or for its own, and not as often for both: a fork compares the two counts, so as to miss
no kill that comes while it forks.  Another child is cloned beside its parent then, does nothing until it has been moved, and
goes the same way.
"""

from __future__ import annotations

import posix
from errno import EBUSY, ENODEV, ENOENT, EOPNOTSUPP

from gpurun.linux.files import O_CLOEXEC, Fd
from gpurun.linux.process import BornElsewhere, clone3

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

#: What the kernel says of a cgroup that can take no process: controllers are on for those below it, or it has been removed.
CANNOT_TAKE = (EBUSY, ENOENT, ENODEV, EOPNOTSUPP)


def clone_into(flags: int, cgroup_fd: int, move: Callable[[int, int], None]) -> tuple[int, int]:
    """:func:`gpurun.linux.process.clone3` into the cgroup *cgroup_fd*; -1 for that of the caller.

    ``move(pid, dead)`` is called where the kernel does not let a child be born there: it puts the process *pid* there, and
    *dead* is one that is to be reaped.  What it raises is raised here, and the child ends.
    """
    if cgroup_fd < 0:
        return clone3(flags)
    read, write = posix.pipe2(O_CLOEXEC)
    try:
        dead, pidfd = clone3(flags, cgroup_fd)
    except BornElsewhere:
        posix.close(read)
        posix.close(write)
        return _start_moved(flags, move, 0)
    if dead == 0:
        try:
            posix.close(read)
            posix.write(write, b"\n")
            posix.close(write)
        except BaseException:  # which would go on as the caller
            posix._exit(1)
        return 0, -1
    posix.close(write)
    alive = posix.read(read, 1)
    posix.close(read)
    if alive:
        return dead, pidfd
    posix.close(pidfd)
    return _start_moved(flags, move, dead)


def _start_moved(flags: int, move: Callable[[int, int], None], dead: int) -> tuple[int, int]:
    """A child that does nothing until it has been moved; *dead* is the one before it, 0 for none."""
    read, write = posix.pipe2(O_CLOEXEC)
    pid, pidfd = clone3(flags)
    if pid == 0:
        try:
            posix.close(write)
            if not posix.read(read, 1):
                posix._exit(1)  # the parent gave up
            posix.close(read)
        except BaseException:
            posix._exit(1)
        return 0, -1
    posix.close(read)
    with Fd(write):
        move(pid, dead)
        posix.write(write, b"\n")
    return pid, pidfd
