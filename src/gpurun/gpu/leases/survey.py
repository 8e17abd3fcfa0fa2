"""Who has each of this host's GPUs now: leases, containers of any engine, processes.

The drivers are asked once, before anything is locked; what only they know is not known where they do not answer.
"""

from __future__ import annotations

import posix

from gpurun.errors import clean
from gpurun.formats.globs import matches
from gpurun.gpu import vendors
from gpurun.gpu.device import Survey, whole_keys
from gpurun.gpu.leases import container_nodes
from gpurun.gpu.leases.grants import Grants
from gpurun.gpu.leases.liveness import own_pid_namespace
from gpurun.gpu.leases.names import of_cgroup
from gpurun.gpu.surveys import limited_survey

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from gpurun.gpu.leases.lease import Lease
    from gpurun.gpu.leases.policy import LeasePolicy

_HOW = {"lease": "leased by", "share": "shared by"}


def survey(own_env: Mapping[str, str], ask: bool = True, vendor: str = "", more: bool = False) -> Survey:
    """Look at the GPUs of this host, those of one *vendor* or of all; with *ask* the drivers are asked how they are used,
    and never for long.

    *own_env* is gpurun's environment; with *more* the nodes for other uses than computing are looked at.
    Raises :class:`GpurunError`.
    """
    rows = [row for row in vendors.present(own_env) if vendor in ("", row.name)]
    found: list[Survey] = []
    for row in rows:
        if ask and row.readings:  # a room without readings has a limit of its own
            found.append(limited_survey(row, own_env, True, more))
        else:
            found.append(vendors.module(row.name, "survey").survey(own_env, ask, more))
    return Survey(
        tuple([unit for one in found for unit in one.units]),
        tuple([pair for one in found for pair in one.computing]),
        tuple([pair for one in found for pair in one.loads]),
        "; ".join([one.problem for one in found if one.problem]),
        any(one.limits for one in found),
    )


def holders(
    found: Survey, leases: tuple[Lease, ...], policy: LeasePolicy, own: tuple[str, str] = ("", "")
) -> dict[str, str]:
    """Key → its holder, as the end of a sentence; *own* is (root, id) of a container whose own lease does not count."""
    taken: dict[str, str] = {}
    here = own_pid_namespace()
    gone = [one.pid for one in leases if one.kind == "released" and one.pid and one.pid_namespace == here]
    released = {container_nodes.mount_namespace(str(pid)) for pid in gone} - {0}
    for lease in leases:
        if lease.kind == "released" or (lease.root, lease.id) == own:
            continue
        by = f"{_HOW.get(lease.kind, 'in')} {describe_lease(lease)}"
        for unit in lease.units:
            taken.setdefault(unit.key, by)
    for container in container_nodes.containers_with_nodes(Grants(found.numbers, found.common)):
        if container.namespace in released:
            continue
        keys = [unit.key for unit in found.units if unit.nodes and container.devices.issuperset(unit.numbers)]
        divided = whole_keys(found.units) & {key.partition("/")[0] for key in keys if "/" in key}
        keys = [key for key in keys if key not in divided and key not in taken]
        if keys:
            known = of_cgroup(container_nodes.cgroup_of(container.pid))
            if any(matches(known.name, pattern) for pattern in policy.ignore):
                continue
            name = known.name or container_nodes.command_of(container.pid)
            who = f"container {name}" if name else "a container that is just ending"
            taken.update(dict.fromkeys(keys, f"{who} has it (process {container.pid})"))
    for key, pid in found.computing:
        if key not in taken and is_there(pid):
            taken[key] = f"process {pid} ({container_nodes.command_of(pid) or '?'}) of the host computes on it"
    return taken


def is_there(pid: int) -> bool:
    """Whether there is such a process; one of a pid namespace that is not ours is not to be seen."""
    try:
        posix.stat(f"/proc/{pid}")
    except (FileNotFoundError, ProcessLookupError):
        return False
    except OSError:
        pass  # whether there is one could not be seen
    return True


def describe_lease(lease: Lease) -> str:
    """Who has a lease, of which engine, since when."""
    engine = f" of {clean(lease.engine)}" if lease.engine else ""
    return f"{clean(lease.label)}{engine} since {format_time(lease.since)}"


def format_time(nanoseconds: int) -> str:
    """A time as people read it, in UTC."""
    import time

    return time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(nanoseconds // 10**9))
