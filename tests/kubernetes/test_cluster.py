"""gpurun on a real Kubernetes: its API server, scheduler and kubelet, containerd, and gpurun as the runtime of the pods.

On this node of the cluster the programs run with the rights of the manifests' accounts, beside a simulated driver.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import tempfile
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gpurun.errors import ConfigError
from gpurun.kubernetes.dra.claim import read_config
from tests.kubernetes import models, real
from tests.kubernetes.dra.test_claim import REFUSED, config
from tests.kubernetes.mps import mps_programs
from tests.kubernetes.nodes import replace_node
from tests.kubernetes.real import NODE, Program, account, get, gone, has, kubectl, manifests, offered, pod, run, until
from tests.kubernetes.test_chart import VARIANTS, needs_helm, rendered
from tests.kubernetes.test_device_plugin import stub_library
from tests.nvml import compile_stub
from tests.simdriver import Options, SimulatedDriver, make, minor, uuid

pytestmark = pytest.mark.skipif(not real.is_here(), reason=real.WHY_NOT)

GPU = "nvidia.com/gpu"
ROLES = ("gpurun-dra.yaml", "gpurun.yaml")
#: Minors run against the order of the bus ids.
FIRST, SECOND = "nvidia1", "nvidia0"


@pytest.fixture(scope="module")
def rights() -> Iterator[None]:
    """Accounts, roles, policies and classes of both manifests; no pods."""
    objects = {(one["kind"], one["metadata"]["name"]): one for name in ROLES for one in manifests(name, "DaemonSet")}
    kubectl("apply", "-f", "-", given=list(objects.values()))
    until(lambda: all("typeChecking" in one.get("status", {}) for one in get("validatingadmissionpolicies")["items"]))
    until(lambda: "gpurun-dra-driver" in kubectl("-n", "gpurun", "get", "serviceaccounts"))
    yield
    objects.pop(("Namespace", "gpurun"))
    kubectl("delete", "-f", "-", "--ignore-not-found", given=list(objects.values()))


@pytest.fixture
def directory() -> Iterator[Path]:
    made = Path(tempfile.mkdtemp(prefix="cluster-", dir="/var/tmp"))
    made.chmod(0o755)  # root of a user namespace reads the driver as everybody does
    yield made
    shutil.rmtree(made)


def driver(directory: Path, mig: tuple[tuple[int, int, int], ...] = ()) -> SimulatedDriver:
    """Two GPUs that answer NVML."""
    made = make(directory / "host", Options(gpus=2, mig=mig))
    compile_stub(stub_library(made.path), mig=bool(mig), events=directory / "events")
    return made


@pytest.fixture
def pods() -> Iterator[None]:
    yield
    gone()


# The manifests.


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


@pytest.fixture
def another() -> Iterator[str]:
    """A node that is somebody else's."""
    kubectl("create", "-f", "-", given={"apiVersion": "v1", "kind": "Node", "metadata": {"name": "another"}})
    yield "another"
    kubectl("delete", "node", "another")


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


# The device plugin.


class Plugin:
    """The device plugin with its driver."""

    def __init__(self, directory: Path) -> None:
        self.driver = driver(directory)
        self.config = directory / "config.yaml"
        self.config.write_text("version: v1\n")
        words = ("--config-file", str(self.config), "--interval", "0.5")
        self.program = Program(directory, "kubernetes", "device-plugin", *words, env=self.driver.env)

    def node(self, index: int) -> Path:
        return self.driver.path / f"dev/nvidia{minor(index, 2)}"


@pytest.fixture
def plugin(rights: None, directory: Path, pods: None) -> Iterator[Plugin]:
    made = Plugin(directory)
    made.program.start()
    until(lambda: offered(GPU) == (2, 2), made.program.said)
    yield made
    gone()
    made.program.stop()
    until(lambda: offered(GPU)[1] == 0)


