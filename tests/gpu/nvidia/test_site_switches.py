"""What a site can say of GPUs beside NVIDIA's own keys, and GPUs that a Slurm job is not to use."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from gpurun.errors import GpuError
from gpurun.gpu.host.access import nvidia_closed_by_job
from gpurun.gpu.nvidia.cdi.generate import generate
from gpurun.gpu.nvidia.cdi.generated import GenerateOptions
from gpurun.gpu.nvidia.discovery_cache import question
from gpurun.gpu.nvidia.request.settings import Settings, roots_of
from gpurun.gpu.resolve import Inquiry, gpu_edits
from gpurun.kubernetes.node import read_node
from tests.cgroup.conftest import Spawn, base, call_without, spawn, tree  # noqa: F401
from tests.needs_nodes import require_nodes
from tests.simdriver import Options, SimulatedDriver, bus_id, make, minor, uuid


@pytest.fixture
def host(tmp_path: Path) -> SimulatedDriver:
    return make(tmp_path / "host", Options(gpus=3))


def given(host: SimulatedDriver, settings: Settings, *env: str, privileged: bool = False) -> tuple[list[int], list[str]]:
    """(minors of the GPUs' nodes, CUDA_VISIBLE_DEVICES) of a container."""
    made = gpu_edits(Inquiry(env, {}, privileged, host.env, settings))
    assert made is not None
    nodes = [n.path.removeprefix("/dev/nvidia") for n in made.device_nodes]
    told = [v.partition("=")[2] for v in made.env if v.startswith("CUDA_VISIBLE_DEVICES=")]
    return sorted([int(n) for n in nodes if n.isdigit()]), told


@pytest.mark.parametrize("name", ["1", uuid(1).upper(), bus_id(1), "0000" + bus_id(1)])
def test_an_excluded_gpu_is_not_among_all(host: SimulatedDriver, name: str) -> None:
    """NVIDIA/nvidia-container-toolkit#836: the display's GPU is for the host; who names it gets it."""
    settings = Settings(excluded_devices=(name, "GPU-not-there"))
    others = sorted([minor(0, 3), minor(2, 3)])
    assert given(host, settings, "NVIDIA_VISIBLE_DEVICES=all")[0] == others
    assert given(host, settings, "NVIDIA_VISIBLE_DEVICES=1")[0] == [minor(1, 3)]
    assert given(host, settings, "NVIDIA_VISIBLE_DEVICES=2")[0] == [minor(2, 3)], "the others keep their numbers"
    roots = roots_of(host.env, settings)
    assert [gpu.index for gpu in read_node(roots).gpus] == [0, 2]
    devices = {one.name for one in generate(roots, GenerateOptions(), host.env).spec.devices}
    assert devices == {"0", "2", uuid(0), uuid(2), "all"}


def test_all_of_them_excluded(host: SimulatedDriver) -> None:
    with pytest.raises(GpuError, match=r"no GPU is left .*config.toml excludes it"):
        given(host, Settings(excluded_devices=("0", "1", "2")), "NVIDIA_VISIBLE_DEVICES=all")


@pytest.mark.parametrize(
    ("switch", "privileged", "env", "told"),
    [
        (True, True, ("NVIDIA_VISIBLE_DEVICES=2,0",), [f"{uuid(0)},{uuid(2)}"]),
        (True, True, ("NVIDIA_VISIBLE_DEVICES=none",), []),
        (True, True, ("NVIDIA_VISIBLE_DEVICES=0", "CUDA_VISIBLE_DEVICES=7"), []),
        (True, False, ("NVIDIA_VISIBLE_DEVICES=0",), []),
        (False, True, ("NVIDIA_VISIBLE_DEVICES=0",), []),
    ],
)
def test_a_privileged_container_is_told_its_gpus(
    host: SimulatedDriver, switch: bool, privileged: bool, env: tuple[str, ...], told: list[str]
) -> None:
    """NVIDIA/nvidia-container-toolkit#73: it can open all of them, and CUDA is to take its own."""
    assert given(host, Settings(cuda_visible_devices=switch), *env, privileged=privileged)[1] == told


def test_of_mig_devices_cuda_is_told(tmp_path: Path) -> None:
    host = make(tmp_path / "host", Options(gpus=1, mig=((0, 1, 0), (0, 2, 0))))
    settings = Settings(cuda_visible_devices=True)
    asked = Inquiry((f"NVIDIA_VISIBLE_DEVICES=MIG-{uuid(0)}/1/0",), {}, True, host.env, settings)
    with pytest.raises(GpuError, match="NVML"):  # who alone knows its UUID, and is not there
        gpu_edits(asked)


def test_who_may_look_may_not_compute(host: SimulatedDriver) -> None:
    """NVIDIA/nvidia-container-toolkit#267: nvidia-smi works, and CUDA has neither library nor node."""
    made = gpu_edits(
        Inquiry(("NVIDIA_VISIBLE_DEVICES=all", "NVIDIA_DRIVER_CAPABILITIES=utility"), {}, False, host.env, Settings())
    )
    assert made is not None
    assert not any("uvm" in node.path for node in made.device_nodes) and not made.device_classes
    names = {mount.container_path.rpartition("/")[2].partition(".so")[0] for mount in made.mounts}
    assert "nvidia-smi" in names and "libnvidia-ml" in names and "libcuda" not in names


def test_the_operators_device_plugin(host: SimulatedDriver) -> None:
    """NVIDIA/nvidia-container-toolkit#1239: a UUID of the kind that has a file for `all` alone."""
    name = f"management.nvidia.com/gpu={uuid(1)}"
    cdi = Settings(mode="cdi", default_kind="management.nvidia.com/gpu")
    for settings, env in (
        (Settings(), f"NVIDIA_VISIBLE_DEVICES={name}"),
        (cdi, f"NVIDIA_VISIBLE_DEVICES={name}"),
        (cdi, f"NVIDIA_VISIBLE_DEVICES={uuid(1)}"),
    ):
        assert given(host, settings, env)[0] == [minor(1, 3)]
    made = gpu_edits(Inquiry((), {"cdi.k8s.io/x": name}, False, host.env, cdi))
    assert made is not None and f"/dev/nvidia{minor(1, 3)}" in {node.path for node in made.device_nodes}
    assert any("libcuda.so" in mount.container_path for mount in made.mounts)


def test_a_slurm_job_has_its_own_gpus(host: SimulatedDriver, base: Path, spawn: Spawn, tmp_path: Path) -> None:  # noqa: F811
    """NVIDIA/nvidia-container-toolkit#211, #585: what the rules of the caller's cgroup deny is not its to give."""
    require_nodes(host.real_nodes)
    node = os.stat(host.path / f"dev/nvidia{minor(1, 3)}").st_rdev
    settings, said = Settings(), tmp_path / "said"

    def ask() -> None:
        found: list[object] = [sorted(nvidia_closed_by_job(f"{host.path}/dev"))]
        found.append(question((), False, host.env, ()))
        for value in ("all", "0", "1"):
            try:
                found.append(given(host, settings, f"NVIDIA_VISIBLE_DEVICES={value}")[0])
            except GpuError as e:
                found.append(str(e))
        said.write_text(json.dumps(found))

    def ask_in(name: str) -> list[object]:
        call_without([node], base / name, spawn, ask)
        return list(json.loads(said.read_text()))

    job, elsewhere = ask_in("slurmstepd.scope"), ask_in("other.scope")
    others = sorted([minor(0, 3), minor(2, 3)])
    assert job[0] == [minor(1, 3)] and job[2:4] == [others, [minor(0, 3)]]
    assert f"process.env NVIDIA_VISIBLE_DEVICES: GPU with the node /dev/nvidia{minor(1, 3)}: the caller's Slurm job" in str(
        job[4]
    )
    assert elsewhere[0] == [] and len(elsewhere[2]) == 3, "no job: its own container decides"  # type: ignore[arg-type]
    assert job[1] != elsewhere[1], "an answer that is remembered is no answer for others"
