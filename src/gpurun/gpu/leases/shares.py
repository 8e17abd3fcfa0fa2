"""Shares of a GPU: what is left of each, and noting one under the lock, so that all shares of a GPU are no more than it.

A GPU is leased to one container, or shared by several.  What a share does not name, memory or threads, is not limited
and does not count.
"""

from __future__ import annotations

from gpurun.errors import ConfigError, GpuError, clean
from gpurun.gpu.device import units_of
from gpurun.gpu.leases.allocator import is_named, lease_fields, lease_units, of_the_job
from gpurun.gpu.leases.choice import Verdict, judge
from gpurun.gpu.leases.container_nodes import command_of
from gpurun.gpu.leases.queue import tickets
from gpurun.gpu.leases.store import new_lease
from gpurun.gpu.leases.survey import describe_lease, holders, survey
from gpurun.gpu.leases.turns import Want, available_units
from gpurun.gpu.leases.wording import clean_lines, none_here, reasons
from gpurun.gpu.request.share import share_text
from gpurun.gpu.vendors import VENDORS, not_known, place
from gpurun.record import Record, replace

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from gpurun.gpu.device import GpuDevice, Survey
    from gpurun.gpu.leases.allocator import Requester
    from gpurun.gpu.leases.lease import Lease
    from gpurun.gpu.leases.policy import LeasePolicy
    from gpurun.gpu.leases.queue import Ticket
    from gpurun.gpu.leases.store import Store
    from gpurun.gpu.request.free import FreeRequest
    from gpurun.gpu.request.share import Share

_SHARE = "share"
_EXCLUSIVE = "lease"
#: How the kernel shortens the names of daemons that compute for others, and of their servers.
_DAEMONS = tuple([row.daemon for row in VENDORS if row.daemon])


class GivenShare(Record):
    """The *unit* that a container has a share of; *lease* is what was noted (None: only looked), *warning* what to say.

    *limits*: the driver can limit the memory that a cgroup has of it.
    """

    unit: GpuDevice
    lease: Lease | None = None
    warning: str = ""
    limits: bool = False


def no_room(share: Share, unit: GpuDevice, leases: tuple[Lease, ...], own: tuple[str, str] = ("", "")) -> str:
    """Why *unit* has no room for *share* beside the shares of others; "" where it has.  Pure."""
    mine = [one for one in _shares_of(unit, leases) if (one.root, one.id) != own]
    if share.memory and unit.memory < 0:
        return f"its memory is {not_known(unit.vendor)}"
    memory, threads = sum([one.memory for one in mine]), sum([one.threads for one in mine])
    short = []
    if share.memory and memory + share.memory > unit.memory:
        short.append(f"{max(unit.memory - memory, 0) / (1 << 30):.4g} of {unit.memory / (1 << 30):.4g} GiB")
    if share.threads and threads + share.threads > 100:
        short.append(f"{max(100 - threads, 0)} % of its threads")
    if not short:
        return ""
    held = _list_shares(mine)
    return f"{' and '.join(short)} left{f': {held}' if held else ''}"


def _list_shares(leases: list[Lease]) -> str:
    return ", ".join([f"{describe_lease(one)} has {share_text(one.memory, one.threads)}" for one in leases])


def _shares_of(unit: GpuDevice, leases: tuple[Lease, ...]) -> list[Lease]:
    return [one for one in leases if one.kind == _SHARE and unit.key in [leased.key for leased in one.units]]


def _others(found: Survey, leases: tuple[Lease, ...], policy: LeasePolicy, own: tuple[str, str]) -> dict[str, str]:
    """Key → the holder that has it without a share."""
    # Who has a share is not to be found a second time by the nodes in its /dev, which is what "released" says.
    apart = tuple([replace(one, kind="released") if one.kind == _SHARE else one for one in leases])
    shared = {unit.key for one in leases if one.kind == _SHARE for unit in one.units}
    computing = [(k, pid) for k, pid in found.computing if k not in shared and not command_of(pid).startswith(_DAEMONS)]
    return holders(replace(found, computing=tuple(computing)), apart, policy, own)


def _by(taken: Mapping[str, str], unit: GpuDevice) -> str:
    return taken.get(unit.key, "") or (taken.get(unit.gpu_key, "") if unit.parent else "")


def share_free(
    request: FreeRequest,
    share: Share,
    own_env: Mapping[str, str],
    policy: LeasePolicy,
    store: Store,
    requester: Requester,
    note: bool = True,
) -> GivenShare:
    """A share of any GPU that has room for it and fits *request*: rather of one that is shared already.

    Unless *note*, nothing is changed.  Raises :class:`GpuError` that says of each GPU what stands against it.
    """
    if request.count != 1:
        raise ConfigError(
            place(requester.source), f"'{clean(request.text)}': a share is a part of a single GPU: ask for free:1"
        )
    found = survey(own_env, vendor=request.vendor)
    if not note:
        return _share_free(request, share, found, policy, store, requester, tickets(store.path, tidy=False))
    with store:
        given = _share_free(request, share, found, policy, store, requester, tickets(store.path))
        return _record(given, share, store, requester, request.text)


