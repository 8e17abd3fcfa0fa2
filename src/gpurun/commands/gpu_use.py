"""Who has which device: the containers of gpurun, by what is in their /dev, and processes, by what they have open.

Nothing is remembered for this: what a container can use is what is there, however it came there.
"""

from __future__ import annotations

import glob
import posix
import stat

from gpurun.engine import state as store
from gpurun.errors import GpurunError
from gpurun.gpu.leases.container_nodes import cgroup_of, command_of, containers_with_nodes, mount_namespace, nodes_of
from gpurun.gpu.leases.grants import Grants
from gpurun.gpu.nvidia.cdi.stale import library_version
from gpurun.linux.mountinfo import mounts
from gpurun.linux.procfs import cgroups
from gpurun.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from gpurun.gpu.device import Survey

#: Where the clients keep the states of containers, beside gpurun's own default.
_CLIENT_ROOTS = (
    "/run/docker/runtime-*/*",
    "/run/containerd/runc/*",
    "/run/containers/*",
    "/run/runc",
    "/run/user/*/gpurun",
)


class Held(Record):
    """A live container: *devices* are the (major, minor) of the character devices of the driver's names in its /dev.

    *pid* is its init, *cgroup* its path as /proc/PID/cgroup has it, *root* its state directory, empty for a container of
    another runtime.
    """

    id: str
    pid: int
    cgroup: str
    devices: tuple[tuple[int, int], ...]
    root: str = ""


class Holder(Record):
    """A process that has a device open; *container* is empty for one of the host."""

    pid: int
    command: str
    container: str


def state_roots(root: str, given: bool) -> tuple[str, ...]:
    """The state directories to look at: only *root* when it was *given*, else also those of the known clients."""
    if given:
        return (root,)
    return (root, *[path for pattern in _CLIENT_ROOTS for path in sorted(glob.glob(pattern)) if path != root])


def containers_of(roots: tuple[str, ...]) -> tuple[Held, ...]:
    """The live containers in *roots* that have a device of NVIDIA's; what cannot be seen is left out."""
    found = []
    for root, state in store.live_containers(roots):
        try:
            devices = nodes_of(state.pid, computes=True, by_name=True)
        except GpurunError:
            continue
        if devices:
            found.append(Held(state.id, state.pid, _cgroup(state.pid, state.cgroup), tuple(sorted(devices)), root))
    return tuple(found)


def other_containers(found: Survey, held: tuple[Held, ...]) -> tuple[Held, ...]:
    """The containers beside *held* that have GPUs, whichever runtime has made them: those that `free:N` counts.

    Without a state directory, and by the 64 digits in the name of their cgroup, if that has such.  Raises GpurunError.
    """
    numbers = found.numbers
    mine = {mount_namespace(str(one.pid)) for one in held}
    others = []
    for one in containers_with_nodes(Grants(numbers, found.common)):
        if one.namespace not in mine and one.devices & numbers:
            path = cgroup_of(one.pid)
            others.append(Held(container_id_of(path), one.pid, path, tuple(sorted(one.devices))))
    return tuple(others)


def container_id_of(path: str) -> str:
    """The id in the cgroup *path* of an engine's container; empty where it has none."""
    for part in reversed(path.split("/")):
        digits = part.removesuffix(".scope").rpartition("-")[2]
        if len(digits) == 64 and digits.isalnum():
            return digits
    return ""


def with_another_driver(held: tuple[Held, ...], loaded: str) -> tuple[tuple[str, str], ...]:
    """(id, driver version) of each container whose driver libraries are not those of the *loaded* kernel module.

    The names of the files that are mounted say it, whichever runtime or hook has mounted them.
    """
    found = []
    for one in held:
        try:
            versions = {version for mount in mounts(one.pid) if (version := library_version(mount.point))}
        except OSError:
            continue  # it has ended
        if versions and loaded not in versions:
            found.append((one.id, sorted(versions)[-1]))
    return tuple(found)


def holders(devices: tuple[tuple[int, int], ...], held: tuple[Held, ...]) -> dict[tuple[int, int], tuple[Holder, ...]]:
    """Device → the processes that have it open, of all that may be seen."""
    wanted = {posix.makedev(*device): device for device in devices}
    found: dict[tuple[int, int], list[Holder]] = {}
    for pid in sorted([int(name) for name in posix.listdir("/proc") if name.isdigit()]):
        for number in _open_devices(pid) & set(wanted):
            found.setdefault(wanted[number], []).append(Holder(pid, command_of(pid), _container(pid, held)))
    return {device: tuple(processes) for device, processes in found.items()}


def _open_devices(pid: int) -> set[int]:
    """The numbers of the character devices that process *pid* has open."""
    numbers = set()
    try:
        for fd in posix.listdir(f"/proc/{pid}/fd"):
            try:
                opened = posix.stat(f"/proc/{pid}/fd/{fd}")
            except OSError:
                continue  # closed meanwhile
            if stat.S_ISCHR(opened.st_mode):
                numbers.add(opened.st_rdev)
    except OSError:
        pass  # another user's, or gone
    return numbers


def _cgroup(pid: int, directory: str) -> str:
    """The path of the container's cgroup, which its init is in or below; *directory* ends with the cgroup's name."""
    name = directory.rpartition("/")[2]
    above, found, _ = f"{_cgroup_of(pid)}/".partition(f"/{name}/")
    return f"{above}/{name}" if name and found else ""


def _cgroup_of(pid: int) -> str:
    """The cgroup v2 of the process *pid*, as this process sees the tree; empty when it is gone."""
    try:
        return next((path for controllers, path in cgroups(pid) if not controllers), "")
    except OSError:
        return ""


def _container(pid: int, held: tuple[Held, ...]) -> str:
    """The container of the process *pid*."""
    path = _cgroup_of(pid) + "/"
    return next((h.id for h in held if h.cgroup and path.startswith(h.cgroup + "/")), "")
