"""exec that the compiled front leaves to the launcher behind it, whatever it has done until then."""

from __future__ import annotations

import json
import os
import random
import signal
from collections.abc import Callable
from errno import ENOSYS
from pathlib import Path

import pytest

from gpurun.builder.front import compiler
from gpurun.engine.caller.kept_plan import NAME, NUMBERS, TEXTS
from tests.conftest import MakeBundle
from tests.launcher.fast import FOREVER, Fast, is_exec, name_of, process_file
from tests.launcher.front import FALLS_BACK
from tests.native.bed import Bed
from tests.native.inject import Injection
from tests.native.refusing import refuse
from tests.native.runtime import Container, Result
from tests.native.waiting import wait_until

pytestmark = [pytest.mark.native, pytest.mark.skipif(not compiler(), reason="there is no C compiler here")]

REQUESTS = [
    ["--tty"], ["--user", "1000"], ["--env", "A=1"], ["--cwd", "/tmp"], ["--cap", "CAP_CHOWN"], ["--no-new-privs"],
    ["--ignore-paused"], ["--preserve-fds", "1"], ["--cgroup", "x"], ["--detach=false"], ["--nonsense"], ["--pid-file="],
]  # fmt: skip


@pytest.mark.parametrize("options", REQUESTS, ids=lambda options: options[0])
def test_options_left_to_the_launcher(fast: Fast, container: Container, options: list[str]) -> None:
    fast.falls_back(*options, container.id, "true")


def test_a_pid_file_by_way_of_a_link(fast: Fast, container: Container) -> None:
    """Of a path that is taken as text, `..` takes away the name before it, also where that is a link to elsewhere."""
    (container.files / "elsewhere/below").mkdir(parents=True)
    (container.files / "link").symlink_to("elsewhere/below")
    given = f"{container.files}/link/../exec.pid"
    fast.falls_back("--pid-file", given, container.id, "true")
    assert fast.by(fast.whole, "--pid-file", given, container.id, "true") == Result(0, "", "")
    assert (container.files / "exec.pid").exists() and not (container.files / "elsewhere/exec.pid").exists()


def test_users_that_cannot_be_read(fast: Fast, container: Container, tmp_path: Path) -> None:
    """HOME is not known then, which is not to say that it is /."""
    log = tmp_path / "log"
    tracer = ["strace", "-D", "-f", "-qq", "-o", str(log), "-P", "/etc/passwd", "-e", "trace=read,openat2"]
    tracer += ["-e", "inject=read:error=EIO"]
    fast.falls_back(container.id, "true", tracer=tracer)
    assert "(INJECTED)" in log.read_text()


def test_words_left_to_the_launcher(fast: Fast, container: Container) -> None:
    for words in (
        [container.id],
        ["--process", "/nowhere", container.id],
        ["../x", "true"],
        ["missing", "true"],
        ["-d", "--"],
    ):
        fast.falls_back(*words)
    fast.falls_back("--process", process_file(container, ["true"]), container.id)  # the plan is of words
    fast.prime(container, "--process", process_file(container, ["true"]), container.id)
    fast.falls_back(container.id, "true")
    fast.falls_back("--process", process_file(container, ["true"]), container.id, "more")
    for change in ({"cwd": "/tmp"}, {"env": ["PATH=/bin"]}, {"user": {"uid": 1}}, {"terminal": True}, {"x": 0}):
        fast.falls_back("--process", process_file(container, ["true"], **change), container.id)
    whole = Path(process_file(container, ["true"])).read_bytes()
    for text in (
        whole[:-1],
        whole + b"x",
        whole.replace(b'"true"', b'"true",'),
        whole.replace(b'"true"', b"true"),
        b"",
        whole * 2,
    ):
        (container.files / "process.json").write_bytes(text)
        fast.falls_back("--process", str(container.files / "process.json"), container.id)


def test_a_process_file_with_other_values(fast: Fast, container: Container) -> None:
    """Of the same length, before the words and behind them: it is not the process of the plan."""
    path = container.files / "process.json"
    given = {"cwd": "/", "args": ["true"], "env": ["PATH=/bin", "A=1"], "noNewPrivileges": False, "oomScoreAdj": 100}
    given["user"] = {"uid": 0, "gid": 0}
    good = json.dumps({**given, "capabilities": container.bundle.process["capabilities"]})
    path.write_text(good)
    fast.prime(container, "--process", str(path), container.id)
    for before, after in (("", ""), ('cwd": "/"', 'cwd": "."'), ("A=1", "A=2"), ('"uid": 0', '"uid": 1'), ("100", "101")):
        path.write_text(good.replace(before, after))
        if not before:
            assert fast("--process", str(path), container.id) == Result(0, "", "")
        else:
            assert path.read_text() != good
            fast.falls_back("--process", str(path), container.id)


