"""Shares of a GPU's memory on a real cluster: the scheduler counts them, and the driver is told each container's."""

# ruff: noqa: F811 - the fixtures are imported
from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.gpu.nvidia.test_memory_limits import Told
from tests.kubernetes import real
from tests.kubernetes.nodes import stub_library
from tests.kubernetes.real import REPOSITORY, Object, gone, has, kubectl, pod, run, until
from tests.kubernetes.real_parts import Dra, gpu, template
from tests.nvml import compile_stub

SECOND_GPU = "device.attributes['gpu.nvidia.com'].index == 1"
pytestmark = pytest.mark.skipif(not real.is_here(), reason=real.WHY_NOT)


@pytest.fixture
def shared(rights: None, directory: Path, pods: None) -> Iterator[tuple[Dra, Told]]:
    """The DRA driver with two GPUs of 80 GiB each, and what NVML is told to set for whom."""
    made = Dra(directory, words=("--memory-shares", "--hook-path", str(REPOSITORY / "build/gpurun")))
    path = directory / "told"
    path.unlink(missing_ok=True)
    told = Told(path)
    compile_stub(stub_library(made.driver.path), gpus=2, events=directory / "events", limits=path)
    made.program.start()
    until(lambda: len(made.devices()) == 2 and "registered with the kubelet" in made.program.said(), made.program.said)
    yield made, told
    gone()
    kubectl("delete", "resourceclaimtemplates", "--all")
    until(lambda: not made.claims(), made.program.said)
    made.program.stop()
    kubectl("delete", "resourceslices", "--all")


def some(amount: str) -> Object:
    """A request for *amount* of the memory of GPU 1."""
    return gpu(SECOND_GPU, capacity={"requests": {"memory": amount}})


def cgroup_of(name: str) -> str:
    """The cgroup of the only container of the pod *name*."""
    status = real.get("pod", name)["status"]["containerStatuses"][0]
    identity = str(status["containerID"]).rpartition("/")[2]
    for path, _, _ in os.walk("/sys/fs/cgroup"):
        if identity in os.path.basename(path):
            return path
    raise AssertionError(f"no cgroup of {identity}")


def test_pods_have_as_much_as_they_ask_for(shared: tuple[Dra, Told]) -> None:
    _, told = shared
    kubectl("create", "-f", "-", given=[template("small", some("16Gi")), template("large", some("48Gi"))])
    said = run(pod("one", claim="small"), pod("two", claim="large"))
    (node,) = {tuple(has(text)) for text in said}
    assert len(node) == 1, "both have the same GPU"
    limits = {cgroup: (gpu_, soft, hard) for gpu_, soft, hard, may, cgroup in told() if may == "open"}
    assert limits == {cgroup_of("one"): (1, 0, 16 << 10), cgroup_of("two"): (1, 0, 48 << 10)}
    # 16 GiB are left: a third small one has them, and a large one waits until the other has gone.
    run(pod("three", claim="small"))
    kubectl("create", "-f", "-", given=pod("four", claim="large"))
    until(lambda: "cannot allocate all claims" in kubectl("describe", "pod", "four"))
    gone("two")
    until(lambda: "end" in kubectl("logs", "four", "--ignore-errors"), lambda: kubectl("describe", "pod", "four")[-800:])
    assert [(one[2], one[4]) for one in told()] == [(16 << 10, cgroup_of("three")), (48 << 10, cgroup_of("four"))]


def test_a_claim_that_does_not_say_how_much_has_the_gpu_alone(shared: tuple[Dra, Told]) -> None:
    _, told = shared
    kubectl("create", "-f", "-", given=[template("whole", gpu(SECOND_GPU)), template("small", some("64Mi"))])
    run(pod("one", claim="whole"))
    assert told() == []
    kubectl("create", "-f", "-", given=pod("two", claim="small"))
    until(lambda: "cannot allocate all claims" in kubectl("describe", "pod", "two"))
    words = [sys.executable, "-m", "gpurun", "kubernetes", "explain", "default/two"]
    env = os.environ | {"PYTHONPATH": str(REPOSITORY / "src")}
    explained = subprocess.run(words, env=env, capture_output=True, text=True)
    assert "64Mi of memory wanted, 0 of 80Gi left: claim default/one" in explained.stdout, explained
