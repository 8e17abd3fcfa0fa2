"""Take back what a journal says was made in a rootfs, as far as it is still as it was made.

A file that is no longer empty, a directory with something in it, a link that says something else, a rewritten file that
was written again: that belongs to whoever changed it, and stays.  To be called when the container's mounts are gone.

What the kernel refuses is reported, and can be tried again: whatever was taken back before is simply not there any more.
"""

from __future__ import annotations

import posix
from _blake2 import blake2b
from _stat import S_IFDIR, S_IFLNK, S_IFMT, S_IFREG
from errno import EACCES, EEXIST, ELOOP, ENOENT, ENOTDIR, ENOTEMPTY, EPERM, EROFS, EXDEV

from gpurun.errors import oserror_text
from gpurun.linux.files import O_CLOEXEC, Fd, read_fd, write_all
from gpurun.linux.fs import O_DIRECTORY, O_NOFOLLOW, O_PATH, RESOLVE_NO_SYMLINKS, openat2
from gpurun.ns.journal import DIRECTORY, FILE, LINK, ON_ROOT, REWRITTEN, TEMPORARY, TIMES, Original, Trace, unpack_rewritten
from gpurun.ns.path import open_file
from gpurun.record import Record

_GONE_OR_IN_USE = (ENOENT, ENOTEMPTY, EEXIST)
#: Why a directory cannot be opened that went away or became something else: what is there is not ours any more.
_NOT_OURS = (ENOENT, ENOTDIR, ELOOP, EXDEV)
_SET_ID = 0o6000


class Kept(Record):
    """Something that could not be taken back; *refused*: the kernel does not let us, and will not the next time either."""

    path: str
    reason: str
    refused: bool

    def __str__(self) -> str:
        return f"/{self.path}: {self.reason}"


def digest(data: bytes) -> bytes:
    """What a rewritten file is recognised by."""
    return blake2b(data, digest_size=32).digest()


def undo(root_fd: int, traces: tuple[Trace, ...]) -> tuple[Kept, ...]:
    """Undo *traces* in the rootfs *root_fd*, the last first; returns what could not be undone."""
    kept: list[Kept] = []
    needed: set[str] = set()  # the kept originals of files that could not be given back
    try:
        times = _times(root_fd, traces)  # what is taken away changes them
    except OSError as e:
        return (_kept("", e),)
    opened, parent = "", -1  # most things stand beside the one before: their directory is opened once
    for trace in reversed(traces):
        directory, _, name = trace.path.rpartition("/")
        if trace.kind not in (DIRECTORY, FILE, LINK, TEMPORARY, REWRITTEN) or name in ("", ".", ".."):
            continue
        if trace.kind == TEMPORARY and trace.path in needed:
            continue
        try:
            if parent < 0 or directory != opened:
                if parent >= 0:
                    posix.close(parent)
                opened, parent = directory, -1
                parent = _open_directory(root_fd, directory)
            if parent >= 0:
                _undo_one(parent, name, trace)
        except OSError as e:
            if e.errno in _GONE_OR_IN_USE:
                continue
            kept.append(_kept(trace.path, e))
            if trace.kind == REWRITTEN:
                name = unpack_rewritten(trace.rest)[1].kept
                needed.add(f"{directory}/{name}" if directory else name)
    if parent >= 0:
        posix.close(parent)
    for directory, (fd, mtime) in times.items():
        try:
            _set_mtime(fd, mtime)
        except OSError as e:
            kept.append(_kept(directory, e))
        posix.close(fd)
    return tuple(kept)


def _kept(path: str, error: OSError) -> Kept:
    return Kept(path, oserror_text(OSError(error.errno, "")), error.errno in (EPERM, EACCES, EROFS))


def _undo_one(parent: int, name: str, trace: Trace) -> None:
    found = posix.lstat(name, dir_fd=parent)
    kind = S_IFMT(found.st_mode)
    if trace.kind == DIRECTORY:
        if kind == S_IFDIR:
            posix.rmdir(name, dir_fd=parent)
    elif trace.kind == LINK:
        if kind == S_IFLNK and posix.readlink(name, dir_fd=parent).encode("utf-8", "surrogateescape") == trace.rest:
            posix.unlink(name, dir_fd=parent)
    elif trace.kind == TEMPORARY:
        if kind == S_IFREG:
            posix.unlink(name, dir_fd=parent)
    elif trace.kind == REWRITTEN:
        if kind == S_IFREG:
            _give_back(parent, name, found.st_size, *unpack_rewritten(trace.rest))
    elif kind not in (S_IFDIR, S_IFLNK) and (kind != S_IFREG or found.st_size == 0):
        posix.unlink(name, dir_fd=parent)


