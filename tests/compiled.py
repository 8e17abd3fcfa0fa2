"""C programs and libraries that tests build for themselves."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest


def c_compiler() -> str | None:
    """Where it is; None where there is none.  Beds ask too, some of which run where gpurun cannot be imported."""
    return shutil.which("cc") or shutil.which("gcc")


def compile_c(source: Path | str, made: Path, *options: str) -> Path:
    """Compile *source* (a file, or the text itself) to *made*; skips the test where there is no C compiler."""
    compiler = c_compiler()
    if compiler is None:
        pytest.skip(f"there is no C compiler to make {made.name} with")
    given = str(source) if isinstance(source, Path) else "-"
    text = source if isinstance(source, str) else None
    subprocess.run([compiler, *options, "-o", str(made), "-x", "c", given], input=text, text=True, check=True)
    return made