def test_two_pods_two_gpus(plugin: Plugin) -> None:
    said = run(pod("one", gpus=1), pod("two", gpus=1))
    assert sorted(node for text in said for node in has(text)) == sorted([FIRST, SECOND])
    assert all(len(has(text)) == 1 and "NVIDIA_VISIBLE_DEVICES=void" in text for text in said)
    kubectl("create", "-f", "-", given=pod("three", gpus=1))
    until(lambda: "Insufficient nvidia.com/gpu" in kubectl("describe", "pod", "three"))
    gone("one")
    until(lambda: "end" in kubectl("logs", "three", "--ignore-errors"), lambda: kubectl("describe", "pod", "three")[-800:])
    assert len(has(kubectl("logs", "three"))) == 1


def test_a_pod_without_a_gpu_has_none(plugin: Plugin) -> None:
    assert has(run(pod("none"))[0]) == []


def test_a_pod_in_a_user_namespace(plugin: Plugin) -> None:
    """With what most pods ask of a runtime besides: probes and hooks, which are exec, seccomp, another user, a volume."""
    one = pod("apart", gpus=1)
    spec, (container,) = one["spec"], one["spec"]["containers"]
    spec |= {"hostUsers": False, "volumes": [{"name": "own", "emptyDir": {}}]}
    container["command"][2] = "cat /proc/self/uid_map; id -u; " + container["command"][2]
    container |= {
        "volumeMounts": [{"name": "own", "mountPath": "/own"}],
        "lifecycle": {"postStart": {"exec": {"command": ["touch", "/own/started"]}}},
        "readinessProbe": {"exec": {"command": ["ls", "/own/started"]}, "periodSeconds": 1},
        "securityContext": {
            "runAsUser": 1000, "allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]},
            "seccompProfile": {"type": "RuntimeDefault"},
        },
    }  # fmt: skip
    (said,) = run(one)
    mapped = said.split()
    assert mapped[0] == "0" and int(mapped[1]) >= 65536 and mapped[3] == "1000" and len(has(said)) == 1
    until(
        lambda: get("pod", "apart")["status"]["containerStatuses"][0]["ready"], lambda: kubectl("describe", "pod", "apart")
    )


def test_health(plugin: Plugin) -> None:
    run(pod("two", gpus=2))
    plugin.node(0).unlink()
    until(lambda: offered(GPU) == (2, 1), plugin.program.said)

    def health() -> Any:
        status = get("pod", "two")["status"]["containerStatuses"][0].get("allocatedResourcesStatus") or [{"resources": []}]
        return {one["resourceID"]: one["health"] for one in status[0]["resources"]}

    until(lambda: health() == {uuid(0): "Unhealthy", uuid(1): "Healthy"}, health)
    replace_node(plugin.node(0), minor(0, 2))
    until(lambda: offered(GPU) == (2, 2), plugin.program.said)


def test_time_slices(plugin: Plugin) -> None:
    sharing = "sharing: {timeSlicing: {resources: [{name: nvidia.com/gpu, replicas: 2}]}}\n"
    plugin.config.write_text("version: v1\n" + sharing)
    until(lambda: offered(GPU) == (4, 4), plugin.program.said)
    said = run(*[pod(f"share-{number}", gpus=1) for number in range(4)])
    assert sorted(node for text in said for node in has(text)) == [SECOND, SECOND, FIRST, FIRST]


@pytest.mark.parametrize("policy", ["packed", "distributed"])
def test_which_replicas_a_pod_is_given(plugin: Plugin, policy: str) -> None:
    """The kubelet asks which replicas are best for a pod, and keeps to the answer."""
    flags = f"flags: {{plugin: {{sharedDevicesAllocationPolicy: {policy}}}}}\n"
    sharing = "sharing: {timeSlicing: {resources: [{name: nvidia.com/gpu, replicas: 3}]}}\n"
    plugin.config.write_text("version: v1\n" + flags + sharing)
    until(lambda: offered(GPU) == (6, 6), plugin.program.said)
    # One pod after the other: the second one finds what the first has left.
    two, one, three = (has(run(pod(f"pod-{number}", gpus=number))[0]) for number in (2, 1, 3))
    if policy == "packed":
        assert two == one and len(two) == 1, "one GPU is filled before another is begun"
        assert len(three) == 1 and three != two
    else:
        assert sorted(two) == sorted([FIRST, SECOND]) == sorted(three), "of as many GPUs as there are"
        assert len(one) == 1


