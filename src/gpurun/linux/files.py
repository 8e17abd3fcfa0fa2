"""Reading and writing whole files, without a foreign call: ``state``, ``start``, ``kill`` and ``delete`` need no more."""

from __future__ import annotations

import posix
from _stat import S_ISREG

from gpurun.errors import NotRegularFile

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Self

O_CLOEXEC = posix.O_CLOEXEC
O_PATH = posix.O_PATH if hasattr(posix, "O_PATH") else 0o10000000
#: Bytes of a small file at most: of the kernel's, or of our own.  Who reads other people's says how large they may be.
MAX_SMALL_FILE = 1 << 20
#: Bytes that are read at once.
CHUNK = 1 << 16


class Fd(int):
    """A descriptor that is closed at the end of its ``with`` block, whatever happens there; a negative number is not closed.

    It is an ``int`` for every call.  One that is to outlive the block, or to be sent in a record, is no ``Fd``.
    """

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self >= 0:
            posix.close(self)


def read_file(path: str, limit: int = MAX_SMALL_FILE) -> bytes:
    """The content of a small file, at most *limit* bytes; raises OSError with the path in it."""
    with Fd(posix.open(path, posix.O_RDONLY | O_CLOEXEC)) as fd:
        return read_fd(fd, limit, path)


def read_regular(path: str, limit: int = MAX_SMALL_FILE, follow: bool = True) -> bytes:
    """As :func:`read_file`, of a file that another user may have put there: one that is not a regular file is not opened.

    A FIFO would block us, and opening a device does something already.  Unless *follow*, a symbolic link as the last name
    is none either.  Raises OSError, :class:`NotRegularFile` for what is none.
    """
    nofollow = 0 if follow else posix.O_NOFOLLOW
    with Fd(posix.open(path, O_PATH | nofollow | O_CLOEXEC)) as found:
        if not S_ISREG(posix.fstat(found).st_mode):
            raise NotRegularFile(path)
        # O_NONBLOCK: not to wait for a process that has a lease on it (fcntl(2)).
        with Fd(posix.open(f"/proc/self/fd/{found}", posix.O_RDONLY | posix.O_NONBLOCK | posix.O_NOCTTY | O_CLOEXEC)) as fd:
            return read_fd(fd, limit, path)


def read_fd(fd: int, limit: int = MAX_SMALL_FILE, path: str = "") -> bytes:
    """All that can be read from *fd*, at most *limit* bytes.  Raises OSError, of *path* or of what *fd* is open on."""
    chunks: list[bytes] = []
    try:
        while limit > 0:
            chunk = posix.read(fd, min(limit, CHUNK))
            if not chunk:
                break
            chunks.append(chunk)
            limit -= len(chunk)
    except OSError as e:
        _name(e, fd, path)
        raise
    return b"".join(chunks)


def _name(error: OSError, fd: int, path: str = "") -> None:
    """Give *error* of a call on *fd* the path that it is about, where it has one: a message then says it."""
    if not path:
        try:
            path = posix.readlink(f"/proc/self/fd/{fd}")
        except OSError:  # no /proc here
            return
    if path.startswith("/"):  # not "socket:[7]"
        error.filename = path


def mkdir_p(path: str, mode: int, dir_fd: int | None = None, last_mode: int | None = None) -> None:
    """mkdir -p: make the directory *path*, and those above it, where it is missing, each with *mode* (less the umask).

    *last_mode* is that of *path* itself.  Raises OSError with the directory that could not be made in it; something else
    that has the name of *path* is taken as it is.
    """
    made = "/" if path.startswith("/") else ""
    names = [name for name in path.split("/") if name]
    while names:
        made += names.pop(0)
        try:
            posix.mkdir(made, mode if names or last_mode is None else last_mode, dir_fd=dir_fd)
        except FileExistsError:
            pass  # the usual case, or another process was faster
        made += "/"


def write_all(fd: int, data: bytes) -> None:
    """Write all of *data*.  Raises OSError, of what *fd* is open on."""
    view = memoryview(data)
    try:
        while view:
            view = view[posix.write(fd, view) :]
    except OSError as e:
        _name(e, fd)
        raise


def unlink_if_there(path: str) -> None:
    """Remove the file *path*, unless it is gone already.  Raises OSError."""
    try:
        posix.unlink(path)
    except FileNotFoundError:
        pass


def write_atomically(path: str, data: bytes, mode: int, durable: bool = False, exact: bool = False) -> None:
    """Write *data* to a file beside *path* and rename it there: a reader sees the old file or the whole new one.

    No reader of the directory takes the file beside it for one of its own, by its first letter and its end.  Of those who
    write the same *path* at once one is the last, and its file is there whole.  *mode* is that of a new file, before the
    umask, or with *exact* without it.  With *durable* (files that outlive a boot; /run needs none) neither the file nor its
    name is lost when the machine loses its power after this.  Raises OSError.
    """
    folder, slash, name = path.rpartition("/")
    temporary = f"{folder}{slash}.{name[:200]}.{posix.urandom(8).hex()}.new"
    fd = posix.open(temporary, posix.O_WRONLY | posix.O_CREAT | posix.O_EXCL | posix.O_NOFOLLOW | O_CLOEXEC, mode)
    try:
        with Fd(fd):
            write_all(fd, data)
            if exact:
                posix.fchmod(fd, mode)
            if durable:
                posix.fsync(fd)
        posix.rename(temporary, path)
    except BaseException as e:  # ^C too
        try:
            posix.unlink(temporary)
        except FileNotFoundError:
            pass  # it has its name
        if isinstance(e, OSError):
            e.filename = path  # write(2) names none
        raise
    if durable:
        sync_directory(folder or slash or ".")


def sync_directory(path: str) -> None:
    """fsync(2) the directory *path*: the names in it are on the disk.  Raises OSError."""
    with Fd(posix.open(path, posix.O_RDONLY | posix.O_DIRECTORY | O_CLOEXEC)) as fd:
        posix.fsync(fd)
