"""Letting those who watch a cgroup for its memory running out hear of it before the cgroup, and the container, go.

A shim of containerd hears of an out-of-memory kill by an inotify(7) watch on memory.events, and reads the file when it is
woken.  The kernel wakes it at most once in ten milliseconds and holds back what happens meanwhile; a cgroup that is removed
takes along both what was held back and the file.  The shim then tells its daemon, by another way than the one by which the
daemon hears that the container has ended and calls us.  If we are the first to be done, Docker and Kubernetes show a plain
137 where it should be OOMKilled, and the kubelet keeps what it has seen first.

The shim is the one that has called us, and it ends its watch when it has read of a cgroup without processes: so whether it
still has to read is seen in its /proc/PID/fdinfo.  What it then has to tell takes its time, which nothing shows.

Reference: proc_pid_fdinfo(5), inotify(7); admin-guide/cgroup-v2.rst, "Memory Interface Files" and "cgroup.events".
"""

from __future__ import annotations

import posix
import time

from gpurun.cgroup.control import oom_kill_count, wake_watchers
from gpurun.linux.files import read_file
from gpurun.linux.procfs import parent, stat

#: Seconds for those who watch to read; a shim takes some milliseconds.
_READ_TIMEOUT = 2.0
#: Seconds for them to tell what they have read: at least, at most, and in between so many times what we have lived.  A shim
#: takes less than we take to start, on a machine that is slow or busy too.
_TELL_LEAST, _TELL_MOST, _TELL_TIMES = 0.05, 2.0, 3
#: Seconds between two looks for one that begins to watch meanwhile.
_LOOK_AGAIN = 0.01
_MAX_ANCESTORS = 8


def let_watchers_tell(path: str) -> None:
    """Wait until the process that has called us has read memory.events of the cgroup *path*, in which nothing runs, and has
    had the time to tell what is in it.

    Returns at once where nothing was killed for want of memory, and after some seconds in any case: whoever watches for
    as long as the cgroup is there is not waited for any longer.
    """
    if not oom_kill_count(path):
        return
    deadline = time.monotonic() + _READ_TIMEOUT
    _let_read(path, deadline)
    end = time.monotonic() + _seconds_to_tell()
    while (now := time.monotonic()) < end:
        time.sleep(min(_LOOK_AGAIN, end - now))
        # A thread of a busy shim may come to watch only now.
        if now < deadline and _let_read(path, deadline):
            end = time.monotonic() + _seconds_to_tell()


def _let_read(path: str, deadline: float) -> bool:
    """Wake those who watch, and wait until they have read, or until *deadline*; whether there was anybody."""
    watches = _watches(path)
    if watches:
        wake_watchers(path)  # also one that began to watch when all had happened
        while any(_has(*watch) for watch in watches) and time.monotonic() < deadline:
            time.sleep(0.001)
    return bool(watches)


def _seconds_to_tell() -> float:
    return min(max(_TELL_LEAST, _TELL_TIMES * _age()), _TELL_MOST)


def _age() -> float:
    """How many seconds ago this process began, in steps of a clock tick; 0 when that is not known."""
    try:
        found = stat(posix.getpid())
    except OSError:
        return 0.0
    if found is None:
        return 0.0
    return max(time.clock_gettime(time.CLOCK_BOOTTIME) - found[1] / posix.sysconf("SC_CLK_TCK"), 0.0)


def _watches(path: str) -> tuple[tuple[str, bytes], ...]:
    """(fdinfo file, mark in it) of each inotify descriptor of our ancestors that watches memory.events of the cgroup."""
    try:
        found = posix.stat(f"{path}/memory.events")
    except OSError:
        return ()  # the cgroup is gone, and its files can no longer be read
    device = posix.major(found.st_dev) << 20 | posix.minor(found.st_dev)  # as the kernel itself numbers it
    mark = b" ino:%x sdev:%x " % (found.st_ino, device)
    return tuple([(info, mark) for pid in _ancestors() for info in _inotify_descriptors(pid) if _has(info, mark)])


def _ancestors() -> list[int]:
    """Our parent, its parent and so on; not the first process of the system."""
    pids: list[int] = []
    pid = posix.getppid()
    while pid > 1 and len(pids) < _MAX_ANCESTORS:
        pids.append(pid)
        pid = parent(pid)
    return pids


def _inotify_descriptors(pid: int) -> list[str]:
    """The fdinfo files of the inotify descriptors of *pid*; none where we may not look."""
    found = []
    try:
        for name in posix.listdir(f"/proc/{pid}/fd"):
            try:
                if posix.readlink(f"/proc/{pid}/fd/{name}") == "anon_inode:inotify":
                    found.append(f"/proc/{pid}/fdinfo/{name}")
            except FileNotFoundError:
                continue  # closed meanwhile
    except OSError:
        pass  # another user's, or ended
    return found


def _has(info: str, mark: bytes) -> bool:
    try:
        return mark in read_file(info)
    except OSError:
        return False  # closed: it has read
