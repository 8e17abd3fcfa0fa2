"""Whichever way a container comes by a GPU, what it states of itself holds: capabilities, requirements, newer libraries,
and that it sees its own GPU alone."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from gpurun.cdi.edits import ContainerEdits
from gpurun.cdi.files import read_registry
from gpurun.cdi.inject import inject
from gpurun.cdi.write import to_text
from gpurun.errors import GpurunError
from gpurun.gpu.nvidia.cdi.generate import generate
from gpurun.gpu.nvidia.cdi.generated import GenerateOptions
from gpurun.gpu.nvidia.host.roots import Roots
from gpurun.gpu.nvidia.request.settings import Settings
from gpurun.gpu.request.injected import Injected
from gpurun.gpu.resolve import Inquiry, gpu_edits
from gpurun.oci.config import Device, Mount, OciHook
from tests.needs_nodes import require_nodes
from tests.simdriver import Options, SimulatedDriver, bus_id

NAME = "nvidia.com/gpu=1"
#: Way → (the site's mode, NVIDIA_VISIBLE_DEVICES, annotation).
ASKED = {
    "index": ("auto", "1", ""),
    "index, legacy": ("legacy", "1", ""),
    "index, jit-cdi": ("jit-cdi", "1", ""),
    "index, from a file": ("cdi", "1", ""),
    "name": ("auto", NAME, ""),
    "name, jit-cdi": ("jit-cdi", NAME, ""),
    "name without a file": ("auto", "runtime.nvidia.com/gpu=1", ""),
    "annotation": ("cdi", "", NAME),
    "annotation before a variable": ("cdi", "0", NAME),
}
#: What an engine has put into the config is as it has chosen it: nothing of it is taken out or refused.
GIVEN = ("an engine's CDI device", "an engine's node")


@pytest.fixture
def host(make_sim: Callable[[Options], SimulatedDriver]) -> SimulatedDriver:
    sim = make_sim(Options())
    require_nodes(sim.real_nodes)
    path = sim.path / "etc/cdi/nvidia.yaml"
    path.parent.mkdir(parents=True)
    path.write_text(to_text(generate(Roots(sysroot=str(sim.path)), GenerateOptions(), sim.env).spec, "yaml"))
    return sim


def come_by(host: SimulatedDriver, way: str, *env: str, **settings: object) -> ContainerEdits:
    mode, value, annotation = ASKED.get(way, ("auto", "", ""))
    if value:
        env = (f"NVIDIA_VISIBLE_DEVICES={value}", *env)
    annotations = {"cdi.k8s.io/x_y": annotation} if annotation else {}
    site = Settings(mode=mode, **settings)  # type: ignore[arg-type]
    made = gpu_edits(Inquiry(env, annotations, False, host.env, site, injected=injected(host, way)))
    assert made is not None
    return made


def injected(host: SimulatedDriver, way: str) -> Injected | None:
    if way not in GIVEN:
        return None
    made = inject((NAME,), read_registry((str(host.path / "etc/cdi"),)))
    devices = tuple([Device(n.path, n.type, n.major, n.minor) for n in made.device_nodes])
    if way == "an engine's node":
        return Injected(devices=devices)
    hooks = tuple([OciHook(h.path, h.args, h.env) for h in made.hooks])
    return Injected(hooks, tuple([Mount(m.container_path, "", m.host_path, m.options) for m in made.mounts]), devices)


@pytest.mark.sweep(5)
@pytest.mark.parametrize("way", [*ASKED, *GIVEN])
def test_it_sees_its_own_gpu_alone(host: SimulatedDriver, way: str) -> None:
    (tree,) = [t for t in come_by(host, way).proc_trees if t.path == "/proc/driver/nvidia"]
    assert [b.container_path for b in tree.binds] == [f"/proc/driver/nvidia/gpus/{bus_id(1)}"]
    assert [b"ModifyDeviceFiles: 0" in f.content for f in tree.files if f.path.endswith("/params")] == [True]


@pytest.mark.parametrize("way", ASKED)
def test_capabilities(host: SimulatedDriver, way: str) -> None:
    names = {m.container_path.rpartition("/")[2].partition(".")[0] for m in come_by(host, way).mounts}
    assert "libcuda" in names
    less = come_by(host, way, "NVIDIA_DRIVER_CAPABILITIES=utility")
    names = {m.container_path.rpartition("/")[2].partition(".")[0] for m in less.mounts}
    assert "libnvidia-ml" in names and not names & {"libcuda", "libEGL_nvidia", "libnvidia-encode"}
    with pytest.raises(GpurunError, match="unsupported capabilities found in 'bogus'"):
        come_by(host, way, "NVIDIA_DRIVER_CAPABILITIES=bogus")


@pytest.mark.parametrize("way", ASKED)
def test_requirements(host: SimulatedDriver, way: str) -> None:
    with pytest.raises(GpurunError, match="unsatisfied condition: driver>=1000"):
        come_by(host, way, "NVIDIA_REQUIRE_CUDA=driver>=1000")
    come_by(host, way, "NVIDIA_REQUIRE_CUDA=driver>=1000 driver<1000")
    come_by(host, way, "NVIDIA_REQUIRE_CUDA=driver>=1000", "NVIDIA_DISABLE_REQUIRE=true")


@pytest.mark.parametrize("way", [*ASKED, "an engine's CDI device"])
def test_newer_libraries_of_the_image(host: SimulatedDriver, way: str) -> None:
    assert come_by(host, way).forward_compat is not None
    assert come_by(host, way, "NVIDIA_DISABLE_CUDA_COMPAT=1").forward_compat is None
    assert come_by(host, way, "NVIDIA_DISABLE_CUDA_COMPAT=1", "NVIDIA_DISABLE_CUDA_COMPAT=0").forward_compat is not None
    assert come_by(host, way, cuda_compat_mode="disabled").forward_compat is None
