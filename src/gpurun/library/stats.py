"""What a container uses, as one record of plain numbers."""

from __future__ import annotations

from gpurun.cgroup.stats import UNLIMITED
from gpurun.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any


class Stats(Record):
    """The numbers of a container's cgroup at one moment (admin-guide/cgroup-v2.rst); 0 where its controller is missing.

    *raw* is the whole report, in the shape of ``runc events --stats``.
    """

    cpu_seconds: float  # processor time used so far, of all its processes
    memory_bytes: int  # charged now, page cache included
    memory_limit: int | None  # bytes; None for no limit
    pids: int
    pids_limit: int | None
    read_bytes: int  # from and to block devices, so far
    written_bytes: int
    oom_kills: int
    raw: Mapping[str, Any]


def stats_of(data: Mapping[str, Any], oom_kills: int) -> Stats:
    """The record of a report of :func:`gpurun.cgroup.stats.read_stats`."""
    memory, pids = data["memory"], data["pids"]
    moved = {"Read": 0, "Write": 0}
    for row in data["blkio"].get("ioServiceBytesRecursive") or ():
        if row["op"] in moved:
            moved[row["op"]] += row["value"]
    limit = memory["usage"].get("limit", 0)
    return Stats(
        cpu_seconds=data["cpu"]["usage"]["total"] / 1e9,
        memory_bytes=memory["usage"].get("usage", 0),
        memory_limit=None if limit in (0, UNLIMITED) else limit,
        pids=pids.get("current", 0),
        pids_limit=pids.get("limit") or None,
        read_bytes=moved["Read"],
        written_bytes=moved["Write"],
        oom_kills=oom_kills,
        raw=data,
    )
