"""The chart's pods on a real Kubernetes: what they may do, what a file of configuration says, and what is left of them."""

# ruff: noqa: F811 - the fixture is imported
from __future__ import annotations

import base64
import contextlib
import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kubernetes import real
from tests.kubernetes.real import NODE, Object, get, gone, has, kubectl, manifests, offered, pod, run, until
from tests.kubernetes.test_cluster_pods import (  # noqa: F401
    DRIVER,
    at_rest,
    chart,
    claim,
    figures,
    files,
    left,
    node_file,
    with_driver_root,
)

pytestmark = [
    pytest.mark.skipif(not real.is_here(), reason=real.WHY_NOT),
    pytest.mark.skipif(not DRIVER.exists(), reason=f"needs a simulated driver in {DRIVER}: kubernetes-bed --gpus 2"),
]
CONFIG_LABEL = "nvidia.com/device-plugin.config"
PLAIN = f"version: v1\nflags: {{nvidiaDriverRoot: {DRIVER}}}\n"
OWN = f"""version: v1
flags:
  migStrategy: mixed
  nvidiaDriverRoot: {DRIVER}
  plugin: {{deviceListStrategy: [cdi-annotations]}}
sharing:
  timeSlicing: {{renameByDefault: true, resources: [{{name: nvidia.com/gpu, replicas: 2}}]}}
"""
LOOKING = ("device-plugin", "labels", "metrics")


def labels() -> dict[str, str]:
    found: dict[str, str] = get("node", NODE)["metadata"]["labels"]
    return {name.removeprefix("nvidia.com/"): text for name, text in found.items()}


def delete(objects: list[Object]) -> None:
    """But for the namespace: its end can take minutes, half of the longest time that a pod of it may take."""
    kept = [one for one in objects if one["kind"] != "Namespace"]
    kubectl("delete", "-f", "-", "--ignore-not-found", given=kept)


@contextlib.contextmanager
def deployed(objects: list[Object]) -> Iterator[None]:
    """The *objects* there, and their pods ready."""
    apply(objects)
    try:
        yield
    finally:
        gone()
        kubectl("delete", "resourceclaimtemplates", "--all")
        delete(objects)


def apply(objects: list[Object]) -> None:
    kubectl("apply", "-f", "-", given=objects)
    for one in objects:
        if one["kind"] == "DaemonSet":
            name = one["metadata"]["name"]
            kubectl("-n", "gpurun", "rollout", "status", f"daemonset/{name}", "--timeout=180s")


def asked_by_annotation(name: str) -> bool:
    """Whether the kubelet has asked the engine for the devices of the pod *name* by annotations of CDI."""
    (status,) = get("pod", name)["status"]["containerStatuses"]
    words = ["ctr", "-n", "k8s.io", "containers", "info", status["containerID"].removeprefix("containerd://")]
    info = json.loads(subprocess.run(words, capture_output=True, check=True, text=True).stdout)
    request = json.loads(base64.b64decode(info["Extensions"]["io.cri-containerd.container.metadata"]["value"]))
    return any(name.startswith("cdi.k8s.io/") for name in request["Metadata"]["Config"]["annotations"])


def restarts() -> dict[str, int]:
    """How often each part has been started again."""
    pods = get("pods", "-n", "gpurun")["items"]
    return {
        one["metadata"]["labels"]["app.kubernetes.io/component"]: one["status"]["containerStatuses"][0]["restartCount"]
        for one in pods
    }


def said() -> str:
    return kubectl("-n", "gpurun", "describe", "pods")[-4000:]


