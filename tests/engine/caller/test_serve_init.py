"""What create and exec say of a process that ends before it has become the user's program."""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Iterator
from typing import Any

import pytest

from gpurun.cdi.edits import ContainerEdits, ProcTree
from gpurun.engine import messages
from gpurun.engine import state as store
from gpurun.engine.caller import exec as engine_exec
from gpurun.engine.caller import serve_init
from gpurun.engine.caller.rollback import Rollback
from gpurun.engine.caller.start_init import Started
from gpurun.errors import GpurunError
from gpurun.record import replace
from tests.deadline import within
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


@pytest.mark.parametrize("word", ["hooks", "source 0"])
def test_an_init_that_ends_before_it_is_answered(monkeypatch: pytest.MonkeyPatch, word: str) -> None:
    """What it has said is read, and then it is no more: the answer finds nobody."""
    ours, its = socket.socketpair()
    messages.expect_reports(ours.fileno())
    dead = child(its.fileno(), tuple(word.split()))
    its.close()
    monkeypatch.setattr(vars(serve_init)["cgroup"], "load_devices", lambda plan: -1)
    monkeypatch.setattr(vars(serve_init)["cgroup"], "restrict", lambda *of: None)
    monkeypatch.setattr(vars(serve_init)["manager"], "oom_kill_count", lambda path: 0)
    monkeypatch.setattr(vars(serve_init)["host_resources"], "open_late_source", lambda *of: os.open("/", os.O_PATH))
    config = {**base(), "mounts": [{"destination": "/m", "type": "bind", "source": "/s", "options": ["bind"]}]}
    with ours, pytest.raises(GpurunError) as caught:
        serve_init.serve_init(plan(config), replace(STATE, pid=dead), ours.fileno(), "/nonexistent", Rollback())
    assert str(caught.value) == "the container's init ended with status 0 before the container was made"


def conversation(channel: int, started: Started) -> Any:
    """What exec says with the processes that *started* makes."""
    made = vars(engine_exec)["_Conversation"](plan(base()).init, STATE, "/nonexistent", channel, [])
    made.begin_with_starter(started, {}, {})
    return made


@pytest.mark.parametrize(("counts", "hint"), [((3, 4), " (possibly OOM-killed)"), ((3, 3), "")])
def test_a_process_of_exec_that_ends(
    monkeypatch: pytest.MonkeyPatch, channel: int, counts: tuple[int, int], hint: str
) -> None:
    answers = iter(counts)
    monkeypatch.setattr(vars(engine_exec)["control"], "oom_kill_count", lambda path: next(answers))
    with pytest.raises(GpurunError) as caught:
        conversation(channel, Started(0, channel)).serve()
    assert str(caught.value) == f"unable to start container process: it ended before it could start{hint}"


def test_a_setter_that_is_gone_when_it_is_let_go(monkeypatch: pytest.MonkeyPatch, channel: int, dead_child: int) -> None:
    monkeypatch.setattr(vars(engine_exec)["control"], "oom_kill_count", lambda path: 0)
    made = conversation(channel, Started(0, channel))
    made.begin_with_setter(dead_child)
    with pytest.raises(GpurunError, match=r"it ended before it could start$"):
        made.serve()
    os.waitpid(dead_child, 0)


@pytest.fixture
def speaking() -> Iterator[tuple[int, int]]:
    """(the caller's end, the other end) of a channel on which this process speaks for the one that is being made."""
    ours, its = socket.socketpair()
    messages.expect_reports(ours.fileno())
    with ours, its:
        yield ours.fileno(), its.fileno()


