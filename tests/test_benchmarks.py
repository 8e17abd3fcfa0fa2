"""`make bench`: gpurun is always what is measured, and a goal that was not measured is not reached."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from benchmarks import cases
from benchmarks.__main__ import chosen_runtimes
from benchmarks.report import GOALS, Measured, goals_table, times_table


@pytest.fixture
def build(tmp_path: Path) -> Path:
    """A directory with what a build makes."""
    (tmp_path / "build").mkdir()
    for name in ("gpurun-fast", "gpurun"):
        (tmp_path / "build" / name).touch(0o755)
    return tmp_path / "build"


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory that is PATH, with runc alone."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/runc").touch(0o755)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    return tmp_path / "bin"


def names(found: list[str]) -> list[str]:
    return [os.path.basename(path) for path in found]


def test_what_is_named_comes_beside_gpurun(build: Path, path: Path) -> None:
    assert names(chosen_runtimes([], build)) == ["gpurun-fast", "gpurun", "runc"]
    assert names(chosen_runtimes(["/opt/crun"], build)) == ["gpurun-fast", "gpurun", "crun"]
    assert chosen_runtimes([str(build / "gpurun"), "/old/gpurun"], build)[2:] == ["/old/gpurun"], "each once"


def test_without_gpurun_nothing_is_measured(tmp_path: Path, path: Path) -> None:
    with pytest.raises(SystemExit, match=r"there is no gpurun in .*: `make build`"):
        chosen_runtimes(["/opt/runc"], tmp_path)


def test_a_goal_that_was_not_measured_is_not_reached() -> None:
    """Neither without a peer, nor where gpurun could not do it."""
    nothing = goals_table(Measured("gpurun", {}), {}, 10.0)
    assert nothing.count("| not measured | no |") == len(GOALS) + 1 and "yes" not in nothing
    peer = Measured("runc", {label: [1.0] for label in (cases.LIFE, cases.RUN)})
    assert "| yes |" not in goals_table(Measured("gpurun", {}), {"runc": peer}, 10.0)
    some = goals_table(Measured("gpurun", {cases.LIFE: [0.5], cases.RUN: [2.0]}), {"runc": peer}, 10.0).splitlines()
    assert f"| {cases.LIFE} | runc | 1 | 0.50 | yes |" in some and f"| {cases.RUN} | runc | 1 | 2.00 | no |" in some


def test_what_gpurun_could_not_do_is_in_the_table() -> None:
    """A row of peers alone says so: it does not vanish."""
    table = times_table([Measured("gpurun", {}), Measured("runc", {cases.LIFE: [1.0]})])
    assert f"| {cases.LIFE} |  | 1.0 |  |" in table
