"""The device plugin on a real cluster: its scheduler and kubelet, containerd, and gpurun as the runtime of the pods."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.kubernetes import real
from tests.kubernetes.nodes import replace_node
from tests.kubernetes.real import get, gone, has, kubectl, offered, pod, run, until
from tests.kubernetes.real_parts import FIRST, GPU, SECOND, Plugin, owner
from tests.simdriver import minor, uuid

pytestmark = pytest.mark.skipif(not real.is_here(), reason=real.WHY_NOT)


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


def test_figures_with_the_pod(plugin: Plugin, directory: Path) -> None:
    (said,) = run(pod("one", gpus=1))
    line = owner(directory, plugin.driver, "one")
    assert f'device="{has(said)[0]}"' in line and 'namespace="default"' in line and 'container="main"' in line
