"""What Intel's GPUs do now, as far as sysfs and fdinfo say."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from gpurun.gpu.device import Reading
from gpurun.gpu.intel.readings import readings
from tests.simcards import GIB, intel

FDINFO = "drm-driver:\txe\ndrm-client-id:\t{}\ndrm-pdev:\t0000:04:00.0\ndrm-resident-vram0:\t1024 KiB\n"


@pytest.fixture
def proc(tmp_path: Path) -> Path:
    """Two processes that have the B580 open, one of them twice."""
    if os.geteuid():
        pytest.skip("device nodes need root")
    node = tmp_path / "renderD129"
    os.mknod(node, 0o020600, os.makedev(226, 129))
    for pid, clients in ((7, (1, 2)), (9, (3,))):
        for client in clients:
            for kind in ("fd", "fdinfo"):
                (tmp_path / f"proc/{pid}/{kind}").mkdir(parents=True, exist_ok=True)
            (tmp_path / f"proc/{pid}/fd/{client}").symlink_to(node)
            (tmp_path / f"proc/{pid}/fdinfo/{client}").write_text(FDINFO.format(client))
    return tmp_path / "proc"


def test_a_reading_of_each_gpu(tmp_path: Path, proc: Path) -> None:
    host = intel.arc(tmp_path / "host")
    old, new, virtual = readings(host.env, str(proc))
    assert old == Reading(intel.A770, None, 0, None, 60.0, None, 190.0, 2400)
    assert (new.memory_used, new.memory_total, new.clock) == (3 << 20, 12 * GIB, 2450)
    assert new.processes == ((7, 2 << 20), (9, 1 << 20))
    assert virtual == Reading(intel.VF, None, 0)


@pytest.mark.parametrize("text", ["-5", "1e9", "99999999999999999999", "x" * (1 << 20)])
def test_nonsense_is_not_known(tmp_path: Path, proc: Path, text: str) -> None:
    host = intel.arc(tmp_path / "host", functions=False)
    path = intel.CARDS[1].path
    for name in (
        "hwmon/hwmon1/temp2_input",
        "hwmon/hwmon1/temp3_input",
        "hwmon/hwmon1/power1_max",
        "tile0/gt0/freq0/act_freq",
    ):
        host.write(f"{path}/{name}", text)
    found = readings(host.env, str(proc))[1]
    assert (found.temperature, found.power_limit, found.clock) == (None, None, None)
