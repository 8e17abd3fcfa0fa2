"""create's side of leases: who the container is, what the site says, and when its init is there.

Imported only for a container that asks for free GPUs, or whose site wants to know of all that have any.
"""

from __future__ import annotations

import posix

from gpurun.decimals import number_list
from gpurun.engine.signals import send_signal
from gpurun.engine.site_config import read_leases, site_path
from gpurun.gpu.leases import allocator
from gpurun.gpu.leases.lease import Lease
from gpurun.gpu.leases.liveness import cgroup_inode
from gpurun.gpu.leases.names import of_container
from gpurun.gpu.leases.store import Store, directory, other_directories
from gpurun.gpu.leases.terms import expire
from gpurun.linux.procfs import parent
from gpurun.record import Record, replace

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from gpurun.engine.plan.container import Plan
    from gpurun.engine.state import State
    from gpurun.gpu.leases.policy import LeasePolicy
    from gpurun.gpu.request.free import FreeRequest
    from gpurun.oci.config import Config


class StoredLease(Record):
    """A lease, and where it is kept."""

    lease: Lease
    path: str


def open_store(own_env: Mapping[str, str]) -> Store:
    """The leases that this caller sees, and may add to."""
    path = directory(own_env)
    return Store(path, other_directories(path, own_env))


def site_policy() -> LeasePolicy:
    """What the site says of leases; raises :class:`ConfigError`."""
    return read_leases(site_path(posix.environ))


def requester_of(config: Config, container_id: str, root: str, source: str, monitor: int = 0) -> allocator.Requester:
    """The container that asks for GPUs; *monitor* is the parent of a running one (maybe Podman's), by default our caller."""
    mounts = tuple([(mount.source, mount.destination) for mount in config.mounts])
    known = of_container(container_id, config.annotations, mounts, monitor or posix.getppid())
    return allocator.Requester(container_id, root, known, posix.geteuid(), _near(config), source)


def _near(config: Config) -> frozenset[int]:
    """The NUMA nodes with CPUs that the config names; none where it names none, for then all are alike."""
    resources = config.linux.resources
    cpus = number_list(resources.cpu.cpus) if resources is not None and resources.cpu is not None else None
    if cpus is None:
        return frozenset()  # none are named, or it is no list, which is refused where it counts
    from gpurun.cgroup.tree import numa_nodes

    return frozenset([node for node, listed in numa_nodes() if cpus & (number_list(listed) or frozenset())])


def grant(
    request: FreeRequest,
    own_env: Mapping[str, str],
    config: Config,
    container_id: str,
    root: str,
    had: frozenset[str] = frozenset(),
) -> tuple[tuple[str, ...], StoredLease]:
    """The GPUs that the container gets for *request*, rather those that it *had*.

    Raises :class:`GpurunError`.  Returns (names, lease).
    """
    store, policy = open_store(own_env), site_policy()
    requester = replace(requester_of(config, container_id, root, request.source), had=had)
    expire(store, policy, send_signal)
    lease, names = allocator.allocate(request, own_env, policy, store, requester)
    return names, StoredLease(lease, store.path)


