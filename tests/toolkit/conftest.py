"""Fixtures of this room: the built program under all its names, and a host with a simulated driver."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.simdriver import Options, SimulatedDriver, make

PROGRAM = Path(__file__).resolve().parents[2] / "build/gpurun"
Call = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="session")
def names(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with the links that `gpurun install-names` makes."""
    if not os.access(PROGRAM, os.X_OK):
        pytest.fail(f"{PROGRAM} is missing: run `make build` first")
    directory = tmp_path_factory.mktemp("bin")
    subprocess.run([PROGRAM, "install-names", directory], check=True, capture_output=True, timeout=60)
    (directory / "gpurun").symlink_to(PROGRAM)
    return directory


@pytest.fixture(scope="session")
def host(tmp_path_factory: pytest.TempPathFactory) -> SimulatedDriver:
    return make(tmp_path_factory.mktemp("toolkit") / "host", Options(gpus=2, mps=True, nodes=os.geteuid() == 0))


@pytest.fixture
def call(names: Path, host: SimulatedDriver) -> Call:
    """``call("nvidia-ctk", "config", env={...}, stdin="...")``: the program under that name, on the simulated host."""

    def run(*words: str | Path, env: dict[str, str] | None = None, stdin: str = "") -> subprocess.CompletedProcess[str]:
        command = [str(names / words[0]), *[str(w) for w in words[1:]]]
        return subprocess.run(
            command, env=host.env | (env or {}), input=stdin, capture_output=True, text=True, timeout=120, check=False
        )

    return run
