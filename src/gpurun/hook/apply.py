"""Put the edits into a container: inside its mount namespace, its mounts made, before pivot_root.

Both trees can be seen then: sources are opened on the host's, targets only through *root_fd* (see :mod:`gpurun.ns.path`),
and mounts are attached by descriptor.  Nothing of the image is executed, imported or trusted, and the image is not changed
but for empty mount points and links, which are reported so that ``delete`` can take them away (:func:`remove_created`).
"""

from __future__ import annotations

import posix
from errno import EEXIST, EINVAL, ENOENT, ENOTEMPTY, EXDEV

from gpurun.errors import StepError
from gpurun.hook.private import failed, mask_tree, mount_ld_cache, open_source
from gpurun.linux import mount as lm
from gpurun.linux.fs import O_DIRECTORY, O_PATH, RESOLVE_BENEATH, RESOLVE_NO_SYMLINKS, RESOLVE_NO_XDEV, openat2
from gpurun.ns.devices import make_device
from gpurun.ns.mount import bind_fd
from gpurun.ns.options import parse_options
from gpurun.ns.path import make_dirs, make_target, open_in_root
from gpurun.ns.steps import DeviceStep

TYPE_CHECKING = False
if TYPE_CHECKING:
    from gpurun.hook.edits import ContainerEdits, DeviceNode, EditMount, Link

_S_IFMT, _S_IFDIR, _S_IFLNK, _S_IFREG = 0o170000, 0o040000, 0o120000, 0o100000
_ON_ROOT = RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS | RESOLVE_NO_XDEV
_ARROW = " -> "


def apply_edits(
    edits: ContainerEdits, root_fd: int, in_user_namespace: bool, created: list[str] | None = None
) -> tuple[str, ...]:
    """Apply the device nodes, mounts, links, loader's cache and proc trees of *edits* to the rootfs *root_fd*.

    Returns what was made in the image itself, in order: paths relative to it, links as ``path -> target``.  The same is
    appended to *created*, also when a step fails.  Environment, groups, device rules and hooks are the engine's work.

    *in_user_namespace*: device nodes are bound from the host, because mknod(2) is not allowed there.
    Raises :class:`StepError` that names the step and its path.
    """
    made: list[str] = []
    umask = posix.umask(0)
    try:
        for node in edits.device_nodes:
            _device_node(root_fd, node, in_user_namespace, made)
        sources = {_mount(root_fd, mount, made) for mount in edits.mounts}
        for link in edits.links:
            _link(root_fd, link, sources, made)
        for tree in edits.proc_trees:
            mask_tree(root_fd, tree, made)
        if edits.ldcache:
            mount_ld_cache(root_fd, edits.ldcache, made)
    finally:
        posix.umask(umask)
        result = _in_image(root_fd, made)
        if created is not None:
            created.extend(result)
    return tuple(result)


def remove_created(root_fd: int, paths: tuple[str, ...]) -> None:
    """Remove from the rootfs what :func:`apply_edits` reported, as far as it is still as it was made.

    A file that is no longer empty, a directory with something in it, a link that says something else belongs to whoever
    changed it and stays.  To be called when the container's mount namespace is gone.
    """
    for entry in reversed(paths):
        path, arrow, target = entry.partition(_ARROW)
        directory, _, name = path.rpartition("/")
        try:
            parent = openat2(root_fd, directory or ".", O_PATH | O_DIRECTORY, _ON_ROOT)
        except OSError:
            continue  # its directory went away, or became something else: not ours any more
        try:
            stat = posix.lstat(name, dir_fd=parent)
            kind = stat.st_mode & _S_IFMT
            if kind == _S_IFDIR:
                posix.rmdir(name, dir_fd=parent)
            elif kind == _S_IFLNK:
                if arrow and posix.readlink(name, dir_fd=parent) == target:
                    posix.unlink(name, dir_fd=parent)
            elif kind != _S_IFREG or stat.st_size == 0:
                posix.unlink(name, dir_fd=parent)
        except OSError as e:
            if e.errno not in (ENOENT, ENOTEMPTY, EEXIST):  # gone, or in use: both are right
                raise StepError("remove from the rootfs", path, e.errno or EINVAL) from None
        finally:
            posix.close(parent)


def _in_image(root_fd: int, made: list[str]) -> list[str]:
    """Those of *made* that lie in the image itself, not on a tmpfs or volume mounted in it."""
    kept = []
    for entry in made:
        directory = entry.partition(_ARROW)[0].rpartition("/")[0]
        try:
            posix.close(openat2(root_fd, directory or ".", O_PATH | O_DIRECTORY, _ON_ROOT))
        except OSError as e:
            if e.errno in (EXDEV, ENOENT):
                continue
            raise StepError("look again at", directory, e.errno or EINVAL) from None
        kept.append(entry)
    return kept


