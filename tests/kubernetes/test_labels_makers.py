"""Labels of nodes with AMD's and Intel's GPUs in the words of AMD's labeller and Intel's rules; simulated hosts."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from gpurun.gpu.amd.cluster import LABELS, cluster_gpus, family
from gpurun.gpu.cluster import count_labels, is_label, label_value
from gpurun.gpu.intel.cluster import cluster_gpus as intel_gpus
from gpurun.kubernetes.labels import others_of, patch_of
from tests.cli.test_main import gpurun
from tests.kubernetes.api_server import ApiServer
from tests.needs_nodes import needs_nodes
from tests.simcards import amd, intel
from tests.simdriver import Options, make

NAME = "AMD_Instinct_MI210"


def labels_of(*words: str, env: dict[str, str]) -> dict[str, str]:
    done = gpurun("kubernetes", "labels", "--oneshot", "--no-timestamp", "-o", "-", *words, env=env)
    assert done.returncode == 0, done.stderr
    return dict([line.partition("=")[::2] for line in done.stdout.splitlines()])


def test_eight_mi210(tmp_path: Path) -> None:
    assert labels_of(env=amd.mi210(tmp_path).env) == {
        "amd.com/gpu.cu-count": "104", "beta.amd.com/gpu.cu-count": "104", "beta.amd.com/gpu.cu-count.104": "8",
        "amd.com/gpu.simd-count": "416", "beta.amd.com/gpu.simd-count": "416", "beta.amd.com/gpu.simd-count.416": "8",
        "amd.com/gpu.vram": "64G", "beta.amd.com/gpu.vram": "64G", "beta.amd.com/gpu.vram.64G": "8",
        "amd.com/gpu.device-id": "740f", "beta.amd.com/gpu.device-id": "740f", "beta.amd.com/gpu.device-id.740f": "8",
        "amd.com/gpu.family": "AI", "beta.amd.com/gpu.family": "AI", "beta.amd.com/gpu.family.AI": "8",
        "amd.com/gpu.product-name": NAME, "beta.amd.com/gpu.product-name": NAME,
        f"beta.amd.com/gpu.product-name.{NAME}": "8",
        "amd.com/gpu.driver-version": "6.12.12", "amd.com/gpu.driver-src-version": "D3F6F02F5C3D1E0A3F2C1B4",
        "amd.com/gpu.compute-partitioning-supported": "false", "amd.com/gpu.memory-partitioning-supported": "false",
    }  # fmt: skip


def test_partitions(tmp_path: Path) -> None:
    found = dict(cluster_gpus(str(amd.mi300x(tmp_path).path)).labels)
    assert found["amd.com/gpu.compute-memory-partition"] == "cpx_nps4"
    assert (
        found["amd.com/gpu.compute-partitioning-supported"] == found["amd.com/gpu.memory-partitioning-supported"] == "true"
    )
    assert (found["amd.com/gpu.vram"], found["amd.com/gpu.cu-count"]) == ("48G", "38")


def test_gpus_of_several_kinds_are_counted(tmp_path: Path) -> None:
    host = amd.mi210(tmp_path, count=3)
    (tmp_path / f"sys/bus/pci/devices/{amd.MI210[0][0]}/product_name").write_text("Other (1)\n")
    (tmp_path / f"sys/bus/pci/devices/{amd.MI210[0][0]}/device").write_text("0x738c\n")
    found = dict(cluster_gpus(str(host.path)).labels)
    for prefix in ("amd.com", "beta.amd.com"):
        assert f"{prefix}/gpu.product-name" not in found and found[f"{prefix}/gpu.product-name.Other_1"] == "1"
        assert found[f"{prefix}/gpu.product-name.{NAME}"] == "2"
        assert (found[f"{prefix}/gpu.device-id.738c"], found[f"{prefix}/gpu.device-id.740f"]) == ("1", "2")
    assert all(is_label(name, LABELS) for name in found)


@pytest.mark.parametrize(
    ("version", "name"),
    [(80003, "VI"), (90010, "AI"), (90402, "AI"), (90012, "RV"), (100302, "NV"), (100303, "VGH"), (100306, ""),
     (110001, "GC_11_0_0"), (110003, "GC_11_0_1"), (110501, "GC_11_5_0"), (120001, "GC_12_0_0"), (990000, "")],
)  # fmt: skip
def test_families(version: int, name: str) -> None:
    assert family(version) == name


def test_intel(tmp_path: Path) -> None:
    host = intel.arc(tmp_path)
    assert labels_of(env=host.env) == {
        "gpu.intel.com/device-id.0300-56a0.present": "true", "gpu.intel.com/device-id.0300-56a0.count": "1",
        "gpu.intel.com/device-id.0300-e20b.present": "true", "gpu.intel.com/device-id.0300-e20b.count": "1",
        "gpu.intel.com/device-id.0300-e211.present": "true", "gpu.intel.com/device-id.0300-e211.count": "1",
        "gpu.intel.com/family": "A_Series",
    }  # fmt: skip
    for pci in (intel.A770, intel.B580):
        device = tmp_path / f"sys/bus/pci/devices/{pci}"
        (device / "device").write_text("0x56c0\n")
        (device / "class").write_text("0x038000\n")
    found = dict(intel_gpus(str(tmp_path)).labels)
    assert (found["gpu.intel.com/product"], found["gpu.intel.com/family"]) == ("Flex_170", "Flex_Series")
    assert found["gpu.intel.com/device.count"] == found["gpu.intel.com/device-id.0380-56c0.count"] == "2"


def test_what_drivers_write_is_no_more_than_a_value(tmp_path: Path) -> None:
    host = amd.mi210(tmp_path, count=1)
    device = tmp_path / f"sys/bus/pci/devices/{amd.MI210[0][0]}"
    (device / "product_name").write_text("a=b\nkubernetes.io/role=x" + "y" * 200)
    (tmp_path / "sys/module/amdgpu/version").write_text("-6.1\nx=y ")
    found = dict(cluster_gpus(str(host.path)).labels)
    assert all("\n" not in text and "=" not in text and 0 < len(text) <= 63 for text in found.values())
    assert all(len(name.partition("/")[2]) <= 63 and "=" not in name for name in found)
    host = intel.arc(tmp_path / "intel")
    for pci, text in ((intel.A770, "0x03zz00"), (intel.B580, "")):
        (tmp_path / f"intel/sys/bus/pci/devices/{pci}/class").write_text(text)
    assert "gpu.intel.com/device-id.0300-56a0.count" in dict(intel_gpus(str(host.path)).labels)


def test_what_is_no_file_holds_nobody_up(tmp_path: Path) -> None:
    host = amd.mi210(tmp_path / "amd", count=1)
    for name in ("sys/module/amdgpu/version", f"sys/bus/pci/devices/{amd.MI210[0][0]}/product_name"):
        (host.path / name).unlink()
        os.mkfifo(host.path / name)
    found = dict(cluster_gpus(str(host.path)).labels)
    assert "amd.com/gpu.driver-version" not in found and found["amd.com/gpu.product-name"] == "AMD_GPU_0x740f_gfx90a"
    arc = intel.arc(tmp_path / "intel")
    for name in ("class", "sriov_totalvfs"):
        path = arc.path / f"sys/bus/pci/devices/{intel.A770}/{name}"
        path.unlink(missing_ok=True)
        os.mkfifo(path)
    assert len(intel_gpus(str(arc.path)).gpus) == 3


def test_values_and_counts() -> None:
    assert label_value(" AMD Radeon (TM) RX™ ") == "AMD_Radeon_TM_RX" and label_value("-_.") == ""
    assert count_labels("amd.com/gpu.x", ["a", "b", "a", "c d", "", "z" * 60]) == {
        "amd.com/gpu.x.a": "2",
        "amd.com/gpu.x.b": "1",
    }


def test_whose_labels_are_whose() -> None:
    now = {
        "amd.com/gpu.vram": "64G", "amd.com/gpu.vram.32G": "1", "beta.amd.com/gpu.family": "AI",
        "beta.amd.com/gpu.firmware.x": "1", "amd.com/gpu.vramp": "x", "amd.com/other": "x",
        "gpu.intel.com/family": "A_Series", "gpu.intel.com/tiles": "2", "nvidia.com/gpu.count": "1",
    }  # fmt: skip
    gone = {"amd.com/gpu.vram": None, "amd.com/gpu.vram.32G": None, "beta.amd.com/gpu.family": None}
    assert patch_of(now, {}) == gone | {"gpu.intel.com/family": None, "nvidia.com/gpu.count": None}
    assert patch_of(now, {}, ("amd",)) == gone and patch_of(now, {}, ("nvidia",)) == {"nvidia.com/gpu.count": None}
    nfd = others_of({"annotations": {"nfd.node.kubernetes.io/feature-labels": "gpu.intel.com/family,x"}})
    assert patch_of(now, {}, ("intel",), nfd) == {}
    assert patch_of(now, {"amd.com/gpu.vram": "64G"}, ("amd",))["amd.com/gpu.vram.32G"] is None


@needs_nodes
def test_beside_nvidia_and_one_that_cannot_be_read(tmp_path: Path) -> None:
    host = make(tmp_path / "host", Options(gpus=1))
    amd.beside_nvidia(host.path)
    found = labels_of(env=host.env)
    assert found["amd.com/gpu.vram"] == "64G" and found["nvidia.com/gpu.count"] == "1"
    assert not [name for name in labels_of("--vendors", "nvidia", env=host.env) if "amd.com" in name]
    (host.path / "sys/devices/platform").symlink_to("platform")
    server = ApiServer()
    server.put("nodes", {"metadata": {"name": "node-1", "labels": {"amd.com/gpu.vram": "1G", "nvidia.com/gpu.count": "7"}}})
    words = [
        "--oneshot",
        "--patch-node",
        "--node-name",
        "node-1",
        "--kubeconfig",
        str(server.kubeconfig(tmp_path / "config")),
    ]
    done = gpurun("kubernetes", "labels", *words, env=host.env)
    assert done.returncode == 0 and "sys/devices/platform" in done.stderr, done.stderr
    labels = server.all("nodes")[0]["metadata"]["labels"]
    server.stop()
    assert (labels["nvidia.com/gpu.count"], labels["amd.com/gpu.vram"]) == ("1", "1G"), "what cannot be known stays"
    done = gpurun("kubernetes", "labels", "--oneshot", "--vendors", "nvidia,ati", env=host.env)
    assert done.returncode == 1 and 'ati\\" is not one of nvidia, amd, intel' in done.stderr
