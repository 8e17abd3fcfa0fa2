"""The DRA driver's slices in an API server, its registration, and how the kubelet sees the health of devices."""

from __future__ import annotations

import os
import subprocess
import sys
import time

import grpc
import pytest

from gpurun.errors import GpurunError
from gpurun.kubernetes.protocols import dra_health_v1alpha1_pb2 as health
from gpurun.kubernetes.protocols import dra_health_v1alpha1_pb2_grpc as health_services
from tests.kubernetes.api_server import ApiServer, Object, Refused
from tests.kubernetes.cluster import FIRST, SECOND, Cluster, cluster, own_server
from tests.kubernetes.nodes import replace_node, stub_library
from tests.needs_nodes import needs_nodes
from tests.nvml import compile_stub
from tests.simdriver import Options, minor, uuid

pytestmark = needs_nodes


def test_slices(started: Cluster) -> None:
    (spec,) = started.slices()
    assert spec["pool"] == {"name": started.node_name, "generation": 1, "resourceSliceCount": 1}
    assert {d["name"]: d["attributes"]["uuid"]["string"] for d in spec["devices"]} == {FIRST: uuid(0), SECOND: uuid(1)}


def test_registration(started: Cluster) -> None:
    info = started.info()
    assert (info.type, info.name) == ("DRAPlugin", "gpu.nvidia.com")
    assert list(info.supported_versions) == ["v1.DRAPlugin", "v1beta1.DRAPlugin"]
    assert info.endpoint == f"{started.kubelet_dir}/plugins/gpu.nvidia.com/dra.sock"


def test_the_kubelet_watches_how_devices_are(started: Cluster) -> None:
    with grpc.insecure_channel(f"unix:{started.info().endpoint}") as channel:
        watch = health_services.DRAResourceHealthStub(channel).NodeWatchResources(
            health.NodeWatchResourcesRequest(), timeout=60
        )
        answers = iter(watch)

        def told() -> dict[tuple[str, str], tuple[int, str]]:
            answer = next(answers)
            assert all(one.last_updated_time and one.health_check_timeout_seconds > 30 for one in answer.devices)
            return {(one.device.pool_name, one.device.device_name): (one.health, one.message) for one in answer.devices}

        pool = started.node_name
        assert told() == {(pool, FIRST): (health.HEALTHY, ""), (pool, SECOND): (health.HEALTHY, "")}
        started.device_node(0).unlink()
        state, why = told()[pool, FIRST]
        assert state == health.UNHEALTHY and "its device node" in why
        replace_node(started.device_node(0), minor(0, 2))
        assert told()[pool, FIRST] == (health.HEALTHY, "")
        for path in (started.driver.path / "proc/driver/nvidia/gpus").iterdir():
            if f"Device Minor: \t {minor(0, 2)}" in (path / "information").read_text():
                (path / "information").unlink()
                path.rmdir()
        assert told()[pool, FIRST] == (health.UNHEALTHY, "it is gone")
        started.stop()
        assert list(answers) == [], "a watch ends with the driver, and is not cut off"


def test_a_gpu_that_is_not_well_has_a_taint(started: Cluster) -> None:
    started.device_node(0).unlink()
    started.until(lambda: started.published() == [SECOND])
    (spec,) = started.slices()
    (ill,) = [device for device in spec["devices"] if device["name"] == FIRST]
    assert [(one["key"], one["effect"]) for one in ill["taints"]] == [("gpu.nvidia.com/unhealthy", "NoSchedule")]
    replace_node(started.device_node(0), minor(0, 2))
    started.until(lambda: sorted(started.published()) == [SECOND, FIRST])
    assert started.slices()[0]["pool"]["generation"] == 3


@own_server
@pytest.mark.parametrize("minor_version", [35, 36])
def test_a_server_without_taints(minor_version: int) -> None:
    """It has the feature off, and leaves them out without a word: the GPU is not there for a moment."""
    server = ApiServer(minor=minor_version)
    seen: list[set[str]] = []

    def admit(plural: str, body: Object) -> Object | None:
        for device in body["spec"].get("devices", ()):
            device.pop("taints", None)
        if not body["metadata"]["name"].endswith("-try"):
            seen.append({str(device["name"]) for device in body["spec"]["devices"]})
        return body

    server.admit = admit
    with cluster(server=server) as made:
        made.start()
        made.until(lambda: len(made.published()) == 2)
        made.device_node(0).unlink()
        made.until(lambda: made.published() == [SECOND])
        assert seen == [{FIRST, SECOND}, {SECOND}]


def test_slices_that_others_change_or_delete_come_back(started: Cluster) -> None:
    version = started.api.resource_version_of_group()
    name = f"{started.node_name}-gpu.nvidia.com-0"
    started.api.delete("resource.k8s.io", version, "resourceslices", name)
    started.until(lambda: len(started.published()) == 2)
    objects, _ = started.api.list("resource.k8s.io", version, "resourceslices")
    mine = next(one for one in objects if one["metadata"]["name"] == name)
    mine["spec"]["devices"].pop()
    started.api.replace("resource.k8s.io", version, "resourceslices", mine)
    started.until(lambda: len(started.published()) == 2)


#: What the driver asks when it begins, and when a watch has missed something.
LIST = "GET /apis/resource.k8s.io/v1/resourceslices?fieldSelector=spec.nodeName%3Dnode-1%2Cspec.driver%3Dgpu.nvidia.com"


