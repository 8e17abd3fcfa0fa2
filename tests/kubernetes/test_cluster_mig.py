"""The MIG manager's pod on a real Kubernetes: the label obeyed, who is sent away and waited for, what its account may do.

The driver is the bed's simulated one, with a library whose GPUs can be divided in the place of its own.
"""

# ruff: noqa: F811 - the fixtures are imported
from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.kubernetes import real
from tests.kubernetes.real import NODE, Object, account, get, gone, has, kubectl, offered, pod, run, until
from tests.kubernetes.test_cluster_chart import LOOKING, delete, deployed, labels, said
from tests.kubernetes.test_cluster_pods import DRIVER, at_rest, chart, node_file  # noqa: F401
from tests.nvml import compile_mig
from tests.simdriver import Options, make

pytestmark = [
    pytest.mark.skipif(not real.is_here(), reason=real.WHY_NOT),
    pytest.mark.skipif(not DRIVER.exists(), reason=f"needs a simulated driver in {DRIVER}: kubernetes-bed --gpus 2"),
]
CONFIG, STATE, PAUSED = "nvidia.com/mig.config", "nvidia.com/mig.config.state", "nvidia.com/gpurun.paused"
WHOLE, SMALL = "nvidia.com/gpu", "nvidia.com/mig-1g.5gb"
FILE = """version: v1
mig-configs:
  whole: [{devices: all, mig-enabled: false}]
  small: [{devices: [0], mig-enabled: true, mig-devices: {1g.5gb: 2}}, {devices: [1], mig-enabled: false}]
  odd: [{devices: all, mig-enabled: true, mig-devices: {9g.99gb: 1}}]
"""


def values(config: str = FILE, **more: Any) -> Object:
    manager = {"enabled": True, "config": config}
    return {
        "driverRoot": str(DRIVER), "migManager": manager, "devicePlugin": {"migStrategy": "mixed"},
        "uninstall": {"enabled": False}, "namespace": {"create": True},
    } | more  # fmt: skip


@pytest.fixture
def dividable(tmp_path: Path) -> Iterator[None]:
    """The node's two GPUs are such that MIG can divide; whole at first, and at the end what they were."""
    library = next(path for path in DRIVER.glob("usr/lib/**/libnvidia-ml.so.*") if not path.is_symlink())
    kept, state = tmp_path / "kept", library.parent / "mig"
    shutil.copy2(library, kept)
    every = tuple((gpu, gi, 0) for gpu in range(2) for gi in range(15))
    whole = make(tmp_path / "host", Options(gpus=2, mig=every)).path
    made = [
        DRIVER / "dev/nvidia-caps",
        DRIVER / "proc/driver/nvidia-caps",
        DRIVER / "proc/driver/nvidia/capabilities",
        state,
    ]
    for path in made[:2]:
        subprocess.run(["cp", "-a", whole / path.relative_to(DRIVER), path.parent], check=True)
    for path in made[2:]:
        path.mkdir()
    compile_mig(library, state.name, os.path.relpath(DRIVER, library.parent))
    yield
    shutil.copy2(kept, library)
    for path in made:
        shutil.rmtree(path)


def configure(name: str) -> None:
    kubectl("label", "node", NODE, f"{CONFIG}={name}", "--overwrite")


def state() -> str:
    return labels().get("mig.config.state", "")


def parts() -> dict[str, str]:
    """The pods that look at GPUs: component → name."""
    items = get("pods", "-n", "gpurun")["items"]
    named = {one["metadata"]["labels"]["app.kubernetes.io/component"]: one["metadata"]["name"] for one in items}
    return {component: name for component, name in named.items() if component in LOOKING}


def events() -> list[str]:
    return [str(one["message"]) for one in get("events", "--field-selector", "reason=MigConfig")["items"]]


def manager() -> str:
    return kubectl("-n", "gpurun", "logs", "daemonset/gpurun-mig-manager")


def test_the_label_divides_the_gpus_of_the_node(node_file: None, dividable: None, tmp_path: Path) -> None:
    try:
        with deployed(chart(values(), tmp_path)):
            until(lambda: offered(WHOLE) == (2, 2), said)
            until(lambda: set(parts()) == set(LOOKING), said)
            before = parts()
            assert state() == "", "a node without the label stays as it is"

            configure("odd")  # what cannot be is refused before anybody is sent away
            until(lambda: state() == "failed", manager)
            (told,) = events()
            assert "GPU 0 has no MIG profile 9g.99gb" in told and parts() == before

            configure("small")
            until(lambda: state() == "success", manager)
            assert PAUSED.partition("/")[2] not in labels()
            until(lambda: set(parts()) == set(LOOKING), said)
            assert not set(parts().values()) & set(before.values()), "each was sent away, and is back"
            until(lambda: (offered(SMALL), offered(WHOLE)[1]) == ((2, 2), 1), said)
            until(lambda: labels().get("mig-1g.5gb.count") == "2", labels)
            one = pod("computes", gpus=1, resource=SMALL)
            (container,) = one["spec"]["containers"]
            container["command"][2] = "ls /dev/nvidia-caps; " + container["command"][2]
            *capabilities, whole = has(run(one)[0])
            assert whole == "nvidia1" and len(capabilities) == 2, "of its GPU instance and its compute instance"

            configure("whole")
            until(lambda: state() == "pending" and not parts(), said)
            until(lambda: "waiting: pod default/computes has MIG-" in manager(), manager)
            assert get("pod", "computes")["status"]["phase"] == "Running" and labels()["gpurun.paused"]
            gone("computes")
            until(lambda: state() == "success", manager)
            until(lambda: offered(WHOLE) == (2, 2) and offered(SMALL)[1] == 0, said)
            until(lambda: "mig-1g.5gb.count" not in labels(), labels)
            assert events() == [told]
            assert "orbidden" not in manager() and "Traceback" not in manager()
    finally:
        kubectl("label", "node", NODE, f"{CONFIG}-", f"{STATE}-", f"{PAUSED}-")


