"""What a container without a device filter is to see of KFD's topology: the processors and its own GPUs, renumbered.

With the device cgroup KFD itself hides the GPUs that a process may not open.  Without root there is none, and ROCm, which
reads all nodes at its start, finds GPUs in the list that it cannot open.  So a tree with the chosen GPUs alone is
mounted over the host's.  Node numbers are positions for ROCm: they are counted anew from 0, in the nodes and in the links.

Layout of the tree: drivers/gpu/drm/amd/amdkfd/kfd_topology.c of Linux.  No card has seen the result yet.
"""

from __future__ import annotations

from gpurun.cdi.edits import EditMount, FileEdit, ProcTree
from gpurun.decimals import decimal
from gpurun.errors import GpuError
from gpurun.gpu.host.reads import exists, names_in, read_attribute
from gpurun.record import Record

#: Where the links of /sys/class lead: the place that has to be covered.
PLACE = "/sys/devices/virtual/kfd/kfd/topology"
REASON = "without a device filter ROCm is to find the GPUs of the container only"
#: An attribute of sysfs has a page at most.  Hosts have a few dozen nodes, and a node a link to each of the others.
_PAGE, _MOST_NODES, _MOST_LINKS = 4096, 1024, 1 << 14
_LINKS = ("io_links", "p2p_links")
#: Directories that say nothing of other nodes: they are the host's own, live.
_AS_THEY_ARE = ("mem_banks", "caches")
_BIND = ("ro", "nosuid", "nodev", "noexec", "rbind", "rprivate")


class TopologyNode(Record):
    """Node *number* of the host: the text of its files; of its links that of ``properties``, in their order.

    *directories* are those of mem_banks and caches that it has.
    """

    number: int
    gpu_id: str
    name: str
    properties: str
    io_links: tuple[str, ...] = ()
    p2p_links: tuple[str, ...] = ()
    directories: tuple[str, ...] = ()


class KfdTopology(Record):
    """The processors and the chosen GPUs of the host whose topology is at *path*, by their numbers.

    *files* are (name, text) of those beside the nodes.
    """

    path: str
    files: tuple[tuple[str, str], ...]
    nodes: tuple[TopologyNode, ...]


def read_topology(sysroot: str, chosen: frozenset[int]) -> KfdTopology:
    """The part of the host's topology that a container with the nodes *chosen* is to see.

    Other GPUs' nodes are left out, and so is what cannot be read of any.  Raises :class:`GpuError` for a tree that is not
    KFD's: a file is missing or too large, or a number is invalid.
    """
    path = f"{sysroot}{PLACE}"
    files = [(name, _text(f"{path}/{name}")) for name in ("generation_id", "system_properties") if exists(f"{path}/{name}")]
    numbers = [decimal(name, _MOST_NODES) for name in names_in(f"{path}/nodes")]
    nodes: list[TopologyNode] = []
    links = 0
    for number in sorted({number for number in numbers if number is not None}):
        base = f"{path}/nodes/{number}"
        if number not in chosen and not _is_processor(base):
            continue
        io_links, p2p_links = [_links(base, kind, _MOST_LINKS - links) for kind in _LINKS]
        links += len(io_links) + len(p2p_links)
        has = tuple([name for name in _AS_THEY_ARE if exists(f"{base}/{name}")])
        gpu_id, name, properties = [_text(f"{base}/{name}") for name in ("gpu_id", "name", "properties")]
        nodes.append(TopologyNode(number, gpu_id, name, properties, io_links, p2p_links, has))
    return KfdTopology(path, tuple(files), tuple(nodes))


def filter_topology(host: KfdTopology, chosen: frozenset[int]) -> ProcTree:
    """The tree that is mounted over *host*'s in the container; pure.

    *chosen* are the numbers of the container's GPUs.  Raises :class:`GpuError` where one is not there, or says nothing of
    itself.
    """
    new = {node.number: position for position, node in enumerate(host.nodes)}
    files = [FileEdit(f"{PLACE}/{name}", _content(text), 0o444, "copied from the host") for name, text in host.files]
    binds: list[EditMount] = []
    for number in sorted(chosen):
        if number not in new:
            raise GpuError(f"{host.path}/nodes/{number} is not there any more: ask again")
    for node in host.nodes:
        base, place = f"{host.path}/nodes/{node.number}", f"{PLACE}/nodes/{new[node.number]}"
        if decimal(node.gpu_id) is None or not node.properties:
            raise GpuError(f"{base}/{'properties' if decimal(node.gpu_id) is not None else 'gpu_id'} cannot be used")
        reason = f"node {node.number} of the host"
        counts: dict[str, int] = {}
        for kind, texts in zip(_LINKS, (node.io_links, node.p2p_links), strict=True):
            left = [text for text in [_renumber(text, new) for text in texts] if text]
            counts[f"{kind}_count"] = len(left)
            files += [
                FileEdit(f"{place}/{kind}/{i}/properties", _content(text), 0o444, reason) for i, text in enumerate(left)
            ]
        properties = _with_values(node.properties, counts)
        for name, text in (("gpu_id", node.gpu_id), ("name", node.name), ("properties", properties)):
            files.append(FileEdit(f"{place}/{name}", _content(text), 0o444, reason))
        binds += [EditMount(f"{base}/{name}", f"{place}/{name}", _BIND, "dir", reason) for name in node.directories]
    return ProcTree(PLACE, tuple(files), tuple(binds), REASON)


def _renumber(text: str, new: dict[int, int]) -> str:
    """The properties of a link by the *new* numbers of its ends; empty where one of them is not there."""
    ends = {}
    for line in text.splitlines():
        name, _, value = line.partition(" ")
        if name in ("node_from", "node_to"):
            number = decimal(value.strip())
            if number is None or number not in new:
                return ""
            ends[name] = new[number]
    return _with_values(text, ends) if len(ends) == 2 else ""


def _with_values(text: str, values: dict[str, int]) -> str:
    """*text* with those of its lines ``name value`` that *values* have as they say."""
    lines = [line.partition(" ") for line in text.splitlines()]
    return "\n".join([f"{name} {values[name]}" if name in values else f"{name}{blank}{rest}" for name, blank, rest in lines])


def _content(text: str) -> bytes:
    return f"{text}\n".encode("ascii")


def _is_processor(base: str) -> bool:
    """Whether the node is one of a processor: KFD denies or does not tell the properties of a GPU that one may not use."""
    lines = [line.split() for line in read_attribute(f"{base}/properties", _PAGE + 1).splitlines()]
    return any(len(words) == 2 and words[0] == "cpu_cores_count" and decimal(words[1]) for words in lines)


def _links(base: str, kind: str, most: int) -> tuple[str, ...]:
    numbers = [decimal(name, _MOST_LINKS) for name in names_in(f"{base}/{kind}")]
    known = sorted([number for number in numbers if number is not None])
    if len(known) > most:
        raise GpuError(f"{base}/{kind}: more than {_MOST_LINKS} links in the topology")
    return tuple([_text(f"{base}/{kind}/{number}/properties") for number in known])


def _text(path: str) -> str:
    """What the attribute *path* says, without blanks around it; empty where it says nothing.  Raises :class:`GpuError`."""
    text = read_attribute(path, _PAGE + 1)
    if len(text) > _PAGE:
        raise GpuError(f"{path} has more than {_PAGE} bytes")
    if not text.isascii() or "\0" in text:
        raise GpuError(f"{path} is no text")
    return text