def _give_back(parent: int, name: str, size: int, ours: bytes, original: Original) -> None:
    """Put *original* in the place of *name*, if that is still what we have written there.

    The file itself comes back by a rename, where it was kept and has not been changed.  Else its content does, in a new
    file, which is never set-user-id or set-group-id, whatever the original was: it has another owner by accident or by race.
    """
    fd = _open_regular(parent, name)
    if fd < 0:
        return
    with Fd(fd):
        found = posix.fstat(fd)
        if found.st_size != size or digest(read_fd(fd, size + 1)) != ours:
            return
    if original.content is None:
        posix.unlink(name, dir_fd=parent)
        return
    if _rename_back(parent, name, original):
        return
    temporary = f".{name}.gpurun-undo"
    try:
        posix.unlink(temporary, dir_fd=parent)  # of an undo that was killed
    except FileNotFoundError:
        pass  # the usual case
    flags = posix.O_WRONLY | posix.O_CREAT | posix.O_EXCL | O_NOFOLLOW | O_CLOEXEC
    with Fd(posix.open(temporary, flags, 0o600, dir_fd=parent)) as fd:
        try:
            write_all(fd, original.content)
            try:
                posix.fchown(fd, *((original.uid, original.gid) if original.uid >= 0 else (found.st_uid, found.st_gid)))
            except PermissionError:
                if posix.geteuid() == 0:
                    raise
            posix.fchmod(fd, original.mode & ~_SET_ID)
            posix.utime(fd, ns=(found.st_atime_ns, original.mtime))
            posix.rename(temporary, name, src_dir_fd=parent, dst_dir_fd=parent)
        except OSError:
            posix.unlink(temporary, dir_fd=parent)
            raise


def _rename_back(parent: int, name: str, original: Original) -> bool:
    """Give the kept file its *name* again; False where none was kept, or it was changed or exchanged."""
    fd = _open_regular(parent, original.kept) if original.kept else -1
    if fd < 0:
        return False
    with Fd(fd):
        if not _is_original(fd, original):
            return False
        if posix.fstat(fd).st_mtime_ns != original.mtime:
            posix.utime(fd, ns=(posix.fstat(fd).st_atime_ns, original.mtime))
        posix.rename(original.kept, name, src_dir_fd=parent, dst_dir_fd=parent)
        return True


def _open_regular(parent: int, name: str) -> int:
    """The file *name*, opened for reading; -1 for what is none."""
    try:
        return open_file(parent, name, O_NOFOLLOW, ON_ROOT & ~RESOLVE_NO_SYMLINKS)
    except OSError as e:
        if e.errno in _NOT_OURS:
            return -1
        raise


def _is_original(fd: int, original: Original) -> bool:
    """Whether the open file is the one that *original* tells of, unchanged."""
    found = posix.fstat(fd)
    if found.st_ino != original.inode or found.st_mode != S_IFREG | original.mode:
        return False
    if original.uid >= 0 and (found.st_uid, found.st_gid) != (original.uid, original.gid):
        return False
    return original.content is not None and read_fd(fd, len(original.content) + 1) == original.content


def _times(root_fd: int, traces: tuple[Trace, ...]) -> dict[str, tuple[int, int]]:
    """Directory → (a descriptor of it, the mtime it had), for those that only we have changed since, an undo that
    failed included."""
    opened: dict[str, int] = {}
    now: dict[str, int] = {}
    found: dict[str, tuple[int, int]] = {}
    try:
        for trace in reversed(traces):
            if trace.kind != TIMES:
                continue
            before, after = [int(word) for word in trace.rest.split()]
            if trace.path not in now:
                opened[trace.path] = fd = _open_directory(root_fd, trace.path)
                now[trace.path] = posix.fstat(fd).st_mtime_ns if fd >= 0 else -1
            if now[trace.path] in (after, before):
                now[trace.path] = before
                found[trace.path] = opened[trace.path], before
    except OSError:
        found.clear()
        raise
    finally:
        for path, fd in opened.items():
            if fd >= 0 and path not in found:
                posix.close(fd)
    return found


def _open_directory(root_fd: int, directory: str) -> int:
    """A descriptor of the directory, -1 if it went away or became something else."""
    try:
        return openat2(root_fd, directory or ".", O_PATH | O_DIRECTORY, ON_ROOT)
    except OSError as e:
        if e.errno in _NOT_OURS:
            return -1
        raise


def _set_mtime(fd: int, mtime: int) -> None:
    try:
        posix.utime(".", ns=(posix.fstat(fd).st_atime_ns, mtime), dir_fd=fd)
    except FileNotFoundError:
        pass  # it has been taken away
    except PermissionError:
        if posix.geteuid() == 0:
            raise
        # not our directory: the times are a courtesy
