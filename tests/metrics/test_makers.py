"""Figures of AMD's and Intel's GPUs, as Prometheus reads them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from gpurun.gpu.readings_process import Readings, ReadingsQuestion, look
from gpurun.kubernetes.pod_resources import Owner, owners_in
from gpurun.kubernetes.protocols import podresources_pb2 as messages
from gpurun.metrics.counters import counters
from gpurun.metrics.exposition import text
from gpurun.metrics.fields import FIELDS, LABEL_FIELDS
from gpurun.metrics.makers import kubelet_names, maker_fields, maker_samples
from tests.simcards import Host, amd, intel


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


@pytest.mark.parametrize("there", [True, False])
def test_the_command_without_nvidias_driver(tmp_path: Path, there: bool) -> None:
    host = amd.mi210(tmp_path / "host", count=2) if there else Host(tmp_path / "host")
    env = os.environ | host.env | {"PYTHONPATH": "src", "NODE_NAME": "node-1"}
    command = [sys.executable, "-m", "gpurun", "--root", str(tmp_path / "state"), "metrics", "--once"]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0 and "NVML" not in done.stderr
    assert len(values(done.stdout, "gpu_gfx_activity")) == (2 if there else 0)
    assert ("no GPU: no driver of NVIDIA's, AMD's or Intel's is loaded" in done.stderr) != there
    assert len(done.stderr.splitlines()) == (0 if there else 1), done.stderr
