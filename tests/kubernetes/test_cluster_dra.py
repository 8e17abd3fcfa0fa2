"""Dynamic resource allocation on a real cluster: what the API server refuses, and claims that its scheduler allocates."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gpurun.errors import ConfigError
from gpurun.kubernetes.dra.claim import read_config
from tests.kubernetes import real
from tests.kubernetes.dra.test_claim import REFUSED, config
from tests.kubernetes.nodes import replace_node
from tests.kubernetes.real import get, gone, has, kubectl, pod, run, until
from tests.kubernetes.real_parts import FIRST, SECOND, Dra, configured, gpu, owner, template
from tests.simdriver import uuid

pytestmark = pytest.mark.skipif(not real.is_here(), reason=real.WHY_NOT)


def test_the_api_server_refuses_what_the_driver_would_not_understand(rights: None) -> None:
    """Held against the driver's own reader, for templates, claims and classes."""

    def said(one: dict[str, Any]) -> str:
        words = ["kubectl", "create", "-f", "-", "--dry-run=server"]
        done = subprocess.run(words, input=json.dumps(one), capture_output=True, text=True)
        return "" if done.returncode == 0 else done.stderr

    until(lambda: said(configured("ready", config({"strategy": "Luck"}))))  # a new policy takes a moment
    cases: list[Any] = [parameters for parameters, _ in REFUSED if parameters is not None]
    cases += [
        config(None), config({}), config({"strategy": "TimeSlicing"}), config(None, "MigDeviceConfig"),
        config({"strategy": "TimeSlicing", "timeSlicingConfig": {"interval": "Long"}}),
        config({"strategy": "TimeSlicing", "timeSlicingConfig": {"interval": ""}, "mpsConfig": None}),
        config({"strategy": "MPS", "mpsConfig": {"defaultActiveThreadPercentage": 0}}),
        config({"strategy": "MPS", "mpsConfig": {"defaultActiveThreadPercentage": "50"}}),
        config({"strategy": "MPS", "mpsConfig": {
            "defaultPinnedDeviceMemoryLimit": "8Gi", "defaultPerDevicePinnedMemoryLimit": {"0": "512Mi"}}}),
    ]  # fmt: skip
    wrong = []
    for parameters in cases:
        try:
            read_config(parameters, "x")
            good = True
        except ConfigError:
            good = False
        whole = configured("one", parameters)
        claim = whole | {"kind": "ResourceClaim", "spec": whole["spec"]["spec"]}
        for one in (whole, claim):
            answer = said(one)
            if (answer == "") is not good or "failed to evaluate" in answer:
                wrong.append((parameters, good, answer))
    assert not wrong and sum(case is not None for case in cases) == 20
    typing = config(None) | {"sharin": {}}
    assert "with sharing alone" in said(configured("typo", typing))
    other = [{"opaque": {"driver": "gpu.example.com", "parameters": {"anything": 1}}}]
    assert said(template("others", gpu(), configs=other)) == ""
    kind = {"apiVersion": "resource.k8s.io/v1", "kind": "DeviceClass", "metadata": {"name": "odd"}}
    opaque = {"opaque": {"driver": "gpu.nvidia.com", "parameters": config({"strategy": "Luck"})}}
    assert "sharing has a strategy" in said(kind | {"spec": {"config": [opaque]}})


@pytest.fixture
def dra(rights: None, directory: Path, pods: None, request: pytest.FixtureRequest) -> Iterator[Dra]:
    made = Dra(directory, getattr(request, "param", ()))
    made.program.start()
    until(lambda: len(made.devices()) >= 2 and "registered with the kubelet" in made.program.said(), made.program.said)
    yield made
    gone()
    kubectl("delete", "resourceclaimtemplates", "--all")
    until(lambda: not made.claims(), made.program.said)
    made.program.stop()
    kubectl("delete", "resourceslices", "--all")


