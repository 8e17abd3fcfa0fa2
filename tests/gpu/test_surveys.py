"""Which GPUs there are, asked by a process of its own: a driver that hangs holds neither lists nor free GPUs."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from gpurun.commands.gpu_list import list_gpus
from gpurun.errors import GpuError
from gpurun.gpu import surveys
from gpurun.gpu.amd.survey import survey as survey_of_amd
from gpurun.gpu.host import helper
from gpurun.gpu.intel.survey import survey as survey_of_intel
from gpurun.gpu.leases.allocator import Requester, preview, preview_text
from gpurun.gpu.leases.policy import LeasePolicy
from gpurun.gpu.leases.store import Store
from gpurun.gpu.leases.survey import survey
from gpurun.gpu.request.free import read_free_request
from gpurun.gpu.resolve import Inquiry, gpu_edits
from gpurun.gpu.survey_process import look
from gpurun.gpu.surveys import SurveyQuestion, limited_survey, parse, words_of
from gpurun.gpu.vendors import find_vendor
from gpurun.launcher.fresh_interpreter import SURVEY_ENTRY, Child, child_command
from tests.simcards import amd, intel
from tests.simcards.held import hang, open_fifos

AMD, INTEL = find_vendor("amd"), find_vendor("intel")


@pytest.fixture
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(surveys, "TIMEOUT_S", 4.0)


def test_a_question_is_words() -> None:
    for asked in (SurveyQuestion("amd", "", 2.5), SurveyQuestion("intel", "/x y", 1.0, False, True)):
        assert parse(words_of(asked)) == asked


def test_the_helper_answers_what_the_rooms_do(tmp_path: Path) -> None:
    host = amd.mi300x(tmp_path / "amd")
    assert limited_survey(AMD, host.env) == survey_of_amd(host.env) and survey_of_amd(host.env).units[0].links
    assert limited_survey(AMD, host.env, ask=False) == survey_of_amd(host.env, False)
    host = intel.arc(tmp_path / "intel")
    assert limited_survey(INTEL, host.env, more=True) == survey_of_intel(host.env)


def test_processes_that_hang_cost_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, soon: None) -> None:
    """Intel's are looked for in the fdinfo of all processes, which asks the driver."""
    host = intel.arc(tmp_path / "host")
    open_fifos(monkeypatch, processes=True)
    found = survey(host.env, vendor="intel")
    assert found.units == survey_of_intel(host.env, False).units and "has not answered within 2.8 s" in found.problem
    monkeypatch.setattr("gpurun.gpu.leases.container_nodes.containers_with_nodes", lambda granted: ())  # of other tests
    request = read_free_request("free", "GPURUN_VISIBLE_DEVICES", "intel")
    choice = preview(request, host.env, LeasePolicy(), Store(str(tmp_path / "leases")), Requester("", ""))
    text = preview_text(request, choice)
    assert len(choice.chosen) == 1 and "(processes of the host are not known: its driver has not answered" in text


def test_a_driver_that_hangs_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, soon: None, capfd: pytest.CaptureFixture[str]
) -> None:
    host = intel.arc(amd.mi210(tmp_path / "host", count=1).path, first=40)
    hang(host.path / "sys/bus/pci/drivers/xe" / intel.B580 / "numa_node")
    open_fifos(monkeypatch)
    with pytest.raises(GpuError, match=r"^Intel's GPUs cannot be read: its driver has not answered within 4 s: it hangs"):
        survey(host.env)
    assert len(survey(host.env, vendor="amd").units) == 1
    assert list_gpus(host.env, "table", (str(tmp_path / "none"),), False) == 1
    told = capfd.readouterr()
    assert amd.MI210[0][0] in told.out and "Intel" not in told.out
    (line,) = told.err.splitlines()
    assert line.startswith("gpurun: Intel's GPUs cannot be read: its driver has not answered within 4 s")


def test_the_refusal_of_a_container_asks_no_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What else the host has is told of other errors: here the same driver would be asked for it, by the caller itself."""
    host = amd.mi210(tmp_path / "host", count=1)
    monkeypatch.setattr("gpurun.gpu.offers.count_gpus", lambda env: pytest.fail("the driver was asked again"))

    def allocate(free: object) -> tuple[tuple[str, ...], tuple[str, ...]]:
        raise GpuError("AMD's GPUs cannot be read: its driver hangs")

    asked = Inquiry(("AMD_VISIBLE_DEVICES=free",), {}, False, host.env, allocate=allocate)  # type: ignore[arg-type]
    with pytest.raises(GpuError, match=r"^AMD's GPUs cannot be read: its driver hangs$"):
        gpu_edits(asked)


def test_a_helper_that_the_kernel_holds_is_not_followed_by_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    host = amd.mi210(tmp_path / "host", count=1)
    intel.arc(host.path, first=40)
    pid = os.fork()
    if not pid:
        signal.pause()
        os._exit(0)
    monkeypatch.setitem(helper._left, f"{SURVEY_ENTRY} amd", [pid])
    try:
        with pytest.raises(GpuError, match="AMD's GPUs cannot be read: the kernel still holds the process"):
            limited_survey(AMD, host.env)
        assert len(limited_survey(INTEL, host.env).units) == 3
    finally:
        os.kill(pid, signal.SIGKILL)
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    assert len(limited_survey(AMD, host.env).units) == 1


@pytest.mark.parametrize(
    ("code", "text"),
    [
        ("print('x')", "ended with status 0"),
        ("import os; os._exit(3)", "ended with status 768"),
        ("import marshal, os; os.write(1, marshal.dumps(['Survey', 1]))", "ended with status 0"),
        ("import time; time.sleep(999)", "has not answered within"),
    ],
)
def test_a_helper_that_is_not_well(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: str, text: str) -> None:
    plain = child_command(SURVEY_ENTRY)
    monkeypatch.setattr(
        helper, "child_command", lambda entry: Child((plain.executable, "-ISc", code), plain.executable, None)
    )
    monkeypatch.setattr(surveys, "_START_S", 2.0)
    monkeypatch.setattr(surveys, "TIMEOUT_S", 0.5)
    with pytest.raises(GpuError, match=text):
        limited_survey(AMD, amd.mi210(tmp_path / "host", count=1).env)


def test_what_a_room_raises_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(env: object, ask: bool, more: bool) -> None:
        raise OSError(24, "Too many open files")

    monkeypatch.setattr("gpurun.gpu.amd.survey.survey", fails)
    answer = look(SurveyQuestion("amd", str(tmp_path), 60, False))
    assert isinstance(answer, str) and "too many open files" in answer.lower()
