"""The manifests on a real Kubernetes, with the image of their pods: from an empty node to a pod with a GPU, and back."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from tests.kubernetes import real
from tests.kubernetes.driver_container import programs
from tests.kubernetes.real import NODE, Object, get, gone, has, kubectl, manifests, offered, pod, run, until

DRIVER = Path("/run/nvidia/driver")
PARTS = ("install", "labels", "metrics")


def image_is_there() -> bool:
    wanted = next(one for one in manifests("gpurun.yaml") if one["kind"] == "DaemonSet")
    name = wanted["spec"]["template"]["spec"]["containers"][0]["image"]
    return any(name in image["names"] for image in get("node", NODE)["status"].get("images") or ())


pytestmark = [
    pytest.mark.skipif(not real.is_here(), reason=real.WHY_NOT),
    pytest.mark.skipif(not DRIVER.exists(), reason=f"needs a simulated driver in {DRIVER}: kubernetes-bed --gpus 2"),
]


def files() -> dict[str, bytes | None]:
    """What the installer may write on the node."""
    found: dict[str, bytes | None] = {}
    for directory in map(Path, ("/etc/containerd", "/opt/gpurun", "/var/lib/gpurun")):
        found |= {str(path): path.read_bytes() if path.is_file() else None for path in directory.rglob("*")}
    return found


def handlers() -> set[str]:
    return {str(one["name"]) for one in get("node", NODE)["status"].get("runtimeHandlers") or ()}


def with_driver_root(objects: list[Object]) -> list[Object]:
    """The *objects* of a manifest with the place of the driver in the arguments of those that look for it."""
    for one in objects:
        if one["kind"] == "DaemonSet" and "install" not in one["metadata"]["name"]:
            one["spec"]["template"]["spec"]["containers"][0]["args"].append(f"--driver-root={DRIVER}")
    return objects


@pytest.fixture
def at_rest() -> None:
    """No pod of an earlier test is about to change the node: `kubectl delete` does not wait for those of a DaemonSet."""
    if not image_is_there():
        pytest.skip("needs the image of the pods on the node: make image; kubernetes-bed --image FILE")
    until(lambda: not get("pods", "-n", "gpurun")["items"], lambda: get("pods", "-n", "gpurun")["items"], timeout_s=240)


@pytest.fixture
def node_file(at_rest: None) -> Iterator[None]:
    """The site's file of a node whose driver a container brings, as NVIDIA's operator writes it."""
    path = Path("/etc/nvidia-container-runtime/config.toml")
    path.write_text(f'[nvidia-container-cli]\nroot = "{DRIVER}"\n')
    yield
    path.unlink()


@pytest.fixture(params=["gpurun.yaml", "gpurun-dra.yaml"])
def applied(request: pytest.FixtureRequest, node_file: None) -> Iterator[str]:
    """A manifest whose pods all run; afterwards the node is as it was."""
    before = files()
    objects = with_driver_root(manifests(request.param))
    kubectl("apply", "-f", "-", given=objects)
    names = [one["metadata"]["name"] for one in objects if one["kind"] == "DaemonSet"]
    try:
        for name in names:
            kubectl("-n", "gpurun", "rollout", "status", f"daemonset/{name}", "--timeout=90s")
        yield request.param
        for name in names:
            log = kubectl("-n", "gpurun", "logs", f"daemonset/{name}")
            assert not [line for line in log.splitlines() if "orbidden" in line or "internal error" in line], log
    finally:
        gone()
        kubectl("delete", "resourceclaimtemplates", "--all")
        # But for the namespace: its end can take minutes, half of the longest time that a pod of it may take.
        kubectl("delete", "-f", "-", "--ignore-not-found", given=[one for one in objects if one["kind"] != "Namespace"])
    until(lambda: files() == before, lambda: sorted(set(files()) ^ set(before)))


def daemons() -> list[int]:
    """The PIDs of MPS control daemons on this node."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            words = path.read_bytes().split(b"\0")
            if b"-f" in words and any(word.endswith(b"/nvidia-cuda-mps-control") for word in words):
                found.append(int(path.parent.name))
    return found


def left() -> list[str]:
    """What is on the node of gpurun's."""
    kubelet = Path("/var/lib/kubelet")
    found = [*Path("/run/gpurun/mps").glob("*"), *Path("/var/run/cdi").glob("*nvidia*")]
    for pattern in ("plugins/gpu.nvidia.com/*", "plugins_registry/*nvidia*", "device-plugins/gpurun-*"):
        found += kubelet.glob(pattern)
    paths = [*files(), *map(str, found)]
    return [*paths, *[name for name in get("node", NODE)["metadata"]["labels"] if name.startswith("nvidia.com/")]]


def chart(values: Object, directory: Path) -> list[Object]:
    """The manifests of the chart with *values*, as gpurun prints them."""
    (directory / "values.yaml").write_text(yaml.safe_dump(values))
    words = [sys.executable, "-m", "gpurun", "kubernetes", "manifests", "--values", str(directory / "values.yaml")]
    env = os.environ | {"PYTHONPATH": str(real.REPOSITORY / "src")}
    done = subprocess.run(words, env=env, capture_output=True, check=True, text=True)
    return [one for one in yaml.safe_load_all(done.stdout) if one]


