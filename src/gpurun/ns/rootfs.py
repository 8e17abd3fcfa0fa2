"""Building the container's root file system, inside its namespaces and before pivot_root(2) (:mod:`gpurun.ns.pivot`).

Everything is done by descriptor: *root_fd* is the root of the rootfs mount, targets come from :mod:`gpurun.ns.path`, and
a mount is made completely before it is attached.  Steps and their order are decided in :mod:`gpurun.ns.mount_plan`.
"""

from __future__ import annotations

import posix
import time
from _stat import S_ISDIR, S_ISLNK
from errno import EBUSY, ELOOP, ENOTDIR

from gpurun.errors import GpurunError, StepError, strerror_lower
from gpurun.linux import mount as lm
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
from gpurun.ns.mount import attach, filesystem, fits_fsconfig, reconfigure
from gpurun.ns.mount_plan import PROC_TARGETS, MountStep, failed_mount
from gpurun.ns.options import MountOptions, split_escaped
from gpurun.ns.path import make_dirs, make_symlink, make_target, open_in_root
from gpurun.record import replace

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from gpurun.ns.mount import Option

#: File systems whose superblock is shared or special: only the mount can be read-only.
_MOUNT_ONLY_RO = frozenset(("tmpfs", "proc", "sysfs", "devpts", "mqueue", "cgroup2"))
#: File systems of which each mount of its own is a new one (a devtmpfs or an overlay shows what exists already).
_OF_CONTAINER = frozenset(("tmpfs", "ramfs"))


def mount_all(
    root_fd: int,
    root: str,
    steps: tuple[MountStep, ...],
    sources: Callable[[int], int],
    cgroup: str,
    views: dict[str, int] | None = None,
    own: set[int] | None = None,
) -> tuple[tuple[int, int], ...]:
    """Carry out *steps* in order; returns (descriptor, attributes) of mounts that become read-only at the end.

    *views* gets a descriptor of each mount that shows the kernel's own files (proc, sysfs), and of a /dev of the
    container's own, by its destination: see :mod:`gpurun.ns.masks`.  *own* gets the device number of each tmpfs that is
    made: see :mod:`gpurun.ns.outside`.

    *sources* gives the source tree of a bind mount, by the index of its step, that the parent opens; -1 is for us to open.
    *cgroup* is the host's cgroup tree, if the container is to see that: it has no cgroup namespace.  Raises
    :class:`GpurunError` with the mount's JSON path, and :class:`StepError`.
    """
    late: list[tuple[int, int]] = []
    for index, step in enumerate(steps):
        try:
            if step.options.remount:
                fd = _remount(root_fd, step)
            elif step.kind == "bind":
                fd = _bind(root_fd, root, step, sources(index))
                if fd < 0:
                    continue
            else:
                fd = _new_filesystem(root_fd, step, cgroup)
            for flag, recursive in step.options.propagation:
                lm.mount_setattr(fd, propagation=flag, recursive=recursive)
            if step.options.rec_set or step.options.rec_clr:
                lm.mount_setattr(fd, step.options.rec_set, step.options.rec_clr, recursive=True)
        except OSError as e:
            raise failed_mount(step, strerror_lower(e.errno)) from None
        if own is not None and step.kind in _OF_CONTAINER and not step.options.remount:
            own.add(posix.fstat(fd).st_dev)
        if views is not None and not step.options.remount:
            if step.destination in views:
                posix.close(views.pop(step.destination))
            own_dev = step.destination == "/dev" and step.kind == "tmpfs"
            if own_dev or fstatfs_type(fd) in (PROC_SUPER_MAGIC, SYSFS_MAGIC):
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
    pairs = _superblock_pairs(step)
    if not fits_fsconfig("", tuple(pairs)):
        raise failed_mount(step, "an option of more than 255 bytes cannot be changed")
    if pairs and step.kind != "bind":
        reconfigure(target, tuple(pairs))
    if step.kind != "bind" and _late_readonly(step):
        options = replace(options, attr_set=options.attr_set & ~lm.MOUNT_ATTR_RDONLY)
    _set_attributes(target, options)
    return target


def _superblock_pairs(step: MountStep) -> list[Option]:
    """The options that are the file system's own, as fsconfig(2) takes them."""
    pairs: list[Option] = []
    for entry in step.options.data:
        escaped = step.kind == "overlay" and "\\" in entry  # where it stands before a comma or a backslash of a path
        for word in split_escaped(entry, ",") if escaped else entry.split(","):
            key, equals, value = word.partition("=")
            pairs.append((key, value if equals else None))
    return pairs + [(key, None) for key in step.options.superblock]


