"""CPUs for only one cgroup, deeper than the root of the tree: what every cgroup above it must say for that.

A partition of CPUs need not lie below another one since Linux 6.7: it is enough that each cgroup above it has the CPUs in
its ``cpuset.cpus.exclusive``.  There they are added for a container, and taken out again with it; what else is in these
lists belongs to others and stays.

Reference: admin-guide/cgroup-v2.rst, "Cpuset Interface Files".
"""

from __future__ import annotations

import posix
from errno import EINVAL, ENOENT
from fcntl import LOCK_EX, flock

from gpurun.cgroup.control import DIRECTORY
from gpurun.decimals import number_list
from gpurun.errors import GpurunError, StepError
from gpurun.linux.files import O_CLOEXEC, Fd, read_file, write_all

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from gpurun.cgroup.resources import CgroupWrite

_FILE = "cpuset.cpus.exclusive"


def find_cpus_write(writes: tuple[CgroupWrite, ...]) -> CgroupWrite | None:
    """The write that asks for CPUs of a partition's own among *writes*, if one does."""
    if not any(write.file == "cpuset.cpus.partition" and write.value != "member" for write in writes):
        return None
    return next((write for write in writes if write.file == _FILE), None)


def above(root: str, path: str) -> tuple[str, ...]:
    """The cgroups between the tree's *root* and the one at *path*, outermost first."""
    root = root.rstrip("/")
    names = path[len(root) :].strip("/").split("/")[:-1]
    return tuple([f"{root}/{'/'.join(names[: end + 1])}" for end in range(len(names))])


def lend(write: CgroupWrite, root: str, path: str, record: str) -> None:
    """Have all cgroups above *path* leave the CPUs of *write* to it; the file *record* says so before.

    Raises :class:`GpurunError`; what was done until then is for :func:`give_back` to undo.
    """
    directories = above(root, path)
    if not directories:
        return
    with Fd(posix.open(record, posix.O_WRONLY | posix.O_CREAT | posix.O_TRUNC | O_CLOEXEC, 0o600)) as fd:
        write_all(fd, "\n".join([write.value, *directories]).encode("utf-8", "surrogateescape"))
    cpus = number_list(write.value) or frozenset()
    for directory in directories:
        try:
            _change(directory, lambda held: held | cpus)
        except OSError as e:
            if e.errno == ENOENT:
                raise GpurunError(
                    f"{write.where}: exclusive CPUs of a cgroup that is not directly below the root "
                    f"need Linux 6.7 and the cpuset "
                    'controller in every cgroup above it: set linux.cgroupsPath to "/NAME" (with '
                    'systemd "-.slice:gpurun:NAME")'
                ) from None
            step = f'cannot set {write.where}: leaving the CPUs "{write.value}" to'
            raise StepError(step, directory, e.errno or EINVAL) from None


def give_back(record: str) -> None:
    """Take back what :func:`lend` has recorded, once the cgroup is gone; nothing where nothing was lent.

    Raises :class:`StepError` when the kernel refuses.
    """
    try:
        value, *directories = read_file(record).decode("utf-8", "surrogateescape").split("\n")
    except FileNotFoundError:
        return
    cpus = number_list(value) or frozenset()
    for directory in reversed(directories):
        try:
            _change(directory, lambda held: held - cpus)
        except OSError as e:
            if e.errno != ENOENT:  # with the cgroup its list has gone
                raise StepError(f'taking the CPUs "{value}" back from', directory, e.errno or EINVAL) from None


def _change(directory: str, change: Callable[[frozenset[int]], frozenset[int]]) -> None:
    """Give the list of *directory* its new content, while no other gpurun changes it."""
    with Fd(posix.open(directory, DIRECTORY)) as fd:
        flock(fd, LOCK_EX)
        held = number_list(read_file(f"{directory}/{_FILE}").decode()) or frozenset()
        new = change(held)
        if new != held:
            with Fd(posix.open(_FILE, posix.O_WRONLY | posix.O_TRUNC | posix.O_NOFOLLOW | O_CLOEXEC, dir_fd=fd)) as file:
                posix.write(file, (render(new) or "\n").encode())


def render(numbers: Iterable[int]) -> str:
    """*numbers* as a list for the kernel."""
    return ",".join([str(number) for number in sorted(numbers)])
