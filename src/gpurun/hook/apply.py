"""Put the edits into a container: inside its mount namespace, its mounts made, before pivot_root.

Both trees can be seen then: sources are opened on the host's, targets only through the descriptor of the rootfs (see
:mod:`gpurun.ns.path`), and mounts are attached by descriptor.  Nothing of the image is executed, imported or trusted, and
what is made in the image is written in a journal first, so that ``delete`` leaves it as it was (:mod:`gpurun.ns.undo`).
"""

from __future__ import annotations

import posix
from _stat import S_ISDIR, S_ISLNK
from errno import EBUSY, EEXIST, EINVAL, ELOOP, ENOENT, ENOTDIR, EXDEV

from gpurun.errors import StepError
from gpurun.hook.device_steps import node_step
from gpurun.hook.loaders import tell_loaders
from gpurun.hook.private_mounts import PreparedTree, bind_source, mask_tree, prepare_tree, step_error
from gpurun.hook.rootfs_target import Target
from gpurun.linux import mount as lm
from gpurun.linux.files import Fd
from gpurun.linux.fs import (
    AT_FDCWD,
    O_DIRECTORY,
    O_PATH,
    RESOLVE_BENEATH,
    RESOLVE_NO_SYMLINKS,
    RESOLVE_NO_XDEV,
    TMPFS_MAGIC,
    fstatfs_type,
    mount_id,
    openat2,
)
from gpurun.ns.devices import is_there, make_device, open_node
from gpurun.ns.mount import attach, private_copy
from gpurun.ns.options import parse_options
from gpurun.ns.outside import refuse_outside
from gpurun.ns.path import join, open_in_root, path_in_root
from gpurun.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from gpurun.cdi.edits import Chmod, ContainerEdits, DeviceNode, EditMount, Link

#: How many mounts are made together: so many descriptors are open at a time.
_AT_ONCE = 96
_BIND_NODE = "bind the device node of the host"


class Opened(Record):
    """What edits bring from the host, opened ahead: copies of what the first mounts bind, the trees or what is bound in
    them, and the nodes of the host; -1 stands for a mount or a node that is still to be opened."""

    mounts: tuple[int, ...] = ()
    trees: tuple[PreparedTree, ...] = ()
    nodes: tuple[int, ...] = ()
    binds: tuple[tuple[int, ...], ...] = ()  # for each tree that is not prepared

    @property
    def descriptors(self) -> tuple[int, ...]:
        """All that is open for it."""
        trees = [fd for tree in self.trees for fd in (tree.mount, *tree.binds)]
        binds = [fd for tree in self.binds for fd in tree]
        return tuple([fd for fd in (*self.mounts, *trees, *self.nodes, *binds) if fd >= 0])


def open_sources(edits: ContainerEdits, label: str) -> Opened | None:
    """What :func:`apply_edits` can do with the host's own mounts, done before; ``None`` where something is wrong.

    It is tried once more then, and the error reported.  *label* is the SELinux context of the file systems that are made.
    """
    mounts: list[int] = []
    trees: list[PreparedTree] = []
    try:
        for mount in edits.mounts[:_AT_ONCE]:
            mounts.append(_tree(mount))
        for tree in edits.proc_trees:
            trees.append(prepare_tree(tree, label))
    except StepError:
        for fd in mounts:
            posix.close(fd)
        for prepared in trees:
            prepared.close()
        return None
    return Opened(tuple(mounts), tuple(trees))


def _sources(edits: ContainerEdits) -> dict[tuple[str, int, int], Callable[[], int]]:
    """What opens the source of each ``("mount", n, 0)``, ``("node", n, 0)`` and ``("bind", n, m)``, bind *m* of tree *n*."""

    def opener(open_source: Callable[[Any], int], edit: object) -> Callable[[], int]:
        return lambda: open_source(edit)

    return {
        **{("mount", n, 0): opener(_tree, mount) for n, mount in enumerate(edits.mounts)},
        **{("node", n, 0): opener(_open_host_node, node) for n, node in enumerate(edits.device_nodes)},
        **{("bind", n, m): opener(bind_source, b) for n, t in enumerate(edits.proc_trees) for m, b in enumerate(t.binds)},
    }


