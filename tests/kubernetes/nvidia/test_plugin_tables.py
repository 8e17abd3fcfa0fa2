"""The tables of k8s-device-plugin's tests of what the kubelet asks (internal/rm and internal/plugin, version 0.20).

Its 13 cases of replicas that are spread or packed are in device_plugin/test_preferred.py.  Not here: the parts of a MIG
device's old UUID and of its handle (10 cases), which gpurun reads from NVML's event; Windows' GPUs (1); its map of
devices (4).
"""

from __future__ import annotations

from collections import Counter

import pytest

from gpurun.errors import ConfigError, GpurunError
from gpurun.kubernetes.config import PluginConfig, Replicated, Sharing
from gpurun.kubernetes.config_file import parse
from gpurun.kubernetes.device_plugin.mps_daemons import max_clients
from gpurun.kubernetes.device_plugin.preferred import nearness_of, preferred
from gpurun.kubernetes.device_plugin.resources import offers
from gpurun.kubernetes.device_plugin.response import allocation
from gpurun.kubernetes.health import APPLICATION_XIDS, xid_filter
from gpurun.record import replace
from tests.kubernetes.records import gpu, mig, node, node_of
from tests.simdriver import uuid

GPU = "nvidia.com/gpu"


def config(strategy: str = "none", fail: bool = False, replicas: int = 2) -> PluginConfig:
    if strategy == "none":
        return PluginConfig()
    return PluginConfig(sharing=Sharing(strategy, fail, (Replicated(GPU, replicas),)))


#: strategy, whether more than one replica is refused, ids, whether they are given; 8 cases of TestValidateRequest.
REQUESTS: list[tuple[str, bool, list[str], bool]] = [
    ("none", False, [uuid(1)], True),
    ("none", False, [uuid(1), "device2"], False),
    *[(how, False, [f"{uuid(0)}::1"], True) for how in ("time-slicing", "mps")],
    *[(how, False, [f"{uuid(0)}::1", f"{uuid(1)}::0"], True) for how in ("time-slicing", "mps")],
    *[(how, True, [f"{uuid(0)}::1", f"{uuid(1)}::0"], False) for how in ("time-slicing", "mps")],
]


@pytest.mark.parametrize(("strategy", "fail", "ids", "good"), REQUESTS)
def test_a_request(strategy: str, fail: bool, ids: list[str], good: bool) -> None:
    said = config(strategy, fail)
    (offer,) = offers(node_of(2), said)
    if good:
        assert len(allocation(offer, said, ids).cdi) == len(ids)
    else:
        with pytest.raises(GpurunError):
            allocation(offer, said, ids)


@pytest.mark.parametrize(("asked", "given"), [((1,), "1"), ((1, 0, 1), "1,0")])
def test_each_device_once(asked: tuple[int, ...], given: str) -> None:
    """2 cases of TestAllocate."""
    said = PluginConfig(list_strategies=("envvar",), id_strategy="index")
    (offer,) = offers(node_of(2), said)
    assert dict(allocation(offer, said, [uuid(i) for i in asked]).env) == {"NVIDIA_VISIBLE_DEVICES": given}


@pytest.mark.parametrize("prefix", ["cdi.k8s.io/", "custom.cdi.k8s.io/"])
@pytest.mark.parametrize("count", [1, 2])
def test_annotations(prefix: str, count: int) -> None:
    """4 cases of TestCDIAllocateResponse.

    In the other 5 gpurun answers otherwise: a request for no device is refused, because the kubelet makes none; GDS, MOFED
    and IMEX channels are in the CDI file's own devices, so they are not named beside a GPU.
    """
    said = PluginConfig(list_strategies=("cdi-annotations",), annotation_prefix=prefix)
    (offer,) = offers(node_of(2), said)
    ((key, names),) = allocation(offer, said, [uuid(i) for i in range(count)]).annotations
    assert key.startswith(f"{prefix}nvidia-device-plugin_")
    assert names == ",".join([f"k8s.device-plugin.nvidia.com/gpu={uuid(i)}" for i in range(count)])


#: What is disabled → the Xids that do not count beside those of applications; 10 cases of TestNewHealthCheckXIDs.
DISABLED = [
    ("", []), (",", []), ("not-an-int", []), ("68", [68]), ("-68", []), ("68  ", [68]), ("68,", [68]), (",68", [68]),
    ("68,67", [67, 68]), ("68,not-an-int,67", [67, 68]),
]  # fmt: skip


