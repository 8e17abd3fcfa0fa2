"""stats: what containers use now, as a table that is drawn again and again, once, or as JSON.

The JSON form is an array with an object for each container, a line each time: ``id``, ``name``, ``engine``, ``root``;
``cpu`` (``percent`` of one processor since the look before, ``seconds`` so far), ``memory`` (``bytes``, ``limit`` or null),
``pressure`` (``cpu``, ``memory``, ``io``: percent of the last ten seconds that some process waited, null where the kernel
does not say), ``io`` (``readBytes``, ``writtenBytes`` so far, ``readPerSecond``, ``writtenPerSecond``), ``pids``
(``current``, ``limit`` or null); what the cgroup has no controller for is null; ``gpus`` as `gpurun events` has them; and
``dmem``, by region of the kernel's dmem controller ``usage`` and ``limit`` of a GPU's memory in bytes, no limit left out.
"""

from __future__ import annotations

import posix
import time

from gpurun import log
from gpurun.cgroup import control
from gpurun.cli.terminal import width
from gpurun.commands.all_containers import of_gpurun
from gpurun.commands.gpu_use import state_roots
from gpurun.commands.tables import CLEAR, fitting_table, size
from gpurun.engine import kept
from gpurun.engine import state as store
from gpurun.engine.caller.events import parse_duration
from gpurun.engine.gpus.device_edits import own_environment
from gpurun.errors import ContainerNotFound, GpurunError
from gpurun.formats.jsontext import dumps
from gpurun.gpu.usage import GpuUsage
from gpurun.library.stats import stats_of
from gpurun.linux.files import read_file
from gpurun.metrics.containers import with_use
from gpurun.output import write_document, write_stderr, write_stdout
from gpurun.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from gpurun.invocation import Invocation
    from gpurun.library.stats import Stats

    Row = dict[str, Any]

#: What is shown of each container, the most important first: a narrow terminal leaves out the last ones.
COLUMNS = (
    "CONTAINER", "CPU", "MEMORY", "GPU", "GPU MEMORY", "GPU POWER", "GPU TEMP", "PIDS", "IO READ/WRITTEN",
    "PRESSURE CPU/MEM/IO",
)  # fmt: skip
_SENSORS = (COLUMNS.index("GPU POWER"), COLUMNS.index("GPU TEMP"))
_ONCE_S = 0.5  # seconds between the two looks of --once, over which a share of the processor is computed


class Look(Record):
    """One container at one moment: *at* in seconds of the monotonic clock; *controllers* are those that its cgroup has."""

    root: str
    state: store.State
    at: float
    stats: Stats
    controllers: tuple[str, ...]


def stats(invocation: Invocation) -> int:
    """``stats [ID...]``: of all that run where no ID is given; ends when the last one named has ended, or by a signal.

    Raises :class:`GpurunError` for a container that does not run.
    """
    options = invocation.globals
    roots = state_roots(options.root, options.root_given)
    form = invocation.form()
    once = invocation.flag("once")
    if (once or not posix.isatty(1)) and (closed := store.unreadable(roots)):
        write_stderr(closed)
    interval = _ONCE_S if once else parse_duration(invocation.option("interval", "1s"))
    watch = _Watch(roots, invocation.args)
    before = watch.look()
    if invocation.args and not before:
        raise GpurunError("container not running" if watch.known() else str(ContainerNotFound()))
    live_screen = posix.isatty(1) and not once and form == "table"
    try:
        while True:
            time.sleep(interval)
            now = watch.look()
            rows = watch.rows(before, now)
            if form == "json":
                write_stdout(dumps(rows) + "\n")
            elif live_screen:
                write_document(f"{CLEAR}{stats_table(rows, width())}")
            else:
                write_stdout(stats_table(rows, width()))
            if once or (invocation.args and not now):
                return 0
            before = now
    except KeyboardInterrupt:
        return 0


