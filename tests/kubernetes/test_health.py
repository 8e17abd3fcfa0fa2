"""When a device is unhealthy, and when it is well again."""

from __future__ import annotations

import pytest

from gpurun.gpu.nvidia.host.nvml_watch import XidEvent
from gpurun.kubernetes.health import CALM_LOOKS, HealthState, XidFilter, xid_filter
from gpurun.kubernetes.node import NodeGpus
from gpurun.record import replace
from tests.kubernetes.records import gpu, mig, node, node_of
from tests.simdriver import uuid

TWO = node_of(2)
DIVIDED = node(gpu(0, 2, (mig(0, 0), mig(0, 1))), gpu(1, 2))


def changed(whole: NodeGpus, index: int, **fields: object) -> NodeGpus:
    gpus = [replace(one, **fields) if one.index == index else one for one in whole.gpus]
    return replace(whole, gpus=tuple(gpus))


@pytest.mark.parametrize("xid", [13, 31, 43, 45, 68])
def test_an_applications_xid_does_not_count(xid: int) -> None:
    state = HealthState(XidFilter())
    assert state.xid(XidEvent(uuid(0), xid), TWO) == () and state.unhealthy(TWO) == {}


@pytest.mark.parametrize("xid", [48, 63, 74, 79, 95])
def test_any_other_does(xid: int) -> None:
    state = HealthState(XidFilter())
    assert state.xid(XidEvent(uuid(1), xid), TWO) == (uuid(1),)
    assert state.unhealthy(TWO) == {uuid(1): f"Xid {xid}"}


def test_whose_it_is() -> None:
    state = HealthState(XidFilter())
    assert state.xid(XidEvent(uuid(0), 79, 1, 0), DIVIDED) == ("MIG-0-0",)
    assert state.xid(XidEvent(uuid(0), 79), DIVIDED) == (uuid(0), "MIG-0-0", "MIG-0-1")
    assert state.xid(XidEvent("", 79), TWO) == (uuid(0), uuid(1))
    assert state.xid(XidEvent("GPU-9", 79), TWO) == ()


@pytest.mark.parametrize(
    ("env", "counting"),
    [
        ({}, {13: False, 48: True}),
        ({"DP_DISABLE_HEALTHCHECKS": "48, x"}, {13: False, 48: False, 79: True}),
        ({"DP_DISABLE_HEALTHCHECKS": "all"}, {48: False, 79: False}),
        ({"DP_DISABLE_HEALTHCHECKS": "XIDS", "DP_ENABLE_HEALTHCHECKS": "79"}, {48: False, 79: True}),
        ({"DP_ENABLE_HEALTHCHECKS": "13"}, {13: True, 31: False}),
        ({"DP_DISABLE_HEALTHCHECKS": "79", "DP_ENABLE_HEALTHCHECKS": "all"}, {13: True, 79: True}),
    ],
)
def test_nvidias_variables(env: dict[str, str], counting: dict[int, bool]) -> None:
    found = xid_filter(env)
    assert {xid: found.counts(xid) for xid in counting} == counting


def test_a_device_node_that_is_gone_and_back() -> None:
    state = HealthState(XidFilter())
    state.look(TWO)
    gone = changed(TWO, 0, present=False)
    state.look(gone)
    assert state.unhealthy(gone) == {uuid(0): "its device node /dev/nvidia0 is gone"}
    state.look(TWO)
    assert state.unhealthy(TWO) == {}


def test_a_gpu_that_was_reset_is_well_again() -> None:
    state = HealthState(XidFilter())
    state.look(TWO)
    state.xid(XidEvent(uuid(0), 79), TWO)
    state.look(TWO)
    assert uuid(0) in state.unhealthy(TWO)  # nothing has been done about it
    state.look(replace(TWO, gpus=TWO.gpus[1:]))
    state.look(TWO)
    assert state.unhealthy(TWO) == {}


def test_the_driver_says_what_a_gpu_needs() -> None:
    state = HealthState(XidFilter())
    needing = changed(TWO, 0, recovery="reset")
    calm = changed(TWO, 0, recovery="none")
    state.look(calm)
    state.xid(XidEvent(uuid(0), 48), calm)
    state.look(needing)
    assert state.unhealthy(needing) == {uuid(0): "the driver says that it needs recovery: reset"}
    for _ in range(CALM_LOOKS):
        assert uuid(0) in state.unhealthy(calm)
        state.look(calm)
    assert state.unhealthy(calm) == {}


def test_what_nvml_says_of_a_gpu() -> None:
    state = HealthState(XidFilter())
    lost = changed(DIVIDED, 0, problem="GPU is lost")
    assert state.unhealthy(lost) == dict.fromkeys([uuid(0), "MIG-0-0", "MIG-0-1"], "GPU is lost")


def test_a_mig_device_whose_node_is_gone() -> None:
    broken = changed(DIVIDED, 0, migs=(replace(DIVIDED.gpus[0].migs[0], present=False), DIVIDED.gpus[0].migs[1]))
    assert HealthState(XidFilter()).unhealthy(broken) == {"MIG-0-0": "its capability node is gone"}
