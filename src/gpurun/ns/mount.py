"""Mounts made by descriptor: a source is cloned or a file system made, given its attributes, and only then attached."""

from __future__ import annotations

import posix
from errno import EINVAL

from gpurun.linux import mount as lm
from gpurun.linux.fs import AT_SYMLINK_NOFOLLOW

#: Flags that mount(2) takes for any file system and that most of them do not know as options: hints, no demands.
_HINTS = frozenset(("iversion", "silent"))


def bind_fd(source_fd: int, target_fd: int, attr_set: int = 0, attr_clr: int = 0, recursive: bool = True) -> None:
    """Bind the object of *source_fd* on that of *target_fd*, private, with *attr_set* MOUNT_ATTR_* from the first moment.

    The attributes go on the top mount only, as bind mounts have always done; see ``mount_setattr`` for trees.
    """
    tree = private_copy(source_fd, "", attr_set, attr_clr, recursive)
    try:
        lm.move_mount(tree, target_fd)
    finally:
        posix.close(tree)


def private_copy(dir_fd: int, path: str, attr_set: int = 0, attr_clr: int = 0, recursive: bool = True) -> int:
    """A detached copy, private, of the mount at *path* (empty: at *dir_fd*), with *attr_set* MOUNT_ATTR_* on the top mount.

    A link at *path* is not followed: the copy is then of the link itself, for the caller to refuse.
    """
    flags = lm.OPEN_TREE_CLONE | AT_SYMLINK_NOFOLLOW
    tree = lm.open_tree(dir_fd, path, flags | (lm.AT_RECURSIVE if recursive else 0))
    try:
        if recursive:
            lm.mount_setattr(tree, propagation=lm.MS_PRIVATE, recursive=True)
            if attr_set or attr_clr:
                lm.mount_setattr(tree, attr_set, attr_clr)
        else:
            lm.mount_setattr(tree, attr_set, attr_clr, propagation=lm.MS_PRIVATE)
    except OSError:
        posix.close(tree)
        raise
    return tree


def filesystem(fstype: str, options: tuple[tuple[str, str | None], ...], attributes: int = 0, source: str = "") -> int:
    """A descriptor of a detached mount of a new file system; *options* are (key, value), value None for a flag."""
    fs = lm.fsopen(fstype)
    try:
        if source:
            lm.fsconfig_set(fs, "source", source)
        for key, value in options:
            try:
                lm.fsconfig_set(fs, key, value)
            except OSError as e:
                if e.errno != EINVAL or key not in _HINTS:
                    raise
        lm.fsconfig_create(fs)
        return lm.fsmount(fs, attributes)
    finally:
        posix.close(fs)


def tmpfs(mode: int = 0o755, size: str = "", attributes: int = lm.MOUNT_ATTR_NOSUID | lm.MOUNT_ATTR_NODEV) -> int:
    """A descriptor of a detached tmpfs; its root can be used with ``dir_fd=`` at once, before it is attached anywhere.

    *size* as tmpfs takes it (``64k``); *mode* of the root directory.
    """
    options: tuple[tuple[str, str | None], ...] = (("mode", f"{mode:o}"),)
    if size:
        options += (("size", size),)
    return filesystem("tmpfs", options, attributes, source="tmpfs")


def attach(mount_fd: int, target_fd: int) -> None:
    """Attach the detached mount on the object that *target_fd* refers to (move_mount(2))."""
    lm.move_mount(mount_fd, target_fd)
