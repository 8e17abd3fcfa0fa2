"""explain --running: the GPUs of a container that there is, by its records and by what is in its /dev now."""

from __future__ import annotations

from gpurun.engine import kept
from gpurun.engine import state as store
from gpurun.engine.gpus.attach_view import recorded_units
from gpurun.engine.gpus.attached import load_attached
from gpurun.engine.gpus.device_edits import own_environment
from gpurun.errors import GpurunError
from gpurun.gpu.device import units_of
from gpurun.gpu.leases.container_nodes import has_node, nodes_of
from gpurun.gpu.leases.survey import survey
from gpurun.gpu.nvidia.cdi.stale import library_version
from gpurun.gpu.vendors import VENDORS, module
from gpurun.linux.mountinfo import mounts
from gpurun.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from gpurun.gpu.device import GpuDevice
    from gpurun.gpu.vendors import GivenGpu


_OF_GPUS = {vendor.numbers[0]: range(vendor.numbers[1], vendor.numbers[2] + 1) for vendor in VENDORS}
_NVIDIA = VENDORS[0].numbers[0]
_GONE = "a GPU that this host does not have now"


class ContainerGpu(Record):
    """A GPU or MIG device: *name* is its UUID, *node* the path that its number usually has, *key* what it is among the GPUs
    of all makers (MAKER:KEY), as far as that is known.  Accelerators that are no GPUs have none.

    *since* is ``create``, ``attach``, ``hidden`` for one that it was given and whose node is not in its /dev, ``inside``
    for one that it was not given and has a node of, or ``moved`` for one whose driver has given it the number of the GPU
    *given* (MAKER:KEY), which is what the container was given.
    """

    shown: str
    name: str
    node: str
    since: str
    key: str = ""
    given: str = ""


def gpus_of_container(root: str, state: store.State, alive: bool) -> tuple[ContainerGpu, ...]:
    """What create has given to the container and attach since.  Raises :class:`GpurunError` for records that are damaged."""
    record = load_attached(root, state.id)
    taken = {(node.major, node.minor) for node in record.denied}
    records = {one.number: one for one in kept.load_given(root, state.id) if one.number not in taken}
    made = set(records)
    attached = {(node.major, node.minor) for node in record.nodes}
    owners = {(node.major, node.minor): gpu.key for gpu in record.gpus for node in gpu.nodes}
    now = nodes_of(state.pid, computes=True) if alive else frozenset(made | attached)
    found: list[ContainerGpu] = []
    known: set[tuple[int, int]] = set()
    keys: set[str] = set()
    for unit in _units(frozenset(made | attached | now), tuple(records.values())):
        numbers = set(unit.numbers)
        known |= numbers
        keys |= {unit.qualified, f"{unit.vendor}:{unit.gpu_key}", unit.key}
        since = "attach" if numbers & attached else "create" if numbers & made else "inside"
        since = since if numbers <= now else "hidden"
        was = [records[number].gpu for number in unit.numbers if number in records and records[number].gpu]
        moved = was[0] if was and unit.qualified not in was else ""
        found.append(ContainerGpu(unit.label, unit.name, _node(unit), "moved" if moved else since, unit.qualified, moved))
    for number in sorted((made | attached) - known):  # the host has had another driver since, or none
        gpu = records[number].gpu if number in records else ""
        if number[1] not in _OF_GPUS.get(number[0], ()) or not keys.isdisjoint((gpu, owners.get(number))):
            continue  # no node of a GPU, or one for drawing of a GPU that has been listed
        keys |= {gpu} if gpu else set()
        path = f"/dev/{'nvidia' if number[0] == _NVIDIA else 'dri/renderD'}{number[1]}"
        since = "attach" if number in attached else "create"
        found.append(ContainerGpu(_GONE, gpu.partition(":")[2], path, since, gpu, gpu))
    return tuple(found)


def accelerators_of_container(env: tuple[str, ...], pid: int) -> tuple[ContainerGpu, ...]:
    """The accelerators that are no GPUs of a container with that ``process.env``; *pid* is 0 for one that has stopped.

    They are given only by name and when a container is made, so its variable says which.
    """
    own_env = own_environment()
    found = []
    for vendor in VENDORS:
        if vendor.accelerators[0] and any(e.startswith(f"{vendor.accelerators[0]}=") for e in env):
            for one in module(vendor.name, "survey").accelerators_given(env, own_env):
                node = one.nodes[0] if one.nodes else None
                there = node is not None and (not pid or has_node(pid, node.path, (node.major, node.minor)))
                path = node.path if node is not None else ""
                found.append(ContainerGpu(one.label, one.pci, path, "create" if there else "hidden"))
    return tuple(found)


def _node(unit: GpuDevice) -> str:
    """The path that opens *unit*, of a MIG device that of its GPU."""
    return unit.nodes[0].path if unit.nodes[0].minor == unit.minor else f"/dev/nvidia{unit.minor}"


def _units(numbers: frozenset[tuple[int, int]], given: tuple[GivenGpu, ...]) -> tuple[GpuDevice, ...]:
    env = own_environment()
    try:
        units = survey(env, ask=False).units
        return units_of(units, numbers.union(*[unit.numbers for unit in recorded_units(given, units)]))
    except GpurunError:  # a configuration that cannot be read is the doctor's business
        return ()


def gpu_lines(gpus: tuple[ContainerGpu, ...]) -> list[str]:
    """A line for each of *gpus*."""

    def more(gpu: ContainerGpu) -> str:
        return f", where {gpu.given.partition(':')[2]} was given" if gpu.since == "moved" else words.get(gpu.since, "")

    words = {"attach": ", attached since", "hidden": ", whose node is not in its /dev", "inside": ", made in the container"}
    return [f"{gpu.shown}: {gpu.node} {gpu.name}".rstrip() + more(gpu) for gpu in gpus]


def driver_of_container(pid: int) -> str:
    """The version of the driver whose libraries the process *pid* sees; empty where it sees none."""
    try:
        versions = {version for mount in mounts(pid) if (version := library_version(mount.point))}
    except (GpurunError, OSError):
        return ""
    return ", ".join(sorted(versions))
