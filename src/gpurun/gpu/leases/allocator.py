"""Giving a container GPUs that are free: look, choose and note it under the lock; wait, if the site says so; or say who has
them.
"""

from __future__ import annotations

import posix
import select
import time

from gpurun import log
from gpurun.errors import GpuError, GpurunError, clean
from gpurun.gpu.device import Survey, units_of
from gpurun.gpu.host.access import NOT_OF_THE_JOB, closed_by_job
from gpurun.gpu.leases import queue
from gpurun.gpu.leases.choice import Verdict, choose, judge
from gpurun.gpu.leases.lease import Lease, Leased
from gpurun.gpu.leases.liveness import open_process
from gpurun.gpu.leases.names import Known
from gpurun.gpu.leases.policy import LeasePolicy
from gpurun.gpu.leases.store import Store, new_lease
from gpurun.gpu.leases.survey import describe_lease, holders, survey
from gpurun.gpu.leases.terms import end_time
from gpurun.gpu.leases.turns import Want, available_units
from gpurun.gpu.leases.wording import clean_lines, none_here, reasons
from gpurun.gpu.vendors import VENDORS, find_vendor, place
from gpurun.linux import procfs
from gpurun.record import Record, replace

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from gpurun.gpu.device import GpuDevice
    from gpurun.gpu.leases.queue import Ticket
    from gpurun.gpu.request.free import FreeRequest

#: Seconds between two looks of one who waits, at the most; the end of a container that has GPUs is noticed at once.
_LOOK_S = 0.25
_SOON_S = 0.05
_MAX_WATCHED = 64
#: How often a choice is made again that a user's own gpurun has crossed.
_TRIES = 20


class Requester(Record):
    """For whom GPUs are wanted: the container, how its engine knows it, who calls, the NUMA nodes of its CPUs.

    *source* is where the request was found, *had* the names of GPUs that a restored container had.  With
    *part*, the name of a lease beside others that the container has, those count like anybody's.
    """

    id: str
    root: str
    known: Known = Known()
    user: int = 0
    near: frozenset[int] = frozenset()
    source: str = ""
    part: str = ""
    had: frozenset[str] = frozenset()

    @property
    def own(self) -> tuple[str, str]:
        """(root, id) of leases that this one takes the place of."""
        return ("", "") if self.part else (self.root, self.id)


class Choice(Record):
    """What would be chosen now, and what stands against each of the others; *chosen* is empty where there is too little."""

    chosen: tuple[GpuDevice, ...]
    verdicts: tuple[Verdict, ...]
    problem: str = ""  # why NVML said nothing
    loads: tuple[tuple[str, str], ...] = ()


def preview(
    request: FreeRequest, own_env: Mapping[str, str], policy: LeasePolicy, store: Store, requester: Requester
) -> Choice:
    """What :func:`allocate` would choose now; nothing is changed and nothing is locked.

    Raises :class:`GpuError` where it would be refused, or would have to wait.
    """
    end_time(request, policy, requester.source)
    found = survey(own_env, vendor=request.vendor)
    leases = store.leases()
    _check_limits(request, leases, policy, requester)
    verdicts = _verdicts(request, found, leases, policy, requester)
    chosen = choose(request, tuple([v.unit for v in verdicts if not v.why]), requester.near, store.last_used())
    if not chosen:
        raise GpuError(_refusal(request, found, verdicts, requester))
    return Choice(chosen, verdicts, found.problem, found.loads)


def preview_text(request: FreeRequest, choice: Choice) -> str:
    """*choice* as a sentence: what would be chosen now, and why not each of the others."""
    names = ", ".join([f"{unit.label} ({unit.name})" for unit in choice.chosen])
    others = [v for v in choice.verdicts if v.unit not in choice.chosen]
    why = reasons(others, dict(choice.loads), free="free as well")
    text = f"'{clean(request.text)}' would be {names} now{f'; {why}' if why else ''}"
    return f"{text} (processes of the host are not known: {choice.problem})" if choice.problem else text


def allocate(
    request: FreeRequest, own_env: Mapping[str, str], policy: LeasePolicy, store: Store, requester: Requester
) -> tuple[Lease, tuple[str, ...]]:
    """GPUs for *requester*, noted in *store*; returns the lease and the names of what was chosen.

    Raises :class:`GpuError`: too few that fit, a limit of the site, or taken, and for how long was waited.  Returns (lease,
    names).
    """
    end_time(request, policy, requester.source)  # what the site does not allow is refused at once
    found = survey(own_env, vendor=request.vendor)
    if found.problem:
        log.warning(f"free GPUs are chosen without knowing which processes of the host compute: {found.problem}")
    if not found.units:
        raise GpuError(f"{_quote(request, requester)}: {none_here(request.vendor)}, `gpurun gpu list` says why")
    deadline = time.monotonic() + policy.wait
    ticket: Ticket | None = None
    try:
        while True:
            with store:
                tried = _attempt(request, found, policy, store, requester, ticket)
                if tried.lease is not None:
                    if ticket is not None:
                        queue.leave(store.path, ticket)
                        ticket = None
                    return tried.lease, tuple([unit.name for unit in tried.lease.units])
                if ticket is None and policy.wait:
                    want = Want(tried.possible, request.count, request.nvlink)
                    ticket = queue.draw(store.path, *_self(), want)
            rest = deadline - time.monotonic()
            if rest <= 0:
                raise GpuError(_refusal(request, found, tried.verdicts, requester, tried.before, policy.wait))
            _await_one(tried.watched, min(rest, _LOOK_S))
    finally:
        if ticket is not None:
            _leave(store, ticket)