def test_a_fifo_is_not_read(fast: Fast, container: Container) -> None:
    """It can be read once, by the launcher."""
    fast.prime(container, "--process", process_file(container, ["true"]), container.id)
    text = (container.files / "process.json").read_bytes()
    os.mkfifo(container.files / "fifo")
    held = os.open(container.files / "fifo", os.O_RDWR)
    os.write(held, text)
    fast.falls_back("--process", str(container.files / "fifo"), container.id)
    assert os.read(held, 1 << 16) == text
    os.close(held)


def _replaced(path: Path) -> None:
    """Another file with the same content and times, as write_atomically() would leave it."""
    found = path.stat()
    path.with_name(".new").write_bytes(path.read_bytes())
    os.utime(path.with_name(".new"), ns=(found.st_atime_ns, found.st_mtime_ns))
    path.with_name(".new").chmod(0o600)
    path.with_name(".new").rename(path)


def _moved(directory: Path) -> Path:
    """The place of the plan, where it is no more."""
    (directory / NAME).rename(directory / "kept")
    return directory / NAME


CHANGES: dict[str, Callable[[Path], object]] = {
    "no plan": lambda d: (d / NAME).unlink(),
    "empty": lambda d: (d / NAME).write_bytes(b""),
    "cut off": lambda d: (d / NAME).write_bytes((d / NAME).read_bytes()[:-8]),
    "longer": lambda d: (d / NAME).write_bytes((d / NAME).read_bytes() + bytes(8)),
    "too large": lambda d: (d / NAME).write_bytes((d / NAME).read_bytes().ljust(300_000, b"\0")),
    "somebody else's": lambda d: os.chown(d / NAME, 1000, 1000),
    "writable for others": lambda d: (d / NAME).chmod(0o620),
    "a directory": lambda d: _moved(d).mkdir(),
    "a link": lambda d: _moved(d).symlink_to("/dev/zero"),
    "another state": lambda d: _replaced(d / "state"),
    "another config": lambda d: _replaced(d / "config.json"),
    "GPUs have come": lambda d: (d / "edits").write_bytes(b""),
    "a filter has come": lambda d: (d / "seccomp").write_bytes(b""),
    "GPUs are coming": lambda d: (d / "gpu-change").write_bytes(b""),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_plan_that_is_not_of_now(fast: Fast, container: Container, change: str) -> None:
    CHANGES[change](fast.plan(container).parent)
    pid_file = container.files / "exec.pid"
    fast.falls_back("--detach", "--pid-file", str(pid_file), container.id, "true")
    assert not pid_file.exists()


def test_the_launcher_makes_a_new_plan(fast: Fast, container: Container) -> None:
    for damaged in (b"", b"x" * 500):
        fast.plan(container).write_bytes(damaged)
        fast.prime(container, container.id, "true")
        assert fast(container.id, "true") == Result(0, "", "")


def test_a_container_of_the_same_name(fast: Fast, container: Container, bundle: MakeBundle) -> None:
    plan = fast.plan(container).read_bytes()
    assert container.delete("--force").rc == 0
    again = fast.runtime.create(bundle().sh(FOREVER), container_id=container.id)
    assert again.start().rc == 0
    fast.plan(again).write_bytes(plan)
    fast.falls_back(again.id, "true")


def test_a_container_that_does_not_run(fast: Fast, container: Container) -> None:
    assert fast.runtime("pause", container.id).rc == 0
    fast.falls_back(container.id, "true")
    assert fast.runtime("resume", container.id).rc == 0
    assert fast(container.id, "true") == Result(0, "", "")
    container.kill("KILL")
    container.wait()
    fast.falls_back(container.id, "true")


@pytest.mark.parametrize("kind", ["user", "terminal", "scheduler", "no capabilities", "affinity"])
def test_containers_left_to_the_launcher(fast: Fast, bundle: MakeBundle, kind: str) -> None:
    """For them there is no plan."""
    b = bundle()
    if kind == "user":
        b.user_namespace()
    elif kind == "scheduler":
        b.process["scheduler"] = {"policy": "SCHED_BATCH"}
    elif kind == "no capabilities":
        del b.process["capabilities"]
    elif kind == "affinity":
        b.process["execCPUAffinity"] = {"initial": "0", "final": "0"}
    container = fast.runtime.start(b.sh(FOREVER))
    options = ["--user", "0"] if kind == "terminal" else []
    assert fast.by(fast.whole, *options, container.id, "true").rc == 0
    assert not fast.plan(container).exists()


def test_children_that_nobody_can_wait_for(fast: Fast, container: Container, bed: Bed) -> None:
    """Where the caller has SIGCHLD ignored, the kernel reaps the process, and how it ended is not known."""
    enter = bed.enter(None)

    def before_exec() -> None:
        enter()
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)

    fast.falls_back(container.id, "true", preexec=before_exec)


