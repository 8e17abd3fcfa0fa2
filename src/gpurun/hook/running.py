"""Put edits into a container that runs, or take them out: in its mount namespace, after it has pivoted.

Only the container's tree can be seen there, so all that the host gives is opened before it is entered.  A child enters,
for joining is for ever; its root stays the host's, so that /proc is the host's and no path is ever the container's, whose
tree is reached only through a descriptor.  It is in no other namespace of the container's (but for its user
namespace), so no process in there sees it.

What is there already is left as it is: a change that was cut short is made again from the beginning.
"""

from __future__ import annotations

import posix
from errno import EINVAL, ENOENT, ENOTDIR, EPERM

from gpurun.cdi.edits import ContainerEdits
from gpurun.errors import GpuError, Step, StepError, oserror_text
from gpurun.hook.apply import Opened, apply_edits
from gpurun.hook.device_steps import node_step
from gpurun.hook.missing_nodes import lend_missing, missing_nodes
from gpurun.hook.private_mounts import prepare_tree
from gpurun.hook.rootfs_target import Target
from gpurun.hook.running_removal import BY_PATH, PROC_DRIVER, remove_names, take_out, unmount_if_there
from gpurun.launcher.fresh_interpreter import end_imports
from gpurun.linux import mount as lm
from gpurun.linux.files import O_CLOEXEC, Fd, mkdir_p
from gpurun.linux.fs import AT_FDCWD, O_DIRECTORY, O_PATH, TMPFS_MAGIC, fstatfs_type
from gpurun.linux.process import CLONE_NEWNS, PR_SET_DUMPABLE, prctl, unshare
from gpurun.linux.procfs import in_user_namespace
from gpurun.ns.devices import is_there, open_lent
from gpurun.ns.helper_process import join_container, run_in_child
from gpurun.ns.journal import Journal
from gpurun.ns.mount import attach, import_stand_ins, private_copy
from gpurun.ns.options import parse_options
from gpurun.ns.outside import other_than_the_containers, refuse_outside
from gpurun.ns.path import UNUSABLE, open_in_root
from gpurun.record import Record, replace

TYPE_CHECKING = False
if TYPE_CHECKING:
    from gpurun.cdi.edits import DeviceNode, ProcTree
    from gpurun.ns.outside import Foreign


class DeviceChange(Record):
    """*edits* to add, and device *nodes* and entries of /proc/driver/nvidia (*entries*, relative) to take out.

    *readonly*: the rootfs is read-only.  *again*: the driver's files that are there may be a part of them, so the loader is
    told of them once more.  *label*: the SELinux context of the file systems that are made.  For a container
    that is being restored, none of whose processes runs: *mounts* are to be unmounted first, the last one first, and *names*
    below its own /dev removed; *restoring* is the (device, inode) of its root, in which what the edits need is made
    although it is read-only already.
    """

    edits: ContainerEdits = ContainerEdits()
    nodes: tuple[DeviceNode, ...] = ()
    entries: tuple[str, ...] = ()
    readonly: bool = False
    label: str = ""
    mounts: tuple[str, ...] = ()
    names: tuple[str, ...] = ()
    restoring: tuple[int, int] = (0, 0)
    again: bool = False


class _Sources(Record):
    """Detached mounts, opened on the host: of the edits' mounts, their nodes (user namespaces; -1 for one that the host
    lacks), their trees' binds; and the file system with the nodes that the host lacks, -1 for none."""

    mounts: tuple[int, ...] = ()
    nodes: tuple[int, ...] = ()
    binds: tuple[tuple[int, ...], ...] = ()
    lent: int = -1

    @property
    def descriptors(self) -> tuple[int, ...]:
        listed = (*self.mounts, *self.nodes, *[fd for binds in self.binds for fd in binds], self.lent)
        return tuple([fd for fd in listed if fd >= 0])


def change(pid: int, wanted: DeviceChange, journal_fd: int = -1) -> None:
    """Make *wanted* true in the mount namespace of the process *pid*; *journal_fd* is the container's journal.

    Raises :class:`GpurunError`; then device nodes and entries that were added are taken out again.  What was made in the
    image is in the journal.
    """
    if posix.readlink(f"/proc/{pid}/ns/mnt") == posix.readlink("/proc/self/ns/mnt"):
        raise GpuError("the container has no mount namespace of its own: GPUs can be neither attached nor detached")
    user_fd = -1
    if posix.readlink(f"/proc/{pid}/ns/user") != posix.readlink("/proc/self/ns/user"):
        user_fd = posix.open(f"/proc/{pid}/ns/user", posix.O_RDONLY | O_CLOEXEC)
    mount_fd = posix.open(f"/proc/{pid}/ns/mnt", posix.O_RDONLY | O_CLOEXEC)
    host_fd = posix.open("/", O_PATH | O_DIRECTORY | O_CLOEXEC)
    bind_nodes = user_fd >= 0 or in_user_namespace()  # where they cannot be made
    with Fd(mount_fd), Fd(user_fd), Fd(host_fd):
        sources = _open_sources(wanted.edits, bind_nodes)
        try:
            if user_fd >= 0:
                sources = replace(sources, lent=lend_missing(pid, wanted.edits.device_nodes, wanted.label))
            is_foreign = other_than_the_containers()
            fds = (mount_fd, user_fd, host_fd, journal_fd)
            run_in_child(lambda: _as_child(fds, wanted, sources, bind_nodes, is_foreign))
        finally:
            for fd in sources.descriptors:
                posix.close(fd)


