"""Why a pod waits: nodes, claims and selectors, and the command before an API server."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from gpurun.kubernetes.pending.claims import claim_lines
from gpurun.kubernetes.pending.nodes import refusals, requested_resources, resource_lines
from gpurun.kubernetes.pending.selectors import excluded_by
from tests.kubernetes.api_server import ApiServer

GPU = "nvidia.com/gpu"
Object = dict[str, Any]


def pod(name: str, gpus: int = 0, node: str = "", phase: str = "", **spec: Any) -> Object:
    container = {"name": "c", "resources": {"limits": {GPU: str(gpus), "cpu": "1"}}} if gpus else {"name": "c"}
    return {
        "metadata": {"name": name, "namespace": "team"},
        "spec": {"containers": [container]} | ({"nodeName": node} if node else {}) | spec,
        "status": {"phase": phase or ("Running" if node else "Pending")},
    }


def node(name: str, gpus: int = 0, allocatable: int | None = None, labels: Object | None = None, **spec: Any) -> Object:
    count = {GPU: str(gpus)} if gpus else {}
    return {
        "metadata": {"name": name, "labels": labels or {}}, "spec": spec,
        "status": {"capacity": count, "allocatable": count if allocatable is None else {GPU: str(allocatable)}},
    }  # fmt: skip


def test_who_has_the_gpus() -> None:
    nodes = [node("a", 4, 3), node("b", 2), node("c"), node("d")]
    pods = [pod("one", 2, "a"), pod("two", 1, "a"), pod("done", 2, "b", "Succeeded"), pod("other", 0, "b"), pod("me", 2)]
    assert resource_lines(pods[-1], nodes, pods) == [
        "nvidia.com/gpu: 2 wanted",
        "  a: 3 allocatable, 1 unhealthy, 0 free: 2 do not fit",
        "    2 has team/one",
        "    1 has team/two",
        "  b: 2 allocatable, 2 free: it would fit here",
        "  without nvidia.com/gpu: c, d",
    ]


def test_what_a_pod_asks_for() -> None:
    limits = [{"resources": {"limits": {GPU: count}}} for count in ("1", "2", "x", "²", "1" * 40)]
    assert requested_resources({"spec": {"containers": limits}}) == {GPU: 3}
    assert requested_resources({"spec": {"containers": limits[:1], "initContainers": limits[1:2]}}) == {GPU: 2}
    assert requested_resources({}) == {}


@pytest.mark.parametrize(
    ("spec", "labels", "node_spec", "said"),
    [
        ({}, {}, {"unschedulable": True}, ["the node is cordoned"]),
        ({}, {}, {"taints": [{"key": GPU, "effect": "NoSchedule"}]}, [f"the taint {GPU}:NoSchedule is not tolerated"]),
        ({"tolerations": [{"key": GPU, "operator": "Exists"}]}, {}, {"taints": [{"key": GPU, "effect": "NoSchedule"}]}, []),
        ({"tolerations": [{"operator": "Exists"}]}, {}, {"taints": [{"key": "a", "value": "b", "effect": "NoExecute"}]}, []),
        ({"tolerations": [{"key": "a", "value": "c"}]}, {}, {"taints": [{"key": "a", "value": "b", "effect": "NoExecute"}]},
         ["the taint a=b:NoExecute is not tolerated"]),
        ({}, {}, {"taints": [{"key": "a", "effect": "PreferNoSchedule"}]}, []),
        ({"nodeSelector": {"zone": "a"}}, {"zone": "b"}, {}, ["nodeSelector wants zone=a, the node has b"]),
        ({"nodeSelector": {"zone": "a"}}, {}, {}, ["nodeSelector wants zone=a, the node has none"]),
    ],
)  # fmt: skip
def test_why_not_on_a_node(spec: Object, labels: Object, node_spec: Object, said: list[str]) -> None:
    assert refusals({"spec": spec}, node("n", 1, labels=labels, **node_spec)) == said


@pytest.mark.parametrize(
    ("expression", "fits"),
    [
        ({"key": "zone", "operator": "In", "values": ["a", "b"]}, True),
        ({"key": "zone", "operator": "NotIn", "values": ["a"]}, False),
        ({"key": "zone", "operator": "Exists"}, True),
        ({"key": "other", "operator": "DoesNotExist"}, True),
        ({"key": "count", "operator": "Gt", "values": ["3"]}, True),
        ({"key": "count", "operator": "Lt", "values": ["3"]}, False),
        ({"key": "zone", "operator": "Gt", "values": ["3"]}, False),
        ({"key": "zone", "operator": "Unheard"}, False),
    ],
)
def test_node_affinity(expression: Object, fits: bool) -> None:
    affinity = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {
        "nodeSelectorTerms": [{"matchExpressions": [expression]}]}}}  # fmt: skip
    found = refusals({"spec": {"affinity": affinity}}, node("n", 1, labels={"zone": "a", "count": "4"}))
    assert found == ([] if fits else ["the required node affinity does not fit"])


DEVICE: Object = {
    "name": "gpu-0",
    "attributes": {
        "productName": {"string": "H100"}, "index": {"int": 3}, "good": {"bool": True},
        "driverVersion": {"version": "570.86.15"},
        "resource.kubernetes.io/pcieRoot": {"string": "pci0000:00"},
    },
    "capacity": {"memory": {"value": "80Gi"}},
}  # fmt: skip
OWN = "device.attributes['gpu.nvidia.com']"
MEMORY = "device.capacity['gpu.nvidia.com'].memory.compareTo(quantity('{}')) {} 0"


@pytest.mark.parametrize(
    ("expression", "why"),
    [
        ("device.driver == 'gpu.nvidia.com'", ""),
        ('device.driver == "other"', "its driver is gpu.nvidia.com"),
        (f"{OWN}.productName == 'H100' && {OWN}.good == true", ""),
        (f"{OWN}.productName == 'A100'", "productName is H100"),
        (f"{OWN}.productName != 'A100' && {OWN}.index >= 4", "index is 3"),
        (f"{OWN}.index in [1, 2]", "index is 3"),
        (f"{OWN}.productName in ['H100', 'H200']", ""),
        (f"{OWN}.productName.startsWith('H') && {OWN}.productName.contains('&&')", "productName is H100"),
        (f"{OWN}.absent == 'x'", "it has no absent"),
        ("device.attributes['resource.kubernetes.io'].pcieRoot == 'pci0000:80'", "pcieRoot is pci0000:00"),
        ("device.attributes['other.com'].productName == 'H100'", "it has no productName"),
        (MEMORY.format("40Gi", ">="), ""),
        (MEMORY.format("100Gi", ">="), "memory is 80Gi"),
        (MEMORY.format("90G", "<"), ""),
        (f"{OWN}.driverVersion.compareTo(semver('580.0.0')) >= 0", "driverVersion is 570.86.15"),
        (f"{OWN}.driverVersion.compareTo(semver('570.9.0')) > 0", ""),
        ("has(device.attributes)", None),
        (f"{OWN}.productName == 'H100' || true", None),
        (f"{OWN}.productName.matches('(a+)+$')", None),
        (MEMORY.format("lots", ">="), None),
        (f"cel.bind(x, 1, x > 0) && {OWN}.index == 4", "index is 3"),
        ("", None),
    ],
)
def test_selectors(expression: str, why: str | None) -> None:
    assert excluded_by(expression, "gpu.nvidia.com", DEVICE) == why


def test_a_selector_of_great_length_does_not_take_long() -> None:
    began = time.monotonic()
    for expression in ("(" * 10240, f"{OWN}.a in [" + "1, " * 3000, "'" * 10239, "&&" * 5000):
        assert excluded_by(expression, "gpu.nvidia.com", DEVICE) is None
    assert time.monotonic() - began < 20


def slice_of(name: str, devices: list[Object], generation: int = 1) -> Object:
    spec = {
        "driver": "gpu.nvidia.com",
        "nodeName": name,
        "pool": {"name": name, "generation": generation},
        "devices": devices,
    }
    return {"metadata": {"name": f"{name}-{generation}"}, "spec": spec}


def claim(name: str, device: str = "", users: tuple[str, ...] = (), selector: str = "", **request: Any) -> Object:
    exactly: Object = {"deviceClassName": "gpu.nvidia.com"} | request
    if selector:
        exactly["selectors"] = [{"cel": {"expression": selector}}]
    made: Object = {"metadata": {"name": name, "namespace": "team"}, "spec": {"devices": {"requests": [
        {"name": "gpu", "exactly": exactly}]}}, "status": {}}  # fmt: skip
    if device:
        result = {"driver": "gpu.nvidia.com", "pool": "a", "device": device, "request": "gpu"}
        made["status"] = {"allocation": {"devices": {"results": [result]}}, "reservedFor": [{"name": one} for one in users]}
    return made


CLASSES = [{"metadata": {"name": "gpu.nvidia.com"}, "spec": {"selectors": [
    {"cel": {"expression": "device.driver == 'gpu.nvidia.com'"}}]}}]  # fmt: skip
CLAIMING = pod("me", resourceClaims=[{"name": "gpu", "resourceClaimName": "mine"}])


def test_which_device_is_whose_and_what_excludes_which() -> None:
    small = {"name": "gpu-1", "capacity": {"memory": {"value": "16Gi"}}}
    ill = DEVICE | {"name": "gpu-2", "taints": [{"key": "gpu.nvidia.com/xid", "effect": "NoSchedule"}]}
    places = [slice_of("a", [DEVICE, small, ill], 2), slice_of("a", [{"name": "gone"}], 1), slice_of("b", [DEVICE])]
    nodes = [node("a"), node("b", unschedulable=True)]
    selector = MEMORY.format("40Gi", ">=")
    claims = [claim("mine", selector=selector), claim("theirs", "gpu-0", ("train",))]
    assert claim_lines(CLAIMING, nodes, claims, CLASSES, places) == [
        "claim team/mine, request gpu: 1 of class gpu.nvidia.com",
        "  a/gpu-0: claim team/theirs (pod train) has it",
        f"  a/gpu-1: the selector of the claim excludes it (memory is 16Gi): {selector}",
        "  a/gpu-2: the taint gpu.nvidia.com/xid:NoSchedule is on the device",
        "  b/gpu-0: the node is cordoned",
    ]
    claims[0] = claim("mine", selector="has(device)", adminAccess=True)
    found = claim_lines(CLAIMING, nodes, claims, CLASSES, places)
    assert found[1] == "  a/gpu-0: it is free; whether the selector of the claim lets it pass is not known here: has(device)"


@pytest.mark.parametrize(
    ("wanted", "consumed", "said"),
    [
        ("8Gi", ["16Gi", "48Gi"], "it is free"),
        ("16Gi", ["16Gi", "48Gi"], "it is free"),
        ("17Gi", ["16Gi", "48Gi"], "17Gi of memory wanted, 16Gi of 80Gi left: claim team/c0 (pod p0) has 16Gi, "
                                   "claim team/c1 (pod p1) has 48Gi"),
        ("", ["64Mi"], "80Gi of memory wanted, 81856Mi of 80Gi left: claim team/c0 (pod p0) has 64Mi"),
        ("", [], "it is free"),
        ("8Gi", ["1e9"], "it is free"),
        ("8Gi", ["79e9"], "8Gi of memory wanted, 6899345920 of 80Gi left: claim team/c0 (pod p0) has 79e9"),
        ("8Gi", ["much"], "some of its memory is taken by claim team/c0 (pod p0)"),
    ],
)  # fmt: skip
def test_a_gpu_that_several_claims_share(wanted: str, consumed: list[str], said: str) -> None:
    memory = {"value": "80Gi", "requestPolicy": {"default": "80Gi", "validRange": {"min": "64Mi"}}}
    device = {"name": "gpu-0", "allowMultipleAllocations": True, "capacity": {"memory": memory, "other": {"value": "1"}}}
    more: Object = {"capacity": {"requests": {"memory": wanted}}} if wanted else {}
    claims = [claim("mine", **more)]
    for number, amount in enumerate(consumed):
        claims.append(claim(f"c{number}", "gpu-0", (f"p{number}",)))
        claims[-1]["status"]["allocation"]["devices"]["results"][0]["consumedCapacity"] = {"memory": amount}
    _, line = claim_lines(CLAIMING, [node("a")], claims, CLASSES, [slice_of("a", [device])])
    assert line == f"  a/gpu-0: {said}"


@pytest.mark.parametrize(
    ("claims", "classes", "slices", "said"),
    [
        ([], CLASSES, [], "claim team/mine: there is none of that name"),
        ([claim("mine")], [], [], "claim team/mine, request gpu: 1 of class gpu.nvidia.com: there is no such DeviceClass"),
        (
            [claim("mine", allocationMode="All")],
            CLASSES,
            [],
            "claim team/mine, request gpu: all of class gpu.nvidia.com: no node",
        ),
        ([claim("mine", "gpu-0")], CLASSES, [], "claim team/mine: is allocated (a/gpu-0), the pod waits for something else"),
    ],
)
def test_what_there_is_not(claims: list[Object], classes: list[Object], slices: list[Object], said: str) -> None:
    (line,) = claim_lines(CLAIMING, [], claims, classes, slices)
    assert line.startswith(said)


def test_a_claim_of_a_template() -> None:
    waiting = pod("me", resourceClaims=[{"name": "gpu", "resourceClaimTemplateName": "one-gpu"}])
    (line,) = claim_lines(waiting, [], [], CLASSES, [])
    assert line == "claim gpu: it has not been made of the template one-gpu yet"
    waiting["status"]["resourceClaimStatuses"] = [{"name": "gpu", "resourceClaimName": "mine"}]
    assert claim_lines(waiting, [], [claim("mine", "gpu-0")], CLASSES, [])[0].startswith("claim team/mine: is allocated")


def test_the_command(tmp_path: Path) -> None:
    server = ApiServer()
    config = str(server.kubeconfig(tmp_path / "kubeconfig"))

    def said(*words: str) -> tuple[int, str, str]:
        command = [sys.executable, "-m", "gpurun", "kubernetes", "explain", *words, "--kubeconfig", config]
        done = subprocess.run(command, env=os.environ | {"PYTHONPATH": "src"}, capture_output=True, text=True, timeout=120)
        assert "Traceback" not in done.stderr
        return done.returncode, done.stdout, done.stderr

    try:
        waiting = pod("me", 2, resourceClaims=[{"name": "gpu", "resourceClaimName": "mine"}])
        waiting["status"]["conditions"] = [
            {"type": "PodScheduled", "status": "False", "message": "0/1 nodes\u202e are\navailable"}
        ]
        for one in (waiting, pod("runs", 1, "a"), pod("plain")):
            server.put("pods", one)
        server.put("nodes", node("a", 2))
        server.put("resourceclaims", claim("mine"))
        server.put("deviceclasses", CLASSES[0])
        server.put("resourceslices", slice_of("a", [DEVICE]))
        code, out, err = said("team/me")
        assert code == 0, err
        lines = out.splitlines()
        assert lines[0].startswith("pod team/me is Pending: 0/1 nodes") and "\u202e" not in out
        assert "  a: 2 allocatable, 1 free: 2 do not fit" in lines and "    1 has team/runs" in lines
        assert "  a/gpu-0: it is free" in lines
        assert server.used == {("get", "pods"), ("list", "nodes"), ("list", "pods"), ("list", "resourceclaims"),
                               ("list", "deviceclasses"), ("list", "resourceslices")}  # fmt: skip
        assert "on node a: it does not wait for a place" in said("runs", "--namespace", "team")[1]
        assert "it asks for no GPU" in said("team/plain")[1]
        code, _, err = said("nobody")
        assert code == 1 and "get pod default/nobody" in err
        assert said()[0] == said("a", "b")[0] == 1
    finally:
        server.stop()
