"""The short form of the tests, and which stages .ci/run leaves out for want of time."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[1]

CASES = """
import pytest

@pytest.mark.sweep(3)
@pytest.mark.parametrize("n", [*range(9), pytest.param(9, marks=pytest.mark.short), *range(10, 21)])
def test_swept(n): pass

@pytest.mark.parametrize("n", range(4))
def test_whole(n): pass
"""


@pytest.fixture
def suite(tmp_path: Path) -> Path:
    """A suite with this repository's forms, apart from all else that its conftest.py does."""
    (tmp_path / "conftest.py").write_text(
        "from tests import forms\n"
        "pytest_addoption, pytest_configure = forms.add_option, forms.configure\n"
        "pytest_collection_modifyitems = forms.choose\n"
    )
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers =\n  sweep(keep): a part\n  short: always\n")
    (tmp_path / "test_it.py").write_text(CASES)
    return tmp_path


def collected(suite: Path, *options: str) -> dict[str, list[int]]:
    """Test → its cases that would be run."""
    command = (sys.executable, "-m", "pytest", "-q", "--collect-only", "-p", "no:cacheprovider", *options)
    env = {name: value for name, value in os.environ.items() if name != "GPURUN_TESTS_LONG"}
    env["PYTHONPATH"] = str(REPOSITORY)
    said = subprocess.run(command, cwd=suite, env=env, capture_output=True, text=True, check=True).stdout
    found: dict[str, list[int]] = {}
    for line in said.splitlines():
        if "::" in line:
            name, _, case = line.partition("::")[2].partition("[")
            found.setdefault(name, []).append(int(case.rstrip("]")))
    return found


def test_the_short_form_has_some_cases_of_a_sweep_and_all_of_other_tests(suite: Path) -> None:
    assert collected(suite) == {"test_swept": [0, 9, 11, 20], "test_whole": [0, 1, 2, 3]}


def test_the_long_form_has_them_all(suite: Path) -> None:
    assert collected(suite, "--long") == {"test_swept": [*range(21)], "test_whole": [0, 1, 2, 3]}


def test_what_somebody_asks_for_is_there(suite: Path) -> None:
    assert collected(suite, "test_it.py::test_swept[4]") == {"test_swept": [4]}
    assert collected(suite, "-k", "swept") == {"test_swept": [*range(21)]}


@pytest.fixture
def integration(tmp_path: Path) -> Path:
    """.ci/run in a directory of its own, and a ``make`` that only notes what it was asked; ``FAILS`` names what fails."""
    (tmp_path / ".ci").mkdir()
    shutil.copy(REPOSITORY / ".ci/run", tmp_path / ".ci/run")
    (tmp_path / "bin").mkdir()
    make = tmp_path / "bin/make"
    make.write_text('#!/bin/sh\necho "$*" >>asked\n[ "$1" = test ] && sleep 1\n[ "$1" != "$FAILS" ]\n')
    make.chmod(0o755)
    return tmp_path


def stages(directory: Path, minutes: int, fails: str = "") -> tuple[int, list[str], str]:
    """(exit status, what was made, last line) of .ci/run within so many minutes."""
    env = {"PATH": f"{directory}/bin:{os.environ['PATH']}", "CI_MINUTES": str(minutes), "FAILS": fails}
    done = subprocess.run([str(directory / ".ci/run")], env=env, capture_output=True, text=True, check=False)
    asked = (directory / "asked").read_text().splitlines()
    return done.returncode, [words.split()[0] for words in asked], done.stdout.splitlines()[-1]


def test_all_stages_are_run_where_there_is_time(integration: Path) -> None:
    status, made, last = stages(integration, 55)
    assert status == 0 and made[0] == "test" and {"test-clients", "test-systemd", "test-vm", "bench"} < set(made)
    assert "LEFT OUT" not in last


def test_what_would_not_end_in_time_is_left_out_and_named(integration: Path) -> None:
    status, made, last = stages(integration, 0)
    assert status == 0 and made == ["test"], "the first stage is always run"
    assert last.startswith("LEFT OUT for want of time: make bench")


def test_a_stage_that_fails_is_the_last(integration: Path) -> None:
    status, made, _ = stages(integration, 55, "test-systemd")
    assert status != 0 and made[-1] == "test-systemd"