def test_a_program_for_another_user(fast: Fast, bundle: MakeBundle) -> None:
    """It can be executed, but not by the user of the process: what is behind it in PATH is the command, or an error."""
    b = bundle()
    b.process["user"] = {"uid": 1000, "gid": 1000}
    b.process["env"] = ["PATH=/tmp/first:/bin"]
    (b.rootfs / "tmp/first").mkdir(mode=0o755)
    for name in ("echo", "own"):
        program = b.rootfs / "tmp/first" / name
        program.write_bytes((b.rootfs / "bin/busybox").read_bytes())
        program.chmod(0o700)
    container = fast.runtime.start(b.sh(FOREVER))
    fast.prime(container, container.id, "true")
    assert fast(container.id, "echo", "here") == Result(0, "here\n", "")
    fast.falls_back(container.id, "own")
    fast.falls_back(container.id, "/tmp/first/own")


FAILURES = [
    (["missing"], {}), (["/etc/passwd"], {}), (["/bin"], {}), ([""], {}), (["bin\u00fc"], {}),
    (["true"], {"pid_file": "/nowhere/pid"}),
]  # fmt: skip


@pytest.mark.parametrize(("words", "how"), FAILURES, ids=lambda value: value[0] if isinstance(value, list) else "")
def test_what_fails_is_said_by_the_launcher(
    fast: Fast, container: Container, bed: Bed, words: list[str], how: dict[str, str]
) -> None:
    """Nothing of the attempt is left: no process, and no pid file."""
    pid_file = how.get("pid_file", str(container.files / "exec.pid"))
    members = (bed.cgroup(container.cgroup()) / "cgroup.procs").read_text().split()
    fast.falls_back("--pid-file", pid_file, container.id, *words)
    whole, pure = [fast.by(program, "--pid-file", pid_file, container.id, *words) for program in (fast.whole, fast.pure)]
    assert (whole.rc, whole.out) == (pure.rc, pure.out) == (255, "")
    assert whole.err.partition("level=")[2] == pure.err.partition("level=")[2] != ""
    assert not Path(pid_file).exists()
    now = (bed.cgroup(container.cgroup()) / "cgroup.procs").read_text().split()
    assert {pid for pid in now if is_exec(pid)} == set() and members[0] in now


@pytest.mark.parametrize("program", ["bare", "whole"])
@pytest.mark.parametrize("call", ["write", "read"])
def test_a_process_that_nobody_told_us_of(
    fast: Fast, container: Container, places: Path, tmp_path: Path, program: str, call: str
) -> None:
    """The setter made it, and its pid did not arrive: it is ended and reaped all the same, or the container never ends.

    The caller's read(2) that fails is the second after the socket was made: it has had a word of one of the two by then.
    The writes that do are the first of the setter and of the process.
    """
    log = tmp_path / "strace"
    log.write_text("")
    when = "1"
    if call == "read":
        tracer = ["strace", "-D", "-I", "2", "-qq", "-o", str(log), "-e", "trace=read,socketpair", "-e", "signal=none"]
        assert fast(container.id, "true", tracer=tracer) == Result(0, "", "")
        lines = [line.partition("(")[0] for line in log.read_text().splitlines()]
        when = str(lines[: lines.index("socketpair")].count("read") + 2)
    with Injection(log, call, "EIO", when, children=call == "write") as tracer:
        done = fast.by(places / program, container.id, "echo", "done", tracer=tracer)
    assert "(INJECTED)" in log.read_text()
    assert done.rc == (1 if program == "bare" else 0 if call == "read" else done.rc), done
    ours = Path("/proc/thread-self/children").read_text().split()
    assert {pid for pid in ours if is_exec(pid)} == set()
    assert container.delete("--force") == Result(0, "", "")


