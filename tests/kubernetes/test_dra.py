"""The DRA driver: slices in an API server, and claims over the kubelet's sockets."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest

from gpurun.cdi.files import read_registry
from gpurun.errors import GpurunError
from gpurun.gpu.nvidia.mps.node_service import is_served
from gpurun.kubernetes.dra.checkpoint import Checkpoint
from gpurun.kubernetes.protocols import dra_health_v1alpha1_pb2 as health
from gpurun.kubernetes.protocols import dra_health_v1alpha1_pb2_grpc as health_services
from gpurun.kubernetes.protocols import dra_v1_pb2 as v1
from tests.kubernetes.api_server import ApiServer, Object, Refused
from tests.kubernetes.cluster import REAL, Cluster, cluster
from tests.kubernetes.dra.test_claim import config, opaque
from tests.kubernetes.driver_container import DRIVER_ROOT, moved
from tests.kubernetes.mps import mps_programs
from tests.kubernetes.nodes import replace_node
from tests.kubernetes.test_device_plugin import stub_library
from tests.needs_nodes import needs_nodes
from tests.nvml import compile_stub
from tests.simdriver import Options, minor, uuid

pytestmark = needs_nodes
own_server = pytest.mark.skipif(REAL, reason="what a real API server would not do, or nobody allocates there")

# Minors run against the order of the bus ids, and devices are named by their minors.
FIRST, SECOND = "gpu-1", "gpu-0"


@pytest.fixture
def two() -> Iterator[Cluster]:
    """Two GPUs, the driver started and its slice published."""
    with cluster() as made:
        made.start()
        made.until(lambda: len(made.published()) == 2)
        yield made


def devices_of(made: Cluster) -> set[str]:
    registry = read_registry((str(made.cdi_dir),))
    assert not registry.errors
    return set(registry.devices)


def test_slices(two: Cluster) -> None:
    (spec,) = two.slices()
    assert spec["pool"] == {"name": two.node_name, "generation": 1, "resourceSliceCount": 1}
    assert {d["name"]: d["attributes"]["uuid"]["string"] for d in spec["devices"]} == {FIRST: uuid(0), SECOND: uuid(1)}


def test_registration(two: Cluster) -> None:
    info = two.info()
    assert (info.type, info.name) == ("DRAPlugin", "gpu.nvidia.com")
    assert list(info.supported_versions) == ["v1.DRAPlugin", "v1beta1.DRAPlugin"]
    assert info.endpoint == f"{two.kubelet_dir}/plugins/gpu.nvidia.com/dra.sock"


def test_the_kubelet_watches_how_devices_are(two: Cluster) -> None:
    with grpc.insecure_channel(f"unix:{two.info().endpoint}") as channel:
        watch = health_services.DRAResourceHealthStub(channel).NodeWatchResources(
            health.NodeWatchResourcesRequest(), timeout=60
        )
        answers = iter(watch)

        def told() -> dict[tuple[str, str], tuple[int, str]]:
            answer = next(answers)
            assert all(one.last_updated_time and one.health_check_timeout_seconds > 30 for one in answer.devices)
            return {(one.device.pool_name, one.device.device_name): (one.health, one.message) for one in answer.devices}

        pool = two.node_name
        assert told() == {(pool, FIRST): (health.HEALTHY, ""), (pool, SECOND): (health.HEALTHY, "")}
        two.device_node(0).unlink()
        state, why = told()[pool, FIRST]
        assert state == health.UNHEALTHY and "its device node" in why
        replace_node(two.device_node(0), minor(0, 2))
        assert told()[pool, FIRST] == (health.HEALTHY, "")
        for path in (two.driver.path / "proc/driver/nvidia/gpus").iterdir():
            if f"Device Minor: \t {minor(0, 2)}" in (path / "information").read_text():
                (path / "information").unlink()
                path.rmdir()
        assert told()[pool, FIRST] == (health.UNHEALTHY, "it is gone")
        began = time.monotonic()
        two.stop()
        assert time.monotonic() - began < 4 and list(answers) == [], "a watch holds nobody up"


def test_a_gpu_that_is_not_well_has_a_taint(two: Cluster) -> None:
    two.device_node(0).unlink()
    two.until(lambda: two.published() == [SECOND])
    (spec,) = two.slices()
    (ill,) = [device for device in spec["devices"] if device["name"] == FIRST]
    assert [(one["key"], one["effect"]) for one in ill["taints"]] == [("gpu.nvidia.com/unhealthy", "NoSchedule")]
    replace_node(two.device_node(0), minor(0, 2))
    two.until(lambda: sorted(two.published()) == [SECOND, FIRST])
    assert two.slices()[0]["pool"]["generation"] == 3


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


def test_slices_that_others_change_or_delete_come_back(two: Cluster) -> None:
    version = two.api.resource_version_of_group()
    name = f"{two.node_name}-gpu.nvidia.com-0"
    two.api.delete("resource.k8s.io", version, "resourceslices", name)
    two.until(lambda: len(two.published()) == 2)
    objects, _ = two.api.list("resource.k8s.io", version, "resourceslices")
    mine = next(one for one in objects if one["metadata"]["name"] == name)
    mine["spec"]["devices"].pop()
    two.api.replace("resource.k8s.io", version, "resourceslices", mine)
    two.until(lambda: len(two.published()) == 2)


def settled(server: ApiServer) -> int:
    """The version of the cluster's objects, once it has been the same for a second: the driver has begun."""
    seen, since = -1, 0.0

    def is_same() -> bool:
        nonlocal seen, since
        if server.version != seen:
            seen, since = server.version, time.monotonic()
        return time.monotonic() - since > 1

    Cluster.until(is_same)
    return seen