def test_what_is_published(dra: Dra) -> None:
    assert set(dra.devices()) == {"gpu-0", "gpu-1"}
    told = dra.devices()["gpu-1"]
    assert told["attributes"]["uuid"] == {"string": uuid(0)} and told["capacity"]["memory"] == {"value": "80Gi"}
    before = [(one["metadata"]["name"], one["metadata"]["generation"]) for one in get("resourceslices")["items"]]
    node = dra.driver.path / f"dev/{FIRST}"
    node.unlink()
    until(lambda: set(dra.devices()) == {"gpu-0"}, dra.program.said)
    taints = [one["taints"] for spec in dra.slices() for one in spec["devices"] if one.get("taints")]
    assert [[one["key"] for one in each] for each in taints] == [["gpu.nvidia.com/unhealthy"]]
    kubectl("create", "-f", "-", given=[template("all", gpu(count=2)), pod("needs-all", claim="all")])
    until(lambda: "cannot allocate all claims" in kubectl("describe", "pod", "needs-all"))
    replace_node(node, 1)
    until(lambda: len(dra.devices()) == 2, dra.program.said)
    after = [(one["metadata"]["name"], one["metadata"]["generation"]) for one in get("resourceslices")["items"]]
    assert after == [(name, generation + 2) for name, generation in before], "two changes, two writes"


def test_a_claim_with_a_selector(dra: Dra, directory: Path) -> None:
    wanted = (
        "device.capacity['gpu.nvidia.com'].memory.compareTo(quantity('40Gi')) >= 0 && "
        "device.attributes['gpu.nvidia.com'].cudaComputeCapability.isGreaterThan(semver('8.0.0')) && "
        f"device.attributes['gpu.nvidia.com'].uuid == '{uuid(1)}'"
    )
    kubectl("create", "-f", "-", given=[template("picked", gpu(wanted)), template("any", gpu())])
    assert has(run(pod("one", claim="picked"))[0]) == [SECOND]
    assert has(run(pod("two", claim="any"))[0]) == [FIRST]
    line = owner(directory, dra.driver, "two")
    assert f'UUID="{uuid(0)}"' in line and 'container="main"' in line
    kubectl("create", "-f", "-", given=pod("three", claim="any"))
    until(lambda: "cannot allocate all claims" in kubectl("describe", "pod", "three"))
    gone("two")
    until(lambda: "end" in kubectl("logs", "three", "--ignore-errors"), lambda: kubectl("describe", "pod", "three")[-800:])
    assert len(dra.claims()) == 2
    gone()
    until(lambda: not dra.claims(), dra.program.said)
    assert dra.program.said().count(": unprepared") == 3


@pytest.mark.parametrize("own", [True, False])
def test_a_pod_without_a_claim_has_a_gpu_by_the_name_of_a_resource(dra: Dra, own: bool) -> None:
    name = "example.com/gpu" if own else "deviceclass.resource.kubernetes.io/gpu.nvidia.com"
    patch = json.dumps({"spec": {"extendedResourceName": "example.com/gpu" if own else None}})
    kubectl("patch", "deviceclass", "gpu.nvidia.com", "--type=merge", "-p", patch)
    said = run(pod("one", gpus=1, resource=name), pod("two", gpus=1, resource=name))
    assert sorted(node for text in said for node in has(text)) == sorted([FIRST, SECOND])


def test_the_second_choice_of_a_claim(dra: Dra) -> None:
    big = "device.capacity['gpu.nvidia.com'].memory.compareTo(quantity('1Ti')) > 0"
    choices = [{"name": "big"} | gpu(big), {"name": "any"} | gpu(f"device.attributes['gpu.nvidia.com'].uuid == '{uuid(0)}'")]
    one = template("either")
    one["spec"]["spec"]["devices"]["requests"] = [{"name": "r0", "firstAvailable": choices}]
    kubectl("create", "-f", "-", given=one)
    assert has(run(pod("one", claim="either"))[0]) == [FIRST]


def test_health_of_claims(dra: Dra) -> None:
    kubectl("create", "-f", "-", given=template("any", gpu()))
    (node,) = has(run(pod("one", claim="any"))[0])

    def told() -> list[tuple[str, list[str]]]:
        found = get("pod", "one")["status"]["containerStatuses"][0].get("allocatedResourcesStatus") or ()
        return [(one["name"], [resource["health"] for resource in one["resources"]]) for one in found]

    until(lambda: told() == [("claim:gpu", ["Healthy"])], told)
    (dra.driver.path / "dev" / node).unlink()
    until(lambda: told() == [("claim:gpu", ["Unhealthy"])], told)
    replace_node(dra.driver.path / "dev" / node, int(node[-1]))
    until(lambda: told() == [("claim:gpu", ["Healthy"])], told)


