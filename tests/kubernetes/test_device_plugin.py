"""The device plugin between a simulated driver and the tests' kubelet, by the real protocol: calls, restarts, races."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest

from gpurun.cdi.files import read_registry
from gpurun.kubernetes.config import PluginConfig
from gpurun.kubernetes.protocols import deviceplugin_pb2 as messages
from gpurun.record import replace
from tests.kubernetes.kubelet import NotEnough
from tests.kubernetes.nodes import GPU, Node, node, replace_node, shared, stub_library
from tests.needs_nodes import needs_nodes
from tests.nvml import compile_stub
from tests.simdriver import VERSION, Options, minor, uuid

pytestmark = needs_nodes

FIRST, SECOND = uuid(0), uuid(1)


@pytest.fixture
def two() -> Iterator[Node]:
    """Two GPUs, and the plugin registered."""
    with node() as made:
        made.start_plugin()
        made.kubelet.wait(lambda: made.kubelet.capacity(GPU) == 2)
        yield made


def test_registration_and_list(two: Node) -> None:
    (request,) = two.kubelet.registrations
    assert (request.version, request.resource_name, request.endpoint) == ("v1beta1", GPU, "gpurun-nvidia.com-gpu.sock")
    endpoint = two.kubelet.endpoints[GPU]
    for options in (request.options, endpoint.options):
        assert options is not None and options.get_preferred_allocation_available and not options.pre_start_required
    assert {d.ID: [n.ID for n in d.topology.nodes] for d in endpoint.devices.values()} == {FIRST: [0], SECOND: [1]}
    assert endpoint.stub.PreStartContainer(messages.PreStartContainerRequest(devices_ids=[FIRST]), timeout=60) is not None


def test_allocate_names_a_cdi_device_that_is_there(two: Node) -> None:
    answers = [two.kubelet.run_container(name, GPU) for name in ("one", "two")]
    names = [[device.name for device in answer.cdi_devices] for answer in answers]
    assert names == [[f"k8s.device-plugin.nvidia.com/gpu={one}"] for one in (FIRST, SECOND)]
    registry = read_registry((str(two.cdi_dir),))
    assert not registry.errors and all(name in registry.devices for (name,) in names)
    with pytest.raises(NotEnough):
        two.kubelet.run_container("three", GPU)


def test_a_cdi_file_that_is_lost_is_there_when_allocate_answers(two: Node) -> None:
    two.stop_plugin()
    two.kubelet.wait(lambda: not two.kubelet.health())
    two.start_plugin(interval_s=3600)
    two.kubelet.wait(lambda: two.kubelet.capacity(GPU) == 2)
    (file,) = two.cdi_dir.iterdir()
    whole = file.read_bytes()
    for damage in (lambda: shutil.rmtree(two.cdi_dir), lambda: file.write_bytes(whole[:100])):
        damage()
        two.kubelet.run_container("one", GPU)
        two.kubelet.end_container("one")
        assert file.read_bytes() == whole


def test_the_file_outlives_the_plugin(two: Node) -> None:
    """The kubelet starts a container again without asking, by the names that it was given."""
    two.stop_plugin()
    assert list(two.cdi_dir.iterdir()) and not list(two.kubelet.plugins.glob("gpurun-*"))


@pytest.mark.parametrize("call", ["Allocate", "GetPreferredAllocation"])
def test_a_device_that_is_not_there_is_refused(two: Node, call: str) -> None:
    stub = two.kubelet.endpoints[GPU].stub
    with pytest.raises(grpc.RpcError) as error:
        if call == "Allocate":
            stub.Allocate(
                messages.AllocateRequest(container_requests=[messages.ContainerAllocateRequest(devices_ids=["GPU-9"])]),
                timeout=20,
            )
        else:
            one = messages.ContainerPreferredAllocationRequest(available_deviceIDs=["GPU-9"], allocation_size=1)
            stub.GetPreferredAllocation(messages.PreferredAllocationRequest(container_requests=[one]), timeout=60)
    assert isinstance(error.value, grpc.Call) and error.value.code() == grpc.StatusCode.INVALID_ARGUMENT
    assert "there is no device GPU-9" in str(error.value.details())


def test_the_kubelet_restarts(two: Node) -> None:
    two.kubelet.run_container("one", GPU)
    for _ in range(3):
        two.kubelet.restart()
        two.kubelet.wait(lambda: two.kubelet.capacity(GPU) == 2)
    answer = two.kubelet.run_container("two", GPU)
    assert answer.cdi_devices[0].name.endswith(SECOND)


def test_the_kubelet_comes_late_and_is_down_for_a_while() -> None:
    with node() as made:
        made.kubelet.stop()
        shutil.rmtree(made.kubelet.plugins)
        made.kubelet.plugins.mkdir()
        made.start_plugin()
        made.wait_for_a_round()
        made.kubelet.start()
        made.kubelet.wait(lambda: made.kubelet.capacity(GPU) == 2)
        made.kubelet.stop()
        made.wait_for_a_round()
        made.kubelet.start()
        made.kubelet.wait(lambda: made.kubelet.capacity(GPU) == 2)


def test_a_registration_that_is_refused_is_tried_again() -> None:
    with node() as made:
        made.kubelet.refuse = "not now"
        made.start_plugin()
        made.kubelet.wait(lambda: made.kubelet.refused > 1)
        assert not made.kubelet.endpoints
        made.kubelet.refuse = ""
        made.kubelet.wait(lambda: made.kubelet.capacity(GPU) == 2)


def test_the_plugin_restarts(two: Node) -> None:
    two.stop_plugin()
    two.kubelet.wait(lambda: not two.kubelet.health())
    two.start_plugin()
    two.kubelet.wait(lambda: two.kubelet.capacity(GPU) == 2)


def test_its_socket_is_removed(two: Node) -> None:
    (two.kubelet.plugins / "gpurun-nvidia.com-gpu.sock").unlink()
    two.kubelet.wait(lambda: len(two.kubelet.registrations) == 2 and two.kubelet.capacity(GPU) == 2)


def test_a_device_node_goes_and_comes_back(two: Node) -> None:
    two.device_node(0).unlink()
    two.kubelet.wait(lambda: two.kubelet.health()[GPU] == {FIRST: "Unhealthy", SECOND: "Healthy"})
    assert two.kubelet.run_container("one", GPU).cdi_devices[0].name.endswith(SECOND)
    replace_node(two.device_node(0), minor(0, 2))
    two.kubelet.wait(lambda: two.kubelet.health()[GPU] == {FIRST: "Healthy", SECOND: "Healthy"})


def test_the_driver_goes_and_comes_back(two: Node) -> None:
    proc = two.driver.path / "proc/driver/nvidia"
    proc.rename(proc.with_name("away"))
    two.kubelet.wait(lambda: set(two.kubelet.health()[GPU].values()) == {"Unhealthy"})
    assert two.kubelet.capacity(GPU) == 2
    proc.with_name("away").rename(proc)
    two.kubelet.wait(lambda: set(two.kubelet.health()[GPU].values()) == {"Healthy"})
    assert len(two.kubelet.registrations) == 1  # it never had to register again


def test_a_gpu_is_taken_away_and_added(two: Node) -> None:
    gpus = two.driver.path / "proc/driver/nvidia/gpus"
    bus = sorted(path.name for path in gpus.iterdir())[1]
    (gpus / bus).rename(two.directory / bus)
    two.kubelet.wait(lambda: two.kubelet.health()[GPU] == {FIRST: "Healthy"})
    (two.directory / bus).rename(gpus / bus)
    two.kubelet.wait(lambda: two.kubelet.capacity(GPU) == 2)


def test_no_gpu_at_first() -> None:
    with node(Options(no_module=True)) as made:
        made.config = PluginConfig(fail_on_init_error=False)
        made.start_plugin()
        made.wait_for_a_round()
        assert made.failure is None and not made.kubelet.endpoints
    with node(Options(no_module=True)) as made:
        made.start_plugin()
        made.kubelet.wait(lambda: made.failure)
        assert re.match("no GPU: the NVIDIA driver is not loaded", str(made.failure))


def test_time_slicing() -> None:
    with node() as made:
        made.config = shared("time-slicing", 4)
        made.start_plugin()
        made.kubelet.wait(lambda: made.kubelet.capacity(GPU) == 8)
        answers = [made.kubelet.run_container(f"pod-{i}", GPU) for i in range(8)]
        names = [answer.cdi_devices[0].name.rpartition("=")[2] for answer in answers]
        assert names == [FIRST, SECOND] * 4  # spread over the GPUs
        with pytest.raises(NotEnough):
            made.kubelet.run_container("one more", GPU)
        made.device_node(0).unlink()
        made.kubelet.wait(lambda: list(made.kubelet.health()[GPU].values()).count("Unhealthy") == 4)


def test_more_than_one_replica_is_refused_where_the_site_says_so() -> None:
    with node() as made:
        made.config = shared("time-slicing", 2, fail=True)
        made.start_plugin()
        made.kubelet.wait(lambda: made.kubelet.capacity(GPU) == 4)
        with pytest.raises(grpc.RpcError, match="failRequestsGreaterThanOne"):
            made.kubelet.run_container("two", GPU, 2)
        assert made.kubelet.run_container("one", GPU)


def test_the_configuration_changes(two: Node) -> None:
    two.config = shared("time-slicing", 2, rename=f"{GPU}.shared")
    two.kubelet.wait(lambda: two.kubelet.capacity(f"{GPU}.shared") == 4 and two.kubelet.capacity(GPU) == 0)
    two.config = replace(PluginConfig(), list_strategies=("envvar",))
    two.kubelet.wait(lambda: two.kubelet.capacity(GPU) == 2 and two.kubelet.capacity(f"{GPU}.shared") == 0)
    assert dict(two.kubelet.run_container("one", GPU).envs) == {"NVIDIA_VISIBLE_DEVICES": FIRST}


def test_xid_events() -> None:
    with node(change=lambda root: None) as made:
        events = made.directory / "events"
        compile_stub(stub_library(made.driver.path), events=events)
        made.start_plugin(interval_s=3600)
        made.kubelet.wait(lambda: made.kubelet.capacity(GPU) == 2)
        events.write_text("0 13 -1 -1\n0 31 -1 -1\n1 79 -1 -1\n")
        # at once, not at the next look; and what the first two told was the application's
        made.kubelet.wait(lambda: made.kubelet.health()[GPU] == {FIRST: "Healthy", SECOND: "Unhealthy"})
        gpus = made.driver.path / "proc/driver/nvidia/gpus"
        bus = sorted(path.name for path in gpus.iterdir())[1]
        assert made.manager is not None
        (gpus / bus).rename(made.directory / bus)  # as a reset does
        made.manager.wake()
        made.kubelet.wait(lambda: made.kubelet.capacity(GPU) == 1)
        (made.directory / bus).rename(gpus / bus)
        made.manager.wake()
        made.kubelet.wait(lambda: made.kubelet.health()[GPU] == {FIRST: "Healthy", SECOND: "Healthy"})


def test_mig_devices_mixed() -> None:
    with node(Options(gpus=2, mig=((0, 1, 0), (0, 2, 0)))) as made:
        compile_stub(stub_library(made.driver.path), mig=True, events=made.directory / "events")
        made.config = PluginConfig(mig_strategy="mixed")
        made.start_plugin()
        ten, twenty = "nvidia.com/mig-1g.10gb", "nvidia.com/mig-1c.2g.20gb"
        made.kubelet.wait(
            lambda: (made.kubelet.capacity(GPU), made.kubelet.capacity(ten), made.kubelet.capacity(twenty)) == (1, 1, 1)
        )
        name = made.kubelet.run_container("one", twenty).cdi_devices[0].name
        assert name in read_registry((str(made.cdi_dir),)).devices and "=MIG-" in name
        capabilities = made.driver.path / f"proc/driver/nvidia/capabilities/gpu{minor(0, 2)}/mig/gi2"
        shutil.rmtree(capabilities)
        made.kubelet.wait(lambda: made.kubelet.capacity(twenty) == 0)
        assert made.kubelet.capacity(ten) == 1


def test_in_a_pod() -> None:
    """The host's root is mounted at another place: what the kubelet and the engine are told are the host's own paths."""
    with node() as made:
        root = str(made.driver.path)
        made.config = PluginConfig(list_strategies=("cdi-cri", "envvar"), pass_device_specs=True)
        made.start_plugin(root=root)
        made.kubelet.wait(lambda: made.kubelet.capacity(GPU) == 2)
        answer = made.kubelet.run_container("one", GPU)
        assert [device.host_path for device in answer.devices] == [device.container_path for device in answer.devices]
        (file,) = made.cdi_dir.iterdir()
        assert root not in file.read_text()
        registry = read_registry((str(made.cdi_dir),))
        assert answer.cdi_devices[0].name in registry.devices
        (spec,) = [one.spec for one in registry.files]
        mounts = [mount.host_path for mount in spec.edits.mounts]
        assert any(path.endswith(f"libcuda.so.{VERSION}") for path in mounts)
        assert all(Path(f"{root}{path}").exists() for path in mounts)


def test_the_command_itself(two: Node) -> None:
    """As a process, from its configuration file, ended by a signal."""
    import sys

    two.stop_plugin()
    config = two.directory / "config.yaml"
    config.write_text("version: v1\nsharing: {timeSlicing: {resources: [{name: nvidia.com/gpu, replicas: 3}]}}\n")
    words = ["kubernetes", "device-plugin", "--config-file", str(config), "--kubelet-dir", str(two.kubelet.directory)]
    words += ["--cdi-dir", str(two.cdi_dir), "--interval", "0.2"]
    env = os.environ | two.driver.env | {"PYTHONPATH": "src"}
    process = subprocess.Popen([sys.executable, "-m", "gpurun", *words], env=env, stderr=subprocess.PIPE, text=True)
    try:
        two.kubelet.wait(lambda: two.kubelet.capacity(GPU) == 6)
        config.write_text("version: v1\nsharing: {timeSlicing: {resources: [{name: nvidia.com/gpu, replicas: 1}]}}\n")
        assert process.stderr is not None
        wrong = "replicas: must be a number from 2 on; the configuration stays as it was"
        assert any(wrong in line for line in process.stderr), "what is wrong is told, and changes nothing"
        assert two.kubelet.capacity(GPU) == 6
        config.write_text("version: v1\n")
        two.kubelet.wait(lambda: two.kubelet.capacity(GPU) == 2)
        process.terminate()
        assert process.wait(60) == 0
    finally:
        process.kill()
        assert process.stderr is not None
        said = process.stderr.read()
    assert "Traceback" not in said and not list(two.kubelet.plugins.glob("gpurun-*"))
