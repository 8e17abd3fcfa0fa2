"""The interpreter of a build: gpurun runs it without an environment, so it must start so."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from gpurun.builder import launcher


def test_one_that_takes_a_variable_to_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a Python does whose libpython is where only LD_LIBRARY_PATH leads."""
    python = tmp_path / "python3"
    missing = "error while loading shared libraries: libpython3.11.so.1.0: cannot open shared object file"
    python.write_text(f'#!/bin/sh\n[ "$LD_LIBRARY_PATH" ] && exec {sys.executable} "$@"\necho "{missing}" >&2; exit 127\n')
    python.chmod(0o755)
    monkeypatch.setenv("LD_LIBRARY_PATH", "/lib")
    monkeypatch.setattr(launcher, "real_interpreter", lambda: str(python))
    with pytest.raises(SystemExit, match=r"does not start with an empty environment.*libpython3"):
        launcher.put(b"#!/bin/true\n", tmp_path / "out")
    assert [path.name for path in tmp_path.iterdir()] == ["python3"]


def test_the_one_that_runs_the_tests() -> None:
    launcher.check_interpreter(launcher.real_interpreter())
