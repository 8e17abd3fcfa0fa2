"""The manifests: what the programs ask of an API server is what their roles allow, and nothing more."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml

from tests.kubernetes.cluster import REAL, Cluster, cluster

DIRECTORY = Path(__file__).resolve().parents[2] / "deploy/kubernetes"

pytestmark = pytest.mark.skipif(
    os.geteuid() != 0 or REAL, reason="device nodes need root, and the server is asked what was used"
)


#: The roles of the device plugin are only there with a configuration that a label names: see charts/gpurun.
PLUGIN = {("get", "nodes"), ("list", "nodes"), ("watch", "nodes")}


def allowed(role: str, kind: str = "ClusterRole") -> set[tuple[str, str]]:
    documents = list(yaml.safe_load_all((DIRECTORY / "gpurun-dra.yaml").read_text()))
    (found,) = [d for d in documents if d and d["kind"] == kind and d["metadata"]["name"] == role]
    return {(verb, kind) for rule in found["rules"] for kind in rule["resources"] for verb in rule["verbs"]}


def test_the_dra_driver_uses_all_of_its_role_and_no_more() -> None:
    with cluster() as made:
        assert made.server is not None
        made.start()
        made.until(lambda: len(made.published()) == 2)
        claim = made.allocate("c", "gpu-0")
        made.prepare(claim)
        pool = {"name": "node-1", "generation": 7, "resourceSliceCount": 1}
        extra = {"metadata": {"name": "old"}, "spec": {"driver": "gpu.nvidia.com", "nodeName": "node-1", "pool": pool}}
        made.server.put("resourceslices", extra)  # one too many: the rest is written anew, and it goes
        made.server.wait(lambda: made.server is not None and len(made.server.all("resourceslices")) == 1)
        made.until(lambda: ("watch", "resourceslices") in (made.server.used if made.server else ()))
        assert made.server.used == allowed("gpurun-dra-driver")


def command(made: Cluster, *words: str) -> list[str]:
    own = ["--kubeconfig", made.kubeconfig, "--node-name", "node-1"]
    return [sys.executable, "-m", "gpurun", "kubernetes", *words, *own]


def environment(made: Cluster) -> dict[str, str]:
    return os.environ | made.driver.env | {"PYTHONPATH": "src"}


def run(made: Cluster, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command(made, *words), env=environment(made), capture_output=True, text=True, timeout=120)


def test_labels_at_the_node_itself() -> None:
    with cluster() as made:
        assert made.server is not None
        old = {"nvidia.com/mig-1g.10gb.count": "2", "kubernetes.io/os": "linux"}
        made.server.put("nodes", {"metadata": {"name": "node-1", "labels": old}})
        done = run(made, "labels", "--patch-node", "--oneshot")
        assert done.returncode == 0, done.stderr
        labels = made.server.all("nodes")[0]["metadata"]["labels"]
        assert labels["nvidia.com/cuda.driver-version.full"] == "999.88.77" and labels["kubernetes.io/os"] == "linux"
        assert "nvidia.com/mig-1g.10gb.count" not in labels
        assert made.server.used == allowed("gpurun-labels")
        made.server.remove("nodes", "node-1")
        done = run(made, "labels", "--patch-node", "--oneshot")
        assert done.returncode == 1 and "get node node-1: " in done.stderr and "Traceback" not in done.stderr


def test_the_labels_of_a_nodes_own_configuration() -> None:
    with cluster() as made:
        assert made.server is not None
        for name, replicas in (("small", 2), ("large", 8)):
            text = f"sharing: {{timeSlicing: {{resources: [{{name: gpu, replicas: {replicas}}}]}}}}\n"
            (made.directory / name).write_text(text)
        words = ("labels", "--patch-node", "--oneshot", "--config-dir", str(made.directory), "--default-config", "small")
        for own, shown in (({}, "2"), ({"nvidia.com/device-plugin.config": "large"}, "8")):
            made.server.put("nodes", {"metadata": {"name": "node-1", "labels": own}})
            done = run(made, *words)
            assert done.returncode == 0, done.stderr
            labels = made.server.all("nodes")[0]["metadata"]["labels"]
            assert labels["nvidia.com/gpu.replicas"] == shown
            assert labels["nvidia.com/gpu.sharing-strategy"] == "time-slicing"
        assert made.server.used == {("get", "nodes"), ("patch", "nodes")}, "nobody waits for a change"
        done = run(made, *words, "--config-file", "x")
        assert done.returncode == 1 and "--config-file and --config-dir exclude each other" in done.stderr


def test_the_device_plugin_of_a_node_that_names_its_configuration() -> None:
    """The label is there when the plugin starts."""
    with cluster() as made:
        assert made.server is not None
        labels = {"nvidia.com/device-plugin.config": "own"}
        made.server.put("nodes", {"metadata": {"name": "node-1", "labels": labels}})
        (made.directory / "own").write_text("flags: {nonsense: 1}\n")
        (made.kubelet_dir / "device-plugins").mkdir(parents=True)
        process = subprocess.Popen(
            [
                *command(made, "device-plugin", "--config-dir", str(made.directory), "--kubelet-dir", str(made.kubelet_dir)),
                *("--cdi-dir", str(made.cdi_dir)),
            ],
            env=environment(made), stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        assert process.stderr is not None
        said = []
        for line in process.stderr:
            said.append(line)
            if "kubelet.sock is not there" in line:
                break
        process.terminate()
        said.append(process.communicate(timeout=60)[1])
        assert process.returncode == 0 and "nonsense" in "".join(said), said


def test_a_nodes_own_configuration() -> None:
    from gpurun.kubernetes.config_source import LABEL, ConfigSource, NodeLabel

    with cluster() as made:
        assert made.server is not None
        for name, replicas in (("small", 2), ("large", 8)):
            text = f"sharing: {{timeSlicing: {{resources: [{{name: gpu, replicas: {replicas}}}]}}}}\n"
            (made.directory / name).write_text(text)
        label = NodeLabel(made.api, "node-1", LABEL, lambda: None)
        source = ConfigSource(str(made.directory), {}, {}, lambda: label.value, "small")
        assert source().sharing.resources[0].replicas == 2
        for value, replicas in (("large", 8), ("../large", 8), ("nothing", 8), ("small", 2)):
            made.server.put("nodes", {"metadata": {"name": "node-1", "labels": {LABEL: value}}})
            made.until(lambda value=value: label.value == value)  # type: ignore[misc]
            assert source().sharing.resources[0].replicas == replicas
        label.stop()
        time.sleep(0)
        assert made.server.used <= PLUGIN
