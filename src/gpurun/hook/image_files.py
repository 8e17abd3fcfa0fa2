"""Files of the image that must say something else while a container with devices lives: the loader's cache and its like.

They are replaced in the image itself, by rename, so that programs of the container can replace them again (a mount point
cannot be renamed over: ldconfig gets EBUSY, and with it every package that brings a library).  What was there is kept in the
journal and comes back with delete, unless the container has changed the file.  Where that cannot be (a read-only
rootfs, a volume, a link, something that is no file), a private file is bound over it.
"""

from __future__ import annotations

import posix
from errno import EACCES, ELOOP, ENOENT, ENOTDIR, EPERM, EROFS, EXDEV

from gpurun.hook.private_mounts import private_file, step_error
from gpurun.linux.files import O_CLOEXEC, Fd, read_fd, write_all
from gpurun.linux.fs import (
    O_DIRECTORY,
    O_NOFOLLOW,
    O_PATH,
    RESOLVE_BENEATH,
    RESOLVE_IN_ROOT,
    RESOLVE_NO_MAGICLINKS,
    RESOLVE_NO_XDEV,
    openat2,
)
from gpurun.ns.journal import REWRITTEN, TEMPORARY, Original, pack_rewritten
from gpurun.ns.mount import attach
from gpurun.ns.path import open_file, path_in_root
from gpurun.ns.undo import digest
from gpurun.record import replace

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from gpurun.hook.rootfs_target import Target

    Compose = Callable[[bytes | None], bytes | None]

#: Largest file that is replaced, in bytes; a larger one stays as it is under a mount.
MAX_SIZE = 8 << 20

_MODE = 0o644
#: Why the image cannot be written at that place: then a mount does it.
_NOT_IN_PLACE = (EROFS, EXDEV, EACCES, EPERM, ELOOP, ENOTDIR)


def rewrite(target: Target, path: str, compose: Compose, step: str) -> None:
    """Give *path* the content ``compose(content of the image)``; ``None`` in and out stands for no file and no change.

    Raises :class:`StepError` naming *step*.
    """
    try:
        if target.readonly or not rewrite_in_place(target, path, compose, parents=True):
            _mount_over(target, path, compose)
    except OSError as e:
        raise step_error(step, path, e) from None


def rewrite_in_place(target: Target, path: str, compose: Compose, parents: bool) -> bool:
    """The same only in the image; ``False``, and nothing is changed, where that cannot be.

    Without *parents* a missing directory is not made, and that is a ``False`` as well.
    """
    directory, _, name = path.rpartition("/")
    try:
        parent = _open_parent(target, directory or "/", parents)
    except OSError as e:
        if e.errno in _NOT_IN_PLACE or (e.errno == ENOENT and not parents):
            return False
        raise
    with Fd(parent):
        original = _read_original(parent, name)
        if original is None:
            return False
        content = compose(original.content)
        if content is None or content == original.content:
            return True
        path_of_file = path_in_root(target.root_fd, parent, name)
        if not target.journal.in_image(path_of_file.rpartition("/")[0]):
            return False
        try:
            _replace(target, parent, path_of_file, content, original)
        except OSError as e:
            if e.errno not in _NOT_IN_PLACE:
                raise
            return False
        return True


def _open_parent(target: Target, directory: str, make: bool) -> int:
    """The directory, links resolved in the rootfs, but not on another mount: a volume is not the image's."""
    resolve = RESOLVE_IN_ROOT | RESOLVE_NO_MAGICLINKS | RESOLVE_NO_XDEV
    try:
        return openat2(target.root_fd, directory.lstrip("/") or ".", O_PATH | O_DIRECTORY, resolve)
    except OSError as e:
        if e.errno != ENOENT or not make:
            raise
    return target.places.made(directory)