def _open_host_node(node: DeviceNode) -> int:
    """A detached mount of the host's *node*; -1 where the host has none: it is lent by lend_nodes, or the init tells."""
    path = node.host_path or node.path
    try:
        return open_node(path)
    except FileNotFoundError:
        return -1
    except OSError as e:
        raise step_error(_BIND_NODE, path, e) from None


def source_openers(edits: ContainerEdits) -> tuple[Callable[[], int], ...]:
    """What opens the sources of *edits* for an init in a user namespace, whose root may be unable to reach them: each gives
    a detached mount, or -1 for what the host does not have, and raises :class:`StepError`.
    """
    return tuple(_sources(edits).values())


def opened_sources(edits: ContainerEdits, trees: dict[int, int], first: int) -> Opened:
    """What :func:`source_openers` have opened, found in *trees* by their numbers, of which *first* is the first one; those
    are taken out.
    """
    opened = {key: trees.pop(number, -1) for number, key in enumerate(_sources(edits), first)}
    return Opened(
        mounts=tuple([opened["mount", n, 0] for n in range(len(edits.mounts))]),
        nodes=tuple([opened["node", n, 0] for n in range(len(edits.device_nodes))]),
        binds=tuple([tuple([opened["bind", n, m] for m in range(len(t.binds))]) for n, t in enumerate(edits.proc_trees)]),
    )


def apply_edits(edits: ContainerEdits, target: Target, opened: Opened | None = None) -> None:
    """Apply the device nodes, mounts, links, proc trees, modes and what the loaders need of *edits* to *target*.

    Nodes, and links below /dev, are made only in directories of the container (:mod:`gpurun.ns.outside`).  Environment,
    groups, device rules and hooks are the engine's work.  In a user namespace device nodes are bound from the host, because
    mknod(2) is not allowed there.  What is *opened* already is ours to close.
    Raises :class:`GpurunError` that names the step and its path.
    """
    umask = posix.umask(0)
    try:
        nodes = opened.nodes if opened is not None and opened.nodes else [-1] * len(edits.device_nodes)
        for node, source in zip(edits.device_nodes, nodes, strict=True):
            _device_node(target, node, source)
        sources: set[tuple[int, int]] = set()
        for first in range(0, len(edits.mounts), _AT_ONCE):
            ready = list(opened.mounts[first : first + _AT_ONCE]) if opened is not None else []
            sources |= _mount_all(target, edits.mounts[first : first + _AT_ONCE], ready)
        links = [link for link in edits.links if not (link.path.startswith("/dev/") and _is_outside(target, link.path))]
        target.places.make_all([(link.path, link.target) for link in links])
        for link in links:
            target.with_room(link.path, lambda link=link: _link(target, link, sources))  # type: ignore[misc]
        target.places.renew()
        for number, tree in enumerate(edits.proc_trees):
            prepared = opened.trees[number] if opened is not None and opened.trees else None
            mask_tree(target, tree, prepared, opened.binds[number] if opened is not None and opened.binds else ())
        for chmod in edits.chmods:
            _chmod(target, chmod)
        if edits.ldcache or edits.image_files or edits.forward_compat:
            tell_loaders(target, edits.ldcache, edits.image_files, edits.forward_compat)
    finally:
        posix.umask(umask)
        target.finish()


def _split(path: str) -> tuple[str, str]:
    directory, _, name = path.rpartition("/")
    if name in ("", ".", ".."):
        raise StepError("create", path, EINVAL)
    return directory or "/", name


