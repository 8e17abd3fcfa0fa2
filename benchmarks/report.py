"""The measurements as a Markdown table, and as ratios against what each was promised to stay below; pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median
from typing import NamedTuple

from benchmarks import cases
from benchmarks.bed import Times

ROWS = (
    *cases.LIFE_COMMANDS,
    cases.LIFE,
    cases.RUN,
    cases.EXEC,
    cases.PARALLEL,
    cases.LIST,
    cases.PLAIN,
    cases.GPU,
    cases.GPU_ANEW,
    cases.GPU_DELETE,
    cases.GPU_LIFE,
    *cases.NVIDIA_COMMANDS,
    cases.NVIDIA_LIFE,
    cases.UNFILTERED,
    cases.SECCOMP,
    cases.VERSION,
)


class Measured(NamedTuple):
    """All that one runtime was measured at."""

    version: str
    times: Times


class Goal(NamedTuple):
    """gpurun's median of *label* by *other* (of a peer, of the bare interpreter, or of its own) is at most *limit*."""

    label: str
    other: str  # a label of gpurun's own, RUNC, NVIDIA or PYTHON
    limit: float


RUNC, NVIDIA, PYTHON = "runc", "nvidia-container-runtime", "python"
#: What other GPU runtimes take for the same calls, in milliseconds: a wrapper's create and four times its own start.
GPU_LIFE_LIMIT = (67.8 + 4 * 11) / 2
GOALS = (
    Goal(cases.LIFE, RUNC, 1.0),
    Goal(cases.RUN, RUNC, 1.0),
    Goal(cases.EXEC, RUNC, 1.0),
    Goal(cases.PARALLEL, RUNC, 1.0),
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


def times_table(measured: Sequence[Measured]) -> str:
    """The medians in milliseconds, a column for each runtime; then the ratios of the first one to each other one."""
    others = measured[1:]
    lines = _head(["median of ms", *(m.version for m in measured), *(f"ratio to {m.version}" for m in others)])
    for label in ROWS:
        medians = [median(m.times[label]) if m.times.get(label) else None for m in measured]
        if not any(medians):
            continue
        ratios = [f"{medians[0] / m:.2f}" if medians[0] and m else "" for m in medians[1:]]
        lines.append(_line([label, *("" if m is None else f"{m:.1f}" for m in medians), *ratios]))
    return "\n".join(lines)


def goals_table(ours: Measured, peers: Mapping[str, Measured], python: float) -> str:
    """Each goal, the ratio measured, and whether it is reached; a goal that was not measured is not reached."""
    lines = _head(["goal", "against", "at most", "measured", "reached"])
    for goal in GOALS:
        mine = ours.times.get(goal.label)
        if goal.other in (RUNC, NVIDIA):
            peer = peers.get(goal.other)
            name, other = (peer.version, peer.times.get(goal.label)) if peer else (goal.other, None)
        elif goal.other == PYTHON:
            name, other = "bare python3", [python]
        else:
            name, other = f"own {goal.other}", ours.times.get(goal.other)
        if not mine or not other:
            lines.append(_line([goal.label, name, f"{goal.limit:g}", "not measured", "no"]))
            continue
        ratio = median(mine) / median(other)
        lines.append(_line([goal.label, name, f"{goal.limit:g}", f"{ratio:.2f}", "yes" if ratio <= goal.limit else "no"]))
    life = ours.times.get(cases.GPU_LIFE)
    took = f"{median(life):.1f} ms" if life else "not measured"
    reached = "yes" if life and median(life) <= GPU_LIFE_LIMIT else "no"
    lines.append(_line([cases.GPU_LIFE, "half of 67.8 + 4 x 11 ms", f"{GPU_LIFE_LIMIT:g} ms", took, reached]))
    return "\n".join(lines)
