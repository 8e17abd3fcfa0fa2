"""``linux.maskedPaths`` and ``linux.readonlyPaths``: what the container does not see, or not write.

Most of these paths are in /proc and /sys.  Those are looked up in the very mounts that gpurun has made for them, not by way
of the rootfs: another container that shares it could exchange its directory ``proc`` for another one meanwhile (the mount
goes with the directory), and exchange them again when the masks lie where nobody needs them.
"""

from __future__ import annotations

import posix
from errno import ENOENT, ENOTDIR

from gpurun.errors import StepError
from gpurun.linux import mount as lm
from gpurun.linux.fs import AT_RECURSIVE
from gpurun.ns.mount import attach, filesystem
from gpurun.ns.path import open_in_root

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    Views = Mapping[str, int]  # destination → descriptor of the mount that has been made there


def mask_paths(root_fd: int, views: Views, paths: tuple[str, ...], null_tree: int) -> None:
    """Hide each path: a file behind /dev/null (*null_tree*: a detached copy of the host's), a directory behind one empty
    read-only tmpfs.

    A detached mount cannot be copied (before Linux 6.15), an attached one can: so the first cover of each kind is
    attached and the others are copies of it.

    The cover is read-only: root in the container could else change the mode, the owner and the times of the host's own node.
    """
    lm.mount_setattr(null_tree, lm.MOUNT_ATTR_RDONLY)
    covers = {False: null_tree, True: -1}
    used = {False: False, True: False}
    for path in paths:
        target = _open(root_fd, views, path, "mask")
        if target < 0:
            continue
        try:
            directory = posix.fstat(target).st_mode & 0o170000 == 0o040000
            if directory and covers[True] < 0:
                covers[True] = _empty_tmpfs()
            cover = covers[directory]
            if used[directory]:
                cover = lm.open_tree(cover, "", lm.OPEN_TREE_CLONE)
            attach(cover, target)
            if used[directory]:
                posix.close(cover)
            used[directory] = True
        except OSError as e:
            raise StepError("mask", path, e.errno) from None
        finally:
            posix.close(target)
    if covers[True] >= 0:
        posix.close(covers[True])


def _empty_tmpfs() -> int:
    options: tuple[tuple[str, str | None], ...] = (("nr_blocks", "1"), ("nr_inodes", "1"))
    return filesystem("tmpfs", options, lm.MOUNT_ATTR_RDONLY, "tmpfs")


def readonly_paths(root_fd: int, views: Views, paths: tuple[str, ...]) -> None:
    """Cover each path with a read-only bind of itself (and of what is mounted below it)."""
    for path in paths:
        target = _open(root_fd, views, path, "make read-only")
        if target < 0:
            continue
        try:
            tree = lm.open_tree(target, "", lm.OPEN_TREE_CLONE | AT_RECURSIVE)
            lm.mount_setattr(tree, lm.MOUNT_ATTR_RDONLY)
            attach(tree, target)
            posix.close(tree)
        except OSError as e:
            raise StepError("make read-only", path, e.errno) from None
        finally:
            posix.close(target)


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
