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


#: Variables name a target: in which most tests are skipped (FEW), that finds no Python, or that fails.
#: FRONT: the build makes the compiled front.
MAKE = """#!/bin/sh
echo "$*" >>asked
case " $* " in *" build "*) [ -z "$FRONT" ] || { mkdir -p build; : >build/gpurun-fast; chmod 755 build/gpurun-fast; } ;; esac
case $1 in
    "$FEW") echo "3 passed, 9000 skipped in 1.00s" ;;
    "$NO_PYTHON") echo "test-pythons: Python 3.14 is not here" ;;
    *) echo "9000 passed, 3 skipped in 700.00s (0:11:40)" ;;
esac
[ "$1" != "$FAILS" ]
"""


@pytest.fixture
def integration(tmp_path: Path) -> Path:
    """.ci/run in a directory of its own, with a C compiler, and a ``make`` that notes what it was asked."""
    (tmp_path / ".ci").mkdir()
    shutil.copy(REPOSITORY / ".ci/run", tmp_path / ".ci/run")
    (tmp_path / "bin").mkdir()
    for name, text in (("make", MAKE), ("cc", "#!/bin/sh\n")):
        (tmp_path / "bin" / name).write_text(text)
        (tmp_path / "bin" / name).chmod(0o755)
    return tmp_path


def stages(directory: Path, minutes: int = 55, **more: str) -> tuple[int, list[str], str]:
    """(exit status, what was made, last line) of .ci/run within so many minutes, with the variables *more*."""
    env = {"PATH": f"{directory}/bin:{os.environ['PATH']}", "CI_MINUTES": str(minutes), "FRONT": "yes", **more}
    done = subprocess.run([str(directory / ".ci/run")], env=env, capture_output=True, text=True, check=False)
    asked = (directory / "asked").read_text().splitlines()
    assert asked[0].startswith("setup-test build")
    return done.returncode, [words.split()[0] for words in asked[1:]], done.stdout.splitlines()[-1]


INCOMPLETE = "NOT EVERYTHING WAS TESTED"
ALL = ["test", "test-vm", "test-front", "test-clients", "test-systemd", "test-packages", "test-pythons"]
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="a machine without root does not have all beds")


def test_all_stages_are_run_where_there_is_time(integration: Path) -> None:
    assert stages(integration) == (0, ALL, "ALL STAGES PASSED")


def test_setting_up_says_nothing_about_how_slow_the_machine_is(integration: Path) -> None:
    """The stages here take no time at all: set-up, which began long ago, would make later ones look too long."""
    assert stages(integration, 55, SECONDS=str(54 * 60)) == (0, ALL, "ALL STAGES PASSED")


def test_what_would_not_end_in_time_is_left_out_and_named(integration: Path) -> None:
    status, made, last = stages(integration, 0, SECONDS="1")
    assert status == 0 and made == ["test", "test-vm"], "the first two are always run"
    assert last.startswith(f"{INCOMPLETE}: make test-front was left out for want of time")
    assert "make test-pythons SHORT=1 was left out" in last


@pytest.mark.parametrize("stage", ALL)
def test_a_stage_that_fails_is_the_last(integration: Path, stage: str) -> None:
    status, made, last = stages(integration, FAILS=stage)
    assert status != 0 and made[-1] == stage and last.startswith(f"FAILED: make {stage}")


def test_set_up_that_fails_is_a_failure(integration: Path) -> None:
    assert stages(integration, FAILS="setup-test") == (1, [], "FAILED: setting up")


@as_root
@pytest.mark.parametrize("stage", ALL[:-1])
def test_too_few_tests_are_a_failure(integration: Path, stage: str) -> None:
    """So is a bed that could not be made: its tests are skipped then."""
    status, made, last = stages(integration, FEW=stage)
    assert status != 0 and made[-1] == stage
    assert last.startswith(f"FAILED: make {stage}") and "only 3 tests passed, at least" in last


@as_root
def test_a_front_that_was_not_built_is_a_failure(integration: Path) -> None:
    status, made, last = stages(integration, FRONT="")
    assert (status, made) == (1, ["test", "test-vm"])
    assert last == "FAILED: make test-front: build/gpurun-fast was not built"


def test_a_machine_without_a_compiler_says_what_it_did_not_test(integration: Path) -> None:
    status, made, last = stages(integration, FRONT="", FEW="test-systemd", CC="no-such-compiler")
    assert status == 0 and made == [stage for stage in ALL if stage != "test-front"]
    assert last.startswith(f"{INCOMPLETE}: make test-front: build/gpurun-fast was not built; make test-systemd: only 3")


def test_a_machine_without_another_python_says_so(integration: Path) -> None:
    status, made, last = stages(integration, NO_PYTHON="test-pythons")
    assert (status, made) == (0, ALL)
    assert last == f"{INCOMPLETE}: make test-pythons: no other Python is here"