def _leave(store: Store, ticket: Ticket) -> None:
    try:
        with store:
            queue.leave(store.path, ticket)
    except GpurunError as e:
        log.debug(f"the queue for GPUs is left without its lock: {e}")
        queue.leave(store.path, ticket)


class _Attempt(Record):
    """What one try has come to.

    Without a *lease*: *verdicts* say what stands against each GPU, *before* are those who came first and keep free GPUs,
    *possible* the keys of what could be had some time, *watched* the (pid, start time) of processes whose end would make a
    difference.
    """

    lease: Lease | None
    verdicts: tuple[Verdict, ...] = ()
    before: tuple[Ticket, ...] = ()
    possible: frozenset[str] = frozenset()
    watched: tuple[tuple[int, int], ...] = ()


def _attempt(
    request: FreeRequest, found: Survey, policy: LeasePolicy, store: Store, requester: Requester, ticket: Ticket | None
) -> _Attempt:
    """One try, with the lock; *ticket* is what was drawn at an earlier one.  Raises :class:`GpuError`."""
    for _ in range(_TRIES):
        leases = store.leases()
        _check_limits(request, leases, policy, requester)
        verdicts = _verdicts(request, found, leases, policy, requester)
        possible = frozenset([v.unit.key for v in verdicts if not v.why or v.waiting])
        if len(possible) < request.count:
            raise GpuError(_refusal(request, found, verdicts, requester))
        before = queue.ahead(store.path, possible, ticket)
        free = tuple([v.unit for v in verdicts if not v.why])
        mine = available_units(
            Want(possible, request.count, request.nvlink), found.units, free, [one.want for one in before]
        )
        chosen = choose(request, mine, requester.near, store.last_used(), requester.had)
        if not chosen:
            watched = [(one.pid, one.start_time) if one.pid else (one.maker, one.maker_start) for one in leases]
            watched += [(one.pid, one.start_time) for one in before]
            return _Attempt(None, verdicts, before if len(mine) < len(free) else (), possible, tuple(watched))
        end = end_time(request, policy, requester.source)
        made = new_lease(
            requester.id, requester.root, lease_units(chosen), until=end, **lease_fields(requester, request.text)
        )
        store.save(made)
        keys = {unit.key for unit in chosen}
        others = [one for one in store.foreign_leases() if one.kind != "released"]
        if not any(keys & {unit.key for unit in other.units} for other in others):
            store.note_use(sorted(keys))
            return _Attempt(made)
        store.remove(made)  # another user's gpurun, which cannot share our lock, was as fast
        time.sleep(posix.urandom(1)[0] / 5000)
    raise GpuError(f"{_quote(request, requester)}: other users lease GPUs at this moment, try again")


def lease_units(units: tuple[GpuDevice, ...]) -> tuple[Leased, ...]:
    """*units* as a lease has them."""
    return tuple([Leased(unit.key, unit.name, unit.index, unit.minor) for unit in units])


def lease_fields(requester: Requester, request: str, kind: str = "lease") -> dict[str, Any]:
    """The fields of a lease about the requester and the request."""
    known = requester.known
    return {
        "kind": kind,
        "request": request,
        "name": known.name,
        "engine": known.engine,
        "user": requester.user,
        "labels": known.labels,
        "part": requester.part,
    }


def _self() -> tuple[int, int]:
    found = procfs.stat(posix.getpid())
    return posix.getpid(), found[1] if found is not None else 0


def _verdicts(
    request: FreeRequest, found: Survey, leases: tuple[Lease, ...], policy: LeasePolicy, requester: Requester
) -> tuple[Verdict, ...]:
    never = frozenset([unit.key for unit in found.units if is_named(unit, policy.never)])
    return of_the_job(judge(request, found.units, holders(found, leases, policy, requester.own), never))


def of_the_job(verdicts: tuple[Verdict, ...]) -> tuple[Verdict, ...]:
    """*verdicts*, with what the rules of the caller's Slurm job stand against, whoever has it: that does not end."""
    closed = closed_by_job([node.host_path for one in verdicts for node in one.unit.nodes])
    return tuple(
        [
            Verdict(one.unit, NOT_OF_THE_JOB) if any(node.host_path in closed for node in one.unit.nodes) else one
            for one in verdicts
        ]
    )


def is_named(unit: GpuDevice, names: tuple[str, ...]) -> bool:
    """Whether one of *names* (index, UUID, bus id) is that of *unit*, or of the GPU that it is a part of."""
    own = {*[name.lower() for name in unit.names], unit.key, unit.gpu_key, str(unit.index)}
    return any(name.lower() in own for name in names)