class _Watch:
    """Looks at the containers of *roots*, only at *names* where there are any (ids, or an engine's names)."""

    def __init__(self, roots: tuple[str, ...], names: tuple[str, ...]) -> None:
        self._roots, self._names = roots, names
        self._called: dict[tuple[str, str], tuple[str, str]] = {}  # (root, id) → (name, engine)
        self._usage = GpuUsage(own_environment(), log.warning)

    def known(self) -> bool:
        """Whether there is a container of one of the names, running or not."""
        return any(self._is_id(name) for name in self._names)

    def _is_id(self, name: str) -> bool:
        return any(posix.access(f"{root}/{name}/state", posix.F_OK) for root in self._roots)

    def look(self) -> dict[tuple[str, str], Look]:
        found = {}
        for root, state, data in with_use(self._wanted()):
            self._learn_name(root, state.id)
            found[root, state.id] = Look(root, state, time.monotonic(), stats_of(data, 0), _controllers(state.cgroup))
        return found

    def _wanted(self) -> list[tuple[str, store.State]]:
        """(root, state) of those to look at, as far as they run.

        A word that is an id means only that container.  Any other may be an engine's name, which only a container's
        config tells: then all containers are read, until one of that name runs.
        """
        if not self._names:
            return store.live_containers(self._roots)
        found = store.live_containers(self._roots, self._names)
        words = {name for name in self._names if not self._is_id(name)}
        for (root, container_id), (name, _) in self._called.items():
            if name in words:
                found += store.live_containers((root,), (container_id,))
        words -= {self._called[key][0] for root, state in found if (key := (root, state.id)) in self._called}
        if words:
            for root, state in store.live_containers(self._roots):
                if self._learn_name(root, state.id) in words:
                    found.append((root, state))
        return found

    def _learn_name(self, root: str, container_id: str) -> str:
        """The engine's name for the container, read once."""
        key = (root, container_id)
        if key not in self._called:
            self._called[key] = self._name(root, container_id)
        return self._called[key][0]

    def _name(self, root: str, container_id: str) -> tuple[str, str]:
        try:
            listed = of_gpurun(root, container_id)
        except (GpurunError, OSError, ValueError):
            return "", ""
        return listed.name, listed.engine

    def rows(self, before: Mapping[tuple[str, str], Look], now: Mapping[tuple[str, str], Look]) -> list[Row]:
        """The documents of the JSON form."""
        gpus = self._gpus(now)
        return [row(before.get(key), look, self._called[key], gpus.get(key, [])) for key, look in sorted(now.items())]

    def _gpus(self, now: Mapping[tuple[str, str], Look]) -> dict[tuple[str, str], list[Row]]:
        """The use of their GPUs by those that have some; the drivers are asked once for all."""
        having = {key: kept.load_given(look.root, look.state.id) for key, look in now.items()}
        having = {key: given for key, given in having.items() if given}
        if not having:
            return {}
        looked = self._usage.look([one for given in having.values() for one in given])
        return {key: looked.rows(given, control.processes(now[key].state.cgroup)) or [] for key, given in having.items()}


def _controllers(cgroup: str) -> tuple[str, ...]:
    """The controllers of the cgroup in that directory; none when it is gone."""
    try:
        return tuple(read_file(f"{cgroup}/cgroup.controllers", 4096).decode("ascii", "replace").split())
    except OSError:
        return ()


