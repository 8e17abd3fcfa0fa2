"""GPUs of AMD and Intel on a real Kubernetes: by the device plugin, by ResourceClaims, and as labels of the node.

The hosts are simulated (tests/simcards): no card has been seen.  A device node of theirs has no driver: opening it is
answered with ENXIO where the container may do it, and with EPERM where its cgroup forbids it.
"""

# ruff: noqa: F811 - the fixtures are imported
from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.kubernetes import real
from tests.kubernetes.nodes import NO_NVIDIA
from tests.kubernetes.real import NODE, Object, Program, account, get, gone, kubectl, offered, pod, run, until
from tests.simcards import DRM_MAJOR, KFD_MAJOR, RENDER, VIDEO, amd, intel
from tests.simdriver import SimulatedDriver, make

pytestmark = pytest.mark.skipif(not real.is_here(), reason=real.WHY_NOT)

AMD, I915, XE = "amd.com/gpu", "gpu.intel.com/i915", "gpu.intel.com/xe"
MINORS = "0 1 2 3 8 9 128 129 130 131 136 137"
#: Which nodes there are and whose; the groups; which of all GPUs may be opened, tried with nodes of the pod's own.
LOOK = (
    "find /dev/kfd /dev/dri -type c 2>/dev/null | sort | sed 's/^/node /'; echo groups $(id -G); "
    f"mknod /tmp/kfd c {KFD_MAJOR} 0 && cat /tmp/kfd 2>&1 | sed 's/^/kfd /'; "
    f'for minor in {MINORS}; do mknod /tmp/$minor c {DRM_MAJOR} $minor && cat /tmp/$minor 2>&1 | sed "s/^/$minor /"; done; '
    "for node in /dev/kfd /dev/dri/card* /dev/dri/renderD*; do [ -e $node ] && cat $node 2>&1; done; echo end; sleep 1000"
)
ALLOWED, FORBIDDEN = "No such device or address", "Operation not permitted"


def host(directory: Path) -> SimulatedDriver:
    """Two MI210, an Arc A770 under i915, a B580 and a divided card under xe; nothing of NVIDIA's."""
    made = make(directory / "host", NO_NVIDIA)
    intel.arc(made.path)
    amd.beside_nvidia(made.path)  # cards 8 and 9, after those of somebody else
    return made


def looking(name: str, resources: dict[str, int] | None = None, claim: str = "", user: int = 0) -> Object:
    """A pod that says what it may open."""
    one = pod(name, claim=claim)
    (container,) = one["spec"]["containers"]
    container["command"][2] = LOOK
    if resources:
        container["resources"] = {"limits": resources}
    if user:
        container["securityContext"] = {"runAsUser": user, "runAsGroup": user}
    return one


def nodes(said: str) -> list[str]:
    return re.findall(r"^node /dev/((?!dri/by-path/)\S+)$", said, re.M)


def opened(said: str) -> set[str]:
    """Minors of DRM, and `kfd`, that the pod may open; it has tried all."""
    tried = dict(re.findall(rf"^(\d+|kfd) cat: .*: ({ALLOWED}|{FORBIDDEN})$", said, re.M))
    assert set(tried) == {*MINORS.split(), "kfd"}, said
    return {name for name, answer in tried.items() if answer == ALLOWED}


def groups(said: str) -> set[int]:
    (line,) = re.findall(r"^groups (.*)$", said, re.M)
    return {int(word) for word in line.split()}


#: What a pod has of each GPU: its nodes below /dev, which are just what its cgroup lets it open.
MI210 = [["dri/card8", "dri/renderD136", "kfd"], ["dri/card9", "dri/renderD137", "kfd"]]
A770, B580, VF = ["dri/card0", "dri/renderD128"], ["dri/card1", "dri/renderD129"], ["dri/card3", "dri/renderD131"]


def has(said: str) -> list[str]:
    """The nodes of a pod, which may open these and no others."""
    found = nodes(said)
    assert opened(said) == {re.sub("^dri/[a-zD]+", "", node) for node in found}
    assert {VIDEO, RENDER} <= groups(said)
    return found


# The device plugin.


@pytest.fixture
def plugin(rights: None, directory: Path) -> Iterator[tuple[SimulatedDriver, Path, Program]]:
    """The host, the plugin's configuration file, the plugin itself."""
    made, config = host(directory), directory / "config.yaml"
    config.write_text("version: v1\n")
    words = ("--config-file", str(config), "--fail-on-init-error=false", "--interval", "0.5")
    program = Program(directory, "kubernetes", "device-plugin", *words, env=made.env)
    program.start()
    until(lambda: (offered(AMD), offered(I915), offered(XE)) == ((2, 2), (1, 1), (2, 2)), program.said)
    yield made, config, program
    gone()
    program.stop()
    until(lambda: not offered(AMD)[1] and not offered(XE)[1])


