"""A GPU of AMD's or Intel's that cannot be relied on is given to nobody who asks for free ones, and lists say why."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pytest

from gpurun.gpu.amd import doctor as amd_doctor
from gpurun.gpu.amd import health
from gpurun.gpu.amd.cluster import cluster_gpus as amds
from gpurun.gpu.amd.host import amd_gpus
from gpurun.gpu.amd.survey import survey as survey_of_amd
from gpurun.gpu.cluster import ClusterGpus
from gpurun.gpu.host import driver_reads
from gpurun.gpu.intel import doctor as intel_doctor
from gpurun.gpu.intel.cluster import cluster_gpus as intels
from gpurun.gpu.intel.survey import survey as survey_of_intel
from tests.conftest import MakeBundle
from tests.native.runtime import ENVIRONMENT, Runtime
from tests.needs_nodes import require_nodes
from tests.simcards import Host, amd, intel

OFF = "it does not answer on the PCI bus: it has fallen off, or is in need of a cold start"
ERRORS = "5 uncorrectable errors of its memory or blocks since the driver was loaded"
FIRST, SECOND, THIRD = sorted(pci for pci, _ in amd.MI210[:3])


@pytest.fixture
def host(tmp_path: Path) -> Host:
    """Three MI210: the first has errors that no code has corrected, the second is off the bus."""
    made = amd.mi210(tmp_path / "host", count=3)
    drivers = made.path / "sys/bus/pci/drivers/amdgpu"
    (drivers / FIRST / "ras/umc_err_count").write_text("ue: 2\nce: 3\n")
    (drivers / FIRST / "ras/sdma_err_count").write_text("ue: 3\nce: 0\nde: 0\n")
    (drivers / SECOND / "config").write_bytes(b"\xff" * 64)
    return made


@pytest.fixture
def arcs(tmp_path: Path) -> Host:
    """Three of Intel's, of which the A770 is off the bus."""
    made = intel.arc(tmp_path / "host")
    (made.path / "sys/bus/pci/drivers/i915" / intel.A770 / "config").write_bytes(b"\xff" * 64)
    return made


def said(survey: Callable[[Mapping[str, str], bool], object], host: Host, ask: bool = True) -> dict[str, str]:
    return {unit.key: unit.unwell for unit in survey(host.env, ask).units}  # type: ignore[attr-defined]


def test_the_survey_says_so(host: Host) -> None:
    assert said(survey_of_amd, host) == {FIRST: ERRORS, SECOND: OFF, THIRD: ""}
    assert said(survey_of_amd, host, ask=False) == {FIRST: "", SECOND: OFF, THIRD: ""}, "the driver is not asked"


def test_all_parts_of_a_board_are_unwell(tmp_path: Path) -> None:
    host = amd.mi300x(tmp_path, gpus=2)
    (host.path / "sys/bus/pci/drivers/amdgpu" / amd.MI300X / "ras/umc_err_count").write_text("ue: 5\nce: 3\n")
    assert list(said(survey_of_amd, host).values()) == [ERRORS] * 8 + [""] * 8


def test_intels_survey(arcs: Host) -> None:
    assert said(survey_of_intel, arcs) == {intel.A770: OFF, intel.B580: "", intel.VF: ""}


@pytest.mark.parametrize("text", ["", "ue: many\nce: 1", "ue: -4", "ue", "ue: 99999999999999999999999", "\0\xff"])
def test_a_count_that_is_none_is_no_error(host: Host, text: str) -> None:
    path = host.path / "sys/bus/pci/drivers/amdgpu" / THIRD
    (path / "ras/umc_err_count").write_text(text)
    assert said(survey_of_amd, host)[THIRD] == ""


def test_a_board_without_counters_is_well(host: Host) -> None:
    ras = host.path / "sys/bus/pci/drivers/amdgpu" / THIRD / "ras"
    (ras / "umc_err_count").unlink()
    ras.rmdir()
    assert said(survey_of_amd, host)[THIRD] == ""


def test_a_driver_that_does_not_tell_is_not_waited_for(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is asked for is read by copies; the one for the third GPU never ends."""
    asked: list[str] = []
    silent = str(host.path / "sys/bus/pci/devices" / THIRD / "ras/umc_err_count")

    def read_in_time(devices: Sequence[tuple[str, ...]]) -> dict[str, str]:
        asked.extend(path for paths in devices for path in paths)
        return {path: Path(path).read_text() for path in asked if path != silent}

    monkeypatch.setattr(driver_reads, "read_in_time", read_in_time)
    found = health.unwell(str(host.path), amd_gpus(str(host.path)), ask=True)
    assert silent in asked and not [path for path in asked if SECOND in path], "the one off the bus is not asked"
    assert found == {FIRST: ERRORS, SECOND: OFF, THIRD: driver_reads.silence(silent)}


def ill(found: ClusterGpus) -> dict[str, str]:
    assert all(gpu.edits is not None for gpu in found.gpus), "what runs keeps its devices"
    return {gpu.unit.key: gpu.why for gpu in found.gpus}


def test_a_cluster_does_not_offer_it(host: Host) -> None:
    require_nodes(host.real_nodes)
    assert ill(amds(str(host.path))) == {FIRST: ERRORS, SECOND: OFF, THIRD: ""}


def test_a_cluster_does_not_offer_intels(arcs: Host) -> None:
    require_nodes(arcs.real_nodes)
    found = intels(str(arcs.path))
    assert ill(found) == {intel.A770: OFF, intel.B580: "", intel.VF: ""}
    assert [{name: value for name, _, value in gpu.attributes}["health"] for gpu in found.gpus] == [
        "Unhealthy", "Healthy", "Healthy",
    ]  # fmt: skip


def test_the_doctor_says_so(host: Host) -> None:
    failed = [
        one.text for one in amd_doctor.examine(str(host.path)) if one.verdict == "fail" and one.subject == "AMD's GPUs"
    ]
    assert failed == [f"0 ({FIRST}) is unhealthy: {ERRORS}", f"1 ({SECOND}) is unhealthy: {OFF}"]


def test_the_doctor_says_so_of_intels(arcs: Host) -> None:
    failed = [one.text for one in intel_doctor.examine(str(arcs.path)) if one.verdict == "fail"]
    assert f"0 ({intel.A770}) is unhealthy: {OFF}" in failed


@pytest.mark.native
@pytest.mark.gpurun_only
def test_free_gpus_are_others(runtime: Runtime, bundle: MakeBundle, host: Host) -> None:
    require_nodes(host.real_nodes)
    env = ENVIRONMENT | host.env

    def asking(value: str) -> list[str]:
        made = bundle().sh("ls /dev/dri | grep render; sleep 1000")
        made.process["env"].append(f"AMD_VISIBLE_DEVICES={value}")
        container = runtime.start(made, env=env)
        container.wait_for("render")
        return container.out.split()

    (render,) = [f"renderD{render}" for pci, render in amd.MI210 if pci == THIRD]
    assert asking("free") == [render]
    refused = bundle().args("true")
    refused.process["env"].append("AMD_VISIBLE_DEVICES=free:3")
    text = runtime.refused(refused, env=env)
    assert f" GPU 0: not well: {ERRORS}" in text and f" GPU 1: not well: {OFF}" in text
    assert asking(FIRST), "who names it gets it"
    for words, first in ((("gpu", "list"), None), (("gpu", "list", "--processes"), ERRORS)):
        listed = json.loads(runtime(*words, "--json", env=env).out)["gpus"]
        assert [gpu["problem"] for gpu in listed] == [first, OFF, None]