def row(before: Look | None, now: Look, called: tuple[str, str], gpus: list[Row]) -> Row:
    """What is shown of one container; rates are null where there was no look before, and so is what no controller counts."""
    seconds = now.at - before.at if before is not None else 0.0
    figures = now.stats

    def rate(field: str) -> float | None:
        if before is None or seconds <= 0:
            return None
        grown: float = max(getattr(figures, field) - getattr(before.stats, field), 0)
        return round(grown / seconds, 4)

    def counted(controller: str, value: float | None) -> float | None:
        return value if controller in now.controllers else None

    cpu = rate("cpu_seconds")
    return {
        "id": now.state.id,
        "name": called[0],
        "engine": called[1],
        "root": now.root,
        "cpu": {"percent": None if cpu is None else round(cpu * 100, 1), "seconds": figures.cpu_seconds},
        "memory": {"bytes": counted("memory", figures.memory_bytes), "limit": figures.memory_limit},
        "pressure": {name: _pressure(figures.raw[key]) for name, key in _PRESSURES},
        "io": {
            "readBytes": counted("io", figures.read_bytes),
            "writtenBytes": counted("io", figures.written_bytes),
            "readPerSecond": counted("io", rate("read_bytes")),
            "writtenPerSecond": counted("io", rate("written_bytes")),
        },
        "pids": {"current": counted("pids", figures.pids), "limit": figures.pids_limit},
        "gpus": gpus,
        "dmem": figures.raw.get("dmem") or {},
    }


_PRESSURES = (("cpu", "cpu"), ("memory", "memory"), ("io", "blkio"))


def _pressure(figures: Mapping[str, Any]) -> float | None:
    some = (figures.get("psi") or {}).get("some") or {}
    value: float | None = some.get("avg10")
    return value


def stats_table(rows: list[Row], columns: int) -> str:
    """The table for people, in *columns* (0: any number): what does not fit is left out, from the right."""
    lines = [COLUMNS, *[_cells(one) for one in rows]]
    shown = list(range(len(COLUMNS)))
    if not any("power" in gpu or "temperature" in gpu for one in rows for gpu in one["gpus"]):
        shown = [column for column in shown if column not in _SENSORS]
    if not any(one["gpus"] or one["dmem"] for one in rows):
        shown = [column for column in shown if not COLUMNS[column].startswith("GPU")]
    lines = [tuple([line[column] for column in shown]) for line in lines]
    text = fitting_table(lines, columns, 2)
    return text if rows else f"{text}(no container is running)\n"


def _cells(one: Row) -> tuple[str, ...]:
    memory, pids, io, gpus = one["memory"], one["pids"], one["io"], one["gpus"]
    limit = f" / {size(memory['limit'])}" if memory["limit"] is not None else ""
    percent = one["cpu"]["percent"]
    name = one["name"] or (one["id"][:12] if len(one["id"]) == 64 else one["id"])
    loads = [f"{gpu['utilization']['gpu']}%" if gpu.get("utilization") else "-" for gpu in gpus]
    processes = "-" if pids["current"] is None else str(pids["current"])
    return (
        name,
        "-" if percent is None else f"{percent:.1f}%",
        "-" if memory["bytes"] is None else f"{size(memory['bytes'])}{limit}",
        " ".join(loads) or "-",
        _gpu_memory(gpus) if gpus else _region_memory(one["dmem"]),
        " ".join([f"{gpu['power']:.0f}W" if "power" in gpu else "-" for gpu in gpus]) or "-",
        " ".join([f"{gpu['temperature']:.0f}°C" if "temperature" in gpu else "-" for gpu in gpus]) or "-",
        processes + (f" / {pids['limit']}" if pids["limit"] is not None else ""),
        "-" if io["readBytes"] is None else f"{size(io['readBytes'])} / {size(io['writtenBytes'])}",
        " / ".join(["-" if value is None else f"{value:.1f}%" for value in one["pressure"].values()]),
    )


def _region_memory(regions: Mapping[str, Mapping[str, int]]) -> str:
    limits = [region["limit"] for region in regions.values() if "limit" in region]
    used = size(sum([region["usage"] for region in regions.values()]))
    return f"{used}{f' / {size(sum(limits))}' if limits else ''}" if regions else "-"


def _gpu_memory(gpus: list[Row]) -> str:
    own = [gpu["memory"]["container"] for gpu in gpus if "container" in gpu.get("memory", {})]
    total = [gpu["memory"]["total"] for gpu in gpus if "total" in gpu.get("memory", {})]
    if not total:
        return "-"
    return f"{size(sum(own)) if own else '-'} / {size(sum(total))}"