def _bind(root_fd: int, root: str, step: MountStep, tree: int) -> int:
    """The mount's descriptor; -1 where there is none, because a link was to be copied (``copy-symlink``)."""
    options = step.options
    if tree < 0:
        tree = lm.open_tree_path(step.source, options.recursive, not options.copy_symlink)
    if options.copy_symlink and S_ISLNK(posix.fstat(tree).st_mode):
        text = posix.readlink("", dir_fd=tree)
        posix.close(tree)
        make_symlink(root_fd, step.destination, text)
        return -1
    directory = S_ISDIR(posix.fstat(tree).st_mode)
    target = make_target(root_fd, step.destination, directory)
    if S_ISDIR(posix.fstat(target).st_mode) is not directory:  # of which move_mount(2) says EINVAL
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


def _new_filesystem(root_fd: int, step: MountStep, cgroup: str) -> int:
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
    pairs = _superblock_pairs(step)
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
    source = step.source or fstype
    if fits_fsconfig(source, tuple(pairs)):
        try:
            fd = filesystem(fstype, tuple(pairs), attributes, source)
        except PermissionError:
            if fstype != "sysfs" or not attributes & lm.MOUNT_ATTR_RDONLY:
                raise
            fd = _host_sysfs(options)
    else:
        from gpurun.ns.long_options import filesystem_with_long_options  # imported before the host's tree was left

        try:
            fd = filesystem_with_long_options(fstype, tuple(pairs), attributes, source)
        except GpurunError as e:
            raise failed_mount(step, str(e)) from None
    if options.copy_up:
        from gpurun.ns.copyup import copy_up

        copy_up(target, fd)
    if step.label and fstype == "mqueue":  # it knows no context=
        posix.setxattr(f"/proc/self/fd/{fd}", "security.selinux", step.label.encode())
    attach(fd, target)
    posix.close(target)
    return fd


def _host_sysfs(options: MountOptions) -> int:
    """/sys of the host, read-only with all below it, as a detached mount.

    The kernel refuses a new sysfs to a user namespace that does not own its network namespace (sysfs(5)), and where the
    host's own is partly covered.  crun takes the host's then, and so does what Podman makes for `--network host`.
    """
    tree = lm.open_tree_path("/sys", recursive=True)
    # The host's mounts below it come along: what the container may not do in /sys it may not do there.
    restrictions = options.attr_set & (lm.MOUNT_ATTR_NOSUID | lm.MOUNT_ATTR_NODEV | lm.MOUNT_ATTR_NOEXEC)
    lm.mount_setattr(tree, lm.MOUNT_ATTR_RDONLY | restrictions, propagation=lm.MS_PRIVATE, recursive=True)
    _set_attributes(tree, options)
    return tree


def _exists(root_fd: int, path: str) -> bool:
    try:
        posix.close(open_in_root(root_fd, path))
    except FileNotFoundError:
        return False
    return True


def _bind_cgroup(root_fd: int, step: MountStep, cgroup: str) -> int:
    """Without a cgroup namespace cgroup2 is bound from the host's tree: a mount of its own would change the host's mount
    options, and a user namespace is refused it.

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
    except OSError as e:
        if e.errno not in (ELOOP, ENOTDIR):
            raise
        raise GpurunError(
            f'{step.where}: filesystem "{step.kind}" must be mounted on ordinary directory, "{step.destination}" is not one'
        ) from None


#: How often a mount is asked to become read-only that is being written to at this moment, and the pause in between: as
#: runc does.  A child that a createContainer hook has left behind may be at it, by the directory of its own process.
_READONLY_TRIES, _READONLY_PAUSE_S = 6, 0.1


def make_readonly(fd: int, what: str) -> None:
    """Make the mount of *fd* read-only; raises :class:`StepError`, also where a file in it stays open for writing."""
    for attempt in range(_READONLY_TRIES):
        if attempt:
            time.sleep(_READONLY_PAUSE_S)
        try:
            lm.mount_setattr(fd, lm.MOUNT_ATTR_RDONLY)
            return
        except OSError as e:
            if e.errno != EBUSY:
                raise StepError("make read-only: mount_setattr(2) of", what, e.errno) from None
    raise StepError("make read-only: mount_setattr(2): a process has a file open for writing in", what, EBUSY)
