"""Device nodes and the links of /dev, made in a rootfs by descriptor (config-linux.md "Devices", "Default Devices")."""

from __future__ import annotations

import posix
from _stat import S_IFBLK, S_IFCHR, S_IFIFO, S_IFMT, S_ISLNK
from errno import EEXIST, EPERM

from gpurun.errors import GpurunError, Step, StepError
from gpurun.linux import mount as lm
from gpurun.linux.files import O_CLOEXEC, Fd
from gpurun.linux.fs import AT_FDCWD, O_NOFOLLOW, O_PATH
from gpurun.ns.directory_cache import DirectoryCache
from gpurun.ns.mount import attach, tmpfs
from gpurun.ns.mount_plan import DeviceStep
from gpurun.ns.path import UNUSABLE, make_dirs, make_target, open_in_root

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

_KINDS = {"c": S_IFCHR, "b": S_IFBLK, "p": S_IFIFO}
_DEV_LINKS = (
    ("fd", "/proc/self/fd"),
    ("stdin", "/proc/self/fd/0"),
    ("stdout", "/proc/self/fd/1"),
    ("stderr", "/proc/self/fd/2"),
)


def lend_nodes(
    steps: tuple[DeviceStep | None, ...], host_ids: Callable[[int, int], tuple[int, int]], label: str = ""
) -> int:
    """Make the nodes of *steps* on a detached tmpfs of the host's, named by their index, for an init that may make none.
    ``None`` stands for a node that is not made.

    mknod(2) is refused in a user namespace, and nodes on a file system of its own would not work.  *host_ids* maps the
    container's owner and group to the host's, *label* is their SELinux context.  Returns the tmpfs' descriptor, -1 where we
    may make none either.  Raises :class:`StepError` when a node cannot be made.
    """
    try:
        fd = tmpfs(0o755, "64k", lm.MOUNT_ATTR_NOSUID | lm.MOUNT_ATTR_NOEXEC, label)
    except PermissionError:  # we are root of a user namespace, in a mount namespace that is not its own
        return -1
    umask = posix.umask(0)
    try:
        for index, step in enumerate(steps):
            if step is None:
                continue
            path, name = step.path, str(index)
            try:
                posix.mknod(name, _KINDS[step.type] | step.mode, posix.makedev(step.major, step.minor), dir_fd=fd)
            except PermissionError:
                posix.close(fd)
                return -1
            uid, gid = host_ids(step.uid, step.gid)
            posix.chown(name, uid, gid, dir_fd=fd, follow_symlinks=False)
    except OSError as e:
        posix.close(fd)
        raise StepError("make the device node", path, e.errno) from None
    finally:
        posix.umask(umask)
    return fd


def take_nodes(
    root_fd: int, steps: tuple[DeviceStep, ...], nodes_fd: int, leave_out: Callable[[DeviceStep], bool] | None = None
) -> None:
    """Bind the nodes that :func:`lend_nodes` made at their places, where it made them, but for those to *leave_out*.
    Closes *nodes_fd*.
    """
    _refuse_dev_link(root_fd)
    for step, tree in zip(steps, open_lent(nodes_fd, len(steps)), strict=True):
        if tree < 0:
            continue
        with Fd(tree), Step("make the device node", step.path):
            if leave_out is not None and leave_out(step):
                continue
            target = make_target(root_fd, step.path, directory=False)
            attach(tree, target)
            posix.close(target)


def open_lent(nodes_fd: int, count: int) -> tuple[int, ...]:
    """A detached mount of each of the *count* nodes of :func:`lend_nodes`, -1 for one it did not make.  Closes *nodes_fd*.

    The tmpfs is attached over /dev of the host's tree as this mount namespace has it, because a detached mount cannot be
    copied (before Linux 6.15), and taken away again: this mount namespace must be one that hands nothing on to the host's.
    """
    with Fd(posix.open("/dev", O_PATH | O_CLOEXEC)) as place:
        attach(nodes_fd, place)
    opened = []
    with Fd(nodes_fd):
        for index in range(count):
            try:
                tree = lm.open_tree(nodes_fd, str(index), lm.OPEN_TREE_CLONE)
            except FileNotFoundError:
                tree = -1
            else:
                lm.mount_setattr(tree, propagation=lm.MS_PRIVATE)
            opened.append(tree)
    lm.umount2("/dev", lm.MNT_DETACH)
    return tuple(opened)