def not_there(pid: int, edits: ContainerEdits) -> tuple[tuple[DeviceNode, ...], tuple[str, ...]]:
    """The nodes of *edits*, and its entries of /proc/driver/nvidia (relative), that the container of *pid* does not have.

    Returns (nodes, entries).
    """
    listed = [bind.container_path for tree in edits.proc_trees if tree.path == PROC_DRIVER for bind in tree.binds]
    with Fd(posix.open(f"/proc/{pid}/root", O_PATH | O_DIRECTORY | O_CLOEXEC)) as root_fd:
        nodes = tuple([node for node in edits.device_nodes if not is_there(root_fd, node_step(node))])
        entries = tuple([path.removeprefix(f"{PROC_DRIVER}/") for path in listed if not _exists(root_fd, path)])
    return nodes, entries


def _exists(root_fd: int, path: str) -> bool:
    """Raises :class:`StepError` where that cannot be seen."""
    try:
        posix.close(open_in_root(root_fd, path))
    except OSError as e:
        if e.errno in (ENOENT, ENOTDIR):
            return False
        raise StepError("look for the container's", path, e.errno) from None
    return True


def _open_sources(edits: ContainerEdits, bind_nodes: bool) -> _Sources:
    """Raises :class:`StepError` for what the host does not have."""
    import_stand_ins()
    mounts: list[int] = []
    nodes: list[int] = []
    binds: list[tuple[int, ...]] = []
    try:
        for mount in edits.mounts:
            mounts.append(_copy(mount.host_path, mount.options, mount.kind == "dir"))
        for node, missing in zip(edits.device_nodes, missing_nodes(edits.device_nodes), strict=True) if bind_nodes else ():
            nodes.append(-1 if missing else _copy(node.host_path or node.path, (), False))
        for tree in edits.proc_trees:
            binds.append(tuple([_copy(bind.host_path, bind.options, bind.kind == "dir") for bind in tree.binds]))
    except StepError:
        for fd in _Sources(tuple(mounts), tuple(nodes), tuple(binds)).descriptors:
            posix.close(fd)
        raise
    return _Sources(tuple(mounts), tuple(nodes), tuple(binds))


def _copy(path: str, words: tuple[str, ...], recursive: bool) -> int:
    options = parse_options(words)
    try:
        return private_copy(AT_FDCWD, path, options.attr_set, options.attr_clr, recursive)
    except OSError as e:
        raise StepError("mount", path, e.errno or EINVAL) from None


def _as_child(
    fds: tuple[int, int, int, int], wanted: DeviceChange, sources: _Sources, bind_nodes: bool, is_foreign: Foreign
) -> None:
    """In the container's mount namespace from here on: nothing is imported any more, and no program is run."""
    mount_fd, user_fd, host_fd, journal_fd = fds
    keep_namespace = None
    if lm.is_older_needed():
        from gpurun.linux import older_mounts

        keep_namespace = older_mounts.keep_namespace
        older_mounts.root_namespace = posix.open("/proc/self/ns/mnt", posix.O_RDONLY | O_CLOEXEC)
    end_imports()
    prctl(PR_SET_DUMPABLE, 0)
    try:
        if sources.lent >= 0:
            sources = _with_lent(sources)
        join_container(mount_fd, user_fd, keep_namespace)
        root_fd = posix.open("/", O_PATH | O_DIRECTORY | O_CLOEXEC)
        posix.fchdir(host_fd)
        posix.chroot(".")
        if wanted.restoring != (0, 0):
            found = posix.fstat(root_fd)
            if (found.st_dev, found.st_ino) != wanted.restoring:
                raise GpuError("the root of the restored container is not its rootfs")
        for path in reversed(wanted.mounts):
            unmount_if_there(root_fd, path)
        remove_names(root_fd, wanted.names)
        take_out(root_fd, wanted.nodes, wanted.entries, is_foreign)
        reopened = wanted.restoring != (0, 0) and wanted.readonly and _set_writable(root_fd)
        journal = Journal(root_fd, journal_fd)
        new = [node for node in wanted.edits.device_nodes if not is_there(root_fd, node_step(node))]
        try:
            target = Target(root_fd, journal, bind_nodes, wanted.readonly, label=wanted.label, is_foreign=is_foreign)
            _put_in(target, wanted, sources)
        except BaseException:
            entries = [b.container_path for tree in wanted.edits.proc_trees for b in tree.binds if tree.path == PROC_DRIVER]
            take_out(root_fd, tuple(new), tuple([path.removeprefix(f"{PROC_DRIVER}/") for path in entries]), is_foreign)
            raise
        finally:
            journal.close()
            if reopened:
                lm.mount_setattr(root_fd, lm.MOUNT_ATTR_RDONLY)
    except OSError as e:
        raise GpuError(f"change the container's devices: {oserror_text(e)}") from None


