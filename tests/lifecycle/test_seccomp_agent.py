"""SCMP_ACT_NOTIFY: an agent outside decides on a container's system calls."""

from __future__ import annotations

import errno
import json
import os
import platform
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.conftest import MakeBundle
from tests.deadline import within
from tests.lifecycle.test_seccomp import MKDIR, both, rule, under
from tests.native.leaks import Leaks
from tests.native.runtime import Runtime
from tests.security.agent import Agent, answer

pytestmark = pytest.mark.native


#: Number of the call that busybox' mkdir makes.
MKDIR_NUMBER = 34 if platform.machine() == "aarch64" else 83


StartAgent = Callable[..., Agent]


@pytest.fixture
def agent(runtime: Runtime) -> Iterator[StartAgent]:
    started: list[Agent] = []

    def start(deny: dict[int, int]) -> Agent:
        started.append(Agent(runtime.directory / f"agent{len(started)}", deny))
        return started[-1]

    yield start
    for one in started:
        one.close()


@pytest.mark.conforms(
    "config-linux.md: The Container Process State",
    level="MUST",
    what="the state MUST be sent over the socket of `listenerPath` in JSON, the descriptors with SCM_RIGHTS",
)
@pytest.mark.not_on("crun", reason="waits for the agent for ever")
@both
def test_an_agent_decides(runtime: Runtime, bundle: MakeBundle, agent: StartAgent, no_new_privileges: bool) -> None:
    a = agent({MKDIR_NUMBER: errno.ENOSPC})
    b = bundle().args("mkdir", "/tmp/made")
    b.config["annotations"] = {"who": "me"}
    under(
        b,
        rule("NOTIFY", *MKDIR),
        no_new_privileges=no_new_privileges,
        listenerPath=str(a.path),
        listenerMetadata='some "text" ü',
    )
    container = runtime.create(b)
    (state,) = a.wait(1)  # create has sent it
    assert state["fds"] == ["seccompFd"]
    assert state["pid"] == container.pid
    assert state["metadata"] == 'some "text" ü'
    inner = state["state"]
    assert inner["id"] == container.id
    assert inner["status"] == "creating"
    assert inner["pid"] == container.pid
    assert inner["bundle"] == str(b.directory)
    assert inner["annotations"]["who"] == "me"
    assert state["ociVersion"] and inner["ociVersion"]
    assert container.start().rc == 0
    assert container.wait() == 1
    assert "No space left on device" in container.err
    assert MKDIR_NUMBER in a.seen


@both
@pytest.mark.gpurun_only
def test_what_is_between_the_filter_and_the_program_can_be_the_agent_s(
    runtime: Runtime, bundle: MakeBundle, leaks: Leaks, agent: StartAgent, no_new_privileges: bool
) -> None:
    leaks.allow_rootfs_changes()
    a = agent({})
    names = "read close execve close_range rt_sigaction rt_sigprocmask clone clone3 poll ppoll pipe2 wait4 waitid".split()
    b = bundle().args("cat", "/tmp/hook")
    b.config["hooks"] = {"startContainer": [{"path": "/bin/sh", "args": ["sh", "-c", "echo ran >/tmp/hook"]}]}
    under(b, rule("NOTIFY", *names), no_new_privileges=no_new_privileges, listenerPath=str(a.path))
    assert runtime.output(b) == "ran\n"
    assert a.seen


@pytest.mark.gpurun_only
def test_no_descriptor_of_the_listener_is_left(runtime: Runtime, bundle: MakeBundle, agent: StartAgent) -> None:
    a = agent({})
    b = under(bundle().args("ls", "/proc/self/fd"), rule("NOTIFY", *MKDIR), listenerPath=str(a.path))
    assert runtime.output(b).split() == ["0", "1", "2", "3"]  # 3 is the directory that ls reads


@pytest.mark.parametrize("path", ["nothing-there", "no-socket"])
def test_without_its_agent_a_container_is_refused(runtime: Runtime, bundle: MakeBundle, path: str) -> None:
    where = runtime.directory / path
    if path == "no-socket":
        where.write_text("")
    b = under(bundle().args("true"), rule("NOTIFY", *MKDIR), listenerPath=str(where))
    assert "failed to connect with seccomp agent specified in the seccomp profile" in runtime.refused(b)