def test_pods_have_their_own_gpus_alone(plugin: tuple[SimulatedDriver, Path, Program]) -> None:
    one, two = run(looking("one", {AMD: 1}), looking("two", {AMD: 1}))
    assert sorted([has(one), has(two)]) == MI210
    kubectl("create", "-f", "-", given=looking("three", {AMD: 1}))
    until(lambda: "Insufficient amd.com/gpu" in kubectl("describe", "pod", "three"))
    first, second, none = run(looking("arc", {I915: 1}), looking("both", {XE: 2}), looking("none"))
    assert has(first) == A770 and has(second) == sorted(B580 + VF)
    assert not nodes(none) and not opened(none) and not groups(none) & {VIDEO, RENDER}


def test_a_pod_with_gpus_of_two_makers_and_a_user_of_its_own(plugin: tuple[SimulatedDriver, Path, Program]) -> None:
    (said,) = run(looking("mixed", {AMD: 2, I915: 1}, user=1000))
    assert nodes(said) == sorted([*A770, "dri/card8", "dri/card9", "dri/renderD136", "dri/renderD137", "kfd"])
    assert groups(said) == {1000, VIDEO, RENDER}
    answers = re.findall(r"open '/dev/(\S+)': (.*)$", said, re.M)
    assert dict(answers) == dict.fromkeys(nodes(said), ALLOWED), "by its groups"


def test_a_gpu_that_is_gone_and_comes_back(plugin: tuple[SimulatedDriver, Path, Program]) -> None:
    made, _, program = plugin
    node = made.path / "dev/dri/renderD136"
    about = node.stat()
    node.unlink()
    until(lambda: offered(AMD) == (2, 1), program.said)
    os.mknod(node, about.st_mode, about.st_rdev)
    os.chown(node, 0, RENDER)
    until(lambda: offered(AMD) == (2, 2), program.said)


def test_replicas(plugin: tuple[SimulatedDriver, Path, Program]) -> None:
    _, config, program = plugin
    config.write_text(f"version: v1\nsharing: {{timeSlicing: {{resources: [{{name: {AMD}, replicas: 2}}]}}}}\n")
    until(lambda: offered(AMD) == (4, 4), program.said)
    said = run(*[looking(name, {AMD: 1}) for name in ("one", "two", "three", "four")])
    assert sorted([has(text) for text in said]) == sorted(MI210 * 2)


# Dynamic resource allocation.


@pytest.fixture
def dra(rights: None, directory: Path) -> Iterator[tuple[SimulatedDriver, Program]]:
    made = host(directory)
    words = ("--kubeconfig", str(account(directory, "gpurun-dra-driver")), "--interval", "0.5")
    program = Program(directory, "kubernetes", "dra-driver", *words, env=made.env)
    program.start()
    until(lambda: (len(devices("amd")), len(devices("intel"))) == (2, 3), program.said)
    until(lambda: all(f"gpu.{maker}.com: registered with" in program.said() for maker in ("amd", "intel")), program.said)
    yield made, program
    gone()
    kubectl("delete", "resourceclaimtemplates", "--all")
    until(lambda: not list(Path("/var/run/cdi").glob("k8s.gpu.*-claim_*.json")), program.said)
    program.stop()
    kubectl("delete", "resourceslices", "--all")


def devices(maker: str) -> dict[str, Object]:
    """Those that claims get: without taints."""
    specs = [one["spec"] for one in get("resourceslices")["items"]]
    mine = [spec for spec in specs if spec["driver"] == f"gpu.{maker}.com" and spec.get("nodeName") == NODE]
    return {str(one["name"]): one for spec in mine for one in spec.get("devices") or () if not one.get("taints")}


def template(name: str, *requests: tuple[str, str], **more: Any) -> Object:
    """A claim for each (maker, expression of CEL)."""
    exactly = [
        {"deviceClassName": f"gpu.{maker}.com", "selectors": [{"cel": {"expression": text}}] if text else []}
        for maker, text in requests
    ]
    spec = {"requests": [{"name": f"r{number}", "exactly": one} for number, one in enumerate(exactly)]} | more
    return {
        "apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaimTemplate", "metadata": {"name": name},
        "spec": {"spec": {"devices": spec}},
    }  # fmt: skip


PICKED = (
    f"device.attributes['gpu.amd.com'].pciAddr == '{amd.MI210[1][0]}' && "
    "device.attributes['gpu.amd.com'].driverVersion.isGreaterThan(semver('6.0.0')) && "
    "device.attributes['gpu.amd.com'].type == 'amdgpu' && device.attributes['gpu.amd.com'].renderIndex == 137 && "
    "device.capacity['gpu.amd.com'].memory.compareTo(quantity('64Gi')) == 0 && "
    "device.capacity['gpu.amd.com'].computeUnits.compareTo(quantity('100')) > 0 && "
    f"device.attributes['resource.kubernetes.io'].pciBusID == '{amd.MI210[1][0]}'"
)
BATTLEMAGE = "device.attributes['gpu.intel.com'].model == 'B580' && !device.attributes['gpu.intel.com'].sriov"


