"""What a container is given on a simulated host."""

from __future__ import annotations

from gpurun.cdi.edits import ContainerEdits
from gpurun.gpu.nvidia.request.settings import Settings
from gpurun.gpu.resolve import Inquiry, gpu_edits
from tests.simdriver import SimulatedDriver


def plan(host: SimulatedDriver, settings: Settings, *env: str) -> ContainerEdits:
    made = gpu_edits(Inquiry(env, {}, False, host.env, settings))
    assert made is not None
    return made


def paths(made: ContainerEdits) -> set[str]:
    return {m.container_path.rpartition("/")[2] for m in made.mounts}
