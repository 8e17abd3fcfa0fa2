"""What the pods of the chart may do: privileges, accounts and roles."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.kubernetes.charts import (
    MPS,
    OBJECTS,
    SHARED,
    VARIANTS,
    Object,
    needs_helm,
    pods,
    rendered,
)


@needs_helm
def test_parts_that_look_at_gpus_leave_while_they_are_divided(tmp_path: Path) -> None:
    """The label that the MIG manager sets keeps them off the node, and no other part."""
    from gpurun.kubernetes.mig_manager import PARTS, PAUSED

    found = pods(rendered(VARIANTS["mig by a label"], tmp_path))
    away = {name.removeprefix("gpurun-") for name, pod in found.items() if PAUSED in str(pod.get("affinity"))}
    assert away == {"device-plugin", "labels", "metrics"} and away < set(PARTS)
    assert not any(PAUSED in str(pod) for pod in pods(rendered({}, tmp_path)).values())


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
