"""What gpurun writes itself for a container: read-only files on private tmpfs mounts, never in the image."""

from __future__ import annotations

import posix
from errno import EINVAL, ENOENT

from gpurun.errors import StepError
from gpurun.hook.ldcache import MAX_SIZE, CacheError, compose
from gpurun.linux import mount as lm
from gpurun.linux.files import O_CLOEXEC, read_fd, write_all
from gpurun.linux.fs import (
    O_DIRECTORY,
    O_NOFOLLOW,
    O_PATH,
    PROC_SUPER_MAGIC,
    RESOLVE_BENEATH,
    RESOLVE_NO_MAGICLINKS,
    RESOLVE_NO_SYMLINKS,
    RESOLVE_NO_XDEV,
    fstatfs_type,
    openat2,
)
from gpurun.ns.mount import attach, bind_fd, tmpfs
from gpurun.ns.options import parse_options
from gpurun.ns.path import make_dirs, make_target, open_in_root

TYPE_CHECKING = False
if TYPE_CHECKING:
    from gpurun.hook.edits import CacheEntry, EditMount, FileEdit, ProcTree

_S_IFMT, _S_IFDIR, _S_IFREG = 0o170000, 0o040000, 0o100000
_ON_PROC = RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS | RESOLVE_NO_XDEV
_PRIVATE = lm.MOUNT_ATTR_NOSUID | lm.MOUNT_ATTR_NODEV | lm.MOUNT_ATTR_NOEXEC
_LD_CACHE = "/etc/ld.so.cache"


def failed(step: str, path: str, error: OSError) -> StepError:
    """*error* of the kernel as the failure of *step* on *path*."""
    return StepError(step, path, error.errno or EINVAL)


def open_source(step: str, path: str) -> tuple[int, posix.stat_result]:
    """The host's *path* as an O_PATH descriptor; a symbolic link is refused, discovery has resolved them all."""
    try:
        fd = posix.open(path, O_PATH | O_NOFOLLOW | O_CLOEXEC)
    except OSError as e:
        raise failed(step, path, e) from None
    return fd, posix.fstat(fd)


def _write_file(directory_fd: int, path: str, content: bytes, mode: int) -> None:
    """A new file on a tmpfs of ours; *path* is relative."""
    flags = posix.O_WRONLY | posix.O_CREAT | posix.O_EXCL | O_NOFOLLOW | O_CLOEXEC
    fd = posix.open(path, flags, mode, dir_fd=directory_fd)
    try:
        write_all(fd, content)
    finally:
        posix.close(fd)


def _make_parents(directory_fd: int, path: str) -> None:
    """The directories of *path* (which is a directory) on a tmpfs of ours."""
    parts = path.split("/")
    for i in range(1, len(parts) + 1):
        try:
            posix.mkdir("/".join(parts[:i]), 0o555, dir_fd=directory_fd)
        except FileExistsError:
            pass  # made for the file before


def mask_tree(root_fd: int, tree: ProcTree, made: list[str]) -> None:
    """A read-only tmpfs over the host's tree: *files* written, *binds* put back from the host."""
    step = "mask"
    try:
        target, prefix = _tree_target(root_fd, tree.path, made)
        if target < 0:
            return
        try:
            mount = tmpfs(0o555, "1m", _PRIVATE)
            try:
                _fill(mount, tree, prefix)
                lm.mount_setattr(mount, lm.MOUNT_ATTR_RDONLY)
                attach(mount, target)
                for bind in tree.binds:
                    _bind_in_tree(mount, bind, prefix + bind.container_path.removeprefix(tree.path).lstrip("/"))
            finally:
                posix.close(mount)
        finally:
            posix.close(target)
    except OSError as e:
        raise failed(step, tree.path, e) from None


