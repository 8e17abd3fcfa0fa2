"""The standard streams that a process in a user namespace inherits, for create and exec: done from outside, with our ids."""

from __future__ import annotations

import posix
from _stat import S_ISFIFO, S_ISSOCK
from errno import EINVAL, EPERM, EROFS

from gpurun.errors import StepError
from gpurun.ns.namespaces import host_id

_NO_ID = (1 << 32) - 1  # what a map shows of an id that the reader's own user namespace lacks


def give_streams(uid_map: str, uid: int) -> None:
    """Give our descriptors 0 to 2 to *uid* of the user namespace with *uid_map*, where they are FIFOs or sockets.

    From inside it could not take them, and could not open its /dev/stdout.  Nothing else is given away: who owns a file can
    erase it, though it is a log that was opened for appending, and a terminal or another device belongs to others as well.
    Raises :class:`StepError`.
    """
    owner = host_id(uid_map, uid)
    if not 0 <= owner < _NO_ID:
        return  # no id of the namespace's, which setresuid(2) will say, or none of ours
    for fd in (0, 1, 2):
        found = posix.fstat(fd)
        if not (S_ISFIFO(found.st_mode) or S_ISSOCK(found.st_mode)) or found.st_uid == owner:
            continue
        try:
            posix.fchown(fd, owner, -1)
        except OSError as e:
            if e.errno not in (EPERM, EINVAL, EROFS):  # it works without, but for /dev/stdout: as with runc and crun
                raise StepError("change the owner of the standard stream", str(fd), e.errno) from None
