"""The node's GPUs as devices of ResourceSlices."""

from __future__ import annotations

import pytest

from gpurun.kubernetes.dra.slices import NodePool, allocatable, quantity, semantic_version, slices
from gpurun.kubernetes.node import NodeGpus
from gpurun.record import replace
from tests.kubernetes.records import gpu, mig, node, node_of
from tests.kubernetes.rules import problems
from tests.simdriver import bus_id, uuid

DIVIDED = node(gpu(0, 2, (mig(0, 0, start=0, size=1), mig(0, 1, "2g.20gb+me", start=4, size=2))), gpu(1, 2))


def test_a_gpu() -> None:
    (spec,) = slices(node_of(1), "node-1", {}, 36)
    assert (spec["driver"], spec["nodeName"]) == ("gpu.nvidia.com", "node-1")
    assert spec["pool"] == {"name": "node-1", "resourceSliceCount": 1} and "sharedCounters" not in spec
    (device,) = spec["devices"]
    assert device["name"] == "gpu-0" and device["capacity"] == {"memory": {"value": "80Gi"}}
    assert device["attributes"] == {
        "type": {"string": "gpu"}, "uuid": {"string": uuid(0)}, "index": {"int": 0}, "minor": {"int": 0},
        "productName": {"string": "NVIDIA H100 80GB HBM3"}, "brand": {"string": "nvidia"},
        "architecture": {"string": "Hopper"}, "cudaComputeCapability": {"version": "9.0.0"},
        "driverVersion": {"version": "570.86.15"}, "cudaDriverVersion": {"version": "12.8.0"}, "numaNode": {"int": 0},
        "resource.kubernetes.io/pciBusID": {"string": bus_id(0)},
        "resource.kubernetes.io/pcieRoot": {"string": "pci0000:00"},
    }  # fmt: skip


def test_mig_devices_and_their_counters() -> None:
    counters, devices = slices(DIVIDED, "node-1", {}, 36)
    assert counters["pool"]["resourceSliceCount"] == devices["pool"]["resourceSliceCount"] == 2
    assert "devices" not in counters and "sharedCounters" not in devices
    (shared,) = counters["sharedCounters"]
    assert shared["name"] == "gpu-0-counter-set" and sorted(shared["counters"]) == [f"memory-slice-{i}" for i in range(6)]
    first, second, whole = devices["devices"]
    assert [d["name"] for d in devices["devices"]] == ["gpu-0-mig-1g-10gb-1-0", "gpu-0-mig-2g-20gb-me-2-0", "gpu-1"]
    assert first["attributes"]["profile"] == {"string": "1g.10gb"}
    assert first["attributes"]["parentUUID"] == {"string": uuid(0)} and first["attributes"]["type"] == {"string": "mig"}
    assert second["consumesCounters"] == [
        {"counterSet": "gpu-0-counter-set", "counters": {"memory-slice-4": {"value": "1"}, "memory-slice-5": {"value": "1"}}}
    ]
    assert second["capacity"]["memorySlice4"] == {"value": "1"} and first["capacity"]["multiprocessors"] == {"value": "16"}
    assert "consumesCounters" not in whole
    (together,) = slices(DIVIDED, "node-1", {}, 34)
    assert together["sharedCounters"] and len(together["devices"]) == 3
    (without,) = slices(DIVIDED, "node-1", {}, 36, counting=False)
    assert "sharedCounters" not in without and all("consumesCounters" not in d for d in without["devices"])


def test_the_api_server_takes_them() -> None:
    """The limits of 1.36, held to by rules of the tests' own; the greatest MIG device has the most attributes."""
    parts = tuple((name, 7) for name in ("multiprocessorCount", "sharedCopyEngineCount", "sharedDecoderCount",
                                         "sharedEncoderCount", "sharedJpegCount", "sharedOfaCount"))  # fmt: skip
    whole = replace(mig(0, 0, "7g.80gb", start=0, size=8), parts=parts)
    many = [gpu(i, 18, tuple(mig(i, j, start=j, size=1) for j in range(7))) for i in range(16)]
    for found in (node_of(8), DIVIDED, NodeGpus(), node(*many, gpu(16, 18, (whole,)), gpu(17, 18))):
        for number, spec in enumerate(slices(found, "node-1.example", {}, 36)):
            body = {"metadata": {"name": f"s-{number}"}, "spec": spec | {"pool": spec["pool"] | {"generation": 1}}}
            assert problems(body, None, 36) == []


