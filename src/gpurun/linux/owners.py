"""Whether a file is this user's own: asked of the kernel, where its number alone does not say so.

In a user namespace stat(2) gives every owner that the namespace has no number for as the overflow id (65534,
/proc/sys/kernel/overflowuid).  A process whose own number is that one sees the files of all these users as its own.
open(2) with O_NOATIME compares what the kernel knows of both: it is allowed to the owner, and to a capability that holds
for mapped owners only.
"""

from __future__ import annotations

import posix
from _stat import S_ISDIR, S_ISREG

from gpurun.linux.files import O_CLOEXEC, Fd, read_file
from gpurun.linux.procfs import in_user_namespace

_ASK = posix.O_RDONLY | posix.O_NOATIME | posix.O_NONBLOCK | posix.O_NOCTTY | O_CLOEXEC


def is_own(found: posix.stat_result, where: str | int) -> bool:
    """Whether *found* is this process's effective user's.

    It is what stat(2) says of *where*: a path, whose last name is not followed, or a descriptor.  Who is not root, and in a
    user namespace, opens the file for reading: only a regular file or a directory is theirs then.  Raises nothing: what
    cannot be opened is not ours.
    """
    if found.st_uid != posix.geteuid():
        return False
    if found.st_uid == 0 or not in_user_namespace():
        return True  # no overflow id
    if not (S_ISREG(found.st_mode) or S_ISDIR(found.st_mode)):
        return False
    at, flags = (where, _ASK | posix.O_NOFOLLOW) if isinstance(where, str) else (f"/proc/self/fd/{where}", _ASK)
    try:
        with Fd(posix.open(at, flags)) as fd:
            seen = posix.fstat(fd)
            return (seen.st_dev, seen.st_ino) == (found.st_dev, found.st_ino)
    except OSError:
        return False


def is_hidden(uid: int) -> bool:
    """Whether *uid*, an owner as stat(2) says, may be a user that our user namespace has no number for: the host's root, or
    anybody else."""
    return uid == int(read_file("/proc/sys/kernel/overflowuid", 32)) and in_user_namespace()


def is_own_or_roots(found: posix.stat_result, where: str | int) -> bool:
    """The same, or the root's of our user namespace, who may change whatever is ours."""
    return found.st_uid == 0 or is_own(found, where)
