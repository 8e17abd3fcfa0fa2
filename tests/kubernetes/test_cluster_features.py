"""NodeFeature objects before a real API server: which of them the labels' account may write, and what the program writes.

Node Feature Discovery is not there, only the kind of its objects: who may write them is the API server's matter.
"""

# ruff: noqa: F811 - the fixtures are imported
from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.kubernetes import real
from tests.kubernetes.nodes import NO_NVIDIA
from tests.kubernetes.real import NODE, Object, Program, account, get, kubectl, until
from tests.kubernetes.test_cluster_pods import chart
from tests.simcards import amd
from tests.simdriver import make

pytestmark = pytest.mark.skipif(not real.is_here(), reason=real.WHY_NOT)

_TEXTS = {"type": "object", "additionalProperties": {"type": "string"}}


def _map_of(elements: Object) -> Object:
    one = {"type": "object", "required": ["elements"], "properties": {"elements": elements}}
    return {"type": "object", "additionalProperties": one}


def crd() -> Object:
    """nfd.k8s-sigs.io/v1alpha1 NodeFeature, with the schema that Node Feature Discovery gives it."""
    instance = {"type": "object", "required": ["attributes"], "properties": {"attributes": _TEXTS}}
    features = {
        "flags": _map_of({"type": "object", "additionalProperties": {"type": "object"}}),
        "attributes": _map_of(_TEXTS), "instances": _map_of({"type": "array", "items": instance}),
    }  # fmt: skip
    spec = {"type": "object", "properties": {"features": {"type": "object", "properties": features}, "labels": _TEXTS}}
    schema = {"type": "object", "required": ["spec"], "properties": {"spec": spec}}
    version = {"name": "v1alpha1", "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}}
    names = {"kind": "NodeFeature", "listKind": "NodeFeatureList", "plural": "nodefeatures", "singular": "nodefeature"}
    return {
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": "nodefeatures.nfd.k8s-sigs.io"},
        "spec": {"group": "nfd.k8s-sigs.io", "names": names, "scope": "Namespaced", "versions": [version]},
    }  # fmt: skip


@pytest.fixture(scope="module")
def objects(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """The chart with labels as NodeFeature objects; its pods are for nodes that are not there."""
    kubectl("apply", "-f", "-", given=crd())
    kubectl("wait", "--for=condition=Established", "crd/nodefeatures.nfd.k8s-sigs.io", "--timeout=60s")
    values: Object = {
        "labels": {"nodeFeatureDiscovery": True, "nodeFeatureAPI": True}, "namespace": {"create": True},
        "nodeSelector": {"gpurun.test/none": "yes"}, "uninstall": {"enabled": False},
    }  # fmt: skip
    made = chart(values, tmp_path_factory.mktemp("chart"))
    kubectl("apply", "--validate=strict", "-f", "-", given=made)
    name = "gpurun-labels-own-node"
    until(lambda: "typeChecking" in get("validatingadmissionpolicy", name).get("status", {}))
    assert not get("validatingadmissionpolicy", name)["status"]["typeChecking"].get("expressionWarnings")
    yield
    kubectl("delete", "-f", "-", "--ignore-not-found", given=[one for one in made if one["kind"] != "Namespace"])
    kubectl("delete", "crd", "nodefeatures.nfd.k8s-sigs.io")


@pytest.fixture(scope="module")
def bound(objects: None, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, ...]:
    """kubectl as the labels' account of this node, once the new policy has effect, which takes a moment."""
    made = ("--kubeconfig", str(account(tmp_path_factory.mktemp("account"), "gpurun-labels")))
    words = ["kubectl", *made, "create", "--dry-run=server", "-f", "-"]
    wrong = json.dumps(feature(labels={"a": "b"}))
    until(lambda: "no others" in subprocess.run(words, input=wrong, capture_output=True, text=True).stderr)
    return made


def feature(node: str = NODE, name: str = "", labels: Any = None, **features: Any) -> Object:
    return {
        "apiVersion": "nfd.k8s-sigs.io/v1alpha1", "kind": "NodeFeature",
        "metadata": {
            "name": name or f"nvidia-features-for-{node}", "namespace": "gpurun",
            "labels": {"nfd.node.kubernetes.io/node-name": node},
        },
        "spec": {
            "features": {"flags": {}, "attributes": {}, "instances": {}} | features,
            "labels": {"nvidia.com/gpu.count": "2"} if labels is None else labels,
        },
    }  # fmt: skip


OTHERS = "labels that begin with nvidia.com/, amd.com/gpu., beta.amd.com/gpu. or gpu.intel.com/, and no others"
OWN, ALONE = "the NodeFeature object of its own node, and no others", "labels alone"


@pytest.mark.parametrize(
    ("one", "said"),
    [
        (feature(), ""),
        (feature(labels={}), ""),
        (feature(labels={"amd.com/gpu.vram": "64G", "beta.amd.com/gpu.vram.64G": "8", "gpu.intel.com/family": "Arc"}), ""),
        (feature("another"), "may not change what is of node another"),
        (feature("another", f"nvidia-features-for-{NODE}"), "may not change what is of node another"),
        (feature(NODE, "nvidia-features-for-another"), OWN),
        (feature(NODE, NODE), OWN),
        (feature(labels={"node-role.kubernetes.io/control-plane": ""}), OTHERS),
        (feature(labels={"nvidia.com/gpu.count": "2", "feature.node.kubernetes.io/a": "b"}), OTHERS),
        (feature(labels={"amd.com/a": "b"}), OTHERS),
        (feature(attributes={"kernel.version": {"elements": {"major": "6"}}}), ALONE),
        (feature(flags={"cpu.cpuid": {"elements": {"AVX": {}}}}), ALONE),
        (feature(instances={"pci.device": {"elements": [{"attributes": {"vendor": "10de"}}]}}), ALONE),
    ],
)  # fmt: skip
@pytest.mark.parametrize("verb", ["create", "replace"])
def test_the_account_writes_labels_of_gpus_of_its_own_node(
    verb: str, one: Object, said: str, bound: tuple[str, ...]
) -> None:
    if verb == "replace":
        kubectl("create", "-f", "-", given=feature(one["metadata"]["labels"]["nfd.node.kubernetes.io/node-name"],
                                                   one["metadata"]["name"]))  # fmt: skip
    try:
        answer = kubectl(*bound, verb, "--validate=strict", "-f", "-", given=one, good=not said)
        assert said in answer and (not said or "orbidden" in answer)
    finally:
        kubectl("-n", "gpurun", "delete", "nodefeatures", "--all")


def test_the_account_has_no_other_right(bound: tuple[str, ...], directory: Path) -> None:
    loose = directory / "loose"
    token = kubectl("-n", "gpurun", "create", "token", "gpurun-labels").strip()
    text = Path(bound[1]).read_text()
    loose.write_text(text.replace(text.partition('"token": "')[2].partition('"')[0], token))
    said = kubectl("--kubeconfig", str(loose), "create", "-f", "-", given=feature(), good=False)
    assert "not bound to a pod on a node" in said
    elsewhere = feature()
    elsewhere["metadata"]["namespace"] = "default"
    assert "cannot create resource" in kubectl(*bound, "create", "-f", "-", given=elsewhere, good=False)
    kubectl(*bound, "create", "-f", "-", given=feature())
    name = f"nvidia-features-for-{NODE}"
    for words in (("delete", "nodefeature", name), ("get", "nodefeatures"), ("label", "node", NODE, "nvidia.com/a=b")):
        assert "annot" in kubectl(*bound, "-n", "gpurun", *words, good=False)
    kubectl("-n", "gpurun", "delete", "nodefeature", name)


def test_an_object_as_a_configuration_file_says(objects: None, directory: Path) -> None:
    """It goes with the DaemonSet, by the cluster's own collector of garbage."""
    made = make(directory / "host", NO_NVIDIA)
    amd.beside_nvidia(made.path)
    config = directory / "config.yaml"
    config.write_text("version: v1\nflags: {useNodeFeatureAPI: true}\n")
    words = ("--kubeconfig", str(account(directory, "gpurun-labels")), "--config-file", str(config))
    program = Program(
        directory, "kubernetes", "labels", *words, "--daemonset", "gpurun/gpurun-labels", "--interval", "0.5", env=made.env
    )
    name = f"nvidia-features-for-{NODE}"

    def labels() -> dict[str, str]:
        items = get("-n", "gpurun", "nodefeatures")["items"]
        return next((dict(one["spec"]["labels"]) for one in items if one["metadata"]["name"] == name), {})

    program.start()
    try:
        until(lambda: labels().get("amd.com/gpu.vram") == "64G", program.said)
        (owner,) = get("-n", "gpurun", "nodefeature", name)["metadata"]["ownerReferences"]
        assert owner["uid"] == get("-n", "gpurun", "daemonset", "gpurun-labels")["metadata"]["uid"]
        file = directory / "features"
        config.write_text(f"version: v1\nflags: {{useNodeFeatureAPI: false, gfd: {{outputFile: {file}}}}}\n")
        until(lambda: not labels() and file.exists(), program.said)
        config.write_text("version: v1\nflags: {useNodeFeatureAPI: true}\n")
        until(lambda: labels().get("amd.com/gpu.vram") == "64G" and not file.exists(), program.said)
    finally:
        program.stop()
    daemonset = yaml.safe_load(kubectl("-n", "gpurun", "get", "daemonset", "gpurun-labels", "-o", "yaml"))
    kubectl("-n", "gpurun", "delete", "daemonset", "gpurun-labels")
    until(lambda: not labels())
    kubectl(
        "create", "-f", "-", given=daemonset | {"metadata": {k: daemonset["metadata"][k] for k in ("name", "namespace")}}
    )
