"""Building the container's root file system, inside its namespaces and before (then after) pivot_root(2).

Everything is done by descriptor: *root_fd* is the root of the rootfs mount, targets come from :mod:`gpurun.ns.path`, and
a mount is made completely before it is attached.  Steps and their order are decided in :mod:`gpurun.ns.steps`.
"""

from __future__ import annotations

import posix
import time
from errno import EBUSY, EINVAL, ENOTDIR, EPERM

from gpurun.errors import GpurunError, StepError, strerror_lower
from gpurun.linux import mount as lm
from gpurun.linux.files import O_CLOEXEC, read_file
from gpurun.linux.fs import (
    O_DIRECTORY,
    O_PATH,
    PROC_SUPER_MAGIC,
    RESOLVE_IN_ROOT,
    RESOLVE_NO_MAGICLINKS,
    RESOLVE_NO_SYMLINKS,
    SYSFS_MAGIC,
    fstatfs_type,
    openat2,
)
from gpurun.ns.mount import attach, filesystem
from gpurun.ns.options import MountOptions
from gpurun.ns.path import make_dirs, make_target, open_in_root
from gpurun.ns.steps import PROC_TARGETS, MountStep, failed_mount
from gpurun.record import replace

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

#: File systems whose superblock is shared or special: read-only is a matter of the mount alone.
_MOUNT_ONLY_RO = frozenset(("tmpfs", "proc", "sysfs", "devpts", "mqueue", "cgroup2"))


def enter_root(rootfs: str, propagation: tuple[int, bool], tree: int = -1) -> int:
    """Cut the new mount namespace off the host's and mount *rootfs* on itself; returns the root's descriptor.

    *tree* is the rootfs' mount tree if the parent has opened it already (a user namespace may be unable to reach it).
    """
    flag, recursive = propagation
    try:
        lm.mount("", "/", "", flag | (lm.MS_REC if recursive else 0))
        if flag in (lm.MS_SHARED, lm.MS_UNBINDABLE):
            _make_parent_private(rootfs)
        if tree < 0:
            tree = lm.open_tree_path(rootfs, recursive=True)
        try:
            place = posix.open(rootfs, O_PATH | O_DIRECTORY | O_CLOEXEC)
        except PermissionError:
            place = posix.open("/", O_PATH | O_DIRECTORY | O_CLOEXEC)
        attach(tree, place)
        posix.close(place)
    except OSError as e:
        raise StepError("mount the rootfs", rootfs, e.errno) from None
    return tree


def _make_parent_private(rootfs: str) -> None:
    """pivot_root(2) refuses a root whose parent mount is shared: make the mount that *rootfs* lies on private."""
    path = rootfs
    while True:
        try:
            lm.mount("", path, "", lm.MS_PRIVATE)
            return
        except OSError as e:
            if e.errno != EINVAL or path == "/":
                raise
            path = path.rpartition("/")[0] or "/"


def mount_all(
    root_fd: int,
    root: str,
    steps: tuple[MountStep, ...],
    sources: Callable[[int], int],
    cgroup: str,
    views: dict[str, int] | None = None,
) -> tuple[tuple[int, int], ...]:
    """Carry out *steps* in order; returns (descriptor, attributes) of mounts that become read-only at the end.

    *views* gets a descriptor of each mount that shows the kernel's own files (proc, sysfs), by its destination: see
    :mod:`gpurun.ns.masks`.

    *sources* gives the source tree of a bind mount, by the index of its step, that the parent opens; -1 is for us to open.
    *cgroup* is the directory of the host's cgroup tree that the container sees as its root, "" when that is another's.
    """
    late: list[tuple[int, int]] = []
    for index, step in enumerate(steps):
        try:
            if step.options.remount:
                fd = _remount(root_fd, step)
            elif step.kind == "bind":
                fd = _bind(root_fd, root, step, sources(index))
            else:
                fd = _new_filesystem(root_fd, root, step, cgroup)
            for flag, recursive in step.options.propagation:
                lm.mount_setattr(fd, propagation=flag, recursive=recursive)
            if step.options.rec_set or step.options.rec_clr:
                lm.mount_setattr(fd, step.options.rec_set, step.options.rec_clr, recursive=True)
        except OSError as e:
            raise failed_mount(step, strerror_lower(e.errno)) from None
        if views is not None and not step.options.remount:
            if step.destination in views:
                posix.close(views.pop(step.destination))
            if fstatfs_type(fd) in (PROC_SUPER_MAGIC, SYSFS_MAGIC):
                views[step.destination] = posix.dup(fd)
        if step.kind != "bind" and _late_readonly(step) and step.options.attr_set & lm.MOUNT_ATTR_RDONLY:
            late.append((fd, lm.MOUNT_ATTR_RDONLY))
        else:
            posix.close(fd)
    return tuple(late)


def _late_readonly(step: MountStep) -> bool:
    """Device nodes and mount points must still be made in a tmpfs and in /dev after they are mounted."""
    return step.kind == "tmpfs" or step.destination == "/dev"


