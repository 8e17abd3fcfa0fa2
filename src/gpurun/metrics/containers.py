"""The figures of containers' cgroups, under the names of cAdvisor; pure but for :func:`running_containers`."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from gpurun.cgroup.stats import UNLIMITED, read_stats
from gpurun.engine import state as store
from gpurun.errors import GpurunError
from gpurun.metrics.samples import Sample
from gpurun.oci.annotations import CONTAINERD_NAMES, CRIO_NAMES
from gpurun.record import Record

#: Label → the annotations that containerd and CRI-O write for it.
_ANNOTATIONS = dict(
    zip(("namespace", "pod", "container", "image"), zip(CONTAINERD_NAMES, CRIO_NAMES, strict=True), strict=True)
)


class Used(Record):
    """What one container uses: *data* as ``gpurun events --stats`` prints it, *labels* by cAdvisor's names."""

    labels: tuple[tuple[str, str], ...]
    data: dict[str, Any]


def running_containers(roots: Iterable[str]) -> list[Used]:
    """The containers that run, of the state directories *roots*.  What goes away meanwhile is left out."""
    return [Used(labels_of(state), data) for _, state, data in with_use(store.live_containers(roots))]


def with_use(containers: Iterable[tuple[str, store.State]]) -> list[tuple[str, store.State, dict[str, Any]]]:
    """(state directory, state) of each → the same with what its cgroup uses."""
    found = []
    for root, state in containers:
        try:
            if state.cgroup:
                found.append((root, state, read_stats(state.cgroup)))
        except (GpurunError, OSError, ValueError):
            continue  # just being deleted
    return found


def labels_of(state: store.State) -> tuple[tuple[str, str], ...]:
    """``id`` (the cgroup), ``name``, and of a pod's container ``pod``, ``namespace``, ``container`` and ``image``."""
    try:
        annotations: Mapping[str, str] = json.loads(state.annotations or "{}")
    except ValueError:
        annotations = {}
    found = {"id": state.cgroup.removeprefix("/sys/fs/cgroup") or "/", "name": state.id}
    for label, names in _ANNOTATIONS.items():
        found[label] = next((str(annotations[name]) for name in names if name in annotations), "")
    return tuple(found.items())


def container_samples(used: Iterable[Used]) -> list[Sample]:
    """The samples of all containers; seconds and bytes."""
    made: list[Sample] = []
    for one in used:
        for name, kind, text, value, more in _figures(one.data):
            made.append(Sample(f"container_{name}", kind, text, (*one.labels, *more), value))
    return made


def _figures(data: Mapping[str, Any]) -> list[tuple[str, str, str, float, tuple[tuple[str, str], ...]]]:
    cpu, memory, raw = data["cpu"], data["memory"], data["memory"]["raw"]
    usage, throttling = cpu["usage"], cpu["throttling"]
    limit = memory["usage"]["limit"]
    used = memory["usage"]["usage"]
    figures: list[tuple[str, str, str, float]] = [
        ("cpu_usage_seconds_total", "counter", "CPU time.", usage["total"] / 1e9),
        ("cpu_user_seconds_total", "counter", "CPU time in user mode.", usage["user"] / 1e9),
        ("cpu_system_seconds_total", "counter", "CPU time in the kernel.", usage["kernel"] / 1e9),
        ("cpu_cfs_periods_total", "counter", "Periods of the CPU quota.", throttling["periods"]),
        (
            "cpu_cfs_throttled_periods_total",
            "counter",
            "Periods in which the quota was used up.",
            throttling["throttledPeriods"],
        ),
        ("cpu_cfs_throttled_seconds_total", "counter", "Time that the quota took.", throttling["throttledTime"] / 1e9),
        ("memory_usage_bytes", "gauge", "Memory, with all caches.", used),
        (
            "memory_working_set_bytes",
            "gauge",
            "Memory without caches that go first.",
            max(used - raw.get("inactive_file", 0), 0),
        ),
        ("memory_rss", "gauge", "Anonymous memory.", raw.get("anon", 0)),
        ("memory_cache", "gauge", "Page cache.", memory["cache"]),
        ("memory_max_usage_bytes", "gauge", "The most memory so far.", memory["usage"]["max"]),
        ("memory_failcnt", "counter", "How often the limit was met.", memory["usage"]["failcnt"]),
        ("spec_memory_limit_bytes", "gauge", "The limit of memory; 0: none.", 0 if limit in (0, UNLIMITED) else limit),
        ("processes", "gauge", "Processes and threads.", data["pids"]["current"]),
    ]
    made = [(name, kind, text, float(value), ()) for name, kind, text, value in figures]
    return [*made, *_io(data["blkio"]), *_pressure(data)]


def _io(blkio: Mapping[str, Any]) -> list[tuple[str, str, str, float, tuple[tuple[str, str], ...]]]:
    names = {
        ("ioServiceBytesRecursive", "Read"): ("fs_reads_bytes_total", "Bytes read."),
        ("ioServiceBytesRecursive", "Write"): ("fs_writes_bytes_total", "Bytes written."),
        ("ioServicedRecursive", "Read"): ("fs_reads_total", "Reads."),
        ("ioServicedRecursive", "Write"): ("fs_writes_total", "Writes."),
    }
    made: list[tuple[str, str, str, float, tuple[tuple[str, str], ...]]] = []
    for (table, operation), (name, text) in names.items():
        for entry in blkio[table]:
            if entry["op"] == operation:
                device = (("device", f"{entry['major']}:{entry['minor']}"),)
                made.append((name, "counter", text, float(entry["value"]), device))
    return made


def _pressure(data: Mapping[str, Any]) -> list[tuple[str, str, str, float, tuple[tuple[str, str], ...]]]:
    made: list[tuple[str, str, str, float, tuple[tuple[str, str], ...]]] = []
    for key, name in (("cpu", "cpu"), ("memory", "memory"), ("blkio", "io")):
        psi = data[key].get("psi") or {}
        for kind, word in (("some", "waiting"), ("full", "stalled")):
            if "total" in psi.get(kind, {}):
                text = f"Time that {'some' if kind == 'some' else 'all'} processes waited for {name}."
                made.append((f"pressure_{name}_{word}_seconds_total", "counter", text, psi[kind]["total"] / 1e6, ()))
    return made
