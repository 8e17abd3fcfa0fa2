"""Files that only spare work: each under a name that says what it depends on, with a digest of its content.

A cache is a directory beside the state root that only we can use: whoever lists the containers of the root (runc, as much as
gpurun) takes each directory in it for one.  It is a convenience: whatever is wrong with it (another
owner, others that may write there, a damaged file, a link), there is nothing in it, and the work is done.
"""

from __future__ import annotations

import posix
import sys
from _blake2 import blake2b
from _stat import S_ISREG
from errno import EPERM

from gpurun import __version__, log
from gpurun.errors import oserror_text
from gpurun.linux.files import O_CLOEXEC, Fd, read_fd, write_all
from gpurun.linux.owners import is_own

#: How many files a cache has at most, by default.
MAX_ENTRIES = 64

_DIGEST_SIZE = 16


def directory_of(root: str, kind: str) -> str:
    """The directory of the cache *kind* for the state root *root*, an absolute path: ``/run/.gpurun.seccomp``."""
    parent, _, name = root.rpartition("/")
    return f"{parent}/.{name}.{kind}"


def entry_name(*depends: object) -> str:
    """The name of what depends on all of *depends*, which are distinguished by their repr."""
    return blake2b(repr(depends).encode("utf-8", "surrogateescape"), digest_size=32).hexdigest()


def this_build() -> tuple[object, ...]:
    """What tells this gpurun from another one, be it of the same version."""
    bundle = getattr(sys, "gpurun_bundle", None)
    if bundle is None:
        return __version__, sys.hexversion
    found = posix.fstat(bundle.fd)
    return __version__, sys.hexversion, found.st_dev, found.st_ino, found.st_size, found.st_ctime_ns


def load(directory: str, name: str, limit: int) -> bytes:
    """What is kept under *name*, at most *limit* bytes; empty when there is nothing, or a damaged file."""
    try:
        with Fd(_open_cache(directory)) as cache:
            fd = posix.open(name, posix.O_RDONLY | posix.O_NOFOLLOW | posix.O_NONBLOCK | O_CLOEXEC, dir_fd=cache)
        with Fd(fd):
            found = posix.fstat(fd)
            if not S_ISREG(found.st_mode) or not is_own(found, fd):
                return b""
            whole = read_fd(fd, _DIGEST_SIZE + limit + 1)
    except OSError:
        return b""  # not there yet, or not usable
    data = whole[_DIGEST_SIZE:]
    return data if whole[:_DIGEST_SIZE] == _digest(data) else b""


def save(directory: str, name: str, data: bytes) -> None:
    """Keep *data* under *name*; a full cache loses its oldest files first.  Failures are logged only with --debug."""
    try:
        try:
            posix.mkdir(directory, 0o700)
        except FileExistsError:
            pass  # the usual case
        with Fd(_open_cache(directory)) as cache:
            _make_room(cache)
            temporary = f".{name}.{posix.getpid()}"
            flags = posix.O_WRONLY | posix.O_CREAT | posix.O_TRUNC | posix.O_NOFOLLOW | O_CLOEXEC
            with Fd(posix.open(temporary, flags, 0o600, dir_fd=cache)) as fd:
                write_all(fd, _digest(data) + data)
            posix.rename(temporary, name, src_dir_fd=cache, dst_dir_fd=cache)
    except OSError as e:
        log.debug(f"nothing is kept in {directory}: {oserror_text(e)}")


def _digest(data: bytes) -> bytes:
    return bytes(blake2b(data, digest_size=_DIGEST_SIZE).digest())


def _open_cache(directory: str) -> int:
    """The cache's directory, which only we may write: who can write there decides what containers may do."""
    fd = posix.open(directory, posix.O_RDONLY | posix.O_DIRECTORY | posix.O_NOFOLLOW | O_CLOEXEC)
    found = posix.fstat(fd)
    if found.st_mode & 0o077 or not is_own(found, fd):
        posix.close(fd)
        raise PermissionError(EPERM, "", directory)
    return fd


def _make_room(cache: int) -> None:
    names = posix.listdir(cache)
    if len(names) < MAX_ENTRIES:
        return
    aged = []
    for name in names:
        try:
            aged.append((posix.stat(name, dir_fd=cache, follow_symlinks=False).st_mtime_ns, name))
        except FileNotFoundError:
            continue  # another create makes room as well
    for _, name in sorted(aged)[: len(names) - MAX_ENTRIES * 3 // 4]:
        try:
            posix.unlink(name, dir_fd=cache)
        except FileNotFoundError:
            continue
