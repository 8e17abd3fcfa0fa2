"""Yama at its strictest: nobody may be traced, which no part of a container's life needs (admin-guide/LSM/Yama.rst).

What is last here is last of all that runs in the guest: it cannot be taken back.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import MakeBundle
from tests.native.bundle import Bundle
from tests.native.runtime import ENVIRONMENT, Runtime
from tests.security.agent import Agent
from tests.simdriver import Options, SimulatedDriver, make, minor

GPUS = 2
YAMA = Path("/proc/sys/kernel/yama/ptrace_scope")

#: No more attaching for anybody, until the machine is started again.
FOR_EVER = "3"

pytestmark = [
    pytest.mark.native,
    pytest.mark.skipif(not YAMA.exists(), reason="this kernel does not run Yama"),
    pytest.mark.skipif(
        os.uname().nodename != "gpurun-vm", reason="this setting of the whole machine cannot be taken back (make test-vm)"
    ),
]


def lives(runtime: Runtime, b: Bundle) -> None:
    container = runtime.start(b.sh("echo up; sleep 1000"))
    container.wait_for("up")
    done = runtime("exec", container.id, "echo", "there")
    assert (done.rc, done.out) == (0, "there\n"), done
    assert runtime("exec", "-u", "1000:1000", container.id, "true").rc == 0
    assert runtime("ps", container.id).rc == 0 and container.state()["status"] == "running"
    assert container.kill("KILL").rc == 0 and container.wait() == 137 and container.delete().rc == 0


def test_nobody_attaches_but_with_the_capability(either: Runtime, bundle: MakeBundle) -> None:
    """kernel.yama.ptrace_scope = 2."""
    before = YAMA.read_text()
    YAMA.write_text("2")
    try:
        lives(either, bundle().user_namespace())
    finally:
        YAMA.write_text(before)


@pytest.mark.short
@pytest.mark.parametrize("kind", ["plain", "user namespace"])
def test_nobody_attaches_at_all(either: Runtime, bundle: MakeBundle, kind: str) -> None:
    YAMA.write_text(FOR_EVER)
    with pytest.raises(OSError, match=r".*"):
        YAMA.write_text("0")
    lives(either, bundle().user_namespace() if kind == "user namespace" else bundle())


@pytest.mark.short
@pytest.mark.gpurun_only
def test_an_agent_of_seccomp_gets_no_listener(runtime: Runtime, bundle: MakeBundle) -> None:
    """It would be taken from the container's process, which is what Yama forbids: said, with the setting's name."""
    YAMA.write_text(FOR_EVER)
    agent = Agent(runtime.directory / "agent", {})
    rule = {"names": ["mkdir"], "action": "SCMP_ACT_NOTIFY"}
    b = bundle().args("true")
    b.linux["seccomp"] = {"defaultAction": "SCMP_ACT_ALLOW", "syscalls": [rule], "listenerPath": str(agent.path)}
    try:
        assert "kernel.yama.ptrace_scope = 3" in runtime.refused(b)
    finally:
        agent.close()


@pytest.fixture
def host(place: Path) -> Iterator[SimulatedDriver]:
    directory = Path(tempfile.mkdtemp(dir=place))
    directory.chmod(0o755)
    yield make(directory, Options(gpus=GPUS))
    shutil.rmtree(directory)


@pytest.mark.short
@pytest.mark.gpurun_only
@pytest.mark.parametrize("kind", ["plain", "user namespace"])
def test_gpus_come_and_go_all_the_same(runtime: Runtime, bundle: MakeBundle, host: SimulatedDriver, kind: str) -> None:
    YAMA.write_text(FOR_EVER)
    env = ENVIRONMENT | host.env
    b = bundle().sh("echo up; sleep 1000")
    b.process["env"].append("NVIDIA_VISIBLE_DEVICES=0")
    container = runtime.start(b.user_namespace() if kind == "user namespace" else b, env=env)
    container.wait_for("up")
    for word in ("attach", "detach"):
        done = runtime("gpu", word, container.id, "1", env=env)
        assert done.rc == 0, done.text
        there = container.proc(f"root/dev/nvidia{minor(1, GPUS)}").exists()
        assert there is (word == "attach")
    assert container.kill("KILL").rc == 0