def test_claims_by_what_a_maker_says_of_its_gpus(dra: tuple[SimulatedDriver, Program]) -> None:
    function = "device.attributes['gpu.intel.com'].type == 'vf'"
    big = "device.attributes['gpu.intel.com'].driver == 'xe' && device.capacity['gpu.intel.com'].memory > quantity('1Ti')"
    wanted = {"picked": [("amd", PICKED)], "arc": [("intel", BATTLEMAGE)], "function": [("intel", function)]}
    kubectl("create", "-f", "-", given=[template(name, *requests) for name, requests in wanted.items()])
    said = run(*[looking(name, claim=name) for name in wanted])
    assert [has(text) for text in said] == [MI210[1], B580, VF]
    kubectl("create", "-f", "-", given=[template("again", ("amd", PICKED)), looking("again", claim="again")])
    until(lambda: "cannot allocate all claims" in kubectl("describe", "pod", "again"))
    refused = kubectl("create", "-f", "-", given=template("odd", ("intel", big)), good=False)
    assert "spec.spec.devices.requests[0].exactly.selectors[0].cel.expression" in refused


def test_a_claim_for_gpus_of_two_makers(dra: tuple[SimulatedDriver, Program]) -> None:
    kubectl("create", "-f", "-", given=template("two", ("amd", ""), ("intel", BATTLEMAGE)))
    (said,) = run(looking("two", claim="two", user=1000))
    assert nodes(said) in [sorted(B580 + gpu) for gpu in MI210] and groups(said) == {1000, VIDEO, RENDER}
    answers = re.findall(r"open '/dev/(\S+)': (.*)$", said, re.M)
    assert dict(answers) == dict.fromkeys(nodes(said), ALLOWED)


def test_gpus_that_have_to_be_alike(dra: tuple[SimulatedDriver, Program]) -> None:
    def both(name: str, attribute: str) -> Object:
        return template(name, ("amd", ""), ("amd", ""), constraints=[{"matchAttribute": attribute}])

    kubectl("create", "-f", "-", given=[both("model", "gpu.amd.com/productName"), both("bus", "gpu.amd.com/pciAddr")])
    assert has(run(looking("model", claim="model"))[0]) == sorted({*MI210[0], *MI210[1]})
    gone("model")
    kubectl("create", "-f", "-", given=looking("bus", claim="bus"))
    until(lambda: "cannot allocate all claims" in kubectl("describe", "pod", "bus"))


def test_a_gpu_with_a_taint_is_not_given(dra: tuple[SimulatedDriver, Program]) -> None:
    made, program = dra
    (made.path / "dev/dri/renderD137").unlink()
    until(lambda: set(devices("amd")) == {"gpu-8-136"}, program.said)
    kubectl("create", "-f", "-", given=[template("any", ("amd", "")), template("picked", ("amd", PICKED))])
    kubectl("create", "-f", "-", given=looking("ill", claim="picked"))
    assert has(run(looking("well", claim="any"))[0]) == MI210[0]
    until(lambda: "cannot allocate all claims" in kubectl("describe", "pod", "ill"))


def test_opaque_configuration_is_refused(dra: tuple[SimulatedDriver, Program]) -> None:
    config = [{"opaque": {"driver": "gpu.amd.com", "parameters": {"apiVersion": "v1", "kind": "Anything"}}}]
    kubectl("create", "-f", "-", given=[template("odd", ("amd", ""), config=config), looking("odd", claim="odd")])
    until(
        lambda: "the devices of this driver have no configuration" in kubectl("describe", "pod", "odd"),
        lambda: kubectl("describe", "pod", "odd"),
    )


# Labels.


def test_labels_of_their_gpus_at_the_node(rights: None, directory: Path) -> None:
    """The policy lets the account write them, and nothing else of these makers' names."""
    made, config = host(directory), str(account(directory, "gpurun-labels"))
    program = Program(directory, "kubernetes", "labels", "--patch-node", "--kubeconfig", config, env=made.env)
    program.start()
    try:
        labels = until(
            lambda: (found := get("node", NODE)["metadata"]["labels"]).get("amd.com/gpu.vram") and found, program.said
        )
        assert labels["beta.amd.com/gpu.product-name.AMD_Instinct_MI210"] == "2"
        assert labels["gpu.intel.com/device-id.0300-e20b.count"] == labels["gpu.intel.com/device-id.0300-56a0.count"] == "1"
        program.stop()
    finally:
        prefixes = ("amd.com/gpu.", "beta.amd.com/gpu.", "gpu.intel.com/")
        ours = [name for name in get("node", NODE)["metadata"]["labels"] if name.startswith(prefixes)]
        kubectl("label", "node", NODE, *[f"{name}-" for name in ours])
    assert ours and "orbidden" not in program.said()
