"""A stub of NVIDIA's management library, compiled when a test wants it: what ``nvml.h`` promises, and how it can fail."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

SOURCE = Path(__file__).with_name("stub.c")


def compile_stub(path: Path, *, gpus: int = 2, mig: bool = False, mode: str = "well") -> Path:
    """Compile the stub to *path*.

    *mode* is ``well``, ``hang`` (nvmlInit_v2 never returns), ``crash``, ``unloaded`` (error 9), ``lost`` (the second GPU has
    fallen off the bus), ``noisy`` (it prints, and starts a program that stays) or ``old`` (few functions).  Skips the test
    where there is no C compiler.
    """
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler: the NVML stub cannot be made")
    path.parent.mkdir(parents=True, exist_ok=True)
    defines = [f"-DGPUS={gpus}", f"-DMIG={int(mig)}", f"-D{mode.upper()}"]
    command = [compiler, "-shared", "-fPIC", "-O1", "-Wall", "-Werror", "-Wl,-soname,libnvidia-ml.so.1", *defines]
    subprocess.run([*command, "-o", str(path), str(SOURCE)], check=True)
    return path
