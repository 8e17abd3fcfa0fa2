"""The Helm chart and the plain manifests, which are the same: taken by helm, the API's models and gpurun's own parser."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
import yaml

from gpurun.cli.parse import parse
from tests.kubernetes.charts import (
    CHART,
    PLAIN,
    REPOSITORY,
    VARIANTS,
    Object,
    check,
    documents,
    helm,
    needs_helm,
    pods,
    rendered,
)


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