def _share_free(
    request: FreeRequest,
    share: Share,
    found: Survey,
    policy: LeasePolicy,
    store: Store,
    requester: Requester,
    waiting: tuple[Ticket, ...],
) -> GivenShare:
    leases = store.leases()
    taken = _others(found, leases, policy, requester.own)
    never = frozenset([unit.key for unit in found.units if is_named(unit, policy.never)])
    verdicts = [
        v if v.why else Verdict(v.unit, _by(taken, v.unit) or no_room(share, v.unit, leases, requester.own))
        for v in of_the_job(judge(request, found.units, {}, never))
    ]
    room = tuple([v.unit for v in verdicts if not v.why])
    kept = _kept_for(waiting, found.units, room, leases)
    verdicts = [Verdict(v.unit, kept.get(v.unit.key, v.why)) for v in verdicts]
    free = [v.unit for v in verdicts if not v.why]
    if not free:
        why = reasons(verdicts, dict(found.loads)) or none_here(request.vendor)
        problem = f" ({found.problem})" if found.problem else ""
        text = f"{place(requester.source)} '{clean(request.text)}': no GPU has room for a share of {share.text}{problem}"
        raise GpuError(f"{text}: {why}")
    used = store.last_used()

    def order(unit: GpuDevice) -> tuple[int, int, int, int, int]:
        mine = _shares_of(unit, leases)
        left = unit.memory - sum([one.memory for one in mine])
        return int(not mine), left, 100 - sum([one.threads for one in mine]), used.get(unit.key, 0), unit.index

    return GivenShare(min(free, key=order), limits=found.limits)


def _kept_for(
    waiting: tuple[Ticket, ...], units: tuple[GpuDevice, ...], room: tuple[GpuDevice, ...], leases: tuple[Lease, ...]
) -> dict[str, str]:
    """Key → who keeps that GPU of those with *room*: it is free, and was asked for before.  Pure.

    A GPU that is shared already is not free, so no request waits for it, and a further share of it overtakes none.
    """
    fresh = tuple([unit for unit in room if not _shares_of(unit, leases)])
    own = Want(frozenset([unit.key for unit in fresh]))
    mine = {unit.key for unit in available_units(own, units, fresh, [ticket.want for ticket in waiting])}
    return {
        unit.key: f"kept for process {next(t.pid for t in waiting if unit.key in t.want.keys)}, which waits for free GPUs"
        for unit in fresh
        if unit.key not in mine
    }


def share_named(
    nodes: frozenset[tuple[int, int]],
    share: Share,
    own_env: Mapping[str, str],
    policy: LeasePolicy,
    store: Store,
    requester: Requester,
    note: bool = True,
) -> GivenShare:
    """A share of the GPU that the device *nodes* (major, minor) open.

    Unless *note*, nothing is changed.  Raises :class:`GpuError` if these are no GPU or several, or if the GPU is leased or
    has no room.
    """
    found = survey(own_env)
    mine = units_of(found.units, nodes)
    if len(mine) != 1:
        what = f"{len(mine)} GPUs are asked for" if mine else "no GPU is asked for"
        raise ConfigError(share.source, f"a share is a part of a single GPU, and {what}: name one, or ask for free")
    (unit,) = mine
    if not note:
        return _share_named(unit, share, found, policy, store, requester)
    with store:
        given = _share_named(unit, share, found, policy, store, requester)
        return _record(given, share, store, requester, "")


def _share_named(
    unit: GpuDevice, share: Share, found: Survey, policy: LeasePolicy, store: Store, requester: Requester
) -> GivenShare:
    leases = store.leases()
    own = [one for one in _shares_of(unit, leases) if (one.root, one.id) == (requester.root, requester.id)]
    if own:
        return GivenShare(unit, own[0], limits=found.limits)  # it was chosen because it is free
    exclusive = tuple([one for one in leases if one.kind == _EXCLUSIVE])
    leased_to = [one for one in exclusive if unit.key in [have.key for have in one.units]]
    why = f"not well: {unit.unwell}" if unit.unwell else ""
    if not why:
        why = f"leased by {describe_lease(leased_to[0])}" if leased_to else no_room(share, unit, leases, requester.own)
    other = _by(_others(found, leases, policy, requester.own), unit)
    if not why and other and policy.shared == "refuse":
        why = f"{other}, and this site does not share a GPU that is in use"
    if why:
        problem = f" ({found.problem})" if found.problem and unit.memory < 0 else ""
        raise GpuError(f"{share.source}: {unit.label} has no room for a share of {share.text}{problem}: {clean_lines(why)}")
    warning = f"{share.source}: {unit.label}: {other}, without a share: nothing limits that" if other else ""
    return GivenShare(unit, warning=clean_lines(warning), limits=found.limits)


def _record(given: GivenShare, share: Share, store: Store, requester: Requester, request: str) -> GivenShare:
    """*given*, written down.  The lock is held."""
    if given.lease is not None:
        return given
    limits = {"memory": share.memory, "threads": share.threads}
    made = new_lease(
        requester.id, requester.root, lease_units((given.unit,)), **lease_fields(requester, request, _SHARE), **limits
    )
    store.save(made)
    store.note_use([given.unit.key])
    return replace(given, lease=made)


def preview_text(share: Share, given: GivenShare, leases: tuple[Lease, ...]) -> str:
    """What the container would be given, as a sentence, and who has shares of the same GPU."""
    others = _list_shares(_shares_of(given.unit, leases))
    beside = f"beside others: {others}" if others else "which has no other shares"
    return clean_lines(f"a share of {share.text} would be of {given.unit.label} ({given.unit.name}) now, {beside}")
