"""The commands for GPUs on hosts of other makers than NVIDIA, simulated."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gpurun.commands import gpu_list_makers
from gpurun.commands.gpu_explain import answer_for, lines_of, question
from gpurun.commands.gpu_leases import list_leases
from gpurun.commands.gpu_list import list_gpus
from gpurun.gpu.leases.lease import Lease, Leased
from gpurun.gpu.leases.store import Store
from tests.needs_nodes import require_nodes
from tests.simcards import GIB, Host, amd, intel
from tests.simcards.held import hang, open_fifos
from tests.simdriver import Options, make


@pytest.fixture
def arc(tmp_path: Path) -> Host:
    host = intel.arc(tmp_path / "host")
    require_nodes(host.real_nodes)
    return host


def listed(host: Host, capfd: pytest.CaptureFixture[str], processes: bool = False) -> list[dict[str, Any]]:
    assert list_gpus(host.env, "json", (), processes) == 0
    found: list[dict[str, Any]] = json.loads(capfd.readouterr().out)["gpus"]
    return found


def test_list(arc: Host, capfd: pytest.CaptureFixture[str]) -> None:
    rows = listed(arc, capfd)
    assert [(row["vendor"], row["index"], row["key"], row["driver"], row["profile"]) for row in rows] == [
        ("intel", 0, intel.A770, "i915", None),
        ("intel", 1, intel.B580, "xe", None),
        ("intel", 2, intel.VF, "xe", "vf"),
    ]
    assert (rows[1]["memorySize"], rows[1]["numaNode"], rows[1]["minor"]) == (12 * GIB, 1, 129)
    assert list_gpus(arc.env, "table", (), False) == 0
    text = capfd.readouterr().out
    (line,) = [line.split() for line in text.splitlines() if "Arc B580" in line]
    assert line[:8] == ["intel:1", intel.B580, intel.B580, f"{arc.path}/dev/dri/renderD129", "1", "Intel", "Arc", "B580"]


def test_list_with_readings(arc: Host, capfd: pytest.CaptureFixture[str]) -> None:
    row = listed(arc, capfd, processes=True)[1]
    assert (row["memory"], row["processes"]) == ({"total": 12 * GIB, "used": 0}, [])
    assert row["reading"] == {"temperature": 60.0, "power": 0.0, "powerLimit": 190.0, "clock": 2450}
    assert row["utilization"] == {"gpu": 0}


def test_a_driver_that_hangs_holds_no_list(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    host = amd.mi210(tmp_path / "host", count=2)
    bad, good = amd.MI210[0][0], amd.MI210[1][0]
    hang(host.path / "sys/bus/pci/drivers/amdgpu" / bad / "gpu_busy_percent")
    open_fifos(monkeypatch)
    monkeypatch.setattr(gpu_list_makers, "TIMEOUT_S", 4.0)
    assert list_gpus(host.env, "json", (), True) == 0
    told = capfd.readouterr()
    rows = {row["key"]: row for row in json.loads(told.out)["gpus"]}
    assert "has not answered within 4 s" in rows[bad]["problem"] and rows[bad]["utilization"] is None
    assert rows[good]["problem"] is None and rows[good]["utilization"] == {"gpu": 37}
    assert f"({bad}): its driver has not answered" in told.err


def test_list_of_two_makers(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    host = intel.arc(make(tmp_path / "host", Options(drm=False)).path, functions=False)
    rows = listed(host, capfd)
    assert [row.get("vendor", "nvidia") for row in rows] == ["nvidia", "nvidia", "intel", "intel"]


def test_explain(arc: Host) -> None:
    answer = answer_for(question(("GPURUN_VISIBLE_DEVICES=card1",)), arc.env)
    assert answer["request"]["devices"] == [intel.B580] and not answer["error"]
    lines = lines_of(answer)
    assert lines[0] == "asked for by GPURUN_VISIBLE_DEVICES"
    assert [line.split()[0] for line in lines if "/dev/dri/by-path" in line] == [
        f"/dev/dri/by-path/pci-{intel.B580}-{kind}" for kind in ("card", "render")
    ]
    assert any(line.split()[0] == "992" for line in lines)
    error = answer_for(question((f"GPURUN_VISIBLE_DEVICES={intel.PF}",)), arc.env)["error"]
    assert f"is divided, and its virtual functions are what containers get: {intel.VF} (intel:2)" in error


def test_what_is_asked_for_is_said_of_accelerators_too(tmp_path: Path) -> None:
    host = intel.gaudi(tmp_path)
    require_nodes(host.real_nodes)
    answer = answer_for(question(("HABANA_VISIBLE_DEVICES=1",)), host.env)
    assert answer["request"]["devices"] == ["1"]
    assert lines_of(answer)[:2] == ["asked for by HABANA_VISIBLE_DEVICES", "  devices: 1"]


def test_a_list_of_nothing_speaks_of_the_hosts_own_maker(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    gaudi = intel.gaudi(tmp_path / "gaudi")
    assert list_gpus(gaudi.env, "table", (), False) == 0
    said = capfd.readouterr()
    assert said.out == "" and "2 accelerators of Intel's that are not GPUs (ask with HABANA_VISIBLE_DEVICES)" in said.err
    mi210 = amd.mi210(tmp_path / "mi210", count=1)
    shutil.rmtree(mi210.path / amd.KFD)
    assert list_gpus(mi210.env, "table", (), False) == 0
    assert "no GPU: a driver of AMD's is loaded and has no GPU to give; `gpurun gpu doctor`" in capfd.readouterr().err


def test_leases_name_gpus_so_that_no_other_makers_are_meant(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    units = tuple(
        [Leased(key, name, 0, 0) for key, name in (("0000:07:00.0/1/0", "MIG-1"), ("0000:05:00.0/3", "0000:05:00.0/3"))]
    )
    leases = (Lease("c1", "/run/x", units, 1, 1, "", 1, 0),)
    monkeypatch.setattr(Store, "leases", lambda store: leases)
    assert list_leases({"GPURUN_SYSROOT": str(tmp_path)}, "table") == 0
    assert capfd.readouterr().out.splitlines()[1].split()[0] == "0:1/0,0000:05:00.0/3"


@pytest.mark.parametrize(
    ("machine", "words"),
    [
        (amd.mi210, "no GPU is leased: containers ask for one with AMD_VISIBLE_DEVICES=free"),
        (intel.arc, "no GPU is leased: containers ask for one with GPURUN_VISIBLE_DEVICES=free"),
        (intel.gaudi, "no GPU is leased, and this host has none to lease"),
    ],
)
def test_no_leases(tmp_path: Path, capfd: pytest.CaptureFixture[str], machine: Callable[[Path], Host], words: str) -> None:
    host = machine(tmp_path / "host")
    assert list_leases(host.env, "table") == 0
    assert capfd.readouterr().err == f"gpurun: {words}\n"