@pytest.mark.parametrize(
    "words",
    [
        ["created"],
        ["hooks", "created"],
        ["ready", "ready"],
        ["ready", "hooks"],
        ["hooks", "source 0"],
        ["spawned 1"],
    ],
)
def test_an_init_that_says_something_before_its_time(
    monkeypatch: pytest.MonkeyPatch, speaking: tuple[int, int], words: list[str]
) -> None:
    """It may be in the hands of the container: ``created`` before ``ready`` would leave it without limits."""
    monkeypatch.setattr(vars(serve_init)["cgroup"], "load_devices", lambda plan: -1)
    monkeypatch.setattr(vars(serve_init)["cgroup"], "restrict", lambda *of: None)
    monkeypatch.setattr(vars(serve_init)["lp"], "set_limit", lambda *of: None)
    ours, its = speaking
    for word in words:
        messages.report(its, *word.split())
    with pytest.raises(GpurunError) as caught:
        serve_init.serve_init(plan(base()), replace(STATE, pid=os.getpid()), ours, "/nonexistent", Rollback())
    assert str(caught.value) == f'the container\'s init sent "{words[-1].split()[0]}" at the wrong time'


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["uncovered 0 22", "uncovered 0 22"], '"uncovered" at the wrong time'),
        (["hooks", "uncovered 0 22"], '"uncovered" at the wrong time'),
        (["uncovered 1 22"], '"uncovered" without a valid number'),
        (["uncovered 0"], "sent an invalid message"),
    ],
)
def test_trees_that_cannot_be_covered_are_told_once(
    monkeypatch: pytest.MonkeyPatch, speaking: tuple[int, int], words: list[str], says: str
) -> None:
    """By an init that nobody has to believe: it cannot fill the caller's log."""
    told: list[str] = []
    monkeypatch.setattr("gpurun.log.warning", told.append)
    monkeypatch.setattr(vars(serve_init)["cgroup"], "load_devices", lambda plan: -1)
    monkeypatch.setattr(vars(serve_init)["cgroup"], "restrict", lambda *of: None)
    ours, its = speaking
    for word in words:
        messages.report(its, *word.split())
    made = plan(base())
    made = replace(made, init=replace(made.init, edits=ContainerEdits(proc_trees=(ProcTree("/sys/x", (), ()),))))
    with within(60), pytest.raises(GpurunError, match=says):
        serve_init.serve_init(made, replace(STATE, pid=os.getpid()), ours, "/nonexistent", Rollback())
    expected = ["/sys/x shows the GPUs of all: it cannot be covered: invalid argument"]
    assert told == (expected if len(words) == 2 and words[0] == "uncovered 0 22" else [])


def child(its: int, *reports: tuple[str | int, ...]) -> int:
    """A child that has said that, and has ended since."""
    pid = os.fork()
    if pid == 0:
        for report in reports:
            messages.report(its, str(report[0]), *report[1:])
        os._exit(0)
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    return pid


@pytest.mark.parametrize("words", [["created"], ["ready", "ready"], ["child"], ["ready", "created"]])
def test_a_setter_that_says_something_before_its_time(
    monkeypatch: pytest.MonkeyPatch, speaking: tuple[int, int], words: list[str]
) -> None:
    """The process is not cloned before its limits are set."""
    prepared: list[int] = []
    monkeypatch.setattr(vars(engine_exec)["control"], "oom_kill_count", lambda path: 0)
    monkeypatch.setattr(engine_exec, "_prepare", lambda plan, state, pid: prepared.append(pid))
    ours, its = speaking
    other, others_end = socket.socketpair()
    messages.expect_reports(other.fileno())
    setter = child(others_end.fileno(), *[(word, os.getpid()) if word == "child" else (word,) for word in words])
    starter = child(its, ("child", setter))
    answers = iter([ours, *[other.fileno()] * 2])
    receive = messages.receive_report
    monkeypatch.setattr(messages, "receive_report", lambda fd, senders: receive(next(answers), senders))
    with other, others_end, pytest.raises(GpurunError) as caught:
        conversation(ours, Started(starter, ours)).serve()
    assert f'"{words[-1]}" must not come from process {setter}' in str(caught.value)
    assert prepared == [setter] * (words[0] == "ready")
    for pid in (starter, setter):
        os.waitpid(pid, 0)
