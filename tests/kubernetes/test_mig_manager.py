"""A node's GPUs divided as its label says: the state that it says, what is sent away meanwhile, and what is waited for."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from concurrent import futures
from pathlib import Path
from typing import Any

import grpc
import pytest

from gpurun.commands import kubernetes_mig
from gpurun.errors import GpuError, GpurunError
from gpurun.gpu.nvidia.mig.apply import MigHost
from gpurun.kubernetes.api import connect
from gpurun.kubernetes.labels import labels_left
from gpurun.kubernetes.mig_manager import (
    AWAY,
    CONFIG,
    FAILED,
    PAUSED,
    PENDING,
    REBOOTING,
    STATE,
    SUCCESS,
    MigManager,
    MigPlaces,
)
from gpurun.kubernetes.protocols import podresources_pb2 as messages
from gpurun.kubernetes.protocols import podresources_pb2_grpc as services
from tests.commands.test_gpu_mig import CONFIG as FILE
from tests.gpu.nvidia.mig.hosts import MigHost as SimulatedHost
from tests.kubernetes.api_server import ApiServer

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root divides GPUs")

PLUGIN, DCGM, NVSM = (f"nvidia.com/gpu.deploy.{part}" for part in ("device-plugin", "dcgm", "nvsm"))
BALANCED = {"3g.20gb": 1, "2g.10gb": 1, "1g.5gb": 2}


class Node:
    """A node of a cluster with one GPU, and the manager on it."""

    def __init__(self, directory: Path) -> None:
        self.sim = SimulatedHost(directory, gpus=1)
        self.server = ApiServer()
        self.file: Path | None = directory / "config.yaml"
        self.file.write_text(FILE)
        self.sockets = directory / "kubelet.sock"
        self.host = MigHost(self.sim.library, str(directory / "mig"))
        self.api = connect(str(self.server.kubeconfig(directory / "kubeconfig")))
        self.rebooted, self.no_reboot = 0, ""
        self.label()

    def label(self, **labels: str) -> None:
        found = {key.replace("__", "/").replace("_", "."): value for key, value in labels.items()}
        self.server.put("nodes", {"metadata": {"name": "node-1", "labels": found}, "status": {"allocatable": {}}})

    def set_labels(self, labels: dict[str, str]) -> None:
        self.server.put("nodes", {"metadata": {"name": "node-1", "labels": labels}})

    @property
    def labels(self) -> dict[str, str]:
        found: dict[str, str] = self.server.all("nodes")[0]["metadata"]["labels"]
        return found

    @property
    def events(self) -> list[str]:
        return [str(event["message"]) for event in self.server.all("events")]

    def apply(self, name: str, wait_s: float = 60.0, reboot: bool = False, stop: threading.Event | None = None) -> str:
        places = MigPlaces(str(self.file or ""), "gpurun", str(self.sockets), wait_s)
        manager = MigManager(self.api, "node-1", lambda: self.host, places, self._reboot if reboot else None)
        return manager.apply(name, stop or threading.Event())

    def _reboot(self) -> None:
        self.rebooted += 1
        if self.no_reboot:
            raise GpurunError(self.no_reboot)

    def pod(self, name: str, component: str) -> None:
        labels = {"app.kubernetes.io/name": "gpurun", "app.kubernetes.io/component": component}
        metadata = {"name": name, "namespace": "gpurun", "labels": labels}
        self.server.put("pods", {"metadata": metadata, "spec": {"nodeName": "node-1", "containers": []}})

    def states(self) -> list[str]:
        """The states that the node's label has had, as a watch tells them."""
        found: list[str] = []
        for _, event, key, value in self.server._history:
            state = value["metadata"].get("labels", {}).get(STATE) if key[0] == "nodes" and event != "DELETED" else None
            if state and found[-1:] != [state]:
                found.append(state)
        return found


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    made = Node(tmp_path)
    yield made
    made.server.stop()


def test_divided_and_again(node: Node) -> None:
    node.set_labels({PLUGIN: "true", DCGM: "false", "other": "x"})
    seen: list[dict[str, str]] = []
    node.host = MigHost(node.host.library, node.host.directory, None, lambda _: _noting(node, seen))
    assert node.apply("balanced") == SUCCESS and node.sim.devices() == BALANCED
    (meanwhile,) = seen
    assert meanwhile == {PLUGIN: AWAY, DCGM: "false", "other": "x", PAUSED: AWAY, STATE: PENDING}
    assert node.labels == {PLUGIN: "true", DCGM: "false", "other": "x", STATE: SUCCESS}
    assert node.states() == [PENDING, SUCCESS] and node.events == []
    node.sim.log()
    before = node.server.version
    assert node.apply("balanced") == SUCCESS and node.sim.log() == [] and node.server.version == before
    assert node.apply("off") == SUCCESS and node.sim.gpus()[0].mode is False


