"""What stands against GPUs, in the words of an error: those of one container together.  Pure."""

from __future__ import annotations

from gpurun.errors import clean
from gpurun.gpu.vendors import find_vendor

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from gpurun.gpu.device import GpuDevice
    from gpurun.gpu.leases.choice import Verdict

_CHARACTERS = 4000


def reasons(verdicts: Sequence[Verdict], loads: Mapping[str, str], free: str = "") -> str:
    """``GPU 0, 2: leased by web since ...; GPU 1: it is a Tesla T4``: each reason once, in the order of the GPUs.

    *loads* says by key of a GPU how busy it is, which is printed for a single GPU that is taken.  *free* is said of
    those that nothing stands against; empty: nothing.
    """
    groups: dict[str, list[Verdict]] = {}
    for verdict in verdicts:
        if verdict.why or free:
            groups.setdefault(verdict.why or free, []).append(verdict)
    parts = []
    for why, group in groups.items():
        load = loads.get(group[0].unit.gpu_key, "") if len(group) == 1 and group[0].waiting else ""
        parts.append(f"{_names([one.unit for one in group])}: {why}{f', {load}' if load else ''}")
    return clean_lines("; ".join(parts))


def _names(units: list[GpuDevice]) -> str:
    found: dict[str, list[str]] = {}
    for unit in units:
        kind = "GPU" if not unit.parent else f"{find_vendor(unit.vendor).title} GPU"
        if unit.parent and unit.label != f"{kind} {unit.index}":
            found[unit.label] = []  # a part with a name of its own
        else:
            found.setdefault(kind, []).append(str(unit.index))
    listed = sorted(found.items(), key=lambda one: one[0] != "GPU")
    return ", ".join([f"{kind} {', '.join(indices)}" if indices else kind for kind, indices in listed])


def none_here(vendor: str) -> str:
    """That the host has no GPU of the maker *vendor*, which is empty for any."""
    return f"this host has no GPU of {find_vendor(vendor).title}'s" if vendor else "this host has no GPU"


def clean_lines(text: str) -> str:
    """*text*, with names that engines gave made harmless, and cut where it is no longer read."""
    return clean(text, _CHARACTERS)