def _check_limits(request: FreeRequest, leases: tuple[Lease, ...], policy: LeasePolicy, requester: Requester) -> None:
    others = [one for one in leases if one.kind == "lease" and (one.root, one.id) != requester.own]
    if policy.per_user:
        have = sum([len(one.units) for one in others if one.user == requester.user])
        _check_limit(request, requester, have, policy.per_user, f"user {requester.user}")
    labels = dict(requester.known.labels)
    for label, limit in policy.per_label:
        if label in labels:
            have = sum([len(one.units) for one in others if dict(one.labels).get(label) == labels[label]])
            _check_limit(request, requester, have, limit, f"containers with {label}={clean(labels[label])}")


def _check_limit(request: FreeRequest, requester: Requester, have: int, limit: int, who: str) -> None:
    if have + request.count > limit:
        raise GpuError(
            f"{_quote(request, requester)}: the site lets {who} lease {limit} GPUs at a time, {have} are leased now"
        )


def _quote(request: FreeRequest, requester: Requester) -> str:
    return f"{place(requester.source)} '{clean(request.text)}'"


def _refusal(
    request: FreeRequest,
    found: Survey,
    verdicts: tuple[Verdict, ...],
    requester: Requester,
    before: tuple[Ticket, ...] = (),
    waited: float = 0.0,
) -> str:
    """Why there is no lease: what is free, who came *before*, and what stands against each of the others.

    *waited*: for how many seconds.
    """
    maker = find_vendor(request.vendor or VENDORS[0].name)
    part = maker.part if request.profile else "GPU"
    kind = f"{part}{'s' * (request.count > 1)}{f' of profile {request.profile}' if request.profile else ''}"
    free = [v.unit for v in verdicts if not v.why]
    text = f"{_quote(request, requester)}: {request.count} {kind} wanted"
    if len(verdicts) < request.count:  # nothing to wait for, whoever has them
        if not verdicts and not request.profile:
            return f"{text}, {none_here(request.vendor)}"
        return f"{text}, this host has {len(verdicts) or f'no {part}'}"
    text += f", {len(free)} of {len(verdicts)} free"
    if before:
        text += f" and others came first (process {before[-1].pid} waits)"
    elif request.nvlink and len(free) >= request.count:
        text += f", but not connected by {maker.link}"
    if waited:
        text += f" after {waited:g} s"
    why = reasons(verdicts, dict(found.loads))
    return f"{text}: {why}" if why else text


def _await_one(watched: tuple[tuple[int, int], ...], seconds: float) -> None:
    """Wait until one of those processes has ended, for *seconds* at most.

    One that has ended already, or is not to be seen, is waited for no longer than _SOON_S.
    """
    waiting = select.poll()
    opened: list[int] = []
    try:
        for pid, start in watched[:_MAX_WATCHED]:
            fd = open_process(pid, start)
            if fd >= 0:
                opened.append(fd)
                waiting.register(fd, select.POLLIN)
        seen = len(opened) == len(watched[:_MAX_WATCHED])
        waiting.poll(int((seconds if seen else min(seconds, _SOON_S)) * 1000) + 1)
    finally:
        for fd in opened:
            posix.close(fd)


def record_named(
    nodes: tuple[tuple[int, int], ...], own_env: Mapping[str, str], policy: LeasePolicy, store: Store, requester: Requester
) -> tuple[str, Lease | None]:
    """Note that a container has the GPUs of these device *nodes* (major, minor), which it asked for by name.

    Returns a warning, or "", and what was noted, if those are GPUs.
    Raises :class:`GpuError` where the site refuses what others have leased.
    """
    found = survey(own_env, ask=False)
    mine = units_of(found.units, frozenset(nodes))
    keys = {unit.key for unit in mine}
    if not keys:
        return "", None
    requester = replace(requester, source=requester.source or find_vendor(mine[0].vendor).variable)
    with store:
        text = ""
        for one in store.leases():
            shared = [unit for unit in one.units if unit.key in keys or _overlaps(unit.key, keys)]
            if one.kind in ("lease", "share") and shared and (one.root, one.id) != (requester.root, requester.id):
                listed = ", ".join([f"GPU {unit.index}" for unit in shared])
                how = "leased" if one.kind == "lease" else "shared"
                text = f"{place(requester.source)}: {listed}: {how} by {describe_lease(one)}"
                if policy.shared == "refuse":
                    raise GpuError(f"{clean_lines(text)}: this site does not share leased GPUs: ask for free:{len(keys)}")
        made = new_lease(requester.id, requester.root, lease_units(mine), **lease_fields(requester, "", "named"))
        store.save(made)
        store.note_use(sorted(keys))
    return f"{clean_lines(text)}: both use it" if text else "", made


def _overlaps(key: str, keys: set[str]) -> bool:
    """Whether one is a part of the other: a GPU and a MIG device of it."""
    return any(one.startswith(f"{key}/") or key.startswith(f"{one}/") for one in keys)
