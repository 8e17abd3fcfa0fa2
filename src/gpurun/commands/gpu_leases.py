"""gpu leases, gpu lease --release: the holder of each leased GPU, and how an administrator ends a lease.

The JSON form is for programs and only ever grows: ``leases``, each with ``id``, ``root``, ``name``, ``engine``, ``kind``
(``lease``, ``share``, ``named`` or ``released``), ``request``, ``since`` and ``until`` (RFC 3339; null: with its container),
``stage`` (the last step for its end: ``warned``, ``over``, ``SIGTERM``, ``SIGKILL``), ``user``, ``pid`` (0: being made),
``gpus`` (``uuid``, ``index``, ``minor``, ``busId``), and of a share ``memory`` (bytes) and ``threads`` (percent), null where
they are not limited; and ``waiting``, the pids of those who wait, in order.
"""

from __future__ import annotations

import time

from gpurun.commands.tables import table
from gpurun.engine.gpus.leases import open_store, site_policy
from gpurun.engine.signals import send_signal
from gpurun.errors import GpurunError, UsageError, clean
from gpurun.formats.jsontext import dumps
from gpurun.gpu.leases.queue import tickets
from gpurun.gpu.leases.terms import clock_time, expire
from gpurun.gpu.request.share import share_text
from gpurun.gpu.vendors import present
from gpurun.output import write_stderr, write_stdout
from gpurun.record import replace

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from gpurun.gpu.leases.lease import Lease, Leased

    Row = dict[str, Any]

_YEAR_9999 = 253402300799
_TITLES = ("GPUS", "CONTAINER", "ENGINE", "SINCE", "REQUEST")


def list_leases(env: Mapping[str, str], form: str) -> int:
    """``gpu leases``; returns the exit code."""
    store = open_store(env)
    leases = store.leases()
    waiting = [ticket.pid for ticket in tickets(store.path, tidy=False)]
    if form == "json":
        write_stdout(dumps({"leases": [row(lease) for lease in leases], "waiting": waiting}, 2) + "\n")
        return 0
    if leases:
        write_stdout(table([_TITLES, *[_cells(lease) for lease in leases]]))
    else:
        write_stderr(f"gpurun: no GPU is leased{_how(env)}")
    if waiting:
        write_stdout(f"waiting for GPUs, in this order: process {', '.join([str(pid) for pid in waiting])}\n")
    return 0


def _how(env: Mapping[str, str]) -> str:
    """How containers ask for one on this host, where any can."""
    makers = present(env)
    return f": containers ask for one with {makers[0].variable}=free" if makers else ", and this host has none to lease"


def expire_leases(env: Mapping[str, str]) -> int:
    """``gpu leases --expire``: the next step for leases whose time comes or is over; returns the exit code."""
    expire(open_store(env), site_policy(), send_signal)
    return 0


def row(lease: Lease) -> Row:
    """A lease as the JSON form has it."""
    return {
        "id": lease.id,
        "root": lease.root,
        "name": lease.name or None,
        "engine": lease.engine or None,
        "kind": lease.kind,
        "request": lease.request or None,
        "since": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(lease.since // 10**9)),
        "until": time.strftime("%Y-%m-%dT%H:%M:%SZ", _clock(lease)) if lease.until else None,
        "stage": lease.stage or None,
        "user": lease.user,
        "pid": lease.pid,
        "gpus": [
            {"uuid": unit.name, "index": unit.index, "minor": unit.minor, "busId": unit.key.partition("/")[0]}
            for unit in lease.units
        ],
        "memory": lease.memory or None,
        "threads": lease.threads or None,
    }


def _cells(lease: Lease) -> tuple[str, ...]:
    gpus = ",".join([_cell(unit) for unit in lease.units])
    since = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(lease.since // 10**9))
    asked = {"named": "by name", "released": "released"}.get(lease.kind, lease.request)
    if lease.kind == "share":
        asked = f"share: {share_text(lease.memory, lease.threads)}"
    if lease.until:
        asked = f"{asked}, until {time.strftime('%Y-%m-%d %H:%M:%S', _clock(lease))}"
    return gpus, clean(lease.label, 60), lease.engine or "-", since, clean(asked, 60)


def _cell(unit: Leased) -> str:
    """The index of a GPU of NVIDIA's, with what the MIG device is; of others, which are counted anew, what names them."""
    if unit.name == unit.key:
        return unit.key
    return str(unit.index) + (f":{unit.key.partition('/')[2]}" if "/" in unit.key else "")


def _clock(lease: Lease) -> time.struct_time:
    return time.gmtime(min(max(clock_time(lease.until) // 10**9, 0), _YEAR_9999))


def release(words: tuple[str, ...], env: Mapping[str, str], asked: bool) -> int:
    """``gpu lease --release CONTAINER``: its GPUs can be leased again, though it may use them still.

    Raises :class:`GpurunError` for a container without a lease, and for one of another user.
    """
    if not asked or len(words) != 1:
        raise UsageError("gpu lease: say --release and one container, by its id or its engine's name (`gpurun gpu leases`)")
    store = open_store(env)
    with store:
        found = [lease for lease in store.own_leases() if _is_meant(lease, words[0])]
        if not found:
            for lease in store.foreign_leases():
                if _is_meant(lease, words[0]):
                    raise GpurunError(f"{clean(words[0])}: the lease belongs to user {lease.user}: release it as that user")
            raise GpurunError(
                f"{clean(words[0])}: no container with this id or name has a lease: `gpurun gpu leases` "
                f"lists those that have one"
            )
        if len(found) > 1:
            listed = ", ".join([lease.label for lease in found])
            raise GpurunError(f"{clean(words[0])}: {len(found)} containers with leases have this name: {clean(listed)}")
        # Kept until the container is gone: what is in its /dev does not count any more.
        store.save(replace(found[0], kind="released"))
    return 0


def _is_meant(lease: Lease, word: str) -> bool:
    return lease.kind != "released" and (word in (lease.name, lease.id) or _begins(lease.id, word))


def _begins(container_id: str, word: str) -> bool:
    """Whether *word* is enough of an id, as engines show it."""
    return len(word) >= 12 and container_id.startswith(word)
