"""Figures of GPUs and containers, as Prometheus reads them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from gpurun.cgroup.stats import stats
from gpurun.engine.state import State
from gpurun.errors import UsageError
from gpurun.gpu.nvidia.host.nvml import query
from gpurun.kubernetes.pod_resources import Owner, owners_in
from gpurun.kubernetes.protocols import podresources_pb2 as messages
from gpurun.metrics.containers import Used, container_samples, labels_of
from gpurun.metrics.exposition import application, text
from gpurun.metrics.gpus import gpu_samples
from gpurun.metrics.samples import Sample
from tests.needs_nodes import needs_nodes
from tests.nvml import compile_stub
from tests.simdriver import Options, make, uuid


def values(exposed: str, name: str) -> list[tuple[dict[str, str], float]]:
    families = text_string_to_metric_families(exposed)
    return [(sample.labels, sample.value) for family in families for sample in family.samples if sample.name == name]


def test_gpus_with_their_pods(tmp_path: Path) -> None:
    answer = query(str(compile_stub(tmp_path / "nvml.so", mig=True, events=tmp_path / "events")), "metrics")
    mig = answer["gpus"][0]["migDevices"][0]["uuid"]
    assert {"recoveryAction", "rowRemapFailure"} <= answer["gpus"][0].keys(), "what says whether it is healthy"
    owners = (Owner(uuid(1), "ns", "a", "main"), Owner(uuid(1), "ns", "b", "main"), Owner(mig, "ns", "c", "main"))
    exposed = text(lambda: gpu_samples(answer, "node-1", owners, {uuid(1): 79}))
    power = values(exposed, "DCGM_FI_DEV_POWER_USAGE")
    assert [(labels["gpu"], labels.get("pod"), value) for labels, value in power] == [
        ("0", None, 71.5),
        ("1", "a", 71.5),
        ("1", "b", 71.5),
    ]
    assert power[1][0] == {
        "gpu": "1", "UUID": uuid(1), "pci_bus_id": "00000000:17:00.0", "device": "nvidia0", "modelName": "NVIDIA Stub",
        "Hostname": "node-1", "DCGM_FI_DRIVER_VERSION": "999.88.77", "container": "main", "namespace": "ns", "pod": "a",
    }  # fmt: skip
    used = [
        (labels.get("GPU_I_PROFILE"), labels.get("pod"), value) for labels, value in values(exposed, "DCGM_FI_DEV_FB_USED")
    ]
    # DCGM does not count what the driver keeps for itself (512 MiB); of a MIG device NVML does not say it.
    assert ("1g.10gb", "c", 3072.0) in used and (None, "a", 2560.0) in used
    assert values(exposed, "DCGM_FI_DEV_FB_RESERVED")[0][1] == 512.0
    assert values(exposed, "gpurun_nvlink_transmit_bytes_total")[0][1] == ((1 << 33) + 138) * 1024
    assert {value for _, value in values(exposed, "DCGM_FI_DEV_XID_ERRORS")} == {0.0, 79.0}
    assert values(exposed, "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION")[0][1] == 5e9


def test_who_has_what() -> None:
    answer = messages.ListPodResourcesResponse()
    container = answer.pod_resources.add(name="p", namespace="ns").containers.add(name="c")
    container.devices.add(resource_name="nvidia.com/gpu", device_ids=["GPU-1::0", "GPU-1::1", "GPU-2"])
    container.devices.add(resource_name="example.com/nic", device_ids=["nic"])
    claim = container.dynamic_resources.add(claim_name="x")
    claim.claim_resources.add(driver_name="gpu.nvidia.com", device_name="gpu-3")
    claim.claim_resources.add(driver_name="example.com", device_name="other")
    assert owners_in(answer) == tuple(Owner(device, "ns", "p", "c") for device in ("GPU-1", "GPU-2", "gpu-3"))


FILES = {
    "cpu.stat": "usage_usec 2500000\nuser_usec 2000000\nnr_periods 4\nnr_throttled 1\nthrottled_usec 250000\n",
    "cpu.pressure": "some avg10=0.00 avg60=0.00 avg300=0.00 total=1500000\n",
    "memory.current": "1000\n", "memory.max": "max\n", "memory.stat": "anon 400\nfile 500\ninactive_file 300\n",
    "pids.current": "3\n", "io.stat": "252:0 rbytes=10 wbytes=20 rios=1 wios=2\n",
}  # fmt: skip


def test_containers() -> None:
    cri = {"sandbox-name": "p", "sandbox-namespace": "ns", "container-name": "c"}
    annotations = {f"io.kubernetes.cri.{name}": value for name, value in cri.items()}
    state = State("abc", "/b", "/r", "/sys/fs/cgroup/kubepods/abc", True, annotations=json.dumps(annotations))
    labels = labels_of(state)
    assert dict(labels) == {
        "id": "/kubepods/abc",
        "name": "abc",
        "pod": "p",
        "namespace": "ns",
        "container": "c",
        "image": "",
    }
    exposed = text(lambda: container_samples([Used(labels, stats(lambda name: FILES.get(name, "")))]))
    for name, wanted in (
        ("container_cpu_usage_seconds_total", 2.5),
        ("container_cpu_cfs_throttled_seconds_total", 0.25),
        ("container_memory_working_set_bytes", 700),
        ("container_memory_rss", 400),
        ("container_spec_memory_limit_bytes", 0),
        ("container_processes", 3),
        ("container_pressure_cpu_waiting_seconds_total", 1.5),
        ("container_fs_writes_bytes_total", 20),
    ):
        ((found, value),) = values(exposed, name)
        assert value == wanted and found["pod"] == "p", name


@needs_nodes
def test_the_command(tmp_path: Path) -> None:
    driver = make(tmp_path / "host", Options(gpus=2))
    library = next(path for path in driver.path.rglob("libnvidia-ml.so.*") if not path.is_symlink())
    library.unlink()
    compile_stub(library, events=tmp_path / "events")
    env = os.environ | driver.env | {"PYTHONPATH": "src", "NODE_NAME": "node-1"}
    command = [sys.executable, "-m", "gpurun", "--root", str(tmp_path / "state"), "metrics"]
    done = subprocess.run([*command, "--once"], env=env, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0 and len(values(done.stdout, "DCGM_FI_DEV_GPU_UTIL")) == 2, done.stderr
    for listen in ("nowhere", "1:x", "1:70000"):
        done = subprocess.run([*command, "--listen", listen], env=env, capture_output=True, text=True, timeout=120)
        assert done.returncode == 1 and "is not ADDRESS:PORT" in done.stderr
    process = subprocess.Popen([*command, "--listen", "127.0.0.1:0"], env=env, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stderr is not None
        line = next(line for line in process.stderr if "serving http://" in line)
        url = line.partition("serving ")[2].strip().rstrip('"')
        with urllib.request.urlopen(url, timeout=60) as answer:
            assert len(values(answer.read().decode(), "DCGM_FI_DEV_SM_CLOCK")) == 2
        process.terminate()
        assert process.wait(60) == 0
    finally:
        process.kill()
        process.communicate()


def test_formats_and_health() -> None:
    """Who asks for OpenMetrics gets it; a probe costs no look at the GPUs."""
    read: list[str] = []

    def samples() -> list[Sample]:
        read.append("read")
        labels = (("gpu", "0"),)
        return [
            Sample("DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION", "counter", "h", labels, 2.0),
            Sample("container_cpu_usage_seconds_total", "counter", "h", (), 3.0),
        ]

    def asked(path: str, accept: str) -> tuple[str, str]:
        told: list[dict[str, str]] = []
        environ = {"PATH_INFO": path, "HTTP_ACCEPT": accept, "REQUEST_METHOD": "GET", "QUERY_STRING": ""}
        body = b"".join(application(samples)(environ, lambda status, headers: told.append(dict(headers)))).decode()
        return told[0]["Content-Type"], body

    assert asked("/healthz", "*/*") == ("text/plain; charset=utf-8", "ok\n") and not read
    kind, said = asked("/metrics", "application/openmetrics-text; version=1.0.0")
    assert kind.startswith("application/openmetrics-text; version=1.0.0") and said.endswith("# EOF\n") and read
    assert (
        'DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION{gpu="0"} 2.0\n' in said and "container_cpu_usage_seconds_total 3.0\n" in said
    )
    kind, said = asked("/metrics", "*/*")
    assert kind.startswith("text/plain; version=0.0.4") and "# EOF" not in said


def test_addresses() -> None:
    from gpurun.commands.kubernetes_options import listen_address

    assert listen_address(":9400", "listen") == ("", 9400) and listen_address("[::1]:1", "listen") == ("::1", 1)
    with pytest.raises(UsageError):
        listen_address("9400", "listen")


@pytest.mark.skipif(not os.path.exists("/proc/sys/net/ipv6"), reason="this kernel has no IPv6")
def test_every_address_is_of_ipv6_as_well(tmp_path: Path) -> None:
    """The pods of a cluster may have no address of IPv4."""
    env = os.environ | {"PYTHONPATH": "src", "GPURUN_SYSROOT": str(tmp_path)}
    command = [sys.executable, "-m", "gpurun", "--root", str(tmp_path / "state"), "metrics", "--listen", ":0"]
    process = subprocess.Popen(command, env=env, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stderr is not None
        line = next(line for line in process.stderr if "serving http://" in line)
        port = line.partition("/metrics")[0].rpartition(":")[2]
        for address in ("127.0.0.1", "[::1]"):
            with urllib.request.urlopen(f"http://{address}:{port}/metrics", timeout=60) as answer:
                assert answer.status == 200
    finally:
        process.kill()
        process.communicate()
