"""Take out of a container that runs what gpurun has put in: device nodes, entries of /proc/driver/nvidia, links, mounts."""

from __future__ import annotations

import posix
from _stat import S_ISCHR, S_ISDIR, S_ISLNK, S_ISREG
from errno import ENOENT, ENOTDIR

from gpurun.errors import StepError
from gpurun.hook.device_steps import node_step
from gpurun.linux import mount as lm
from gpurun.linux.files import O_CLOEXEC
from gpurun.linux.fs import O_DIRECTORY, O_PATH, TMPFS_MAGIC, fstatfs_type, mount_id
from gpurun.ns.devices import is_there
from gpurun.ns.outside import is_outside
from gpurun.ns.path import UNUSABLE, open_in_root

TYPE_CHECKING = False
if TYPE_CHECKING:
    from gpurun.cdi.edits import DeviceNode
    from gpurun.ns.outside import Foreign


PROC_DRIVER = "/proc/driver/nvidia"
BY_PATH = "/dev/dri/by-path"


def unmount_if_there(root_fd: int, path: str) -> None:
    """Unmount *path* of the container, if something is mounted there."""
    try:
        fd = open_in_root(root_fd, path)
    except OSError as e:
        if e.errno in (ENOENT, ENOTDIR):
            return  # it went with one that it was on
        raise
    try:
        parent = open_in_root(root_fd, path.rpartition("/")[0] or "/", O_PATH | O_DIRECTORY)
        if mount_id(fd) != mount_id(parent):
            lm.umount2(f"/proc/self/fd/{fd}", lm.MNT_DETACH)
        posix.close(parent)
    finally:
        posix.close(fd)


def remove_names(root_fd: int, names: tuple[str, ...]) -> None:
    """Remove device nodes, links and empty files in the container's own /dev; of a /dev that is the host's, nothing."""
    host = posix.stat("/dev").st_dev
    for path in names:
        directory, _, name = path.rpartition("/")
        try:
            fd = open_in_root(root_fd, directory, O_PATH | O_DIRECTORY)
        except OSError as e:
            if e.errno in (ENOENT, ENOTDIR):
                continue
            raise
        try:
            if fstatfs_type(fd) == TMPFS_MAGIC and posix.fstat(fd).st_dev != host:
                found = posix.stat(name, dir_fd=fd, follow_symlinks=False)
                if S_ISCHR(found.st_mode) or S_ISLNK(found.st_mode) or found.st_size == 0:
                    posix.unlink(name, dir_fd=fd)
        except FileNotFoundError:
            pass
        finally:
            posix.close(fd)


def take_out(root_fd: int, nodes: tuple[DeviceNode, ...], entries: tuple[str, ...], is_foreign: Foreign) -> None:
    """Take device nodes and entries away; what is not there, or is something else by now, stays as it is, and so does a node
    in a directory that is the host's.  Raises :class:`StepError`."""
    for entry in entries:
        _unmount(root_fd, f"{PROC_DRIVER}/{entry}")
    for node in nodes:
        if not is_there(root_fd, node_step(node)):
            continue
        if is_outside(root_fd, node.path, is_foreign):
            continue
        _unmount(root_fd, node.path)
        directory, _, name = node.path.rpartition("/")
        fd = open_in_root(root_fd, directory or "/", O_PATH | O_DIRECTORY)
        try:
            found = posix.stat(name, dir_fd=fd, follow_symlinks=False)
            is_ours = S_ISCHR(found.st_mode) and found.st_rdev == posix.makedev(node.major, node.minor)
            if is_ours or (S_ISREG(found.st_mode) and found.st_size == 0):
                posix.unlink(name, dir_fd=fd)
        except FileNotFoundError:
            pass
        except OSError as e:
            raise StepError("take away the device node", node.path, e.errno) from None
        finally:
            posix.close(fd)
        if directory == "/dev/dri":
            _take_links(root_fd, f"../{name}", is_foreign)


def _take_links(root_fd: int, text: str, is_foreign: Foreign) -> None:
    """Take away udev's links with this *text*: drivers look for GPUs by them, and fail at one that leads nowhere."""
    try:
        fd = open_in_root(root_fd, BY_PATH, posix.O_RDONLY | O_DIRECTORY | O_CLOEXEC)
    except OSError as e:
        if e.errno in UNUSABLE:  # what the container makes of its tree keeps no GPU from being taken away
            return
        raise StepError("take away the links to a device node in", BY_PATH, e.errno) from None
    try:
        for name in posix.listdir(fd):
            found = posix.stat(name, dir_fd=fd, follow_symlinks=False)
            if not S_ISLNK(found.st_mode) or posix.readlink(name, dir_fd=fd) != text:
                continue
            if not is_outside(root_fd, f"{BY_PATH}/{name}", is_foreign):
                posix.unlink(name, dir_fd=fd)
    except FileNotFoundError:
        pass
    except OSError as e:
        raise StepError("take away the links to a device node in", BY_PATH, e.errno) from None
    finally:
        posix.close(fd)


def _unmount(root_fd: int, path: str) -> None:
    """Take away the mount at *path* in the container, if something is mounted there; what it was mounted on goes too."""
    try:
        parent = open_in_root(root_fd, path.rpartition("/")[0] or "/", O_PATH | O_DIRECTORY)
    except OSError as e:
        if e.errno in UNUSABLE:  # what the container makes of its tree keeps no GPU from being taken away
            return
        raise StepError("take away", path, e.errno) from None
    name = path.rpartition("/")[2]
    try:
        fd = posix.open(name, O_PATH | posix.O_NOFOLLOW | O_CLOEXEC, dir_fd=parent)
        mounted = mount_id(fd) != mount_id(parent)
        if mounted:
            lm.umount2(f"/proc/self/fd/{fd}", lm.MNT_DETACH)
        posix.close(fd)
        if (
            path.startswith(PROC_DRIVER) and fstatfs_type(parent) == TMPFS_MAGIC
        ):  # ours, and what was to be mounted on is too
            writable = lm.open_tree(parent, "", lm.OPEN_TREE_CLONE)
            lm.mount_setattr(writable, attr_clr=lm.MOUNT_ATTR_RDONLY)
            found = posix.stat(name, dir_fd=writable, follow_symlinks=False)
            (posix.rmdir if S_ISDIR(found.st_mode) else posix.unlink)(name, dir_fd=writable)
            posix.close(writable)
    except FileNotFoundError:
        pass
    except OSError as e:
        raise StepError("take away", path, e.errno) from None
    finally:
        posix.close(parent)
