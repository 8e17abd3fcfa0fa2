"""NVIDIA_DRIVER_CAPABILITIES holds for devices from CDI files as for those from the driver itself."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from gpurun.cdi.edits import ContainerEdits
from gpurun.cdi.write import to_text
from gpurun.gpu.nvidia.cdi.capabilities import needed_for
from gpurun.gpu.nvidia.cdi.generate import generate
from gpurun.gpu.nvidia.cdi.generated import GenerateOptions
from gpurun.gpu.nvidia.host.roots import Roots
from gpurun.gpu.nvidia.request.settings import Settings
from gpurun.gpu.resolve import Inquiry, gpu_edits
from tests.needs_nodes import require_nodes
from tests.simdriver import Options, SimulatedDriver


@pytest.fixture
def host(make_sim: Callable[[Options], SimulatedDriver]) -> SimulatedDriver:
    sim = make_sim(Options(mps=True))
    require_nodes(sim.real_nodes)
    path = sim.path / "etc/cdi/nvidia.yaml"
    path.parent.mkdir(parents=True)
    path.write_text(to_text(generate(Roots(sysroot=str(sim.path)), GenerateOptions(), {}).spec, "yaml"))
    return sim


def edits(host: SimulatedDriver, device: str, *capabilities: str) -> ContainerEdits:
    env = [f"NVIDIA_VISIBLE_DEVICES={device}", *[f"NVIDIA_DRIVER_CAPABILITIES={c}" for c in capabilities]]
    made = gpu_edits(Inquiry(tuple(env), {}, False, host.env, Settings()))
    assert made is not None
    return made


def shape(made: ContainerEdits) -> dict[str, object]:
    return {
        # A directory from a file stands among the mounts of the config.
        "mounts": sorted([*[m.container_path for m in made.mounts], *[m.destination for m in made.config_mounts]]),
        "nodes": sorted(n.path for n in made.device_nodes),
        "links": sorted((link.path, link.target) for link in made.links),
        "cache": sorted({(e.soname, e.path) for e in made.ldcache}),
        "gids": sorted(made.additional_gids),
        "trees": sorted(tree.path for tree in made.proc_trees),
        "compat": made.forward_compat is not None,
    }


@pytest.mark.parametrize(
    "capabilities",
    ["utility", "compute", "compute,utility", "video", "graphics", "display", "ngx", "graphics,utility", "all", ","],
)
def test_the_same_as_from_the_driver(host: SimulatedDriver, capabilities: str) -> None:
    direct, file = shape(edits(host, "1", capabilities)), shape(edits(host, "nvidia.com/gpu=1", capabilities))
    assert file == direct


def test_who_says_nothing_gets_the_whole_device(host: SimulatedDriver) -> None:
    whole = shape(edits(host, "nvidia.com/gpu=1", "all"))
    assert shape(edits(host, "nvidia.com/gpu=1")) == whole == shape(edits(host, "nvidia.com/gpu=1", ""))
    assert (
        shape(edits(host, "nvidia.com/gpu=1", "all", "utility"))
        == shape(edits(host, "nvidia.com/gpu=1", "utility"))
        != whole
    )


@pytest.mark.parametrize("capabilities", [(), ("compute",)])
def test_procfs_is_filtered_also_without_the_hook(host: SimulatedDriver, capabilities: tuple[str, ...]) -> None:
    options = GenerateOptions(disabled_hooks=("disable-device-node-modification",))
    bare = to_text(generate(Roots(sysroot=str(host.path)), options, {}).spec, "yaml")
    assert "disable-device-node-modification" not in bare
    (host.path / "etc/cdi/nvidia.yaml").write_text(bare)
    (tree,) = [t for t in edits(host, "nvidia.com/gpu=1", *capabilities).proc_trees if t.path == "/proc/driver/nvidia"]
    (params,) = [f.content for f in tree.files if f.path.endswith("/params")]
    assert b"ModifyDeviceFiles: 0" in params and len(tree.binds) == 1


def test_what_is_not_known_stays() -> None:
    assert needed_for("/opt/vendor/libother.so.1") == () == needed_for("/etc/some.json") == needed_for("/usr/bin/tool")
    assert needed_for("/usr/lib64/libcuda.so.1.2.3") == ("compute",) and needed_for("/usr/bin/nvidia-smi") == ("utility",)
    assert set(needed_for("/usr/lib64/libnvidia-allocator.so.1.2.3")) == {"compute", "graphics"}
    assert needed_for("/run/nvidia-persistenced/socket") == ("utility",) and needed_for("/tmp/nvidia-mps") == ("compute",)