def preview(
    request: FreeRequest, own_env: Mapping[str, str], config: Config | None = None
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """What :func:`grant` would choose now, and a warning that says so; nothing is noted.

    Raises :class:`GpurunError` with what stands against it.  Returns (names, warnings).
    """
    requester = allocator.Requester("", "", user=posix.geteuid(), source=request.source)
    if config is not None:
        requester = requester_of(config, "", "", request.source)
    choice = allocator.preview(request, own_env, site_policy(), open_store(own_env), requester)
    return tuple([unit.name for unit in choice.chosen]), (allocator.preview_text(request, choice),)


def bind(stored: StoredLease, state: State) -> None:
    """From now on the lease is that of the container *state*, which has an init, and no more that of this process.

    Raises :class:`GpurunError`.
    """
    cgroup = "" if state.private_pid else state.cgroup
    inode = cgroup_inode(cgroup) if cgroup else 0
    store = Store(stored.path)
    with store:
        # It may have been released meanwhile, and stays so.
        now = store.current(stored.lease) or stored.lease
        store.save(replace(now, pid=state.pid, start_time=state.start_time, cgroup=cgroup, cgroup_inode=inode))


def grant_more(
    request: FreeRequest, own_env: Mapping[str, str], config: Config, state: State, root: str
) -> tuple[tuple[str, ...], StoredLease]:
    """As :func:`grant`, for a container that runs: beside what it has.  It is this process' until :func:`bind`.

    Returns (names, lease).
    """
    store = open_store(own_env)
    requester = replace(requester_of(config, state.id, root, request.source, parent(state.pid)), part=_new_part())
    lease, names = allocator.allocate(request, own_env, site_policy(), store, requester)
    return names, StoredLease(lease, store.path)


def note_more(
    nodes: tuple[tuple[int, int], ...],
    own_env: Mapping[str, str],
    config: Config,
    state: State,
    root: str,
) -> tuple[str, StoredLease | None]:
    """What the site says to a container that runs and gets GPUs by name: a warning or "", and what was noted, which is this
    process' until :func:`bind`.

    Raises :class:`GpurunError` where it says no.  Returns (warning, lease or None).
    """
    policy = site_policy()
    if policy.shared == "share":
        return "", None
    store = open_store(own_env)
    requester = replace(requester_of(config, state.id, root, "", parent(state.pid)), part=_new_part())
    text, made = allocator.record_named(nodes, own_env, policy, store, requester)
    return text, StoredLease(made, store.path) if made is not None else None


def _new_part() -> str:
    return posix.urandom(8).hex()


def leased_keys(state: State, own_env: Mapping[str, str]) -> frozenset[str]:
    """The keys of the GPUs and MIG devices that the leases of the running container *state* name."""
    mine = [
        lease for lease in open_store(own_env).leases() if (lease.pid, lease.start_time) == (state.pid, state.start_time)
    ]
    return frozenset([unit.key for lease in mine if lease.kind != "released" for unit in lease.units])


def remove_leases(files: tuple[tuple[str, str], ...]) -> None:
    """Forget the leases in these *files* (directory, name), as far as they are there: an attach that is undone."""
    for path, name in files:
        store = Store(path)
        with store:
            for lease in [lease for lease in store.leases() if lease.file == name]:
                store.remove(lease)


def give_back(state: State, keys: frozenset[str], own_env: Mapping[str, str]) -> None:
    """The container *state* has the GPUs with these *keys* no more.

    It is known by its init: its state directory has as many paths as there are links to it (/var/run, /run).
    """
    store = open_store(own_env)
    with store:
        for lease in store.own_leases():
            if (lease.pid, lease.start_time) != (state.pid, state.start_time) or not keys & {
                unit.key for unit in lease.units
            }:
                continue
            left = tuple([unit for unit in lease.units if unit.key not in keys])
            if left:
                store.save(replace(lease, units=left))
            else:
                store.remove(lease)
        store.note_use(sorted(keys))


def record_named_gpus(
    plan: Plan, config: Config, root: str, own_env: Mapping[str, str], own_leases: list[StoredLease]
) -> Plan:
    """*plan* of a container that has GPUs without a lease, with what the site says to that.  What is noted is added to
    *own_leases*.

    Raises :class:`GpurunError` where it says no.
    """
    policy = site_policy()
    if policy.shared == "share":
        return plan
    nodes = [(node.major, node.minor) for node in plan.init.edits.device_nodes]
    nodes += [(step.major, step.minor) for step in plan.init.devices]
    store = open_store(own_env)
    requester = requester_of(config, plan.id, root, "")
    text, made = allocator.record_named(tuple(nodes), own_env, policy, store, requester)
    if made is not None:
        own_leases.append(StoredLease(made, store.path))
    return replace(plan, warnings=(*plan.warnings, text)) if text else plan
