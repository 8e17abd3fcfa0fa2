"""exec by the compiled front as its enemies see it: its file, and what its process has of the caller."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from gpurun.builder.front import compiler
from tests.conftest import MakeBundle
from tests.launcher.fast import FOREVER, Fast, is_exec
from tests.native.bed import Bed
from tests.native.runtime import Container
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
