"""Which devices are best given together."""

from __future__ import annotations

import time
from collections import Counter
from itertools import pairwise

import pytest

from gpurun.errors import GpurunError
from gpurun.gpu.device import DIRECT, PCIE, GpuDevice
from gpurun.kubernetes.config import PluginConfig, Replicated, Sharing
from gpurun.kubernetes.device_plugin.preferred import nearness_of, preferred, preferred_units
from gpurun.kubernetes.device_plugin.resources import Offer, Offered, offers
from tests.kubernetes.records import gpu, mig, node, node_of
from tests.simdriver import uuid

EIGHT = node_of(8)
OFFER = offers(EIGHT, PluginConfig())[0]
NEAR = nearness_of(EIGHT)


def chosen(available: list[int], size: int, must: tuple[int, ...] = ()) -> list[int]:
    found = preferred(OFFER, NEAR, [uuid(i) for i in available], [uuid(i) for i in must], size)
    assert len(found) == len(set(found)) == size
    return [next(i for i in range(8) if uuid(i) == one) for one in found]


def test_pairs_are_kept_together_and_whole_pairs_left() -> None:
    everything = list(range(8))
    assert chosen(everything, 2) == [0, 1]
    assert chosen(everything, 4) == [0, 1, 2, 3]
    assert chosen(everything, 1) == [0]
    # a GPU whose partner is taken goes first: no pair is broken for it
    assert chosen([0, 1, 3, 4, 5], 1) == [3]
    assert chosen([1, 2, 4, 5], 2) == [4, 5]
    assert chosen(everything, 2, (5,)) == [4, 5]
    assert chosen(everything, 3, (0, 7))[:2] in ([0, 1], [0, 6]) and 7 in chosen(everything, 3, (0, 7))


@pytest.mark.parametrize("size", range(9))
def test_every_size(size: int) -> None:
    found = chosen(list(range(8)), size)
    if size == 3:
        assert found == [0, 1, 2]
    # never from the far half while there is room in the near one
    assert found == list(range(size))


def test_the_same_numa_node_without_any_link() -> None:
    bare = node(*[gpu(i, 4) for i in range(4)])
    offer = offers(bare, PluginConfig())[0]
    far = {key: 70 if (value % 100) >= 70 else 0 for key, value in nearness_of(bare).items()}
    assert preferred(offer, far, [uuid(1), uuid(2), uuid(3)], [], 2) == (uuid(2), uuid(3))


def test_sixteen_gpus_do_not_take_long() -> None:
    many = node_of(16)
    offer, near = offers(many, PluginConfig())[0], nearness_of(many)
    began = time.monotonic()
    found = preferred(offer, near, [uuid(i) for i in range(16)], [], 8)
    assert time.monotonic() - began < 5
    assert list(found) == [uuid(i) for i in range(8)]


def test_more_sets_than_can_be_looked_at() -> None:
    many = node_of(32)
    offer, near = offers(many, PluginConfig())[0], nearness_of(many)
    began = time.monotonic()
    found = [int(one[4:12], 16) for one in preferred(offer, near, [uuid(i) for i in range(32) if i != 5], [], 12)]
    assert time.monotonic() - began < 5
    assert len(found) == 12 and 4 not in found and (max(found) < 16 or min(found) >= 16)
    assert all(b - a == 1 for a, b in pairwise(found) if a % 2 == 0)


def test_mig_devices_of_one_gpu_come_together() -> None:
    two = node(gpu(0, 2, (mig(0, 0),)), gpu(1, 2, (mig(1, 0), mig(1, 1))))
    offer = offers(two, PluginConfig(mig_strategy="single"))[0]
    assert preferred(offer, nearness_of(two), [d.id for d in offer.devices], [], 2) == ("MIG-1-0", "MIG-1-1")


def shared(count: int, replicas: int) -> Offer:
    sharing = Sharing("time-slicing", False, (Replicated("nvidia.com/gpu", replicas),))
    return offers(node_of(count), PluginConfig(sharing=sharing))[0]


def test_replicas_are_spread() -> None:
    offer = shared(2, 3)
    everything = [device.id for device in offer.devices]
    assert preferred(offer, {}, everything, [], 2) == (f"{uuid(0)}::0", f"{uuid(1)}::0")
    left = [one for one in everything if one != f"{uuid(0)}::0"]
    assert preferred(offer, {}, left, [], 1) == (f"{uuid(1)}::0",)
    assert preferred(offer, {}, left, [], 1, packed=True) == (f"{uuid(0)}::1",)
    assert preferred(offer, {}, everything, [f"{uuid(0)}::2"], 2) == (f"{uuid(0)}::2", f"{uuid(1)}::0")
    assert len(set(preferred(offer, {}, everything, [], 6))) == 6


