"""The Helm chart and the plain manifests, which are the same: taken by helm, the API's models and gpurun's own parser."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from gpurun.cli.parse import parse
from gpurun.commands.kubernetes_options import config_changes
from gpurun.gpu.nvidia.mig.config import read_configs
from gpurun.kubernetes.config import PluginConfig
from gpurun.kubernetes.config_file import parse as parse_config
from gpurun.kubernetes.config_source import ConfigSource
from gpurun.metrics.counters import counters
from gpurun.metrics.fields import FIELDS, LABEL_FIELDS
from gpurun.record import replace
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


@needs_helm
def test_parts_that_look_at_gpus_leave_while_they_are_divided(tmp_path: Path) -> None:
    """The label that the MIG manager sets keeps them off the node, and no other part."""
    from gpurun.kubernetes.mig_manager import PARTS, PAUSED

    found = pods(rendered(VARIANTS["mig by a label"], tmp_path))
    away = {name.removeprefix("gpurun-") for name, pod in found.items() if PAUSED in str(pod.get("affinity"))}
    assert away == {"device-plugin", "labels", "metrics"} and away < set(PARTS)
    assert not any(PAUSED in str(pod) for pod in pods(rendered({}, tmp_path)).values())


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


@needs_helm
def test_lint(tmp_path: Path) -> None:
    for number, values in enumerate(VARIANTS.values()):
        file = tmp_path / f"{number}.yaml"
        file.write_text(yaml.safe_dump(values))
        done = helm("lint", "--strict", CHART, "--values", file, check=False)
        assert done.returncode == 0, done.stdout
        assert "WARNING" not in done.stdout


@needs_helm
@pytest.mark.parametrize("variant", VARIANTS)
def test_variants(variant: str, tmp_path: Path) -> None:
    check(rendered(VARIANTS[variant], tmp_path))


ALL, LOOKING = {"device-plugin", "labels", "metrics"}, {"labels", "metrics"}


@needs_helm
@pytest.mark.parametrize(
    ("values", "wanted"),
    [
        ({}, ALL),
        ({"privileged": False, "installer": {"enabled": False}}, ALL),
        ({"privileged": False, "devicePlugin": {"config": {"mps": MPS}}}, ALL),
        ({"privileged": True}, set()),
        ({"driverRoot": "/"}, ALL),
        ({"driverRoot": "/run/nvidia/driver"}, set()),
        ({"runtimeClass": {"enabled": False}}, set()),
        ({"installer": {"enabled": False}}, set()),
        ({"installer": {"engine": "none"}}, set()),
        ({"installer": {"engine": "crio"}}, ALL),
        ({"devicePlugin": {"migStrategy": "mixed"}}, set()),
        ({"devicePlugin": {"migStrategy": "none", "config": {"one": SHARED}}}, ALL),
        ({"devicePlugin": {"config": {"one": SHARED, "two": MPS}}}, LOOKING),
        ({"devicePlugin": {"config": {"json": '{"version": "v1", "sharing": {"mps": {"resources": []}}}'}}}, LOOKING),
        ({"devicePlugin": {"config": {"root": "version: v1\nflags: {mpsRoot: /srv}\n"}}}, ALL),
        ({"devicePlugin": {"config": {"mig": "version: v1\nflags:\n  migStrategy: single\n"}}}, set()),
        ({"devicePlugin": {"config": {"root": "version: v1\nflags: {nvidiaDriverRoot: /srv}\n"}}}, set()),
        ({"devicePlugin": {"enabled": False}, "dra": {"enabled": True}}, LOOKING),
    ],
)
def test_who_only_looks_at_gpus_has_no_privilege_where_it_needs_none(
    values: Object, wanted: set[str], tmp_path: Path
) -> None:
    found = pods(rendered(values, tmp_path))
    without = set()
    for name, pod in found.items():
        (container,) = pod["containers"]
        context = container["securityContext"]
        assert context["readOnlyRootFilesystem"] is True
        asks = {"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"} in container["env"]
        assert asks is ({"name": "AMD_VISIBLE_DEVICES", "value": "all"} in container["env"])
        assert asks is ({"name": "GPURUN_GPU_OPTIONAL", "value": "true"} in container["env"])
        own_dev = "dev" not in {volume["name"] for volume in pod["volumes"]}
        if context.get("privileged"):
            assert own_dev is ("install" in name)
            assert "runtimeClassName" not in pod and not asks
            continue
        without.add(name.removeprefix("gpurun-"))
        assert context["capabilities"] == {"drop": ["ALL"]} and context["allowPrivilegeEscalation"] is False
        assert "hostPID" not in pod and pod["runtimeClassName"] == "gpurun" and asks and own_dev
    assert without == wanted


@needs_helm
def test_helm_takes_everything_from_the_nodes_when_the_release_is_gone(tmp_path: Path) -> None:
    found = rendered({"labels": {"nodeFeatureDiscovery": True}, "uninstall": {"timeoutSeconds": 60}}, tmp_path)
    hooks = [o for o in found if "helm.sh/hook" in (o["metadata"].get("annotations") or {})]
    order = {(o["kind"], o["metadata"]["name"]): int(o["metadata"]["annotations"]["helm.sh/hook-weight"]) for o in hooks}
    account, wait = ("ServiceAccount", "gpurun-uninstall"), ("Job", "gpurun-uninstall-wait")
    assert order[account] < order["DaemonSet", "gpurun-uninstall"] < order[wait]
    assert {o["metadata"]["annotations"]["helm.sh/hook"] for o in hooks} == {"post-delete"}
    (job,) = [o for o in found if o["kind"] == "Job"]
    (container,) = job["spec"]["template"]["spec"]["containers"]
    assert (
        parse(container["args"]).option("daemonset") == "gpurun/gpurun-uninstall"
        and job["spec"]["activeDeadlineSeconds"] == 60
    )
    assert not [o for o in hooks if o["kind"] == "ClusterRole"], "Node Feature Discovery takes its labels away itself"
    assert [o["metadata"]["name"] for o in rendered({}, tmp_path) if o["kind"] == "ClusterRole"].count(
        "gpurun-uninstall"
    ) == 1
    assert not [o for o in rendered({"uninstall": {"enabled": False}}, tmp_path) if "uninstall" in o["metadata"]["name"]]
    (namespace,) = [o for o in rendered({"namespace": {"create": True}}, tmp_path) if o["kind"] == "Namespace"]
    assert namespace["metadata"]["annotations"] == {"helm.sh/resource-policy": "keep"}, "the hooks are in it"


def test_the_manifest_that_takes_everything_back() -> None:
    found = documents((PLAIN / "gpurun-uninstall.yaml").read_text())
    check(found)
    assert set(pods(found)) == {"gpurun-uninstall"} and not [o for o in found if "annotations" in o["metadata"]]
    invocation = parse(pods(found)["gpurun-uninstall"]["containers"][0]["args"])
    assert invocation.flag("wait") and invocation.flag("patch-node")


@needs_helm
def test_an_older_cluster_gets_the_older_version_of_resources(tmp_path: Path) -> None:
    versions = {"1.33.0": "resource.k8s.io/v1beta2", "1.34.1": "resource.k8s.io/v1", "v1.36.0-rc.1": "resource.k8s.io/v1"}
    for kubernetes, wanted in versions.items():
        found = [one for one in rendered(VARIANTS["dra"], tmp_path, kubernetes) if one["kind"] == "DeviceClass"]
        assert {one["apiVersion"] for one in found} == {wanted} and len(found) == 4


@needs_helm
def test_the_makers_that_are_meant_are_told_to_each_part(tmp_path: Path) -> None:
    for values in (VARIANTS["dra"], {}):
        found = rendered(values | {"vendors": ["nvidia", "amd"]}, tmp_path)
        looking = [p for part, p in pods(found).items() if part.endswith(("device-plugin", "dra-driver", "labels"))]
        assert len(looking) == 2
        assert all("--vendors=nvidia,amd" in pod["containers"][0]["args"] for pod in looking)
        classes = {one["metadata"]["name"] for one in found if one["kind"] == "DeviceClass"}
        assert classes == ({"gpu.nvidia.com", "mig.nvidia.com", "gpu.amd.com"} if values else set())


@needs_helm
@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"devicePlugin": {"migstrategy": "mixed"}}, "migstrategy"),
        ({"devicePlugin": {"migStrategy": "some"}}, "migStrategy"),
        ({"installer": {"restartMode": "reboot"}}, "restartMode"),
        ({"dra": {"enabled": True}}, "devicePlugin.enabled and dra.enabled: one of them"),
        ({"privileged": False, "driverRoot": "/run/nvidia/driver"}, "privileged: false needs driverRoot /"),
        ({"privileged": False, "runtimeClass": {"enabled": False}}, "privileged: false needs runtimeClass.enabled"),
    ],
)
def test_what_is_misspelt_is_refused(values: Object, said: str, tmp_path: Path) -> None:
    file = tmp_path / "values.yaml"
    file.write_text(yaml.safe_dump(values))
    done = helm("template", "gpurun", CHART, "--values", file, check=False)
    assert done.returncode != 0 and said in done.stderr


@needs_helm
def test_the_plain_manifests_are_the_charts(tmp_path: Path) -> None:
    made = subprocess.run([REPOSITORY / "tools/manifests", tmp_path], capture_output=True, text=True, timeout=300)
    assert made.returncode == 0, made.stderr
    assert {p.name: p.read_text() for p in tmp_path.iterdir()} == {p.name: p.read_text() for p in PLAIN.iterdir()}, (
        "`make manifests` writes deploy/kubernetes anew"
    )


@pytest.mark.parametrize("name", ["gpurun.yaml", "gpurun-dra.yaml"])
def test_the_plain_manifests(name: str) -> None:
    found = documents((PLAIN / name).read_text())
    check(found)
    (namespace,) = [one for one in found if one["kind"] == "Namespace"]
    assert namespace["metadata"]["labels"]["pod-security.kubernetes.io/enforce"] == "privileged"
    assert found[0] is namespace, "kubectl makes them in this order"
    parts = {"install", "labels", "metrics", "dra-driver" if "dra" in name else "device-plugin"}
    assert set(pods(found)) == {f"gpurun-{part}" for part in parts}
    (runtime_class,) = [one for one in found if one["kind"] == "RuntimeClass"]
    install = parse(pods(found)["gpurun-install"]["containers"][0]["args"])
    assert runtime_class["handler"] == install.option("runtime-name")


def test_the_images_are_one_and_the_version_is_the_programs() -> None:
    found = documents((PLAIN / "gpurun.yaml").read_text()) + documents((PLAIN / "gpurun-dra.yaml").read_text())
    (image,) = {container["image"] for pod in pods(found).values() for container in pod["containers"]}
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    changelog = next(line for line in (REPOSITORY / "CHANGELOG.md").read_text().splitlines() if line.startswith("## 0."))
    assert chart["appVersion"] == changelog.split()[1] == image.rpartition(":")[2]


FILE = """version: v1
flags:
  migStrategy: mixed
  failOnInitError: true
  nvidiaDriverRoot: /srv/driver
  plugin: {deviceListStrategy: [envvar], deviceIDStrategy: index, passDeviceSpecs: true}
  gfd: {sleepInterval: 5m}