def _refuse_dev_link(root_fd: int) -> None:
    """An image whose /dev is a link wants its nodes elsewhere: no honest one does (CVE-2026-41579)."""
    try:
        found = posix.stat("dev", dir_fd=root_fd, follow_symlinks=False)
    except FileNotFoundError:
        return
    if S_ISLNK(found.st_mode):
        raise GpurunError("/dev of the rootfs is a symbolic link: device nodes are made in a directory only")


def make_devices(root_fd: int, steps: tuple[DeviceStep, ...], user_namespace: bool) -> None:
    """Make the device nodes; where mknod(2) is not allowed (user namespaces) the host's nodes are bound instead."""
    _refuse_dev_link(root_fd)
    places = DirectoryCache(root_fd)
    try:
        for step in steps:
            make_device(places, step, step.path, user_namespace)
    finally:
        places.close()


def is_there(root_fd: int, step: DeviceStep) -> bool:
    """Whether the rootfs has exactly the device of *step* at its path.

    Raises :class:`StepError` when it cannot be looked up.
    """
    try:
        fd = open_in_root(root_fd, step.path)
    except OSError as e:
        if e.errno not in UNUSABLE:
            raise StepError("look in the rootfs for", step.path, e.errno) from None
        return False
    with Fd(fd):
        found = posix.fstat(fd)
    return S_IFMT(found.st_mode) == _KINDS[step.type] and found.st_rdev == posix.makedev(step.major, step.minor)


def make_device(places: DirectoryCache, step: DeviceStep, host_path: str, bind: bool, source: int = -1) -> None:
    """One device node in the rootfs; *host_path* is bound in its place with *bind* or where mknod(2) gives EPERM.

    *source* is the detached mount of it where another process has opened it; it is not closed.
    """
    kind = _KINDS[step.type]
    with Step("make the device node", step.path):
        if bind or not _make_node(places, kind, step):
            _bind_node(places, step, host_path, kind, source)


def _make_node(places: DirectoryCache, kind: int, step: DeviceStep) -> bool:
    """Make the node, or find it there; False where mknod(2) is not permitted: no CAP_MKNOD over this file system."""
    device = posix.makedev(step.major, step.minor)
    parent, name = places.note("file", step.path)
    try:
        posix.mknod(name, kind | step.mode, device, dir_fd=parent)
    except OSError as e:
        places.cancel()
        if e.errno == EPERM:
            return False
        if e.errno != EEXIST:
            raise
        fd = posix.open(name, O_PATH | O_NOFOLLOW | O_CLOEXEC, dir_fd=parent)
        found = posix.fstat(fd)
        posix.close(fd)
        if S_IFMT(found.st_mode) != kind or (kind != S_IFIFO and found.st_rdev != device):
            raise GpurunError(f'cannot make the device node "{step.path}": something else has that name') from None
        return True
    try:
        posix.chown(name, step.uid, step.gid, dir_fd=parent, follow_symlinks=False)
    except OSError:
        posix.unlink(name, dir_fd=parent)
        raise
    return True


def open_node(host_path: str) -> int:
    """A detached mount of a node of the host's; raises OSError."""
    return lm.open_tree(AT_FDCWD, host_path, lm.OPEN_TREE_CLONE)


def _bind_node(places: DirectoryCache, step: DeviceStep, host_path: str, kind: int, source: int) -> None:
    with Fd(open_node(host_path) if source < 0 else posix.dup(source)) as tree:
        found = posix.fstat(tree)
        if S_IFMT(found.st_mode) != kind or (kind != S_IFIFO and found.st_rdev != posix.makedev(step.major, step.minor)):
            raise GpurunError(f'"{host_path}" of the host is not the device {step.type} {step.major}:{step.minor}')
        lm.mount_setattr(tree, propagation=lm.MS_PRIVATE)
        target = places.file(step.path)
        attach(tree, target)
        posix.close(target)


def make_dev_links(root_fd: int) -> None:
    """The links of config-linux.md "Default Devices" / "Dev symbolic links"; what the image has stays."""
    dev = make_dirs(root_fd, "/dev")
    links = list(_DEV_LINKS)
    try:
        posix.stat("/proc/kcore")
        links.append(("core", "/proc/kcore"))
    except FileNotFoundError:
        pass  # a kernel without it
    with Fd(dev), Step("make the links in", "/dev"):
        for name, text in links:
            try:
                posix.symlink(text, name, dir_fd=dev)
            except FileExistsError:
                pass  # the image's own
        try:
            posix.unlink("ptmx", dir_fd=dev)
        except FileNotFoundError:
            pass  # the usual case: /dev is a fresh tmpfs
        posix.symlink("pts/ptmx", "ptmx", dir_fd=dev)