def _tree_target(root_fd: int, path: str, made: list[str]) -> tuple[int, str]:
    """Where the tmpfs goes, and what to put before the names in it; a negative descriptor when there is nothing to hide."""
    if not path.startswith("/proc/"):
        return make_dirs(root_fd, path, made), ""
    try:
        proc = openat2(root_fd, "proc", O_PATH | O_DIRECTORY | O_NOFOLLOW, RESOLVE_BENEATH | RESOLVE_NO_MAGICLINKS)
    except FileNotFoundError:
        return -1, ""  # a container without /proc
    try:
        if fstatfs_type(proc) != PROC_SUPER_MAGIC:
            return -1, ""  # /proc is an empty directory of the image: no host data is in there
        inner = path.removeprefix("/proc/")
        try:
            return openat2(proc, inner, O_PATH | O_DIRECTORY, _ON_PROC), ""
        except FileNotFoundError:
            # No such driver in this kernel: a simulated one (GPURUN_SYSROOT).  procfs lets nobody make directories, so the
            # tmpfs covers the parent, which every kernel has.
            parent, _, name = inner.rpartition("/")
            return openat2(proc, parent, O_PATH | O_DIRECTORY, _ON_PROC), f"{name}/"
    finally:
        posix.close(proc)


def _fill(mount: int, tree: ProcTree, prefix: str) -> None:
    def name_of(edit: FileEdit | EditMount) -> str:
        path = edit.container_path if hasattr(edit, "container_path") else edit.path
        return prefix + path.removeprefix(tree.path).lstrip("/")

    if prefix:
        _make_parents(mount, prefix.rstrip("/"))
    for file in tree.files:
        directory, slash, _ = name_of(file).rpartition("/")
        if slash:
            _make_parents(mount, directory)
        _write_file(mount, name_of(file), file.content, file.mode)
    for bind in tree.binds:
        _make_parents(mount, name_of(bind))


def _bind_in_tree(mount: int, bind: EditMount, name: str) -> None:
    source, stat = open_source("mount", bind.host_path)
    try:
        if stat.st_mode & _S_IFMT != _S_IFDIR:
            raise StepError("mount", bind.host_path, EINVAL)
        target = posix.open(name, O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC, dir_fd=mount)
        try:
            options = parse_options(bind.options)
            bind_fd(source, target, options.attr_set, options.attr_clr, options.recursive)
        finally:
            posix.close(target)
    finally:
        posix.close(source)


def mount_ld_cache(root_fd: int, entries: tuple[CacheEntry, ...], made: list[str]) -> None:
    """The image's cache with our libraries in it, on a private tmpfs, bound read-only over the image's."""
    try:
        image_cache = _read_image_cache(root_fd)
        try:
            content = compose(image_cache, entries)
        except CacheError:
            content = compose(None, entries)  # the image's own loader does not read such a cache either
        tree = _private_file(root_fd, "ld.so.cache", content)
        try:
            target = make_target(root_fd, _LD_CACHE, False, made)
            try:
                attach(tree, target)
            finally:
                posix.close(target)
        finally:
            posix.close(tree)
    except OSError as e:
        raise failed("compose the loader's cache", _LD_CACHE, e) from None


def _read_image_cache(root_fd: int) -> bytes | None:
    """The content of the image's cache; ``None`` when it has none, or something there that is not a file."""
    try:
        path_fd = open_in_root(root_fd, _LD_CACHE)
    except OSError as e:
        if e.errno == ENOENT:
            return None
        raise
    try:
        # Only a regular file is opened for reading: opening a device or a FIFO of the image would already do something.
        if posix.fstat(path_fd).st_mode & _S_IFMT != _S_IFREG:
            return None
        fd = posix.open(f"/proc/self/fd/{path_fd}", posix.O_RDONLY | O_CLOEXEC)
        try:
            return read_fd(fd, MAX_SIZE + 1)
        finally:
            posix.close(fd)
    finally:
        posix.close(path_fd)


def _private_file(root_fd: int, name: str, content: bytes) -> int:
    """A detached read-only mount of one new file.

    A file of a mount that is attached nowhere cannot be cloned, so its tmpfs is attached (on the rootfs) for that moment.
    """
    mount = tmpfs(0o755, f"{len(content) // 1024 + 64}k", _PRIVATE)
    try:
        _write_file(mount, name, content, 0o444)
        attach(mount, root_fd)
        try:
            file = posix.open(name, O_PATH | O_NOFOLLOW | O_CLOEXEC, dir_fd=mount)
            try:
                tree = lm.open_tree(file, "", lm.OPEN_TREE_CLONE)
            finally:
                posix.close(file)
        finally:
            lm.umount2(f"/proc/self/fd/{mount}", lm.MNT_DETACH)
    finally:
        posix.close(mount)
    lm.mount_setattr(tree, lm.MOUNT_ATTR_RDONLY | _PRIVATE, propagation=lm.MS_PRIVATE)
    return tree
