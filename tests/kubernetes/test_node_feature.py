"""NodeFeature objects: made, changed and left alone, on the tests' API server."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gpurun.errors import GpurunError, UsageError
from gpurun.kubernetes.api import ApiError, connect
from gpurun.kubernetes.node_feature import NodeFeature, changed, document
from tests.kubernetes import api_server
from tests.kubernetes.api_server import ApiServer
from tests.simdriver import SimulatedDriver

LABELS = {"nvidia.com/gpu.count": "2", "nvidia.com/gfd.timestamp": "1"}
NAME = "nvidia-features-for-node-1"


@pytest.fixture
def server() -> Iterator[ApiServer]:
    made = ApiServer()
    made.put(
        "daemonsets", {"apiVersion": "apps/v1", "kind": "DaemonSet", "metadata": {"namespace": "gpurun", "name": "labels"}}
    )
    yield made
    made.stop()


@pytest.fixture
def feature(server: ApiServer, tmp_path: Path) -> NodeFeature:
    return NodeFeature(connect(str(server.kubeconfig(tmp_path / "kubeconfig"))), "node-1", "gpurun/labels", "")


def only(server: ApiServer) -> dict[str, Any]:
    (found,) = server.all("nodefeatures")
    return found


def test_the_object(server: ApiServer, feature: NodeFeature) -> None:
    feature.set(LABELS, ("nvidia",))
    (daemonset,) = server.all("daemonsets")
    found = only(server)
    assert (found["apiVersion"], found["kind"]) == ("nfd.k8s-sigs.io/v1alpha1", "NodeFeature")
    assert (found["metadata"]["namespace"], found["metadata"]["name"]) == ("gpurun", NAME)
    assert found["metadata"]["labels"] == {"nfd.node.kubernetes.io/node-name": "node-1"}
    assert found["metadata"]["ownerReferences"] == [
        {"apiVersion": "apps/v1", "kind": "DaemonSet", "name": "labels", "uid": daemonset["metadata"]["uid"]}
    ]
    assert found["spec"] == {"features": {"flags": {}, "attributes": {}, "instances": {}}, "labels": LABELS}
    # What the role of the chart allows.
    assert server.used == {("get", "daemonsets"), ("get", "nodefeatures"), ("create", "nodefeatures")}


def test_it_is_written_when_labels_change_alone(server: ApiServer, feature: NodeFeature) -> None:
    feature.set(LABELS, ("nvidia",))
    asked, version = len(server.asked), only(server)["metadata"]["resourceVersion"]
    feature.set(LABELS | {"nvidia.com/gfd.timestamp": "2"}, ("nvidia",))
    assert len(server.asked) == asked  # the time alone is no reason to ask
    for _ in range(20):
        feature.set(LABELS, ("nvidia",))
    assert len(server.asked) > asked and only(server)["metadata"]["resourceVersion"] == version
    feature.set({"nvidia.com/gpu.count": "1"}, ("nvidia",))
    assert only(server)["spec"]["labels"] == {"nvidia.com/gpu.count": "1"}
    feature.set({}, ("nvidia",))  # a node whose GPUs are gone
    assert only(server)["spec"]["labels"] == {}


def test_what_somebody_else_wrote_is_put_right(server: ApiServer, tmp_path: Path) -> None:
    old = document("node-1", "gpurun", {"nvidia.com/gpu.count": "9", "amd.com/gpu.family": "AI"}, None)
    old["metadata"]["labels"] = {}
    server.put("nodefeatures", old)
    config = str(server.kubeconfig(tmp_path / "kubeconfig"))
    NodeFeature(connect(config), "node-1", "", "gpurun").set(LABELS, ("nvidia",))
    found = only(server)
    # AMD's GPUs could not be looked at: what is said of them stays.
    assert found["spec"]["labels"] == LABELS | {"amd.com/gpu.family": "AI"}
    assert found["metadata"]["labels"] == {"nfd.node.kubernetes.io/node-name": "node-1"}
    assert "ownerReferences" not in found["metadata"]


def test_an_object_that_was_written_meanwhile_is_an_error_and_tried_again(server: ApiServer, feature: NodeFeature) -> None:
    feature.set(LABELS, ("nvidia",))

    def meanwhile(plural: str, body: dict[str, Any]) -> dict[str, Any] | None:
        raise api_server.Refused(409, "Conflict", "the object has been modified")

    before, server.admit = server.admit, meanwhile
    with pytest.raises(ApiError, match="modified"):
        feature.set({}, ("nvidia",))
    server.admit = before
    feature.set({}, ("nvidia",))
    assert only(server)["spec"]["labels"] == {}


def test_the_time_alone_changes_nothing() -> None:
    old = document("n", "gpurun", LABELS, None)
    old["metadata"]["resourceVersion"] = "7"
    assert changed(old, document("n", "gpurun", LABELS | {"nvidia.com/gfd.timestamp": "2"}, None)) is None
    new = changed(old, document("n", "gpurun", {}, None))
    assert new is not None and new["metadata"]["resourceVersion"] == "7"


def test_a_cluster_without_node_feature_discovery(
    server: ApiServer, feature: NodeFeature, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(api_server.GROUPS, "nfd.k8s-sigs.io")
    with pytest.raises(GpurunError, match="install Node Feature Discovery"):
        feature.set(LABELS, ("nvidia",))


def test_where_it_is(server: ApiServer, tmp_path: Path) -> None:
    api = connect(str(server.kubeconfig(tmp_path / "kubeconfig")))
    for daemonset in ("labels", "/labels", "gpurun/"):
        with pytest.raises(UsageError, match="is not NAMESPACE/NAME"):
            NodeFeature(api, "node-1", daemonset, "")
    with pytest.raises(UsageError, match="needs --daemonset, or --namespace"):
        NodeFeature(api, "node-1", "", "")


def test_the_command(server: ApiServer, sim: SimulatedDriver, tmp_path: Path) -> None:
    env = os.environ | sim.env | {"PYTHONPATH": "src", "KUBECONFIG": str(server.kubeconfig(tmp_path / "kubeconfig"))}
    command = [sys.executable, "-m", "gpurun", "kubernetes", "labels", "--oneshot", "--use-node-feature-api"]
    command += ["--node-name", "node-1"]
    done = subprocess.run([*command, "--daemonset", "gpurun/labels"], env=env, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    labels = only(server)["spec"]["labels"]
    assert labels["nvidia.com/gpu.count"] == "1" and labels["nvidia.com/cuda.driver-version.full"]  # one of each model
    for words in (["--patch-node"], ["-o", str(tmp_path / "x")]):
        done = subprocess.run([*command, *words], env=env, capture_output=True, text=True, timeout=120)
        assert done.returncode == 1 and "--use-node-feature-api excludes" in done.stderr
