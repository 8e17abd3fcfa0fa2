"""Take back what a journal says was made in a rootfs, as far as it is still as it was made.

A file that is no longer empty, a directory with something in it, a link that says something else, a rewritten file that
was written again: that belongs to whoever changed it, and stays.  To be called when the container's mounts are gone.
"""

from __future__ import annotations

import posix
from _blake2 import blake2b
from errno import EEXIST, ENOENT, ENOTEMPTY

from gpurun.errors import oserror_text
from gpurun.linux.files import O_CLOEXEC, read_fd, write_all
from gpurun.linux.fs import O_DIRECTORY, O_NOFOLLOW, O_PATH, openat2
from gpurun.ns.journal import DIRECTORY, FILE, LINK, ON_ROOT, REWRITTEN, TEMPORARY, TIMES, Original, Trace, unpack_rewritten

_S_IFMT, _S_IFREG, _S_IFLNK, _S_IFDIR = 0o170000, 0o100000, 0o120000, 0o040000
_GONE_OR_IN_USE = (ENOENT, ENOTEMPTY, EEXIST)


def digest(data: bytes) -> bytes:
    """What a rewritten file is recognised by."""
    return blake2b(data, digest_size=32).digest()


def undo(root_fd: int, traces: tuple[Trace, ...]) -> tuple[str, ...]:
    """Undo *traces* in the rootfs *root_fd*, the last first; returns what could not be undone, as warnings."""
    warnings = []
    times = _times(root_fd, traces)
    for trace in reversed(traces):
        directory, _, name = trace.path.rpartition("/")
        if trace.kind not in (DIRECTORY, FILE, LINK, TEMPORARY, REWRITTEN) or name in ("", ".", ".."):
            continue
        try:
            parent = openat2(root_fd, directory or ".", O_PATH | O_DIRECTORY, ON_ROOT)
        except OSError:
            continue  # its directory went away, or became something else: not ours any more
        try:
            _undo_one(parent, name, trace)
        except OSError as e:
            if e.errno not in _GONE_OR_IN_USE:
                warnings.append(f"the rootfs keeps {trace.path}, made for this container: {oserror_text(e)}")
        finally:
            posix.close(parent)
    for directory, mtime in times.items():
        _set_mtime(root_fd, directory, mtime)
    return tuple(warnings)


def _undo_one(parent: int, name: str, trace: Trace) -> None:
    found = posix.lstat(name, dir_fd=parent)
    kind = found.st_mode & _S_IFMT
    if trace.kind == DIRECTORY:
        if kind == _S_IFDIR:
            posix.rmdir(name, dir_fd=parent)
    elif trace.kind == LINK:
        if kind == _S_IFLNK and posix.readlink(name, dir_fd=parent).encode("utf-8", "surrogateescape") == trace.rest:
            posix.unlink(name, dir_fd=parent)
    elif trace.kind == TEMPORARY:
        if kind == _S_IFREG:
            posix.unlink(name, dir_fd=parent)
    elif trace.kind == REWRITTEN:
        if kind == _S_IFREG:
            _give_back(parent, name, found, *unpack_rewritten(trace.rest))
    elif kind not in (_S_IFDIR, _S_IFLNK) and (kind != _S_IFREG or found.st_size == 0):
        posix.unlink(name, dir_fd=parent)


def _give_back(parent: int, name: str, found: posix.stat_result, ours: bytes, original: Original) -> None:
    fd = posix.open(name, posix.O_RDONLY | O_NOFOLLOW | posix.O_NONBLOCK | O_CLOEXEC, dir_fd=parent)
    try:
        if digest(read_fd(fd, found.st_size + 1)) != ours:
            return
    finally:
        posix.close(fd)
    if original.content is None:
        posix.unlink(name, dir_fd=parent)
        return
    temporary = f".{name}.gpurun-undo"
    try:
        posix.unlink(temporary, dir_fd=parent)  # of an undo that was killed
    except FileNotFoundError:
        pass  # the usual case
    flags = posix.O_WRONLY | posix.O_CREAT | posix.O_EXCL | O_NOFOLLOW | O_CLOEXEC
    fd = posix.open(temporary, flags, 0o600, dir_fd=parent)
    try:
        write_all(fd, original.content)
        try:
            ids = (original.uid, original.gid) if original.uid >= 0 else (found.st_uid, found.st_gid)
            posix.fchown(fd, *ids)
        except PermissionError:
            if posix.geteuid() == 0:
                raise
        posix.fchmod(fd, original.mode)
        posix.utime(fd, ns=(found.st_atime_ns, original.mtime))
        posix.rename(temporary, name, src_dir_fd=parent, dst_dir_fd=parent)
    except OSError:
        posix.unlink(temporary, dir_fd=parent)
        raise
    finally:
        posix.close(fd)


def _times(root_fd: int, traces: tuple[Trace, ...]) -> dict[str, int]:
    """Directory → the mtime it had, for those that nobody but us has changed since."""
    found: dict[str, int] = {}
    now: dict[str, int] = {}
    for trace in reversed(traces):
        if trace.kind != TIMES:
            continue
        before, after = [int(word) for word in trace.rest.split()]
        if trace.path not in now:
            now[trace.path] = _mtime(root_fd, trace.path)
        if now[trace.path] == after:
            found[trace.path] = now[trace.path] = before
    return found


def _mtime(root_fd: int, directory: str) -> int:
    try:
        fd = openat2(root_fd, directory or ".", O_PATH | O_DIRECTORY, ON_ROOT)
    except OSError:
        return -1  # gone, or no directory any more
    try:
        return posix.fstat(fd).st_mtime_ns
    finally:
        posix.close(fd)


def _set_mtime(root_fd: int, directory: str, mtime: int) -> None:
    try:
        fd = openat2(root_fd, directory or ".", O_PATH | O_DIRECTORY, ON_ROOT)
    except OSError:
        return  # as in _mtime
    try:
        posix.utime(".", ns=(posix.fstat(fd).st_atime_ns, mtime), dir_fd=fd)
    except OSError:
        pass  # not our directory (a rootless caller): the times are a courtesy
    finally:
        posix.close(fd)
