"""What is made in a rootfs for the life of one container, each thing written down before it is made.

The image is to be left as it was, however a container ends: ``create`` can be killed between any two system calls, so
a :class:`Journal` is a file outside the rootfs to which each intention is appended first.  :mod:`gpurun.ns.undo` takes back
what it says, as far as it was made and is still as it was made.

A record is ``LENGTH:BODY,``; the body is kind, time, path and the rest, with NUL between them.  One that is cut off (the
writer was killed within it) was not acted on yet and is ignored with all after it.  Paths are relative to the rootfs and
without links; what lies on another mount in the rootfs (/dev, a volume) goes with the container and is not written down.
"""

from __future__ import annotations

import posix
import time
from errno import ELOOP, ENOENT, ENOTDIR, EXDEV

from gpurun.linux.files import Fd
from gpurun.linux.fs import O_DIRECTORY, O_PATH, RESOLVE_BENEATH, RESOLVE_NO_SYMLINKS, RESOLVE_NO_XDEV, openat2
from gpurun.record import Record, replace

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

# Kinds of records.
ROOTFS = "rootfs"  # the host path of the rootfs: the first record; rest: which directory that is (ns.journal_disk)
DIRECTORY = "directory"  # an empty directory
FILE = "file"  # an empty file or a device node: a mount point
LINK = "link"  # a symbolic link; rest: its text
TEMPORARY = "temporary"  # a file of ours whatever is in it, about to be renamed
REWRITTEN = "rewritten"  # a file that is another one now; rest: digest of ours, then what was there (see Original)
TIMES = "times"  # the mtime of a directory; rest: before and after, in nanoseconds
CANCELLED = "cancelled"  # the record with the stamp in rest was not acted on

_NOT_OF_IMAGE, _MADE_BY_US = -1, -2
_SEEK_CUR = 1

#: How directories of the image itself are opened: through no link and on no other mount.
ON_ROOT = RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS | RESOLVE_NO_XDEV


class Trace(Record):
    """One record; *stamp* (CLOCK_MONOTONIC, ns) orders those of containers that share a rootfs."""

    kind: str
    stamp: int
    path: str
    rest: bytes = b""


class Original(Record):
    """What a rewritten file was: *content* ``None`` when there was none; *mtime* in nanoseconds.

    Owner and group -1: those of our file, whatever they are outside the user namespace that this was written in.
    *kept*: under this name in the same directory the file itself is kept, which is *inode*; "" where it could not be.
    """

    content: bytes | None
    mode: int = 0o644
    uid: int = 0
    gid: int = 0
    mtime: int = 0
    inode: int = 0
    kept: str = ""


class Journal:
    """The journal of one container: *fd* is the file, opened for appending; -1 keeps none (nothing is to be undone)."""

    def __init__(self, root_fd: int, fd: int = -1) -> None:
        self.root_fd = root_fd
        self.fd = fd
        self._noted = 0  # the stamp of the last note, 0 when it was not written
        self._directories: dict[str, int] = {}  # directory → its mtime before, or one of the two above

    def note(self, kind: str, path: str, rest: bytes = b"") -> None:
        """Write down that *path* is about to be made; to be called right before the system call."""
        of_image = self.fd >= 0 and self.in_image(path.rpartition("/")[0])
        self._noted = append(self.fd, kind, path, rest) if of_image else 0

    def note_all(self, notes: Iterable[tuple[str, str, bytes]]) -> list[int]:
        """Write down many (kind, path, rest) that are about to be made, in one write; returns the stamp of each, for
        :meth:`cancel`: 0 for one that is not of the image.
        """
        stamp = time.monotonic_ns()
        stamps: list[int] = []
        records: list[bytes] = []
        for kind, path, rest in notes:
            of_image = self.fd >= 0 and self.in_image(path.rpartition("/")[0])
            stamps.append(stamp + len(stamps) if of_image else 0)
            if of_image:
                records.append(_record(kind, path, rest, stamps[-1]))
        if records:
            _append(self.fd, b"".join(records))
        return stamps

    def cancel(self, stamp: int | None = None) -> None:
        """Take the last note back, or that of *stamp*: the system call has failed, or another container had made it."""
        cancelled = self._noted if stamp is None else stamp
        if cancelled:
            append(self.fd, CANCELLED, "", b"%d" % cancelled)
        if stamp is None:
            self._noted = 0

    def finish_directory(self, path: str) -> None:
        """The directory *path* has just been made, as noted: undoing takes it away, whatever its time was."""
        if self.fd >= 0 and self.in_image(path.rpartition("/")[0]):
            self._directories[path] = _MADE_BY_US

    def in_image(self, directory: str) -> bool:
        """Whether *directory* (relative, without links) is of the image itself, and not of another mount in the rootfs."""
        return self._mtime(directory) != _NOT_OF_IMAGE

    def close(self) -> None:
        """Write down the times of the directories that were changed, so that undoing gives them back, and close the file."""
        if self.fd < 0:
            return
        changed: list[tuple[str, str, bytes]] = []
        for directory, before in self._directories.items():
            after = self._look(directory) if before >= 0 else _NOT_OF_IMAGE
            if after not in (_NOT_OF_IMAGE, before):
                changed.append((TIMES, directory, b"%d %d" % (before, after)))
        now = time.monotonic_ns()
        _append(self.fd, b"".join([_record(*change, now) for change in changed]))
        posix.close(self.fd)
        self.fd = -1

    def _mtime(self, directory: str) -> int:
        if directory not in self._directories:
            self._directories[directory] = self._look(directory)
        return self._directories[directory]

    def _look(self, directory: str) -> int:
        try:
            fd = openat2(self.root_fd, directory or ".", O_PATH | O_DIRECTORY, ON_ROOT)
        except OSError as e:
            if e.errno in (EXDEV, ENOENT, ENOTDIR, ELOOP):
                return _NOT_OF_IMAGE
            raise
        with Fd(fd):
            return posix.fstat(fd).st_mtime_ns


