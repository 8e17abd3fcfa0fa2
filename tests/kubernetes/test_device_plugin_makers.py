"""The device plugin on hosts with AMD's and Intel's GPUs, beside NVIDIA's and alone, by the kubelet's real protocol.

The hosts are simulated (tests/simcards): no card has been seen.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import grpc
import pytest

from gpurun.cdi.files import read_registry
from gpurun.errors import GpuError
from gpurun.gpu.device import Survey
from gpurun.gpu.vendors import Vendor
from gpurun.kubernetes.config import PluginConfig, Replicated, Sharing
from tests.kubernetes.kubelet import NotEnough
from tests.kubernetes.nodes import GPU, NO_NVIDIA, Node, node
from tests.needs_nodes import needs_nodes
from tests.simcards import DRM_MAJOR, RENDER, amd, intel
from tests.simdriver import Options

pytestmark = needs_nodes

AMD, I915, XE = "amd.com/gpu", "gpu.intel.com/i915", "gpu.intel.com/xe"


def names_of(made: Node, name: str, resource: str, count: int = 1) -> list[str]:
    """The ids of the devices that the container *name* gets, from the CDI names of the answer, which must be there."""
    answer = made.kubelet.run_container(name, resource, count)
    names = [device.name for device in answer.cdi_devices]
    registry = read_registry((str(made.cdi_dir),))
    assert not registry.errors and set(names) <= set(registry.devices)
    return [one.partition("=")[2] for one in names]


def test_eight_mi210() -> None:
    with node(NO_NVIDIA, amd.mi210) as made:
        made.start_plugin()
        made.kubelet.wait(lambda: made.kubelet.capacity(AMD) == 8)
        (request,) = made.kubelet.registrations
        assert (request.resource_name, request.endpoint) == (AMD, "gpurun-amd.com-gpu.sock")
        devices = made.kubelet.endpoints[AMD].devices
        assert {d.ID: [n.ID for n in d.topology.nodes] for d in devices.values()} == {
            pci: [number // 4] for number, (pci, _) in enumerate(amd.MI210)
        }
        four = names_of(made, "one", AMD, 4)
        assert set(four) in ({pci for pci, _ in amd.MI210[:4]}, {pci for pci, _ in amd.MI210[4:]}), "one hive"
        assert not set(four) & set(names_of(made, "two", AMD, 4))
        with pytest.raises(NotEnough):
            made.kubelet.run_container("three", AMD)


def test_links_that_are_not_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """They come with a look at processes, for which a driver may hold who asks: another process does, or nobody."""
    asked: list[str] = []

    def hangs(row: Vendor, env: dict[str, str]) -> Survey:
        asked.append(row.name)
        raise GpuError("AMD's GPUs cannot be read: its driver hangs")

    monkeypatch.setattr("gpurun.gpu.amd.survey.survey", lambda *words: pytest.fail("asked in this process"))
    monkeypatch.setattr("gpurun.kubernetes.device_plugin.maker_source.limited_survey", hangs)
    with node(NO_NVIDIA, amd.mi210) as made:
        made.start_plugin()
        made.kubelet.wait(lambda: made.kubelet.capacity(AMD) == 8)
        made.wait_for_a_round()
        assert asked == ["amd"] and made.failure is None
        assert len(names_of(made, "one", AMD, 4)) == 4


def test_what_an_amd_container_gets() -> None:
    pci, render = amd.MI210[0]
    with node(NO_NVIDIA, lambda path: amd.mi210(path, count=1)) as made:
        made.start_plugin()
        made.kubelet.wait(lambda: made.kubelet.capacity(AMD) == 1)
        (name,) = made.kubelet.run_container("one", AMD).cdi_devices
        assert name.name == f"k8s.device-plugin.amd.com/gpu={pci}"
        edits = read_registry((str(made.cdi_dir),)).devices[name.name].device.edits
        assert {n.path for n in edits.device_nodes} == {"/dev/kfd", "/dev/dri/card1", f"/dev/dri/renderD{render}"}
        assert RENDER in edits.additional_gids
        assert f"/dev/dri/by-path/pci-{pci}-render" in [m.container_path for m in edits.mounts]


@pytest.mark.parametrize(
    ("strategies", "ids", "env", "nodes"),
    [
        (("envvar",), "uuid", {"AMD_VISIBLE_DEVICES": amd.MI210[0][0]}, False),
        (("envvar",), "index", {"AMD_VISIBLE_DEVICES": "3"}, False),
        (("volume-mounts",), "uuid", {}, True),  # nobody reads such mounts for AMD's: the nodes themselves
    ],
)
def test_without_cdi(strategies: tuple[str, ...], ids: str, env: dict[str, str], nodes: bool) -> None:
    with node(NO_NVIDIA, lambda path: amd.mi210(path, count=4)) as made:
        made.config = PluginConfig(list_strategies=strategies, id_strategy=ids)
        made.start_plugin()
        made.kubelet.wait(lambda: made.kubelet.capacity(AMD) == 4)
        answer = made.kubelet.allocate(made.kubelet.endpoints[AMD], [amd.MI210[0][0]])
        assert dict(answer.envs) == env and not answer.cdi_devices and not answer.annotations
        root = str(made.driver.path)
        inside = {"/dev/kfd", "/dev/dri/card1", "/dev/dri/renderD128"} if nodes else set()
        assert {(d.host_path, d.container_path, d.permissions) for d in answer.devices} == {
            (f"{root}{path}", path, "rw") for path in inside
        }
        assert all(Path(mount.host_path).is_char_device() for mount in answer.mounts)
        assert len(answer.mounts) == (2 if nodes else 0)


def test_in_a_pod_paths_are_the_nodes() -> None:
    with node(NO_NVIDIA, lambda path: amd.mi210(path, count=1)) as made:
        made.config = PluginConfig(list_strategies=("cdi-annotations", "volume-mounts"))
        made.start_plugin(root=str(made.driver.path))
        made.kubelet.wait(lambda: made.kubelet.capacity(AMD) == 1)
        answer = made.kubelet.run_container("one", AMD)
        assert answer.devices and all(device.host_path == device.container_path for device in answer.devices)
        assert all(mount.host_path.startswith("/dev/dri/") for mount in answer.mounts)
        ((key, value),) = answer.annotations.items()
        assert key.startswith("cdi.k8s.io/amd-device-plugin_") and value.startswith("k8s.device-plugin.amd.com/gpu=")
        (file,) = made.cdi_dir.iterdir()
        assert file.name == "k8s.device-plugin.amd.com-gpu.json" and str(made.driver.path) not in file.read_text()


def test_partitions_that_are_all_alike() -> None:
    with node(NO_NVIDIA, lambda path: amd.mi300x(path, gpus=2)) as made:
        made.start_plugin()
        made.kubelet.wait(lambda: made.kubelet.capacity(AMD) == 16)
        assert {amd.MI300X, "amdgpu_xcp_0"} <= set(made.kubelet.health()[AMD])
        first = {amd.MI300X, *[f"amdgpu_xcp_{number}" for number in range(7)]}
        mine = names_of(made, "one", AMD, 7)
        assert set(mine) < first or not set(mine) & first, "of one GPU"
        last = (first if set(mine) < first else set(made.kubelet.health()[AMD]) - first) - set(mine)
        assert set(names_of(made, "two", AMD)) == last, "the GPU with the fewest that are free"
        made.config = PluginConfig(mig_strategy="mixed")
        made.kubelet.wait(lambda: made.kubelet.capacity("amd.com/cpx_nps4") == 16 and not made.kubelet.capacity(AMD))


def second_in_spx(path: Path) -> None:
    """Two MI300X, of which the second is divided in another way."""
    host = amd.mi300x(path, gpus=2)
    host.write("sys/bus/pci/devices/0000:25:00.0/current_memory_partition", "NPS1")


def test_partitions_of_several_kinds_have_resources_of_their_own() -> None:
    with node(NO_NVIDIA, second_in_spx) as made:
        made.start_plugin()
        made.kubelet.wait(
            lambda: (made.kubelet.capacity("amd.com/cpx_nps4"), made.kubelet.capacity("amd.com/cpx_nps1")) == (8, 8)
        )
        assert not made.kubelet.capacity(AMD)
        (one,) = names_of(made, "one", "amd.com/cpx_nps1")
        assert one in ("0000:25:00.0", *[f"amdgpu_xcp_{number}" for number in range(7, 14)])
        made.config = PluginConfig(mig_strategy="single")
        made.kubelet.wait(lambda: {h for all_ in made.kubelet.health().values() for h in all_.values()} == {"Unhealthy"})
        made.kubelet.wait(lambda: "divided as cpx_nps1 and cpx_nps4" in made.probes.not_ready())


def test_intels_gpus_by_driver_and_functions_in_the_place_of_their_gpu() -> None:
    with node(NO_NVIDIA, intel.arc) as made:
        made.start_plugin()
        made.kubelet.wait(lambda: (made.kubelet.capacity(I915), made.kubelet.capacity(XE)) == (1, 2))
        assert set(made.kubelet.health()[I915]) == {intel.A770}
        assert set(made.kubelet.health()[XE]) == {intel.B580, intel.VF}, "one that is divided is not offered itself"
        assert names_of(made, "one", I915) == [intel.A770]
        (file,) = made.cdi_dir.iterdir()
        assert file.name == "k8s.device-plugin.intel.com-gpu.json"
        made.config = PluginConfig(list_strategies=("envvar",), id_strategy="index")
        made.kubelet.wait(lambda: dict(made.kubelet.allocate(made.kubelet.endpoints[XE], [intel.B580]).envs))
        answer = made.kubelet.allocate(made.kubelet.endpoints[XE], [intel.B580])
        assert dict(answer.envs) == {"GPURUN_VISIBLE_DEVICES": intel.B580}, "a number alone would be of no maker"


def test_one_gpu_for_several_containers() -> None:
    with node(NO_NVIDIA, intel.arc) as made:
        made.config = PluginConfig(
            sharing=Sharing("time-slicing", False, (Replicated(XE, 3), Replicated(I915, 2, f"{I915}.shared")))
        )
        made.start_plugin()
        made.kubelet.wait(lambda: (made.kubelet.capacity(XE), made.kubelet.capacity(f"{I915}.shared")) == (6, 2))
        first, second = names_of(made, "one", XE), names_of(made, "two", XE)
        assert first != second and {*first, *second} == {intel.B580, intel.VF}, "spread over the GPUs"
        (made.driver.path / "dev/dri/renderD129").unlink()
        made.kubelet.wait(lambda: list(made.kubelet.health()[XE].values()).count("Unhealthy") == 3)


def test_the_nodes_of_a_gpu_go_and_come_back() -> None:
    with node(NO_NVIDIA, lambda path: amd.mi210(path, count=2)) as made:
        made.start_plugin()
        made.kubelet.wait(lambda: made.kubelet.capacity(AMD) == 2)
        gone, stays = amd.MI210[0][0], amd.MI210[1][0]
        path = made.driver.path / "dev/dri/renderD128"
        path.unlink()
        made.kubelet.wait(lambda: made.kubelet.health()[AMD] == {gone: "Unhealthy", stays: "Healthy"})
        (file,) = made.cdi_dir.iterdir()
        assert gone not in file.read_text() and stays in file.read_text()
        path.write_text("somebody else's file")
        other = made.driver.path / "dev/dri/renderD129"
        other.unlink()
        made.kubelet.wait(lambda: made.kubelet.health()[AMD] == {gone: "Unhealthy", stays: "Unhealthy"})
        path.unlink()
        for node_, number in ((path, 128), (other, 129)):
            os.mknod(node_, 0o20660, os.makedev(DRM_MAJOR, number))
        made.kubelet.wait(lambda: set(made.kubelet.health()[AMD].values()) == {"Healthy"})
        (made.driver.path / "dev/kfd").unlink()
        made.kubelet.wait(lambda: set(made.kubelet.health()[AMD].values()) == {"Unhealthy"})


def test_errors_that_no_code_has_corrected() -> None:
    with node(NO_NVIDIA, lambda path: amd.mi210(path, count=2)) as made:
        made.start_plugin()
        made.kubelet.wait(lambda: made.kubelet.capacity(AMD) == 2)
        ill, well = amd.MI210[0][0], amd.MI210[1][0]
        count = made.driver.path / "sys/bus/pci/drivers/amdgpu" / ill / "ras/umc_err_count"
        count.write_text("ue: 1\nce: 3\n")
        made.kubelet.wait(lambda: made.kubelet.health()[AMD] == {ill: "Unhealthy", well: "Healthy"})
        (file,) = made.cdi_dir.iterdir()
        assert ill in file.read_text(), "what runs may start again"
        count.write_text("ue: 0\nce: 0\n")  # the GPU was reset
        made.kubelet.wait(lambda: set(made.kubelet.health()[AMD].values()) == {"Healthy"})


def test_the_driver_goes_and_comes_back() -> None:
    with node(NO_NVIDIA, lambda path: amd.mi210(path, count=2)) as made:
        made.start_plugin()
        made.kubelet.wait(lambda: made.kubelet.capacity(AMD) == 2)
        module = made.driver.path / "sys/module/amdgpu"
        module.rename(module.with_name("away"))
        made.kubelet.wait(lambda: set(made.kubelet.health()[AMD].values()) == {"Unhealthy"})
        made.kubelet.wait(lambda: "no GPU of amd's" in made.probes.not_ready())
        module.with_name("away").rename(module)
        made.kubelet.wait(lambda: set(made.kubelet.health()[AMD].values()) == {"Healthy"} and not made.probes.not_ready())
        assert len(made.kubelet.registrations) == 1


def test_amd_beside_nvidia_and_each_is_ill_by_itself() -> None:
    with node(Options(gpus=2), amd.beside_nvidia) as made:
        made.start_plugin()
        made.kubelet.wait(lambda: (made.kubelet.capacity(GPU), made.kubelet.capacity(AMD)) == (2, 2))
        assert sorted(file.name for file in made.cdi_dir.iterdir()) == [
            "k8s.device-plugin.amd.com-gpu.json",
            "k8s.device-plugin.nvidia.com-gpu.json",
        ]
        module, proc = made.driver.path / "sys/module/amdgpu", made.driver.path / "proc/driver/nvidia"
        module.rename(module.with_name("away"))
        made.kubelet.wait(lambda: set(made.kubelet.health()[AMD].values()) == {"Unhealthy"})
        assert set(made.kubelet.health()[GPU].values()) == {"Healthy"} and made.kubelet.run_container("one", GPU)
        module.with_name("away").rename(module)
        proc.rename(proc.with_name("away"))
        made.kubelet.wait(
            lambda: (
                (set(made.kubelet.health()[AMD].values()), set(made.kubelet.health()[GPU].values()))
                == ({"Healthy"}, {"Unhealthy"})
            )
        )
        assert made.kubelet.run_container("two", AMD)


def test_makers_that_are_not_meant_are_left_to_others() -> None:
    with node(Options(gpus=2), amd.beside_nvidia) as made:
        made.start_plugin(makers=("amd",))
        made.kubelet.wait(lambda: made.kubelet.capacity(AMD) == 2)
        assert [request.resource_name for request in made.kubelet.registrations] == [AMD]
        assert [file.name for file in made.cdi_dir.iterdir()] == ["k8s.device-plugin.amd.com-gpu.json"]


def test_a_wrong_id_is_refused() -> None:
    with node(NO_NVIDIA, lambda path: amd.mi210(path, count=1)) as made:
        made.start_plugin()
        made.kubelet.wait(lambda: made.kubelet.capacity(AMD) == 1)
        with pytest.raises(grpc.RpcError, match=r"amd.com/gpu: there is no device \.\./x"):
            made.kubelet.allocate(made.kubelet.endpoints[AMD], ["../x"])


def test_a_name_that_cdi_does_not_know_spoils_no_file() -> None:
    def change(path: Path) -> None:
        amd.mi300x(path)
        (path / "sys/devices/platform/amdgpu_xcp_2").rename(path / "sys/devices/platform/amdgpu_xcp_2 =x")

    with node(NO_NVIDIA, change) as made:
        made.start_plugin()
        made.kubelet.wait(lambda: made.kubelet.capacity(AMD) == amd.PARTITIONS - 1)
        assert len(names_of(made, "all", AMD, amd.PARTITIONS - 1)) == amd.PARTITIONS - 1


def loop(path: Path) -> None:
    """A name that leads to itself in the place of the directory *path*."""
    shutil.rmtree(path)
    path.symlink_to(path.name)


@pytest.mark.parametrize(
    "harm",
    [
        lambda root: loop(root / amd.KFD / "nodes"),
        lambda root: (root / "sys/devices/platform").symlink_to("platform"),
        lambda root: (root / amd.KFD / "nodes/2/properties").write_bytes(b"\xff" * 70000),
        lambda root: (root / f"sys/bus/pci/devices/{amd.MI210[0][0]}/product_name").write_text("x\n\0" * 5000),
    ],
)
def test_a_sysfs_that_cannot_be_read_does_nvidias_gpus_no_harm(harm: Callable[[Path], object]) -> None:
    def change(path: Path) -> None:
        amd.beside_nvidia(path)
        harm(path)

    with node(Options(gpus=2), change) as made:
        made.start_plugin()
        made.kubelet.wait(lambda: made.kubelet.capacity(GPU) == 2)
        assert made.kubelet.run_container("one", GPU).cdi_devices and made.failure is None