def _read_original(parent: int, name: str) -> Original | None:
    """What the image has there; ``None`` when it is something that cannot be replaced by rename."""
    try:
        fd = open_file(parent, name, O_NOFOLLOW, RESOLVE_BENEATH | RESOLVE_NO_XDEV)
    except OSError as e:
        if e.errno == ENOENT:
            return Original(None)
        if e.errno == EXDEV:
            return None  # something has been mounted there
        raise
    if fd < 0:
        return None
    with Fd(fd):
        stat = posix.fstat(fd)
        if stat.st_size > MAX_SIZE:
            return None
        content = read_fd(fd, stat.st_size)
    return Original(content, stat.st_mode & 0o7777, stat.st_uid, stat.st_gid, stat.st_mtime_ns, stat.st_ino)


def _replace(target: Target, parent: int, path: str, content: bytes, original: Original) -> None:
    directory, _, name = path.rpartition("/")
    temporary = f".{name}.{posix.urandom(4).hex()}"
    journal = target.journal
    journal.note(TEMPORARY, f"{directory}/{temporary}" if directory else temporary)
    flags = posix.O_WRONLY | posix.O_CREAT | posix.O_EXCL | O_NOFOLLOW | O_CLOEXEC
    try:
        fd = posix.open(temporary, flags, _MODE, dir_fd=parent)
    except OSError:
        journal.cancel()
        raise
    with Fd(fd):
        try:
            write_all(fd, content)
            if target.in_user_namespace:
                original = _with_owner_outside(original, posix.fstat(fd))
            original = _keep(target, parent, path, original)
            journal.note(REWRITTEN, path, pack_rewritten(digest(content), original))
            try:
                posix.rename(temporary, name, src_dir_fd=parent, dst_dir_fd=parent)
            except OSError:
                journal.cancel()
                raise
        except OSError:
            for left in (temporary, original.kept):
                if left:
                    posix.unlink(left, dir_fd=parent)
            raise


def _keep(target: Target, parent: int, path: str, original: Original) -> Original:
    """*original* with the name under which the file is kept beside *path* until it is given back by a rename, which needs
    no room on the disk.  Where the kernel makes no such link, its content in the journal has to do."""
    directory, _, name = path.rpartition("/")
    if original.content is None or target.journal.fd < 0:
        return original
    kept = f".{name}.{posix.urandom(4).hex()}"
    target.journal.note(TEMPORARY, f"{directory}/{kept}" if directory else kept)
    try:
        posix.link(name, kept, src_dir_fd=parent, dst_dir_fd=parent, follow_symlinks=False)
    except OSError:
        target.journal.cancel()
        return original
    if posix.lstat(kept, dir_fd=parent).st_ino != original.inode:  # it was exchanged meanwhile
        posix.unlink(kept, dir_fd=parent)
        return original
    return replace(original, kept=kept)


def _with_owner_outside(original: Original, ours: posix.stat_result) -> Original:
    """*original* as those outside the user namespace can give it back: only if it has the owner that our file has."""
    if original.content is None:
        return original
    if (original.uid, original.gid) != (ours.st_uid, ours.st_gid):
        raise OSError(EPERM, posix.strerror(EPERM))
    return replace(original, uid=-1, gid=-1)


def _mount_over(target: Target, path: str, compose: Compose) -> None:
    content = compose(_read_image(target.root_fd, path))
    if content is None:
        return
    with (
        Fd(private_file(target.root_fd, path.rpartition("/")[2], content, target.label)) as tree,
        Fd(target.with_room(path, lambda: target.places.point(path, False))) as place,
    ):
        attach(tree, place)


def _read_image(root_fd: int, path: str) -> bytes | None:
    """The content of the image's file, links resolved; ``None`` when there is none, or it is no file, or too large."""
    try:
        fd = open_file(root_fd, path)
    except OSError as e:
        if e.errno == ENOENT:
            return None
        raise
    if fd < 0:
        return None
    with Fd(fd):
        size = posix.fstat(fd).st_size
        return read_fd(fd, size) if size <= MAX_SIZE else None
