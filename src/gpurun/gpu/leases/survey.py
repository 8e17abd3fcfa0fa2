"""The GPUs of this host as things to lease, and who has each of them now: leases, containers of any engine, processes.

NVML is asked once, before anything is locked; what only it knows is not known where it does not answer.
"""

from __future__ import annotations

import posix

from gpurun.errors import GpuError, clean
from gpurun.formats.globs import matches
from gpurun.gpu.leases import container_nodes
from gpurun.gpu.leases.choice import Unit
from gpurun.gpu.leases.grants import Grants
from gpurun.gpu.leases.liveness import own_pid_namespace
from gpurun.gpu.leases.names import of_cgroup
from gpurun.gpu.nvidia.host.gpus import gpus_of
from gpurun.gpu.nvidia.host.health import unwell
from gpurun.gpu.nvidia.host.nodes import read_majors
from gpurun.gpu.nvidia.host.nvml import LEASES, find_nvml, query
from gpurun.gpu.nvidia.host.roots import bus_order, dev_root
from gpurun.record import Record, replace

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from gpurun.gpu.leases.lease import Lease
    from gpurun.gpu.leases.policy import LeasePolicy
    from gpurun.gpu.nvidia.host.gpus import Gpu
    from gpurun.gpu.nvidia.host.roots import Roots

#: Seconds that NVML may take: a GPU without persistence mode takes up to one to wake.
TIMEOUT_S = 10.0
_HOW = {"lease": "leased by", "share": "shared by"}


class Survey(Record):
    """What a look at the host has found.

    *computing* are (key of the GPU, pid) of NVML's compute processes, *loads* says by key of the GPU how busy it is;
    *problem* is why NVML said nothing; *uvm* is the major of /dev/nvidia-uvm, -1 where the driver has none; *limits*: NVML
    can limit the memory that a cgroup has.
    """

    units: tuple[Unit, ...]
    computing: tuple[tuple[str, int], ...] = ()
    loads: tuple[tuple[str, str], ...] = ()
    problem: str = ""
    uvm: int = -1
    limits: bool = False


def survey(roots: Roots, ask_nvml: bool = True) -> Survey:
    """Look at the GPUs below *roots*."""
    majors = read_majors(roots)
    gpus = gpus_of(roots, dev_root(roots), majors, graphics=False)
    by_nvml: dict[tuple[int, ...], dict[str, Any]] = {}
    answer: dict[str, Any] | None = None
    problem = "" if ask_nvml else "NVML was not asked"
    if ask_nvml and gpus:
        try:
            answer = query(find_nvml(roots), LEASES, TIMEOUT_S)
            by_nvml = {bus_order(str(gpu["busId"])): gpu for gpu in answer["gpus"] if gpu.get("busId")}
        except GpuError as e:
            problem = str(e)
    ill = unwell(roots, gpus, answer, silent=ask_nvml and answer is None)
    numbers = {gpu.get("index"): bus for bus, gpu in by_nvml.items()}
    by_bus = {bus_order(gpu.bus_id): gpu.index for gpu in gpus}
    units: list[Unit] = []
    computing: list[tuple[str, int]] = []
    loads: list[tuple[str, str]] = []
    for gpu in gpus:
        known = by_nvml.get(bus_order(gpu.bus_id), {})
        peers = [by_bus.get(numbers.get(n, ()), -1) for n in known.get("nvlinks") or ()]
        key = gpu.bus_id.lower()
        made = _units(gpu, known, tuple(sorted([peer for peer in peers if peer >= 0])))
        units += [replace(unit, unwell=ill[key]) for unit in made] if key in ill else made
        computing += [(_computed_on(key, gpu, p), p["pid"]) for p in known.get("processes") or () if p["kind"] == "compute"]
        if known.get("memoryTotal"):
            loads.append((key, _load(known)))
    limits = answer is not None and bool(answer.get("memoryLimits"))
    return Survey(tuple(units), tuple(computing), tuple(loads), problem, majors.get("nvidia-uvm", -1), limits)


def _units(gpu: Gpu, known: dict[str, Any], links: tuple[int, ...]) -> list[Unit]:
    key = gpu.bus_id.lower()
    uuid = known.get("uuid") or gpu.uuid
    name = gpu.bus_id if "?" in uuid else uuid
    memory = known.get("memoryTotal") or -1
    numbers = (gpu.node.major, gpu.node.minor)
    made = [Unit(key, name, gpu.index, gpu.minor, gpu.model, gpu.numa_node, memory, links, nodes=(numbers,))]
    identities = {(m["gpuInstance"], m["computeInstance"]): m for m in known.get("migDevices") or ()}
    for mig in gpu.mig:
        found = identities.get((mig.gi, mig.ci), {})
        made.append(
            Unit(
                f"{key}/{mig.gi}/{mig.ci}",
                found.get("uuid") or f"MIG-{gpu.uuid}/{mig.gi}/{mig.ci}",
                gpu.index,
                gpu.minor,
                gpu.model,
                gpu.numa_node,
                found.get("memoryTotal") or -1,
                mig=True,
                profile=found.get("profile") or "",
                nodes=tuple([(node.major, node.minor) for node in mig.nodes]),
            )
        )
    return made


def _computed_on(key: str, gpu: Gpu, process: dict[str, Any]) -> str:
    """The key of what *process* computes on: a MIG device, where NVML says which."""
    gi, ci = process.get("gpuInstance"), process.get("computeInstance")
    return f"{key}/{gi}/{ci}" if gpu.mig and gi is not None and ci is not None else key


def _load(known: dict[str, Any]) -> str:
    gib = 1 << 30
    text = f"{(known.get('memoryUsed') or 0) / gib:.3g} of {known['memoryTotal'] / gib:.3g} GiB in use"
    rates = known.get("utilization")
    return f"{text}, load {rates['gpu']} %" if rates else text


def holders(
    found: Survey, leases: tuple[Lease, ...], policy: LeasePolicy, own: tuple[str, str] = ("", "")
) -> dict[str, str]:
    """Key → who has it, as a sentence goes on; *own* is (root, id) of a container whose own lease does not count."""
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
    numbers = frozenset([number for unit in found.units for number in unit.nodes])
    for container in container_nodes.containers_with_nodes(Grants(numbers, found.uvm)):
        if container.namespace in released:
            continue
        keys = [unit.key for unit in found.units if unit.nodes and container.devices.issuperset(unit.nodes)]
        divided = {key.partition("/")[0] for key in keys if "/" in key}
        keys = [key for key in keys if key not in divided and key not in taken]
        if keys:
            known = of_cgroup(container_nodes.cgroup_of(container.pid))
            if any(matches(known.name, pattern) for pattern in policy.ignore):
                continue
            name = known.name or container_nodes.command_of(container.pid)
            taken.update(dict.fromkeys(keys, f"container {name} has it (process {container.pid})"))
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
