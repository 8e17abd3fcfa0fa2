"""The manifests before a real API server, and what it lets each part's account change."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.kubernetes import models, real
from tests.kubernetes.charts import VARIANTS, needs_helm, rendered
from tests.kubernetes.real import NODE, ROLES, Program, account, get, kubectl, manifests, until
from tests.kubernetes.real_parts import driver

pytestmark = pytest.mark.skipif(not real.is_here(), reason=real.WHY_NOT)


@pytest.mark.parametrize("name", ROLES)
def test_the_api_server_takes_the_manifests(name: str, rights: None) -> None:
    said = kubectl("apply", "-f", "-", "--dry-run=server", "--validate=strict", given=manifests(name))
    assert said.count("(server dry run)") == len(manifests(name))


@needs_helm
@pytest.mark.parametrize("variant", VARIANTS)
def test_the_api_server_takes_each_variant_of_the_chart(variant: str, rights: None, directory: Path) -> None:
    objects = [one for one in rendered(VARIANTS[variant], directory) if one["kind"] not in models.FOREIGN]
    said = kubectl("apply", "-f", "-", "--dry-run=server", "--validate=strict", given=objects)
    assert said.count("(server dry run)") == len(objects)


def test_the_policies_are_well_typed(rights: None) -> None:
    policies = get("validatingadmissionpolicies")["items"]
    mine = {one["metadata"]["name"]: one for one in policies if one["metadata"]["name"].startswith("gpurun-")}
    assert set(mine) == {"gpurun-labels-own-node", "gpurun-dra-driver-own-node", "gpurun-gpu-config"}
    for one in mine.values():
        assert not one["status"]["typeChecking"].get("expressionWarnings")


@pytest.mark.parametrize("part", ["labels", "dra-driver"])
def test_each_part_is_kept_to_its_own_node(part: str, rights: None, another: str, directory: Path) -> None:
    def change(node: str, *words: str, good: bool) -> str:
        if part == "labels":
            label = f"nvidia.com/gpurun-test=n{len(words[1])}"
            return kubectl(*words, "label", "node", node, label, "--overwrite", good=good)
        slice_ = {
            "apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice", "metadata": {"name": f"test-{node}"},
            "spec": {"driver": "test.gpurun", "nodeName": node, "devices": [{"name": "a"}],
                     "pool": {"name": node, "generation": 1, "resourceSliceCount": 1}},
        }  # fmt: skip
        return kubectl(*words, "create", "-f", "-", given=slice_, good=good)

    bound = ("--kubeconfig", str(account(directory, f"gpurun-{part}")))
    change(NODE, *bound, good=True)
    if part == "dra-driver":
        kubectl(*bound, "delete", "resourceslice", f"test-{NODE}")
    said = change(another, *bound, good=False)
    assert f"a pod on node {NODE} may not change what is of node another" in said and "orbidden" in said
    # A token that somebody has made without a pod or a node.
    token = kubectl("-n", "gpurun", "create", "token", f"gpurun-{part}").strip()
    text = Path(bound[1]).read_text()
    loose = directory / "loose"
    loose.write_text(text.replace(text.partition('"token": "')[2].partition('"')[0], token))
    assert "not bound to a pod on a node" in change(NODE, "--kubeconfig", str(loose), good=False)
    # Of everything else they have nothing.
    assert 'cannot list resource "secrets"' in kubectl(*bound, "get", "secrets", "-A", good=False)


@pytest.mark.parametrize(
    ("patch", "said"),
    [
        ({"metadata": {"labels": {"node-restriction.kubernetes.io/x": "y"}}}, "gpu.intel.com/, and no others"),
        ({"metadata": {"labels": {"node-role.kubernetes.io/control-plane": ""}}}, "gpu.intel.com/, and no others"),
        ({"metadata": {"labels": {"kubernetes.io/hostname": "another"}}}, "gpu.intel.com/, and no others"),
        ({"metadata": {"labels": {"kubernetes.io/os": None}}}, "gpu.intel.com/, and no others"),
        ({"metadata": {"labels": {"xnvidia.com/a": "b"}}}, "gpu.intel.com/, and no others"),
        ({"metadata": {"labels": {"amd.com/a": "b"}}}, "gpu.intel.com/, and no others"),
        ({"spec": {"taints": [{"key": "a", "effect": "NoExecute"}]}}, "labels of a node, and nothing else"),
        ({"spec": {"unschedulable": True}}, "labels of a node, and nothing else"),
        ({"metadata": {"annotations": {"a": "b"}}}, "labels of a node, and nothing else"),
        ({"metadata": {"finalizers": ["example.com/a"]}}, "labels of a node, and nothing else"),
        ({"metadata": {"labels": {"nvidia.com/gpurun-test": "y"}}}, ""),
        ({"metadata": {"labels": {"nvidia.com/gpurun-test": None}}}, ""),
    ],
)
def test_the_labels_account_changes_its_own_labels_alone(
    patch: dict[str, Any], said: str, rights: None, directory: Path
) -> None:
    bound = ("--kubeconfig", str(account(directory, "gpurun-labels")))
    words = (*bound, "patch", "node", NODE, "--type", "merge", "--patch", json.dumps(patch))
    assert said in kubectl(*words, good=not said)


def test_labels_at_the_node(rights: None, directory: Path) -> None:
    made = driver(directory)
    config = str(account(directory, "gpurun-labels"))
    program = Program(directory, "kubernetes", "labels", "--patch-node", "--kubeconfig", config, env=made.env)
    program.start()
    labels = until(
        lambda: (found := get("node", NODE)["metadata"]["labels"]).get("nvidia.com/gpu.count") and found, program.said
    )
    program.stop()
    assert labels["nvidia.com/gpu.count"] == "2" and labels["nvidia.com/gpu.memory"] == "81920"
    assert labels["nvidia.com/cuda.driver-version.full"] == "999.88.77"