def append(fd: int, kind: str, path: str, rest: bytes = b"", stamp: int = 0) -> int:
    """Append one record to the journal *fd*, in one write: two writers do not mix.  Returns its stamp (now unless given)."""
    stamp = stamp or time.monotonic_ns()
    _append(fd, _record(kind, path, rest, stamp))
    return stamp


def append_all(fd: int, traces: Iterable[Trace]) -> None:
    """Append the records *traces* of another journal, all or none."""
    _append(fd, b"".join([_record(trace.kind, trace.path, trace.rest, trace.stamp) for trace in traces]))


def pack(kind: str, path: str, rest: bytes = b"") -> bytes:
    """One record, with the time that is now."""
    return _record(kind, path, rest, time.monotonic_ns())


def _append(fd: int, data: bytes) -> None:
    """Append *data*, all or nothing of it: what is appended behind half a record would never be read."""
    written = 0
    try:
        while written < len(data):
            written += posix.write(fd, data[written:])
    except OSError:
        if written:
            end = posix.lseek(fd, 0, _SEEK_CUR)  # where our part ends; another writer may have appended to it since
            if posix.fstat(fd).st_size == end:
                posix.ftruncate(fd, end - written)
        raise


def _record(kind: str, path: str, rest: bytes, stamp: int) -> bytes:
    body = f"{kind}\0{stamp}\0{path}\0".encode("utf-8", "surrogateescape") + rest
    return b"%d:%b," % (len(body), body)


def parse(data: bytes) -> tuple[Trace, ...]:
    """The records of a journal that were acted on, in the order in which they were made."""
    found: list[Trace] = []
    cancelled: set[bytes] = set()
    at = 0
    while True:
        colon = data.find(b":", at, at + 20)
        length = data[at:colon] if colon > 0 else b""
        if not length.isdigit():
            break
        end = colon + 1 + int(length)
        fields = data[colon + 1 : end].split(b"\0", 3)
        if data[end : end + 1] != b"," or len(fields) != 4 or not fields[1].isdigit():
            break
        kind, stamp, path = [f.decode("utf-8", "surrogateescape") for f in fields[:3]]
        if kind == CANCELLED:
            cancelled.add(fields[3])
        else:
            found.append(Trace(kind, int(stamp), path, fields[3]))
        at = end + 1
    done = [trace for trace in found if b"%d" % trace.stamp not in cancelled]
    return tuple(sorted(done, key=lambda trace: trace.stamp))


def is_whole(data: bytes) -> bool:
    """Whether the journal has its first record, and ends with the end of one."""
    # The first of the file: what another container has left to this one can be older.
    head = data.partition(b":")[2][: len(ROOTFS) + 1]
    return head == f"{ROOTFS}\0".encode() and _end_of_records(data) == len(data)


def _end_of_records(data: bytes) -> int:
    at = 0
    while (colon := data.find(b":", at, at + 20)) > 0 and data[at:colon].isdigit():
        end = colon + 1 + int(data[at:colon])
        if data[end : end + 1] != b",":
            break
        at = end + 1
    return at


def pack_rewritten(digest: bytes, original: Original) -> bytes:
    """The rest of a REWRITTEN record."""
    if original.content is None:
        return b"%b\0-\0" % digest.hex().encode()
    numbers = b"%d %d %d %d %d" % (original.mode, original.uid, original.gid, original.mtime, original.inode)
    kept = original.kept.encode("utf-8", "surrogateescape")
    return b"%b\0%b %b\0" % (digest.hex().encode(), numbers, kept) + original.content


def unpack_rewritten(rest: bytes) -> tuple[bytes, Original]:
    """(digest, original) of :func:`pack_rewritten`; an older gpurun has written down no file that is kept."""
    digest, words, content = rest.split(b"\0", 2)
    ours = bytes.fromhex(digest.decode())
    if words == b"-":
        return ours, Original(None)
    mode, uid, gid, mtime, *kept = words.split(b" ", 5)
    original = Original(content, int(mode), int(uid), int(gid), int(mtime))
    if not kept:
        return ours, original
    return ours, replace(original, inode=int(kept[0]), kept=kept[1].decode("utf-8", "surrogateescape"))