def test_a_restart_with_claims_that_live(dra: Dra) -> None:
    kubectl("create", "-f", "-", given=template("any", gpu()))
    run(pod("stays", claim="any"), pod("goes", claim="any"))
    dra.program.stop()
    kubectl("delete", "pod", "goes", "--wait=false")
    dra.program.start()
    until(lambda: len(dra.claims()) == 1, dra.program.said)
    assert get("pod", "stays")["status"]["phase"] == "Running"
    assert len(has(run(pod("next", claim="any"))[0])) == 1


@pytest.mark.skipif(
    "KUBELET_PID" not in os.environ, reason="KUBELET_PID=FILE: whom to kill, and somebody who starts it again"
)
def test_claims_when_the_kubelet_restarts(dra: Dra) -> None:
    kubectl("create", "-f", "-", given=template("any", gpu()))
    run(pod("stays", claim="any"))
    os.kill(int(Path(os.environ["KUBELET_PID"]).read_text()), signal.SIGKILL)
    assert len(has(run(pod("next", claim="any"))[0])) == 1
    gone("stays")
    until(lambda: len(dra.claims()) == 1, dra.program.said)


def test_admin_access(dra: Dra) -> None:
    kubectl("create", "-f", "-", given=template("both", gpu(count=2)))
    assert len(has(run(pod("has-all", claim="both"))[0])) == 2
    watching = template("watch", gpu(allocationMode="All", adminAccess=True))
    assert "admin-access" in kubectl("create", "-f", "-", given=watching, good=False)
    labels = {"resource.kubernetes.io/admin-access": "true"}
    kubectl(
        "create", "-f", "-", given={"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "admin", "labels": labels}}
    )
    try:
        until(lambda: "default" in kubectl("-n", "admin", "get", "serviceaccounts"))
        kubectl("-n", "admin", "create", "-f", "-", given=watching)
        assert len(has(run(pod("sees-all", claim="watch"), namespace="admin")[0])) == 2
        assert len(dra.claims()) == 2
    finally:
        kubectl("delete", "namespace", "admin")
    until(lambda: len(dra.claims()) == 1, dra.program.said)


def test_opaque_configuration(dra: Dra) -> None:
    slices = config({"strategy": "TimeSlicing", "timeSlicingConfig": {"interval": "Long"}})
    kubectl("create", "-f", "-", given=configured("sliced", slices))
    odd = configured("odd", config({"strategy": "Luck"}))
    assert "sharing has a strategy, TimeSlicing or MPS" in kubectl("create", "-f", "-", given=odd, good=False)
    kubectl("delete", "validatingadmissionpolicybinding", "gpurun-gpu-config")
    until(lambda: subprocess.run(["kubectl", "create", "-f", "-"], input=json.dumps(odd), text=True).returncode == 0)
    run(pod("one", claim="sliced"))
    assert "--set-timeslice=3" in dra.log.read_text()
    kubectl("create", "-f", "-", given=pod("never", claim="odd"))
    until(lambda: "'Luck' is unknown" in kubectl("describe", "pod", "never"), lambda: kubectl("describe", "pod", "never"))
    gone()
    until(lambda: "--set-timeslice=0" in dra.log.read_text(), dra.program.said)


@pytest.mark.parametrize("dra", [((0, 1, 0), (0, 2, 0))], indirect=True)
def test_mig_devices_with_shared_counters(dra: Dra) -> None:
    assert len(dra.devices()) == 3
    counters = [one for spec in dra.slices() for one in spec.get("sharedCounters") or ()]
    assert len(counters) == 1 and {spec["pool"]["resourceSliceCount"] for spec in dra.slices()} == {2}
    consuming = [device for device in dra.devices().values() if device.get("consumesCounters")]
    assert len(consuming) == 2, "the API server has left nothing out"
    mig = {"deviceClassName": "mig.nvidia.com"}
    kubectl("create", "-f", "-", given=[template("mig", mig), template("whole", gpu())])
    said = run(pod("one", claim="mig"), pod("two", claim="mig"), pod("three", claim="whole"))
    assert [has(text) for text in said] == [[FIRST], [FIRST], [SECOND]]
