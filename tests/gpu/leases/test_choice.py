"""Which GPUs are chosen of those that are free: NVLink, NUMA nodes, rest; and what is said of the others."""

from __future__ import annotations

import time
from typing import Any

import pytest

from gpurun.gpu.device import GpuDevice
from gpurun.gpu.leases import choice
from gpurun.gpu.leases.choice import choose, judge
from gpurun.gpu.request.free import FreeRequest, read_free_request
from gpurun.record import replace
from tests.gpu.devices import nvidia

GIB = 1 << 30


def unit(index: int, *links: int, node: int = 0, memory: int = 80 * GIB, model: str = "NVIDIA A100-SXM4-80GB") -> GpuDevice:
    return nvidia(index, f"0000:{index:02x}:00.0", links, model=model, numa_node=node, memory=memory)


def mig(gpu: int, gi: int, profile: str = "1g.10gb") -> GpuDevice:
    made = unit(gpu)
    return replace(made, key=f"{made.key}/{gi}/0", names=(f"MIG-{gpu}-{gi}",), parent=made.key, profile=profile)


def indices(*args: object, **how: object) -> list[int]:
    return [one.index for one in choose(*args, **how)]  # type: ignore[arg-type]


PAIRS = tuple(unit(n, n ^ 1, node=n // 4) for n in range(8))  # 0-1, 2-3, 4-5, 6-7, as bridges connect them


def test_pairs_go_together() -> None:
    assert indices(FreeRequest("", 2), PAIRS) == [0, 1]
    assert indices(FreeRequest("", 2), PAIRS[1:]) == [2, 3]
    assert indices(FreeRequest("", 4), PAIRS[1:]) == [4, 5, 6, 7]


def test_one_alone_breaks_no_pair() -> None:
    assert indices(FreeRequest("", 1), (PAIRS[0], PAIRS[1], PAIRS[3])) == [3]


def test_near_to_the_cpus_of_the_container() -> None:
    assert indices(FreeRequest("", 1), PAIRS, near=frozenset([1])) == [4]
    assert indices(FreeRequest("", 2), PAIRS, near=frozenset([1])) == [4, 5]
    apart = (unit(0, node=0), unit(1, 2, node=1), unit(2, 1, node=0))
    assert indices(FreeRequest("", 2), apart, near=frozenset([0])) == [1, 2], "NVLink counts more than nodes"


def test_on_one_node_where_nothing_else_says_so() -> None:
    assert indices(FreeRequest("", 2), (unit(0, node=0), unit(1, node=1), unit(2, node=1))) == [1, 2]


def test_who_has_rested_longest() -> None:
    alike = tuple(unit(n) for n in range(4))
    used = {alike[0].key: 30, alike[1].key: 10, alike[2].key: 20}
    assert indices(FreeRequest("", 1), alike, used=used) == [3]
    assert indices(FreeRequest("", 1), alike[:3], used=used) == [1]
    assert indices(FreeRequest("", 2), alike[:3], used=used) == [1, 2]


def test_nvlink_as_a_condition() -> None:
    request = read_free_request("free:2;nvlink", "")
    assert indices(request, PAIRS) == [0, 1]
    assert indices(request, (PAIRS[0], PAIRS[2], PAIRS[4])) == []
    assert indices(read_free_request("free:4;nvlink", ""), PAIRS) == []
    ring = tuple(unit(n, (n - 1) % 4, (n + 1) % 4) for n in range(4))
    assert indices(read_free_request("free:4;nvlink", ""), ring) == [0, 1, 2, 3], "over another one is connected, too"
    assert indices(read_free_request("free:2;nvlink", ""), (ring[0], ring[2])) == []


def test_too_few_is_nothing() -> None:
    assert choose(FreeRequest("", 2), PAIRS[:1]) == ()


@pytest.mark.parametrize("count", [1, 7, 16, 31])
def test_a_large_host_is_quick(count: int) -> None:
    many = tuple(unit(n, *[m for m in range(n - n % 8, n - n % 8 + 8) if m != n], node=n // 16) for n in range(32))
    start = time.process_time()
    chosen = choose(FreeRequest("", count), many)
    assert len(set(chosen)) == count and time.process_time() - start < 2
    if count == 7:
        assert len({one.index // 8 for one in chosen}) == 1, "all of one switch"


def test_of_very_many_those_are_added_that_belong_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is chosen one after the other is what comparing all sets would choose, where the two can be compared."""
    cases: tuple[tuple[tuple[GpuDevice, ...], int, dict[str, Any]], ...] = (
        (PAIRS[1:], 4, {}),
        (PAIRS, 2, {"near": frozenset([1])}),
        ((unit(0, node=0), unit(1, node=1), unit(2, node=0), unit(3, node=1)), 2, {"near": frozenset([1])}),
        ((PAIRS[0], PAIRS[2], PAIRS[3]), 2, {"must": frozenset([PAIRS[3].key])}),
        ((PAIRS[0], PAIRS[2], PAIRS[3]), 2, {"must": frozenset([PAIRS[0].key])}),
        (tuple(unit(n, *[m for m in range(4) if m != n]) if n < 4 else unit(n, n ^ 1) for n in range(8)), 3, {}),
    )
    for units, count, more in cases:
        compared = indices(FreeRequest("", count), units, **more)
        with monkeypatch.context() as few:
            few.setattr(choice, "MAX_SETS", 0)
            assert indices(FreeRequest("", count), units, **more) == compared


def why(
    request: str, units: tuple[GpuDevice, ...], taken: dict[str, str] | None = None, never: tuple[str, ...] = ()
) -> list[str]:
    return [v.why for v in judge(read_free_request(request, ""), units, taken or {}, frozenset(never))]


def test_what_stands_against_each() -> None:
    units = (unit(0), unit(1, model="Tesla T4", memory=16 * GIB), unit(2), unit(3))
    taken = {units[2].key: "leased by web"}
    assert why("free", units, taken, (units[3].key,)) == ["", "", "leased by web", "the site never leases it"]
    assert why("free;product=A100*", units, taken) == ["", "it is a Tesla T4", "leased by web", ""]
    assert why("free;memory>=20GiB", units) == ["", "it has 16 GiB of memory", "", ""]
    assert why("free;memory>=20GiB", (unit(0, memory=-1),)) == ["its memory is not known without NVML"]
    intels = replace(unit(0, memory=-1), vendor="intel")
    assert why("free;memory>=20GiB", (intels,)) == ["its memory is not known: its driver does not tell it"]


def test_only_what_is_taken_is_waited_for() -> None:
    units = (unit(0), unit(1, model="Tesla T4"))
    judged = judge(read_free_request("free;product=A100*", ""), units, {units[0].key: "x", units[1].key: "x"})
    assert [v.waiting for v in judged] == [True, False]


def test_mig() -> None:
    units = (unit(0), mig(0, 1), mig(0, 2, "2g.20gb"), unit(1))
    assert why("free", units) == ["it is divided into MIG devices: ask for one with profile=", ""]
    assert why("free;profile=1g.10gb", units) == ["", "its profile is 2g.20gb"]
    assert why("free;profile=1g.10gb", units, {units[0].key: "all of it is taken"}) == [
        "all of it is taken", "its profile is 2g.20gb",
    ]  # fmt: skip
    assert why("free;profile=1g.10gb", (unit(0), mig(0, 1, ""))) == ["its profile is not known without NVML"]


def test_what_is_not_well_or_never_leased() -> None:
    units = (replace(unit(0), unwell="Xid 79"), unit(1), mig(2, 1), mig(2, 2), mig(3, 1))
    assert why("free", units[:2]) == ["not well: Xid 79", ""]
    assert why("free", units[:2], never=(units[0].key, units[1].key)) == ["not well: Xid 79", "the site never leases it"]
    never = (units[2].key, units[4].gpu_key)
    assert why("free;profile=1g.10gb", units[2:], never=never) == [
        "the site never leases it",
        "",
        "the site never leases it",
    ]


def test_memory_that_nvml_does_not_tell_matters_to_who_asks_for_some() -> None:
    assert why("free", (unit(0, memory=-1),)) == [""]
    assert why("free;memory>=1GiB", (unit(0, memory=0),)) == ["it has 0 GiB of memory"]


def test_those_that_it_gets_anyway_are_among_them() -> None:
    three = (PAIRS[0], PAIRS[2], PAIRS[3])
    assert indices(FreeRequest("", 2), three, must=frozenset([PAIRS[0].key])) == [0, 2], "not the pair"
    assert indices(FreeRequest("", 3), three, must=frozenset([PAIRS[2].key])) == [0, 2, 3]
    assert indices(FreeRequest("", 1), three, must=frozenset([PAIRS[0].key, PAIRS[2].key])) == []


def test_parts_of_one_gpu_go_together_and_break_no_whole_one() -> None:
    """Partitions that have links: they are told by the GPU that they are parts of."""
    first, second = [
        [
            replace(unit(number, 99), key=f"0000:0{gpu}:00.0/{part}", parent=f"0000:0{gpu}:00.0")
            for part, number in enumerate(numbers)
        ]
        for gpu, numbers in ((0, (0, 3)), (1, (1, 2)))
    ]
    assert indices(FreeRequest("", 2), (*first, *second)) == [0, 3]
    assert indices(FreeRequest("", 1), (*first, second[1])) == [2], "the one whose other part is taken"


def test_one_that_is_restored_gets_those_that_it_had() -> None:
    assert indices(FreeRequest("", 2), PAIRS, had=frozenset(["GPU-1", "GPU-4"])) == [1, 4]
    assert indices(FreeRequest("", 2), PAIRS, had=frozenset(["GPU-5", "GPU-9"])) == [4, 5], "the one that is left of them"
    apart = read_free_request("free:2;nvlink", "")
    assert indices(apart, PAIRS, had=frozenset(["GPU-1", "GPU-4"])) == [0, 1], "they have no connection any more"
    assert indices(apart, PAIRS, had=frozenset(["GPU-6", "GPU-7"])) == [6, 7]
