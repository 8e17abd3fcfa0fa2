"""Taking back a container that is half made: in the order of the stages, and what is kept where a step fails."""

from __future__ import annotations

import pytest

from gpurun import log
from gpurun.engine.caller import rollback as stages
from gpurun.engine.caller.rollback import Rollback
from gpurun.errors import GpurunError, StepError


@pytest.fixture
def warnings(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    told: list[str] = []
    monkeypatch.setattr(log, "warning", told.append)
    return told


def test_stages_have_one_order_whatever_came_first(warnings: list[str]) -> None:
    rollback = Rollback()
    done: list[str] = []
    names = [name for name in vars(stages) if name.isupper() and not name.startswith("_") and name != "TYPE_CHECKING"]
    for name in sorted(names):
        rollback.add(getattr(stages, name), lambda name=name: done.append(name))  # type: ignore[misc]
    rollback.take_back("c1")
    assert done == names and done[0] == "STARTER" and done[-2:] == ["STATE_DIRECTORY", "POSTSTOP_HOOKS"]
    assert warnings == []


def test_in_a_stage_the_last_is_taken_first() -> None:
    rollback = Rollback()
    done: list[str] = []
    for name in ("made", "used", "left"):
        rollback.add(stages.CGROUP, lambda name=name: done.append(name))  # type: ignore[misc]
    rollback.take_back("c1")
    assert done == ["left", "used", "made"]


def test_what_is_to_stay_stays() -> None:
    rollback = Rollback()
    done: list[str] = []
    rollback.add(stages.CHECKPOINT, lambda: done.append("checkpoint"))
    rollback.add(stages.CGROUP, lambda: done.append("cgroup"))
    rollback.forget(stages.CHECKPOINT)
    rollback.take_back("c1")
    assert done == ["cgroup"]


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (StepError("remove", "/cgroup", 16), "remove /cgroup: device or resource busy"),
        (GpurunError("in our words"), "in our words"),
        (OSError(13, "x", "/path"), "/path: permission denied"),
        (KeyError("x"), "internal error in gpurun: KeyError: 'x'"),
    ],
)
def test_one_that_fails_keeps_the_state_and_stops_nothing_else(error: Exception, text: str, warnings: list[str]) -> None:
    rollback = Rollback()
    done: list[str] = []

    def fail() -> None:
        raise error

    rollback.add(stages.STATE_DIRECTORY, lambda: done.append("state"))
    rollback.add(stages.POSTSTOP_HOOKS, lambda: done.append("hooks"))
    rollback.add(stages.PROCESSES, fail)
    rollback.add(stages.CGROUP, lambda: done.append("cgroup"))
    rollback.take_back("c1")
    assert done == ["cgroup"]
    assert warnings == [
        f"while undoing what create had made: {text}",
        "container c1 is left half made: delete --force removes it",
    ]


def test_a_state_directory_that_stays_keeps_the_hooks_for_delete(warnings: list[str]) -> None:
    rollback = Rollback()
    done: list[str] = []

    def fail() -> None:
        raise OSError(39, "x", "/run/gpurun/c1")

    rollback.add(stages.STATE_DIRECTORY, fail)
    rollback.add(stages.POSTSTOP_HOOKS, lambda: done.append("hooks"))
    rollback.take_back("c1")
    assert done == [] and len(warnings) == 2
