"""Mounts made by descriptor: a source is cloned or a file system made, given its attributes, and only then attached."""

from __future__ import annotations

import posix
from errno import EINVAL, ENOSYS, EPERM

from gpurun.linux import mount as lm
from gpurun.linux.files import Fd
from gpurun.linux.fs import AT_SYMLINK_NOFOLLOW

TYPE_CHECKING = False
if TYPE_CHECKING:
    from gpurun.ns.mount_plan import MountStep

    Option = tuple[str, str | None]  # (key, value), value None for a flag

#: How long a value may be for fsconfig(2).
FSCONFIG_BYTES = 255
#: Flags that mount(2) takes for any file system and that most of them do not know as options: hints, no demands.
_HINTS = frozenset(("iversion", "silent"))


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


def import_stand_ins() -> None:
    """Import what mounts where a seccomp filter refuses the newer calls: before the host's tree is left, if ever."""
    if lm.is_older_needed():
        import gpurun.linux.older_mounts  # noqa: F401


def fits_fsconfig(source: str, options: tuple[Option, ...]) -> bool:
    """Whether fsconfig(2) takes each of *options*, and *source*; else see :mod:`gpurun.ns.long_options`."""
    for value in (source, *[value or key for key, value in options]):
        # The longest character of UTF-8 has four bytes.
        if len(value) > FSCONFIG_BYTES // 4 and len(value.encode("utf-8", "surrogateescape")) > FSCONFIG_BYTES:
            return False
    return True


def may_have_long_options(step: MountStep) -> bool:
    """Whether *step* may need :mod:`gpurun.ns.long_options`: asked before it is known what the options come to."""
    words = (step.source, step.label, *step.options.data)
    return step.kind != "bind" and any(len(word) > FSCONFIG_BYTES // 4 for word in words)


def filesystem(fstype: str, options: tuple[Option, ...], attributes: int = 0, source: str = "") -> int:
    """A descriptor of a detached mount of a new file system; *options* are (key, value), value None for a flag."""
    try:
        return _by_fsconfig(fstype, options, attributes, source)
    except OSError as e:
        if e.errno not in (ENOSYS, EPERM) or not lm.is_older_needed():
            raise
    from gpurun.linux.older_mounts import new_filesystem

    return new_filesystem(fstype, options, attributes, source)


def _by_fsconfig(fstype: str, options: tuple[Option, ...], attributes: int, source: str) -> int:
    with Fd(lm.fsopen(fstype)) as fs:
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


def reconfigure(mount_fd: int, options: tuple[Option, ...]) -> None:
    """Give the file system of the attached mount *options*, as :func:`filesystem` takes them.  Raises OSError."""
    try:
        with Fd(lm.fspick(mount_fd)) as context:
            for key, value in options:
                lm.fsconfig_set(context, key, value)
            lm.fsconfig_reconfigure(context)
        return
    except OSError as e:
        if e.errno not in (ENOSYS, EPERM) or not lm.is_older_needed():
            raise
    from gpurun.linux import older_mounts

    older_mounts.reconfigure(mount_fd, options)


def tmpfs(
    mode: int = 0o755, size: str = "", attributes: int = lm.MOUNT_ATTR_NOSUID | lm.MOUNT_ATTR_NODEV, label: str = ""
) -> int:
    """A descriptor of a detached tmpfs; its root can be used with ``dir_fd=`` at once, before it is attached anywhere.

    *size* as tmpfs takes it (``64k``); *mode* of the root directory; *label* is the SELinux context of all in it.
    """
    options: tuple[Option, ...] = (("mode", f"{mode:o}"),)
    if size:
        options += (("size", size),)
    if label:
        options += (("context", label),)
    return filesystem("tmpfs", options, attributes, source="tmpfs")


def attach(mount_fd: int, target_fd: int) -> None:
    """Attach the detached mount on the object that *target_fd* refers to (move_mount(2))."""
    lm.move_mount(mount_fd, target_fd)
