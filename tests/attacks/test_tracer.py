"""A container that traces each process of its pid namespace in its first moment (CAP_SYS_PTRACE) gains nothing by exec.

No runtime can keep it from tracing: what counts is what the traced process has.  runc's and crun's have all of root's
capabilities then, and runc's the file of the host's runtime.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from gpurun.engine import messages
from gpurun.errors import GpurunError
from tests.attacks.programs import build
from tests.conftest import MakeBundle
from tests.native.bed import Bed
from tests.native.runtime import Container, Runtime
from tests.native.terminal import Listener
from tests.security.profile import engine_profile

pytestmark = [
    pytest.mark.native,
    pytest.mark.attack("CAP_SYS_PTRACE in a shared pid namespace", "exec's process is traced at once"),
]

#: How often exec is tried; the table of docs/attacks.md is made with more.
TIMES = int(os.environ.get("ATTACK_TIMES", "25"))
GIVEN = ("CAP_SYS_PTRACE", "CAP_KILL")
_NUMBERS = {"CAP_KILL": 5, "CAP_SYS_PTRACE": 19}
FOREVER = "echo up; while :; do sleep 0.02; done"


def with_tracer(runtime: Runtime, bundle: MakeBundle, place: Path, filtered: bool = False) -> Container:
    b = bundle().args("/bin/tracer", "/bin/busybox").capabilities(*GIVEN)
    if filtered:  # without no_new_privs it takes CAP_SYS_ADMIN to install it
        b.process["noNewPrivileges"] = False
        b.linux["seccomp"] = engine_profile()
        b.linux["seccomp"]["syscalls"].append({"names": ["ptrace"], "action": "SCMP_ACT_ALLOW"})
    shutil.copy(build("tracer", place), b.rootfs / "bin/tracer")
    container = runtime.start(b)
    container.wait_for("up")
    return container


def caught(container: Container) -> list[dict[str, str]]:
    lines = [line for line in container.out.splitlines() if line.startswith("caught ")]
    return [dict(word.split("=", 1) for word in line.split(" ")[2:]) for line in lines]


def gained(process: dict[str, str], uid: int) -> str:
    """What the tracer could use of the traced *process* that the container itself does not have; empty for nothing."""
    allowed = sum(1 << _NUMBERS[name] for name in GIVEN)
    if int(process["cap"], 16) & ~allowed or int(process["eff"], 16) & ~allowed:
        return f"the capabilities {process['cap']}"
    if process["uid"] != str(uid):
        return f"the user {process['uid']}"
    for one in filter(None, process["fds"].split(",")):
        number, _, target = one.partition(":")
        if int(number) > 2 and not target.startswith("socket:"):
            return f"the open file {target}"
    return "" if (process["root"], process["cwd"]) == ("/", "/") else "another root"


@pytest.mark.sweep(2)
@pytest.mark.falls("runc 1", reason="all capabilities of root, which it takes with it into the container")
@pytest.mark.falls("crun 1", reason="all capabilities of root, which it takes with it into the container")
@pytest.mark.parametrize("filtered", [False, True], ids=["", "a filter"])
@pytest.mark.parametrize("uid", [0, 1000])
def test_who_traces_exec_gains_nothing(
    runtime: Runtime,
    bundle: MakeBundle,
    place: Path,
    uid: int,
    filtered: bool,
    record_property: Callable[[str, object], None],
) -> None:
    container = with_tracer(runtime, bundle, place, filtered)
    (container.files / "process.json").write_text(
        json.dumps({"cwd": "/", "args": ["true"], "env": ["PATH=/bin"], "user": {"uid": uid, "gid": uid}})
    )
    runs = still = 0
    while runs < TIMES and still < 3:
        runs += 1
        try:  # it may fail, or stand still: it is being traced
            runtime("exec", "--process", str(container.files / "process.json"), container.id, timeout=20)
        except subprocess.TimeoutExpired:
            still += 1
    processes = caught(container)
    assert processes, "the tracer catches nobody: the attack is not one"
    found = [gain for process in processes if (gain := gained(process, uid))]
    with_filter = ", with a filter and without no_new_privs" if filtered else ""
    told = f"as user {uid}{with_filter}: {len(processes)} processes were caught in {runs} runs of exec, {len(found)} of use"
    record_property("counted", told)
    assert not found, found[0]


def test_the_process_has_nothing_of_the_hosts(runtime: Runtime, bundle: MakeBundle, bed: Bed) -> None:
    """What is open in exec's process while it waits: its streams, and the socket that it is told to go by."""
    if runtime.name not in ("gpurun", "gpurun-fast"):
        pytest.skip("another runtime's process cannot be held at that moment")
    container = runtime.start(bundle().sh(FOREVER))
    container.wait_for("up")
    members = bed.cgroup(container.cgroup()) / "cgroup.procs"
    before = set(members.read_text().split())
    listener = Listener(runtime.directory / "console.sock")
    pidfds = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    here = os.open(runtime.directory, os.O_PATH)
    pidfds.bind(f"/proc/self/fd/{here}/pidfd.sock")
    os.close(here)
    pidfds.listen(0)
    process = {"terminal": True, "cwd": "/", "env": ["PATH=/bin"], "args": ["sleep", "1000"]}
    (container.files / "process.json").write_text(json.dumps(process))
    options = ["--detach", "--console-socket", str(listener.path), "--pidfd-socket", str(runtime.directory / "pidfd.sock")]
    options += ["--process", str(container.files / "process.json")]
    full = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)  # takes the one place, so that exec waits at the socket
    here = os.open(runtime.directory, os.O_PATH)
    full.connect(f"/proc/self/fd/{here}/pidfd.sock")
    os.close(here)
    files = runtime.new_files()
    command = runtime.popen("exec", *options, container.id, files=files)
    data, (master,) = listener.message()
    end = time.monotonic() + 30
    while len(born := set(members.read_text().split()) - before) != 1 or _namespace(*born) != _namespace(container.pid):
        assert command.poll() is None and time.monotonic() < end, (files / "err").read_text()
        time.sleep(0.01)
    (pid,) = born
    opened = {int(fd): os.readlink(f"/proc/{pid}/fd/{fd}") for fd in os.listdir(f"/proc/{pid}/fd")}
    status = Path(f"/proc/{pid}/status").read_text()
    full.close()
    taken = [pidfds.accept()[0] for _ in range(2)]  # open until exec has sent what it sends
    assert command.wait(60) == 0, (files / "err").read_text()
    for one in taken:
        one.close()
    os.kill(int(pid), signal.SIGKILL)
    os.waitpid(int(pid), 0)
    for one in (listener.socket, pidfds):
        one.close()
    os.close(master)
    rest = {fd: target for fd, target in opened.items() if fd > 2}
    assert [opened[fd] for fd in (0, 1, 2)] == ["/dev/pts/0"] * 3 and data
    assert len(rest) == 1 and next(iter(rest.values())).startswith("socket:"), rest
    assert "CapPrm:\t0000000020000420\n" in status, status


