"""The MPS daemon's directory, the variable that names it, and the shared memory that it takes."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from gpurun.cdi.edits import ContainerEdits
from gpurun.gpu.nvidia.request.settings import Settings
from gpurun.gpu.resolve import Inquiry, gpu_edits
from tests.simdriver import Options, SimulatedDriver

MakeSim = Callable[[Options], SimulatedDriver]
COMPUTE = ("NVIDIA_VISIBLE_DEVICES=0", "NVIDIA_DRIVER_CAPABILITIES=compute")


def plan(
    sim: SimulatedDriver,
    *env: str,
    mounts: tuple[tuple[str, str], ...] = (),
    own: dict[str, str] | None = None,
    settings: Settings | None = None,
) -> ContainerEdits:
    made = gpu_edits(Inquiry((*COMPUTE, *env), {}, False, sim.env | (own or {}), settings, mounts))
    assert made is not None
    return made


def pipes(made: ContainerEdits) -> list[str]:
    return [m.container_path for m in made.mounts if m.kind == "dir" and "MPS" in m.reason]


def test_compute_containers_get_the_directory(make_sim: MakeSim) -> None:
    sim = make_sim(Options(mps=True))
    made = plan(sim)
    assert pipes(made) == ["/tmp/nvidia-mps"] and made.env == ()
    mount = next(m for m in made.mounts if m.container_path == "/tmp/nvidia-mps")
    assert "noexec" in mount.options and "ro" not in mount.options
    utility = gpu_edits(Inquiry((COMPUTE[0], "NVIDIA_DRIVER_CAPABILITIES=utility"), {}, False, sim.env))
    assert utility is not None and not pipes(utility) and not utility.warnings


@pytest.mark.parametrize("by", ["environment", "configuration"])
def test_a_directory_elsewhere_is_named_in_the_container(make_sim: MakeSim, by: str) -> None:
    sim = make_sim(Options())
    (sim.path / "run/mps").mkdir()
    variable = "CUDA_MPS_PIPE_DIRECTORY=/run/mps"
    own = {"CUDA_MPS_PIPE_DIRECTORY": "/run/mps"} if by == "environment" else None
    settings = Settings(cli_environment=(variable,)) if by == "configuration" else None
    made = plan(sim, own=own, settings=settings)
    assert pipes(made) == ["/run/mps"] and made.env == (variable,)
    assert not made.warnings  # there is a directory, but no daemon in it
    assert plan(sim, "CUDA_MPS_PIPE_DIRECTORY=/mine", own=own, settings=settings).env == ()


@pytest.mark.parametrize(
    ("mounts", "warned"),
    [
        ((), False),
        ((("proc", "/proc"),), True),
        ((("tmpfs", "/dev"), ("shm", "/dev/shm")), True),
        ((("/dev/shm", "/dev/shm"), ("tmpfs", "/dev/shm/")), True),
        ((("/dev/shm", "/dev/shm"),), False),
        ((("shm", "/dev/shm"), ("/run/nvidia/mps/shm", "/dev/shm")), False),
    ],
)
def test_shared_memory_of_its_own_is_told(make_sim: MakeSim, mounts: tuple[tuple[str, str], ...], warned: bool) -> None:
    made = plan(make_sim(Options(mps=True)), mounts=mounts)
    assert [("--ipc=host" in w) for w in made.warnings] == ([True] if warned else [])


def test_no_daemon_nothing_to_tell(make_sim: MakeSim) -> None:
    sim = make_sim(Options(mps=True))
    (sim.path / "tmp/nvidia-mps/control").unlink()
    assert pipes(plan(sim)) and not plan(sim).warnings
