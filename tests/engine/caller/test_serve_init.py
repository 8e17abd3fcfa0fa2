"""What create and exec say of a process that ends before it has become the user's program."""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Iterator
from typing import Any

import pytest

from gpurun.engine import state as store
from gpurun.engine.caller import exec as engine_exec
from gpurun.engine.caller import serve_init
from gpurun.engine.caller.rollback import Rollback
from gpurun.engine.caller.start_init import Started
from gpurun.errors import GpurunError
from gpurun.record import replace
from tests.engine.plan.planning import base, plan

STATE = store.State("c1", "/b", "/b/rootfs", "/sys/fs/cgroup/c1", True)


@pytest.fixture
def channel() -> Iterator[int]:
    """Our end of a socket whose other end has been closed by one that ended."""
    ours, its = socket.socketpair()
    its.close()
    with ours:
        yield ours.fileno()


@pytest.fixture
def dead_child() -> int:
    """A child that was killed and not yet waited for."""
    pid = os.fork()
    if pid == 0:
        os.kill(os.getpid(), 9)
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    return pid


@pytest.mark.parametrize(
    ("kills", "said"),
    [
        (1, "container init was OOM-killed (memory limit too low?)"),
        (0, "the container's init was killed by signal 9 before the container was made"),
    ],
)
def test_an_init_that_ends(monkeypatch: pytest.MonkeyPatch, channel: int, dead_child: int, kills: int, said: str) -> None:
    monkeypatch.setattr(vars(serve_init)["manager"], "oom_kill_count", lambda path: kills)
    monkeypatch.setattr(vars(serve_init)["cgroup"], "load_devices", lambda plan: -1)
    with pytest.raises(GpurunError) as caught:
        serve_init.serve_init(plan(base()), replace(STATE, pid=dead_child), channel, "/nonexistent", Rollback())
    assert str(caught.value) == said
    if kills:
        assert os.waitpid(dead_child, 0)[1] == signal.SIGKILL, "what is known need not be asked"
    else:
        with pytest.raises(ChildProcessError):  # its status was asked for
            os.waitpid(dead_child, 0)


@pytest.mark.parametrize(("counts", "hint"), [((3, 4), " (possibly OOM-killed)"), ((3, 3), "")])
def test_a_process_of_exec_that_ends(
    monkeypatch: pytest.MonkeyPatch, channel: int, counts: tuple[int, int], hint: str
) -> None:
    answers = iter(counts)
    monkeypatch.setattr(vars(engine_exec)["control"], "oom_kill_count", lambda path: next(answers))
    process: Any = vars(engine_exec)["_serve"]
    with pytest.raises(GpurunError) as caught:
        process(plan(base()).init, Started(0, channel), {}, {}, STATE, "/nonexistent", [])
    assert str(caught.value) == f"unable to start container process: it ended before it could start{hint}"
