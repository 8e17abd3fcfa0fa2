"""Handing a container's cgroup to the container's own user (cgroup-v2.rst "Delegation")."""

from __future__ import annotations

import posix

from gpurun.errors import StepError
from gpurun.linux.files import read_file

#: What the kernel lists in /sys/kernel/cgroup/delegate, for kernels that do not list it.
_FILES = ("cgroup.procs", "cgroup.subtree_control", "cgroup.threads")


def delegate(fd: int, uid: int, listed: str = "/sys/kernel/cgroup/delegate") -> None:
    """Give the cgroup that *fd* is, and its files that may be given away, to *uid* (of the host): its owner can make cgroups
    below it and move its processes there, but not change its own limits.  Raises :class:`StepError`."""
    try:
        names = tuple(read_file(listed, 1 << 16).decode().split())
    except OSError:
        names = _FILES
    try:
        posix.chown(fd, uid, -1)
        for name in names:
            if "/" in name:
                continue
            try:
                posix.chown(name, uid, -1, dir_fd=fd, follow_symlinks=False)
            except FileNotFoundError:
                pass  # of a controller that is not enabled here
    except OSError as e:
        raise StepError("give the cgroup to the user", str(uid), e.errno) from None
