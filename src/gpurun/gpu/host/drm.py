"""Devices with DRM nodes, as sysfs has them: a PCI device or a partition, its card and render node, where it sits.

sysfs is read as data: a file that is missing, unreadable, huge or binary tells nothing, and no number is taken that is
not one.  A node in /dev counts only if it is the character device that sysfs names.  Only files are read whose text the
kernel has in memory: one that waits for the device belongs to :mod:`gpurun.gpu.host.driver_reads`.
"""

from __future__ import annotations

import posix
from _stat import S_ISCHR

from gpurun.decimals import decimal
from gpurun.gpu.host.reads import HostNode, link_text, lstat, names_in, read_attribute
from gpurun.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

#: The major of DRM, which is fixed (Documentation/admin-guide/devices.txt).
DRM_MAJOR = 226
#: Minors are below that; a node of DRM has one of 20 bits.
_MAX_MINOR = (1 << 20) - 1
_MAX_MAJOR = (1 << 12) - 1
_MAX_NUMA = 1 << 10
_HEX = "0123456789abcdef"
#: No host has more devices of a driver; what is beyond is not looked at.
_MOST_DEVICES = 1024


class DrmDevice(Record):
    """A device with DRM nodes: *name* is that of its directory (a PCI address, or that of a platform device), *path* the
    directory itself on this host.

    *card* and *render* are None where it has no such node (a virtual function may have no card, a server's GPU no
    display).  *vendor* and *device* are PCI ids, 0 where sysfs does not say; *numa_node* is -1 then.  *pcie_root* is like
    ``pci0000:00``.  *physfn* is the address of the GPU of which it is a virtual function, *functions* how many virtual
    functions it has itself.
    """

    name: str
    path: str
    card: HostNode | None = None
    render: HostNode | None = None
    vendor: int = 0
    device: int = 0
    driver: str = ""
    numa_node: int = -1
    pcie_root: str = ""
    physfn: str = ""
    functions: int = 0

    @property
    def nodes(self) -> tuple[HostNode, ...]:
        """Its card and its render node, those there are."""
        return tuple([node for node in (self.card, self.render) if node is not None])

    @property
    def by_path(self) -> tuple[tuple[str, str], ...]:
        """(path, text) of udev's links to its nodes; programs of users look for GPUs by them."""
        bus = "pci" if is_pci_address(self.name) else "platform"
        kinds = (("card", self.card), ("render", self.render))
        return tuple(
            [
                (f"/dev/dri/by-path/{bus}-{self.name}-{kind}", f"../{node.path.rpartition('/')[2]}")
                for kind, node in kinds
                if node is not None
            ]
        )


def is_pci_address(text: str) -> bool:
    """Whether *text* is a PCI address as sysfs writes it: ``0000:03:00.0``."""
    domain, _, rest = text.partition(":")
    bus, _, rest = rest.partition(":")
    slot, _, function = rest.partition(".")
    shape = 4 <= len(domain) <= 8 and len(bus) == 2 and len(slot) == 2 and len(function) == 1
    return shape and all(c in _HEX for c in domain + bus + slot) and function in "01234567"


def devices_of_driver(sysroot: str, driver: str) -> tuple[DrmDevice, ...]:
    """The devices with DRM nodes of the PCI *driver* (``xe``), by their address."""
    directory = f"{sysroot}/sys/bus/pci/drivers/{driver}"
    names = [name for name in names_in(directory) if is_pci_address(name)][:_MOST_DEVICES]
    found = [read_pci_device(sysroot, f"{directory}/{name}", driver) for name in names]
    return distinct([device for device in found if device.nodes])


