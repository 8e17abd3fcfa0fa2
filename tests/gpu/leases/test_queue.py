"""The queue for GPUs: its order, who has gone, and names that are no tickets."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpurun.errors import GpurunError
from gpurun.gpu.leases import queue
from gpurun.gpu.leases.queue import Ticket, ahead, draw, leave, tickets
from gpurun.gpu.leases.turns import Want
from gpurun.linux import procfs
from gpurun.linux.files import read_regular
from tests.deadline import within

ANY = Want(frozenset(["a", "b"]))


def me() -> tuple[int, int]:
    found = procfs.stat(os.getpid())
    assert found is not None
    return os.getpid(), found[1]


@pytest.fixture
def place(tmp_path: Path) -> Iterator[str]:
    with within(60):
        yield str(tmp_path)


def test_in_the_order_of_arrival(place: str) -> None:
    drawn = [draw(place, *me(), want) for want in (ANY, Want(frozenset("b"), 2, True), Want(frozenset("c")))]
    assert [one.number for one in drawn] == [1, 2, 3] and tickets(place) == tuple(drawn)
    assert ahead(place, frozenset("b"), None) == tuple(drawn[:2])
    assert ahead(place, frozenset("b"), drawn[1]) == (drawn[0],) and ahead(place, frozenset("c"), drawn[1]) == ()
    leave(place, drawn[0])
    leave(place, drawn[0])
    assert tickets(place) == tuple(drawn[1:])


def test_more_than_nine(place: str) -> None:
    assert [draw(place, *me(), ANY).number for _ in range(12)] == list(range(1, 13))
    assert [one.number for one in tickets(place)] == list(range(1, 13))


def test_who_was_killed_waits_no_longer(place: str) -> None:
    with subprocess.Popen(["sleep", "600"]) as process:
        found = procfs.stat(process.pid)
        assert found is not None
        draw(place, process.pid, found[1], ANY)
        assert len(tickets(place)) == 1
        process.send_signal(signal.SIGKILL)
    assert tickets(place, tidy=False) == () and os.listdir(place) == ["waiting.1"]
    assert tickets(place) == () and os.listdir(place) == []


def test_one_that_leaves_between_the_list_and_the_look(place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the lock, as `gpu leases` looks, or as one that has waited long enough goes."""
    one, two = draw(place, *me(), ANY), draw(place, *me(), ANY)

    def first_leaves(path: str, limit: int, follow: bool) -> bytes:
        leave(place, one)
        return read_regular(path, limit, follow)

    monkeypatch.setattr(queue, "read_regular", first_leaves)
    assert tickets(place) == (two,)


@pytest.mark.parametrize("make", [os.mkdir, os.mkfifo, lambda path: os.symlink("/etc/passwd", path)])
def test_a_name_that_is_no_ticket_refuses_nobody(place: str, make: object, capfd: pytest.CaptureFixture[str]) -> None:
    make(f"{place}/waiting.3")  # type: ignore[operator]
    assert tickets(place) == () and "waiting.3" in capfd.readouterr().err
    assert draw(place, *me(), ANY).number == 4
    assert [one.number for one in tickets(place)] == [4] and os.path.lexists(f"{place}/waiting.3")


@pytest.mark.parametrize("text", ["", "x y", "1", "-1 5", "9" * 30, "0 0"])
def test_text_that_is_no_ticket_is_removed(place: str, text: str) -> None:
    Path(place, "waiting.1").write_text(text)
    assert tickets(place) == () and os.listdir(place) == []


@pytest.mark.parametrize("name", ["waiting.x", "waiting.", "waiting.²", "waiting.-1", "waiting." + "9" * 100])
def test_other_names_do_not_count(place: str, name: str) -> None:
    Path(place, name).touch()
    assert tickets(place) == () and draw(place, *me(), ANY).number == 1 and os.path.exists(f"{place}/{name}")


def test_a_ticket_of_an_earlier_version(place: str) -> None:
    pid, start = me()
    Path(place, "waiting.7").write_text(f"{pid} {start} 0000:01:00.0 0000:02:00.0/1/0")
    assert tickets(place) == (Ticket(7, pid, start, Want(frozenset(["0000:01:00.0", "0000:02:00.0/1/0"]))),)


def test_no_directory_is_no_queue(place: str) -> None:
    assert tickets(f"{place}/none") == ()


def test_errors_name_the_directory(place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object, **__: object) -> bytes:
        raise OSError(5, "Input/output error")

    draw(place, *me(), ANY)
    monkeypatch.setattr(queue, "read_regular", fails)
    with pytest.raises(GpurunError, match=f"read who waits for GPUs in {place}: input/output error"):
        tickets(place)
    monkeypatch.setattr(queue, "write_atomically", fails)
    with pytest.raises(GpurunError, match=f"wait for GPUs in {place}: input/output error"):
        draw(place, *me(), ANY)
