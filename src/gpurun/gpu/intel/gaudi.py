"""Intel's Gaudi accelerators: HABANA_VISIBLE_DEVICES, read as Habana's runtime does, and their nodes.

Each has the node that computes, the one that manages, and where the host has RDMA a port of it.  Network interfaces and the
files below /etc/habanalabs are not given: docs/intel.md.
"""

from __future__ import annotations

from gpurun.cdi.edits import ContainerEdits
from gpurun.decimals import decimal
from gpurun.errors import ConfigError, GpuError, clean
from gpurun.gpu.host.drm import is_pci_address, node_of_sysfs, numa_node
from gpurun.gpu.host.drm_edits import groups, host_device
from gpurun.gpu.host.reads import names_in
from gpurun.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from gpurun.gpu.host.reads import HostNode

VARIABLE = "HABANA_VISIBLE_DEVICES"
DRIVER = "habanalabs"
_MOST = 256
_NONE = f"this host has no Gaudi under the driver {DRIVER}"


class Gaudi(Record):
    """An accelerator: *index* is the number in the names of its nodes, *pci* its address."""

    index: int
    pci: str
    nodes: tuple[HostNode, ...]
    numa_node: int = -1

    @property
    def label(self) -> str:
        """What a sentence calls it."""
        return f"Gaudi {self.index}"


def accelerators(sysroot: str) -> tuple[Gaudi, ...]:
    """Those of the host below *sysroot*, by their number."""
    base = f"{sysroot}/sys/bus/pci/drivers/{DRIVER}"
    found: dict[int, Gaudi] = {}
    for pci in [name for name in names_in(base) if is_pci_address(name)][:_MOST]:
        path = f"{base}/{pci}"
        indices = [decimal(name.removeprefix("accel"), _MOST) for name in names_in(f"{path}/accel")]
        index = min([i for i in indices if i is not None], default=-1)
        if index < 0:
            continue
        names = [("accel", f"accel{index}", "accel"), ("accel", f"accel_controlD{index}", "accel")]
        ports = [name for name in names_in(f"{path}/infiniband_verbs") if name.startswith("uverbs")]
        names += [("infiniband_verbs", name, "infiniband") for name in ports[:1]]
        nodes = [
            node_of_sysfs(sysroot, f"{path}/{kind}/{name}/dev", f"/dev/{folder}/{name}") for kind, name, folder in names
        ]
        found.setdefault(index, Gaudi(index, pci, tuple([node for node in nodes if node is not None]), numa_node(path)))
    return tuple([found[index] for index in sorted(found)])


def select(text: str, known: tuple[Gaudi, ...]) -> tuple[Gaudi, ...]:
    """Those that the value *text* means: ``all``, or numbers between commas; none for an empty one.

    Raises :class:`ConfigError` for another word, :class:`GpuError` for a number that this host does not have.
    """
    if text.strip() in ("", "none", "void"):
        return ()
    if text.strip() == "all":
        if not known:
            raise GpuError(f"{VARIABLE}=all: {_NONE}")
        return known
    by_index = {gaudi.index: gaudi for gaudi in known}
    chosen: dict[int, Gaudi] = {}
    for word in text.split(","):
        index = decimal(word.strip(), _MOST)
        if index is None:
            raise ConfigError(f"process.env {VARIABLE}", f"'{clean(word)}' is not all, and no number of an accelerator")
        if index not in by_index:
            if not known:
                raise GpuError(f"{VARIABLE}={clean(text)}: {_NONE}")
            there = ", ".join([str(i) for i in by_index])
            raise GpuError(f"{VARIABLE}: there is no Gaudi {index} on this host (there are: {there})")
        chosen[index] = by_index[index]
    return tuple(chosen.values())


def gaudi_edits(chosen: tuple[Gaudi, ...]) -> ContainerEdits:
    """The nodes of those *chosen*, with their groups.  Raises :class:`GpuError` for one that is not there."""
    nodes = [host_device(node, f"Gaudi {gaudi.index} ({gaudi.pci})") for gaudi in chosen for node in gaudi.nodes]
    return ContainerEdits(
        device_nodes=tuple(nodes),
        additional_gids=groups(nodes),
        numa_nodes=tuple([gaudi.numa_node for gaudi in chosen]),
    )