@pytest.mark.parametrize(
    ("available", "must", "size", "said"),
    [
        (["GPU-9"], [], 1, "there is no device GPU-9"),
        ([uuid(0)], [], 2, "2 devices are asked for, 1 are available"),
        ([uuid(0)], [uuid(1)], 1, "must be included and is not available"),
        ([uuid(0), uuid(1)], [uuid(0), uuid(1)], 1, "1 devices are asked for, 2 must be included"),
        ([uuid(0)], [], -1, "-1 devices are asked for"),
    ],
)
def test_what_cannot_be(available: list[str], must: list[str], size: int, said: str) -> None:
    with pytest.raises(GpurunError, match=said):
        preferred(OFFER, NEAR, available, must, size)


#: The cases of NVIDIA's allocate_test.go: GPUs, replicas of each, what is asked for, policy → how many of each GPU, the
#: most first; None: refused.
NVIDIAS: list[tuple[int, int, int, bool, list[int] | None]] = [
    (2, 4, 2, False, [1, 1]),
    (3, 2, 3, False, [1, 1, 1]),
    (2, 4, 4, False, [2, 2]),
    (1, 4, 1, False, [1]),
    (1, 2, 5, False, None),
    (2, 4, 2, True, [2]),
    (3, 2, 3, True, [2, 1]),
    (2, 4, 4, True, [4]),
    (2, 4, 5, True, [4, 1]),
    (1, 4, 1, True, [1]),
    (1, 2, 5, True, None),
]


def of_each(found: tuple[str, ...]) -> list[int]:
    return sorted(Counter(one.partition("::")[0] for one in found).values(), reverse=True)


@pytest.mark.parametrize(("gpus", "replicas", "size", "packed", "wanted"), NVIDIAS)
def test_replicas_are_given_as_nvidias_plugin_gives_them(
    gpus: int, replicas: int, size: int, packed: bool, wanted: list[int] | None
) -> None:
    offer = shared(gpus, replicas)
    everything = [device.id for device in offer.devices]
    if wanted is None:
        with pytest.raises(GpurunError, match=f"{size} devices are asked for"):
            preferred(offer, {}, everything, [], size, packed)
        return
    assert of_each(preferred(offer, {}, everything, [], size, packed)) == wanted


def test_replicas_that_others_have() -> None:
    """The two more cases of theirs: one GPU full, one GPU partly given away."""
    offer = shared(2, 4)
    second = [device.id for device in offer.devices if device.uuid == uuid(1)]
    assert of_each(preferred(offer, {}, second, [], 2)) == [2]
    offer = shared(2, 2)
    left = [device.id for device in offer.devices if device.id != f"{uuid(1)}::0"]
    assert of_each(preferred(offer, {}, left, [], 2)) == [1, 1]
    # packed goes on with the GPU that others are on, as far as it goes
    assert [one.partition("::")[0] for one in preferred(offer, {}, left, [], 2, packed=True)] == [uuid(1), uuid(0)]
    must = [f"{uuid(0)}::0"]
    assert of_each(preferred(offer, {}, [device.id for device in offer.devices], must, 2, packed=True)) == [2]


def units(*order: int) -> tuple[Offer, dict[str, GpuDevice]]:
    """Four GPUs, of which 0 and 2, and 1 and 3, are joined by the maker's own link; their ids are letters."""
    made = {"abcd"[i]: GpuDevice("amd", f"0000:0{i}:00.0", (), i, links=((i ^ 2, DIRECT), (i ^ 1, PCIE))) for i in order}
    offered = [Offered(name, name, str(unit.index), unit.key, -1, 0, ()) for name, unit in made.items()]
    return Offer("amd.com/gpu", "amd.com/gpu", tuple(offered)), made


@pytest.mark.parametrize(
    ("available", "must", "size", "wanted"),
    [
        ("abcd", "", 2, "ac"),
        ("abcd", "d", 2, "bd"),
        ("abd", "", 2, "bd"),
        ("abcd", "ab", 2, "ab"),
        ("abcd", "b", 3, "abc"),
        ("abcd", "abcd", 4, "abcd"),
        ("abcd", "", 0, ""),
    ],
)
def test_by_links(available: str, must: str, size: int, wanted: str) -> None:
    offer, known = units(3, 0, 2, 1)
    assert sorted(preferred_units(offer, known, [*available], [*must], size)) == sorted(wanted)


def test_by_links_that_are_of_another_moment() -> None:
    offer, known = units(0, 1, 2, 3)
    del known["c"]
    assert sorted(preferred_units(offer, known, [*"acd"], [], 3)) == [*"acd"]
    assert preferred_units(offer, {}, [*"acd"], ["d"], 1) == ("d",)
    with pytest.raises(GpurunError, match="3 devices are asked for, 2 are available"):
        preferred_units(offer, known, [*"ab"], [], 3)