def test_mps_outlives_the_plugin_and_all_is_taken_back_at_the_end(at_rest: None, tmp_path: Path) -> None:
    """NVIDIA's programs are in the driver's root only; a pod runs on while everything is deleted."""
    said, before = programs(DRIVER, True, DRIVER), list(files())
    shared = "version: v1\nsharing: {mps: {resources: [{name: nvidia.com/gpu, replicas: 2}]}}\n"
    values = {
        "driverRoot": str(DRIVER), "devicePlugin": {"config": {"shared": shared}, "defaultConfig": "shared"},
        "uninstall": {"enabled": False}, "metrics": {"enabled": False}, "namespace": {"create": True},
    }  # fmt: skip
    objects = chart(values, tmp_path)
    uninstall = manifests("gpurun-uninstall.yaml")

    def ready(name: str, timeout: str, good: bool = True) -> str:
        return kubectl("-n", "gpurun", "rollout", "status", f"daemonset/{name}", f"--timeout={timeout}", good=good)

    def waits() -> str:
        return kubectl("-n", "gpurun", "logs", "daemonset/gpurun-uninstall")

    def control() -> str:
        return kubectl("exec", "computes", "--", "ls", "-i", "/tmp/nvidia-mps/control")

    kubectl("apply", "-f", "-", given=objects)
    try:
        until(lambda: offered("nvidia.com/gpu") == (4, 4), lambda: kubectl("-n", "gpurun", "describe", "pods")[-3000:])
        until(lambda: get("node", NODE)["metadata"]["labels"].get("nvidia.com/gpu.sharing-strategy") == "mps")
        assert len(has(run(pod("computes", gpus=1))[0])) == 1
        at, began = control(), daemons()
        assert len(began) == 1 and "daemon from the driver's root" in said.read_text()
        kubectl("-n", "gpurun", "rollout", "restart", "daemonset/gpurun-device-plugin")
        ready("gpurun-device-plugin", "120s")
        assert (daemons(), control()) == (began, at), "a rollout changes nothing"
        os.kill(began[0], signal.SIGKILL)
        until(lambda: daemons() not in ([], began) and "/control" in control())
    finally:
        kubectl("delete", "-f", "-", "--ignore-not-found", given=[one for one in objects if one["kind"] != "Namespace"])
    kubectl("apply", "-f", "-", given=uninstall)
    try:
        ready("gpurun-uninstall", "20s", good=False)
        until(lambda: "is needed by" in waits(), waits)
        assert get("pod", "computes")["status"]["phase"] == "Running" and Path("/opt/gpurun/bin/gpurun").exists()
        gone("computes")
        ready("gpurun-uninstall", "120s")
    finally:
        kubectl("delete", "-f", "-", "--ignore-not-found", given=[one for one in uninstall if one["kind"] != "Namespace"])
    assert (left(), daemons()) == (before, [])


def figures() -> str:
    (exporter,) = get("pods", "-n", "gpurun", "-l", "app.kubernetes.io/component=metrics")["items"]
    with urllib.request.urlopen(f"http://{exporter['status']['podIP']}:9400/metrics", timeout=30) as answer:
        return str(answer.read().decode())


def claim() -> Object:
    requests = [{"name": "gpu", "exactly": {"deviceClassName": "gpu.nvidia.com"}}]
    return {
        "apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaimTemplate", "metadata": {"name": "one-gpu"},
        "spec": {"spec": {"devices": {"requests": requests}}},
    }  # fmt: skip


def test_from_an_empty_node_to_a_pod_with_a_gpu(applied: str) -> None:
    assert Path("/opt/gpurun/bin/gpurun").exists()
    until(lambda: "gpurun" in handlers())
    until(lambda: get("node", NODE)["metadata"]["labels"].get("nvidia.com/gpu.count") == "2")
    if applied == "gpurun.yaml":
        until(lambda: offered("nvidia.com/gpu") == (2, 2))
        (said,) = run(pod("gpu", gpus=1))
    else:
        kubectl("create", "-f", "-", given=claim())
        (said,) = run(pod("gpu", claim="one-gpu"))
    assert len(has(said)) == 1
    until(lambda: any('pod="gpu"' in line and f'device="{has(said)[0]}"' in line for line in figures().splitlines()))


def test_a_new_version_of_the_pods_leaves_gpurun_where_it_is(applied: str) -> None:
    program = Path("/opt/gpurun/bin/gpurun")
    until(program.exists)
    at = program.stat().st_ino
    kubectl("-n", "gpurun", "rollout", "restart", "daemonset/gpurun-install")
    kubectl("-n", "gpurun", "rollout", "status", "daemonset/gpurun-install", "--timeout=90s")
    assert program.stat().st_ino == at and "gpurun" in handlers()
