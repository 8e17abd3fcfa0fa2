"""What a cluster knows of a GPU of any maker, and what a container that gets it is given.

A room whose row in :mod:`gpurun.gpu.vendors` has a driver's name has a module ``cluster`` with the function
``cluster_gpus(sysroot)``, which answers with :class:`ClusterGpus`, and the constant ``LABELS``: the names of all labels of
nodes that it may answer with, some of which have more words behind them.
"""

from __future__ import annotations

from gpurun.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from gpurun.cdi.document import CdiEdits
    from gpurun.gpu.device import GpuDevice

    #: (name, one of ``string``, ``int``, ``bool`` and ``version``, value): as the API of ResourceSlices has them.
    Attribute = tuple[str, str, str | int | bool]

#: The parts of a name or a value in Kubernetes that a word of a driver may be: longer ones tell nothing.
_MAX_WORD = 63


class ClusterGpu(Record):
    """A GPU, or a part of one, that a node of a cluster offers.

    *id* is what the kubelet's device plugin API calls it, *name* what a ResourceSlice does (a DNS label); both are of no
    other device of the maker's.  *resource* is the last part of its resource's name; *style* is that of a part of a GPU
    (``cpx_nps4``), which is the resource's name where GPUs are divided in different ways.  *capacity* are amounts by name,
    ``memory`` in bytes.  *edits* is what a container gets, None where that is not there: *why* says
    what is missing, or why the GPU cannot be relied on.
    """

    unit: GpuDevice
    id: str
    name: str
    resource: str
    style: str = ""
    attributes: tuple[Attribute, ...] = ()
    capacity: tuple[tuple[str, int], ...] = ()
    edits: CdiEdits | None = None
    why: str = ""


class ClusterGpus(Record):
    """The GPUs of one maker on a node, and the labels that tell of them, by their whole names."""

    gpus: tuple[ClusterGpu, ...] = ()
    labels: tuple[tuple[str, str], ...] = ()


def is_label(name: str, labels: tuple[str, ...]) -> bool:
    """Whether *name* is that of one of *labels*, as it is or with more words behind it."""
    return any(name == label or name.startswith(f"{label}.") for label in labels)


def count_labels(name: str, values: list[str]) -> dict[str, str]:
    """``name.VALUE`` → how many of *values* are that; values that cannot be a part of a name are left out."""
    found: dict[str, int] = {}
    for value in values:
        if len(name.partition("/")[2]) + len(value) < _MAX_WORD and label_value(value) == value:
            found[value] = found.get(value, 0) + 1
    return {f"{name}.{value}": str(count) for value, count in sorted(found.items()) if value}


def label_value(text: str) -> str:
    """*text* as the value of a label: characters that are not allowed are left out, blanks become underlines."""
    kept = "".join([c for c in text if c.isascii() and (c.isalnum() or c in "-_. ")])
    return "_".join(kept.split())[:_MAX_WORD].strip("-_.")
