"""Files of sysfs that wait for the device: read by processes that are given up, whatever the driver does."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from gpurun.gpu.host import driver_reads, helper, reads
from gpurun.gpu.host.driver_reads import last_told, read_in_time, silence
from gpurun.linux.files import read_file
from tests.simcards.held import hang


def _children() -> set[str]:
    """The children of this thread, which makes them all."""
    return set(Path(f"/proc/self/task/{os.getpid()}/children").read_text().split())


@pytest.fixture(autouse=True)
def opens_fifos(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The copies wait at a FIFO as they would at a file whose driver hangs; nothing is known of before."""
    monkeypatch.setattr(reads, "read_regular", read_file)
    monkeypatch.setattr(driver_reads, "_until", {})
    monkeypatch.setattr(driver_reads, "_last", {})
    monkeypatch.setattr(driver_reads, "LIMIT_S", 1.5)
    monkeypatch.setattr(driver_reads, "_FIRST_S", 0.5)
    before, children = os.listdir("/proc/self/fd"), _children()
    yield
    assert os.listdir("/proc/self/fd") == before
    assert _children() <= children, "zombies count as well; other tests of this process may have left some"


def devices(directory: Path, count: int = 3) -> list[tuple[str, ...]]:
    """Two files of each of *count* devices."""
    made = []
    for number in range(count):
        pair = tuple([str(directory / f"{number}.{kind}") for kind in ("compute", "memory")])
        for path in pair:
            Path(path).write_text(f"{Path(path).name}\n")
        made.append(pair)
    return made


def forks(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The processes that are made from now on."""
    made: list[int] = []
    fork = os.fork

    def counted() -> int:
        pid = fork()
        made.append(pid)
        return pid

    monkeypatch.setattr("posix.fork", counted)
    return made


def test_one_process_reads_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = forks(monkeypatch)
    each = devices(tmp_path)
    assert read_in_time(each) == {path: Path(path).name for pair in each for path in pair}
    assert len(made) == 1
    assert read_in_time([]) == read_in_time([()]) == {} and len(made) == 1


def test_what_cannot_be_read_says_nothing(tmp_path: Path) -> None:
    (pair,) = devices(tmp_path, 1)
    Path(pair[0]).unlink()
    Path(pair[1]).write_bytes(b"\0\xff" + b"x" * 5000)
    assert read_in_time([pair]) == {pair[0]: "", pair[1]: "�" + "x" * 62}


def test_a_device_that_hangs_costs_the_others_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    each = devices(tmp_path)
    read_in_time(each[:2])
    hang(Path(each[1][1]))
    made = forks(monkeypatch)
    found = read_in_time(each)
    assert {path for pair in each for path in pair} - found.keys() == {each[1][1]}
    assert last_told(each[1][1]) == "1.memory" and "within 1.5 s (/x): it hangs" in silence("/x")
    asked = len(made)
    assert asked == 1 + 2  # one for all, then one for each of those that it had not come to
    assert read_in_time(each).keys() == {path for pair in (each[0], each[2]) for path in pair}
    assert len(made) == asked + 1  # what has not answered is not asked again now
    monkeypatch.setattr(driver_reads, "_until", dict.fromkeys(driver_reads._until, 0.0))
    Path(each[1][1]).unlink()
    Path(each[1][1]).write_text("CPX\n")
    assert read_in_time(each)[each[1][1]] == "CPX"


def test_a_process_that_the_kernel_holds_is_left_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (pair,) = devices(tmp_path, 1)
    hang(Path(pair[0]))
    monkeypatch.setattr(driver_reads, "LIMIT_S", 0.2)
    ended = helper.end
    held: list[int] = []

    def end(pid: int, deadline: float) -> int | None:
        if len(held) < 1:
            held.append(pid)
            return None
        return ended(pid, deadline)

    monkeypatch.setattr(helper, "end", end)
    try:
        assert read_in_time([pair]) == {}
        driver_reads._until[pair[0]] = 0.0
        made = forks(monkeypatch)
        assert read_in_time([pair]) == {} and made == []
    finally:
        os.kill(held[0], signal.SIGKILL)
        os.waitpid(held[0], 0)


def test_it_holds_nothing_open_that_its_caller_has(tmp_path: Path) -> None:
    """Who waits for the end of gpurun's output would wait for the driver."""
    (pair,) = devices(tmp_path, 1)
    fifo = hang(Path(pair[0]))
    receive, send = os.pipe()
    caller = os.fork()
    if not caller:
        try:
            os.close(receive)
            os.dup2(send, 1)
            driver_reads.LIMIT_S = 60
            pid, _ = driver_reads._start(pair)
            os.write(send, f"{pid}\n".encode())
        finally:
            os._exit(0)
    os.close(send)
    with os.fdopen(receive) as said:
        pid = int(said.read())  # to its end, though the copy still reads
    os.waitpid(caller, 0)
    assert os.readlink(f"/proc/{pid}/fd/0") == os.readlink(f"/proc/{pid}/fd/1") == "/dev/null"
    with open(fifo, "w") as answer:
        answer.write("SPX\n")
    deadline = time.monotonic() + 60
    while os.path.exists(f"/proc/{pid}/fd/1"):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    with suppress(ChildProcessError):  # it is ours where a test before has made this process a subreaper (prctl(2))
        os.waitpid(pid, 0)
