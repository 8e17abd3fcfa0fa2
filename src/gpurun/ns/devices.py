"""Device nodes and the links of /dev, made in a rootfs by descriptor (config-linux.md "Devices", "Default Devices")."""

from __future__ import annotations

import posix
from errno import EEXIST

from gpurun.errors import GpurunError, StepError
from gpurun.linux import mount as lm
from gpurun.linux.files import O_CLOEXEC
from gpurun.linux.fs import AT_FDCWD, O_NOFOLLOW, O_PATH
from gpurun.ns.mount import attach, tmpfs
from gpurun.ns.path import make_dirs, make_target, open_in_root
from gpurun.ns.places import Places
from gpurun.ns.steps import DeviceStep

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

_KINDS = {"c": 0o020000, "b": 0o060000, "p": 0o010000}
_DEV_LINKS = (
    ("fd", "/proc/self/fd"),
    ("stdin", "/proc/self/fd/0"),
    ("stdout", "/proc/self/fd/1"),
    ("stderr", "/proc/self/fd/2"),
)


def lend_nodes(steps: tuple[DeviceStep | None, ...], host_ids: Callable[[int, int], tuple[int, int]]) -> int:
    """Make the nodes of *steps* on a detached tmpfs of the host's, named by their index, for an init that may make none.
    ``None`` stands for a node that is not made.

    mknod(2) is refused in a user namespace, and nodes on a file system of its own would not work.  *host_ids* maps the
    container's owner and group to the host's.  Returns the tmpfs' descriptor.
    """
    fd = tmpfs(0o755, "64k", lm.MOUNT_ATTR_NOSUID | lm.MOUNT_ATTR_NOEXEC)
    umask = posix.umask(0)
    try:
        for index, step in enumerate(steps):
            if step is None:
                continue
            path, name = step.path, str(index)
            posix.mknod(name, _KINDS[step.type] | step.mode, posix.makedev(step.major, step.minor), dir_fd=fd)
            uid, gid = host_ids(step.uid, step.gid)
            posix.chown(name, uid, gid, dir_fd=fd, follow_symlinks=False)
    except OSError as e:
        posix.close(fd)
        raise StepError("make the device node", path, e.errno) from None
    finally:
        posix.umask(umask)
    return fd


def take_nodes(root_fd: int, steps: tuple[DeviceStep, ...], nodes_fd: int) -> None:
    """Bind the nodes that :func:`lend_nodes` made at their places; those it did not make are left out.  Closes *nodes_fd*.

    The tmpfs is attached over /dev of the host's tree as this mount namespace has it, because a detached mount cannot be
    copied (before Linux 6.15), and taken away again.
    """
    _refuse_dev_link(root_fd)
    place = posix.open("/dev", O_PATH | O_CLOEXEC)
    attach(nodes_fd, place)
    posix.close(place)
    for index, step in enumerate(steps):
        try:
            try:
                tree = lm.open_tree(nodes_fd, str(index), lm.OPEN_TREE_CLONE)
            except FileNotFoundError:
                continue
            lm.mount_setattr(tree, propagation=lm.MS_PRIVATE)
            target = make_target(root_fd, step.path, directory=False)
            attach(tree, target)
            posix.close(target)
            posix.close(tree)
        except OSError as e:
            raise StepError("make the device node", step.path, e.errno) from None
    posix.close(nodes_fd)
    lm.umount2("/dev", lm.MNT_DETACH)


def _refuse_dev_link(root_fd: int) -> None:
    """An image whose /dev is a link wants its nodes elsewhere: no honest one does (CVE-2026-41579)."""
    try:
        found = posix.stat("dev", dir_fd=root_fd, follow_symlinks=False)
    except FileNotFoundError:
        return
    if found.st_mode & 0o170000 == 0o120000:
        raise GpurunError("/dev of the rootfs is a symbolic link: device nodes are made in a directory only")


def make_devices(root_fd: int, steps: tuple[DeviceStep, ...], user_namespace: bool) -> None:
    """Make the device nodes; where mknod(2) is not allowed (user namespaces) the host's nodes are bound instead."""
    _refuse_dev_link(root_fd)
    places = Places(root_fd)
    try:
        for step in steps:
            make_device(places, step, step.path, user_namespace)
    finally:
        places.close()


def is_there(root_fd: int, step: DeviceStep) -> bool:
    """Whether the rootfs has exactly the device of *step* at its path."""
    try:
        fd = open_in_root(root_fd, step.path)
    except OSError:
        return False
    try:
        found = posix.fstat(fd)
    finally:
        posix.close(fd)
    return found.st_mode & 0o170000 == _KINDS[step.type] and found.st_rdev == posix.makedev(step.major, step.minor)


def make_device(places: Places, step: DeviceStep, host_path: str, bind: bool) -> None:
    """One device node in the rootfs; *host_path* is bound in its place with *bind* or where mknod(2) gives EPERM."""
    kind = _KINDS[step.type]
    try:
        if not bind:
            try:
                _make_node(places, kind, step)
                return
            except PermissionError:
                pass  # no CAP_MKNOD over this file system: bind, as below
        _bind_node(places, step, host_path, kind)
    except OSError as e:
        raise StepError("make the device node", step.path, e.errno) from None


def _make_node(places: Places, kind: int, step: DeviceStep) -> None:
    device = posix.makedev(step.major, step.minor)
    parent, name = places.note("file", step.path)
    try:
        posix.mknod(name, kind | step.mode, device, dir_fd=parent)
    except OSError as e:
        places.cancel()
        if e.errno != EEXIST:
            raise
        fd = posix.open(name, O_PATH | O_NOFOLLOW | O_CLOEXEC, dir_fd=parent)
        found = posix.fstat(fd)
        posix.close(fd)
        if found.st_mode & 0o170000 != kind or (kind != 0o010000 and found.st_rdev != device):
            raise GpurunError(f'cannot make the device node "{step.path}": something else has that name') from None
        return
    posix.chown(name, step.uid, step.gid, dir_fd=parent, follow_symlinks=False)


def _bind_node(places: Places, step: DeviceStep, host_path: str, kind: int) -> None:
    tree = lm.open_tree(AT_FDCWD, host_path, lm.OPEN_TREE_CLONE)
    try:
        found = posix.fstat(tree)
        if found.st_mode & 0o170000 != kind or (kind != 0o010000 and found.st_rdev != posix.makedev(step.major, step.minor)):
            raise GpurunError(f'"{host_path}" of the host is not the device {step.type} {step.major}:{step.minor}')
        lm.mount_setattr(tree, propagation=lm.MS_PRIVATE)
        target = places.file(step.path)
        attach(tree, target)
        posix.close(target)
    finally:
        posix.close(tree)


def make_dev_links(root_fd: int) -> None:
    """The links of config-linux.md "Default Devices" / "Dev symbolic links"; what the image has stays."""
    dev = make_dirs(root_fd, "/dev")
    links = list(_DEV_LINKS)
    try:
        posix.stat("/proc/kcore")
        links.append(("core", "/proc/kcore"))
    except FileNotFoundError:
        pass  # a kernel without it
    try:
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
    except OSError as e:
        raise StepError("make the links in", "/dev", e.errno) from None
    finally:
        posix.close(dev)