def _device_node(target: Target, node: DeviceNode, source: int) -> None:
    """Make the node by its numbers, or bind the host's; what the engine has put there already (--privileged) stays.

    *source* is the host's, opened already, and is closed; -1 for none.
    """
    step = node_step(node)
    host_path = node.host_path or node.path
    with Fd(source):
        outside = _is_outside(target, node.path)
        if (outside or target.in_user_namespace) and is_there(target.root_fd, step):
            return
        if outside:
            raise refuse_outside(node.path)
        if target.in_user_namespace:
            try:
                if source < 0:
                    posix.lstat(host_path)
            except OSError as e:
                # Neither mknod(2) nor the host's own: nvidia-modprobe, or any first use of the driver, makes it.
                raise step_error(_BIND_NODE, host_path, e) from None
        target.with_room(node.path, lambda: make_device(target.places, step, host_path, target.in_user_namespace, source))


def _is_outside(target: Target, path: str) -> bool:
    try:
        return target.is_outside(path)
    except OSError as e:
        raise step_error("create", path, e) from None


def _mount_all(target: Target, mounts: tuple[EditMount, ...], trees: list[int]) -> set[tuple[int, int]]:
    """Bind files and directories of the host, of which *trees* are open already; returns (device, inode) of each.

    All of them are found before the first mount point is made, and the mount points are noted together.
    """
    try:
        for number, mount in enumerate(mounts):
            if number == len(trees):
                trees.append(-1)
            if trees[number] < 0:
                trees[number] = _tree(mount)
        target.places.make_all([(mount.container_path, None) for mount in mounts if mount.kind != "dir"])
        return {_mount(target, mount, tree) for mount, tree in zip(mounts, trees, strict=True)}
    finally:
        for tree in trees:
            if tree >= 0:
                posix.close(tree)


def _tree(mount: EditMount) -> int:
    """A detached, private copy of what *mount* brings, with its options."""
    options = parse_options(mount.options)
    try:
        # A file has no mounts below it.
        return private_copy(
            AT_FDCWD, mount.host_path, options.attr_set, options.attr_clr, options.recursive and mount.kind == "dir"
        )
    except OSError as e:
        raise step_error("mount", mount.host_path, e) from None


def _mount(target: Target, mount: EditMount, tree: int) -> tuple[int, int]:
    is_directory = mount.kind == "dir"
    stat = posix.fstat(tree)
    # A link is refused: discovery has resolved them all.
    if S_ISLNK(stat.st_mode) or S_ISDIR(stat.st_mode) != is_directory:
        raise StepError("mount", mount.host_path, EINVAL)
    try:
        _attach(target, mount.container_path, tree, is_directory)
        found = target.places.look(mount.container_path)
    except OSError as e:
        raise step_error("mount", mount.container_path, e) from None
    # A last look: what a process in the container finds at the path is what was mounted.
    if (found.st_dev, found.st_ino) != (stat.st_dev, stat.st_ino):
        raise StepError("mount", mount.container_path, EEXIST)
    return stat.st_dev, stat.st_ino


def _attach(target: Target, path: str, tree: int, is_directory: bool) -> None:
    if is_directory:
        target.places.renew()  # it may cover one of them
        place = target.with_room(path, lambda: target.places.point(path, True))
    else:
        place = target.with_room(path, lambda: target.places.file(path))
    with Fd(place):
        attach(tree, place)


def _link(target: Target, link: Link, sources: set[tuple[int, int]]) -> None:
    """A symbolic link; where the image has something else of that name, the library it should lead to is bound over it,
    or the link takes its place (see :class:`Target`).
    """
    step = "make the link"
    directory, name = _split(link.path)
    try:
        parent, parent_path = target.places.directory(directory)
        if _says(parent, name, link.target):
            return
        if target.replaces_links:
            _put_in_place(parent, name, link.target)
            return
        target.journal.note("link", join(parent_path, name), link.target.encode("utf-8", "surrogateescape"))
        try:
            posix.symlink(link.target, name, dir_fd=parent)
        except OSError as e:
            target.journal.cancel()
            if e.errno != EEXIST:
                raise
            if not _says(parent, name, link.target):
                _bind_over(target, link, directory, sources)
    except OSError as e:
        raise step_error(step, link.path, e) from None


