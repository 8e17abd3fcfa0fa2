"""Paths inside a rootfs: every one is hostile, and none is ever resolved by the kernel outside it.

A path is resolved with openat2(2) RESOLVE_IN_ROOT | RESOLVE_NO_MAGICLINKS from a descriptor of the rootfs, and what comes
out is a descriptor: whoever exchanges a directory for a link afterwards changes nothing.  What is missing is made one
component at a time, each by mkdirat(2) under the descriptor of its parent.
"""

from __future__ import annotations

import posix
from _stat import S_ISDIR, S_ISLNK, S_ISREG
from errno import EACCES, EEXIST, ELOOP, ENAMETOOLONG, ENODEV, ENOENT, ENOTDIR, ENXIO, EPERM

from gpurun.errors import GpurunError
from gpurun.linux.files import O_CLOEXEC, Fd
from gpurun.linux.fs import (
    CGROUP2_SUPER_MAGIC,
    O_DIRECTORY,
    O_NOFOLLOW,
    O_PATH,
    PROC_SUPER_MAGIC,
    RESOLVE_IN_ROOT,
    RESOLVE_NO_MAGICLINKS,
    SYSFS_MAGIC,
    fstatfs_type,
    openat2,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from gpurun.ns.journal import Journal

    Check = Callable[[int, str], None]

_RESOLVE = RESOLVE_IN_ROOT | RESOLVE_NO_MAGICLINKS
_KERNELS_OWN = (PROC_SUPER_MAGIC, SYSFS_MAGIC, CGROUP2_SUPER_MAGIC)
_MAX_LINKS = 40  # as the kernel's MAXSYMLINKS

#: Errors of opening something that an image need not have: there is none, or none that we may open.  Any other tells nothing
#: of the image.
UNUSABLE = (ENOENT, ENOTDIR, ELOOP, ENAMETOOLONG, EACCES, EPERM, ENXIO, ENODEV)


def open_in_root(root_fd: int, path: str, flags: int = O_PATH) -> int:
    """Open *path* as a process whose root directory is *root_fd* would, never leaving it.

    Raises OSError (with *path* as the file name) as open(2) does.
    """
    try:
        return openat2(root_fd, path.lstrip("/") or ".", flags, _RESOLVE)
    except OSError as e:
        raise OSError(e.errno, e.strerror, path) from None


def open_file(directory_fd: int, path: str, flags: int = 0, resolve: int = _RESOLVE, proc_fd: int = -1) -> int:
    """A descriptor for reading of the regular file *path* below *directory_fd*, found by openat2(2) under the rules
    *resolve*; -1 for anything else, which is never opened.

    This is the one way in which a file of an image is opened.  To open a device node or a FIFO does something already: a
    watchdog begins to run, a terminal becomes the one that controls the process that opens it.  So what there is is looked
    at by an O_PATH descriptor, and only that very file is opened.  *flags*: O_NOFOLLOW.  *proc_fd*: see :func:`reopen`.

    Raises OSError (with *path* as the file name) as open(2) does.
    """
    try:
        with Fd(openat2(directory_fd, path.lstrip("/") or ".", O_PATH | flags, resolve)) as found:
            if not S_ISREG(posix.fstat(found).st_mode):
                return -1
            return reopen(found, posix.O_RDONLY, proc_fd)
    except OSError as e:
        raise OSError(e.errno, e.strerror, path) from None


def reopen(path_fd: int, flags: int, proc_fd: int = -1) -> int:
    """Open what the O_PATH descriptor *path_fd* refers to, whatever its name leads to by now; never as our terminal.

    It goes through the descriptor *proc_fd* of a procfs, which whoever is in a container's root must have; -1 stands for the
    host's /proc at its place.
    """
    flags |= posix.O_NOCTTY | O_CLOEXEC
    if proc_fd < 0:
        return posix.open(f"/proc/self/fd/{path_fd}", flags)
    return posix.open(f"{posix.readlink('self', dir_fd=proc_fd)}/fd/{path_fd}", flags, dir_fd=proc_fd)


def refuse_kernels_own(fd: int, path: str) -> None:
    """Raise :class:`GpurunError` where *path* is none of /proc or /sys and *fd*, to which it was resolved, is there.

    What is bound there would hide a file that this runtime or the container's processes trust.
    """
    if fstatfs_type(fd) in _KERNELS_OWN and not path.startswith(("/proc/", "/sys/")):
        raise GpurunError(f"{path}: a symbolic link in the image leads into /proc or /sys, where gpurun makes nothing")


def make_dirs(root_fd: int, path: str, journal: Journal | None = None, check: Check | None = None) -> int:
    """An O_PATH descriptor of the directory *path* in the rootfs, made (with its parents) where it is missing.

    Dangling symbolic links are followed inside the rootfs, as a process in it would.  What is made is noted in *journal*.
    *check* gets the directory in which something would be made, and *path*, before it is, and raises where it must not be.
    """
    try:
        return open_in_root(root_fd, path, O_PATH | O_DIRECTORY)
    except OSError as e:
        if e.errno != ENOENT:
            raise
    fd, rest = _walk(root_fd, path, check)
    for name in rest:
        try:
            make_dir(fd, name, journal)
        except OSError as e:
            posix.close(fd[0])
            raise OSError(e.errno, e.strerror, path) from None
        fd = _step(fd, name, path)
    return fd[0]


def make_dir(place: tuple[int, str], name: str, journal: Journal | None) -> None:
    """Make the directory *name* in *place* (a descriptor, and its path as journals have it), unless it is there by now."""
    if journal is not None:
        journal.note("directory", join(place[1], name))
    try:
        posix.mkdir(name, 0o755, dir_fd=place[0])
    except OSError as e:
        if journal is not None:
            journal.cancel()
        if e.errno != EEXIST:  # another container that shares this rootfs was faster: the next open looks at what is there
            raise
        return
    if journal is not None:
        journal.finish_directory(join(place[1], name))


def make_target(root_fd: int, path: str, directory: bool, journal: Journal | None = None, check: Check | None = None) -> int:
    """An O_PATH descriptor of the mount point *path* in the rootfs: a directory, or an empty file where it is missing.

    An existing target is taken as it is, whatever its kind: move_mount(2) refuses what does not fit (ENOTDIR).  *check*:
    as with :func:`make_dirs`.  Raises OSError with *path* as the file name, as open(2) and mkdir(2) do; ENOTDIR where a
    directory is wanted and something else is there.
    """
    try:
        return open_in_root(root_fd, path)
    except OSError as e:
        if e.errno != ENOENT:
            raise
    if directory:
        return make_dirs(root_fd, path, journal, check)
    (parent, parent_path), rest = _walk(root_fd, path, check)
    dirs = list(rest[:-1])
    fd = (parent, parent_path)
    try:
        for name in dirs:
            make_dir(fd, name, journal)
            fd = _step(fd, name, path)
        if not rest:
            raise OSError(ENOTDIR, posix.strerror(ENOTDIR), path)
        if journal is not None:
            journal.note("file", join(fd[1], rest[-1]))
        flags = posix.O_WRONLY | posix.O_CREAT | posix.O_EXCL | O_NOFOLLOW | O_CLOEXEC
        try:
            posix.close(posix.open(rest[-1], flags, 0o644, dir_fd=fd[0]))
        except OSError as e:
            if journal is not None:
                journal.cancel()
            if e.errno != EEXIST:  # as in make_dir
                raise OSError(e.errno, e.strerror, path) from None
        return posix.open(rest[-1], O_PATH | O_NOFOLLOW | O_CLOEXEC, dir_fd=fd[0])
    finally:
        posix.close(fd[0])


def make_symlink(root_fd: int, path: str, text: str) -> None:
    """Make the symbolic link *path* to *text* in the rootfs, and its parents where they are missing; one that is the same
    may be there.  Raises OSError, FileExistsError where there is something else."""
    parent, _, name = path.rstrip("/").rpartition("/")
    with Fd(make_dirs(root_fd, parent or "/")) as directory:
        try:
            posix.symlink(text, name, dir_fd=directory)
        except FileExistsError:
            try:
                if posix.readlink(name, dir_fd=directory) == text:
                    return
            except OSError:
                pass  # no link
            raise OSError(EEXIST, posix.strerror(EEXIST), path) from None


def existing_part(root_fd: int, path: str) -> tuple[int, str, str]:
    """How far *path* exists: (descriptor of the last directory there is, its path in the rootfs, the first name missing).

    For a path that exists the directory is that of the last name.
    """
    parent, _, name = path.rstrip("/").rpartition("/")
    (fd, existing), rest = _walk(root_fd, parent or "/")
    return fd, existing, rest[0] if rest else name


def path_in_root(root_fd: int, directory_fd: int, name: str) -> str:
    """The path of *name* in the directory *directory_fd*, relative to the rootfs and without links."""
    root = posix.readlink(f"/proc/self/fd/{root_fd}").rstrip("/")
    return join(posix.readlink(f"/proc/self/fd/{directory_fd}").removeprefix(root).strip("/"), name)


def in_root(root_path: str, fd: int) -> bool:
    """Whether the object that *fd* refers to lies below the host path *root_path*: a last look before it is used."""
    seen = posix.readlink(f"/proc/self/fd/{fd}")
    return seen == root_path or seen.startswith(root_path.rstrip("/") + "/")


def join(directory: str, name: str) -> str:
    """*name* in *directory* of the rootfs (empty for its root), as journals have paths."""
    return f"{directory}/{name}" if directory else name


def _step(place: tuple[int, str], name: str, path: str) -> tuple[int, str]:
    """Go down into the real directory *name*; the old descriptor is closed."""
    try:
        fd = posix.open(name, O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC, dir_fd=place[0])
    except OSError as e:
        raise OSError(e.errno, e.strerror, path) from None
    finally:
        posix.close(place[0])
    return fd, join(place[1], name)


def _walk(root_fd: int, path: str, check: Check | None = None) -> tuple[tuple[int, str], tuple[str, ...]]:
    """Resolve *path* as far as it exists: (the last directory there is, the names still to be made below it).

    Symbolic links are resolved here, by hand, because a dangling one must lead to a name inside the rootfs that can be
    made.  Each step opens one component with O_NOFOLLOW under the descriptor of its parent, so that nothing exchanged
    under our hands is followed.
    """
    stack: list[tuple[int, str]] = [(posix.open(".", O_PATH | O_DIRECTORY | O_CLOEXEC, dir_fd=root_fd), "")]
    todo = [c for c in path.split("/") if c not in ("", ".")][::-1]
    links = 0
    try:
        while todo:
            name = todo.pop()
            if name == "..":
                if len(stack) > 1:
                    posix.close(stack.pop()[0])
                continue
            here, here_path = stack[-1]
            try:
                fd = posix.open(name, O_PATH | O_NOFOLLOW | O_CLOEXEC, dir_fd=here)
            except FileNotFoundError:
                rest = [name, *todo[::-1]]
                if ".." in rest:
                    raise OSError(ENOENT, posix.strerror(ENOENT), path) from None
                if check is not None:
                    check(here, path)
                return stack.pop(), tuple(rest)
            mode = posix.fstat(fd).st_mode
            if S_ISLNK(mode):
                posix.close(fd)
                links += 1
                if links > _MAX_LINKS:
                    raise OSError(ELOOP, posix.strerror(ELOOP), path)
                text = posix.readlink(name, dir_fd=here)
                if text.startswith("/"):
                    while len(stack) > 1:
                        posix.close(stack.pop()[0])
                todo.extend([c for c in text.split("/") if c not in ("", ".")][::-1])
            elif S_ISDIR(mode):
                stack.append((fd, join(here_path, name)))
            else:
                posix.close(fd)
                if todo:
                    raise OSError(ENOTDIR, posix.strerror(ENOTDIR), path)
                raise OSError(EEXIST, posix.strerror(EEXIST), path)
        return stack.pop(), ()
    finally:
        for fd, _ in stack:
            posix.close(fd)
