"""Errors that say of many GPUs what stands against them, and can be read."""

from __future__ import annotations

from typing import Any

from gpurun.gpu.device import GpuDevice
from gpurun.gpu.leases.choice import Verdict, judge
from gpurun.gpu.leases.wording import reasons
from gpurun.gpu.request.free import read_free_request
from tests.gpu.devices import nvidia


def verdict(index: int, why: str = "", waiting: bool = False, mig: str = "") -> Verdict:
    return Verdict(nvidia(index, f"0000:0{index}:00.0{mig}", **_part(index, mig)), why, waiting)


def _part(index: int, mig: str) -> dict[str, Any]:
    return {"parent": f"0000:0{index}:00.0", "title": f"MIG device {mig[1:]} of GPU {index}"} if mig else {}


def test_each_reason_once() -> None:
    held = "leased by web since 2026-05-04 09:12:44 UTC"
    verdicts = [verdict(0, held, True), verdict(1), verdict(2, "it is a Tesla T4"), verdict(3, held, True)]
    assert reasons(verdicts, {}) == f"GPU 0, 3: {held}; GPU 2: it is a Tesla T4"
    assert reasons(verdicts, {}, "free as well") == f"GPU 0, 3: {held}; GPU 1: free as well; GPU 2: it is a Tesla T4"


def test_how_busy_one_is_that_stands_alone() -> None:
    loads = {"0000:00:00.0": "31 of 80 GiB in use", "0000:01:00.0": "load 3 %"}
    assert reasons([verdict(0, "leased by web", True), verdict(1, "it is a T4")], loads) == (
        "GPU 0: leased by web, 31 of 80 GiB in use; GPU 1: it is a T4"
    )
    assert (
        reasons([verdict(0, "leased by web", True), verdict(1, "leased by web", True)], loads) == "GPU 0, 1: leased by web"
    )


def test_mig_devices() -> None:
    assert reasons([verdict(0, "x", mig="/1/0"), verdict(0, "x", mig="/2/0"), verdict(1, "x")], {}) == (
        "GPU 1, MIG device 1/0 of GPU 0, MIG device 2/0 of GPU 0: x"
    )


def test_sixteen_gpus_of_one_container_are_one_line() -> None:
    held = f"leased by {'n' * 60} since 2026-05-04 09:12:44 UTC"
    assert len(reasons([verdict(n % 8, held, True) for n in range(16)], {})) < 200


def test_names_are_harmless() -> None:
    assert reasons([verdict(0, "leased by \x1b[2Jweb\n")], {}) == "GPU 0: leased by \\x1b[2Jweb\\n"


def test_partitions_have_indices_as_gpus_do() -> None:
    parts = [
        Verdict(GpuDevice("amd", f"{i}", (), i, parent="0000:05:00.0", title=f"AMD GPU {i}"), "its profile is cpx_nps4")
        for i in range(3)
    ]
    assert reasons(parts, {}) == "AMD GPU 0, 1, 2: its profile is cpx_nps4"


def test_models_with_their_articles() -> None:
    request = read_free_request("free;product=Tesla", "AMD_VISIBLE_DEVICES", "amd")
    units = [GpuDevice("amd", str(i), (), i, model) for i, model in enumerate(("AMD Instinct MI210", "NVIDIA H100"))]
    assert [one.why for one in judge(request, tuple(units), {})] == ["it is an AMD Instinct MI210", "it is a NVIDIA H100"]
