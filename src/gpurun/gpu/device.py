"""A GPU of any maker, or a part of one that a container can have for itself, and what can be measured of it now."""

from __future__ import annotations

from gpurun.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from gpurun.gpu.host.fdinfo import Clients
    from gpurun.gpu.host.reads import HostNode

#: Nearness of two GPUs, less is nearer: a link of the maker's own (NVLink, XGMI), one over PCIe, any other.
DIRECT, PCIE, OTHER = 10, 40, 50


class GpuDevice(Record):
    """What a container can be given: a GPU, or a part of one (a MIG device, a partition, a virtual function).

    *vendor* is a name in :data:`gpurun.gpu.vendors.VENDORS`.  *key* is the PCI address in lower case, of a part with
    ``/…`` behind it; it never changes while the host runs.  *names* are all words that a request may say for it, the first
    is what its container gets.  *index* counts the maker's GPUs.  *memory* is in bytes, -1 where it is not known;
    *numa_node* is -1 where the host does not say.  *parent* is the key of the whole GPU, empty for one that is whole.
    *nodes* are the device nodes that open only this one, all of which it takes; *more_nodes* those for other uses of it
    (drawing); *common_nodes* those of the driver that it takes to compute.  *links* are (index of the peer, nearness).
    *unwell* is why it cannot work.  *title* is what sentences call it, where it is not ``GPU`` and the index.
    """

    vendor: str
    key: str
    names: tuple[str, ...]
    index: int
    model: str = ""
    driver: str = ""
    numa_node: int = -1
    pcie_root: str = ""
    memory: int = -1
    parent: str = ""
    profile: str = ""
    nodes: tuple[HostNode, ...] = ()
    more_nodes: tuple[HostNode, ...] = ()
    common_nodes: tuple[HostNode, ...] = ()
    links: tuple[tuple[int, int], ...] = ()
    unwell: str = ""
    title: str = ""
    minor: int = 0  # of the node of the GPU: what callers read in JSON

    @property
    def name(self) -> str:
        """The id that the container gets."""
        return self.names[0] if self.names else self.key

    @property
    def qualified(self) -> str:
        """The key among the GPUs of all makers: MAKER:KEY."""
        return f"{self.vendor}:{self.key}"

    @property
    def gpu_key(self) -> str:
        """The key of the GPU that it is, or is a part of."""
        return self.parent or self.key

    @property
    def numbers(self) -> tuple[tuple[int, int], ...]:
        """(major, minor) of *nodes*."""
        return tuple([(node.major, node.minor) for node in self.nodes])

    @property
    def peers(self) -> tuple[int, ...]:
        """The indices of those that a link of the maker's own leads to."""
        return tuple([peer for peer, nearness in self.links if nearness <= DIRECT])

    @property
    def label(self) -> str:
        """What a sentence calls it."""
        return self.title or f"GPU {self.index}"


class Figure(Record):
    """A figure of a device under the name that the maker's own exporter has for it.

    The maker's room has a module ``exporter``, whose ``FIELDS`` say of each name its kind and its help.  *labels* are those
    that this figure has beside those of all the device's.
    """

    name: str
    value: float
    labels: tuple[tuple[str, str], ...] = ()


class Reading(Record):
    """What a device does now; None for what its driver does not tell.

    *load* in percent, *memory_used* in bytes, *temperature* in °C, *power* and *power_limit* in watts, *clock* and
    *memory_clock* in MHz; *errors* are (kind, how many) since the driver was loaded, *processes* (pid, bytes or None).
    *problem* is a sentence that says why nothing is known of it, *unwell* one
    that says why it cannot be relied on.  *figures* are there where they have been asked for, and
    *labels* those of all of them.
    """

    key: str
    load: int | None = None
    memory_used: int | None = None
    memory_total: int | None = None
    temperature: float | None = None
    power: float | None = None
    power_limit: float | None = None
    clock: int | None = None
    memory_clock: int | None = None
    errors: tuple[tuple[str, int], ...] = ()
    processes: tuple[tuple[int, int | None], ...] | None = ()
    problem: str = ""
    unwell: str = ""
    labels: tuple[tuple[str, str], ...] = ()
    figures: tuple[Figure, ...] = ()


class ReadingSource(Record):
    """What one device of the kernel's tells of *units*: the GPU, or the parts of one.

    *read* is given a function that says which clients its nodes have now (None: that cannot be found out), and whether
    figures are wanted; it returns a reading of each unit.  It may wait for the driver for good.
    """

    key: str
    units: tuple[GpuDevice, ...]
    read: Callable[[Callable[[], Clients | None], bool], tuple[Reading, ...]]

    @property
    def minors(self) -> frozenset[int]:
        """Those of its nodes of DRM."""
        return frozenset([node.minor for unit in self.units for node in (*unit.nodes, *unit.more_nodes)])


class Measured(Record):
    """A device, and what it does."""

    unit: GpuDevice
    reading: Reading


class Survey(Record):
    """What a look at the host has found.

    *computing* are (key, pid) of processes that compute, *loads* says by key of the GPU how busy it is; *problem* is why
    the driver did not tell that; *limits*: it can limit the memory that a cgroup has.
    """

    units: tuple[GpuDevice, ...]
    computing: tuple[tuple[str, int], ...] = ()
    loads: tuple[tuple[str, str], ...] = ()
    problem: str = ""
    limits: bool = False

    @property
    def numbers(self) -> frozenset[tuple[int, int]]:
        """(major, minor) of the nodes of all of them."""
        return frozenset([number for unit in self.units for number in unit.numbers])

    @property
    def common(self) -> frozenset[tuple[int, int]]:
        """(major, minor) of the nodes of the drivers that it takes to compute."""
        return frozenset([(node.major, node.minor) for unit in self.units for node in unit.common_nodes])


def whole_keys(units: tuple[GpuDevice, ...]) -> frozenset[str]:
    """The keys of the GPUs of *units* that are divided: parts of them are there as well."""
    keys = {unit.key for unit in units}
    return frozenset([unit.parent for unit in units if unit.parent in keys])


def units_of(units: tuple[GpuDevice, ...], numbers: frozenset[tuple[int, int]]) -> tuple[GpuDevice, ...]:
    """Those of *units* that device nodes with these (major, minor) open; parts in the place of their GPU."""
    mine = [unit for unit in units if unit.nodes and numbers.issuperset(unit.numbers)]
    divided = {unit.gpu_key for unit in mine if unit.parent}
    return tuple([unit for unit in mine if unit.parent or unit.key not in divided])