@own_server
def test_nothing_is_written_while_nothing_changes(two: Cluster) -> None:
    assert two.server is not None
    before, asked = settled(two.server), list(two.server.asked)
    time.sleep(1.5)  # several looks
    assert two.server.version == before and two.server.asked == asked, "nor is anything asked"
    (watch,) = [one for one in asked if "watch=" in one]
    assert "fieldSelector=spec.nodeName%3Dnode-1%2Cspec.driver%3Dgpu.nvidia.com" in watch
    owner = two.server.all("resourceslices")[0]["metadata"]["ownerReferences"][0]
    assert owner["kind"] == "Node" and owner["uid"] == two.server.all("nodes")[0]["metadata"]["uid"]
    two.stop()
    two.start()
    time.sleep(1)
    assert two.server.version == before  # nor by the next process


@own_server
def test_a_watch_that_is_too_old_begins_anew(two: Cluster) -> None:
    assert two.server is not None
    two.server.forget()
    two.server.down = True
    time.sleep(0.6)
    two.server.forget()
    two.server.down = False
    two.server.remove("resourceslices", "node-1-gpu.nvidia.com-0")
    two.until(lambda: len(two.published()) == 2)


@own_server
def test_a_server_that_refuses_is_not_asked_at_every_look(two: Cluster) -> None:
    assert two.server is not None
    tries: list[float] = []

    def admit(plural: str, body: Object) -> Object | None:
        if body["metadata"]["name"].endswith("-try"):
            return None
        tries.append(time.monotonic())
        if len(tries) < 3:
            raise Refused(503, "ServiceUnavailable", "come again")
        return None

    two.server.admit = admit
    two.device_node(0).unlink()
    two.until(lambda: two.published() == [SECOND])
    first, second, third = tries[:3]
    assert second - first >= 0.5 and third - second >= 1, "the looks are five times a second"


@own_server
def test_two_writers_at_once(two: Cluster) -> None:
    assert two.server is not None
    count = 0

    def admit(plural: str, body: Object) -> Object | None:
        nonlocal count
        count += 1
        if count == 1:
            raise Refused(409, "Conflict", "the object has been modified")
        return None

    two.server.admit = admit
    two.device_node(0).unlink()
    two.until(lambda: two.published() == [SECOND])
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
        before = settled(server)
        time.sleep(1)
        assert server.version == before


