"""What AMD's GPUs do now, as far as sysfs, KFD and fdinfo say."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpurun.gpu.amd.exporter import FIELDS
from gpurun.gpu.amd.readings import sources
from gpurun.gpu.device import Reading
from gpurun.gpu.host.fdinfo import Clients
from tests.simcards import GIB, Host, amd


def readings(host: Host) -> tuple[Reading, ...]:
    """Of all GPUs, with no client in fdinfo."""
    found = sources(str(host.path))
    return tuple([one for source in found for one in source.read(lambda: Clients((), True), True)])


def figures(reading: Reading) -> dict[str, float]:
    """Those with no labels of their own, by name."""
    return {figure.name: figure.value for figure in reading.figures if not figure.labels}


def test_a_reading_of_each_gpu(tmp_path: Path) -> None:
    host = amd.mi210(tmp_path / "host", count=2)
    host.write("sys/class/kfd/kfd/proc/77/vram_20003", str(3 << 20))
    found = {one.key: one for one in readings(host)}
    first, second = found[amd.MI210[0][0]], found[amd.MI210[1][0]]
    assert (first.load, first.memory_used, first.memory_total) == (37, 16 * GIB, 64 * GIB)
    assert (first.temperature, first.power, first.power_limit) == (47.0, 92.0, 300.0)
    assert (first.clock, first.memory_clock) == (1700, 1600)
    assert first.errors == (("correct_umc", 3), ("uncorrect_umc", 0))
    assert first.processes == () and second.processes == ((77, 3 << 20),)


def test_load_and_memory_of_the_gpu_are_not_those_of_a_partition(tmp_path: Path) -> None:
    host = amd.mi300x(tmp_path / "host")
    host.write("sys/class/kfd/kfd/proc/77/vram_20003", str(3 << 20))
    found = readings(host)
    assert len(found) == 8 and {one.load for one in found} == {None}
    assert [one.memory_used for one in found] == [0, 3 << 20, 0, 0, 0, 0, 0, 0]
    assert {one.memory_total for one in found} == {48 * GIB} and {one.power for one in found} == {92.0}


def test_the_least_and_the_most_of_a_load(tmp_path: Path) -> None:
    host = amd.mi210(tmp_path / "host", count=1)
    path = next((host.path / "sys/bus/pci/drivers/amdgpu").iterdir()).resolve()
    for text, load in (("0", 0), ("100", 100), ("101", None)):
        (path / "gpu_busy_percent").write_text(text)
        assert [one.load for one in readings(host)] == [load]


def test_blocks_of_other_names_count_no_errors(tmp_path: Path) -> None:
    """A name becomes a label of metrics and a word of tables."""
    host = amd.mi210(tmp_path / "host", count=1)
    path = next((host.path / "sys/bus/pci/drivers/amdgpu").iterdir()).resolve()
    before = [one.errors for one in readings(host)]
    for name in ("\u00fcmc", "a b", "a-b", ""):
        (path / f"ras/{name}_err_count").write_text("ue: 1\nce: 2\n")
    assert [one.errors for one in readings(host)] == before
    (path / "ras/new_1_err_count").write_text("ue: 0\nce: 2\n")
    (found,) = [dict(one.errors) for one in readings(host)]
    assert (found["correct_new_1"], found["uncorrect_new_1"]) == (2, 0)


@pytest.mark.parametrize("text", ["-5", "1e9", "99999999999999999999", "x" * (1 << 20), "\0\xff"])
def test_nonsense_is_not_known(tmp_path: Path, text: str) -> None:
    host = amd.mi210(tmp_path / "host", count=1)
    path = next((host.path / "sys/bus/pci/drivers/amdgpu").iterdir()).resolve()
    names = [
        "gpu_busy_percent",
        "mem_busy_percent",
        "mem_info_vram_used",
        "mem_info_vram_total",
        "pp_dpm_sclk",
        "pp_dpm_mclk",
        "ras/umc_err_count",
    ]
    for file in [path / name for name in names] + [f for f in path.glob("hwmon/*/*") if "label" not in f.name]:
        file.write_text(text)
    (one,) = readings(host)
    assert (one.load, one.memory_used, one.memory_total, one.clock, one.memory_clock) == (None,) * 5
    assert (one.temperature, one.power, one.power_limit, one.errors) == (None, None, None, ())
    assert {name for name in figures(one) if not name.startswith("pcie_")} == {"gpu_health"} and one.processes == ()


def test_figures_of_the_makers_exporter(tmp_path: Path) -> None:
    host = amd.mi210(tmp_path / "host", count=2)
    path = next((host.path / "sys/bus/pci/drivers/amdgpu").iterdir()).resolve()
    more = {"current_link_speed": "16.0 GT/s PCIe", "max_link_speed": "32 GT/s", "pcie_replay_count": "5"}
    more |= {"mem_info_vis_vram_total": str(4 * GIB), "mem_info_vis_vram_used": str(GIB), "product_number": "102-D65209"}
    for name, text in more.items():
        (path / name).write_text(f"{text}\n")
    (one,) = [one for one in readings(host) if one.key == path.name]
    found = figures(one)
    assert found == {
        "gpu_gfx_activity": 37, "gpu_umc_activity": 12, "gpu_power_usage": 92, "gpu_average_package_power": 92,
        "gpu_health": 1,
        "gpu_edge_temperature": 41, "gpu_junction_temperature": 47, "gpu_min_clock": 500, "gpu_max_clock": 1700,
        "gpu_total_vram": 64 << 10, "gpu_used_vram": 16 << 10, "gpu_free_vram": 48 << 10,
        "gpu_total_visible_vram": 4 << 10, "gpu_used_visible_vram": 1 << 10, "gpu_free_visible_vram": 3 << 10,
        "pcie_speed": 16, "pcie_max_speed": 32, "pcie_replay_count": 5,
        "gpu_ecc_correct_total": 3, "gpu_ecc_uncorrect_total": 0, "gpu_ecc_correct_umc": 3, "gpu_ecc_uncorrect_umc": 0,
    }  # fmt: skip
    assert {dict(figure.labels)["clock_type"]: figure.value for figure in one.figures if figure.name == "gpu_clock"} == {
        "system": 1700, "memory": 1600,
    }  # fmt: skip
    assert {figure.name for figure in one.figures} <= set(FIELDS)
    labels = dict(one.labels)
    assert (labels["card_series"], labels["card_model"]) == ("AMD Instinct MI210", "102-D65209")
    assert labels["gpu_compute_partition_type"] == "none" and labels["serial_number"].startswith("69223")


def test_a_divided_gpu_tells_what_is_of_the_board_once(tmp_path: Path) -> None:
    found = readings(amd.mi300x(tmp_path / "host"))
    first, *others = [figures(one) for one in found]
    assert first["gpu_power_usage"] == 92 and first["gpu_ecc_correct_total"] == 3 and "gpu_gfx_activity" not in first
    assert [set(one) for one in others] == [{"gpu_health", "gpu_total_vram", "gpu_used_vram", "gpu_free_vram"}] * 7
    assert {one["gpu_total_vram"] for one in (first, *others)} == {48 << 10}
    labels = [dict(one.labels) for one in found]
    assert [one["gpu_partition_id"] for one in labels] == [str(number) for number in range(8)]
    assert {(one["gpu_compute_partition_type"], one["gpu_memory_partition_type"]) for one in labels} == {("cpx", "nps4")}