class _noting:
    """What holds the GPUs: notes the node's labels."""

    def __init__(self, node: Node, seen: list[dict[str, str]]) -> None:
        self._node, self._seen = node, seen

    def __enter__(self) -> None:
        self._seen.append(dict(self._node.labels))

    def __exit__(self, *_: object) -> None:
        pass


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("none", 'has no configuration "none", it has: off, balanced, bad'),
        ("bad", "GPU 0 has no MIG profile 9g.99gb"),
        ("", "has several configurations"),
    ],
)
def test_what_cannot_be_sends_nobody_away(node: Node, name: str, text: str) -> None:
    node.set_labels({PLUGIN: "true"})
    more = "  bad: [{devices: all, mig-enabled: true, mig-devices: {9g.99gb: 1}}]\n"
    assert node.file is not None
    node.file.write_text(FILE + more)
    assert node.apply(name) == FAILED
    assert node.labels == {PLUGIN: "true", STATE: FAILED} and node.states() == [FAILED]
    (event,) = node.events
    assert text in event and event.startswith(f'MIG configuration "{name}": ')
    assert node.sim.log() == []


def test_without_a_file(node: Node) -> None:
    """The configurations are those that the GPUs can have; what the driver does not tell takes MIG to be on."""
    node.file = None
    assert node.apply("all-balanced") == SUCCESS and node.sim.devices() == BALANCED
    assert node.apply("all-1g.5gb") == SUCCESS and node.sim.devices() == {"1g.5gb": 7}
    assert node.apply("all-1g.5gb.me") == SUCCESS and node.sim.devices() == {"1g.5gb+me": 1}
    assert node.apply("all-disabled") == SUCCESS and node.sim.gpus()[0].mode is False
    assert node.events == []
    assert node.apply("all-9g.99gb") == FAILED
    assert 'has no configuration "all-9g.99gb", it has: all-disabled, all-enabled, all-1g.10gb, ' in node.events[0]
    node.sim.control("silent")
    assert node.apply("all-1g.5gb") == FAILED and "apply all-enabled first" in node.events[1]
    assert node.apply("all-enabled") == SUCCESS and node.apply("all-1g.5gb") == SUCCESS
    assert node.sim.devices() == {"1g.5gb": 7}


def test_a_file_of_somebody_else(node: Node) -> None:
    assert node.file is not None
    os.chown(node.file, 1000, 0)
    assert node.apply("balanced") == FAILED and "can be written by a user other than root" in node.events[0]


def test_gpuruns_own_pods_are_waited_for(node: Node) -> None:
    node.pod("plugin-1", "device-plugin")
    node.pod("installer-1", "install")  # looks at no GPU

    def go() -> None:
        """As the controller of DaemonSets does, once the node has the label."""
        node.server.wait(lambda: PAUSED in node.labels)
        node.server.remove("pods", "plugin-1", "gpurun")

    thread = threading.Thread(target=go)
    thread.start()
    assert node.apply("balanced") == SUCCESS
    thread.join()
    assert PAUSED not in node.labels


@pytest.mark.parametrize(
    ("who", "text"),
    [
        ("plugin", "pod gpurun/plugin-1 still looks at them"),
        ("kubelet", r"the kubelet still offers nvidia.com/mig-1g.5gb (2)"),
        ("pod", "pod team/train-0 has GPU-x"),
    ],
)
def test_who_does_not_go(node: Node, who: str, text: str) -> None:
    server = None
    if who == "plugin":
        node.pod("plugin-1", "labels")
    elif who == "kubelet":
        status = {"allocatable": {"cpu": "8", "nvidia.com/gpu": "0", "nvidia.com/mig-1g.5gb": "2"}}
        node.server.put("nodes", {"metadata": {"name": "node-1", "labels": {}}, "status": status})
    else:
        server = _pod_resources(node.sockets)
    assert node.apply("balanced", wait_s=0.0) == FAILED
    assert "within 0 s the GPUs have not become free: " in node.events[0] and text in node.events[0]
    assert node.sim.log() == [] and node.labels == {STATE: FAILED} and node.states() == [PENDING, FAILED]
    if server is not None:
        server.stop(0).wait()


def test_pods_with_gpus_of_other_makers_stay(node: Node) -> None:
    """On a host with GPUs of two makers."""
    server = _pod_resources(node.sockets, "amd.com/gpu", "0000:43:00.0")
    assert node.apply("balanced", wait_s=0.0) == SUCCESS and node.sim.devices() == BALANCED
    server.stop(0).wait()