sharing: {timeSlicing: {resources: [{name: nvidia.com/gpu, replicas: 4}]}}
"""


def configured(part: str, values: Object, directory: Path) -> PluginConfig:
    """What the *part* of the chart with *values* does, from its arguments and the file of its config map."""
    found = rendered(values, directory)
    (container,) = pods(found)[f"gpurun-{part}"]["containers"]
    invocation = parse(container["args"])
    data: dict[str, str] = next((one["data"] for one in found if one["kind"] == "ConfigMap"), {})
    path = ""
    if invocation.option("config-dir"):
        path = str(directory / "file")
        Path(path).write_text(data[invocation.option("default-config")])
    base = PluginConfig(fail_on_init_error=False)
    made = ConfigSource(path, {}, config_changes(invocation), base=base)()
    return replace(made, driver_root=invocation.option("driver-root", made.driver_root))


@needs_helm
@pytest.mark.parametrize("part", ["device-plugin", "labels"])
def test_a_configuration_file_has_effect(part: str, tmp_path: Path) -> None:
    """What no value of the chart says is left to the file."""
    values = {"devicePlugin": {"config": {"own": FILE}, "defaultConfig": "own"}}
    assert configured(part, values, tmp_path) == parse_config(FILE, "file")
    assert configured(part, {}, tmp_path) == PluginConfig(fail_on_init_error=False)
    (container,) = pods(rendered(values, tmp_path))["gpurun-labels"]["containers"]
    assert not parse(container["args"]).option("interval"), "the file says how long labels wait"


@needs_helm
def test_a_value_goes_before_the_file(tmp_path: Path) -> None:
    said = {
        "migStrategy": "single", "failOnInitError": False, "deviceListStrategy": ["cdi-cri", "volume-mounts"],
        "deviceIDStrategy": "uuid", "passDeviceSpecs": False,
    }  # fmt: skip
    values = {"devicePlugin": {"config": {"own": FILE}, "defaultConfig": "own"} | said, "driverRoot": "/opt/driver"}
    assert configured("device-plugin", values, tmp_path) == replace(
        parse_config(FILE, "file"), mig_strategy="single", fail_on_init_error=False, id_strategy="uuid",
        list_strategies=("cdi-cri", "volume-mounts"), pass_device_specs=False, driver_root="/opt/driver",
    )  # fmt: skip
    assert configured("labels", values, tmp_path).mig_strategy == "single"


@needs_helm
def test_the_labels_account_may_do_what_it_uses(tmp_path: Path) -> None:
    def verbs(values: Object) -> list[str]:
        found = [one for one in rendered(values, tmp_path) if one["kind"] == "ClusterRole"]
        return next((one["rules"][0]["verbs"] for one in found if one["metadata"]["name"] == "gpurun-labels"), [])

    config, nfd = {"config": {"shared": SHARED}}, {"nodeFeatureDiscovery": True}
    assert verbs({}) == ["get", "patch"]
    assert verbs({"devicePlugin": config}) == ["get", "list", "watch", "patch"]
    assert verbs({"devicePlugin": config, "labels": nfd}) == ["get", "list", "watch"]
    assert verbs({"labels": nfd}) == [], "it writes a file"


@needs_helm
@pytest.mark.parametrize(
    "text", [OBJECTS, json.dumps({"flags": {"useNodeFeatureAPI": True}}), '{"flags":\n{"useNodeFeatureAPI" : true}}']
)
def test_the_labels_account_may_write_objects_where_a_file_says_so(text: str, tmp_path: Path) -> None:
    def said(api: bool | None, config: str) -> tuple[list[str], list[str], bool]:
        """(what the role of the namespace is for, the options about objects, whether files can be written)."""
        values = {
            "labels": {"nodeFeatureDiscovery": True, "nodeFeatureAPI": api},
            "devicePlugin": {"config": {"own": config}},
        }
        found = rendered(values, tmp_path)
        roles = [one for one in found if one["kind"] == "Role" and one["metadata"]["name"] == "gpurun-labels"]
        rules = [rule for one in roles for rule in one["rules"]]
        pod = pods(found)["gpurun-labels"]
        options = [word for word in pod["containers"][0]["args"] if word.startswith(("--use-node", "--daemonset"))]
        return [rule["resources"][0] for rule in rules], options, any(one["name"] == "features" for one in pod["volumes"])

    objects, daemonset = ["nodefeatures", "daemonsets"], "--daemonset=gpurun/gpurun-labels"
    assert said(None, text) == (objects, [daemonset], True)
    assert said(None, SHARED) == ([], [], True)
    assert said(True, SHARED) == (objects, ["--use-node-feature-api=true", daemonset], False)
    assert said(False, text) == ([], ["--use-node-feature-api=false"], True)


@needs_helm
def test_the_role_of_the_device_plugin_is_what_it_uses(tmp_path: Path) -> None:
    """What it uses is held to by test_deploy.py."""
    found = rendered(VARIANTS["mig and sharing"], tmp_path)
    (role,) = [o for o in found if o["kind"] == "ClusterRole" and o["metadata"]["name"] == "gpurun-device-plugin"]
    assert role["rules"] == [{"apiGroups": [""], "resources": ["nodes"], "verbs": ["get", "list", "watch"]}]
