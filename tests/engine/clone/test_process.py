"""The copy of the caller that becomes a process of the container: what it has at its birth, and what the caller keeps."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

import pytest

from gpurun.engine.clone.process import clone_copy
from gpurun.errors import GpurunError
from gpurun.linux import process as lp

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="of a process that may not be looked into, root alone sees this")


def said_by_copy(facts: Callable[[], object], keep: tuple[int, ...] = (), score: int | None = None, **more: bool) -> str:
    """What *facts* are in a copy that is made so; the copy ends with status 7."""
    read, write = os.pipe()

    def become() -> NoReturn:
        os.write(write, str(facts()).encode())
        os._exit(7)

    pid = clone_copy(os.fork, become, (*keep, write, -1), score, more.get("dumpable", False))
    os.close(write)
    with os.fdopen(read) as file:
        said = file.read()
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7
    return said


def test_it_has_the_descriptors_that_it_is_given() -> None:
    kept, other = os.open("/dev/null", os.O_RDONLY), os.open("/dev/zero", os.O_RDONLY)
    found = said_by_copy(
        lambda: [name for name in os.listdir("/proc/self/fd") if os.path.exists(f"/proc/self/fd/{name}")], (kept,)
    )
    assert str(kept) in found and f"'{other}'" not in found
    os.fstat(other)  # the caller's stays open
    os.close(kept)
    os.close(other)


@needs_root
@pytest.mark.parametrize("dumpable", [False, True])
def test_nobody_looks_into_it_from_its_birth(dumpable: bool) -> None:
    before = lp.prctl(lp.PR_GET_DUMPABLE)
    assert said_by_copy(lambda: lp.prctl(lp.PR_GET_DUMPABLE), dumpable=dumpable) == str(int(dumpable))
    assert lp.prctl(lp.PR_GET_DUMPABLE) == before


def test_its_oom_score_is_not_the_caller_s() -> None:
    own = Path("/proc/self/oom_score_adj").read_text()
    score = min(1000, int(own) + 17)
    assert int(said_by_copy(Path("/proc/self/oom_score_adj").read_text, score=score)) == score
    assert Path("/proc/self/oom_score_adj").read_text() == own


def test_a_signal_that_comes_meanwhile_waits_for_both() -> None:
    """The copy ends by SIGINT as any program does, and does not unwind the caller's frames."""
    was = signal.signal(signal.SIGINT, signal.default_int_handler)

    def clone() -> int:
        pid = os.fork()
        signal.pthread_kill(threading.get_ident(), signal.SIGINT)  # other threads of a test's worker do not block it
        return pid

    made: list[int] = []

    def noted() -> int:
        made.append(clone())
        return made[0]

    try:
        with pytest.raises(KeyboardInterrupt):
            clone_copy(noted, lambda: os._exit(0), (), None, True)
    finally:
        signal.signal(signal.SIGINT, was)
    assert os.waitstatus_to_exitcode(os.waitpid(made[0], 0)[1]) == -signal.SIGINT
    assert signal.pthread_sigmask(signal.SIG_BLOCK, ()) == set()


def test_a_copy_that_fails_never_goes_on_as_the_caller() -> None:
    def become() -> NoReturn:
        raise RuntimeError

    pid = clone_copy(os.fork, become, (), None, True)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 1


def test_what_cannot_be_cloned_leaves_the_caller_as_it_was() -> None:
    def clone() -> int:
        raise GpurunError("no")

    own, dumpable = Path("/proc/self/oom_score_adj").read_text(), lp.prctl(lp.PR_GET_DUMPABLE)
    with pytest.raises(GpurunError, match="no"):
        clone_copy(clone, lambda: os._exit(0), (), min(1000, int(own) + 1), False)
    assert (Path("/proc/self/oom_score_adj").read_text(), lp.prctl(lp.PR_GET_DUMPABLE)) == (own, dumpable)
    assert signal.pthread_sigmask(signal.SIG_BLOCK, ()) == set()