def _remount(root_fd: int, step: MountStep) -> int:
    """Change the mount that is at the target already (mount(8) "remount"): its own flags, and with data its file system."""
    options = step.options
    target = open_in_root(root_fd, step.destination)
    pairs = _superblock_pairs(options)
    if pairs and step.kind != "bind":
        context = lm.fspick(target)
        try:
            for key, value in pairs:
                lm.fsconfig_set(context, key, value)
            lm.fsconfig_reconfigure(context)
        finally:
            posix.close(context)
    if step.kind != "bind" and _late_readonly(step):
        options = replace(options, attr_set=options.attr_set & ~lm.MOUNT_ATTR_RDONLY)
    _set_attributes(target, options)
    return target


def _superblock_pairs(options: MountOptions) -> list[tuple[str, str | None]]:
    """The options that are the file system's own, as fsconfig(2) takes them."""
    pairs: list[tuple[str, str | None]] = []
    for entry in options.data:
        for word in entry.split(","):
            key, equals, value = word.partition("=")
            pairs.append((key, value if equals else None))
    return pairs + [(key, None) for key in options.superblock]


def _bind(root_fd: int, root: str, step: MountStep, tree: int) -> int:
    options = step.options
    if tree < 0:
        tree = lm.open_tree_path(step.source, options.recursive)
    directory = posix.fstat(tree).st_mode & 0o170000 == 0o040000
    target = make_target(root_fd, step.destination, directory)
    if (posix.fstat(target).st_mode & 0o170000 == 0o040000) is not directory:  # of which move_mount(2) says EINVAL
        posix.close(target)
        raise OSError(ENOTDIR, posix.strerror(ENOTDIR))
    _check_proc_target(root, target, step, tree)
    _set_attributes(tree, options)
    attach(tree, target)
    posix.close(target)
    return tree


def _set_attributes(tree: int, options: MountOptions) -> None:
    """As mount(2) does on a bind remount, the flags given replace those of the source, but for the times if none is given.

    A user namespace may not clear what the host has locked (mount_namespaces(7)); then it stays, unless clearing it was
    asked for.  nosymfollow is never locked.
    """
    clear = options.attr_clr | options.replaced
    if not options.attr_set | clear:
        return
    try:
        lm.mount_setattr(tree, options.attr_set, clear)
    except PermissionError:
        lm.mount_setattr(tree, options.attr_set, options.attr_clr | options.replaced & lm.MOUNT_ATTR_NOSYMFOLLOW)


def _check_proc_target(root: str, target: int, step: MountStep, tree: int) -> None:
    """Nothing may cover /proc or what is in it: later writes to /proc (labels, sysctl) would go astray."""
    if fstatfs_type(target) != PROC_SUPER_MAGIC:
        if step.destination == "/proc" and (tree < 0 or fstatfs_type(tree) != PROC_SUPER_MAGIC):
            raise GpurunError(f'{step.where}: "/proc" cannot be mounted because it is not of type proc')
        return
    seen = posix.readlink(f"/proc/self/fd/{target}")
    inside = seen[len(root) :].partition("/proc/")[2] if seen.startswith(root) else seen
    if step.destination == "/proc" and tree >= 0 and fstatfs_type(tree) == PROC_SUPER_MAGIC:
        return
    if inside not in PROC_TARGETS:
        raise GpurunError(f'{step.where}: "{step.destination}" cannot be mounted because it is inside /proc')


def _new_filesystem(root_fd: int, root: str, step: MountStep, cgroup: str) -> int:
    options = step.options
    if step.kind == "cgroup" and cgroup:
        return _bind_cgroup(root_fd, step, cgroup)
    fstype = "cgroup2" if step.kind == "cgroup" else step.kind
    covers = fstype == "tmpfs" and _exists(root_fd, step.destination)
    if fstype in ("proc", "sysfs"):
        target = _ordinary_directory(root_fd, step)
    else:
        target = make_target(root_fd, step.destination, directory=True)
        if fstatfs_type(target) == PROC_SUPER_MAGIC:
            raise GpurunError(f'{step.where}: "{step.destination}" cannot be mounted because it is inside /proc')
    pairs = _superblock_pairs(options)
    if step.label and fstype != "mqueue":
        pairs.append(("context", step.label))
    attributes = options.attr_set
    if covers and not any(key == "mode" for key, _ in pairs):  # over what was missing it has the kernel's mode, 1777
        pairs.append(("mode", f"{posix.fstat(target).st_mode & 0o7777:o}"))
    if attributes & lm.MOUNT_ATTR_RDONLY:
        if _late_readonly(step):
            attributes &= ~lm.MOUNT_ATTR_RDONLY
        elif fstype not in _MOUNT_ONLY_RO:
            pairs.append(("ro", None))
    fd = filesystem(fstype, tuple(pairs), attributes, step.source or fstype)
    if options.copy_up:
        from gpurun.ns.copyup import copy_up

        copy_up(target, fd)
    if step.label and fstype == "mqueue":  # it knows no context=
        posix.setxattr(f"/proc/self/fd/{fd}", "security.selinux", step.label.encode())
    attach(fd, target)
    posix.close(target)
    return fd


