"""Which of the free devices a container is best given: near to each other, the rest left near to each other; pure.

The nearness of two GPUs is a number (:func:`gpurun.kubernetes.node.nearness`).  A set of GPUs is as good as the sum over its
pairs; of equal sets the one is better that leaves the better rest, then the one with the lower indices.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import combinations
from math import comb

from gpurun.errors import GpurunError
from gpurun.gpu.device import GpuDevice
from gpurun.gpu.leases.choice import choose
from gpurun.gpu.request.free import FreeRequest
from gpurun.kubernetes.device_plugin.resources import Offer, Offered
from gpurun.kubernetes.node import NodeGpus

Nearness = Mapping[tuple[str, str], int]

#: Added for two GPUs of one NUMA node: more than any PCI topology, less than one NVLink.
_SAME_NUMA = 70
#: How many sets are looked at before the search is no longer of all of them.
_ALL_SETS = 20_000


def nearness_of(node: NodeGpus) -> dict[tuple[str, str], int]:
    """(bus id, bus id) → how near the GPUs are, in both orders."""
    numa = {gpu.bus_id: gpu.numa for gpu in node.gpus}
    found: dict[tuple[str, str], int] = {}
    for gpu in node.gpus:
        links = dict(gpu.peers)
        for other in node.gpus:
            if other.bus_id != gpu.bus_id:
                same = gpu.numa >= 0 and gpu.numa == numa[other.bus_id]
                value = links.get(other.bus_id, 0) + (_SAME_NUMA if same else 0)
                found[gpu.bus_id, other.bus_id] = max(value, found.get((other.bus_id, gpu.bus_id), 0))
                found[other.bus_id, gpu.bus_id] = found[gpu.bus_id, other.bus_id]
    return found


def preferred(
    offer: Offer, near: Nearness, available: Sequence[str], must: Sequence[str], size: int, packed: bool = False
) -> tuple[str, ...]:
    """*size* ids out of *available*, those of *must* among them.

    Shared devices are spread over the GPUs, or *packed* into the fewest.  Raises :class:`GpurunError` for ids that are not
    of this resource, and for more than there are.
    """
    chosen, rest = _asked(offer, available, must, size)
    if offer.replicas > 1:
        return tuple([device.id for device in _shared(offer, chosen, rest, size, packed)])
    return tuple([device.id for device in _nearest(near, chosen, rest, size)])


def preferred_units(
    offer: Offer, units: Mapping[str, GpuDevice], available: Sequence[str], must: Sequence[str], size: int
) -> tuple[str, ...]:
    """As :func:`preferred`, by the choice that leases have as well (:mod:`gpurun.gpu.leases.choice`): links of the maker's
    own, parts of one GPU and then the GPU with the fewest free ones, NUMA nodes.  *units* are the devices by their ids."""
    chosen, rest = _asked(offer, available, must, size)
    free = {units[device.id].key: device.id for device in (*chosen, *rest) if device.id in units}
    ordered = sorted([units[identity] for identity in free.values()], key=lambda unit: (unit.index, unit.key))
    fixed = frozenset([units[device.id].key for device in chosen if device.id in units])
    found = choose(FreeRequest("", size), tuple(ordered), must=fixed) if size else ()
    ids = tuple([free[unit.key] for unit in found])
    # A list that has changed since the links were read: any of those that are there.
    return ids if len(ids) == size else tuple([device.id for device in (*chosen, *rest)][:size])


def _asked(offer: Offer, available: Sequence[str], must: Sequence[str], size: int) -> tuple[list[Offered], list[Offered]]:
    """(those of *must*, the others of *available*).  Raises :class:`GpurunError` as :func:`preferred`."""
    free = _devices(offer, available)
    chosen = _devices(offer, must)
    missing = [device.id for device in chosen if device not in free]
    if missing:
        raise GpurunError(f"{offer.name}: {', '.join(missing)} must be included and is not available")
    if not 0 <= size <= len(free):
        raise GpurunError(f"{offer.name}: {size} devices are asked for, {len(free)} are available")
    if size < len(chosen):
        raise GpurunError(f"{offer.name}: {size} devices are asked for, {len(chosen)} must be included")
    return chosen, [device for device in free if device not in chosen]


def _devices(offer: Offer, ids: Sequence[str]) -> list[Offered]:
    known = {device.id: device for device in offer.devices}
    unknown = [identity for identity in ids if identity not in known]
    if unknown:
        raise GpurunError(f"{offer.name}: there is no device {', '.join(unknown)}")
    return sorted({identity: known[identity] for identity in ids}.values(), key=_order)


def _order(device: Offered) -> tuple[int, int, int]:
    index, _, part = device.index.partition(":")
    return int(index), int(part or -1), device.replica


def _shared(offer: Offer, chosen: list[Offered], rest: list[Offered], size: int, packed: bool) -> list[Offered]:
    """Replicas of the GPUs that have the fewest given away, of each GPU one as far as it goes; *packed*: the most."""
    total: dict[str, int] = {}
    for device in offer.devices:
        total[device.uuid] = total.get(device.uuid, 0) + 1
    used = dict(total)
    for device in rest:
        used[device.uuid] -= 1
    made, left = list(chosen), list(rest)
    mine = [device.uuid for device in chosen]
    while len(made) < size:
        if packed:  # what this container has got counts, too: it fills up one GPU after the other
            best = min(left, key=lambda d: (-used[d.uuid], _order(d)))
        else:  # a second replica of the same GPU brings a container nothing: first those that it has none of
            best = min(left, key=lambda d: (mine.count(d.uuid), used[d.uuid], _order(d)))
        left.remove(best)
        made.append(best)
        mine.append(best.uuid)
        used[best.uuid] += 1
    return made


def _nearest(near: Nearness, chosen: list[Offered], rest: list[Offered], size: int) -> list[Offered]:
    wanted = size - len(chosen)
    if wanted == 0:
        return chosen
    found = (
        _best(near, chosen, rest, wanted) if comb(len(rest), wanted) <= _ALL_SETS else _searched(near, chosen, rest, wanted)
    )
    return sorted(found, key=_order)


def _best(near: Nearness, chosen: list[Offered], rest: list[Offered], wanted: int) -> list[Offered]:
    """The best of all sets.  With *within* the sum over the pairs of a set, what is left is worth
    ``everything - to_rest(set) + within(set)``, so no pair outside the set has to be looked at."""
    pairs = [[0 if a is b else _between(near, a, b) for b in rest] for a in rest]
    to_rest = [sum(row) for row in pairs]
    to_chosen = [sum(_between(near, device, one) for one in chosen) for device in rest]
    best: tuple[int, int] | None = None
    found: tuple[int, ...] = ()
    # combinations come in the order of the indices, and the first of equals stays
    for some in combinations(range(len(rest)), wanted):
        within = sum([pairs[i][j] for i, j in combinations(some, 2)])
        value = within + sum([to_chosen[i] for i in some]), within - sum([to_rest[i] for i in some])
        if best is None or value > best:
            best, found = value, some
    return [*chosen, *[rest[i] for i in found]]


def _sum(near: Nearness, devices: list[Offered]) -> int:
    return sum(_between(near, a, b) for a, b in combinations(devices, 2))


def _between(near: Nearness, one: Offered, other: Offered) -> int:
    return _SAME_GPU if one.bus_id == other.bus_id else near.get((one.bus_id, other.bus_id), 0)


#: Two MIG devices of one GPU: as near as can be, so that a container's devices are on the fewest GPUs.
_SAME_GPU = 10_000


def _searched(near: Nearness, chosen: list[Offered], rest: list[Offered], wanted: int) -> list[Offered]:
    """A good set where there are too many for all of them: the nearest one after another, then exchanged while it helps."""
    best: list[Offered] = []
    for first in rest if not chosen else [None]:
        made = [*chosen, *([first] if first else [])]
        while len(made) < len(chosen) + wanted:
            made.append(max((d for d in rest if d not in made), key=lambda d: _sum_with(near, made, d)))
        if not best or _sum(near, made) > _sum(near, best):
            best = made
    improved = True
    while improved:
        improved = False
        for out in [device for device in best if device not in chosen]:
            others = [device for device in best if device is not out]
            new = max((d for d in rest if d not in others), key=lambda d: _sum_with(near, others, d))
            if _sum_with(near, others, new) > _sum_with(near, others, out):
                best, improved = [*others, new], True
    return best


def _sum_with(near: Nearness, devices: list[Offered], one: Offered) -> int:
    return sum(_between(near, one, d) for d in devices)