@own_server
def test_prepare_and_unprepare(two: Cluster) -> None:
    claim = two.allocate("c", FIRST, SECOND)
    answer = two.prepare(claim)[claim.uid]
    assert not answer.error
    assert [(list(d.request_names), d.pool_name, d.device_name) for d in answer.devices] == [
        (["r0"], "node-1", FIRST),
        (["r1"], "node-1", SECOND),
    ]
    names = {name for device in answer.devices for name in device.cdi_device_ids}
    assert names == {f"k8s.gpu.nvidia.com/claim={claim.uid}-{d}" for d in (FIRST, SECOND)} == devices_of(two)
    edits = read_registry((str(two.cdi_dir),)).files[0].spec
    first = next(d for d in edits.devices if d.name.endswith(FIRST))
    assert f"/dev/nvidia{minor(0, 2)}" in [node.path for node in first.edits.device_nodes]
    assert two.prepare(claim)[claim.uid] == answer  # the kubelet asks again
    assert two.prepare_v1beta1(claim).devices[0].cdi_device_ids == answer.devices[0].cdi_device_ids
    for _ in range(2):
        assert two.unprepare(claim)[claim.uid].error == ""
        assert not devices_of(two)
    assert Checkpoint(str(two.checkpoint)).claims == {}


@own_server
def test_what_cannot_be_prepared_says_why_and_leaves_nothing(two: Cluster) -> None:
    held, second, gone = two.allocate("held", FIRST), two.allocate("second", FIRST), two.allocate("gone", "gpu-7")
    foreign = v1.Claim(namespace="default", uid="0-0", name="held")
    nowhere = v1.Claim(namespace="default", uid="1-1", name="nowhere")
    odd = two.allocate("odd", SECOND, config=[opaque(config({"strategy": "Luck"}))])
    assert not two.prepare(held)[held.uid].error
    answers = two.prepare(second, gone, foreign, nowhere, odd)
    for claim, said in (
        (second, "gpu-1 is still prepared for claim default/held"),
        (gone, "there is no device gpu-7 on this node"),
        (foreign, "has another UID now"),
        (nowhere, '"nowhere" not found (404)'),
        (odd, "'Luck' is unknown"),
    ):
        assert said in answers[claim.uid].error and not answers[claim.uid].devices
    assert len(devices_of(two)) == 1 and list(Checkpoint(str(two.checkpoint)).claims) == [held.uid]
    two.unprepare(held)
    assert not two.prepare(second)[second.uid].error
    # A claim that is gone, and nobody has said so, holds nothing up.
    assert two.server is not None
    two.server.remove("resourceclaims", "second", "default")
    third = two.allocate("third", FIRST)
    assert not two.prepare(third)[third.uid].error and list(Checkpoint(str(two.checkpoint)).claims) == [third.uid]


@own_server
def test_admin_access_and_shares(two: Cluster) -> None:
    held, admin = two.allocate("held", FIRST), two.allocate("admin", FIRST, adminAccess=True)
    assert not two.prepare(held)[held.uid].error and not two.prepare(admin)[admin.uid].error
    one, other = [two.allocate(name, SECOND, shareID=name) for name in ("share-1", "share-2")]
    answers = two.prepare(one, other)
    assert [answers[c.uid].devices[0].share_id for c in (one, other)] == ["share-1", "share-2"]


@own_server
def test_an_api_server_that_is_down(two: Cluster) -> None:
    assert two.server is not None
    claim = two.allocate("c", FIRST)
    two.server.down = True
    assert "the server is down" in two.prepare(claim)[claim.uid].error
    two.server.down = False
    assert not two.prepare(claim)[claim.uid].error
    two.server.down = True
    assert not two.unprepare(claim)[claim.uid].error  # what is known here needs nobody


