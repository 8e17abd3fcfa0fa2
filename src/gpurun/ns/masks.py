"""``linux.maskedPaths`` and ``linux.readonlyPaths``: what the container does not see, or not write.

Most of these paths are in /proc and /sys.  Those are looked up in the very mounts that gpurun has made for them, not by way
of the rootfs: another container that shares it could exchange its directory ``proc`` for another one meanwhile (the mount
goes with the directory), and exchange them again when the masks are in the wrong place.
"""

from __future__ import annotations

import posix
from _stat import S_ISDIR
from errno import EINVAL, ENOENT, ENOTDIR

from gpurun.errors import GpurunError, Step, StepError
from gpurun.linux import mount as lm
from gpurun.linux.files import Fd
from gpurun.linux.fs import (
    AT_FDCWD,
    AT_RECURSIVE,
    O_PATH,
    RESOLVE_BENEATH,
    RESOLVE_NO_SYMLINKS,
    RESOLVE_NO_XDEV,
    is_null_device,
    openat2,
    same_mount,
)
from gpurun.ns.mount import attach, filesystem, private_copy
from gpurun.ns.path import open_in_root
from gpurun.ns.rootfs import make_readonly

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    Views = Mapping[str, int]  # destination → descriptor of the mount that has been made there


def null_cover(views: Views) -> int:
    """What masked files are hidden behind: a detached copy of the container's own /dev/null; :func:`mask_paths` closes it.

    That is the node in the very mount that was made for /dev, of *views*: so the masks are of a file system that the
    container has, and df(1) shows no line for them.  Where gpurun has made no node there (/dev is bound, or the nodes are
    the host's, lent to a user namespace) it is the host's.

    It is private: as a peer of the host's /dev it would put there, on /dev/null, whatever the container mounts over a masked
    file.  And read-only: root in the container could else change the mode, the owner and the times of the host's own node.
    In a mount namespace that is joined another process may have put another file there.  Raises :class:`GpurunError` where
    that is not the null device.
    """
    if "/dev" in views:
        try:
            own = openat2(views["/dev"], "null", O_PATH, RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS | RESOLVE_NO_XDEV)
        except OSError:
            own = -1
        if own >= 0:
            with Fd(own), Step("copy the mount of", "/dev/null"):
                if is_null_device(own):
                    return private_copy(own, "", lm.MOUNT_ATTR_RDONLY, recursive=False)
    with Step("open", "/dev/null"):
        tree = private_copy(AT_FDCWD, "/dev/null", lm.MOUNT_ATTR_RDONLY, recursive=False)
    if not is_null_device(tree):
        posix.close(tree)
        raise GpurunError("/dev/null is not the null device: masked files cannot be hidden behind it")
    return tree


def mask_paths(root_fd: int, views: Views, paths: tuple[str, ...], null_tree: int, label: str = "") -> None:
    """Hide each path: a file behind *null_tree* (:func:`null_cover`), a directory behind one empty read-only tmpfs,
    which has the SELinux context *label*, so that the container may look into it.

    A detached mount cannot be copied (before Linux 6.15), an attached one can: so the first cover of each kind is
    attached and the others are copies of it.
    """
    covers = {False: null_tree, True: -1}
    used = {False: False, True: False}
    for path in paths:
        target = _open(root_fd, views, path, "mask")
        if target < 0:
            continue
        with Fd(target), Step("mask", path):
            directory = S_ISDIR(posix.fstat(target).st_mode)
            if directory and covers[True] < 0:
                covers[True] = _empty_tmpfs(label)
            cover = covers[directory]
            if used[directory]:
                cover = lm.open_tree(cover, "", lm.OPEN_TREE_CLONE)
            attach(cover, target)
            if used[directory]:
                posix.close(cover)
            used[directory] = True
    for cover in covers.values():
        if cover >= 0:
            posix.close(cover)


def repair_masks(root_fd: int, paths: tuple[str, ...]) -> None:
    """Make the covers of masked files at *paths* again what :func:`null_cover` has made them.

    CRIU binds all of them from one /dev/null, and only the first of them read-only.  In an image of an older gpurun they are
    peers of the host's /dev.  Raises :class:`StepError`.
    """
    for path in paths:
        target = _open(root_fd, {}, path, "mask")
        if target < 0:
            continue  # it was not there to be masked, or the container has it no more
        with Fd(target):
            try:
                if is_null_device(target):
                    lm.mount_setattr(target, lm.MOUNT_ATTR_RDONLY, propagation=lm.MS_PRIVATE)
            except OSError as e:
                if e.errno != EINVAL:  # no mount, but a node of the container's own
                    raise StepError("mask", path, e.errno) from None


def _empty_tmpfs(label: str) -> int:
    options: tuple[tuple[str, str | None], ...] = (("nr_blocks", "1"), ("nr_inodes", "1"))
    if label:
        options += (("context", label),)
    return filesystem("tmpfs", options, lm.MOUNT_ATTR_RDONLY, "tmpfs")


def readonly_paths(root_fd: int, views: Views, paths: tuple[str, ...]) -> None:
    """Cover each path with a read-only bind of itself (and of what is mounted below it); / itself is made read-only, for its
    processes would be below such a bind.

    The bind is attached first: in a volume that shares its mounts with the host it is then on the host as well, but not
    read-only there.
    """
    for path in paths:
        target = _open(root_fd, views, path, "make read-only")
        if target < 0:
            continue
        with Fd(target), Step("make read-only", path):
            if _is_root(root_fd, target):
                make_readonly(root_fd, "the rootfs")
                continue
            tree = lm.open_tree(target, "", lm.OPEN_TREE_CLONE | AT_RECURSIVE)
            attach(tree, target)
            lm.mount_setattr(tree, lm.MOUNT_ATTR_RDONLY)
            posix.close(tree)


def _is_root(root_fd: int, fd: int) -> bool:
    """Whether *fd* is the root of the rootfs: not another mount of the same directory."""
    found, root = posix.fstat(fd), posix.fstat(root_fd)
    return (found.st_dev, found.st_ino) == (root.st_dev, root.st_ino) and same_mount(fd, root_fd)


def _open(root_fd: int, views: Views, path: str, step: str) -> int:
    """An O_PATH descriptor of *path*, or -1 where there is no such thing."""
    root, below = root_fd, path
    if ".." not in path.split("/"):
        covering = [destination for destination in views if f"{path}/".startswith(f"{destination}/")]
        if covering:
            nearest = max(covering, key=len)
            root, below = views[nearest], path[len(nearest) :]
    try:
        return open_in_root(root, below)
    except OSError as e:
        if e.errno in (ENOENT, ENOTDIR):  # ENOTDIR: its parent is a file, so it is not there either
            return -1
        raise StepError(step, path, e.errno) from None