def test_what_a_file_of_the_nodes_own_says(tmp_path: Path, node_file: None) -> None:
    """The chart passes no argument that no value says; a value goes before the file."""
    plugin: Object = {"config": {"plain": PLAIN, "own": OWN}, "defaultConfig": "plain"}
    off = {"enabled": False}
    values: Object = {"devicePlugin": plugin, "uninstall": off, "metrics": off, "namespace": {"create": True}}
    try:
        with deployed(chart(values, tmp_path)):
            until(lambda: offered("nvidia.com/gpu") == (2, 2), said)
            until(lambda: labels().get("gpu.replicas") == "1" and "mig.strategy" not in labels(), labels)
            assert len(has(run(pod("plain", gpus=1))[0])) == 1 and not asked_by_annotation("plain")
            gone()
            kubectl("label", "node", NODE, f"{CONFIG_LABEL}=own")
            until(lambda: offered("nvidia.com/gpu.shared") == (4, 4), said)
            until(lambda: offered("nvidia.com/gpu")[1] == 0)
            until(lambda: (labels().get("mig.strategy"), labels().get("gpu.replicas")) == ("mixed", "2"), labels)
            assert labels()["gpu.sharing-strategy"] == "time-slicing"
            assert len(has(run(pod("own", gpus=1, resource="nvidia.com/gpu.shared"))[0])) == 1 and asked_by_annotation("own")
            gone()
            plugin |= {"migStrategy": "none", "deviceListStrategy": ["cdi-cri"]}
            apply(chart(values, tmp_path))
            until(lambda: "mig.strategy" not in labels() and labels().get("gpu.replicas") == "2", labels)
            until(lambda: offered("nvidia.com/gpu.shared") == (4, 4), said)
            assert len(has(run(pod("both", gpus=1, resource="nvidia.com/gpu.shared"))[0])) == 1
            assert not asked_by_annotation("both")
    finally:
        kubectl("label", "node", NODE, f"{CONFIG_LABEL}-")


@pytest.mark.parametrize("name", ["gpurun.yaml", "gpurun-dra.yaml"])
def test_nothing_is_left_when_no_pod_is(name: str, node_file: None) -> None:
    before = list(files())
    with deployed(with_driver_root(manifests(name))):
        until(lambda: labels().get("gpu.count") == "2", said)
        if name == "gpurun.yaml":
            until(lambda: offered("nvidia.com/gpu") == (2, 2), said)
            assert len(has(run(pod("one", gpus=1))[0])) == 1
        else:
            kubectl("create", "-f", "-", given=claim())
            assert len(has(run(pod("one", claim="one-gpu"))[0])) == 1
            until(lambda: Path("/var/lib/kubelet/plugins/gpu.nvidia.com/checkpoint.json").exists())
        gone()
        assert len(left()) > len(before) + 10
    uninstall = manifests("gpurun-uninstall.yaml")
    with deployed(uninstall):
        pass
    until(lambda: left() == before, lambda: sorted(set(left()) ^ set(before)))


def test_parts_without_privileges_and_a_driver_that_comes_late(node_file: None) -> None:
    """They are ready on a node without a GPU; when there is one they are started again, and have it."""
    mounts = [(DRIVER / "proc" / name, Path("/proc") / name) for name in ("driver", "devices")]
    for _, at in mounts:
        subprocess.run(["umount", at], check=True)
    there = False
    try:
        with deployed(with_driver_root(manifests("gpurun.yaml"))):
            assert offered("nvidia.com/gpu")[1] == 0
            until(lambda: labels().get("gpu.count") in (None, "0"), labels)
            until(lambda: set(restarts()) == {"install", *LOOKING})
            began = restarts()
            for part in LOOKING:
                script = "cat /proc/1/status; touch /written; touch /host/written; ls /dev/nvidiactl; true"
                shown = kubectl("-n", "gpurun", "exec", f"daemonset/gpurun-{part}", "--", "sh", "-c", script)
                assert "CapEff:\t0000000000000000" in shown and "NoNewPrivs:\t1" in shown and "Seccomp:\t2" in shown
                assert "nvidiactl" not in shown
            assert not Path("/written").exists()
            for source, at in mounts:
                subprocess.run(["mount", "--bind", source, at], check=True)
            there = True
            until(lambda: offered("nvidia.com/gpu") == (2, 2), said, timeout_s=180)
            until(lambda: labels().get("gpu.count") == "2" and labels().get("gpu.memory") == "81920", labels)
            assert len(has(run(pod("one", gpus=1))[0])) == 1
            until(lambda: "DCGM_FI_DEV_POWER_USAGE{" in figures(), said)
            assert restarts() == {part: count + (part in LOOKING) for part, count in began.items()}
            for part in LOOKING:
                assert "came after it" in kubectl("-n", "gpurun", "logs", "--previous", f"daemonset/gpurun-{part}")
            shown = kubectl("-n", "gpurun", "exec", "daemonset/gpurun-labels", "--", "grep", "CapEff", "/proc/1/status")
            assert shown == "CapEff:\t0000000000000000\n"
    finally:
        if not there:
            for source, at in mounts:
                subprocess.run(["mount", "--bind", source, at], check=True)
