"""The helper process that looks at a maker's GPUs; see :mod:`gpurun.gpu.surveys`, which starts it and ends it."""

from __future__ import annotations

import sys
import time

from gpurun.gpu.device import Survey
from gpurun.gpu.host.tasks import Task, answer, silence
from gpurun.gpu.surveys import SurveyQuestion, parse
from gpurun.gpu.vendors import module
from gpurun.record import replace

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NoReturn

#: The part of the time within which processes and links have to be found; which GPUs there are may take the rest as well.
_USE_PART = 0.7


def look(question: SurveyQuestion) -> Survey | str:
    """The answer to *question*, in no more than its time; a sentence where the GPUs are not known.

    Where only their use is not known, ``problem`` of the survey says so.
    """
    began = time.monotonic()
    survey = module(question.vendor, "survey").survey
    env = {"GPURUN_SYSROOT": question.sysroot}
    units = Task(lambda: survey(env, False, question.more))
    if question.ask:
        whole = Task(lambda: survey(env, True, question.more))
        if whole.is_done(began + question.seconds * _USE_PART) and not whole.error:
            found: Survey = whole.value
            return found
    if not units.is_done(began + question.seconds):
        return silence(question.seconds)
    if units.error:
        return units.error
    alone: Survey = units.value
    return replace(alone, problem=whole.error or silence(question.seconds * _USE_PART)) if question.ask else alone


def main() -> NoReturn:
    """``sys.argv[1:]`` is a question; the answer goes to stdout."""
    answer(lambda: look(parse(sys.argv[1:])))
