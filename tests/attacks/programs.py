"""Static programs that an attacker runs in a container, built from the C files beside this one."""

from __future__ import annotations

from pathlib import Path

from tests.compiled import compile_c

HERE = Path(__file__).resolve().parent


def build(name: str, directory: Path) -> Path:
    """The program of *name*.c in *directory*, built unless it is there; skips the test where no C compiler can."""
    program = directory / name
    if not program.exists():
        compile_c(HERE / f"{name}.c", program, "-static", "-O2", "-Wall", "-Wextra")
    return program