def _put_in_place(parent: int, name: str, text: str) -> None:
    """Make the link *name* by rename(2), so that whoever shares the rootfs finds the old or the new one.

    What another runtime has mounted at that name stays: it is what the container is to have there.
    """
    temporary = f".gpurun.{posix.urandom(8).hex()}"
    posix.symlink(text, temporary, dir_fd=parent)
    try:
        posix.rename(temporary, name, src_dir_fd=parent, dst_dir_fd=parent)
    except OSError as e:
        posix.unlink(temporary, dir_fd=parent)
        if e.errno != EBUSY:
            raise


def _says(parent: int, name: str, target: str) -> bool:
    try:
        return posix.readlink(name, dir_fd=parent) == target
    except OSError:
        return False  # absent, or not a link


def _bind_over(target: Target, link: Link, directory: str, sources: set[tuple[int, int]]) -> None:
    """An image that ships its own (stale) library of that name keeps its file; the container sees the driver's.

    The source is looked up in the rootfs, so it is used only when it is one of the host files mounted a moment ago;
    for an optional link, what another runtime has mounted is as good, and where there is nothing the image keeps its file.
    """
    try:
        text = link.target if link.target.startswith("/") else f"{directory}/{link.target}"
        source = open_in_root(target.root_fd, text)
    except OSError as e:
        if link.optional and e.errno in (ENOENT, ENOTDIR, ELOOP):
            return
        raise
    with Fd(source):
        stat = posix.fstat(source)
        if (stat.st_dev, stat.st_ino) not in sources and not (link.optional and _is_mount(target.root_fd, source)):
            if link.optional:
                return
            raise StepError("make the link", link.path, EEXIST)
        with Fd(target.places.point(link.path, False)) as place:
            there = posix.fstat(place)
            if (there.st_dev, there.st_ino) != (stat.st_dev, stat.st_ino):
                attributes = lm.MOUNT_ATTR_RDONLY | lm.MOUNT_ATTR_NOSUID | lm.MOUNT_ATTR_NODEV
                with Fd(private_copy(source, "", attributes, recursive=False)) as tree:
                    attach(tree, place)


def _is_mount(root_fd: int, fd: int) -> bool:
    """Whether what *fd* refers to is mounted where it is: a runtime has put it there, no image can."""
    directory = path_in_root(root_fd, fd, "").rpartition("/")[0]
    with Fd(open_in_root(root_fd, directory or "/")) as parent:
        return mount_id(fd) != mount_id(parent)


def _chmod(target: Target, chmod: Chmod) -> None:
    """The mode of a directory on the container's own /dev; what is the image's, a volume's or the host's keeps its mode."""
    if not chmod.path.startswith("/dev/"):
        return
    try:
        with Fd(openat2(target.root_fd, "dev", O_PATH | O_DIRECTORY, RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS)) as dev:
            if fstatfs_type(dev) != TMPFS_MAGIC or posix.fstat(dev).st_dev == posix.stat("/dev").st_dev:
                return  # not a tmpfs of this container (a devtmpfs looks like one, but is the host's)
            inside = RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS | RESOLVE_NO_XDEV
            fd = openat2(dev, chmod.path.removeprefix("/dev/"), O_PATH | O_DIRECTORY, inside)
    except OSError as e:
        if e.errno in (ENOENT, ENOTDIR, ELOOP, EXDEV):
            return
        raise step_error("change the mode of", chmod.path, e) from None
    with Fd(fd):
        posix.chmod(f"/proc/self/fd/{fd}", chmod.mode & 0o7777)