def _with_lent(sources: _Sources) -> _Sources:
    """*sources* with the nodes that were lent, opened in a mount namespace from which the host's sees nothing."""
    unshare(CLONE_NEWNS)
    with Step("cut the mounts off the host's,", "/"):
        lm.mount("", "/", "", lm.MS_PRIVATE | lm.MS_REC)
    lent = open_lent(sources.lent, len(sources.nodes))
    nodes = tuple([own if own >= 0 else made for own, made in zip(sources.nodes, lent, strict=True)])
    return replace(sources, nodes=nodes, lent=-1)


def _set_writable(root_fd: int) -> bool:
    """Make the mount of the root writable for now; False where the kernel has locked it (mount_namespaces(7))."""
    try:
        lm.mount_setattr(root_fd, attr_clr=lm.MOUNT_ATTR_RDONLY)
    except OSError as e:
        if e.errno != EPERM:
            raise
        return False
    return True


def _put_in(target: Target, wanted: DeviceChange, sources: _Sources) -> None:
    edits, root_fd, user_namespace = wanted.edits, target.root_fd, target.in_user_namespace
    for node, source in zip(edits.device_nodes if user_namespace else (), sources.nodes, strict=False):
        if not is_there(root_fd, node_step(node)):
            if target.is_outside(node.path):
                raise refuse_outside(node.path)
            if source < 0:
                raise StepError("bind the host's device node", node.host_path or node.path, ENOENT)
            place = target.with_room(node.path, lambda node=node: target.places.file(node.path))  # type: ignore[misc]
            attach(source, place)
            posix.close(place)
    mounts = [
        (m, fd) for m, fd in zip(edits.mounts, sources.mounts, strict=True) if not _shows(root_fd, m.container_path, fd)
    ]
    trees = []
    for tree, binds in zip(edits.proc_trees, sources.binds, strict=True):
        if not _add_entries(root_fd, tree, binds):
            trees.append(tree)
    prepared = tuple([prepare_tree(replace(tree, binds=()), wanted.label) for tree in trees])
    edits = replace(
        edits,
        device_nodes=() if user_namespace else edits.device_nodes,
        mounts=tuple([m for m, _ in mounts]),
        proc_trees=tuple([replace(tree, binds=()) for tree in trees]),
    )
    if (
        not mounts and wanted.restoring == (0, 0) and not wanted.again
    ):  # the driver's files are there, and the loader knows them
        links = tuple([link for link in edits.links if link.path.startswith(f"{BY_PATH}/")])
        edits = replace(edits, links=links, ldcache=(), image_files=(), forward_compat=None)
    apply_edits(edits, target, Opened(tuple([fd for _, fd in mounts]), prepared))
    for tree, binds in zip(wanted.edits.proc_trees, sources.binds, strict=True):
        if tree in trees:
            _add_entries(root_fd, tree, binds)


def _shows(root_fd: int, path: str, source: int) -> bool:
    """Whether a process in the container finds at *path* the very file that *source* is."""
    try:
        fd = open_in_root(root_fd, path)
    except OSError as e:
        if e.errno in UNUSABLE:
            return False
        raise StepError("look for the container's", path, e.errno) from None
    found, wanted = posix.fstat(fd), posix.fstat(source)
    posix.close(fd)
    return (found.st_dev, found.st_ino) == (wanted.st_dev, wanted.st_ino)


def _add_entries(root_fd: int, tree: ProcTree, sources: tuple[int, ...]) -> bool:
    """Bind what *tree* lets through in the tmpfs that is there already; False where there is none of ours.

    The mount in the container is read-only; a copy of it that is not lets names be made.
    """
    try:
        fd = open_in_root(root_fd, tree.path, O_PATH | O_DIRECTORY)
    except OSError as e:
        if e.errno in (ENOENT, ENOTDIR):
            return False
        raise
    try:
        if fstatfs_type(fd) != TMPFS_MAGIC:
            return False
        writable = lm.open_tree(fd, "", lm.OPEN_TREE_CLONE)
        try:
            lm.mount_setattr(writable, attr_clr=lm.MOUNT_ATTR_RDONLY)
            for bind, source in zip(tree.binds, sources, strict=True):
                name = bind.container_path.removeprefix(tree.path).lstrip("/")
                if _shows(root_fd, bind.container_path, source):
                    continue
                _make(writable, name, bind.kind == "dir")
                place = open_in_root(fd, name)
                attach(source, place)
                posix.close(place)
        finally:
            posix.close(writable)
    finally:
        posix.close(fd)
    return True


def _make(directory: int, name: str, is_directory: bool) -> None:
    """The file or directory *name* (relative) with those above it, on a tmpfs of ours."""
    mkdir_p(name if is_directory else name.rpartition("/")[0], 0o555, directory)
    if not is_directory:
        try:
            posix.mknod(name, 0o100444, dir_fd=directory)
        except FileExistsError:
            pass