def _split(path: str) -> tuple[str, str]:
    directory, _, name = path.rpartition("/")
    if name in ("", ".", ".."):
        raise StepError("create", path, EINVAL)
    return directory or "/", name


def _device_node(root_fd: int, node: DeviceNode, in_user_namespace: bool, made: list[str]) -> None:
    """Make the node by its numbers, or bind the host's; what the engine has put there already (--privileged) stays."""
    kind = "c" if node.type == "u" else node.type
    step = DeviceStep(node.path, kind, node.major, node.minor, node.file_mode, node.uid, node.gid)
    host_path = node.host_path or node.path
    if in_user_namespace:
        try:
            posix.lstat(host_path)
        except OSError as e:
            # Without mknod(2) the host must have the node; nvidia-modprobe or any first use of the driver makes it.
            raise failed("bind the device node of the host", host_path, e) from None
    make_device(root_fd, step, host_path, in_user_namespace, made)


def _made_name(root_fd: int, parent: int, name: str) -> str:
    """The path of *name* under *parent*, relative to the rootfs and without links."""
    root = posix.readlink(f"/proc/self/fd/{root_fd}").rstrip("/")
    directory = posix.readlink(f"/proc/self/fd/{parent}").removeprefix(root).strip("/")
    return f"{directory}/{name}" if directory else name


def _mount(root_fd: int, mount: EditMount, made: list[str]) -> tuple[int, int]:
    """Bind one host file or directory; returns (device, inode) of it."""
    step = "mount"
    source, stat = open_source(step, mount.host_path)
    identity = (stat.st_dev, stat.st_ino)
    try:
        is_directory = stat.st_mode & _S_IFMT == _S_IFDIR
        if stat.st_mode & _S_IFMT == _S_IFLNK or is_directory != (mount.kind == "dir"):
            raise StepError(step, mount.host_path, EINVAL)
        try:
            target = make_target(root_fd, mount.container_path, is_directory, made)
            try:
                options = parse_options(mount.options)
                bind_fd(source, target, options.attr_set, options.attr_clr, options.recursive)
            finally:
                posix.close(target)
            _verify(root_fd, mount.container_path, identity)
        except OSError as e:
            raise failed(step, mount.container_path, e) from None
    finally:
        posix.close(source)
    return identity


def _verify(root_fd: int, path: str, identity: tuple[int, int]) -> None:
    """A last look: what a process in the container finds at *path* is what was mounted."""
    fd = open_in_root(root_fd, path)
    try:
        stat = posix.fstat(fd)
    finally:
        posix.close(fd)
    if (stat.st_dev, stat.st_ino) != identity:
        raise StepError("mount", path, EEXIST)


def _link(root_fd: int, link: Link, sources: set[tuple[int, int]], made: list[str]) -> None:
    """A symbolic link; where the image has something else of that name, the library it should lead to is bound over it."""
    step = "make the link"
    directory, name = _split(link.path)
    try:
        parent = make_dirs(root_fd, directory, made)
    except OSError as e:
        raise failed(step, link.path, e) from None
    try:
        try:
            posix.symlink(link.target, name, dir_fd=parent)
            made.append(_made_name(root_fd, parent, name) + _ARROW + link.target)
        except FileExistsError:
            if not _says(parent, name, link.target):
                _bind_over(root_fd, link, directory, sources, made)
    except OSError as e:
        raise failed(step, link.path, e) from None
    finally:
        posix.close(parent)


def _says(parent: int, name: str, target: str) -> bool:
    try:
        return posix.readlink(name, dir_fd=parent) == target
    except OSError:
        return False  # not a link


def _bind_over(root_fd: int, link: Link, directory: str, sources: set[tuple[int, int]], made: list[str]) -> None:
    """An image that ships its own (stale) library of that name keeps its file; the container sees the driver's.

    The source is looked up in the rootfs, so it is used only when it is one of the host files mounted a moment ago.
    """
    source = open_in_root(root_fd, f"{directory}/{link.target}")
    try:
        stat = posix.fstat(source)
        if (stat.st_dev, stat.st_ino) not in sources:
            raise StepError("make the link", link.path, EEXIST)
        target = make_target(root_fd, link.path, False, made)
        try:
            there = posix.fstat(target)
            if (there.st_dev, there.st_ino) != (stat.st_dev, stat.st_ino):
                bind_fd(source, target, lm.MOUNT_ATTR_RDONLY | lm.MOUNT_ATTR_NOSUID | lm.MOUNT_ATTR_NODEV, recursive=False)
        finally:
            posix.close(target)
    finally:
        posix.close(source)