@own_server
def test_a_restart_knows_its_claims_and_cleans_up(two: Cluster) -> None:
    assert two.server is not None
    stays, goes, replaced = (
        two.allocate("stays", FIRST),
        two.allocate("goes", SECOND),
        two.allocate("other", SECOND, adminAccess=True),
    )
    answers = two.prepare(stays, goes, replaced)
    assert not any(answer.error for answer in answers.values())
    two.stop()
    two.server.remove("resourceclaims", "goes", "default")
    two.server.remove("resourceclaims", "other", "default")
    two.allocate("other", SECOND)
    (two.cdi_dir / "k8s.gpu.nvidia.com-claim_stray.json").write_text("{}")
    (two.cdi_dir / "others.json").write_text("{}")
    two.start()
    two.until(lambda: list(Checkpoint(str(two.checkpoint)).claims) == [stays.uid])
    assert {path.name for path in two.cdi_dir.iterdir()} == {f"k8s.gpu.nvidia.com-claim_{stays.uid}.json", "others.json"}
    assert two.prepare(stays)[stays.uid] == answers[stays.uid]


@own_server
def test_after_a_boot(two: Cluster) -> None:
    """/run is empty, and the checkpoint is of another boot."""
    claim = two.allocate("c", FIRST)
    answer = two.prepare(claim)[claim.uid]
    (file,) = two.cdi_dir.iterdir()
    content = file.read_bytes()
    file.unlink()
    assert two.prepare(claim)[claim.uid] == answer and file.read_bytes() == content
    file.write_bytes(content[:50])
    assert two.prepare(claim)[claim.uid] == answer and file.read_bytes() == content


@own_server
def test_time_slices_and_mps() -> None:
    with cluster() as made:
        programs, log = mps_programs(made.directory)
        made.start(programs=programs)
        made.until(lambda: len(made.published()) == 2)
        sliced = made.allocate(
            "sliced", FIRST, config=[opaque(config({"strategy": "TimeSlicing", "timeSlicingConfig": {"interval": "Long"}}))]
        )
        assert not made.prepare(sliced)[sliced.uid].error
        assert f"smi compute-policy -i {uuid(0)} --set-timeslice=3" in log.read_text()
        made.unprepare(sliced)
        assert f"smi compute-policy -i {uuid(0)} --set-timeslice=0" in log.read_text()
        mps_config = {"defaultActiveThreadPercentage": 40, "defaultPinnedDeviceMemoryLimit": "2Gi"}
        mps = made.allocate("mps", SECOND, config=[opaque(config({"strategy": "MPS", "mpsConfig": mps_config}))])
        assert not made.prepare(mps)[mps.uid].error
        assert "set_default_active_thread_percentage 40" in log.read_text()
        assert "set_default_device_pinned_mem_limit 0 2048M" in log.read_text()
        spec = read_registry((str(made.cdi_dir),)).files[0].spec
        assert "CUDA_MPS_PIPE_DIRECTORY=/tmp/nvidia-mps" in spec.edits.env
        pid = int(Path(f"{log}.pid").read_text())
        made.unprepare(mps)
        assert not Path(f"/proc/{pid}").exists() and not list((made.directory / "mps").iterdir())


@own_server
@pytest.mark.parametrize("whole", [True, False])
def test_the_driver_is_in_a_container(whole: bool) -> None:
    """NVIDIA's programs are in the driver's root only."""
    with cluster() as made:
        said = moved(made.driver.path, whole)
        made.start(driver_root=DRIVER_ROOT)
        made.until(lambda: len(made.published()) == 2)
        slices = {"strategy": "TimeSlicing", "timeSlicingConfig": {"interval": "Long"}}
        sliced = made.allocate("sliced", FIRST, config=[opaque(config(slices))])
        mps = made.allocate("mps", SECOND, config=[opaque(config({"strategy": "MPS"}))])
        answers = made.prepare(sliced, mps)
        assert [answer.error for answer in answers.values()] == ["", ""]
        origin = "from the driver's root" if whole else f"from the node {made.driver.path}{DRIVER_ROOT}/usr/lib/"
        for line in (f"smi compute-policy -i {uuid(0)} --set-timeslice=3 {origin}", f"daemon {origin}"):
            assert line in said.read_text()
        assert (made.directory / f"mps/claim-{mps.uid}/pipe/control").is_fifo()