def _namespace(pid: int | str) -> str:
    try:
        return os.readlink(f"/proc/{pid}/ns/pid")
    except FileNotFoundError:
        return ""


# The channel from a traced process to the host's gpurun: what is said there is read as a grammar, and only of who may speak.


@pytest.mark.parametrize(
    "data",
    [
        b"[\x01\xff\xff\xff\x1f",  # marshal: a list of half a billion elements
        b"(\x02\x00\x00\x00",
        b"child",
        b"child 1 2",
        b"child -1",
        b"child 0x10",
        b"child 99999999999999999999",
        b"child \xd9\xa1",
        b"child 1\n",
        b"spawned",
        b"created 1 2",
        b"move 1 2",
        b"go",
        b"",
    ],
)
def test_what_is_no_message(data: bytes) -> None:
    with pytest.raises(GpurunError, match="invalid message"):
        messages.parse_report(data, 1)


def test_a_message_is_small() -> None:
    ours, its = socket.socketpair()
    with ours, its:
        messages.expect_reports(ours.fileno())
        its.send((1 << 29).to_bytes(4, "little") + b"child 1")
        with pytest.raises(GpurunError, match="536870912 bytes"):
            messages.receive_report(ours.fileno(), None)


def test_who_is_not_asked_is_not_heard() -> None:
    """A tracer that makes the traced process speak, or has taken its socket, is known by its pid."""
    ours, its = socket.socketpair()
    with ours, its:
        messages.expect_reports(ours.fileno())
        script = "from gpurun.engine.messages import report; report(0, 'child', 1)"
        env = {**os.environ, "PYTHONPATH": str(Path(messages.__file__).parents[2])}
        forger = subprocess.Popen([sys.executable, "-c", script], stdin=its.fileno(), env=env)
        assert forger.wait(30) == 0
        with pytest.raises(GpurunError, match=f"process {forger.pid} sent a message in the name of"):
            messages.receive_report(ours.fileno(), (os.getpid(),))
        messages.report(its.fileno(), "child", 7)
        said = messages.receive_report(ours.fileno(), (os.getpid(),))
        assert said is not None and (said.word, said.numbers, said.sender) == ("child", (7,), os.getpid())


def test_a_process_of_somebody_else_is_not_named() -> None:
    with pytest.raises(GpurunError, match="not a child of gpurun"):
        messages.check_child(1)
    pid = os.fork()
    if pid == 0:
        os._exit(0)
    assert messages.check_child(pid) == pid
    os.waitpid(pid, 0)