def test_without_a_file_it_knows_what_the_gpus_can_be_divided_into(node_file: None, dividable: None, tmp_path: Path) -> None:
    def divided(*counts: int) -> bool:
        names = (SMALL, "nvidia.com/mig-2g.10gb", "nvidia.com/mig-3g.20gb", WHOLE)
        return tuple([offered(name)[1] for name in names]) == counts

    try:
        with deployed(chart(values(config=""), tmp_path)):
            until(lambda: divided(0, 0, 0, 2), said)
            configure("all-balanced")
            until(lambda: state() == "success", manager)
            until(lambda: divided(4, 2, 2, 0), said)
            until(lambda: labels().get("mig-3g.20gb.count") == "2", labels)
            assert len(has(run(pod("computes", gpus=1, resource="nvidia.com/mig-2g.10gb"))[0])) == 1
            gone("computes")

            configure("all-1g.5gb")
            until(lambda: state() == "success" and divided(14, 0, 0, 0), manager)

            configure("all-9g.99gb")
            until(lambda: state() == "failed", manager)
            names = 'has no configuration "all-9g.99gb", it has: all-disabled, all-enabled, all-1g.10gb, '
            (told,) = [event for event in events() if "all-9g.99gb" in event]
            assert names in told and "all-balanced" in told and divided(14, 0, 0, 0)

            configure("all-disabled")
            until(lambda: state() == "success" and divided(0, 0, 0, 2), manager)
            assert "orbidden" not in manager() and "Traceback" not in manager()
    finally:
        kubectl("label", "node", NODE, f"{CONFIG}-", f"{STATE}-", f"{PAUSED}-")


OTHERS, ELSE = "gpu.deploy.* of a node, and no others", "labels of a node, and nothing else"


@pytest.fixture(scope="module")
def bound(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, ...]]:
    """kubectl as the manager's account of this node; the chart's pods are for nodes that are not there."""
    made = chart(values(nodeSelector={"gpurun.test/none": "yes"}), tmp_path_factory.mktemp("chart"))
    kubectl("apply", "--validate=strict", "-f", "-", given=made)
    name = "gpurun-mig-manager-own-node"
    until(lambda: "typeChecking" in get("validatingadmissionpolicy", name).get("status", {}))
    assert not get("validatingadmissionpolicy", name)["status"]["typeChecking"].get("expressionWarnings")
    words = ("--kubeconfig", str(account(tmp_path_factory.mktemp("account"), "gpurun-mig-manager")))
    wrong = ["kubectl", *words, "label", "--dry-run=server", "node", NODE, "a=b"]
    # A new policy takes a moment.
    until(lambda: OTHERS in subprocess.run(wrong, capture_output=True, text=True).stderr)
    yield words
    delete(made)


@pytest.mark.parametrize(
    ("patch", "refused"),
    [
        ({"metadata": {"labels": {STATE: "pending", PAUSED: "x", "nvidia.com/gpu.deploy.dcgm": "x"}}}, ""),
        ({"metadata": {"labels": {STATE: None, PAUSED: None, "nvidia.com/gpu.deploy.dcgm": None}}}, ""),
        ({"metadata": {"labels": {CONFIG: "small"}}}, OTHERS),
        ({"metadata": {"labels": {"nvidia.com/gpu.count": "8"}}}, OTHERS),
        ({"metadata": {"labels": {"nvidia.com/device-plugin.config": "x"}}}, OTHERS),
        ({"metadata": {"labels": {f"{STATE}.more": "x"}}}, OTHERS),
        ({"metadata": {"labels": {"node-role.kubernetes.io/control-plane": ""}}}, OTHERS),
        ({"metadata": {"labels": {"kubernetes.io/os": None}}}, OTHERS),
        ({"metadata": {"labels": {"kubernetes.io/hostname": "another"}}}, OTHERS),
        ({"metadata": {"annotations": {"a": "b"}}}, ELSE),
        ({"metadata": {"finalizers": ["example.com/a"]}}, ELSE),
        ({"spec": {"taints": [{"key": "a", "effect": "NoExecute"}]}}, ELSE),
        ({"spec": {"unschedulable": True}}, ELSE),
    ],
)
def test_the_managers_account_changes_its_own_labels_alone(patch: Object, refused: str, bound: tuple[str, ...]) -> None:
    words = (*bound, "patch", "node", NODE, "--type", "merge", "--patch", json.dumps(patch))
    assert refused in kubectl(*words, good=not refused)


def test_the_managers_account_is_kept_to_its_node(bound: tuple[str, ...], another: str, tmp_path: Path) -> None:
    label = ("label", "node", another, f"{STATE}=success")
    assert f"a pod on node {NODE} may not change what is of node {another}" in kubectl(*bound, *label, good=False)
    token = kubectl("-n", "gpurun", "create", "token", "gpurun-mig-manager").strip()
    text = Path(bound[1]).read_text()
    loose = tmp_path / "loose"
    loose.write_text(text.replace(text.partition('"token": "')[2].partition('"')[0], token))
    answer = kubectl("--kubeconfig", str(loose), "label", "node", NODE, f"{STATE}=success", good=False)
    assert "not bound to a pod on a node" in answer
    kubectl(*bound, "-n", "gpurun", "get", "pods")
    for words in (("get", "pods", "-A"), ("get", "secrets", "-A"), ("-n", "gpurun", "delete", "pods", "--all"),
                  ("get", "events"), ("delete", "node", another)):  # fmt: skip
        assert "annot" in kubectl(*bound, *words, good=False)
