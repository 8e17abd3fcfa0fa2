"""AMD's GPUs and their partitions, as KFD and sysfs tell of them, in AMD's order.

The order is that of AMD's own tools, so an index means the same GPU there and here: PCI devices, then partitions, by
their directories' names; grouped by the GPU that they are of, in a group by the render node's number.  What KFD does not
have cannot compute and does not count.
"""

from __future__ import annotations

from gpurun.decimals import decimal
from gpurun.gpu.host.drm import (
    DrmDevice,
    devices_of_driver,
    distinct,
    drm_nodes,
    is_pci_address,
    node_of_sysfs,
)
from gpurun.gpu.host.reads import exists, names_in, read_attribute
from gpurun.record import Record, replace

TYPE_CHECKING = False
if TYPE_CHECKING:
    from gpurun.gpu.host.reads import HostNode

DRIVER = "amdgpu"
TOPOLOGY = "/sys/class/kfd/kfd/topology/nodes"
#: Types of a link (KFD's HSA_IOLINKTYPE).
XGMI, PCIE = 11, 2
#: KFD writes more than a page of properties of no node; hosts have fewer nodes, and a node fewer links and banks.
_MOST_NODES, _MOST_LINKS, _MOST_BANKS = 1024, 1024, 16
_PARTITION_BITS = 7  # of location_id, where the function of a PCI device would be


class KfdNode(Record):
    """A node of KFD that is a GPU or a partition of one: *number* is its directory's, *properties* the driver's own."""

    number: int
    pci: str
    partition: int
    properties: dict[str, int]

    def value(self, name: str) -> int:
        """The property *name*; 0 where this kernel does not tell it."""
        return self.properties.get(name, 0)


class AmdGpu(Record):
    """A GPU, or a partition of one.

    *pci* is the address of the GPU, *partition* its number there, -1 for a GPU that is not divided; *profile* is like
    ``cpx_nps4``, empty where the GPU cannot be divided.  *silent* says that the driver does not tell it; the profile is then
    the one that this process has last read.  *unique_ids* are 16 hex digits each: the board's, and what KFD says, which
    on newer kernels is another one for a partition.  *memory* is in bytes, -1 where it is not known.  *target* is like
    ``gfx942``.  *hive* is that of XGMI, 0 for none.
    """

    index: int
    drm: DrmDevice
    kfd: KfdNode
    pci: str
    partition: int
    profile: str
    unique_ids: tuple[str, ...]
    model: str
    memory: int
    numa_node: int
    silent: str = ""

    @property
    def key(self) -> str:
        """What it is called as long as the host runs: numbers of its nodes may change at the next boot."""
        return self.pci if self.partition < 0 else f"{self.pci}/{self.partition}"

    @property
    def target(self) -> str:
        """The name of its instruction set, ``gfx90a``."""
        version = self.kfd.value("gfx_target_version")
        return f"gfx{version // 10000}{version // 100 % 100:x}{version % 100:x}"

    @property
    def compute_units(self) -> int:
        """How many compute units it has."""
        return self.kfd.value("simd_count") // (self.kfd.value("simd_per_cu") or 1)


def kfd_nodes(sysroot: str) -> tuple[KfdNode, ...]:
    """The GPUs and partitions of KFD, by the number of their node.

    A GPU that the caller's device cgroup denies has properties that cannot be read; it is left out.
    """
    base = sysroot + TOPOLOGY
    numbers = [decimal(name, _MOST_NODES) for name in names_in(base)]
    found = []
    for number in sorted([number for number in numbers if number is not None]):
        properties = _properties(f"{base}/{number}/properties")
        if properties.get("cpu_cores_count") or not properties.get("gfx_target_version"):
            continue
        location = properties.get("location_id", 0)
        bus, slot = location >> 8 & 0xFF, location >> 3 & 0x1F
        pci = f"{properties.get('domain', 0) & 0xFFFFFFFF:04x}:{bus:02x}:{slot:02x}.0"
        found.append(KfdNode(number, pci, location & _PARTITION_BITS, properties))
    return tuple(found)


def amd_gpus(sysroot: str) -> tuple[AmdGpu, ...]:
    """The GPUs and partitions of the host below *sysroot* (empty for ``/``), in AMD's order."""
    if not exists(f"{sysroot}/sys/module/{DRIVER}/drivers"):
        return ()
    whole = devices_of_driver(sysroot, DRIVER)
    devices = distinct((*whole, *_platform_devices(sysroot)))
    nodes = kfd_nodes(sysroot)
    groups: dict[str, list[tuple[int, DrmDevice, KfdNode]]] = {}
    for device in devices:
        if device.render is None:
            continue
        found = _node_of(device.name, device.render.minor, nodes)
        if found is not None:
            groups.setdefault(found.pci, []).append((device.render.minor, device, found))
    by_address = {device.name: device for device in whole}
    profiles = _profiles([by_address[pci].path for pci in groups if pci in by_address])
    gpus: list[AmdGpu] = []
    for pci, members in groups.items():
        parent = by_address.get(pci)
        profile, silent = profiles[parent.path] if parent is not None else ("", "")
        divided = len(members) > 1 or not (profile == "" or profile.startswith("spx"))
        seen: set[int] = set()
        for _, device, node in sorted(members, key=lambda member: member[0]):
            if node.partition in seen:
                continue  # of two that say to be the same one, the first: a key means one device
            seen.add(node.partition)
            gpus.append(replace(_gpu(sysroot, len(gpus), device, parent, node, profile, divided), silent=silent))
    return tuple(gpus)