def _pod_resources(path: Path, resource: str = "nvidia.com/gpu", device: str = "GPU-x") -> Any:
    class Kubelet(services.PodResourcesListerServicer):
        def List(self, request: Any, context: Any) -> messages.ListPodResourcesResponse:
            devices = [messages.ContainerDevices(resource_name=resource, device_ids=[device])]
            containers = [messages.ContainerResources(name="main", devices=devices)]
            pod = messages.PodResources(name="train-0", namespace="team", containers=containers)
            return messages.ListPodResourcesResponse(pod_resources=[pod])

    server = grpc.server(futures.ThreadPoolExecutor(1))
    services.add_PodResourcesListerServicer_to_server(Kubelet(), server)
    server.add_insecure_port(f"unix:{path}")
    server.start()
    return server


def test_somebody_uses_the_gpu(node: Node) -> None:
    def hold(_: object) -> Any:
        raise GpuError("GPU 0 is in use, so it is not divided anew: leased by train-1")

    node.host = MigHost(node.host.library, node.host.directory, None, hold)
    assert node.apply("balanced") == FAILED
    assert "leased by train-1" in node.events[0] and PAUSED not in node.labels and node.sim.log() == []


def test_a_call_that_fails(node: Node) -> None:
    node.sim.control("fail DeviceCreateGpuInstanceWithPlacement 2 23")
    assert node.apply("balanced") == FAILED
    assert "Insufficient Resources" in node.events[0] and "as they were before" in node.events[0]
    assert node.labels == {STATE: FAILED} and node.sim.gpus()[0].mode is False


def test_a_mode_that_waits_for_a_reboot(node: Node) -> None:
    node.set_labels({PLUGIN: "true"})
    node.sim.control("sticky 0")
    assert node.apply("balanced") == FAILED and "waits for a reset" in node.events[0]
    assert node.apply("balanced", reboot=True) == REBOOTING and node.rebooted == 1
    assert node.labels == {PLUGIN: AWAY, PAUSED: AWAY, STATE: REBOOTING}  # until it is up again
    assert node.apply("balanced", reboot=True) == FAILED and node.rebooted == 1  # it did not help: not again and again
    state = node.sim.directory / "state"
    state.write_text(state.read_text().replace("mode 0 0 1", "mode 0 1 1"))
    assert node.apply("balanced", reboot=True) == SUCCESS and node.sim.devices() == BALANCED
    assert node.labels == {PLUGIN: "true", STATE: SUCCESS}


def test_a_node_that_does_not_reboot(node: Node) -> None:
    """Nobody stays away for a reboot that does not come."""
    node.set_labels({PLUGIN: "true"})
    node.sim.control("sticky 0")
    node.no_reboot = "the node does not reboot: exit code 1"
    assert node.apply("balanced", reboot=True) == FAILED and node.rebooted == 1
    assert node.labels == {PLUGIN: "true", STATE: FAILED} and node.no_reboot in node.events[-1]


@pytest.mark.parametrize(
    ("program", "said"),
    [
        ("echo Access denied >&2; exit 1", "the node does not reboot: Access denied"),
        ("exit 3", "the node does not reboot: exit code 3"),
        ("", "the node does not reboot: reboot: no such file or directory"),
    ],
)  # fmt: skip
def test_what_reboot_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, program: str, said: str) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    if program:
        (tmp_path / "reboot").write_text(f"#!/bin/sh\n{program}\n")
        (tmp_path / "reboot").chmod(0o755)
    with pytest.raises(GpurunError, match=said):
        kubernetes_mig._reboot("")


def test_after_one_that_was_killed(node: Node) -> None:
    """What it had sent away comes back, also where nothing is left to do."""
    node.set_labels({NVSM: AWAY, PAUSED: AWAY, STATE: PENDING, CONFIG: "off"})
    assert node.apply("off") == SUCCESS
    assert node.labels == {NVSM: "true", STATE: SUCCESS, CONFIG: "off"}


def test_ended_while_it_waits(node: Node) -> None:
    node.pod("plugin-1", "device-plugin")
    stop = threading.Event()
    stop.set()
    assert node.apply("balanced", stop=stop) == ""
    assert node.labels == {STATE: PENDING} and node.sim.log() == [] and node.events == []


def test_only_what_a_role_allows_is_asked(node: Node) -> None:
    node.pod("installer-1", "install")
    node.apply("none")
    node.apply("balanced")
    assert node.server.used == {("get", "nodes"), ("patch", "nodes"), ("list", "pods"), ("create", "events")}
    assert not [asked for asked in node.server.asked if "/pods" in asked and "/namespaces/gpurun/" not in asked]


def test_uninstalling_takes_its_labels() -> None:
    labels = {STATE: SUCCESS, PAUSED: AWAY, CONFIG: "off", PLUGIN: "true"}
    assert labels_left({"labels": labels}) == {STATE: None, PAUSED: None}