def _exists(root_fd: int, path: str) -> bool:
    try:
        posix.close(open_in_root(root_fd, path))
    except FileNotFoundError:
        return False
    return True


def _bind_cgroup(root_fd: int, step: MountStep, cgroup: str) -> int:
    """cgroup2 is bound from the host's tree: what the container sees is the same as of a mount of its own, which waits up to
    10 ms for the kernel's cgroup lock, and which a user namespace without a cgroup namespace is refused.

    Nor does it get the host's mounts below its tree, which systemd shares; CRIU would refuse it for that.
    """
    tree = lm.open_tree_path(cgroup, recursive=False)
    target = make_target(root_fd, step.destination, directory=True)
    lm.mount_setattr(tree, propagation=lm.MS_PRIVATE)
    _set_attributes(tree, step.options)
    attach(tree, target)
    posix.close(target)
    return tree


def _ordinary_directory(root_fd: int, step: MountStep) -> int:
    """The target of proc and sysfs: a link there would let an image redirect what the runtime writes to /proc."""
    relative = step.destination.lstrip("/")
    resolve = RESOLVE_IN_ROOT | RESOLVE_NO_MAGICLINKS | RESOLVE_NO_SYMLINKS
    try:
        return openat2(root_fd, relative, O_PATH | O_DIRECTORY, resolve)
    except FileNotFoundError:
        posix.close(make_dirs(root_fd, step.destination))
        return openat2(root_fd, relative, O_PATH | O_DIRECTORY, resolve)
    except OSError:
        raise GpurunError(
            f'{step.where}: filesystem "{step.kind}" must be mounted on ordinary directory, "{step.destination}" is none'
        ) from None


def pivot(root_fd: int) -> None:
    """Make *root_fd* the root directory and let go of the host's tree (pivot_root(2))."""
    old = posix.open("/", O_PATH | O_DIRECTORY | O_CLOEXEC)
    try:
        posix.fchdir(root_fd)
        lm.pivot_root(".", ".")
        posix.fchdir(old)
        # The old root is let go without any unmount reaching the host.
        lm.mount("", ".", "", lm.MS_SLAVE | lm.MS_REC)
        lm.umount2(".", lm.MNT_DETACH)
        posix.chdir("/")
    except OSError as e:
        raise StepError("pivot_root", "", e.errno) from None
    finally:
        posix.close(old)


def move_root(root_fd: int, rootfs: str) -> None:
    """--no-pivot: for a host whose root is a ramfs.  Moves *rootfs* over ``/`` and changes the root directory to it.

    The host's tree stays below, so what there would tell of the host without a mask, proc and sysfs, is taken away first.
    """
    posix.fchdir(root_fd)
    try:
        for path in _full_views(read_file("/proc/self/mountinfo", 64 << 20).decode("utf-8", "surrogateescape"), rootfs):
            lm.mount("", path, "", lm.MS_PRIVATE | lm.MS_REC)
            try:
                lm.umount2(path, lm.MNT_DETACH)
            except OSError as e:
                if e.errno not in (EPERM, EINVAL):
                    raise
                lm.mount("tmpfs", path, "tmpfs", lm.MS_RDONLY)  # locked by a user namespace: covered instead
        lm.mount(".", "/", "", lm.MS_MOVE)
        posix.chroot(".")
        posix.chdir("/")
    except OSError as e:
        raise StepError("move the rootfs to", "/", e.errno) from None


def _full_views(mountinfo: str, rootfs: str) -> list[str]:
    """Where whole proc and sysfs file systems are mounted outside *rootfs*, the last mounted first."""
    found = []
    for line in mountinfo.splitlines():
        fields, _, after = line.partition(" - ")
        root, path = fields.split(" ")[3:5]
        if root != "/" or after.split(" ")[0] not in ("proc", "sysfs"):
            continue
        path = path.replace("\\040", " ").replace("\\011", "\t").replace("\\012", "\n").replace("\\134", "\\")
        if not f"{path}/".startswith(f"{rootfs}/"):
            found.append(path)
    return found[::-1]


def set_root_propagation(root_fd: int, propagation: tuple[int, bool]) -> None:
    """Give the new root what ``linux.rootfsPropagation`` asks for, where that differs from what it already has."""
    flag, recursive = propagation
    if flag in (lm.MS_SHARED, lm.MS_UNBINDABLE):
        lm.mount_setattr(root_fd, propagation=flag, recursive=recursive)


def make_readonly(fd: int, what: str) -> None:
    """Make the mount of *fd* read-only."""
    for attempt in range(6):
        try:
            lm.mount_setattr(fd, lm.MOUNT_ATTR_RDONLY)
            return
        except OSError as e:
            if e.errno != EBUSY or attempt == 5:
                raise StepError("make read-only", what, e.errno) from None
        time.sleep(0.1)