def read_pci_device(sysroot: str, path: str, driver: str) -> DrmDevice:
    """The device with the directory *path*, the last name of which is its PCI address."""
    name = path.rpartition("/")[2]
    card, render = drm_nodes(sysroot, path)
    return DrmDevice(
        name,
        path,
        card,
        render,
        hexadecimal(read_attribute(f"{path}/vendor"), 0xFFFF),
        hexadecimal(read_attribute(f"{path}/device"), 0xFFFF),
        driver,
        numa_node(path),
        _pcie_root(link_text(f"{sysroot}/sys/bus/pci/devices/{name}")),
        _address(link_text(f"{path}/physfn")),
        # Not sriov_numvfs: its reader waits for the device's lock, which a driver that hangs may hold for good.
        len([name for name in names_in(path) if name.startswith("virtfn")]),
    )


def drm_nodes(sysroot: str, path: str) -> tuple[HostNode | None, HostNode | None]:
    """(card node, render node) of the device with the directory *path*, that of the lowest number of each kind."""
    found: dict[str, HostNode] = {}
    for name in names_in(f"{path}/drm"):
        for kind in ("card", "renderD"):
            minor = decimal(name.removeprefix(kind), _MAX_MINOR)
            if not name.startswith(kind) or minor is None:
                continue
            if read_attribute(f"{path}/drm/{name}/dev") != f"{DRM_MAJOR}:{minor}":
                continue
            if kind not in found or minor < found[kind].minor:
                found[kind] = device_node(sysroot, f"/dev/dri/{name}", DRM_MAJOR, minor)
    return found.get("card"), found.get("renderD")


def device_node(sysroot: str, path: str, major: int, minor: int) -> HostNode:
    """The node at *path* below *sysroot*; it does not exist either where something else has its name."""
    host_path = sysroot + path
    try:
        found = lstat(host_path)
    except OSError:
        found = None
    if found is None or not S_ISCHR(found.st_mode) or found.st_rdev != posix.makedev(major, minor):
        return HostNode(path, host_path, major, minor, False, 0o660)
    return HostNode(path, host_path, major, minor, True, found.st_mode & 0o777, found.st_gid)


def node_of_sysfs(sysroot: str, attribute: str, path: str) -> HostNode | None:
    """The node at *path* with the numbers in the file *attribute* of sysfs (``261:0``); None where there are none."""
    first, _, second = read_attribute(attribute, 64).partition(":")
    major, minor = decimal(first, _MAX_MAJOR), decimal(second, _MAX_MINOR)
    return None if major is None or minor is None else device_node(sysroot, path, major, minor)


def distinct(devices: Iterable[DrmDevice]) -> tuple[DrmDevice, ...]:
    """*devices*, without those that have the address or a node of one before: what is given to one is not given twice."""
    made: list[DrmDevice] = []
    names: set[str] = set()
    minors: set[int] = set()
    for device in devices:
        own = {node.minor for node in device.nodes}
        if device.name not in names and not own & minors:
            made.append(device)
            names.add(device.name)
            minors |= own
    return tuple(made)


def numa_node(path: str) -> int:
    """The NUMA node of the device with the directory *path*, -1 where it has none."""
    node = decimal(read_attribute(f"{path}/numa_node"), _MAX_NUMA)
    return -1 if node is None else node


def hexadecimal(text: str, most: int = (1 << 64) - 1) -> int:
    """The number that *text* (``0x1002``) is; 0 for other text, and for more than *most*."""
    digits = text.lower().removeprefix("0x")
    if not digits or len(digits) > 16 or any(c not in _HEX for c in digits):
        return 0
    value = int(digits, 16)
    return value if value <= most else 0


def _pcie_root(link: str) -> str:
    """The root complex in the text of a link to a PCI device: ``../../../devices/pci0000:00/0000:00:01.0/…``."""
    parts = link.split("/")
    root = "".join(parts[parts.index("devices") + 1 :][:1]) if "devices" in parts else ""
    domain, _, bus = root.removeprefix("pci").partition(":")
    known = root.startswith("pci") and all(c in _HEX for c in domain + bus) and len(domain) >= 4 and len(bus) == 2
    return root if known and len(domain) <= 8 else ""


def _address(link: str) -> str:
    name = link.rpartition("/")[2]
    return name if is_pci_address(name) else ""
