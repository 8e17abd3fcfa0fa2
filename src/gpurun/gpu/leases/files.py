"""Reading the files of leases, ours and those of other users.

What a lease of another user says is data and no more.  Its directory is not followed out of its place, nothing but a regular
file is opened, all is read up to a limit; its owner is who the file belongs to, whatever stands in it, and it releases
nothing and counts for no label.
"""

from __future__ import annotations

import posix
import time
from _stat import S_ISREG
from errno import EMFILE, ENFILE, ENOENT, ENOMEM

from gpurun.errors import GpurunError, StepError
from gpurun.gpu.leases.lease import Lease, Leased
from gpurun.linux.files import O_CLOEXEC, Fd, read_fd
from gpurun.linux.fs import (
    O_DIRECTORY,
    O_NOFOLLOW,
    O_PATH,
    RESOLVE_BENEATH,
    RESOLVE_NO_SYMLINKS,
    RESOLVE_NO_XDEV,
    openat2,
)
from gpurun.oci.reader import as_object, parse_json
from gpurun.record import replace

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

#: Bytes of a lease, and files that are looked at in a directory of another user.
LIMIT = 1 << 16
MAX_FOREIGN = 1024
LEFT_S = 600.0
_NAME_LENGTH = 32
_MAX_NUMBER = (1 << 64) - 1
_MAX_PID = 1 << 22  # proc(5), pid_max
_MAX_UNITS = 1024
#: We, or the machine, have too little to look: that says nothing about what is there.
_EXHAUSTED = (EMFILE, ENFILE, ENOMEM)


class Damaged(Exception):
    """A file that is no lease, or none that this version can read."""


def open_own(path: str) -> int:
    """A descriptor of our own directory of leases, -1 where there is none yet.  Raises :class:`StepError`."""
    try:
        return posix.open(path, posix.O_RDONLY | O_DIRECTORY | O_CLOEXEC)
    except OSError as e:
        if e.errno == ENOENT:
            return -1
        raise StepError("open the leases of GPUs", path, e.errno) from None


def open_foreign(path: str, of_user: bool) -> int:
    """A descriptor of another's directory of leases, -1 where it cannot be used.

    *of_user*: one in a directory that a user has below /run/user.  A link or a mount there is not followed.
    Raises :class:`StepError` when we have no descriptors left.
    """
    try:
        if not of_user:
            return posix.open(path, posix.O_RDONLY | O_DIRECTORY | O_CLOEXEC)
        above, _, name = path.rpartition("/")
        with Fd(posix.open(above, O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC)) as parent:
            resolve = RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS | RESOLVE_NO_XDEV
            with Fd(openat2(parent, name, O_PATH | O_DIRECTORY, resolve)) as found:
                if posix.fstat(found).st_uid != posix.fstat(parent).st_uid:
                    return -1
                return posix.open(f"/proc/self/fd/{found}", posix.O_RDONLY | O_DIRECTORY | O_CLOEXEC)
    except OSError as e:
        if e.errno in _EXHAUSTED:
            raise StepError("open the leases of GPUs", path, e.errno) from None
        return -1  # nothing has been leased there, or we may not see it


def remove_left(directory_fd: int) -> None:
    """Remove what writers that were killed have left beside the leases (:func:`gpurun.linux.files.write_atomically`).

    A file that is younger than LEFT_S seconds may still be written.  Raises OSError.
    """
    for name in posix.listdir(directory_fd):
        if name.startswith(".") and name.endswith(".new"):
            try:
                if time.time() - posix.stat(name, dir_fd=directory_fd, follow_symlinks=False).st_mtime > LEFT_S:
                    posix.unlink(name, dir_fd=directory_fd)
            except FileNotFoundError:
                pass  # it has got its name, or another has removed it


