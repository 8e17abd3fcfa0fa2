"""The tables of the tests of NVIDIA's DRA driver (its API, its webhook and the kubelet's plugin, version 0.5), case by case.

Not here: 2 cases of the webhook about HTTP and 4 about feature gates, for gpurun has a policy of the API server and no
gates; the image and the directories of its MPS pods (3), for gpurun's daemon has no pod; how it keeps taints (6).
"""

from __future__ import annotations

from typing import Any

import pytest

from gpurun.errors import ConfigError, GpurunError
from gpurun.gpu.nvidia.host.nvml_watch import XidEvent
from gpurun.kubernetes.dra.claim import DeviceConfig, read_claim, read_config
from gpurun.kubernetes.dra.prepare import _limits
from gpurun.kubernetes.dra.slices import NodePool
from gpurun.kubernetes.health import HealthState, XidFilter
from gpurun.record import replace
from tests.kubernetes.dra.test_claim import claim, config, opaque, result
from tests.kubernetes.records import gpu, node, node_of
from tests.simdriver import uuid

ONE = "UUID0"
#: the claim's GPUs, the limit of all, those of some → the limits in MiB, None where refused.  14 cases of
#: TestMpsPerDevicePinnedMemoryLimitNormalize.
LIMITS: list[tuple[list[str], str, dict[str, str], dict[str, int] | None]] = [
    ([], "", {}, {}),
    ([], "", {"0": "1Gi"}, {}),  # NVIDIA's: refused; gpurun reads no limits where a claim has no GPU by MPS
    ([], "2Gi", {"0": "1Gi"}, {}),
    ([ONE], "2Gi", {}, {"0": 2048}),
    ([ONE], "1M", {}, None),
    ([ONE], "", {ONE: "1M"}, None),
    ([ONE], "2Gi", {"0": "1Gi"}, {"0": 1024}),
    ([ONE], "2Gi", {ONE: "1Gi"}, {"0": 1024}),
    ([ONE], "2Gi", {"UUID1": "1Gi"}, None),
    ([ONE], "2Gi", {"1": "1Gi"}, None),
    ([ONE], "10Mi", {}, {"0": 10}),
    ([ONE], "1Gi", {}, {"0": 1024}),
    ([ONE], "10M", {}, {"0": 9}),
    ([ONE], "1G", {}, {"0": 953}),
]


@pytest.mark.parametrize(("gpus", "every", "each", "wanted"), LIMITS)
def test_limits_of_mps(gpus: list[str], every: str, each: dict[str, str], wanted: dict[str, int] | None) -> None:
    mps: dict[str, Any] = {"defaultPerDevicePinnedMemoryLimit": each}
    if every:
        mps["defaultPinnedDeviceMemoryLimit"] = every
    found = read_config(config({"strategy": "MPS", "mpsConfig": mps}), "c")
    pairs: list[tuple[str, DeviceConfig]] = [(one, found) for one in gpus]
    if wanted is None:
        with pytest.raises(GpurunError, match=r"^claim ns/c: "):
            _limits("claim ns/c", pairs)
    else:
        assert {name: size >> 20 for name, size in _limits("claim ns/c", pairs).memory} == wanted


SLICE = config({"strategy": "TimeSlicing", "timeSlicingConfig": {"interval": "Default"}})
WRONG_SLICE = config({"strategy": "TimeSlicing", "timeSlicingConfig": {"interval": "Invalid Interval"}})
WRONG_MPS = config({"strategy": "MPS", "mpsConfig": {"defaultActiveThreadPercentage": -1}})


@pytest.mark.parametrize(
    ("configs", "said"),
    [
        ([SLICE], ""),
        ([WRONG_SLICE], r"config\[0\]\.sharing\.timeSlicingConfig\.interval: 'Invalid Interval' is unknown, known are Def"),
        ([WRONG_MPS], r"config\[0\]\.sharing\.mpsConfig\.defaultActiveThreadPercentage: must be a number from 0 to 100"),
        ([WRONG_SLICE, WRONG_MPS], r"config\[0\]\.sharing\.timeSlicingConfig\.interval"),
    ],
)
def test_configuration_of_a_claim(configs: list[dict[str, Any]], said: str) -> None:
    """12 cases of TestResourceClaimValidatingWebhook: these four of claims and templates, in three versions of the API.

    The API server turns each version into the one that is asked for; test_cluster_dra.py has both kinds on a real one.
    """
    body = claim([result()], [opaque(one) for one in configs])
    if said:
        with pytest.raises(ConfigError, match=said):
            read_claim(body, "node-1")
    else:
        assert read_claim(body, "node-1").devices[0].config == DeviceConfig("TimeSlicing")


GIB = 1 << 30


@pytest.mark.parametrize(
    ("wanted", "limits", "shares"), [(False, True, False), (False, False, False), (True, True, True), (True, False, False)]
)
def test_shares_of_memory(wanted: bool, limits: bool, shares: bool) -> None:
    """3 of the 6 cases of TestApplyConsumableShares: both ways to be switched off, and its option "memory".

    All of the GPU is the default in both; the least share is 1Mi there and 64Mi here.  The other 3 are of its options for
    claims on no memory ("unlimited") and for shares that are counted.  Its version 0.5 keeps nobody to any of them; gpurun
    has only shares that the GPU's driver limits.
    """
    here = replace(node(replace(gpu(0), memory=16 * GIB)), limits=limits)
    pool = NodePool(here, {}, wanted)
    (spec,) = pool.slices("n", 36, True, True, pool.shares)
    (device,) = spec["devices"]
    policy = {"default": "16Gi", "validRange": {"min": "64Mi"}}
    assert device.get("allowMultipleAllocations", False) is shares
    assert device["capacity"]["memory"] == {"value": "16Gi"} | ({"requestPolicy": policy} if shares else {})


NO_SCHEDULE = "NoSchedule"


@pytest.mark.parametrize(
    ("xid", "lost", "taint"),
    [
        (48, "", [{"key": "gpu.nvidia.com/xid", "value": "48", "effect": NO_SCHEDULE}]),
        (13, "", None),  # NVIDIA's: a taint without an effect
        (0, "GPU is lost", [{"key": "gpu.nvidia.com/gpu-lost", "effect": NO_SCHEDULE}]),
    ],
)
def test_taints(xid: int, lost: str, taint: list[dict[str, str]] | None) -> None:
    """3 of the 6 cases of TestHealthEventToTaint; gpurun has no taint for a GPU that it does not watch."""
    here, state = node(replace(gpu(0), problem=lost)), HealthState(XidFilter())
    if xid:
        state.xid(XidEvent(uuid(0), xid), here)
    (spec,) = NodePool(here, state.unhealthy(here)).slices("n", 36, True, True, False)
    assert spec["devices"][0].get("taints") == taint


@pytest.mark.parametrize(("xid", "counts"), [(13, False), (48, True)])
def test_xids_of_applications(xid: int, counts: bool) -> None:
    """2 of the 4 cases of TestIsEventNonFatal; the others are no Xids."""
    state = HealthState(XidFilter())
    assert bool(state.xid(XidEvent(uuid(0), xid), node_of(1))) is counts
