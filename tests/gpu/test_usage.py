"""What a container has of its GPUs, from NVML's answer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gpurun.gpu.device import GpuDevice, Measured, Reading
from gpurun.gpu.nvidia.host.device_numbers import node_minors
from gpurun.gpu.usage import GpuUsage, of_gpu, of_measured
from gpurun.gpu.vendors import GivenGpu
from gpurun.oci.config import Device
from tests.needs_nodes import needs_nodes
from tests.nvml import compile_stub
from tests.simcards import GIB, amd, intel
from tests.simdriver import VERSION, Options, bus_id, make, uuid

GPU: dict[str, Any] = {
    "uuid": "GPU-1",
    "name": "H100",
    "minor": 3,
    "memoryTotal": 1000,
    "memoryUsed": 700,
    "utilization": {"gpu": 5, "memory": 1},
}


def process(pid: int, memory: int | None, kind: str = "compute") -> dict[str, Any]:
    return {"pid": pid, "kind": kind, "memory": memory}


@pytest.mark.parametrize(
    ("processes", "count", "container"),
    [
        ([process(7, 100), process(8, 200), process(9, 400)], 2, 300),
        ([process(9, 400)], 0, 0),
        ([process(7, None), process(8, 200)], 2, 200),
        ([process(7, None)], 1, None),
        ([process(7, 100), process(7, 100, "graphics")], 1, 100),
    ],
)
def test_its_own_share(processes: list[dict[str, Any]], count: int, container: int | None) -> None:
    made = of_gpu({**GPU, "processes": processes}, (7, 8))
    assert made["processes"] == count and made["memory"].get("container") == container
    assert (made["memory"]["total"], made["memory"]["used"]) == (1000, 700)
    assert (made["uuid"], made["utilization"]) == ("GPU-1", {"gpu": 5, "memory": 1})


def test_what_the_driver_does_not_say_is_left_out() -> None:
    assert of_gpu({"uuid": "GPU-1", "minor": 3, "processes": None, "utilization": None}, (7,)) == {
        "uuid": "GPU-1",
        "minor": 3,
        "memory": {},
    }
    assert of_gpu({**GPU, "error": "lost"}, ())["error"] == "lost"


def test_nodes_of_gpus_by_their_numbers() -> None:
    nodes = [("/dev/gpu", "c", 195, 3), ("/dev/nvidiactl", "c", 195, 255), ("/dev/nvidia-modeset", "c", 195, 254)]
    nodes += [("/dev/nvidia7", "c", 1, 7), ("/dev/x", "b", 195, 1), ("/dev/y", "u", 195, 253), ("/dev/again", "c", 195, 3)]
    assert node_minors([Device(*node) for node in nodes]) == (3, 253)


UNIT = GpuDevice("amd", "0000:63:00.0", ("0000:63:00.0", "1"), 1, "MI210", minor=128)


def test_a_gpu_that_is_read_from_files() -> None:
    reading = Reading(UNIT.key, 37, 700, 1000, 47.0, 92.0, 300.0, 1700, processes=((7, 100), (9, 400)))
    assert of_measured(Measured(UNIT, reading), (7, 8)) == {
        "uuid": UNIT.key, "name": "MI210", "minor": 128, "vendor": "amd", "key": UNIT.key, "index": 1, "processes": 1,
        "memory": {"total": 1000, "used": 700, "container": 100}, "utilization": {"gpu": 37},
        "temperature": 47.0, "power": 92.0, "powerLimit": 300.0, "clock": 1700,
    }  # fmt: skip
    silent = of_measured(Measured(UNIT, Reading(UNIT.key, processes=None, problem="hangs")), ())
    assert silent["error"] == "hangs" and "memory" not in silent
    unknown = of_measured(Measured(UNIT, Reading(UNIT.key, processes=None)), ())
    assert unknown["memory"] == {} and not {"processes", "utilization", "power"} & unknown.keys()


def usage(env: dict[str, str], *numbers: tuple[int, int]) -> tuple[list[dict[str, Any]] | None, list[str]]:
    """Of GPUs that a record has by the numbers of their nodes."""
    return usage_of(env, *[GivenGpu(*pair) for pair in numbers])


def usage_of(env: dict[str, str], *given: GivenGpu) -> tuple[list[dict[str, Any]] | None, list[str]]:
    said: list[str] = []
    return GpuUsage(env, said.append).look(given).rows(given, ()), said


def test_a_gpu_is_found_by_its_key(tmp_path: Path) -> None:
    """Drivers that were bound again have given the numbers of the nodes to others."""
    host = amd.mi210(tmp_path / "host", count=2)
    (first, own), (second, others) = sorted(amd.MI210[:2])
    rows, said = usage_of(host.env, GivenGpu(226, others, f"amd:{first}"))
    assert [row["key"] for row in rows or ()] == [first] and own != others and not said
    assert usage_of(host.env, GivenGpu(226, own, "amd:0000:ff:00.0")) == (None, [])
    intel.arc(host.path, first=40)  # an address is one of a maker's: nothing of AMD's is taken for Intel's
    assert usage_of(host.env, GivenGpu(226, own, f"intel:{first}")) == (None, [])
    rows, _ = usage_of(host.env, GivenGpu(226, own, f"intel:{intel.VF}"), GivenGpu(226, others))
    assert [(row["vendor"], row["key"]) for row in rows or ()] == [("amd", second), ("intel", intel.VF)]


def test_a_container_with_partitions_and_one_with_the_gpu(tmp_path: Path) -> None:
    host = amd.mi300x(tmp_path / "host")
    rows, said = usage(host.env, (226, 129), (226, 130))
    assert rows is not None and [row["key"] for row in rows] == [f"{amd.MI300X}/{part}" for part in (1, 2)] and not said
    assert {(row["power"], row["memory"]["total"]) for row in rows} == {(92.0, 48 * GIB)}
    host = intel.arc(tmp_path / "arc")
    assert [row["key"] for row in usage(host.env, (226, 131))[0] or ()] == [intel.VF]


@needs_nodes
@pytest.mark.parametrize("mode", ["well", "crash"])
def test_a_host_of_two_makers(tmp_path: Path, mode: str) -> None:
    """Both are told of; a driver that fails costs its own numbers alone."""
    driver = make(tmp_path / "host", Options(gpus=1, drm=False))
    library = next(driver.path.rglob(f"libnvidia-ml.so.{VERSION}"))
    library.unlink()
    compile_stub(library, mode=mode)
    amd.beside_nvidia(driver.path)
    numbers = ((195, 0), (226, amd.MI210[0][1] + 8))
    rows, said = usage(driver.env, *numbers)
    assert [row.get("vendor", "nvidia") for row in rows or ()] == ["nvidia"] * (mode == "well") + ["amd"]
    assert [text.partition(": ")[0] for text in said] == ["no numbers of the GPUs"] * (mode == "crash")
    assert usage(driver.env) == (None, [])


@needs_nodes
def test_nvidias_gpus_are_found_by_their_keys(tmp_path: Path) -> None:
    """So are those whose driver has another major, and a MIG device tells of its GPU."""
    driver = make(tmp_path / "host", Options(gpus=2, drm=False))
    library = next(driver.path.rglob(f"libnvidia-ml.so.{VERSION}"))
    library.unlink()
    compile_stub(library, mode="well")
    rows, said = usage_of(driver.env, GivenGpu(240, 7, f"nvidia:{bus_id(0)}"))
    assert [row["uuid"] for row in rows or ()] == [uuid(0)] and not said
    rows, _ = usage_of(driver.env, GivenGpu(235, 13, f"nvidia:{bus_id(0)}/1/0"))
    assert [row["uuid"] for row in rows or ()] == [uuid(0)]
    assert usage_of(driver.env, GivenGpu(195, 0, "nvidia:0000:fe:00.0"))[0] == []