@pytest.mark.skipif(
    "KUBELET_PID" not in os.environ, reason="KUBELET_PID=FILE: whom to kill, and somebody who starts it again"
)
def test_the_kubelet_restarts(plugin: Plugin) -> None:
    run(pod("one", gpus=1))
    began = plugin.program.said().count("registered with the kubelet")
    os.kill(int(Path(os.environ["KUBELET_PID"]).read_text()), signal.SIGKILL)
    until(lambda: plugin.program.said().count("registered with the kubelet") > began, plugin.program.said)
    until(lambda: offered(GPU) == (2, 2))
    assert get("pod", "one")["status"]["containerStatuses"][0]["restartCount"] == 0
    assert len(has(run(pod("two", gpus=1))[0])) == 1  # the other one: the kubelet knows who has what


def metrics(directory: Path, made: SimulatedDriver) -> Iterator[str]:
    program = Program(directory, "metrics", "--listen", "127.0.0.1:19400", env=made.env)
    program.start()
    try:
        for _ in range(100):
            try:
                with urllib.request.urlopen("http://127.0.0.1:19400/metrics", timeout=30) as answer:
                    yield answer.read().decode()
            except OSError:
                yield ""
    finally:
        program.stop()


def owner(directory: Path, made: SimulatedDriver, name: str) -> str:
    """The line of the GPU that the pod *name* has."""
    scrapes = metrics(directory, made)

    def line() -> str:
        lines = next(scrapes).splitlines()
        return next((one for one in lines if one.startswith("DCGM_FI_DEV_POWER_USAGE{") and f'pod="{name}"' in one), "")

    try:
        return str(until(line))
    finally:
        scrapes.close()  # type: ignore[attr-defined]


def test_figures_with_the_pod(plugin: Plugin, directory: Path) -> None:
    (said,) = run(pod("one", gpus=1))
    line = owner(directory, plugin.driver, "one")
    assert f'device="{has(said)[0]}"' in line and 'namespace="default"' in line and 'container="main"' in line


# Dynamic resource allocation.


def template(name: str, *requests: dict[str, Any], configs: list[dict[str, Any]] | None = None) -> dict[str, Any]:
    devices = {"requests": [{"name": f"r{i}", "exactly": one} for i, one in enumerate(requests)], "config": configs or []}
    return {
        "apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaimTemplate", "metadata": {"name": name},
        "spec": {"spec": {"devices": devices}},
    }  # fmt: skip


def gpu(expression: str = "", **more: Any) -> dict[str, Any]:
    selectors = [{"cel": {"expression": expression}}] if expression else []
    return {"deviceClassName": "gpu.nvidia.com", "selectors": selectors} | more


def configured(name: str, parameters: object) -> dict[str, Any]:
    return template(name, gpu(), configs=[{"opaque": {"driver": "gpu.nvidia.com", "parameters": parameters}}])


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


class Dra:
    """The DRA driver with its GPUs."""

    def __init__(
        self, directory: Path, mig: tuple[tuple[int, int, int], ...] = (), words: tuple[str, ...] = ()
    ) -> None:  # fmt: skip
        self.driver = driver(directory, mig)
        programs, self.log = mps_programs(directory)
        words = ("--kubeconfig", str(account(directory, "gpurun-dra-driver")), "--interval", "0.5", *words)
        env = self.driver.env | {"PATH": f"{programs}:{os.environ['PATH']}"}
        self.program = Program(directory, "kubernetes", "dra-driver", *words, env=env)

    def slices(self) -> list[dict[str, Any]]:
        specs = [one["spec"] for one in get("resourceslices")["items"]]
        return [spec for spec in specs if spec["driver"] == "gpu.nvidia.com" and spec.get("nodeName") == NODE]

    def devices(self) -> dict[str, dict[str, Any]]:
        """Those that claims get: without taints."""
        found = [device for spec in self.slices() for device in spec.get("devices") or ()]
        return {device["name"]: device for device in found if not device.get("taints")}

    def claims(self) -> list[Path]:
        return list(Path("/var/run/cdi").glob("k8s.gpu.nvidia.com-claim_*.json"))


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
