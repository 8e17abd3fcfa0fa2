"""explain --running: the GPUs of a container that there is, by its records and by what is in its /dev now."""

from __future__ import annotations

from gpurun.engine import kept
from gpurun.engine import state as store
from gpurun.engine.gpus.attached import load_attached
from gpurun.engine.gpus.device_edits import own_environment
from gpurun.errors import GpurunError
from gpurun.gpu.device import units_of
from gpurun.gpu.leases.container_nodes import nodes_of
from gpurun.gpu.leases.survey import survey
from gpurun.gpu.nvidia.cdi.stale import library_version
from gpurun.gpu.vendors import VENDORS
from gpurun.linux.mountinfo import mounts
from gpurun.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from gpurun.gpu.device import GpuDevice


_OF_GPUS = {vendor.numbers[0]: range(vendor.numbers[1], vendor.numbers[2] + 1) for vendor in VENDORS}
_NVIDIA = VENDORS[0].numbers[0]


class ContainerGpu(Record):
    """A GPU or MIG device: *name* is its UUID, *node* the path that its number usually has.

    *since* is ``create``, ``attach``, ``hidden`` for one that it was given and whose node is not in its /dev, or ``inside``
    for one that it was not given and has a node of.
    """

    shown: str
    name: str
    node: str
    since: str


def gpus_of_container(root: str, state: store.State, alive: bool) -> tuple[ContainerGpu, ...]:
    """What create has given to the container and attach since.  Raises :class:`GpurunError` for records that are damaged."""
    record = load_attached(root, state.id)
    taken = {(node.major, node.minor) for node in record.denied}
    made = {*kept.load_gpus(root, state.id)} - taken
    attached = {(node.major, node.minor) for node in record.nodes}
    now = nodes_of(state.pid, computes=True) if alive else frozenset(made | attached)
    found: list[ContainerGpu] = []
    known: set[tuple[int, int]] = set()
    for unit in _units(frozenset(made | attached | now)):
        numbers = set(unit.numbers)
        known |= numbers
        since = "attach" if numbers & attached else "create" if numbers & made else "inside"
        since = since if numbers <= now else "hidden"
        found.append(ContainerGpu(unit.label, unit.name, _node(unit), since))
    for major, minor in sorted((made | attached) - known):  # the host has had another driver since, or none
        if minor in _OF_GPUS.get(major, ()):
            since = "attach" if (major, minor) in attached else "create"
            path = f"/dev/{'nvidia' if major == _NVIDIA else 'dri/renderD'}{minor}"
            found.append(ContainerGpu("a GPU that this host does not have now", "", path, since))
    return tuple(found)


def _node(unit: GpuDevice) -> str:
    """The path that opens *unit*, of a MIG device that of its GPU."""
    return unit.nodes[0].path if unit.nodes[0].minor == unit.minor else f"/dev/nvidia{unit.minor}"


def _units(numbers: frozenset[tuple[int, int]]) -> tuple[GpuDevice, ...]:
    env = own_environment()
    try:
        return units_of(survey(env, ask=False).units, numbers)
    except GpurunError:  # a configuration that cannot be read is the doctor's business
        return ()


def gpu_lines(gpus: tuple[ContainerGpu, ...]) -> list[str]:
    """A line for each of *gpus*."""
    words = {"attach": ", attached since", "hidden": ", whose node is not in its /dev", "inside": ", made in the container"}
    return [f"{gpu.shown}: {gpu.node} {gpu.name}".rstrip() + words.get(gpu.since, "") for gpu in gpus]


def driver_of_container(pid: int) -> str:
    """The version of the driver whose libraries the process *pid* sees; empty where it sees none."""
    try:
        versions = {version for mount in mounts(pid) if (version := library_version(mount.point))}
    except (GpurunError, OSError):
        return ""
    return ", ".join(sorted(versions))
