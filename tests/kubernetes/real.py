"""A real cluster for tests: kubectl, pods on this node, and gpurun's programs with the manifests' rights."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml

REPOSITORY = Path(__file__).resolve().parents[2]
MANIFESTS = REPOSITORY / "deploy/kubernetes"
NODE = os.environ.get("NODE_NAME", "")
IMAGE = os.environ.get("TEST_IMAGE", "docker.io/library/busybox:1")
WHY_NOT = "needs root on the node NODE_NAME of a cluster (KUBECONFIG) and kubectl: tests/beds/kubernetes-bed"

#: The plain manifests that have parts of gpurun.
ROLES = ("gpurun-dra.yaml", "gpurun.yaml")

Object = dict[str, Any]


def is_here() -> bool:
    return bool(NODE and os.environ.get("KUBECONFIG") and shutil.which("kubectl") and os.geteuid() == 0)


def kubectl(*words: str, given: object = None, good: bool = True) -> str:
    """What kubectl says; *given* is an object, or several, on its standard input."""
    text = yaml.safe_dump_all(given if isinstance(given, list) else [given]) if given is not None else None
    done = subprocess.run(["kubectl", *words], input=text, capture_output=True, text=True, timeout=300)
    assert (done.returncode == 0) is good, f"kubectl {' '.join(words)}: {done.stdout}{done.stderr}"
    return done.stdout if good else done.stderr


def get(*words: str) -> Any:
    return json.loads(kubectl("get", *words, "-o", "json"))


def until(what: Callable[[], Any], said: Callable[[], object] = lambda: "", timeout_s: float = 90.0) -> Any:
    deadline = time.monotonic() + timeout_s
    while not (answer := what()):
        assert time.monotonic() < deadline, f"not within {timeout_s:g} s: {said()}"
        time.sleep(0.3)
    return answer


def manifests(name: str, *leave_out: str) -> list[Object]:
    """The objects of a plain manifest but for some kinds."""
    objects = yaml.safe_load_all((MANIFESTS / name).read_text())
    return [one for one in objects if one and one["kind"] not in leave_out]


def offered(resource: str) -> tuple[int, int]:
    """What the node has of *resource*, and what of it pods may have."""
    status = get("node", NODE)["status"]
    return int(status["capacity"].get(resource, 0)), int(status["allocatable"].get(resource, 0))


def pod(name: str, gpus: int = 0, claim: str = "", resource: str = "nvidia.com/gpu") -> Object:
    """A pod for gpurun that says what it has got and stays."""
    container: Object = {
        "name": "main", "image": IMAGE, "command": [
            "sh", "-c", "ls /dev | grep -E '^nvidia[0-9]'; env | grep -E ^NVIDIA_VISIBLE; for node in /dev/nvidia[0-9]; do "
            "cat $node; done; echo end; sleep 1000"],
    }  # fmt: skip
    spec: Object = {
        "runtimeClassName": "gpurun", "restartPolicy": "Never", "terminationGracePeriodSeconds": 1,
        "nodeSelector": {"kubernetes.io/hostname": NODE}, "containers": [container],
    }  # fmt: skip
    if gpus:
        container["resources"] = {"limits": {resource: gpus}}
    if claim:
        container["resources"] = {"claims": [{"name": "gpu"}]}
        spec["resourceClaims"] = [{"name": "gpu", "resourceClaimTemplateName": claim}]
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "labels": {"test": "gpurun"}}, "spec": spec}


def run(*pods: Object, namespace: str = "default") -> list[str]:
    """Make *pods*, and wait until they have said what they have; that."""
    kubectl("-n", namespace, "create", "-f", "-", given=list(pods))
    names = [str(one["metadata"]["name"]) for one in pods]

    def said(name: str) -> str:
        done = subprocess.run(["kubectl", "-n", namespace, "logs", name], capture_output=True, text=True)
        return done.stdout if "end\n" in done.stdout else ""

    def why(name: str) -> str:
        return kubectl("-n", namespace, "describe", "pod", name)[-1500:]

    return [until(lambda name=name: said(name), lambda name=name: why(name)) for name in names]  # type: ignore[misc]


def has(said: str) -> list[str]:
    """The GPUs' nodes in a pod that has said so."""
    return [line for line in said.splitlines() if line.startswith("nvidia")]


def gone(*names: str) -> None:
    kubectl("delete", "pod", *(names or ("-l", "test=gpurun")), "--ignore-not-found", "--wait")


def account(directory: Path, name: str) -> Path:
    """A kubeconfig of the service account *name* of the manifests, bound to this node as that of a pod is."""
    words = ("--bound-object-kind", "Node", "--bound-object-name", NODE)
    token = kubectl("-n", "gpurun", "create", "token", name, *words).strip()
    document = json.loads(kubectl("config", "view", "--raw", "--flatten", "--minify", "-o", "json"))
    document["users"][0]["user"] = {"token": token}
    path = directory / f"{name}.kubeconfig"
    path.write_text(json.dumps(document))
    return path


class Program:
    """One of gpurun's programs on this node: a process instead of a pod."""

    def __init__(self, directory: Path, *words: str, env: dict[str, str]) -> None:
        self.log = directory / f"{words[-1] if len(words) == 1 else words[1]}.log"
        self._words = [sys.executable, "-m", "gpurun", *words]
        self._env = os.environ | {"PYTHONPATH": str(REPOSITORY / "src"), "NODE_NAME": NODE} | env
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        with open(self.log, "ab") as log:
            self._process = subprocess.Popen(self._words, env=self._env, stdout=log, stderr=log)

    def stop(self) -> None:
        if self._process is not None:
            self._process.terminate()
            code = self._process.wait(60)
            self._process = None
            assert code == 0 and "Traceback" not in self.said(), self.said()

    def said(self) -> str:
        return self.log.read_text()
