"""Which of the GPUs of a host a container gets that asks for free ones, and why not the others.  Pure.

Of those that are free and fit, the set is taken with the most GPUs that the container had before (one that is restored);
then that has the most NVLink or XGMI connections within; then, of parts with such links, the most pairs on one GPU; then
the most GPUs on the NUMA nodes of the container's CPUs; then on the fewest nodes; then the fewest connections to free GPUs
outside, so that pairs stay pairs; then the parts of GPUs with the fewest free ones; then whose GPUs have rested longest.
"""

from __future__ import annotations

from gpurun.gpu.device import whole_keys
from gpurun.gpu.vendors import not_known
from gpurun.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from gpurun.gpu.device import GpuDevice
    from gpurun.gpu.request.free import FreeRequest

#: More sets than that are not compared: one GPU after the other is chosen then.
MAX_SETS = 5000


class Verdict(Record):
    """One unit, and *why* it cannot be had: empty for one that can.  *waiting* would help where it is only taken now."""

    unit: GpuDevice
    why: str = ""
    waiting: bool = False


def judge(
    request: FreeRequest, units: tuple[GpuDevice, ...], taken: Mapping[str, str], never: frozenset[str] = frozenset()
) -> tuple[Verdict, ...]:
    """Why each of *units* cannot be leased: *taken* has its holder by key, *never* are keys that the site does not lease."""
    divided = whole_keys(units)
    found = []
    for unit in units:
        why = _unfit(request, unit, divided)
        if why is None:
            continue  # no candidate at all: the other kind is asked for
        if unit.unwell:
            why = f"not well: {unit.unwell}"
        if not why and (unit.key in never or unit.gpu_key in never):
            why = "the site never leases it"
        if why:
            found.append(Verdict(unit, why))
            continue
        holder = taken.get(unit.key, "") or (taken.get(unit.gpu_key, "") if unit.parent else "")
        found.append(Verdict(unit, holder, bool(holder)))
    return tuple(found)


def _unfit(request: FreeRequest, unit: GpuDevice, divided: frozenset[str]) -> str | None:
    """Why *request* does not allow *unit*, whether it is free or not; ``None`` if the error need not mention it."""
    if not request.profile:
        if unit.parent in divided:
            return None
        if unit.key in divided:
            return "it is divided into MIG devices: ask for one with profile="
    elif not unit.parent:
        return None
    elif unit.profile.lower() != request.profile:
        return f"its profile is {unit.profile}" if unit.profile else f"its profile is {not_known(unit.vendor)}"
    if not request.product_fits(unit.model):
        return f"it is {'an' if unit.model[:1] in 'AEIO' else 'a'} {unit.model}"
    if request.memory and unit.memory < 0:
        return f"its memory is {not_known(unit.vendor)}"
    if not request.memory_fits(unit.memory):
        return f"it has {unit.memory / (1 << 30):.4g} GiB of memory"
    return ""


def choose(
    request: FreeRequest,
    free: tuple[GpuDevice, ...],
    near: frozenset[int] = frozenset(),
    used: Mapping[str, int] | None = None,
    had: frozenset[str] = frozenset(),
    must: frozenset[str] = frozenset(),
) -> tuple[GpuDevice, ...]:
    """The *free* units to take, by index; empty where there is no such set.

    *near* are the NUMA nodes whose CPUs the container may use (empty: all alike), *used* says by key when a unit was last
    seen in use, *had* are the names of those that the container had before, *must* the keys of those that it gets anyway.
    """
    fixed = tuple([unit for unit in free if unit.key in must])
    if len(free) < request.count or len(fixed) > request.count:
        return ()
    again = tuple([unit for unit in free if unit.name in had])
    if len(again) == request.count and (not request.nvlink or are_connected(again)):
        return again
    best: tuple[GpuDevice, ...] = ()
    lowest: tuple[object, ...] = ()
    for chosen in sets_of(free, request.count, fixed):
        if request.nvlink and not are_connected(chosen):
            continue
        kept = sum([1 for unit in chosen if unit.name in had])
        score = (-kept, *_score(chosen, free, near, used or {}))
        if not best or score < lowest:  # type: ignore[operator]
            best, lowest = chosen, score
    return best


