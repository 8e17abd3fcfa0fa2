"""Which of AMD's free GPUs and partitions are taken: the sets that the allocator of AMD's device plugin is tested for."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pytest

from gpurun.gpu.amd.survey import survey
from gpurun.gpu.device import DIRECT, PCIE, GpuDevice
from gpurun.gpu.leases.choice import choose
from gpurun.gpu.request.free import FreeRequest
from tests.simcards import amd


def _host(count: int, parts: int, hive: int) -> tuple[GpuDevice, ...]:
    """*count* units: each *parts* are a GPU, each *hive* are connected by XGMI; half of the GPUs are on a NUMA node."""
    half = (count + parts - 1) // parts // 2 * parts
    return tuple(
        [
            GpuDevice(
                "amd",
                f"0000:{i // parts:02x}:00.0" + (f"/{i % parts}" if parts > 1 else ""),
                (f"amd:{i}",),
                i,
                numa_node=i // half,
                parent=f"0000:{i // parts:02x}:00.0" if parts > 1 else "",
                links=tuple([(j, DIRECT if i // hive == j // hive else PCIE) for j in range(count) if j != i]),
            )
            for i in range(count)
        ]
    )


MI210 = _host(8, 1, 4)
CPX = _host(63, 8, 64)  # MI300X: the eighth GPU has seven partitions
FIRST_PARTS = (16, 24, 32, 40, 48, 56)  # of the third GPU to the eighth


@pytest.mark.parametrize(
    ("host", "free", "required", "wanted"),
    [
        (MI210, range(8), (), [0]),
        (MI210, range(8), (), [0, 1, 2]),
        (MI210, range(8), (), [0, 1, 2, 3, 4]),
        (MI210, range(2, 8), (), [4, 5, 6]),
        (CPX, range(63), (), [56]),
        (CPX, range(63), (), [56, 57, 58]),
        (CPX, range(63), (), [56, 57, 58, 59, 60]),
        (CPX, FIRST_PARTS, (), [32, 40, 48]),
        (CPX, FIRST_PARTS, (32,), [32, 40, 48]),
        (CPX, range(63), (), [*range(8)]),
        (CPX, range(63), (), [*range(56, 63)]),
        (CPX, {*range(63)} - {56, 57, 58}, (), [59, 60, 61, 62]),
        (CPX, {*range(63)} - {0, 8, 16, 24, 56, 57}, (), [*range(32, 40), 58, 59]),
    ],
)
def test_the_sets_of_amds_allocator(
    host: tuple[GpuDevice, ...], free: Iterable[int], required: tuple[int, ...], wanted: list[int]
) -> None:
    units = tuple([host[i] for i in sorted(free)])
    had = frozenset([host[i].name for i in required])
    assert [unit.index for unit in choose(FreeRequest("", len(wanted)), units, had=had)] == wanted


def test_partitions_of_a_host_fill_the_gpu_that_is_used_already(tmp_path: Path) -> None:
    units = survey(amd.mi300x(tmp_path, gpus=2).env).units
    assert [unit.index for unit in choose(FreeRequest("", 2), (*units[:8], *units[9:]))] == [9, 10]


@pytest.mark.parametrize("count", [2, 12])  # all sets, and more of them than are compared
def test_what_must_be_taken_is(count: int) -> None:
    chosen = choose(FreeRequest("", count), CPX, must=frozenset([CPX[3].key, CPX[20].key]))
    assert len(chosen) == count and {3, 20} <= {unit.index for unit in chosen}
    assert choose(FreeRequest("", 1), CPX, must=frozenset([CPX[3].key, CPX[20].key])) == ()
