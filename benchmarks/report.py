"""The measurements as Markdown tables, and as ratios against what each was promised to stay below; pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median
from typing import NamedTuple

from benchmarks import cases, memory
from benchmarks.bed import Times

ROWS = (
    *cases.LIFE_COMMANDS,
    cases.LIFE,
    cases.RUN,
    cases.EXEC,
    cases.LOADED,
    cases.PARALLEL,
    cases.EXECS,
    cases.LIST,
    cases.PLAIN,
    cases.GPU,
    cases.GPU_ANEW,
    cases.GPU_DELETE,
    cases.GPU_LIFE,
    cases.CDI_CREATE,
    cases.CDI_DELETE,
    cases.CDI_LIFE,
    *cases.NVIDIA_COMMANDS,
    cases.NVIDIA_LIFE,
    cases.UNFILTERED,
    cases.SECCOMP,
    cases.VERSION,
)


class Measured(NamedTuple):
    """All that one runtime was measured at: milliseconds by the clock and of processors, and KiB of memory, by label."""

    version: str
    times: Times
    processor: Times = {}
    memory: Times = {}


RUNC, CRUN, NVIDIA, PYTHON = "runc", "crun", "nvidia-container-runtime", "python"
_PEERS = (RUNC, CRUN, NVIDIA)


class Goal(NamedTuple):
    """The median of *label* of gpurun's front, or of its launcher alone, by that of *other* is at most *limit*."""

    label: str
    other: str  # one of _PEERS, PYTHON (the bare interpreter), or another label of gpurun's own
    limit: float
    kind: str = "times"  # the field of Measured
    launcher: bool = False


#: What other GPU runtimes take for the same calls, in milliseconds: a wrapper's create and four times its own start.
GPU_LIFE_LIMIT = (67.8 + 4 * 11) / 2
GOALS = (
    Goal(cases.CDI_LIFE, CRUN, 0.40),
    Goal(cases.CDI_LIFE, CRUN, 0.50, "processor"),
    Goal(cases.EXEC, RUNC, 0.50, "processor"),
    Goal(cases.RUN, RUNC, 0.65, "processor"),
    Goal("create", RUNC, 0.65),
    Goal(cases.RUN, RUNC, 0.65),
    Goal(cases.LIFE, RUNC, 0.45),
    Goal(cases.LOADED, RUNC, 0.7),
    Goal(cases.PARALLEL, RUNC, 0.6),
    Goal(cases.EXECS, RUNC, 0.5),
    Goal(cases.EXECS, RUNC, 0.5, "processor"),
    Goal(cases.LIFE, RUNC, 1.2, launcher=True),
    Goal(memory.PRIVATE, RUNC, 0.8, "memory"),
    Goal(memory.CHARGED, RUNC, 0.8, "memory"),
    Goal(cases.EXEC, RUNC, 1.0),
    Goal(cases.LIST, RUNC, 1.0),
    Goal(cases.GPU, cases.PLAIN, 1.2),
    Goal(cases.SECCOMP, cases.UNFILTERED, 1.15),
    Goal(cases.NVIDIA_LIFE, NVIDIA, 0.5),
    *(Goal(command, PYTHON, 1.25) for command in ("start", "state", "kill", "delete")),
)  # of a container with GPUs the sum of its calls counts, and no single one


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def _head(cells: Sequence[str]) -> list[str]:
    return [_line(cells), _line(["---", *["---:"] * (len(cells) - 1)])]


def times_table(measured: Sequence[Measured], kind: str = "times") -> str:
    """Medians in milliseconds, a column for each runtime, with the least of all rounds beside them, which on a busy machine
    says more; then the ratios of the medians of the first one to each other one."""
    others = measured[1:]
    unit = "ms by the clock" if kind == "times" else "ms of processors"
    head = [f"{unit}: median (least)", *(m.version for m in measured), *(f"ratio to {m.version}" for m in others)]
    lines = _head(head)
    for label in ROWS:
        rows = [getattr(m, kind).get(label) for m in measured]
        if not any(rows):
            continue
        medians = [median(row) if row else None for row in rows]
        ratios = [f"{medians[0] / m:.2f}" if medians[0] and m else "" for m in medians[1:]]
        lines.append(_line([label, *(f"{median(row):.1f} ({min(row):.1f})" if row else "" for row in rows), *ratios]))
    return "\n".join(lines)


def goals_table(ours: Measured, peers: Mapping[str, Measured], python: float, launcher: Measured | None = None) -> str:
    """Each goal, the ratio of the medians and that of the least of all rounds, and whether the former is reached; a goal
    that was not measured is not reached."""
    lines = _head(["goal", "against", "at most", "measured", "by the least", "reached"])
    for goal in GOALS:
        one = launcher or Measured("", {}) if goal.launcher else ours
        mine = getattr(one, goal.kind).get(goal.label)
        if goal.other in _PEERS:
            peer = peers.get(goal.other)
            name, other = (peer.version, getattr(peer, goal.kind).get(goal.label)) if peer else (goal.other, None)
        elif goal.other == PYTHON:
            name, other = "bare python3", [python]
        else:
            name, other = f"own {goal.other}", one.times.get(goal.other)
        what = goal.label + {"processor": ", processor time"}.get(goal.kind, "")
        what += ", launcher alone" if goal.launcher else ""
        if not mine or not other:
            lines.append(_line([what, name, f"{goal.limit:g}", "not measured", "", "no"]))
            continue
        ratio = median(mine) / median(other)
        cells = [what, name, f"{goal.limit:g}", f"{ratio:.2f}", f"{min(mine) / min(other):.2f}"]
        lines.append(_line([*cells, "yes" if ratio <= goal.limit else "no"]))
    life = ours.times.get(cases.GPU_LIFE)
    took = f"{median(life):.1f} ms" if life else "not measured"
    reached = "yes" if life and median(life) <= GPU_LIFE_LIMIT else "no"
    lines.append(_line([cases.GPU_LIFE, "half of 67.8 + 4 x 11 ms", f"{GPU_LIFE_LIMIT:g} ms", took, "", reached]))
    return "\n".join(lines)
