"""Nodes of the host that the caller cannot open, and the group that could: without root their permissions decide."""

from __future__ import annotations

import posix
from _stat import S_IMODE

from gpurun.linux.files import read_file
from gpurun.linux.procfs import in_user_namespace

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

_MODE_MENDS = "`modprobe nvidia NVreg_DeviceFileMode=0666` (in /etc/modprobe.d) lets all users"
_UDEV_MENDS = 'a rule of udev\'s with GROUP="render", MODE="0660" gives them to a group'
#: Why a container of a Slurm job does not get a GPU of the host.
NOT_OF_THE_JOB = "the caller's Slurm job may not open it, by the device rules of its cgroup"
_KEEP = 'the annotation "run.oci.keep_original_groups": "1" (podman --group-add keep-groups)'


def is_confined() -> bool:
    """Whether the caller is anybody but the host's root, who may open all nodes."""
    return posix.geteuid() != 0 or in_user_namespace()


def closed_by_job(paths: Iterable[str]) -> frozenset[str]:
    """Those of the device nodes at *paths* that the caller's Slurm job is not to use.

    Slurm restricts a job by the device rules of its cgroup, which access(2) asks as well.  A container is often made in a
    cgroup elsewhere, whose rules would let it have them.  Empty for a caller in no job.
    """
    return frozenset([path for path in paths if not _may_open(path)]) if _in_slurm_job() else frozenset()


def nvidia_closed_by_job(dev: str) -> frozenset[int]:
    """The minors of the GPUs of NVIDIA's below *dev* (``/dev``) that the caller's Slurm job is not to use."""
    if not _in_slurm_job():
        return frozenset()
    try:
        names = posix.listdir(dev)
    except OSError:
        return frozenset()
    minors = {f"{dev}/{name}": int(name[6:]) for name in names if name.startswith("nvidia") and name[6:].isdigit()}
    return frozenset([minors[path] for path in closed_by_job(minors)])


def _in_slurm_job() -> bool:
    try:
        return b"slurm" in read_file("/proc/self/cgroup")
    except OSError:
        return False


def _may_open(path: str) -> bool:
    """False where not the permissions of the node *path* but rules of a cgroup keep the caller from it."""
    try:
        found = posix.stat(path)
    except OSError:
        return True
    mode, user = found.st_mode, posix.geteuid()
    by_mode = user == 0 or mode & 0o006 == 0o006 or (found.st_uid == user and mode & 0o600 == 0o600)
    by_group = mode & 0o060 == 0o060 and found.st_gid in (posix.getegid(), *posix.getgroups())
    return not (by_mode or by_group) or posix.access(path, posix.R_OK | posix.W_OK, effective_ids=True)


def closed_nodes(
    paths: Iterable[str], keeps_groups: bool = True, mode_mends: str = "", has: frozenset[int] = frozenset()
) -> str:
    """Which of the nodes at *paths* a container of the caller cannot open, why, and what to do; "" where it can open all.

    Unless it *keeps_groups*, what the caller may do only as a member of a group, the container may not, but for the groups
    that it *has* itself.  *mode_mends* is what to do about nodes that no group may open, where it is not what the node's
    driver usually takes.
    """
    closed: dict[str, list[str]] = {}
    for path in paths:
        try:
            found = posix.stat(path)
        except OSError:
            continue  # what is missing is reported elsewhere
        mode = S_IMODE(found.st_mode)
        if mode & 0o006 == 0o006 or (mode & 0o060 == 0o060 and found.st_gid in has):
            continue
        opened = posix.access(path, posix.R_OK | posix.W_OK, effective_ids=True)
        if opened and (keeps_groups or found.st_uid == posix.geteuid()):
            continue
        group = group_name(found.st_gid)
        if opened:
            what = f"only the group {group} can open them, and the container does not keep the caller's groups: {_KEEP}"
        elif mode & 0o060 == 0o060:
            nameless = f"it has no name: `groupadd -g {group} NAME`, " if group.isdigit() else ""
            join = f"{nameless}`usermod -aG {'NAME' if nameless else group} USER`, a new login, and {_KEEP}"
            what = f"the group {group} can (mode {mode:04o}), this user is not in it: {join}"
        else:
            usual = _MODE_MENDS if path.rpartition("/")[2].startswith("nvidia") else _UDEV_MENDS
            what = f"their mode is {mode:04o}: {mode_mends or usual}"
        closed.setdefault(what, []).append(path)
    return "; ".join([f"{', '.join(names)}: {what}" for what, names in closed.items()])


def group_name(gid: int) -> str:
    """The name of the group *gid* in /etc/group, or its number."""
    try:
        lines = read_file("/etc/group").decode("utf-8", "surrogateescape").splitlines()
    except OSError:
        lines = []
    return next((line.partition(":")[0] for line in lines if line.split(":")[2:3] == [str(gid)]), str(gid))
