"""A task in a child: what it returns, and every way in which it can fail."""

from __future__ import annotations

import errno
import os
import signal
import threading

import pytest

from gpurun.errors import GpurunError
from gpurun.ns.helper_process import ask_child, run_in_child


def children() -> str:
    with open(f"/proc/self/task/{os.getpid()}/children", encoding="ascii") as f:
        return f.read()


def test_it_runs_in_another_process_and_is_reaped() -> None:
    before, open_before = children(), os.listdir("/proc/self/fd")
    pid = int(ask_child(lambda: str(os.getpid()).encode()))
    assert pid != os.getpid()
    assert children() == before and os.listdir("/proc/self/fd") == open_before


def test_more_than_a_pipe_holds() -> None:
    assert ask_child(lambda: b"x" * (1 << 20)) == b"x" * (1 << 20)


def test_nothing_to_say() -> None:
    run_in_child(lambda: None)


def failing(error: BaseException) -> str:
    def task() -> None:
        raise error

    with pytest.raises(GpurunError) as raised:
        run_in_child(task)
    return str(raised.value)


def test_what_a_task_raises_is_told() -> None:
    assert failing(GpurunError("mount /x: no such file")) == "mount /x: no such file"
    assert failing(OSError(errno.EPERM, "x", "/a\udcff")) == "/a\udcff: operation not permitted"
    assert failing(ValueError("of our own")) == "internal error in gpurun: ValueError: of our own"
    assert failing(SystemExit(0)) == "internal error in gpurun: SystemExit: 0"


def test_one_that_is_killed_says_how() -> None:
    with pytest.raises(GpurunError, match=r"^a helper process was killed by signal 9$"):
        run_in_child(lambda: os.kill(os.getpid(), signal.SIGKILL))


def test_beside_a_thread_that_is_always_busy() -> None:
    """A child that the interpreter knows nothing of waits for ever for the lock that this thread had when it was born."""
    ended = threading.Event()

    def count() -> None:
        while not ended.is_set():
            sum(range(50))

    busy = threading.Thread(target=count)
    before = signal.signal(signal.SIGALRM, give_up)
    busy.start()
    signal.alarm(120)
    try:
        for _ in range(50):
            assert ask_child(lambda: b"done") == b"done"
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
        ended.set()
        busy.join()


def give_up(*_: object) -> None:
    for pid in children().split():
        os.kill(int(pid), signal.SIGKILL)
    raise AssertionError("a child does not end")
