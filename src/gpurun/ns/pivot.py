"""The way of the container's init from the host's mounts to its own root (pivot_root(2), mount_namespaces(7)).

The rootfs is mounted on itself, private or a slave of the host's, before anything is mounted in it: whatever
``linux.rootfsPropagation`` says, nothing that is mounted while the container is made gets to the host.  What is to be shared
or unbindable is made so at the end.
"""

from __future__ import annotations

import posix
from errno import EINVAL, ENOENT, ENOTDIR, EPERM

from gpurun.errors import GpurunError, Step, StepError
from gpurun.linux import mount as lm
from gpurun.linux.files import O_CLOEXEC, Fd
from gpurun.linux.fs import O_DIRECTORY, O_PATH
from gpurun.linux.mountinfo import MountEntry, read_mounts
from gpurun.ns.mount import attach
from gpurun.ns.mount_plan import is_late

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from gpurun.ns.mount_plan import MountStep

    Propagation = tuple[int, bool]  # linux.rootfsPropagation: MS_* flag (0: it says nothing), recursive


#: Of a root directory that is no mount.
_NO_MOUNT = "gpurun runs in a chroot, whose / is no mount: call it outside, or make / a mount and pivot_root(8) to it"


def cut(propagation: Propagation) -> int:
    """The MS_* flag by which the host's mounts are cut off, all of them; 0 where they are to stay shared with the host.

    A flag that is not recursive says nothing of other mounts than the root, and those of the host would stay what they are:
    shared.  They are cut off all the same.
    """
    if propagation[0] == lm.MS_SHARED:
        return 0
    return lm.MS_SLAVE if propagation[0] in (0, lm.MS_SLAVE) else lm.MS_PRIVATE


def root_tree(rootfs: str, propagation: Propagation) -> int:
    """A detached copy of *rootfs* with what is mounted in it, cut off the host's; the first mount of the container.

    It is private, but a slave of the host's where the config asks for that.
    """
    with Step("mount the rootfs: open_tree(2)", rootfs):
        tree = lm.open_tree_path(rootfs, recursive=True)
    with Step("mount the rootfs: mount_setattr(2) to cut it off the host's,", rootfs):
        if cut(propagation):
            lm.mount_setattr(tree, propagation=cut(propagation), recursive=True)
        if propagation[0] != lm.MS_SLAVE:
            lm.mount_setattr(tree, propagation=lm.MS_PRIVATE)
    return tree


def shared_sources(steps: tuple[MountStep, ...], rootfs: str, propagation: Propagation) -> dict[int, int]:
    """Sources of bind mounts that are to stay shared with the host, by the index of their step: opened before all is cut.

    That is so where a mount asks for it and the flag of the root, which is not recursive, says nothing of other mounts.
    """
    flag, recursive = propagation
    if recursive or flag == lm.MS_SHARED:
        return {}

    def is_shared(step: MountStep) -> bool:
        return any(flag == lm.MS_SHARED for flag, _ in step.options.propagation)

    return _open_sources(steps, rootfs, is_shared)


def cut_sources(steps: tuple[MountStep, ...], rootfs: str, propagation: Propagation) -> dict[int, int]:
    """Sources of bind mounts, by the index of their step, for a container among the host's mounts, which stay as they are:
    the copies are cut off instead."""
    trees = _open_sources(steps, rootfs, lambda step: True) if cut(propagation) else {}
    for tree in trees.values():
        lm.mount_setattr(tree, propagation=cut(propagation), recursive=True)
    return trees


def _open_sources(steps: tuple[MountStep, ...], rootfs: str, is_wanted: Callable[[MountStep], bool]) -> dict[int, int]:
    trees = {}
    for index, step in enumerate(steps):
        ours = step.kind == "bind" and not step.options.remount and step.idmap is None and not is_late(step, rootfs)
        if ours and is_wanted(step):
            try:
                trees[index] = lm.open_tree_path(step.source, step.options.recursive, not step.options.copy_symlink)
            except OSError:
                pass  # an earlier mount may make it; else the error comes when it is its turn
    return trees


def enter_root(rootfs: str, propagation: Propagation, tree: int = -1) -> int:
    """Cut the new mount namespace off the host's and mount *rootfs* on itself; returns the root's descriptor.

    *tree* is the rootfs' mount tree if it has been opened already (a user namespace may be unable to reach it).  Raises
    :class:`StepError`.
    """
    flag, recursive = propagation
    try:
        if cut(propagation):
            lm.mount("", "/", "", cut(propagation) | lm.MS_REC)
        else:
            lm.mount("", "/", "", flag | (lm.MS_REC if recursive else 0))
    except OSError as e:
        step = "mount the rootfs: mount(2) to cut the mounts off the host's,"
        raise StepError(step, "/", e.errno, _NO_MOUNT if e.errno == EINVAL else "") from None
    if tree < 0:
        tree = root_tree(rootfs, propagation)
    place = _private_place(rootfs)
    with Step("mount the rootfs: move_mount(2) on", rootfs):
        attach(tree, place)
    posix.close(place)
    return tree