def _node_of(name: str, render: int, nodes: tuple[KfdNode, ...]) -> KfdNode | None:
    """KFD's node of the device *name* with the render node *render*; that of a PCI device has its address as well."""
    for node in nodes:
        if node.value("drm_render_minor") == render and (node.pci == name or not is_pci_address(name)):
            return node
    return None


def kfd_node(sysroot: str) -> HostNode | None:
    """/dev/kfd, which all that compute open; None where KFD is not."""
    return node_of_sysfs(sysroot, f"{sysroot}/sys/class/kfd/kfd/dev", "/dev/kfd")


def links(sysroot: str, gpus: tuple[AmdGpu, ...]) -> tuple[tuple[tuple[int, int, int], ...], ...]:
    """For each of *gpus* the (index of the peer, type, weight) of its links to others of them.

    A file is read for each of them, so only who is to choose asks.
    """
    indices = {gpu.kfd.number: gpu.index for gpu in gpus}
    return tuple([_links_of(f"{sysroot}{TOPOLOGY}/{gpu.kfd.number}", indices) for gpu in gpus])


def _links_of(base: str, indices: dict[int, int]) -> tuple[tuple[int, int, int], ...]:
    found: dict[int, tuple[int, int, int]] = {}
    for kind in ("io_links", "p2p_links"):
        for name in names_in(f"{base}/{kind}")[:_MOST_LINKS]:
            properties = _properties(f"{base}/{kind}/{name}/properties")
            peer = indices.get(properties.get("node_to", -1))
            if peer is not None:
                found.setdefault(peer, (peer, properties.get("type", 0), properties.get("weight", 0)))
    return tuple([found[peer] for peer in sorted(found)])


def _platform_devices(sysroot: str) -> tuple[DrmDevice, ...]:
    base = f"{sysroot}/sys/devices/platform"
    names = [name for name in names_in(base) if name.startswith("amdgpu_xcp_")][:_MOST_NODES]
    found = []
    for name in names:
        card, render = drm_nodes(sysroot, f"{base}/{name}")
        found.append(DrmDevice(name, f"{base}/{name}", card, render, driver=DRIVER))
    return tuple(found)


def _profiles(paths: list[str]) -> dict[str, tuple[str, str]]:
    """Directory of a GPU → (profile, why it is not known): ``cpx_nps4``, empty where the GPU says nothing of partitions.

    Who reads the profile waits while the driver divides the GPU anew, and it may be read from the GPU.
    """
    files = {path: tuple([f"{path}/current_{kind}_partition" for kind in ("compute", "memory")]) for path in paths}
    asked = [pair for pair in files.values() if all(exists(path) for path in pair)]
    if not asked:
        return dict.fromkeys(paths, ("", ""))
    from gpurun.gpu.host.driver_reads import last_told, read_in_time, silence

    answers = read_in_time(asked)
    found = dict.fromkeys(paths, ("", ""))
    for path, pair in files.items():
        if pair in asked:
            lacking = [one for one in pair if one not in answers]
            words = [answers.get(one, last_told(one)).lower() for one in pair]
            known = all(word.isascii() and word.isalnum() for word in words)
            found[path] = ("_".join(words) if known else "", silence(lacking[0]) if lacking else "")
    return found


def _gpu(
    sysroot: str, index: int, device: DrmDevice, parent: DrmDevice | None, node: KfdNode, profile: str, divided: bool
) -> AmdGpu:
    path = parent.path if parent is not None else device.path
    ids = [f"{node.value('unique_id'):016x}", read_attribute(f"{path}/unique_id", 64).lower()]
    model = read_attribute(f"{path}/product_name", 256)
    if parent is not None and device is not parent:  # a platform device has none of these
        device = replace(
            device,
            vendor=parent.vendor,
            device=parent.device,
            numa_node=parent.numa_node,
            pcie_root=parent.pcie_root,
        )
    made = AmdGpu(
        index,
        device,
        node,
        node.pci,
        node.partition if divided else -1,
        profile,
        tuple(dict.fromkeys([i for i in ids if len(i) == 16 and i.strip("0123456789abcdef") == "" and i.strip("0")])),
        model if model.isprintable() else "",
        _memory(sysroot, node, path, divided),
        device.numa_node,
    )
    return made if made.model else replace(made, model=f"AMD GPU {device.device:#06x} ({made.target})")


def _memory(sysroot: str, node: KfdNode, path: str, divided: bool) -> int:
    """Bytes of its memory: KFD's banks, which are a partition's own; else, for a whole board, those of the board."""
    base = f"{sysroot}{TOPOLOGY}/{node.number}/mem_banks"
    banks = [_properties(f"{base}/{name}/properties") for name in names_in(base)[:_MOST_BANKS]]
    total = sum([bank.get("size_in_bytes", 0) for bank in banks])
    if not total and not divided:
        total = decimal(read_attribute(f"{path}/mem_info_vram_total", 64)) or 0
    return total or -1


def _properties(path: str) -> dict[str, int]:
    """The lines ``name value`` of a file of KFD's; a value that is not a number is left out."""
    found: dict[str, int] = {}
    for line in read_attribute(path).splitlines():
        name, _, text = line.partition(" ")
        value = decimal(text.strip())
        if value is not None:
            found.setdefault(name, value)
    return found