@own_server
def test_an_mps_daemon_outlives_the_driver_and_is_started_again() -> None:
    with cluster() as made:
        programs, log = mps_programs(made.directory)

        def daemon() -> int:
            return int(Path(f"{log}.pid").read_text() or 0)

        made.start(programs=programs)
        made.until(lambda: len(made.published()) == 2)
        mps = made.allocate("mps", SECOND, config=[opaque(config({"strategy": "MPS"}))])
        answer = made.prepare(mps)[mps.uid]
        assert not answer.error
        directory = made.directory / f"mps/claim-{mps.uid}"
        pipes, pid = os.open(directory / "pipe", os.O_PATH | os.O_DIRECTORY), daemon()
        try:
            made.stop()
            made.start(programs=programs)  # a rollout
            assert made.prepare(mps)[mps.uid] == answer and daemon() == pid
            os.kill(pid, signal.SIGKILL)
            made.until(lambda: daemon() not in (0, pid) and is_served(str(directory)))
            assert os.access("control", os.F_OK, dir_fd=pipes)
            # Daemon and supervisor are gone, and its parent too: the driver has them started again.
            pid = daemon()
            made.stop()
            keeper = parent(parent(pid))
            for one in (keeper, parent(pid), pid):
                os.kill(one, signal.SIGKILL)
            made.until(lambda: not is_served(str(directory)))
            made.start(programs=programs)
            made.until(lambda: is_served(str(directory)))
            assert os.access("control", os.F_OK, dir_fd=pipes) and daemon() != pid
        finally:
            os.close(pipes)
        made.stop()
        made.server.remove("resourceclaims", "mps", "default")  # type: ignore[union-attr]
        pid = daemon()
        made.start(programs=programs)
        made.until(lambda: not directory.exists())
        assert not Path(f"/proc/{pid}").exists()


def parent(pid: int) -> int:
    (found,) = re.findall(r"PPid:\s+(\d+)", Path(f"/proc/{pid}/status").read_text())
    return int(found)


@own_server
def test_many_claims_at_once(two: Cluster) -> None:
    claims = [two.allocate(f"c{i}", FIRST if i % 2 else SECOND, adminAccess=True) for i in range(24)]
    errors: list[str] = []

    def work(claim: v1.Claim) -> None:
        for _ in range(2):
            errors.append(two.prepare(claim)[claim.uid].error)
        errors.append(two.unprepare(claim)[claim.uid].error)

    threads = [threading.Thread(target=work, args=(claim,)) for claim in claims]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert set(errors) == {""} and not devices_of(two) and not Checkpoint(str(two.checkpoint)).claims


def test_the_command_itself(two: Cluster) -> None:
    two.stop()
    words = ["kubernetes", "dra-driver", "--kubeconfig", two.kubeconfig, "--node-name", two.node_name]
    words += ["--kubelet-dir", str(two.kubelet_dir), "--cdi-dir", str(two.cdi_dir), "--interval", "0.3"]
    env = os.environ | two.driver.env | {"PYTHONPATH": "src"}
    process = subprocess.Popen([sys.executable, "-m", "gpurun", *words], env=env, stderr=subprocess.PIPE, text=True)
    try:
        two.until(lambda: two.registry.exists())
        assert two.info().type == "DRAPlugin"
        process.terminate()
        assert process.wait(60) == 0
    finally:
        process.kill()
        assert process.stderr is not None
        assert "Traceback" not in process.stderr.read()
    assert not two.registry.exists()
    done = subprocess.run(
        [sys.executable, "-m", "gpurun", "kubernetes", "dra-driver", "--kubeconfig", "/nonexistent"],
        env=env, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert done.returncode == 1 and "kubeconfig /nonexistent: " in done.stderr and "Traceback" not in done.stderr
