"""What AMD's GPUs do now, as far as sysfs, KFD and fdinfo say."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpurun.gpu.amd.readings import readings
from tests.simcards import GIB, amd


def test_a_reading_of_each_gpu(tmp_path: Path) -> None:
    host = amd.mi210(tmp_path / "host", count=2)
    host.write("sys/class/kfd/kfd/proc/77/vram_20003", str(3 << 20))
    (tmp_path / "proc").mkdir()
    found = {one.key: one for one in readings(host.env, str(tmp_path / "proc"))}
    first, second = found[amd.MI210[0][0]], found[amd.MI210[1][0]]
    assert (first.load, first.memory_used, first.memory_total) == (37, 16 * GIB, 64 * GIB)
    assert (first.temperature, first.power, first.power_limit) == (47.0, 92.0, 300.0)
    assert (first.clock, first.memory_clock) == (1700, 1600)
    assert first.errors == (("correct_umc", 3), ("uncorrect_umc", 0))
    assert first.processes == () and second.processes == ((77, 3 << 20),)


def test_load_and_memory_of_the_gpu_are_not_those_of_a_partition(tmp_path: Path) -> None:
    host = amd.mi300x(tmp_path / "host")
    host.write("sys/class/kfd/kfd/proc/77/vram_20003", str(3 << 20))
    (tmp_path / "proc").mkdir()
    found = readings(host.env, str(tmp_path / "proc"))
    assert len(found) == 8 and {one.load for one in found} == {None}
    assert [one.memory_used for one in found] == [0, 3 << 20, 0, 0, 0, 0, 0, 0]
    assert {one.memory_total for one in found} == {48 * GIB} and {one.power for one in found} == {92.0}


@pytest.mark.parametrize("text", ["-5", "1e9", "99999999999999999999", "x" * (1 << 20), "\0\xff"])
def test_nonsense_is_not_known(tmp_path: Path, text: str) -> None:
    host = amd.mi210(tmp_path / "host", count=1)
    path = next((host.path / "sys/bus/pci/drivers/amdgpu").iterdir()).resolve()
    names = [
        "gpu_busy_percent",
        "mem_info_vram_used",
        "mem_info_vram_total",
        "pp_dpm_sclk",
        "pp_dpm_mclk",
        "ras/umc_err_count",
    ]
    for file in [path / name for name in names] + [f for f in path.glob("hwmon/*/*") if "label" not in f.name]:
        file.write_text(text)
    (tmp_path / "proc").mkdir()
    (one,) = readings(host.env, str(tmp_path / "proc"))
    assert (one.load, one.memory_used, one.memory_total, one.clock, one.memory_clock) == (None,) * 5
    assert (one.temperature, one.power, one.power_limit, one.errors) == (None, None, None, ())
