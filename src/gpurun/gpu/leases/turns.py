"""What of the free GPUs is left for one who asks, beside those who came before.  Pure.

Each of those before keeps as many of the free GPUs that fit its request as it wants; the rest is given.  So a container that
waits for GPUs that are taken does not delay requests that others satisfy, and none overtakes it for the GPUs that it
collects.
"""

from __future__ import annotations

from gpurun.gpu.leases.choice import are_connected, sets_of
from gpurun.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from gpurun.gpu.device import GpuDevice


class Want(Record):
    """A request that waits: *count* of the GPUs with these *keys*, connected with each other if *nvlink*."""

    keys: frozenset[str]
    count: int = 1
    nvlink: bool = False


def available_units(
    own: Want, units: tuple[GpuDevice, ...], free: tuple[GpuDevice, ...], before: Sequence[Want]
) -> tuple[GpuDevice, ...]:
    """Those of the *free* ones of all *units* that *own* may have while the requests *before* it wait, in their order.

    Where those before could do with different GPUs, they keep the ones that *own* cannot have.
    """
    slots: list[list[str]] = []
    for want in before:
        slots += _slots(want, units, free)
    kept = len(slots)
    slots += [[unit.key for unit in free if unit.key in own.keys]] * own.count
    holder: dict[str, int] = {}  # key → the place in slots that has it
    for number in range(len(slots)):
        _place(number, slots, holder, set())
    others = {key for key, number in holder.items() if number < kept}
    return tuple([unit for unit in free if unit.key not in others])


def _slots(want: Want, units: tuple[GpuDevice, ...], free: tuple[GpuDevice, ...]) -> list[list[str]]:
    """For each GPU that *want* still keeps, the keys of those that it could be."""
    ready = {unit.key for unit in free}
    if not want.nvlink:
        return [[key for key in sorted(want.keys) if key in ready]] * want.count
    fitting = tuple([unit for unit in units if unit.key in want.keys])
    best: list[str] = []
    for chosen in sets_of(fitting, want.count):
        kept = [unit.key for unit in chosen if unit.key in ready]
        if len(kept) > len(best) and are_connected(chosen):
            best = kept
    return [[key] for key in best]


def _place(number: int, slots: list[list[str]], holder: dict[str, int], tried: set[str]) -> bool:
    """Find a key for the slot, moving those that were placed before to others that they could have (Kuhn's algorithm)."""
    for key in slots[number]:
        if key in tried:
            continue
        tried.add(key)
        if key not in holder or _place(holder[key], slots, holder, tried):
            holder[key] = number
            return True
    return False