@pytest.mark.parametrize(("text", "xids"), DISABLED)
def test_xids_that_are_disabled(text: str, xids: list[int]) -> None:
    assert xid_filter({"DP_DISABLE_HEALTHCHECKS": text}).ignored == APPLICATION_XIDS | set(xids)


#: disabled, enabled → the Xids of 13, 31, 43, 45, 68, 109, 11 and 555 that count; 5 cases of TestGetDisabledHealthCheckXids.
COUNTING: list[tuple[str, str, set[int]]] = [
    ("", "", {11, 555}),
    ("all", "", set()),
    ("xids", "", set()),
    ("", "all", {13, 31, 43, 45, 68, 109, 11, 555}),
    ("11", "11", {11, 555}),
]


@pytest.mark.parametrize(("disabled", "enabled", "counting"), COUNTING)
def test_xids_that_count(disabled: str, enabled: str, counting: set[int]) -> None:
    found = xid_filter({"DP_DISABLE_HEALTHCHECKS": disabled, "DP_ENABLE_HEALTHCHECKS": enabled})
    assert {xid for xid in (13, 31, 43, 45, 68, 109, 11, 555) if found.counts(xid)} == counting


#: compute capability, replicas, whether MPS serves them; 8 cases of TestDevice.
CLIENTS = [
    ("7.5", 2, True),
    ("7.5", 48, True),
    ("9.0", 48, True),
    ("9.0", 49, False),
    # NVIDIA's plugin takes 7.0 for a GPU before Volta, with 16 clients. It is Volta, with 48.
    ("7.0", 16, True),
    ("7.0", 29, True),
    ("6.1", 16, True),
    ("6.1", 17, False),
]


@pytest.mark.parametrize(("compute", "replicas", "served"), CLIENTS)
def test_clients_of_mps(compute: str, replicas: int, served: bool) -> None:
    (offer,) = offers(node(replace(gpu(0), compute=compute)), config("mps", True, replicas))
    assert (offer.replicas <= max_clients(offer)) is served


def test_distributed_is_the_default() -> None:
    """TestDistributedAllocIsDefault and TestPackedVsDistributedContrast."""
    assert PluginConfig().allocation_policy == "distributed"
    for gpus, size, packed, wanted in ((3, 3, False, [1, 1, 1]), (2, 4, False, [2, 2]), (2, 4, True, [4])):
        (offer,) = offers(node_of(gpus), config("time-slicing", replicas=4))
        found = preferred(offer, {}, [one.id for one in offer.devices], [], size, packed)
        assert sorted(Counter(one.partition("::")[0] for one in found).values()) == wanted


@pytest.mark.parametrize("policy", ["", "no-such-policy"])
def test_an_unknown_policy_is_refused(policy: str) -> None:
    """2 of the 4 cases of TestComparatorForPolicy; its function takes them for distributed, but its program refuses them."""
    with pytest.raises(ConfigError, match=r"sharedDevicesAllocationPolicy: .* is unknown, known are distributed, packed"):
        parse(f"version: v1\nflags: {{plugin: {{sharedDevicesAllocationPolicy: '{policy}'}}}}\n", "c")


@pytest.mark.parametrize("packed", [False, True])
def test_the_policy_orders_by_what_is_taken(packed: bool) -> None:
    """The other 2, and the 2 of TestComparatorsOrderSolelyByAllocated: one replica of GPU 0 is taken, or of each GPU."""
    (offer,) = offers(node_of(2), config("time-slicing", replicas=4))
    left = [one.id for one in offer.devices if one.id != f"{uuid(0)}::0"]
    (found,) = preferred(offer, {}, left, [], 1, packed)
    assert found.startswith(uuid(0) if packed else uuid(1))
    alike = [one for one in left if one != f"{uuid(1)}::0"]
    assert preferred(offer, {}, alike, [], 1, packed) == preferred(offer, {}, alike[::-1], [], 1, packed)


@pytest.mark.parametrize("size", [1, 2, 3])
def test_the_policy_is_not_for_whole_gpus_and_mig_devices(size: int) -> None:
    """3 cases of TestFullGPUNodeIgnoresAllocationPolicy."""
    for whole, said in (
        (node_of(4), PluginConfig()),
        (node(gpu(0, 2, (mig(0, 0), mig(0, 1))), gpu(1, 2, (mig(1, 0),))), PluginConfig(mig_strategy="single")),
    ):
        (offer,), near = offers(whole, said), nearness_of(whole)
        every = [one.id for one in offer.devices]
        assert preferred(offer, near, every, [], size, True) == preferred(offer, near, every, [], size, False)