def settled(made: Cluster, others: int = 0) -> int:
    """The version of the cluster's objects, once the driver watches its slices, beside *others*, and looked again."""
    server = made.server
    assert server is not None
    server.wait(lambda: server.watching > others)
    made.wait_for_looks(2)
    return server.version


@own_server
def test_nothing_is_written_while_nothing_changes(started: Cluster) -> None:
    assert started.server is not None
    before, asked = settled(started), list(started.server.asked)
    started.wait_for_looks(5)
    assert started.server.version == before and started.server.asked == asked, "nor is anything asked"
    (watch,) = [one for one in asked if "watch=" in one]
    assert "fieldSelector=spec.nodeName%3Dnode-1%2Cspec.driver%3Dgpu.nvidia.com" in watch
    owner = started.server.all("resourceslices")[0]["metadata"]["ownerReferences"][0]
    assert owner["kind"] == "Node" and owner["uid"] == started.server.all("nodes")[0]["metadata"]["uid"]
    started.stop()  # its watch goes on for a while
    others = started.server.watching
    started.start()
    assert settled(started, others) == before  # nor by the next process


@own_server
def test_a_watch_that_is_too_old_begins_anew(started: Cluster) -> None:
    server = started.server
    assert server is not None
    settled(started)
    lists = server.asked.count(LIST)
    assert lists
    server.down = True
    server.wait(lambda: not server.watching)
    server.remove("resourceslices", "node-1-gpu.nvidia.com-0")
    server.forget()
    server.down = False
    started.until(lambda: len(started.published()) == 2)
    assert server.asked.count(LIST) > lists


@own_server
def test_a_server_that_refuses_is_not_asked_at_every_look(started: Cluster) -> None:
    assert started.server is not None
    tries: list[float] = []

    def admit(plural: str, body: Object) -> Object | None:
        if body["metadata"]["name"].endswith("-try"):
            return None
        tries.append(time.monotonic())
        if len(tries) < 3:
            raise Refused(503, "ServiceUnavailable", "come again")
        return None

    started.server.admit = admit
    started.device_node(0).unlink()
    started.until(lambda: started.published() == [SECOND])
    first, second, third = tries[:3]
    assert second - first >= 0.5 and third - second >= 1, "the looks are five times a second"


@own_server
def test_two_writers_at_once(started: Cluster) -> None:
    assert started.server is not None
    count = 0

    def admit(plural: str, body: Object) -> Object | None:
        nonlocal count
        count += 1
        if count == 1:
            raise Refused(409, "Conflict", "the object has been modified")
        return None

    started.server.admit = admit
    started.device_node(0).unlink()
    started.until(lambda: started.published() == [SECOND])
    assert count >= 2


@own_server
def test_v1beta2_where_there_is_no_v1() -> None:
    with cluster(server=ApiServer(("v1beta2", "v1beta1"), 33)) as made:
        made.start()
        made.until(lambda: len(made.published()) == 2)
        assert made.server is not None and made.server.all("resourceslices")[0]["apiVersion"] == "resource.k8s.io/v1beta2"
        claim = made.allocate("c", FIRST)
        assert made.prepare(claim)[claim.uid].devices


@own_server
def test_a_cluster_without_it() -> None:
    with (
        cluster(server=ApiServer(("v1beta1",), 32)) as made,
        pytest.raises(GpurunError, match=r"has no resource.k8s.io/v1 "),
    ):
        made.start()


@own_server
@pytest.mark.parametrize("minor_version", [34, 36])
def test_a_server_without_counters(minor_version: int) -> None:
    """One refuses them, as of an old version; one that has the feature off leaves them out without a word."""
    server = ApiServer(minor=minor_version)

    def admit(plural: str, body: Object) -> Object | None:
        spec = body["spec"]
        if minor_version == 34 and "sharedCounters" in spec:
            raise Refused(422, "Invalid", "spec.sharedCounters: Forbidden")
        spec.pop("sharedCounters", None)
        for device in spec.get("devices", ()):
            device.pop("consumesCounters", None)
        return body

    server.admit = admit
    with cluster(Options(gpus=2, mig=((0, 1, 0), (0, 2, 0))), server) as made:
        compile_stub(stub_library(made.driver.path), mig=True, events=made.directory / "events")
        made.start()
        made.until(lambda: len(made.published()) == 3)
        before = settled(made)
        made.wait_for_looks(5)
        assert server.version == before


def test_the_command_itself(started: Cluster) -> None:
    started.stop()
    words = ["kubernetes", "dra-driver", "--kubeconfig", started.kubeconfig, "--node-name", started.node_name]
    words += ["--kubelet-dir", str(started.kubelet_dir), "--cdi-dir", str(started.cdi_dir), "--interval", "0.3"]
    env = os.environ | started.driver.env | {"PYTHONPATH": "src"}
    process = subprocess.Popen([sys.executable, "-m", "gpurun", *words], env=env, stderr=subprocess.PIPE, text=True)
    try:
        started.until(lambda: started.registry.exists())
        assert started.info().type == "DRAPlugin"
        process.terminate()
        assert process.wait(60) == 0
    finally:
        process.kill()
        assert process.stderr is not None
        assert "Traceback" not in process.stderr.read()
    assert not started.registry.exists()
    done = subprocess.run(
        [sys.executable, "-m", "gpurun", "kubernetes", "dra-driver", "--kubeconfig", "/nonexistent"],
        env=env, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert done.returncode == 1 and "kubeconfig /nonexistent: " in done.stderr and "Traceback" not in done.stderr