def test_what_is_ill_is_not_published() -> None:
    (spec,) = slices(node_of(2), "n", {uuid(0): "Xid 79"}, 36, tainting=False)
    assert [d["name"] for d in spec["devices"]] == ["gpu-1"]
    (spec,) = slices(NodeGpus(), "n", {}, 36)
    assert spec["devices"] == []  # a pool that is empty, so that what was in it is gone


def test_what_is_ill_has_a_taint() -> None:
    (spec,) = slices(node_of(3), "n", {uuid(0): "Xid 79", uuid(1): "its device node is gone"}, 36)
    assert [device.get("taints") for device in spec["devices"]] == [
        [{"key": "gpu.nvidia.com/xid", "value": "79", "effect": "NoSchedule"}],
        [{"key": "gpu.nvidia.com/unhealthy", "effect": "NoSchedule"}],
        None,
    ]
    assert problems({"metadata": {"name": "s"}, "spec": spec | {"pool": spec["pool"] | {"generation": 1}}}, None, 36) == []
    *_, devices = slices(DIVIDED, "n", {uuid(0): "Xid 79"}, 36)
    assert [bool(device.get("taints")) for device in devices["devices"]] == [True, True, False], "its parts are ill with it"


def test_no_slice_has_more_devices_than_the_api_takes() -> None:
    many = node(*[gpu(i, 10, tuple(mig(i, j, start=j, size=1) for j in range(7))) for i in range(10)])
    counters, more, *rest = slices(many, "n", {}, 36)
    assert [len(spec["devices"]) for spec in rest] == [64, 6]
    assert [len(spec["sharedCounters"]) for spec in (counters, more)] == [8, 2]
    assert all(spec["pool"]["resourceSliceCount"] == 4 for spec in rest)
    assert len({d["name"] for spec in rest for d in spec["devices"]}) == 70


def test_names_lead_back_to_the_devices() -> None:
    found = allocatable(DIVIDED)
    names = [device["name"] for spec in slices(DIVIDED, "n", {}, 36) for device in spec.get("devices", ())]
    assert sorted(found) == sorted(names)
    assert found["gpu-1"].uuid == uuid(1) and found["gpu-0-mig-1g-10gb-1-0"].gpu_uuid == uuid(0)


@pytest.mark.parametrize(
    ("text", "version"), [("535.54.03", "535.54.3"), ("12.8", "12.8.0"), ("9.0", "9.0.0"), ("570.86.15.1", "570.86.15")]
)
def test_versions(text: str, version: str) -> None:
    assert semantic_version(text) == version


@pytest.mark.parametrize(("size", "text"), [(80 << 30, "80Gi"), (1 << 20, "1Mi"), (1000, "1000"), (85520809984, "81559Mi")])
def test_quantities(size: int, text: str) -> None:
    assert quantity(size) == text


def test_gpus_whose_memory_claims_may_share() -> None:
    """All of it goes to a claim that does not say how much, so that claims written before have the GPU alone."""
    small = replace(gpu(2, 3), memory=(64 << 20) - 1)
    divided = gpu(0, 3, (mig(0, 0, start=0, size=1),))
    _, spec = slices(node(divided, gpu(1, 3), small), "n", {}, 36, sharing=True)
    part, whole, too_small = spec["devices"]
    assert whole["allowMultipleAllocations"] is True
    policy = {"default": "80Gi", "validRange": {"min": "64Mi"}}
    assert whole["capacity"] == {"memory": {"value": "80Gi", "requestPolicy": policy}}
    for one in (part, too_small):
        assert "allowMultipleAllocations" not in one and "requestPolicy" not in one["capacity"]["memory"]
    body = {"metadata": {"name": "n-0"}, "spec": spec | {"pool": spec["pool"] | {"generation": 1}}}
    assert problems(body, None, 36) == []


@pytest.mark.parametrize(("wanted", "limits", "shares"), [(True, True, True), (True, False, False), (False, True, False)])
def test_a_pool_has_shares_where_the_driver_limits_them(wanted: bool, limits: bool, shares: bool) -> None:
    assert NodePool(replace(node_of(1), limits=limits), {}, wanted).shares is shares
