"""The helper process that reads what GPUs do; see :mod:`gpurun.gpu.readings`, which starts it and ends it.

A driver that hangs holds whoever reads its files, so each device is read by a thread of its own, as is /proc: what one of
them does not answer costs the others nothing.  One that has not answered in time is a problem in the result.
"""

from __future__ import annotations

import sys
import time

from gpurun.gpu.device import Measured, Reading, ReadingSource
from gpurun.gpu.host.fdinfo import Clients, OpenNodes, clients_at, open_nodes
from gpurun.gpu.host.tasks import Task, answer, silence
from gpurun.gpu.vendors import find_vendor, module
from gpurun.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection
    from typing import NoReturn

#: What may be left out, beside the keys of devices and the names of makers: the look at processes.
PROCESSES = "processes"
#: The part of the time within which /proc has to answer; devices are read with what is left.
_PROC_PART = 0.5


class ReadingsQuestion(Record):
    """What is asked of the helper: the GPUs of *vendors* below *sysroot*, within *seconds*.

    With *figures* those of the makers' exporters as well.  *skipped* are keys of devices, names of makers, and
    :data:`PROCESSES`, that did not answer before and are not asked now.
    """

    sysroot: str
    vendors: tuple[str, ...]
    seconds: float
    figures: bool = False
    skipped: tuple[str, ...] = ()
    proc: str = "/proc"


class Readings(Record):
    """*measured* are all devices that were found, *silent* what did not answer, as *skipped* of a question has it.

    *problems* are sentences about makers, and about /proc.
    """

    measured: tuple[Measured, ...]
    silent: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()


def look(question: ReadingsQuestion) -> Readings:
    """The answer to *question*, in no more than its time."""
    began = time.monotonic()
    deadline, proc_deadline = began + question.seconds, began + question.seconds * _PROC_PART
    walk = None if PROCESSES in question.skipped else Task(lambda: open_nodes(question.proc))

    def clients_of(source: ReadingSource) -> Clients | None:
        nodes = walk.value if walk is not None and walk.is_done(proc_deadline) else None
        if not isinstance(nodes, OpenNodes):
            return None
        minors = source.minors
        return Clients(clients_at([one for one in nodes.nodes if one.minor in minors], question.proc), nodes.whole)

    def read(source: ReadingSource) -> Task:
        return Task(lambda: source.read(lambda: clients_of(source), question.figures))

    def begin(name: str) -> list[tuple[ReadingSource, Task | None]]:
        found: tuple[ReadingSource, ...] = module(name, "readings").sources(question.sysroot)
        return [(source, None if source.key in question.skipped else read(source)) for source in found]

    def find(name: str) -> Task:
        return Task(lambda: begin(name))

    finders = {name: find(name) for name in question.vendors if name not in question.skipped}
    reads: list[tuple[ReadingSource, Task | None]] = []
    silent: list[str] = []
    problems: list[str] = []
    for name, finder in finders.items():
        if not finder.is_done(deadline) or finder.error:
            problems.append(
                f"the GPUs of {find_vendor(name).title} cannot be read: {finder.error or silence(question.seconds)}"
            )
            silent.append(name)
            continue
        reads += finder.value
    measured: list[Measured] = []
    for source, task in reads:
        made, problem = _outcome(task, deadline, question.seconds)
        if problem:
            silent.append(source.key)
            made = tuple([Reading(unit.key, processes=None, problem=problem) for unit in source.units])
        measured += [Measured(unit, one) for unit, one in zip(source.units, made, strict=True)]
    if walk is not None and not walk.is_done(proc_deadline):
        silent.append(PROCESSES)
        problems.append(f"which processes use GPUs is not known: {question.proc} has not been read within the time")
    return Readings(tuple(measured), tuple(silent), tuple(problems))


def _outcome(task: Task | None, deadline: float, seconds: float) -> tuple[tuple[Reading, ...], str]:
    """(readings, why there are none)."""
    if task is None:
        return (), "it has not answered before and is not asked now"
    if not task.is_done(deadline):
        return (), silence(seconds)
    return (task.value, "") if not task.error else ((), task.error)


def parse(words: Collection[str]) -> ReadingsQuestion:
    """The question in the *words* of a command line, as :func:`words_of` has made them."""
    sysroot, seconds, figures, proc, vendors, skipped = words
    return ReadingsQuestion(
        sysroot, tuple(vendors.split()), float(seconds), figures == "figures", tuple(skipped.split()), proc
    )  # fmt: skip


def words_of(question: ReadingsQuestion) -> tuple[str, ...]:
    """*question* as words of a command line; no key has a blank in it."""
    figures = "figures" if question.figures else ""
    names = (" ".join(question.vendors), " ".join(question.skipped))
    return (question.sysroot, str(question.seconds), figures, question.proc, *names)


def main() -> NoReturn:
    """``sys.argv[1:]`` is a question; the answer goes to stdout."""
    answer(lambda: look(parse(sys.argv[1:])))
