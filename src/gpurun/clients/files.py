"""Files of clients: read, compared, replaced in one step with the one before kept beside it, and put back.

A file is never written in place.  The new text goes into a file beside it, which is renamed over it once it is on the disk:
whoever is killed, and whatever is full, there is the old file or the new one.
"""

from __future__ import annotations

import difflib
import glob
import os
import stat
from contextlib import suppress

from gpurun.errors import ConfigError, GpurunError, strerror_lower
from gpurun.record import Record

#: What a file is kept as before gpurun changes it for the first time.
KEPT = ".before-gpurun"
#: No client's configuration is as large; /dev/zero behind a link is.
_LARGEST = 16 << 20
_COLOURS = {"+": "\033[32m", "-": "\033[31m", "@": "\033[36m"}


class Change(Record):
    """The new content *text* of the file *path* (empty: stdout); None: the file goes."""

    path: str
    text: str | None
    before: str | None = None  # None: there is no such file
    keep: bool = True  # whether the file before stays as KEPT


def read(path: str) -> str | None:
    """The text of the file *path*, None when there is none.  Raises :class:`ConfigError`, OSError."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)  # a FIFO would wait for its writer
    except FileNotFoundError:
        return None
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise ConfigError(path, "is not a regular file")
    try:
        with open(fd, "rb") as file:
            data = file.read(_LARGEST + 1)
    except OSError as e:  # of a file of /proc, of a disk that fails
        raise ConfigError(path, f"cannot be read: {strerror_lower(e.errno or 0)}") from None
    if len(data) > _LARGEST:
        raise ConfigError(path, f"is larger than {_LARGEST >> 20} MiB, which no client's configuration is")
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise ConfigError(path, "is not UTF-8 text") from None


def write(path: str, text: str) -> None:
    """Replace the file in one step; mode, owner and attributes stay, and so does a symbolic link to it.

    When this returns, the text is on the disk.  Raises :class:`GpurunError`, PermissionError: then the file is as it was.
    """
    file = os.path.realpath(path)
    made = _beside(file, "")
    try:
        os.makedirs(os.path.dirname(file), exist_ok=True)
        fd = os.open(made, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            with open(fd, "wb") as stream:
                stream.write(text.encode())
                stream.flush()
                _like(fd, file)
                os.fsync(fd)
            os.rename(made, file)
        except BaseException:
            os.unlink(made)
            raise
    except PermissionError as e:
        raise PermissionError(e.errno, e.strerror, path) from None
    except OSError as e:
        raise GpurunError(f"write {path}: {strerror_lower(e.errno or 0)}: the file is as it was") from None
    _sync(os.path.dirname(file))


def apply(change: Change) -> None:
    """Make *change* for good; the first one of a file leaves the file before it as :data:`KEPT`.  Raises OSError."""
    settle(change, make(change))


def make(change: Change) -> str:
    """Make *change* so that :func:`take_back` can undo it without writing anything; :func:`settle` ends that.

    Returns a second name of the file before, empty where there was none.  Raises :class:`GpurunError`, PermissionError: then
    nothing is changed.
    """
    if read(change.path) != change.before:
        raise GpurunError(f"{change.path} was changed by another program meanwhile and is left as it is: try again")
    file = os.path.realpath(change.path)
    saved = ""
    try:
        if change.before is not None:
            saved = _beside(file, ".tmp")
            _second_name(file, saved, change.before)
            if change.keep and change.text is not None and not os.path.lexists(change.path + KEPT):
                _second_name(file, change.path + KEPT, change.before)
        if change.text is not None:
            write(change.path, change.text)
        elif change.before is not None:
            os.unlink(file)
            _sync(os.path.dirname(file))
    except (OSError, GpurunError) as e:
        if saved:
            with suppress(FileNotFoundError):
                os.unlink(saved)
            forget_kept(change.path)
        if isinstance(e, (GpurunError, PermissionError)):
            raise
        raise GpurunError(f"change {change.path}: {strerror_lower(e.errno or 0)}: the file is as it was") from None
    return saved


def take_back(change: Change, saved: str = "") -> None:
    """Put back what was before *change*: the file with the name *saved*, if there is one.  Raises OSError, GpurunError."""
    if change.before is None:
        with suppress(FileNotFoundError):
            os.unlink(os.path.realpath(change.path))
    elif saved:
        os.rename(saved, os.path.realpath(change.path))
    else:
        write(change.path, change.before)
    forget_kept(change.path)


def forget_kept(path: str) -> None:
    """What was kept of the file *path* goes once the file is that again.  Raises OSError."""
    kept = read(path + KEPT)
    if kept is not None and kept == read(path):
        os.unlink(path + KEPT)


def settle(change: Change, saved: str) -> None:
    """After :func:`make`: the second name *saved* goes, and with a file that went the directory that held nothing else."""
    if saved:
        with suppress(FileNotFoundError):
            os.unlink(saved)
    if change.text is None:
        with suppress(OSError):  # not empty, or not ours: it stays
            os.rmdir(os.path.dirname(os.path.realpath(change.path)))


def remove_strays(path: str) -> None:
    """Remove what a process that was killed while changing *path* has left beside it.  Raises OSError."""
    for name in {path, path + KEPT, os.path.realpath(path)}:
        folder, base = os.path.split(name)
        for stray in glob.glob(f"{glob.escape(folder)}/.{glob.escape(base)}.gpurun.*"):
            if stray.rpartition(".gpurun.")[2].removesuffix(".tmp").isdigit():
                with suppress(FileNotFoundError):
                    os.unlink(stray)


def difference(change: Change, colours: bool) -> str:
    """*change* as a unified diff, with *colours* as people's terminals show them."""
    before, after = (change.before or "").splitlines(), (change.text or "").splitlines()
    names = (
        change.path if change.before is not None else "/dev/null",
        change.path if change.text is not None else "/dev/null",
    )
    lines = list(difflib.unified_diff(before, after, *names, lineterm=""))
    if colours:
        lines = [f"{_COLOURS[line[0]]}{line}\033[0m" if line[:1] in _COLOURS else line for line in lines]
    return "".join([f"{line}\n" for line in lines])


def _beside(file: str, end: str) -> str:
    """A name beside *file* that no client reads: it begins with a dot, and ends like no configuration."""
    folder, name = os.path.split(file)
    return f"{folder}/.{name}.gpurun.{os.getpid()}{end}"


def _second_name(file: str, name: str, text: str) -> None:
    """*file* under the further name *name*: the same file, or a copy on a file system where it can have no second name."""
    try:
        os.link(file, name)
    except OSError:
        write(name, text)
        fd = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            _like(fd, file)
        finally:
            os.close(fd)


def _like(fd: int, file: str) -> None:
    """Give the new file *fd* the owner, mode and attributes of *file*; where there is none, those of a new file."""
    try:
        old = os.stat(file)
    except FileNotFoundError:
        os.fchmod(fd, 0o644)
        return
    new = os.fstat(fd)
    if (old.st_uid, old.st_gid) != (new.st_uid, new.st_gid):
        os.fchown(fd, old.st_uid, old.st_gid)
    os.fchmod(fd, old.st_mode & 0o7777)
    with suppress(OSError):  # a file system without them, or one that we may not set
        for name in os.listxattr(file):
            os.setxattr(fd, name, os.getxattr(file, name))


def _sync(directory: str) -> None:
    """Have the names in *directory* on the disk.  Only a power cut makes a difference, so no error of it counts."""
    with suppress(OSError):
        fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)
