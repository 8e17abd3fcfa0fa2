"""Figures of AMD's and Intel's GPUs, as Prometheus reads them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from gpurun.gpu.readings import read
from gpurun.gpu.readings_process import Readings, ReadingsQuestion, look
from gpurun.kubernetes.pod_resources import Owner, owners_in
from gpurun.kubernetes.protocols import podresources_pb2 as messages
from gpurun.metrics.counters import counters
from gpurun.metrics.exposition import text
from gpurun.metrics.fields import FIELDS, LABEL_FIELDS
from gpurun.metrics.health import health_samples
from gpurun.metrics.makers import kubelet_names, maker_fields, maker_samples
from tests.simcards import Host, amd, intel
from tests.simcards.held import hang, open_fifos


def values(exposed: str, name: str) -> list[tuple[dict[str, str], float]]:
    families = text_string_to_metric_families(exposed)
    return [(sample.labels, sample.value) for family in families for sample in family.samples if sample.name == name]


def measured(host: Host, *vendors: str) -> Readings:
    return look(ReadingsQuestion(str(host.path), vendors, 60, True, proc=str(host.path / "proc")))


def test_gpus_with_their_pods(tmp_path: Path) -> None:
    """By the ids of device plugins, a share of one, and the names of DRA drivers."""
    host = amd.mi300x(tmp_path / "host")
    intel.arc(host.path, functions=False, first=40)
    answer = messages.ListPodResourcesResponse()
    container = answer.pod_resources.add(name="p", namespace="ns").containers.add(name="c")
    container.devices.add(resource_name="amd.com/cpx_nps4", device_ids=[amd.MI300X, "amdgpu_xcp_0::1"])
    container.devices.add(resource_name="gpu.intel.com/i915", device_ids=["card40-1"])
    claim = container.dynamic_resources.add(claim_name="x")
    claim.claim_resources.add(driver_name="gpu.amd.com", device_name="gpu-3-130")
    claim.claim_resources.add(driver_name="gpu.intel.com", device_name="0000-04-00-0-0xe20b")
    owners = owners_in(answer)
    assert [(one.vendor, one.device) for one in owners] == [
        ("amd", amd.MI300X), ("amd", "amdgpu_xcp_0"), ("intel", "card40"), ("amd", "gpu-3-130"),
        ("intel", "0000-04-00-0-0xe20b"),
    ]  # fmt: skip
    names = kubelet_names(frozenset(("amd", "intel")), str(host.path))
    exposed = text(lambda: maker_samples(measured(host, "amd", "intel"), "node-1", owners, names))
    used = values(exposed, "gpu_used_vram")
    assert [labels["gpu_id"] for labels, _ in used if labels.get("pod") == "p"] == ["0", "1", "2"] and len(used) == 8
    assert {labels["hostname"] for labels, _ in used} == {"node-1"}
    assert len(values(exposed, "gpu_power_usage")) == 1
    assert [labels.get("pod") for labels, _ in values(exposed, "hw_gpu_info")] == ["p", "p"]
    stranger = (Owner(amd.MI300X, "ns", "other", "c"),)  # NVIDIA's: another maker's device of that name
    assert "other" not in text(lambda: maker_samples(measured(host, "amd"), "n", stranger, names))


def test_a_pods_label_takes_the_place_of_none_of_the_exporters(tmp_path: Path) -> None:
    """Prometheus refuses the whole answer when a sample has a name twice."""
    host = amd.mi210(tmp_path / "host", count=1)
    more = (("gpu_id", "stolen"), ("hostname", "stolen"), ("team", "f"))
    owners = (Owner(amd.MI210[0][0], "ns", "p", "c", vendor="amd", more=more),)
    lines = text(lambda: maker_samples(measured(host, "amd"), "node-1", owners))
    assert "stolen" not in lines
    assert values(lines, "gpu_power_usage")[0][0].items() >= {"gpu_id": "0", "hostname": "node-1", "team": "f"}.items()


def test_hostile_labels_stay_one_line(tmp_path: Path) -> None:
    host = amd.mi210(tmp_path / "host", count=1)
    path = host.path / "sys/bus/pci/drivers/amdgpu" / amd.MI210[0][0]
    (path / "serial_number").write_text('1"} 1\nfake{x="\\')
    exposed = text(lambda: maker_samples(measured(host, "amd"), "n"))
    assert not values(exposed, "fake") and len(values(exposed, "gpu_power_usage")) == 1
    assert "\nfake" not in exposed


def test_a_file_of_counters_chooses_of_the_makers_that_it_names(tmp_path: Path) -> None:
    host = amd.mi210(tmp_path / "host", count=1)
    intel.arc(host.path, functions=False, first=40)
    samples = maker_samples(measured(host, "amd", "intel"), "n")
    every = FIELDS | maker_fields()
    found = counters(b"gpu_power_usage, gauge, Watts.\ngpu_xgmi_link_tx, gauge, x\n", "f", every, LABEL_FIELDS)
    names = {sample.name for sample in found.chosen(samples)}
    assert {name for name in names if name.startswith("gpu_")} == {"gpu_power_usage"} and "hw_power_watts" in names
    assert found.warnings == ("f: line 2: gpu_xgmi_link_tx cannot be had without the library of its maker and is left out",)
    other = counters(b"DCGM_FI_DEV_GPU_TEMP, gauge, T\nhw_power_watts, gauge, W\n", "f", every, LABEL_FIELDS)
    names = {sample.name for sample in other.chosen(samples)}
    assert {name for name in names if name.startswith("hw_")} == {"hw_power_watts"} and "gpu_power_usage" in names


def healthy(host: Host, *vendors: str) -> dict[str, float]:
    """Key → what ``gpurun_gpu_healthy`` says."""
    exposed = text(lambda: health_samples(None, measured(host, *vendors).measured, "node-1"))
    found = values(exposed, "gpurun_gpu_healthy")
    assert {labels["Hostname"] for labels, _ in found} == {"node-1"}
    return {f"{labels['vendor']} {labels['key']}": value for labels, value in found}


def test_which_gpus_are_healthy(tmp_path: Path) -> None:
    """Under one name for all makers; for AMD's by that of AMD's exporter as well."""
    host = amd.mi210(tmp_path / "host", count=2)
    intel.arc(host.path, first=40)
    (bad, off), drivers = sorted(pci for pci, _ in amd.MI210[:2]), host.path / "sys/bus/pci/drivers"
    (drivers / "amdgpu" / bad / "ras/umc_err_count").write_text("ue: 2\nce: 3\n")
    (drivers / "amdgpu" / off / "config").write_bytes(b"\xff" * 64)
    (drivers / "xe" / intel.B580 / "config").write_bytes(b"\x86\x80" + b"\xff" * 62)
    (drivers / "i915" / intel.A770 / "config").write_bytes(b"\xff" * 64)
    assert healthy(host, "amd", "intel") == {
        f"amd {bad}": 0, f"amd {off}": 0,
        f"intel {intel.A770}": 0, f"intel {intel.B580}": 1, f"intel {intel.VF}": 1,
    }  # fmt: skip
    exposed = text(lambda: maker_samples(measured(host, "amd", "intel"), "node-1"))
    assert [value for _, value in values(exposed, "gpu_health")] == [0, 0]
    assert values(exposed, "gpu_nodes_total") == [({"hostname": "node-1"}, 2)]


def test_a_gpu_that_does_not_answer_is_not_healthy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    host = amd.mi210(tmp_path / "host", count=2)
    hang(host.path / "sys/bus/pci/drivers/amdgpu" / amd.MI210[1][0] / "gpu_busy_percent")
    open_fifos(monkeypatch)
    found = read(ReadingsQuestion(str(host.path), ("amd",), 4, True, proc=str(host.path / "proc"))).measured
    samples = {dict(one.labels)["key"]: one.value for one in health_samples(None, found, "n")}
    assert samples == {amd.MI210[0][0]: 1, amd.MI210[1][0]: 0}


def test_nvidias_gpus_that_are_not_healthy() -> None:
    """By what NVML says of each, and by the last Xid."""
    gpus = [
        {"index": i, "uuid": f"GPU-{i}", "busId": f"00000000:0{i}:00.0", "recoveryAction": "none"} for i in range(5)
    ]  # fmt: skip
    gpus[1]["error"], gpus[2]["recoveryAction"], gpus[3]["rowRemapFailure"] = "GPU is lost", "gpu reset", 1
    for xids, last in (({"GPU-4": 79}, 0.0), ({"GPU-4": 13}, 1.0), (None, 1.0)):
        samples = health_samples({"gpus": gpus}, (), "n", xids)
        assert [(dict(one.labels)["key"], one.value) for one in samples] == [
            (f"0000:0{i}:00.0", value) for i, value in enumerate((1.0, 0.0, 0.0, 0.0, last))
        ]  # fmt: skip


def test_memory_of_intels_in_a_pod_is_what_the_kernel_counts(tmp_path: Path) -> None:
    """Where not all processes can be looked into: by cgroup, of the first level, whose children are counted with them."""
    host = intel.arc(tmp_path / "host")
    region, other = f"drm/{intel.B580}/vram0", f"drm/{intel.VF}/vram0"
    asked = ReadingsQuestion(str(host.path), ("intel",), 60, True, proc=str(tmp_path / "none"))

    def used() -> dict[str, float]:
        exposed = text(lambda: maker_samples(look(asked), "n"))
        assert not values(exposed, "hw_gpu_utilization_ratio")
        return {labels["hw_id"]: value for labels, value in values(exposed, "hw_memory_usage_bytes")}

    assert used() == {}
    host.write("sys/fs/cgroup/dmem.capacity", f"{region} 12884901888\n{other} 1024")
    assert used() == {}, "the controller is not on for the first level"
    for name, size in (("kubepods.slice", 4096), ("system.slice", 8192), ("kubepods.slice/pod", 4096)):
        host.write(f"sys/fs/cgroup/{name}/dmem.current", f"{region} {size}\n{other} 0\nfake max\n{region} x")
    assert used() == {intel.B580: 12288, intel.VF: 0}


@pytest.mark.parametrize("there", [True, False])
def test_the_command_without_nvidias_driver(tmp_path: Path, there: bool) -> None:
    host = amd.mi210(tmp_path / "host", count=2) if there else Host(tmp_path / "host")
    env = os.environ | host.env | {"PYTHONPATH": "src", "NODE_NAME": "node-1"}
    command = [sys.executable, "-m", "gpurun", "--root", str(tmp_path / "state"), "metrics", "--once"]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0 and "NVML" not in done.stderr
    assert len(values(done.stdout, "gpu_gfx_activity")) == (2 if there else 0)
    assert len(values(done.stdout, "gpurun_gpu_healthy")) == (2 if there else 0)
    assert ("no GPU: no card of NVIDIA's, AMD's or Intel's is on the PCI bus" in done.stderr) != there
    assert len(done.stderr.splitlines()) == (0 if there else 1), done.stderr
