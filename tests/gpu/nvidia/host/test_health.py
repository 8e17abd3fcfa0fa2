"""GPUs that cannot work, by what NVML, the PCI bus and the kernel's log say."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gpurun.gpu.nvidia.host.gpus import read_gpus
from gpurun.gpu.nvidia.host.health import of_answer, of_log, unwell
from gpurun.gpu.nvidia.host.roots import Roots
from tests.simdriver import Options, bus_id, make

BUSES = ["0000:07:00.0", "0000:17:00.0"]
LOG = b"NVRM: Xid (PCI:%s): %s, pid='<unknown>', name=<unknown>, GPU has fallen off the bus."


def gpu(bus: str | None = BUSES[0], **more: Any) -> dict[str, Any]:
    return {"index": 0, "busId": bus, **more}


@pytest.mark.parametrize(
    ("gpus", "said"),
    [
        ([gpu(), gpu(BUSES[1])], {}),
        ([gpu(recoveryAction="none"), gpu(BUSES[1], recoveryAction=None, rowRemapFailure=False)], {}),
        ([gpu(recoveryAction="reset"), gpu(BUSES[1])], {BUSES[0]: "the driver says that it needs recovery: reset"}),
        ([gpu(rowRemapFailure=True), gpu(BUSES[1])], {BUSES[0]: "a damaged row of its memory could not be replaced"}),
        ([gpu(), {"index": 1, "error": "GPU is lost"}], {BUSES[1]: "NVML cannot use it: GPU is lost"}),
        ([gpu()], {BUSES[1]: "NVML cannot use it: it is not in its list"}),
        ([gpu("00000000:07:00.0"), gpu("00000000:17:00.0")], {}),
        ([gpu(None), gpu(None)], {}),  # a driver that tells no bus ids
    ],
)
def test_what_nvml_says(gpus: list[dict[str, Any]], said: dict[str, str]) -> None:
    assert of_answer(BUSES, {"gpus": gpus}) == said


@pytest.mark.parametrize(
    ("bus", "xid", "is_lost"),
    [
        (b"0000:07:00", b"79", True),
        (b"0000:07:00", b"31", False),  # a program's page fault
        (b"0000:27:00", b"79", False),
        (b"0000:07:00", b"9" * 5000, False),
        (b"\xff", b"79", False),
        (b"0000:07:00", b"", False),
    ],
)
def test_what_the_kernels_log_says(bus: bytes, xid: bytes, is_lost: bool) -> None:
    found = of_log(BUSES, [b"usb 1-1: new device", LOG % (bus, xid)])
    assert found == ({BUSES[0]: "Xid 79: it has fallen off the bus"} if is_lost else {})


def test_all_witnesses_of_a_host(tmp_path: Path) -> None:
    make(tmp_path, Options(gpus=3))
    roots = Roots(sysroot=str(tmp_path))
    gpus = read_gpus(roots)
    assert unwell(roots, gpus) == unwell(roots, gpus, silent=True) == {}
    (tmp_path / "sys/bus/pci/devices" / bus_id(1) / "config").write_bytes(b"\xff" * 64)
    (tmp_path / "sys/bus/pci/devices" / bus_id(0) / "config").write_bytes(b"\xde\x10" + bytes(62))
    (tmp_path / "dev/kmsg").write_bytes(b"3,1,2,-;" + LOG % (bus_id(2).rpartition(".")[0].encode(), b"79") + b"\n")
    assert list(unwell(roots, gpus)) == [bus_id(1)]
    assert sorted(unwell(roots, gpus, silent=True)) == [bus_id(1), bus_id(2)], "the log counts where NVML does not answer"