def test_who_has_children_leaves_it_to_the_launcher(fast: Fast, container: Container) -> None:
    """What became gpurun by execve(2) may have some: which are exec's is not to be told then, and theirs stay."""
    before = _sleepers()
    fast.falls_back(container.id, "true", tracer=["sh", "-c", 'sleep 1000 2>/dev/null & exec "$@"', "sh"])
    wait_until(lambda: bool(_sleepers() - before))  # until then the shell's child has not become it
    left = _sleepers() - before
    for pid in left:
        os.kill(int(pid), signal.SIGKILL)
        os.waitpid(int(pid), 0)
    assert len(left) == 1


def _sleepers() -> set[str]:
    """Those that have become ours: we are their subreaper."""
    return {pid for pid in Path("/proc/thread-self/children").read_text().split() if name_of(pid) == "sleep"}


def test_a_working_directory_that_has_gone(fast: Fast, bundle: MakeBundle) -> None:
    b = bundle()
    b.process["cwd"] = "/tmp/here"
    (b.rootfs / "tmp/here").mkdir()
    container = fast.runtime.start(b.sh(f"cd /; {FOREVER}"))
    fast.prime(container, container.id, "true")
    assert fast(container.id, "pwd").out == "/tmp/here\n"
    (b.rootfs / "tmp/here").rmdir()
    fast.falls_back(container.id, "true")
    (b.rootfs / "tmp/here").mkdir()


def test_a_process_that_has_left_its_user_namespace(fast: Fast, bundle: MakeBundle) -> None:
    """The plan is of the namespaces that it had."""
    b = bundle().capabilities("CAP_SYS_ADMIN")
    script = f"until test -e /tmp/go; do sleep 0.02; done; exec unshare -U sh -c '{FOREVER}'"
    container = fast.runtime.start(b.sh(script))
    fast.prime(container, container.id, "true")
    before = os.readlink(container.proc("ns/user"))
    (b.rootfs / "tmp/go").touch()
    wait_until(lambda: os.readlink(container.proc("ns/user")) != before)
    fast.falls_back(container.id, "true")
    (b.rootfs / "tmp/go").unlink()


def test_a_process_that_has_left_its_cgroup(fast: Fast, container: Container, bed: Bed) -> None:
    cgroup = bed.cgroup(container.cgroup())
    (cgroup / "below").mkdir()
    (cgroup / "below/cgroup.procs").write_text(str(container.pid))
    fast.falls_back(container.id, "true")
    (cgroup / "cgroup.procs").write_text(str(container.pid))
    wait_until(lambda: "populated 0" in (cgroup / "below/cgroup.events").read_text())  # the process has been reaped
    (cgroup / "below").rmdir()
    assert fast(container.id, "true") == Result(0, "", "")


CALLS = ("clone3", "pidfd_open", "open_tree", "mount_setattr", "setns", "openat2", "rt_sigtimedwait")


@pytest.mark.parametrize("call", CALLS)
def test_calls_that_a_filter_refuses(fast: Fast, container: Container, bed: Bed, call: str) -> None:
    enter, filtered = bed.enter(None), refuse((call,), ENOSYS)

    def before_exec() -> None:
        enter()
        filtered()

    fast.falls_back(container.id, "true", preexec=before_exec)


def test_any_bytes_for_a_plan(fast: Fast, container: Container, places: Path) -> None:
    """Damaged plans: a process or the launcher, never an access outside of the buffers."""
    if not (places / "checked").exists():
        pytest.skip("the compiler has no sanitizers")
    checked, seed = Fast(fast.runtime, places, "checked"), random.Random(5)
    checked.prime(container, container.id, "true")
    good, head = fast.plan(container).read_bytes(), 8 * (len(NUMBERS) + len(TEXTS))
    for turn in range(60):
        bad = bytearray(good)
        at = seed.randrange(head if turn % 2 else len(bad))  # half of them in the sizes and numbers
        bad[at : at + seed.randrange(0, 9)] = seed.choice(
            [bytes(8), b"\xff" * 8, b"\xff", b"\x7f" * 3, b"", seed.randbytes(8)]
        )
        fast.plan(container).write_bytes(bytes(bad))
        done = checked(container.id, "true")
        assert "Sanitizer" not in done.err and "runtime error" not in done.err, (done, bytes(bad))
        assert done.rc == 0 or FALLS_BACK in done.err, (done, bytes(bad))
