"""What gpurun writes itself for a container: read-only files on private tmpfs mounts, never in the image."""

from __future__ import annotations

import posix
from errno import EINVAL

from gpurun.errors import StepError
from gpurun.linux import mount as lm
from gpurun.linux.files import O_CLOEXEC, write_all
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
from gpurun.ns.path import make_dirs

TYPE_CHECKING = False
if TYPE_CHECKING:
    from gpurun.hook.edits import EditMount, FileEdit, ProcTree
    from gpurun.hook.target import Target

_S_IFMT, _S_IFDIR, _S_IFREG = 0o170000, 0o040000, 0o100000
_ON_PROC = RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS | RESOLVE_NO_XDEV
_PRIVATE = lm.MOUNT_ATTR_NOSUID | lm.MOUNT_ATTR_NODEV | lm.MOUNT_ATTR_NOEXEC


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
    parts = path.split("/") if path else []
    for i in range(1, len(parts) + 1):
        try:
            posix.mkdir("/".join(parts[:i]), 0o555, dir_fd=directory_fd)
        except FileExistsError:
            pass  # made for the file before


def mask_tree(where: Target, tree: ProcTree) -> None:
    """A read-only tmpfs over the host's tree: *files* written, *binds* put back from the host."""
    step = "mask"
    try:
        target, prefix = _tree_target(where, tree.path)
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


def _tree_target(target: Target, path: str) -> tuple[int, str]:
    """Where the tmpfs goes, and what to put before the names in it; a negative descriptor when there is nothing to hide."""
    if not path.startswith("/proc/"):
        made = target.with_room(path, lambda: make_dirs(target.root_fd, path, target.journal))
        return target.places.checked(made, path), ""
    try:
        proc = openat2(target.root_fd, "proc", O_PATH | O_DIRECTORY | O_NOFOLLOW, RESOLVE_BENEATH | RESOLVE_NO_MAGICLINKS)
    except FileNotFoundError:
        return -1, ""  # a container without /proc
    try:
        if fstatfs_type(proc) != PROC_SUPER_MAGIC:
            return -1, ""  # /proc is an empty directory of the image: no host data is in there
        # Of a host's /proc that is bound with shared propagation: what covers it here would cover the host's own.
        lm.mount_setattr(proc, propagation=lm.MS_SLAVE)
        inner = path.removeprefix("/proc/")
        try:
            return openat2(proc, inner, O_PATH | O_DIRECTORY, _ON_PROC), ""
        except FileNotFoundError:
            # No such driver in this kernel: a simulated one (GPURUN_SYSROOT).  procfs lets nobody make directories, so the
            # tmpfs covers the parent, which every kernel has.
            parent, _, name = inner.rpartition("/")
            try:
                return openat2(proc, parent, O_PATH | O_DIRECTORY, _ON_PROC), f"{name}/"
            except FileNotFoundError:
                return -1, ""  # mounted with subset=pid: nothing of any driver is in there
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
        if bind.kind == "dir":
            _make_parents(mount, name_of(bind))
            continue
        _make_parents(mount, name_of(bind).rpartition("/")[0])
        _write_file(mount, name_of(bind), b"", 0o444)


def _bind_in_tree(mount: int, bind: EditMount, name: str) -> None:
    source, stat = open_source("mount", bind.host_path)
    try:
        if stat.st_mode & _S_IFMT != (_S_IFDIR if bind.kind == "dir" else _S_IFREG):
            raise StepError("mount", bind.host_path, EINVAL)
        target = posix.open(name, O_PATH | O_NOFOLLOW | O_CLOEXEC, dir_fd=mount)
        try:
            options = parse_options(bind.options)
            bind_fd(source, target, options.attr_set, options.attr_clr, options.recursive)
        finally:
            posix.close(target)
    finally:
        posix.close(source)


def private_file(root_fd: int, name: str, content: bytes) -> int:
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
