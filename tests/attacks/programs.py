"""Static programs that an attacker runs in a container, built from the C files beside this one."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent


def build(name: str, directory: Path) -> Path:
    """The program of *name*.c in *directory*, built unless it is there; skips the test where no C compiler can."""
    program = directory / name
    if not program.exists():
        compiler = shutil.which("cc") or shutil.which("gcc")
        if compiler is None:
            pytest.skip("there is no C compiler to build the attacker's program with")
        command = [compiler, "-static", "-O2", "-Wall", "-Wextra", "-o", str(program), str(HERE / f"{name}.c")]
        subprocess.run(command, check=True)
    return program
