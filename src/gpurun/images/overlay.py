"""Overlays of layers (filesystems/overlayfs.rst), made by descriptor: one that is attached nowhere ends with its process."""

from __future__ import annotations

import os
import shutil
import stat
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from gpurun.errors import GpurunError, oserror_text
from gpurun.linux.mountinfo import mounts
from gpurun.ns.long_options import filesystem_with_long_options

#: Of more lower directories Linux makes no overlay (fs/overlayfs: OVL_MAX_STACK).
_MAX_LOWER = 500
#: Characters with a meaning in the options of an overlay.
_SPECIAL = frozenset(":,\\\n")


class NoOverlay(GpurunError):
    """There can be no overlay here: the text says why.  Layers are then unpacked one over the other."""


def detached_overlay(lower: Sequence[str], upper: str, work: str) -> int:
    """A descriptor of a detached overlay of the directories *lower*, the lowest first, whose changes go to *upper*.

    Raises :class:`NoOverlay`.
    """
    for path in (*lower, upper):
        if _SPECIAL & set(path):
            raise NoOverlay(f"overlayfs does not take the path {path!r}")
    if len(lower) > _MAX_LOWER:
        raise NoOverlay(f"overlayfs takes {_MAX_LOWER} layers, and there are {len(lower)}")
    options = (
        ("lowerdir", ":".join(reversed(lower))),
        ("upperdir", upper),
        ("workdir", work),
        # With these two, what a layer holds would not be readable without those below it, or without the work directory.
        ("index", "off"),
        ("metacopy", "off"),
    )
    try:
        return filesystem_with_long_options("overlay", options, 0, "overlay")
    except OSError as e:
        raise NoOverlay(f"overlayfs: {oserror_text(e)}") from None
    except GpurunError as e:
        raise NoOverlay(f"overlayfs: {e}") from None


@contextmanager
def overlay_root(lower: Sequence[str], upper: str, work: str) -> Iterator[str]:
    """A path of the root of an overlay that nobody else sees, for as long as the block lasts."""
    fd = detached_overlay(lower, upper, work)
    try:
        yield f"/proc/self/fd/{fd}"
    finally:
        os.close(fd)


def check_overlay(lower_place: str, upper_place: str) -> None:
    """Raise :class:`NoOverlay` unless directories below these two can be the lower and the upper one of an overlay.

    It is tried, with a directory that is taken away and made anew: that needs whiteouts and extended attributes.
    """
    try:
        with tempfile.TemporaryDirectory(dir=lower_place) as below, tempfile.TemporaryDirectory(dir=upper_place) as above:
            os.makedirs(f"{below}/directory/old")
            upper, work = f"{above}/upper", f"{above}/work"
            os.mkdir(upper)
            os.mkdir(work)
            with overlay_root((below,), upper, work) as root:
                shutil.rmtree(f"{root}/directory")
                os.mkdir(f"{root}/directory")
                whole = os.listdir(f"{root}/directory") == []
    except OSError as e:
        raise NoOverlay(f"overlayfs at {upper_place}: {oserror_text(e)}") from None
    if not whole:
        raise NoOverlay(f"the file system of {upper_place} keeps no extended attributes of overlayfs")


def make_like(directory: str, model: str) -> None:
    """Make *directory* with owner, mode and attributes of the directory *model*: an overlay shows those of its uppermost."""
    os.mkdir(directory, 0o700)
    found = os.stat(model)
    os.chown(directory, found.st_uid, found.st_gid)
    os.chmod(directory, stat.S_IMODE(found.st_mode))
    for name in os.listxattr(model):
        if name.startswith("user."):
            os.setxattr(directory, name, os.getxattr(model, name))
    os.utime(directory, ns=(found.st_atime_ns, found.st_mtime_ns))


def mounted_at(path: str) -> list[str]:
    """The file systems (``0:52``) of the mounts at *path*, in the order in which they were made."""
    return [entry.device for entry in mounts() if entry.point == path]


def check_mounted_nowhere_else(path: str, device: str) -> None:
    """Raise :class:`GpurunError` when a process has the file system *device*, mounted at *path*, mounted elsewhere.

    So a container has it: its root, in its own mount namespace.  Where a mount of the host's has gone on to other namespaces
    by itself, it is at *path* there too, and goes from there by itself.
    """
    seen = set()
    for pid in [name for name in os.listdir("/proc") if name.isdigit()]:
        try:
            namespace = os.stat(f"/proc/{pid}/ns/mnt").st_ino
            if namespace in seen:
                continue
            entries = mounts(pid)
        except OSError:
            continue  # it has ended
        seen.add(namespace)
        if any(entry.device == device and entry.point != path for entry in entries):
            raise GpurunError(
                f"{path} is in use: process {pid}, most likely a container's, has it mounted: delete that first"
            )
