"""Whether a lease still holds: whether the process that makes the container, or the container's init, is there.

What cannot be found out is no "no": only the kernel's word that a process or a cgroup is gone ends a lease.  Other errors
(no descriptors left, no memory) are raised.
"""

from __future__ import annotations

import posix
import select
from _stat import S_ISREG
from errno import EINVAL, ENODEV, ENOENT, ENOTDIR, ESRCH

from gpurun.errors import StepError
from gpurun.linux import procfs
from gpurun.linux.files import O_CLOEXEC, Fd, read_fd
from gpurun.linux.fs import CGROUP2_SUPER_MAGIC, O_NOFOLLOW, O_PATH, fstatfs_type

TYPE_CHECKING = False
if TYPE_CHECKING:
    from gpurun.gpu.leases.lease import Lease

_CGROUPS = "/sys/fs/cgroup/"
_GONE = (ENOENT, ENOTDIR, ENODEV, ESRCH)


def own_pid_namespace() -> int:
    """The inode of our pid namespace: pids of another one say nothing to us."""
    return posix.stat("/proc/self/ns/pid").st_ino


def is_live(lease: Lease, foreign: bool = False) -> bool:
    """Whether the container of *lease* is there, or is still being made.

    A *foreign* lease is a file that another user can write: its cgroup is looked at only below /sys/fs/cgroup, where users
    can make neither files nor links.  Raises :class:`StepError` where it cannot be found out.
    """
    if lease.boot != procfs.boot_id():
        return False
    if lease.pid_namespace != own_pid_namespace():
        return True  # not ours to judge: who made it takes it away
    if not lease.pid:
        return lives(lease.maker, lease.maker_start)
    if lives(lease.pid, lease.start_time):
        return True
    if foreign and (not lease.cgroup.startswith(_CGROUPS) or ".." in lease.cgroup.split("/")):
        return False
    return _is_populated(lease.cgroup, lease.cgroup_inode)


def lives(pid: int, start_time: int) -> bool:
    """Whether any thread of the process *pid* that started at *start_time* is left.  Raises :class:`StepError`."""
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
    """A pidfd of *pid*, looked at again after opening, for pids are reused; -1 when it is another by now, or none.

    Raises :class:`StepError` where the kernel does not say: no descriptors are left, for one.
    """
    try:
        pidfd = posix.pidfd_open(pid, 0)
    except OSError as e:
        if e.errno in (ESRCH, EINVAL):  # EINVAL: a number that is no pid, or that of a thread
            return -1
        raise StepError("see whether there is the process", str(pid), e.errno) from None
    found = None
    try:
        found = procfs.stat(pid)
    except OSError as e:
        posix.close(pidfd)
        raise StepError("see when it started: the process", str(pid), e.errno) from None
    if found is not None and found[1] == start_time:
        return pidfd
    posix.close(pidfd)
    return -1


def _is_populated(cgroup: str, inode: int) -> bool:
    """Whether there are processes in the *cgroup*, if that is still the one with this *inode*."""
    if not cgroup or "\0" in cgroup:
        return False
    try:
        with Fd(posix.open(f"{cgroup}/cgroup.events", O_PATH | O_NOFOLLOW | O_CLOEXEC)) as found:
            # Only the kernel's own file is opened for reading: a FIFO in its place would block.
            if not S_ISREG(posix.fstat(found).st_mode) or fstatfs_type(found) != CGROUP2_SUPER_MAGIC:
                return False
            if posix.stat(cgroup).st_ino != inode:
                return False
            with Fd(posix.open(f"/proc/self/fd/{found}", posix.O_RDONLY | posix.O_NONBLOCK | O_CLOEXEC)) as events:
                return b"populated 1" in read_fd(events, 4096)
    except OSError as e:
        if e.errno in _GONE:
            return False
        raise StepError("see whether there are processes in the cgroup", cgroup, e.errno) from None


def is_cgroup(cgroup: str, inode: int) -> bool:
    """Whether *cgroup* is still the cgroup v2 with this *inode*."""
    if not cgroup or "\0" in cgroup:
        return False
    try:
        with Fd(posix.open(cgroup, O_PATH | O_NOFOLLOW | O_CLOEXEC)) as found:
            return posix.fstat(found).st_ino == inode and fstatfs_type(found) == CGROUP2_SUPER_MAGIC
    except OSError:
        return False


def cgroup_inode(cgroup: str) -> int:
    """What tells the cgroup from a later one of its name; 0 where there is none."""
    try:
        return posix.stat(cgroup).st_ino
    except OSError:
        return 0
