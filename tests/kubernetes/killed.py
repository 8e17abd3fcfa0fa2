"""What tests kill: a function that ends the process at a step, and a preparer of claims (one directory, GPU and claim)."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from gpurun.gpu.nvidia.host.roots import Roots
from gpurun.kubernetes.dra.checkpoint import Checkpoint
from gpurun.kubernetes.dra.claim import Allocated, Claim
from gpurun.kubernetes.dra.prepare import Preparer
from gpurun.kubernetes.dra.slices import Allocatable
from gpurun.kubernetes.specs import NodeHost
from tests.simdriver import Options, make, uuid


def ends_at(step: int) -> Callable[[Any], Any]:
    """Wraps functions: this process ends before or after the n-th call of any of them, *step* counts both moments."""
    left = step

    def counted(function: Any) -> Any:
        def called(*arguments: Any, **options: Any) -> Any:
            nonlocal left
            left -= 1
            if left == 0:
                os._exit(9)  # before it
            answer = function(*arguments, **options)
            left -= 1
            if left == 0:
                os._exit(9)  # after it
            return answer

        return called

    return counted


def make_host(directory: Path) -> None:
    make(directory / "host", Options(gpus=1))


def preparer(directory: str) -> Preparer:
    host = NodeHost(Roots(sysroot=f"{directory}/host"))
    devices = {"gpu-0": Allocatable("gpu-0", uuid(0), uuid(0), 0)}
    checkpoint = Checkpoint(f"{directory}/checkpoint.json")
    env = {"GPURUN_SYSROOT": f"{directory}/host"}
    return Preparer(checkpoint, host, f"{directory}/cdi", f"{directory}/mps", lambda: devices, env)


def claim() -> Claim:
    return Claim("c-1", "default", "claim", (Allocated("r", "node-1", "gpu-0"),))


def files(directory: Path) -> str:
    """What is in the directory of CDI files."""
    cdi = directory / "cdi"
    return "".join([f"{path.name}: {path.read_text()}" for path in sorted(cdi.iterdir())]) if cdi.exists() else ""


def empty(directory: Path) -> None:
    shutil.rmtree(directory / "cdi", ignore_errors=True)
    (directory / "checkpoint.json").unlink(missing_ok=True)
