"""The mount API by descriptor (open_tree(2), fsopen(2), move_mount(2), mount_setattr(2)) and what remains of mount(2)."""

from __future__ import annotations

from _struct import pack
from errno import ENOSYS, EPERM

from gpurun.linux.fs import AT_EMPTY_PATH, AT_FDCWD, AT_SYMLINK_NOFOLLOW
from gpurun.linux.libc import NR, cstring, is_refused, syscall

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

# mount(2) flags
MS_RDONLY = 1
MS_NOSUID = 2
MS_NODEV = 4
MS_NOEXEC = 8
MS_SYNCHRONOUS = 16
MS_MANDLOCK = 64
MS_DIRSYNC = 128
MS_REMOUNT = 32
MS_NOSYMFOLLOW = 256
MS_NOATIME = 1024
MS_NODIRATIME = 2048
MS_BIND = 4096
MS_MOVE = 8192
MS_REC = 16384
MS_SILENT = 32768
MS_UNBINDABLE = 1 << 17
MS_PRIVATE = 1 << 18
MS_SLAVE = 1 << 19
MS_SHARED = 1 << 20
MS_RELATIME = 1 << 21
MS_I_VERSION = 1 << 23
MS_STRICTATIME = 1 << 24
MS_LAZYTIME = 1 << 25
MNT_DETACH = 2

# mount_setattr(2)
MOUNT_ATTR_RDONLY = 0x1
MOUNT_ATTR_NOSUID = 0x2
MOUNT_ATTR_NODEV = 0x4
MOUNT_ATTR_NOEXEC = 0x8
MOUNT_ATTR__ATIME = 0x70
MOUNT_ATTR_RELATIME = 0x00
MOUNT_ATTR_NOATIME = 0x10
MOUNT_ATTR_STRICTATIME = 0x20
MOUNT_ATTR_NODIRATIME = 0x80
MOUNT_ATTR_IDMAP = 0x100000
MOUNT_ATTR_NOSYMFOLLOW = 0x200000

AT_RECURSIVE = 0x8000
OPEN_TREE_CLONE = 1
OPEN_TREE_CLOEXEC = 0o2000000
MOVE_MOUNT_F_EMPTY_PATH = 0x04
MOVE_MOUNT_T_EMPTY_PATH = 0x40
FSOPEN_CLOEXEC = 1
FSMOUNT_CLOEXEC = 1
FSCONFIG_SET_FLAG = 0
FSCONFIG_SET_STRING = 1
FSCONFIG_CMD_CREATE = 6
FSCONFIG_CMD_RECONFIGURE = 7
FSPICK_CLOEXEC = 0x01
FSPICK_EMPTY_PATH = 0x08


def open_tree(dir_fd: int, path: str, flags: int) -> int:
    """open_tree(2): a descriptor of the mount tree at *path* (with OPEN_TREE_CLONE: of a detached copy of it)."""
    if not path:
        flags |= AT_EMPTY_PATH
    return syscall(NR["open_tree"], dir_fd, cstring(path), flags | OPEN_TREE_CLOEXEC)


def move_mount(mount_fd: int, target_fd: int) -> None:
    """move_mount(2): attach the tree *mount_fd* on the object that *target_fd* refers to; no path is resolved."""
    flags = MOVE_MOUNT_F_EMPTY_PATH | MOVE_MOUNT_T_EMPTY_PATH
    syscall(NR["move_mount"], mount_fd, b"\0", target_fd, b"\0", flags)


#: What stands in for mount_setattr(2); :mod:`gpurun.linux.older_mounts` puts itself here when it is imported.
older_setattr: Callable[[int, int, int, int, bool], None] | None = None


def mount_setattr(
    fd: int, attr_set: int = 0, attr_clr: int = 0, propagation: int = 0, recursive: bool = False, userns_fd: int = 0
) -> None:
    """mount_setattr(2) on the mount that *fd* refers to, and with *recursive* on all mounts below it.

    Where a filter refuses it, :data:`older_setattr` does it.
    """
    attr = pack("QQQQ", attr_set, attr_clr, propagation, userns_fd)
    flags = AT_EMPTY_PATH | (AT_RECURSIVE if recursive else 0)
    try:
        syscall(NR["mount_setattr"], fd, b"\0", flags, attr, len(attr))
        return
    except OSError as e:
        if older_setattr is None or e.errno not in (ENOSYS, EPERM) or not is_refused("mount_setattr"):
            raise
    older_setattr(fd, attr_set, attr_clr, propagation, recursive)


def fsopen(fstype: str) -> int:
    """fsopen(2): a configuration context for a new file system of that type."""
    return syscall(NR["fsopen"], cstring(fstype), FSOPEN_CLOEXEC)


def fsconfig_set(fs_fd: int, key: str, value: str | None) -> None:
    """fsconfig(2): set option *key* to *value*, or as a flag when *value* is None."""
    if value is None:
        syscall(NR["fsconfig"], fs_fd, FSCONFIG_SET_FLAG, cstring(key), None, 0)
    else:
        syscall(NR["fsconfig"], fs_fd, FSCONFIG_SET_STRING, cstring(key), cstring(value), 0)


def fsconfig_create(fs_fd: int) -> None:
    """fsconfig(2) FSCONFIG_CMD_CREATE: make (or find) the superblock."""
    syscall(NR["fsconfig"], fs_fd, FSCONFIG_CMD_CREATE, None, None, 0)


def fspick(mount_fd: int) -> int:
    """fspick(2): a configuration context for the superblock of the mount whose root *mount_fd* refers to."""
    return syscall(NR["fspick"], mount_fd, b"\0", FSPICK_CLOEXEC | FSPICK_EMPTY_PATH)


def fsconfig_reconfigure(fs_fd: int) -> None:
    """fsconfig(2) FSCONFIG_CMD_RECONFIGURE: give the superblock what has been set."""
    syscall(NR["fsconfig"], fs_fd, FSCONFIG_CMD_RECONFIGURE, None, None, 0)


def fsmount(fs_fd: int, attributes: int) -> int:
    """fsmount(2): a descriptor of a new detached mount of the context's superblock with those MOUNT_ATTR_*."""
    return syscall(NR["fsmount"], fs_fd, FSMOUNT_CLOEXEC, attributes)


def is_older_needed() -> bool:
    """Whether a filter refuses a call that :mod:`gpurun.linux.older_mounts` stands in for; to who may mount."""
    return is_refused("mount_setattr") or is_refused("fsopen") or is_refused("fsconfig") or is_refused("fsmount")


def mount(source: str, target: str, fstype: str, flags: int, data: str = "") -> None:
    """mount(2), for what the newer calls cannot do (data strings of odd file systems, propagation of a path)."""
    syscall(NR["mount"], cstring(source), cstring(target), cstring(fstype), flags, cstring(data) if data else None)


def umount2(target: str, flags: int) -> None:
    """umount2(2)."""
    syscall(NR["umount2"], cstring(target), flags)


def pivot_root(new_root: str, put_old: str) -> None:
    """pivot_root(2)."""
    syscall(NR["pivot_root"], cstring(new_root), cstring(put_old))


def open_tree_path(path: str, recursive: bool, follow: bool = True) -> int:
    """A detached copy of the mount at the host path *path* (and of those below it); not to *follow* it, of a link itself."""
    flags = OPEN_TREE_CLONE | (AT_RECURSIVE if recursive else 0) | (0 if follow else AT_SYMLINK_NOFOLLOW)
    return open_tree(AT_FDCWD, path, flags)