def check_search(root_fd: int, rootfs: str) -> None:
    """Raise :class:`GpurunError` unless we may look up names in the root: root of a user namespace often may not."""
    try:
        posix.close(posix.open(".", O_PATH | O_DIRECTORY | O_CLOEXEC, dir_fd=root_fd))
    except PermissionError:
        mode = posix.fstat(root_fd).st_mode & 0o7777
        raise GpurunError(
            f'the rootfs "{rootfs}": permission denied: the container\'s root may not search it (its mode is {mode:04o}): '
            "give it to an id that the user namespace maps (chown), or let all search it (chmod a+x)"
        ) from None


def _private_place(rootfs: str) -> int:
    """Where the rootfs is mounted: on itself, or on / for who cannot reach it.

    The mount below it is made private: what is mounted there is then mounted nowhere else, and pivot_root(2) refuses a root
    on a shared one.
    """
    path = rootfs
    with Step("mount the rootfs: open(2)", rootfs):
        try:
            place = posix.open(path, O_PATH | O_DIRECTORY | O_CLOEXEC)
        except PermissionError:
            path = "/"
            place = posix.open(path, O_PATH | O_DIRECTORY | O_CLOEXEC)
    try:
        path = posix.readlink(f"/proc/self/fd/{place}")  # without links
    except OSError:
        pass  # a joined mount namespace whose /proc does not have us
    while True:
        try:
            lm.mount("", path, "", lm.MS_PRIVATE)
            return place
        except OSError as e:
            if e.errno != EINVAL or path == "/":  # it is no mount: the one that it is on is further up
                raise StepError("mount the rootfs: mount(2) to make private", path, e.errno) from None
        path = path.rpartition("/")[0] or "/"


def pivot(root_fd: int) -> None:
    """Make *root_fd* the root directory and let go of the host's tree (pivot_root(2))."""
    with Fd(posix.open("/", O_PATH | O_DIRECTORY | O_CLOEXEC)) as old, Step("pivot_root"):
        posix.fchdir(root_fd)
        lm.pivot_root(".", ".")
        posix.fchdir(old)
        # The old root is let go without any unmount reaching the host.
        lm.mount("", ".", "", lm.MS_SLAVE | lm.MS_REC)
        lm.umount2(".", lm.MNT_DETACH)
        posix.chdir("/")


def move_root(root_fd: int, rootfs: str) -> None:
    """--no-pivot: for a host whose root is a ramfs.  Moves *rootfs* over ``/`` and changes the root directory to it.

    The host's tree stays below, so what there would tell of the host without a mask, proc and sysfs, is taken away: while
    one is in the mount namespace, the kernel lets a user namespace mount another, which has no masks.
    """
    posix.fchdir(root_fd)
    with Fd(posix.open("/proc/self/mountinfo", posix.O_RDONLY | O_CLOEXEC)) as table:  # it stays when /proc has gone
        for path in _full_views(table, rootfs):
            _take_away(path, rootfs, table)
    with Step("move the rootfs to", "/"):
        lm.mount(".", "/", "", lm.MS_MOVE)
        posix.chroot(".")
        posix.chdir("/")


def _take_away(path: str, rootfs: str, table: int) -> None:
    """Unmount all that is mounted at *path*, with what is over it, or cover it where a user namespace locks it."""
    while path in (points := [mount.point for mount in _mounts(table)]):
        if _is_seen(path):
            if not _detach(path):
                with Step("--no-pivot: cover the host's", path):
                    lm.mount("tmpfs", path, "tmpfs", lm.MS_RDONLY)
                return
        elif not any(
            _detach(point) for point in reversed(points) if _is_below(path, point) and not _is_below(rootfs, point)
        ):
            raise GpurunError(
                f"--no-pivot: the host's {path} is under another mount that cannot be unmounted: call without it"
            )


def _is_below(path: str, point: str) -> bool:
    return point == "/" or path.startswith(f"{point}/")


def _is_seen(path: str) -> bool:
    """Whether a mount is what is seen at *path*; unmounting it there is then no other namespace's business any more."""
    with Step("--no-pivot: take away the host's", path):
        try:
            lm.mount("", path, "", lm.MS_PRIVATE | lm.MS_REC)
        except OSError as e:
            if e.errno in (ENOENT, ENOTDIR, EINVAL):
                return False
            raise
    return True


def _detach(path: str) -> bool:
    """Unmount *path* with all below it; False where that is not allowed, or nothing is mounted there."""
    try:
        lm.umount2(path, lm.MNT_DETACH)
    except OSError as e:
        if e.errno not in (EPERM, EINVAL, ENOENT, ENOTDIR):
            raise
        return False
    return True


def _mounts(table: int) -> list[MountEntry]:
    posix.lseek(table, 0, 0)
    return read_mounts(table)


def _full_views(table: int, rootfs: str) -> list[str]:
    """Where whole proc and sysfs file systems are mounted outside *rootfs*, the last mounted first."""
    whole = [mount.point for mount in _mounts(table) if mount.root == "/" and mount.fstype in ("proc", "sysfs")]
    return [point for point in reversed(whole) if not f"{point}/".startswith(f"{rootfs}/")]


def set_root_propagation(root_fd: int, propagation: tuple[int, bool]) -> None:
    """Give the new root what ``linux.rootfsPropagation`` asks for, where that differs from what it already has."""
    flag, recursive = propagation
    if flag in (lm.MS_SHARED, lm.MS_UNBINDABLE):
        lm.mount_setattr(root_fd, propagation=flag, recursive=recursive)
