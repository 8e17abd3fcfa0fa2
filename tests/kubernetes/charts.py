"""The chart, rendered by helm, and what can be said of its objects without a cluster."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from gpurun.cli.parse import parse
from gpurun.gpu.nvidia.mig.config import read_configs
from gpurun.kubernetes.config_file import parse as parse_config
from gpurun.metrics.counters import counters
from gpurun.metrics.fields import FIELDS, LABEL_FIELDS
from tests.kubernetes import models

REPOSITORY = Path(__file__).resolve().parents[2]
CHART, PLAIN = REPOSITORY / "charts/gpurun", REPOSITORY / "deploy/kubernetes"
HELM = shutil.which("helm") or shutil.which("helm", path=str(REPOSITORY / ".venv/bin"))
Object = dict[str, Any]

needs_helm = pytest.mark.skipif(HELM is None, reason="needs helm: on PATH, or of the package helm-binary")

SHARED = "version: v1\nsharing: {timeSlicing: {resources: [{name: nvidia.com/gpu, replicas: 4}]}}\n"
MPS = "version: v1\nsharing: {mps: {resources: [{name: nvidia.com/gpu, replicas: 2}]}}\n"
OBJECTS = "version: v1\nflags: {useNodeFeatureAPI: true}\n"
#: Ways in which somebody may want it; each is rendered, checked, and its options parsed.
VARIANTS: dict[str, Object] = {
    "as it is": {},
    "dra": {"devicePlugin": {"enabled": False}, "dra": {"enabled": True}},
    "dra without policy": {"devicePlugin": {"enabled": False}, "dra": {"enabled": True, "admissionPolicy": False}},
    "mig and sharing": {
        "devicePlugin": {
            "migStrategy": "mixed", "config": {"shared": SHARED}, "defaultConfig": "shared", "passDeviceSpecs": True,
            "deviceListStrategy": ["envvar", "cdi-annotations"], "deviceIDStrategy": "index",
        }
    },
    "without privileges": {"privileged": False},
    "with privileges": {"privileged": True},
    "mps": {"devicePlugin": {"config": {"mps": MPS}, "defaultConfig": "mps"}},
    "mig by a label": {
        "migManager": {
            "enabled": True, "withReboot": True, "defaultConfig": "off",
            "config": "version: v1\nmig-configs: {off: [{devices: all, mig-enabled: false}]}\n",
        }
    },
    "mig by what the gpus can have": {"migManager": {"enabled": True, "defaultConfig": "all-balanced"}},
    "labels as objects": {"labels": {"nodeFeatureDiscovery": True, "nodeFeatureAPI": True}},
    "labels as files": {"labels": {"nodeFeatureDiscovery": True}},
    "labels as a file says": {
        "labels": {"nodeFeatureDiscovery": True}, "devicePlugin": {"config": {"own": OBJECTS}, "defaultConfig": "own"}
    },
    "labels as files, whatever a file says": {
        "labels": {"nodeFeatureDiscovery": True, "nodeFeatureAPI": False}, "devicePlugin": {"config": {"own": OBJECTS}}
    },
    "all that a file says too": {
        "devicePlugin": {"migStrategy": "single", "failOnInitError": True, "passDeviceSpecs": False}, "driverRoot": "/",
        "labels": {"interval": 30},
    },
    "crio": {"installer": {"engine": "crio", "restartMode": "systemd", "defaultRuntime": True, "cdi": False}},
    "k3s": {"installer": {"engine": "none"}},
    "places of its own": {
        "installer": {
            "engine": "containerd", "engineConfig": "/srv/containerd/config.toml",
            "engineDropIn": "/srv/containerd/conf.d/gpurun.toml", "engineSocket": "/srv/run/containerd.sock",
            "onExit": "keep", "directory": "/srv/gpurun",
        },
        "kubeletDir": "/srv/kubelet", "driverRoot": "/run/nvidia/driver",
    },
    "only the plugin": {
        "installer": {"enabled": False}, "runtimeClass": {"enabled": False}, "labels": {"enabled": False},
        "metrics": {"enabled": False}, "hookPath": "/usr/local/bin/gpurun",
    },
    "everything else": {
        "image": {"repository": "registry.example/gpurun", "tag": "1.2", "pullSecrets": [{"name": "secret"}]},
        "namespace": {"create": True}, "nodeSelector": {"gpu": "yes"}, "labels": {"nodeFeatureDiscovery": True},
        "metrics": {
            "podUID": True, "podLabels": ["^app$", "example.com/"],
            "webConfigSecret": "gpurun-web", "collectors": "# Clocks\nDCGM_FI_DEV_SM_CLOCK, gauge, SM clock: MHz\n",
            "serviceMonitor": {
                "enabled": True, "labels": {"release": "prometheus"},
                "endpoint": {"scheme": "https", "tlsConfig": {"ca": {"secret": {"name": "ca", "key": "ca.crt"}}}},
            },
        },
        "runtimeClass": {"name": "gpurun-gpu", "nodeSelector": {"gpu": "yes"}, "tolerations": [{"operator": "Exists"}]},
        "podLabels": {"team": "gpu"}, "podAnnotations": {"a": "b"},
        "affinity": {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [{"topologyKey": "zone"}]}},
    },
}  # fmt: skip


def helm(*words: str | Path, check: bool = True) -> subprocess.CompletedProcess[str]:
    assert HELM is not None
    directory = os.environ.get("TMPDIR", "/tmp")
    env = os.environ | {f"HELM_{kind}_HOME": directory for kind in ("CACHE", "CONFIG", "DATA")}
    return subprocess.run([HELM, *map(str, words)], capture_output=True, text=True, check=check, env=env, timeout=300)


def rendered(values: Object, directory: Path, version: str = "1.36.0") -> list[Object]:
    file = directory / "values.yaml"
    file.write_text(yaml.safe_dump(values))
    words = ("template", "gpurun", CHART, "--namespace", "gpurun", "--kube-version", version, "--values", file)
    return documents(helm(*words).stdout)


def documents(text: str) -> list[Object]:
    return [document for document in yaml.safe_load_all(text) if document]


def pods(found: list[Object]) -> dict[str, Object]:
    """DaemonSet → the specification of its pods."""
    return {one["metadata"]["name"]: one["spec"]["template"]["spec"] for one in found if one["kind"] == "DaemonSet"}


def check(found: list[Object]) -> None:
    """Everything that can be said of objects without a cluster."""
    names = [(one["kind"], one["metadata"].get("namespace"), one["metadata"]["name"]) for one in found]
    assert len(set(names)) == len(names)
    assert [p for one in found if one["kind"] not in models.FOREIGN for p in models.problems(one)] == []
    accounts = {one["metadata"]["name"] for one in found if one["kind"] == "ServiceAccount"}
    bound = {one["subjects"][0]["name"]: one for one in found if one["kind"] in ("ClusterRoleBinding", "RoleBinding")}
    for one in bound.values():
        assert (one["roleRef"]["kind"], None if "Cluster" in one["kind"] else "gpurun", one["roleRef"]["name"]) in names
    for name, pod in pods(found).items():
        assert pod["serviceAccountName"] in accounts
        # A token only for those who may do something with it, and they all have one.
        assert pod["automountServiceAccountToken"] == (pod["serviceAccountName"] in bound), name
        (container,) = pod["containers"]
        invocation = parse(container["args"])
        assert invocation.command in ("kubernetes", "metrics")
        volumes, mounts = {v["name"] for v in pod["volumes"]}, [m["name"] for m in container["volumeMounts"]]
        assert volumes == set(mounts) and len(mounts) == len(set(mounts))
        inside = [mount["mountPath"] for mount in container["volumeMounts"]]
        # Who works with the node's root takes paths of the node.
        for option in ("host-root", *(() if "uninstall-node" in container["args"] else ("kubelet-dir", "config-dir"))):
            value = invocation.option(option)
            assert not value or any(path == value or path.startswith(f"{value}/") for path in inside), option
    for one in found:
        if one["kind"] == "ConfigMap" and one["metadata"]["name"] == "gpurun-metrics":
            assert counters(one["data"]["counters.csv"].encode(), "f", FIELDS, LABEL_FIELDS).metrics
        elif one["kind"] == "ConfigMap" and one["metadata"]["name"] == "gpurun-mig-manager":
            assert list(read_configs(one["data"]["config.yaml"].encode(), "f")) == ["off"]
        elif one["kind"] == "ConfigMap":
            assert all(not parse_config(text, name).warnings for name, text in one["data"].items())
