"""exec by the compiled front as its enemies see it: its file, and what its process has of the caller."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from gpurun.builder.front import compiler
from tests.conftest import MakeBundle
from tests.launcher.fast import FOREVER, Fast, is_exec
from tests.native.bed import Bed
from tests.native.inject import Injection
from tests.native.runtime import Container, Result
from tests.native.waiting import wait_until

pytestmark = [pytest.mark.native, pytest.mark.skipif(not compiler(), reason="there is no C compiler here")]


@pytest.mark.parametrize("command", ["/proc/self/exe", "/proc/1/exe/../self/exe"])
def test_its_own_file_is_sealed(fast: Fast, bundle: MakeBundle, command: str) -> None:
    b = bundle().capabilities("CAP_SYS_PTRACE", "CAP_DAC_OVERRIDE", "CAP_KILL")
    (b.rootfs / "bin/link").symlink_to(command)
    container = fast.runtime.start(b.sh(FOREVER))
    fast.prime(container, container.id, "true")
    before = [(p.read_bytes(), p.stat().st_mtime_ns) for p in (fast.program, fast.whole)]
    for word in (command, "link"):
        done = fast(container.id, word, "--version")
        assert done.rc != 0 and "gpurun version" not in done.out
    assert [(p.read_bytes(), p.stat().st_mtime_ns) for p in (fast.program, fast.whole)] == before


def test_nothing_of_the_caller_is_in_the_process(fast: Fast, container: Container, bed: Bed) -> None:
    """Stopped at its first step inside: its environment, its open files, its memory."""
    env = {"PATH": "/usr/bin:/bin", "TOKEN": "a-secret-of-the-caller"}
    log, files = container.files / "trace", fast.runtime.new_files()
    fast.runtime.path = str(fast.program)
    tracer = ["strace", "-D", "-f", "-qq", "-o", str(log), "-e", "trace=setsid", "-e", "inject=setsid:signal=STOP"]
    command = fast.runtime.popen("exec", container.id, "true", files=files, env=env, tracer=tracer)
    members = bed.cgroup(container.cgroup()) / "cgroup.procs"

    def held() -> list[str]:
        found = [pid for pid in members.read_text().split() if is_exec(pid)]
        return [pid for pid in found if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "tT"]

    # Before it is stopped it stands still at each system call as well, and a SIGCONT would be lost.
    wait_until(lambda: log.exists() and "stopped by SIGSTOP" in log.read_text())
    (pid,) = held()
    assert Path(f"/proc/{pid}/environ").read_bytes() == b""
    assert Path(f"/proc/{pid}/cmdline").read_bytes() == b"gpurun\0exec\0"
    opened = {fd: os.readlink(f"/proc/{pid}/fd/{fd}") for fd in os.listdir(f"/proc/{pid}/fd")}
    assert sorted(opened) == ["0", "1", "2", "3"] and opened["3"].startswith("socket:")
    assert os.statvfs(f"/proc/{pid}/exe").f_flag & os.ST_RDONLY
    assert b"a-secret-of-the-caller" not in _memory(pid)
    os.kill(int(pid), signal.SIGCONT)
    assert command.wait(60) == 0


def _memory(pid: str) -> bytes:
    found = b""
    with open(f"/proc/{pid}/mem", "rb", 0) as memory:
        for line in Path(f"/proc/{pid}/maps").read_text().splitlines():
            first, _, last = line.split()[0].partition("-")
            if line.split()[1].startswith("r") and "[v" not in line:
                memory.seek(int(first, 16))
                found += memory.read(int(last, 16) - int(first, 16))
    assert b"gpurun:[exec]" in found  # it is the one
    return found


@pytest.mark.parametrize("change", ["group may write", "anybody may write", "another user's"])
def test_a_plan_that_somebody_else_could_have_written(fast: Fast, container: Container, change: str) -> None:
    """It says with which capabilities a process runs."""
    plan = fast.plan(container)
    if change == "another user's":
        os.chown(plan, 1000, 1000)
    else:
        plan.chmod(0o620 if change == "group may write" else 0o602)
    fast.falls_back(container.id, "true")
    os.chown(plan, 0, 0)
    plan.chmod(0o600)
    assert fast(container.id, "true") == Result(0, "", "")


@pytest.mark.parametrize(
    "null", ["mknod -m 666 /dev/null c 1 5", "ln -s /dev/zero /dev/null", "ln -s full /dev/null", "mkdir /dev/null", "true"]
)
def test_a_null_device_that_is_something_else(fast: Fast, bundle: MakeBundle, null: str) -> None:
    """What the container has in its place is not what the process gets for its streams."""
    container = fast.runtime.start(bundle().capabilities("CAP_MKNOD", "CAP_DAC_OVERRIDE").sh(FOREVER))
    fast.prime(container, container.id, "sh", "-c", f"rm /dev/null; {null}")
    words = (container.id, "stat", "-L", "-c", "%F %t:%T", "/proc/self/fd/0")
    front, pure = fast(*words), fast.by(fast.pure, *words)
    assert front == pure == Result(0, "character special file 1:3\n", "")


def test_descriptors_of_the_caller(fast: Fast, container: Container) -> None:
    """Those that a caller has left open are not the process's."""
    with open("/etc/passwd") as file:
        done = fast(container.id, "ls", "-l", "/proc/self/fd", pass_fds=[file.fileno()])
    assert done.rc == 0 and "/null" in done.out and "passwd" not in done.out, done


def _with_odd_signals() -> None:
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR2, signal.SIGRTMIN])


def test_signals_that_the_caller_ignores(fast: Fast, container: Container) -> None:
    enter = fast.runtime.bed.enter(None)

    def before_exec() -> None:
        enter()
        _with_odd_signals()

    done = fast(container.id, "grep", "^Sig[BI]", "/proc/self/status", preexec=before_exec)
    assert done == Result(0, f"SigBlk:\t{0:016x}\nSigIgn:\t{0:016x}\n", "")


def test_a_pid_that_is_used_again_meanwhile(fast: Fast, container: Container) -> None:
    """The first process ends, and another gets its pid, before there is a pidfd: no exec in the other's namespaces."""
    log = container.files / "strace"
    with Injection(log, "openat", "ENOENT", "2", path=f"/proc/{container.pid}/stat", children=False) as tracer:
        fast.falls_back(container.id, "true", tracer=tracer)
    assert "(INJECTED)" in log.read_text()


@pytest.mark.parametrize("whose", ["a neighbour's", "the first process's"])
def test_a_pid_that_somebody_else_says(fast: Fast, container: Container, whose: str) -> None:
    """Who traces the setter in the container can have it say any: none is taken, and ended, but a child's."""
    with subprocess.Popen(["sleep", "1000"]) as neighbour:
        pid = neighbour.pid if whose == "a neighbour's" else container.pid
        said = b"P" + pid.to_bytes(4, sys.byteorder)
        log = container.files / "strace"
        tracer = ["strace", "-D", "-I", "2", "-f", "-qq", "-o", str(log), "-e", "trace=write", "-e", "signal=none"]
        tracer += ["-e", f"inject=write:poke_enter=@arg2={said.hex()}:when=1"]
        try:
            done = fast(container.id, "true", tracer=tracer)  # whose own last words are not spared either
            assert done.rc == 1 and done.err.encode(errors="replace").endswith(b"No child processes\n"), done
            assert "(INJECTED" in log.read_text()
            assert neighbour.poll() is None and container.state()["status"] == "running"
        finally:
            neighbour.kill()
