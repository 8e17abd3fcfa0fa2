"""CDI files of a simulated host, made by the functions and by the command."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from gpurun.cdi.document import CdiSpec
from gpurun.gpu.nvidia.cdi.generate import generate
from gpurun.gpu.nvidia.cdi.generated import GenerateOptions
from gpurun.gpu.nvidia.host.roots import Roots
from tests.simdriver import Options, SimulatedDriver

SOURCE = Path(__file__).resolve().parents[4] / "src"
MakeSim = Callable[[Options], SimulatedDriver]


def made(sim: SimulatedDriver, **options: Any) -> CdiSpec:
    return generate(Roots(sysroot=str(sim.path)), GenerateOptions(**options), {}).spec


def names(spec: CdiSpec) -> list[str]:
    return [device.name for device in spec.devices]


def hooks(spec: CdiSpec) -> list[str]:
    return [hook.args[1] for hook in spec.edits.hooks]


def gpurun(sim: SimulatedDriver, *args: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
    program = f"import sys; sys.path.insert(0, {str(SOURCE)!r}); from gpurun.__main__ import main; sys.exit(main())"
    return subprocess.run([sys.executable, "-c", program, *args], env=sim.env, input=stdin, capture_output=True, text=True)
