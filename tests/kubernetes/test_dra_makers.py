"""The DRA drivers of AMD's and Intel's GPUs: slices in an API server, and claims over the kubelet's sockets.

The hosts are simulated (tests/simcards): no card has been seen.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from gpurun.cdi.document import CdiEdits
from gpurun.cdi.files import read_registry
from gpurun.errors import GpurunError
from gpurun.gpu.vendors import NAMES
from gpurun.kubernetes.dra.service import DraDriver
from gpurun.kubernetes.protocols import dra_health_v1alpha1_pb2 as health
from gpurun.kubernetes.protocols import dra_health_v1alpha1_pb2_grpc as health_services
from tests.kubernetes.cluster import REAL, Cluster, cluster
from tests.kubernetes.nodes import NO_NVIDIA
from tests.simcards import DRM_MAJOR, GIB, RENDER, amd, intel
from tests.simdriver import Options

pytestmark = pytest.mark.skipif(
    os.geteuid() != 0 or REAL, reason="device nodes need root; a real node has none of these GPUs"
)


def devices_of(made: Cluster) -> dict[str, dict[str, Any]]:
    return {str(d["name"]): d for spec in made.slices() for d in spec.get("devices") or ()}


def edits_of(made: Cluster, name: str) -> CdiEdits:
    registry = read_registry((str(made.cdi_dir),))
    assert not registry.errors
    return registry.devices[name].device.edits


@pytest.fixture
def mi210() -> Iterator[Cluster]:
    """Two MI210, the drivers started and their slice published."""
    with cluster(NO_NVIDIA, change=lambda path: amd.mi210(path, count=2)) as made:
        made.driver_name = "gpu.amd.com"
        made.start(makers=NAMES)
        made.until(lambda: len(made.published()) == 2)
        yield made


def test_an_amd_gpu(mi210: Cluster) -> None:
    (spec,) = mi210.slices()
    assert (spec["driver"], spec["pool"]["name"]) == ("gpu.amd.com", mi210.node_name)
    pci = amd.MI210[0][0]
    assert devices_of(mi210)["gpu-1-128"] == {
        "name": "gpu-1-128",
        "attributes": {
            "type": {"string": "amdgpu"}, "pciAddr": {"string": pci}, "cardIndex": {"int": 1}, "renderIndex": {"int": 128},
            "deviceID": {"string": str(amd.unique_id(0))}, "family": {"string": "AI"},
            "productName": {"string": "AMD_Instinct_MI210"}, "driverVersion": {"version": "6.12.12"},
            "driverSrcVersion": {"string": "D3F6F02F5C3D1E0A3F2C1B4"},
            "resource.kubernetes.io/pcieRoot": {"string": "pci0000:00"}, "resource.kubernetes.io/pciBusID": {"string": pci},
        },
        "capacity": {"memory": {"value": "64Gi"}, "computeUnits": {"value": "104"}, "simdUnits": {"value": "416"}},
    }  # fmt: skip
    assert mi210.info().name == "gpu.amd.com"


def test_partitions() -> None:
    with cluster(NO_NVIDIA, change=amd.mi300x) as made:
        made.driver_name = "gpu.amd.com"
        made.start(makers=("amd",))
        made.until(lambda: len(made.published()) == amd.PARTITIONS)
        found = devices_of(made)["gpu-2-129"]
        told = {name: value for one in [found["attributes"]] for name, value in one.items()}
        assert (told["type"], told["partitionProfile"]) == ({"string": "amdgpu-partition"}, {"string": "cpx_nps4"})
        assert told["parentPciAddr"] == {"string": amd.MI300X} and "pciAddr" not in told and "deviceID" not in told
        assert found["capacity"]["memory"] == {"value": "48Gi"}
        claim = made.allocate("two", "gpu-1-128", "gpu-8-135")
        answer = made.prepare(claim)[claim.uid]
        assert not answer.error
        names = [device.cdi_device_ids[0] for device in answer.devices]
        assert names == [f"k8s.gpu.amd.com/claim={claim.uid}-{name}" for name in ("gpu-1-128", "gpu-8-135")]
        assert [n.path for n in edits_of(made, names[1]).device_nodes] == [
            "/dev/dri/card8",
            "/dev/dri/renderD135",
            "/dev/kfd",
        ]


def test_intels_gpus_and_functions() -> None:
    with cluster(NO_NVIDIA, change=intel.arc) as made:
        made.driver_name = "gpu.intel.com"
        made.start(makers=NAMES)
        made.until(lambda: len(made.published()) == 3)
        found = devices_of(made)
        assert found["0000-04-00-0-0xe20b"] == {
            "name": "0000-04-00-0-0xe20b",
            "attributes": {
                "type": {"string": "gpu"}, "model": {"string": "B580"}, "family": {"string": "Arc B-Series"},
                "driver": {"string": "xe"}, "pciId": {"string": "0xe20b"}, "health": {"string": "Healthy"},
                "sriov": {"bool": False}, "resource.kubernetes.io/pcieRoot": {"string": "pci0000:80"},
                "resource.kubernetes.io/pciBusID": {"string": intel.B580},
            },
            "capacity": {"memory": {"value": "12Gi"}, "millicores": {"value": "1000"}},
        }  # fmt: skip
        assert found["0000-07-00-1-0xe211"]["attributes"]["type"] == {"string": "vf"}
        assert found["0000-03-00-0-0x56a0"]["capacity"] == {"millicores": {"value": "1000"}}, "i915 does not tell its memory"
        claim = made.allocate("vf", "0000-07-00-1-0xe211")
        (device,) = made.prepare(claim)[claim.uid].devices
        edits = edits_of(made, device.cdi_device_ids[0])
        assert [n.path for n in edits.device_nodes] == ["/dev/dri/card3", "/dev/dri/renderD131"]
        assert RENDER in edits.additional_gids


def test_a_claim_is_prepared_once_and_taken_back(mi210: Cluster) -> None:
    claim = mi210.allocate("one", "gpu-1-128")
    first = mi210.prepare(claim)[claim.uid]
    assert not first.error and mi210.prepare(claim)[claim.uid] == first
    (file,) = mi210.cdi_dir.iterdir()
    assert file.name == f"k8s.gpu.amd.com-claim_{claim.uid}.json" and mi210.checkpoint.exists()
    other = mi210.allocate("other", "gpu-1-128")
    assert "gpu-1-128 is still prepared for claim default/one" in mi210.prepare(other)[other.uid].error
    mi210.stop()
    mi210.start(makers=("amd",))  # another process
    assert mi210.prepare(claim)[claim.uid] == first
    assert not mi210.unprepare(claim)[claim.uid].error and not list(mi210.cdi_dir.iterdir())
    assert not mi210.prepare(other)[other.uid].error


def test_what_cannot_be_prepared(mi210: Cluster) -> None:
    opaque = [{"source": "FromClaim", "opaque": {"driver": "gpu.amd.com", "parameters": {"kind": "GpuConfig"}}}]
    for claim, said in (
        (
            mi210.allocate("config", "gpu-1-128", config=opaque),
            "config[0]: the devices of this driver have no configuration",
        ),
        (mi210.allocate("unknown", "gpu-9-999"), "there is no device gpu-9-999 on this node (any more)"),
    ):
        assert said in mi210.prepare(claim)[claim.uid].error
    (mi210.driver.path / "dev/dri/renderD128").unlink()
    claim = mi210.allocate("ill", "gpu-1-128")
    assert "renderD128 is not the character device 226:128" in mi210.prepare(claim)[claim.uid].error
    assert not list(mi210.cdi_dir.glob("*")) and not mi210.unprepare(claim)[claim.uid].error


def test_a_gpu_that_is_not_well_has_a_taint(mi210: Cluster) -> None:
    path = mi210.driver.path / "dev/dri/renderD128"
    path.unlink()
    mi210.until(lambda: mi210.published() == ["gpu-2-129"])
    assert devices_of(mi210)["gpu-1-128"]["taints"][0]["key"] == "gpu.amd.com/unhealthy"
    with grpc.insecure_channel(f"unix:{mi210.info().endpoint}") as channel:
        watch = health_services.DRAResourceHealthStub(channel).NodeWatchResources(
            health.NodeWatchResourcesRequest(), timeout=60
        )
        told = {one.device.device_name: (one.health, one.message) for one in next(iter(watch)).devices}
    assert told["gpu-2-129"] == (health.HEALTHY, "") and told["gpu-1-128"][0] == health.UNHEALTHY
    assert "renderD128" in told["gpu-1-128"][1]
    os.mknod(path, 0o20660, os.makedev(DRM_MAJOR, 128))
    mi210.until(lambda: sorted(mi210.published()) == ["gpu-1-128", "gpu-2-129"])


def test_in_a_pod_paths_are_the_nodes() -> None:
    with cluster(NO_NVIDIA, change=lambda path: amd.mi210(path, count=1)) as made:
        made.driver_name = "gpu.amd.com"
        made.start(makers=("amd",), root=str(made.driver.path))
        made.until(lambda: len(made.published()) == 1)
        claim = made.allocate("one", "gpu-1-128")
        assert not made.prepare(claim)[claim.uid].error
        (file,) = made.cdi_dir.iterdir()
        assert str(made.driver.path) not in file.read_text()


def test_beside_nvidia_each_has_its_own() -> None:
    with cluster(Options(gpus=1), change=lambda path: amd.beside_nvidia(path, 1)) as made:
        made.start(makers=NAMES)
        made.until(lambda: len(made.published()) == 1)
        claims = [made.allocate("nvidias", "gpu-0")]
        assert not made.prepare(claims[0])[claims[0].uid].error
        made.driver_name = "gpu.amd.com"
        made.until(lambda: len(made.published()) == 1 and made.registry.exists())
        (name,) = made.published()
        claims.append(made.allocate("amds", name))
        assert not made.prepare(claims[1])[claims[1].uid].error
        assert sorted(file.name for file in made.cdi_dir.iterdir()) == [
            f"k8s.gpu.amd.com-claim_{claims[1].uid}.json",
            f"k8s.gpu.nvidia.com-claim_{claims[0].uid}.json",
        ]
        made.until(lambda: made.probes.not_ready() == "")
        made.stop()
        made.start(makers=NAMES)  # what is of the one driver is no stray of the other
        made.until(lambda: made.registry.exists() and made.probes.not_ready() != "it is starting")
        assert len(list(made.cdi_dir.iterdir())) == 2


def test_a_checkpoint_that_is_amds_own_does_nvidias_no_harm() -> None:
    with cluster(Options(gpus=1), change=lambda path: amd.beside_nvidia(path, 1)) as made:
        theirs = made.kubelet_dir / "plugins/gpu.amd.com/checkpoint.json"
        theirs.parent.mkdir(parents=True)
        theirs.write_text('{"checksum": 1}')
        made.start(makers=NAMES)
        made.until(lambda: len(made.published()) == 1 and "checkpoint.json cannot be read" in made.probes.not_ready())
        claim = made.allocate("one", "gpu-0")
        assert not made.prepare(claim)[claim.uid].error and theirs.read_text() == '{"checksum": 1}'
        theirs.unlink()
        made.driver_name = "gpu.amd.com"
        made.until(lambda: len(made.published()) == 1)


@pytest.mark.parametrize("harm", ["nodes", "platform", "version"])
def test_a_sysfs_that_cannot_be_read(harm: str) -> None:
    def change(path: Path) -> None:
        amd.beside_nvidia(path, 1)
        if harm == "nodes":
            shutil.rmtree(path / amd.KFD / "nodes")
            (path / amd.KFD / "nodes").symlink_to("nodes")
        elif harm == "platform":
            (path / "sys/devices/platform").symlink_to("platform")
        else:
            (path / "sys/module/amdgpu/version").write_text("9" * 64)
            (path / f"sys/bus/pci/devices/{amd.MI210[0][0]}/product_name").write_text("x" * 4000)

    with cluster(Options(gpus=1), change=change) as made:
        made.start(makers=NAMES)
        made.until(lambda: len(made.published()) == 1)
        claim = made.allocate("one", "gpu-0")
        assert not made.prepare(claim)[claim.uid].error
        if harm == "version":
            made.driver_name = "gpu.amd.com"
            made.until(lambda: len(made.published()) == 1)
            told = devices_of(made)[made.published()[0]]["attributes"]
            assert "driverVersion" not in told and len(told["productName"]["string"]) <= 64
        else:
            made.until(lambda: "Too many levels" in made.probes.not_ready() or "too many levels" in made.probes.not_ready())


def test_gpus_that_come_later_are_published() -> None:
    with cluster(Options(gpus=1)) as made:
        made.start(makers=NAMES)
        made.until(lambda: len(made.published()) == 1)
        made.driver_name = "gpu.amd.com"
        assert not made.slices()
        amd.beside_nvidia(made.driver.path, 1)
        made.until(lambda: len(made.published()) == 1)
        assert devices_of(made)[made.published()[0]]["capacity"]["memory"] == {"value": f"{64 * GIB >> 30}Gi"}


def test_a_driver_that_ends_begins_again_and_the_others_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    failed: list[str] = []
    run = DraDriver.run

    def broken(self: DraDriver) -> None:
        if self._driver == "gpu.amd.com" and not failed:
            failed.append(self._driver)
            raise GpurunError("the disk is full")
        run(self)

    monkeypatch.setattr(DraDriver, "run", broken)
    with cluster(Options(gpus=1), change=lambda path: amd.beside_nvidia(path, 1)) as made:
        made.start(makers=NAMES)
        made.until(lambda: len(made.published()) == 1)
        made.driver_name = "gpu.amd.com"
        made.until(lambda: len(made.published()) == 1 and made.registry.exists() and failed)
        assert made.info().name == "gpu.amd.com" and made.failure is None
