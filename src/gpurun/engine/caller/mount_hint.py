"""What is most likely wrong with a mount that the kernel has refused: a file system or an option that it does not know.

The kernel says ``no such device`` and ``invalid argument``, and nothing of which word it means.
"""

from __future__ import annotations

import posix
from errno import ENOENT

from gpurun.errors import clean
from gpurun.linux.files import read_file
from gpurun.linux.procfs import in_user_namespace
from gpurun.ns.options import likely_option

TYPE_CHECKING = False
if TYPE_CHECKING:
    from gpurun.ns.mount_plan import MountStep

#: The options of the file systems that most containers have (tmpfs(5), proc(5), filesystems/devpts.rst, overlayfs.rst).
_OPTIONS: dict[str, tuple[str, ...]] = {
    "tmpfs": tuple(
        "size nr_blocks nr_inodes mode uid gid huge mpol inode32 inode64 noswap casefold usrquota grpquota".split()
    ),
    "proc": ("hidepid", "gid", "subset"),
    "devpts": ("newinstance", "ptmxmode", "mode", "uid", "gid", "max"),
    "sysfs": (),
    "mqueue": (),
    "overlay": tuple(
        "lowerdir lowerdir+ datadir+ upperdir workdir redirect_dir index nfs_export xino metacopy volatile userxattr uuid "
        "verity default_permissions".split()
    ),
}
#: What security modules add to every file system.
_LABELS = ("context", "fscontext", "defcontext", "rootcontext", "seclabel")


def file_systems() -> frozenset[str]:
    """The file systems that this kernel has now; others may be modules that it would load (proc(5), "/proc/filesystems")."""
    return frozenset(read_file("/proc/filesystems").decode("ascii", "replace").split()) - {"nodev"}


def mount_hint(text: str, mounts: tuple[MountStep, ...], mapped: bool = False) -> str:
    """What to add to *text*, the error of one of *mounts*: which word the kernel did not know, and which is likely meant.

    *mapped*: the container has a user namespace of its own.
    """
    step = next((mount for mount in mounts if text.startswith(f"{mount.where}: error mounting ")), None)
    if step is None:
        return ""
    if step.kind == "bind" and text.endswith("no such file or directory") and step.source.startswith("/"):
        return "" if _exists(step.source) else f": the host has no {clean(step.source)}"
    if step.kind in ("bind", "cgroup"):
        return ""
    if text.endswith("no such device"):
        known = tuple(sorted(file_systems()))
        return f': this kernel has no file system "{clean(step.kind)}"{_likely_type(step.kind, known)}'
    if not text.endswith("invalid argument"):
        return ""
    known = _OPTIONS.get(step.kind, ())
    owners = [word for word in step.options.data if word.startswith(("gid=", "uid=")) and not word.endswith("=0")]
    if owners and (mapped or in_user_namespace()):
        return f": {owners[0]} is likely an id that the user namespace does not map: map it, or leave that option out"
    for word in step.options.data:
        key = word.partition("=")[0]
        if key in (*known, *_LABELS):
            continue
        likely = likely_option(word, known)
        if likely or step.kind in _OPTIONS:
            return f': {clean(step.kind)} has no option "{clean(key)}"{likely}'
    return ""


def _exists(path: str) -> bool:
    try:
        posix.stat(path)
    except OSError as e:
        return e.errno != ENOENT
    return True


def _likely_type(kind: str, known: tuple[str, ...]) -> str:
    from gpurun.oci.schema import likely

    return likely(kind, (*known, "bind"))
