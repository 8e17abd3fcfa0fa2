"""Shares of a GPU's memory by claims: what is published, and what the containers of such a claim get."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpurun.kubernetes.protocols import dra_v1_pb2 as v1
from tests.kubernetes.api_server import ApiServer, Object
from tests.kubernetes.cluster import REAL, Cluster, cluster
from tests.kubernetes.dra.test_claim import config, opaque
from tests.kubernetes.nodes import stub_library
from tests.nvml import compile_stub
from tests.simdriver import uuid

pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason="device nodes need root"),
    pytest.mark.skipif(REAL, reason="on a real cluster: test_cluster_shares.py"),
]
#: The device of GPU 1, whose minor is 0.
DEVICE, GPU = "gpu-0", uuid(1)


def library(made: Cluster, limits: bool = True) -> None:
    """A driver that limits memory, or an older one."""
    path = made.directory / "told"
    compile_stub(stub_library(made.driver.path), events=made.directory / "events", limits=path if limits else None)


@pytest.fixture
def shared() -> Iterator[Cluster]:
    with cluster() as made:
        library(made)
        made.start(memory_shares=True)
        made.until(lambda: len(made.published()) == 2)
        yield made


def share(made: Cluster, name: str, amount: str, number: int, configs: list[Object] | None = None) -> v1.Claim:
    return made.allocate(name, DEVICE, config=configs, shareID=f"share-{number}", consumedCapacity={"memory": amount})


def hooks(made: Cluster, uid: str) -> dict[str, list[str]]:
    """By CDI device the arguments of its createRuntime hooks, in the file of the claim *uid*."""
    (path,) = made.cdi_dir.glob(f"*{uid}.json")
    devices = json.loads(path.read_text())["devices"]
    return {
        device["name"]: [
            " ".join(hook["args"][1:])
            for hook in device["containerEdits"].get("hooks", ())
            if hook["hookName"] == "createRuntime"
        ]
        for device in devices
    }


def limit(size: int) -> str:
    return f"apply-cuda-memory-limits --driver-root / --gpu-id {GPU} --limit {size}"


def test_gpus_are_published_for_several_claims(shared: Cluster) -> None:
    (spec,) = shared.slices()
    for device in spec["devices"]:
        assert device["allowMultipleAllocations"] is True
        assert device["capacity"]["memory"]["requestPolicy"]["default"] == device["capacity"]["memory"]["value"]


def test_each_claim_has_the_limit_of_its_share(shared: Cluster) -> None:
    one, two = share(shared, "one", "8Gi", 1), share(shared, "two", "16Gi", 2)
    answers = shared.prepare(one, two)
    for claim, number, size in ((one, 1, 8 << 30), (two, 2, 16 << 30)):
        uid = claim.uid
        assert answers[uid].error == ""
        (device,) = answers[uid].devices
        name = f"{uid}-{DEVICE}-share-{number}"
        assert device.share_id == f"share-{number}"
        assert list(device.cdi_device_ids) == [f"k8s.gpu.nvidia.com/claim={name}"]
        assert hooks(shared, uid) == {name: [limit(size)]}
    again = shared.prepare(one)
    assert again[one.uid] == answers[one.uid]
    done = shared.unprepare(one)
    assert not done[one.uid].error
    assert [path.name for path in shared.cdi_dir.iterdir()] == [f"k8s.gpu.nvidia.com-claim_{two.uid}.json"]


def test_all_of_a_gpu_has_no_limit(shared: Cluster) -> None:
    """As a claim has it that does not say how much: the scheduler gives nobody else any of it."""
    (spec,) = shared.slices()
    everything = spec["devices"][0]["capacity"]["memory"]["value"]
    claim = share(shared, "whole", everything, 1)
    assert shared.prepare(claim)[claim.uid].error == ""
    assert list(hooks(shared, claim.uid).values()) == [[]]


def test_two_shares_of_one_gpu_in_a_claim(shared: Cluster) -> None:
    """For two containers: each has the limit of its own."""
    assert shared.server is not None
    claim = shared.allocate("both", DEVICE, DEVICE)
    (made,) = [one for key, one in shared.server.objects.items() if key[0] == "resourceclaims"]
    for number, one in enumerate(made["status"]["allocation"]["devices"]["results"]):
        one |= {"shareID": f"s{number}", "consumedCapacity": {"memory": f"{number + 1}Gi"}}
    answer = shared.prepare(claim)[claim.uid]
    assert answer.error == ""
    names = [device.cdi_device_ids[0].partition("=")[2] for device in answer.devices]
    assert hooks(shared, claim.uid) == {names[0]: [limit(1 << 30)], names[1]: [limit(2 << 30)]}


@pytest.mark.parametrize(
    ("amount", "sharing", "why"),
    [
        ("much", None, "consumedCapacity.memory: 'much' is not an amount of memory such as 8Gi"),
        ("8Gi", {"strategy": "MPS"}, "is shared with other claims, so MPS cannot be set for this one"),
    ],
)
def test_a_share_that_cannot_be(shared: Cluster, amount: str, sharing: Object | None, why: str) -> None:
    claim = share(shared, "bad", amount, 1, [opaque(config(sharing))])
    assert why in shared.prepare(claim)[claim.uid].error
    assert not shared.cdi_dir.exists() or not any(shared.cdi_dir.iterdir())
    good = share(shared, "good", "8Gi", 2)
    assert shared.prepare(good)[good.uid].error == "", "what failed holds nothing"


def test_the_same_share_again_is_another_claims(shared: Cluster) -> None:
    """Two claims with one share, or one with the whole GPU beside a share: the first is asked about, and stays."""
    one = share(shared, "one", "8Gi", 1)
    assert shared.prepare(one)[one.uid].error == ""
    for other in (share(shared, "same", "8Gi", 1), shared.allocate("whole", DEVICE)):
        error = shared.prepare(other)[other.uid].error
        assert error.endswith("gpu-0 is still prepared for claim default/one")


def test_a_driver_that_cannot_limit_memory(capfd: pytest.CaptureFixture[str]) -> None:
    with cluster() as made:
        library(made, limits=False)
        made.start(memory_shares=True)
        made.until(lambda: len(made.published()) == 2)
        assert all("allowMultipleAllocations" not in device for device in made.slices()[0]["devices"])
    assert "no claim gets a share of a GPU's memory: this driver cannot limit" in capfd.readouterr().err


@pytest.mark.parametrize("minor_version", [33, 36])
def test_a_server_that_gives_a_device_to_one_claim(minor_version: int, capfd: pytest.CaptureFixture[str]) -> None:
    """It is too old, or has the feature off and leaves the field out without a word: nothing is written again and again."""
    server = ApiServer(minor=minor_version)
    written: list[str] = []

    def admit(plural: str, body: Object) -> Object | None:
        for device in body["spec"].get("devices", ()):
            device.pop("allowMultipleAllocations", None)
        written.append(str(body["metadata"]["name"]))
        return body

    server.admit = admit
    with cluster(server=server) as made:
        library(made)
        made.start(memory_shares=True)
        made.until(lambda: len(made.published()) == 2)
        assert all("requestPolicy" not in device["capacity"]["memory"] for device in made.slices()[0]["devices"])
        node = made.device_node(0)
        node.unlink()
        made.until(lambda: len(made.published()) == 1)
    assert [name for name in written if not name.endswith("-try")] == ["node-1-gpu.nvidia.com-0"] * 2
    assert "does not give a device to several claims" in capfd.readouterr().err


def test_without_the_switch_nothing_is_shared() -> None:
    with cluster() as made:
        library(made)
        made.start()
        made.until(lambda: len(made.published()) == 2)
        assert all("allowMultipleAllocations" not in device for device in made.slices()[0]["devices"])
        assert Path(made.checkpoint).exists() is False
