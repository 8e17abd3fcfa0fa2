"""UIDs and labels of the pods that have GPUs, from the tests' API server."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gpurun.errors import UsageError
from gpurun.gpu.nvidia.host.nvml import query
from gpurun.kubernetes.api import connect
from gpurun.kubernetes.pod_resources import Owner
from gpurun.metrics.exposition import text
from gpurun.metrics.gpus import gpu_samples
from gpurun.metrics.pods import Pods, allowlist, labels_of
from tests.kubernetes.api_server import ApiServer
from tests.nvml import compile_stub
from tests.simdriver import uuid


@pytest.fixture
def server() -> Iterator[ApiServer]:
    made = ApiServer()
    yield made
    made.stop()


def pod(name: str, node: str = "node-1", **labels: str) -> dict[str, Any]:
    return {
        "apiVersion": "v1", "kind": "Pod", "spec": {"nodeName": node, "containers": []},
        "metadata": {"name": name, "namespace": "ns", "uid": f"uid-{name}", "labels": labels},
    }  # fmt: skip


def test_which_labels_and_under_which_names() -> None:
    labels = {
        "app.kubernetes.io/name": "a", "app-kubernetes-io/name": "b", "4th": "c", "pod": "mine",
        "DCGM_FI_DRIVER_VERSION": "d", "other": "e", "example.com/team": "f",
    }  # fmt: skip
    one = pod("a", **labels)
    assert labels_of(one, True, ()) == (("pod_uid", "uid-a"),)
    allowed = allowlist(["name$", "^4", "^pod$", "^DCGM", r"^example\.com/"])
    assert dict(labels_of(one, False, allowed)) == {"app_kubernetes_io_name": "b", "_4th": "c", "example_com_team": "f"}
    assert labels_of({"metadata": {}}, False, allowed) == ()
    with pytest.raises(UsageError, match=r'--pod-labels: "\(" is not a regular expression'):
        allowlist(["("])


def test_they_are_followed(server: ApiServer, tmp_path: Path) -> None:
    said: list[str] = []
    owners = tuple(Owner(uuid(0), "ns", name, "c") for name in ("a", "b"))
    pods = Pods(connect(str(server.kubeconfig(tmp_path / "kubeconfig"))), "node-1", True, allowlist(["team"]), said.append)
    server.put("pods", pod("a", team="x"))
    server.put("pods", pod("b", node="node-2", team="y"))

    def more() -> list[dict[str, str]]:
        return [dict(one.more) for one in pods.known(owners)]

    assert more() == [{}, {}]
    pods.start()
    server.wait(lambda: more() == [{"pod_uid": "uid-a", "team": "x"}, {}])  # a pod of another node is not ours
    server.put("pods", pod("b", team="z"))
    server.put("pods", pod("a", team="w"))
    server.wait(lambda: more() == [{"pod_uid": "uid-a", "team": "w"}, {"pod_uid": "uid-b", "team": "z"}])
    server.remove("pods", "b", "ns")
    server.wait(lambda: more()[1] == {})
    assert server.used == {("list", "pods"), ("watch", "pods")} and not said
    pods.stop()


def test_they_are_labels_of_the_metrics(tmp_path: Path) -> None:
    answer = query(str(compile_stub(tmp_path / "nvml.so", events=tmp_path / "events")), "metrics")
    owner = Owner(uuid(0), "ns", "a", "c", (("pod_uid", "uid-a"), ("team", 'x"\\n')))
    exposed = text(lambda: gpu_samples(answer, "n", (owner,)))
    assert 'pod="a",pod_uid="uid-a",team="x' in exposed


def test_the_command_looks_once(server: ApiServer, tmp_path: Path) -> None:
    env = os.environ | {
        "PYTHONPATH": "src",
        "GPURUN_SYSROOT": str(tmp_path),
        "KUBECONFIG": str(server.kubeconfig(tmp_path / "k")),
    }
    command = [
        sys.executable,
        "-m",
        "gpurun",
        "--root",
        str(tmp_path / "state"),
        "metrics",
        "--once",
        "--node-name",
        "node-1",
    ]
    done = subprocess.run([*command, "--pod-uid"], env=env, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert [path for path in server.asked if "fieldSelector=spec.nodeName%3Dnode-1" in path], server.asked
    done = subprocess.run([*command, "--pod-labels", "["], env=env, capture_output=True, text=True, timeout=120)
    assert done.returncode == 1 and "is not a regular expression" in done.stderr
    server.down = True
    done = subprocess.run([*command, "--pod-uid"], env=env, capture_output=True, text=True, timeout=120)
    assert done.returncode == 1 and "list pods" in done.stderr and "Traceback" not in done.stderr