def sets_of(units: tuple[GpuDevice, ...], count: int, fixed: tuple[GpuDevice, ...] = ()) -> Iterator[tuple[GpuDevice, ...]]:
    """The sets of *count* of *units* that are worth comparing: all, unless there are more than MAX_SETS.

    Each has those that are *fixed*, which are some of *units*.
    """
    keys = {unit.key for unit in fixed}
    rest = tuple([unit for unit in units if unit.key not in keys]) if fixed else units
    if _count(len(rest), count - len(fixed)) > MAX_SETS:
        yield from _grown(rest, count, fixed)
        return
    for more in _sets(rest, count - len(fixed)):
        yield tuple(sorted((*fixed, *more), key=_order)) if fixed else more


def _score(
    chosen: tuple[GpuDevice, ...], free: tuple[GpuDevice, ...], near: frozenset[int], used: Mapping[str, int]
) -> tuple[object, ...]:
    """What is better is less."""
    inside = {unit.index for unit in chosen}
    outside = {unit.index for unit in free} - inside
    nodes = {unit.numa_node for unit in chosen}
    there = _parts(free)
    return (
        -sum([1 for unit in chosen for peer in unit.peers if peer in inside]),
        -sum([count * (count - 1) for count in _parts(chosen).values()]),
        -sum([1 for unit in chosen if unit.numa_node in near]),
        len(nodes),
        sum([1 for unit in chosen for peer in unit.peers if peer in outside]),
        tuple(sorted([there[_connection_key(unit)] for unit in chosen])),
        tuple(sorted([used.get(unit.key, 0) for unit in chosen], reverse=True)),
        tuple([(unit.index, unit.key) for unit in chosen]),
    )


def _connection_key(unit: GpuDevice) -> str:
    """The key of the GPU of a part that links lead from; MIG devices have none, and each stands for itself."""
    return unit.gpu_key if unit.links else unit.key


def _parts(units: Iterable[GpuDevice]) -> dict[str, int]:
    """How many of *units* each GPU has."""
    found: dict[str, int] = {}
    for unit in units:
        found[_connection_key(unit)] = found.get(_connection_key(unit), 0) + 1
    return found


def are_connected(chosen: tuple[GpuDevice, ...]) -> bool:
    """Whether NVLink leads from each of *chosen* to each other, over others of them if need be."""
    inside = {unit.index: unit.peers for unit in chosen}
    reached, todo = {chosen[0].index}, [chosen[0].index]
    while todo:
        for peer in inside[todo.pop()]:
            if peer in inside and peer not in reached:
                reached.add(peer)
                todo.append(peer)
    return len(reached) == len(inside)


def _sets(units: tuple[GpuDevice, ...], count: int) -> Iterator[tuple[GpuDevice, ...]]:
    """All sets of *count* of *units*, each in their order."""
    if count == 0:
        yield ()
        return
    for i in range(len(units) - count + 1):
        for rest in _sets(units[i + 1 :], count - 1):
            yield (units[i], *rest)


def _order(unit: GpuDevice) -> tuple[int, str]:
    return unit.index, unit.key


def _grown(units: tuple[GpuDevice, ...], count: int, fixed: tuple[GpuDevice, ...] = ()) -> Iterator[tuple[GpuDevice, ...]]:
    """A set for each unit to begin with, or one that begins with those *fixed*: always the one is added that most of the
    set are connected with."""
    peers = {unit.key: frozenset(unit.peers) for unit in units}
    there = _parts((*fixed, *units))
    for first in units if not fixed else fixed[:1]:
        chosen, rest = [*(fixed or (first,))], [unit for unit in units if unit is not first]
        while len(chosen) < count:
            inside, mine = frozenset([unit.index for unit in chosen]), _parts(chosen)

            def worth(u: GpuDevice) -> tuple[int, ...]:
                gpu, alike = _connection_key(u), u.numa_node == first.numa_node  # noqa: B023
                return len(inside & peers[u.key]), mine.get(gpu, 0), alike, -there[gpu], -u.index  # noqa: B023

            chosen.append(max(rest, key=worth))
            rest.remove(chosen[-1])
        yield tuple(sorted(chosen, key=_order))


def _count(n: int, k: int) -> int:
    """How many sets of *k* there are of *n*."""
    made = 1
    for i in range(k):
        made = made * (n - i) // (i + 1)
    return made