def names(directory_fd: int, limit: int = 0) -> list[str]:
    """The names of the leases in the directory, at most *limit* (0: all).  Raises OSError."""
    found = []
    looked = 0
    with posix.scandir(directory_fd) as entries:
        for entry in entries:
            looked += 1
            if limit and looked > limit:
                break
            if len(entry.name) == _NAME_LENGTH and entry.name.isalnum():
                found.append(entry.name)
    return sorted(found)


def load(directory_fd: int, name: str) -> Lease | None:
    """The lease in our own file *name*; None for one that is gone by now.

    Raises :class:`Damaged` for a file that is not a lease, OSError where it cannot be read.
    """
    try:
        data, _ = _read(directory_fd, name)
    except FileNotFoundError:
        return None
    return parse(data)


def load_foreign(directory_fd: int, name: str, of_user: bool) -> Lease | None:
    """The lease in the file *name* of another user's directory; None if it is not a lease, or not that user's.

    Raises :class:`StepError` when we have no descriptors left.
    """
    try:
        data, owner = _read(directory_fd, name)
        if owner != posix.fstat(directory_fd).st_uid:
            return None
        lease = parse(data)
    except Damaged:
        return None
    except OSError as e:
        if e.errno in _EXHAUSTED:
            raise StepError("read a lease of GPUs", name, e.errno) from None
        return None
    if not of_user:
        return lease
    return None if lease.kind == "released" else replace(lease, user=owner, labels=())


def _read(directory_fd: int, name: str) -> tuple[bytes, int]:
    """(content, owner) of a regular file; raises :class:`Damaged` for any other, and OSError."""
    with Fd(posix.open(name, O_PATH | O_NOFOLLOW | O_CLOEXEC, dir_fd=directory_fd)) as found:
        status = posix.fstat(found)
        if not S_ISREG(status.st_mode):
            raise Damaged
        with Fd(posix.open(f"/proc/self/fd/{found}", posix.O_RDONLY | posix.O_NONBLOCK | O_CLOEXEC)) as fd:
            data = read_fd(fd, LIMIT + 1)
    if len(data) > LIMIT:
        raise Damaged
    return data, status.st_uid


def parse(data: bytes) -> Lease:
    """The lease that *data* says; fields of a later version do not count.  Raises :class:`Damaged`."""
    try:
        document = as_object(parse_json(data, "a lease"), "")
        units = tuple([Leased(**_known(as_object(unit, ""), Leased._fields)) for unit in document.pop("units")])
        labels = tuple([(str(name), str(value)) for name, value in document.pop("labels")])
        lease = Lease(units=units, labels=labels, **_known(document, Lease._fields))
    except (GpurunError, TypeError, ValueError, KeyError, AttributeError, RecursionError):
        raise Damaged from None
    if not _is_sound(lease):
        raise Damaged
    return lease


def _known(document: dict[str, Any], fields: tuple[str, ...]) -> dict[str, Any]:
    return {name: value for name, value in document.items() if name in fields}


def _is_sound(lease: Lease) -> bool:
    """Whether each field has the type that it is written with, and a value that it can have."""
    pids = [lease.maker, lease.pid]
    numbers = [
        lease.maker_start,
        lease.pid_namespace,
        lease.since,
        lease.user,
        lease.start_time,
        lease.memory,
        lease.threads,
    ]
    numbers += [
        lease.until,
        lease.stage_at,
        lease.cgroup_inode,
        *[n for unit in lease.units for n in (unit.index, unit.minor)],
    ]
    texts = [lease.id, lease.root, lease.boot, lease.kind, lease.request, lease.name, lease.engine, lease.cgroup, lease.part]
    texts += [lease.stage]
    texts += [text for unit in lease.units for text in (unit.key, unit.name)]
    return (
        len(lease.units) <= _MAX_UNITS
        and all(type(n) is int and 0 <= n <= _MAX_PID for n in pids)
        and all(type(n) is int and 0 <= n <= _MAX_NUMBER for n in numbers)
        and all(type(text) is str for text in texts)
    )
