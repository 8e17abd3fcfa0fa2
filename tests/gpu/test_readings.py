"""What GPUs do, read by a process of its own: a driver that hangs holds nobody but that."""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path

import pytest

from gpurun.errors import GpuError
from gpurun.gpu import readings as asking
from gpurun.gpu import readings_process
from gpurun.gpu.host import helper
from gpurun.gpu.readings import Readers, read
from gpurun.gpu.readings_process import PROCESSES, Readings, ReadingsQuestion, look, parse, words_of
from gpurun.launcher.fresh_interpreter import READINGS_ENTRY, Child, child_command
from tests.simcards import Host, amd, intel
from tests.simcards.held import hang, open_fifos


def question(host: Host, *vendors: str, seconds: float = 60, skipped: tuple[str, ...] = ()) -> ReadingsQuestion:
    return ReadingsQuestion(str(host.path), vendors, seconds, skipped=skipped, proc=str(host.path / "proc"))


def problems(found: Readings) -> dict[str, str]:
    return {one.unit.key: one.reading.problem for one in found.measured if one.reading.problem}


def test_a_question_is_words() -> None:
    asked = ReadingsQuestion("", ("a", "b"), 2.5, True, ("0000:03:00.0", PROCESSES), "/proc")
    assert parse(words_of(asked)) == asked and parse(words_of(ReadingsQuestion("/x", (), 1.0))) == ReadingsQuestion(
        "/x", (), 1.0
    )


def test_the_helper_answers(tmp_path: Path) -> None:
    host = amd.mi300x(tmp_path / "host")
    found = read(question(host, "amd"))
    assert found == look(question(host, "amd")) and not found.silent and not found.problems
    assert [one.unit.key for one in found.measured] == [f"{amd.MI300X}/{number}" for number in range(8)]
    assert {one.reading.power for one in found.measured} == {92.0}


def test_a_gpu_that_hangs_costs_the_others_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    host = amd.mi210(tmp_path / "host", count=2)
    intel.arc(host.path, first=40)
    bad = amd.MI210[1][0]
    hang(host.path / "sys/bus/pci/drivers/amdgpu" / bad / "gpu_busy_percent")
    open_fifos(monkeypatch)
    found = read(question(host, "amd", "intel", seconds=4))
    assert set(problems(found)) == {bad} and "has not answered within 4 s" in problems(found)[bad]
    assert found.silent == (bad,) and len(found.measured) == 2 + 3
    assert [one.reading.load for one in found.measured if one.unit.vendor == "amd" and one.unit.key != bad] == [37]
    assert not helper.is_held(READINGS_ENTRY)


def test_a_maker_that_hangs_costs_the_other_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The list of a maker's GPUs may be held as well."""
    host = amd.mi210(tmp_path / "host", count=1)
    intel.arc(host.path, first=40)
    hang(host.path / "sys/bus/pci/drivers/amdgpu" / amd.MI210[0][0] / "numa_node")
    open_fifos(monkeypatch)
    found = read(question(host, "amd", "intel", seconds=4))
    assert found.silent == ("amd",) and {one.unit.vendor for one in found.measured} == {"intel"}
    assert found.problems[0].startswith("the GPUs of AMD cannot be read: its driver has not answered")


def test_processes_that_cannot_be_read_cost_the_rest_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    go = threading.Event()
    monkeypatch.setattr(readings_process, "open_nodes", lambda proc: go.wait(60))
    host = intel.arc(tmp_path / "host", functions=False)
    found = look(question(host, "intel", seconds=4))
    go.set()
    assert found.silent == (PROCESSES,) and "which processes use GPUs is not known" in found.problems[0]
    assert [(one.reading.processes, one.reading.load, one.reading.temperature) for one in found.measured] == [
        (None, None, 60.0)
    ] * 2
    again = look(question(host, "intel", skipped=(PROCESSES,)))
    assert not again.problems and {one.reading.processes for one in again.measured} == {None}


def test_what_did_not_answer_is_left_alone_for_a_while(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    host = amd.mi210(tmp_path / "host", count=2)
    bad = amd.MI210[0][0]
    fifo = hang(host.path / "sys/bus/pci/drivers/amdgpu" / bad / "gpu_busy_percent")
    open_fifos(monkeypatch)
    said: list[str] = []
    readers = Readers(host.env, 4, said.append)
    for _ in range(2):
        assert set(problems(readers.read())) == {bad}
    assert len(said) == 1 and f"({bad}): its driver has not answered" in said[0]
    fifo.unlink()
    fifo.write_text("11\n")
    assert set(problems(readers.read())) == {bad}  # not asked
    readers._until[bad] = 0.0
    assert not problems(readers.read()) and len(said) == 1


def test_it_is_not_asked_while_the_kernel_holds_who_has_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    host = amd.mi210(tmp_path / "host", count=2)
    readers = Readers(host.env, 60, pytest.fail)
    readers._until[amd.MI210[0][0]] = 0.0
    pid = os.fork()
    if not pid:
        signal.pause()
        os._exit(0)
    monkeypatch.setitem(helper._left, READINGS_ENTRY, [pid])
    try:
        assert set(problems(readers.read())) == {amd.MI210[0][0]}
    finally:
        os.kill(pid, signal.SIGKILL)
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    assert not problems(readers.read()) and not helper.is_held(READINGS_ENTRY)


@pytest.mark.parametrize(
    ("code", "text"),
    [
        ("print('x')", "ended with status 0"),
        ("import os; os._exit(3)", "status 768"),
        ("import time; time.sleep(999)", "within"),
    ],
)
def test_a_helper_that_is_not_well(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: str, text: str) -> None:
    host = amd.mi210(tmp_path / "host", count=1)
    plain = child_command(READINGS_ENTRY)
    monkeypatch.setattr(
        helper, "child_command", lambda entry: Child((plain.executable, "-ISc", code), plain.executable, None)
    )
    monkeypatch.setattr(asking, "_START_S", 2.0)
    with pytest.raises(GpuError, match=text):
        read(question(host, "amd", seconds=0.5))
    said: list[str] = []
    readers = Readers(host.env, 0.5, said.append)
    assert readers.read() == readers.read() == Readings(()) and len(said) == 1


def test_a_gpu_that_goes_meanwhile(tmp_path: Path) -> None:
    """The directory is there when GPUs are listed, and empty when they are read."""
    host = intel.arc(tmp_path / "host", functions=False)
    path = host.path / intel.CARDS[1].path
    asked = question(host, "intel")
    made = look(asked)
    assert not problems(made)
    for name in ("hwmon", "tile0"):
        (path / name).rename(tmp_path / name)
    (path / "hwmon").symlink_to("/nowhere")
    found = {one.unit.key: one.reading for one in look(asked).measured}[intel.B580]
    assert (found.temperature, found.power, found.clock, found.problem) == (None, None, None, "")


def test_without_such_a_driver_nobody_is_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(asking, "read", pytest.fail)
    assert Readers({"GPURUN_SYSROOT": str(tmp_path)}, 1, pytest.fail).read() == Readings(())