def test_an_agent_that_no_rule_asks_for_is_not_asked(runtime: Runtime, bundle: MakeBundle) -> None:
    b = under(bundle().args("echo", "alive"), rule("ERRNO", *MKDIR), listenerPath="/nonexistent", listenerMetadata="x")
    assert runtime.output(b) == "alive\n"


def test_exec_has_a_listener_of_its_own(runtime: Runtime, bundle: MakeBundle, agent: StartAgent) -> None:
    a = agent({MKDIR_NUMBER: errno.ENOSPC})
    b = under(bundle().sh("sleep 100"), rule("NOTIFY", *MKDIR), listenerPath=str(a.path), listenerMetadata="m")
    container = runtime.start(b)
    result = runtime("exec", container.id, "mkdir", "/tmp/made")
    assert "No space left on device" in result.err
    assert [s["state"]["status"] for s in a.states] == ["creating", "running"]
    assert [s["state"]["pid"] for s in a.states] == [container.pid] * 2
    assert a.states[1]["pid"] != container.pid
    assert a.states[1]["metadata"] == "m"


@pytest.fixture
def listening(runtime: Runtime) -> Iterator[socket.socket]:
    """The socket of an agent, at ``agent`` in the runtime's directory."""
    with socket.socket(socket.AF_UNIX) as server, within(40):
        server.bind(str(runtime.directory / "agent"))
        server.listen()
        yield server


def take_listener(server: socket.socket) -> tuple[int, int]:
    """(pid, descriptor) of the process that asks next, and is not answered."""
    connection, _ = server.accept()
    with connection:
        text, (fd,), _, _ = socket.recv_fds(connection, 65536, 1)
    return int(json.loads(text)["pid"]), fd


@pytest.mark.parametrize("hook", [False, True])
def test_an_agent_that_has_gone(runtime: Runtime, bundle: MakeBundle, listening: socket.socket, hook: bool) -> None:
    """What waits for its answer fails with ENOSYS: no descriptor of ours keeps the listener, and nothing hangs."""
    b = bundle().args("true")
    if hook:
        b.config["hooks"] = {"startContainer": [{"path": "/bin/true"}]}
    under(b, rule("NOTIFY", "execve"), listenerPath=str(runtime.directory / "agent"))
    container = runtime.create(b)
    os.close(take_listener(listening)[1])
    container.start()
    assert container.wait() != 0
    assert "function not implemented" in container.err.lower(), container.err
    assert container.delete("--force").rc == 0


@pytest.mark.not_on("crun", reason="its exec asks no agent")
def test_the_agent_of_a_process_by_exec_that_has_gone(
    runtime: Runtime, bundle: MakeBundle, listening: socket.socket
) -> None:
    b = under(bundle().args("sleep", "100"), rule("NOTIFY", "execve"), listenerPath=str(runtime.directory / "agent"))
    container = runtime.create(b)
    _, init_asks = take_listener(listening)
    assert container.start().rc == 0
    assert answer(init_asks, {}) is not None
    execs = runtime.popen("exec", container.id, "true", files=runtime.new_files())
    os.close(take_listener(listening)[1])
    assert execs.wait() != 0
    os.close(init_asks)
    assert container.delete("--force").rc == 0


@pytest.mark.gpurun_only
def test_who_waits_has_a_name(runtime: Runtime, bundle: MakeBundle, listening: socket.socket) -> None:
    """In ps and top: the init until start, exec's process until its program; each is held in its execve(2)."""

    def names(pid: int) -> tuple[str, str]:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().rstrip(b"\0").split(b"\0")
        return Path(f"/proc/{pid}/comm").read_text(), b" ".join(words).decode()

    b = under(bundle().args("sleep", "100"), rule("NOTIFY", "execve"), listenerPath=str(runtime.directory / "agent"))
    container = runtime.create(b)
    pid, init_asks = take_listener(listening)
    assert pid == container.pid
    assert names(pid) == ("gpurun:[init]\n", "gpurun init")
    assert container.start().rc == 0
    assert names(pid) == ("gpurun:[init]\n", "gpurun init"), "it cannot have come further than to its execve"
    execs = runtime.popen("exec", container.id, "true", files=runtime.new_files())
    pid, exec_asks = take_listener(listening)
    assert names(pid) == ("gpurun:[exec]\n", "gpurun exec")
    assert container.delete("--force").rc == 0
    assert execs.wait() != 0
    for fd in (init_asks, exec_asks):
        os.close(fd)
