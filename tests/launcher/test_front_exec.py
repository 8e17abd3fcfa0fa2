"""exec by the compiled front, as the plan says that the launcher has kept: the same process, or the launcher's.

``bare`` is the front with no launcher behind it: what it does it does alone, what it leaves to the launcher it cannot do.
"""

from __future__ import annotations

import json
import os
import random
import signal
from collections.abc import Callable, Iterator
from errno import ENOSYS
from pathlib import Path
from struct import pack
from typing import Any

import pytest

from gpurun.builder.front import compiler
from gpurun.engine.caller.kept_plan import NAME, NUMBERS, TEXTS
from tests.conftest import MakeBundle
from tests.launcher.front import FALLS_BACK
from tests.native.bed import Bed
from tests.native.bundle import Bundle
from tests.native.inject import Injection
from tests.native.refusing import refuse
from tests.native.runtime import Container, Result, Runtime
from tests.native.waiting import wait_until
from tests.security.profile import engine_profile

pytestmark = [pytest.mark.native, pytest.mark.skipif(not compiler(), reason="there is no C compiler here")]

#: All that a process can tell of itself, but for its numbers, its memory and the names of its streams.
ALL_OF_IT = r"""
p=/proc/$$
grep -vE '^(State|Pid|Tgid|PPid|NStgid|NSpid|NSpgid|NSsid|SigQ|Vm|Rss|Hugetlb|voluntary|nonvoluntary|FDSize)' $p/status
tr '\0' '\n' <$p/environ; tr '\0' '\n' <$p/cmdline | head -1; cat $p/limits $p/oom_score_adj $p/cgroup
for n in $p/ns/*; do echo $n $(readlink $n); done | sed 's|/proc/[0-9]*||'
ls $p/fd; for n in 0 1 2; do stat -L -c '%F %u %g %a %t' $p/fd/$n; done
umask; id; pwd; readlink $p/root; cat $p/attr/current $p/timerslack_ns $p/loginuid 2>/dev/null
awk '{ print ($1 == $5), ($1 == $6), $7, $8, $18, $19, $40, $41 }' $p/stat
cat /proc/keys 2>/dev/null | wc -l; exit 7
"""
FOREVER = "while :; do sleep 0.1; done"


class Fast:
    """The bare front on the containers of ``whole``, which is the same with the launcher behind it."""

    def __init__(self, runtime: Runtime, places: Path, program: str = "bare") -> None:
        self.runtime, self.whole, self.pure, self.program = runtime, places / "whole", places / "pure", places / program
        runtime.path = str(self.whole)

    def plan(self, container: Container) -> Path:
        return self.runtime.root / container.id / NAME

    def prime(self, container: Container, *words: str) -> None:
        """Have an exec done by the launcher, and let the bare front go by the plan of that."""
        assert self.by(self.whole, *words).rc == 0
        found, at = self.program.stat(), 8 * (len(NUMBERS) + len(TEXTS))
        data = bytearray(self.plan(container).read_bytes())
        data[at : at + 32] = pack("4Q", found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns)
        self.plan(container).write_bytes(data)

    def by(self, program: Path, *words: str, **how: Any) -> Result:
        self.runtime.path = str(program)
        try:
            return self.runtime("exec", *words, **how)
        finally:
            self.runtime.path = str(self.whole)

    def __call__(self, *words: str, **how: Any) -> Result:
        return self.by(self.program, *words, **how)

    def falls_back(self, *words: str, **how: Any) -> None:
        done = self(*words, **how)
        assert (done.rc, done.out) == (1, ""), done
        assert FALLS_BACK in done.err, done


@pytest.fixture
def fast(runtime: Runtime, places: Path) -> Iterator[Fast]:
    path = runtime.path
    yield Fast(runtime, places)
    runtime.path = path


@pytest.fixture
def container(fast: Fast, bundle: MakeBundle) -> Container:
    """One that runs, with a plan for exec."""
    made = fast.runtime.start(bundle().sh(FOREVER))
    fast.prime(made, made.id, "true")
    return made


def process_file(container: Container, args: list[str], **changes: Any) -> str:
    """The name of a process file as an engine writes it: the container's own process with other arguments."""
    path = container.files / "process.json"
    path.write_text(json.dumps({**container.bundle.process, "args": args, **changes}))
    return str(path)


# ---- the same process


def _as_a_user(b: Bundle) -> None:
    b.process["user"] = {"uid": 1000, "gid": 1000, "additionalGids": [5, 1000, 4000000], "umask": 0o77}
    b.process["cwd"] = "/tmp"
    b.process["env"] = ["PATH=/bin:/usr/bin", "A=1", "HOME=", "A=2", "B=\u00fc 'x'\n"]


def _with_ambient_capabilities(b: Bundle) -> None:
    names = ["CAP_NET_RAW", "CAP_CHOWN", "CAP_SYS_PTRACE"]
    b.process["capabilities"] = dict.fromkeys(("bounding", "effective", "permitted", "inheritable", "ambient"), names)
    b.process["user"] = {"uid": 1000, "gid": 7}
    b.process["noNewPrivileges"] = False


def _with_limits(b: Bundle) -> None:
    b.process["oomScoreAdj"] = 500
    b.process["rlimits"] += [
        {"type": f"RLIMIT_{n}", "soft": s, "hard": h} for n, s, h in (("NPROC", 40, 50), ("CORE", 0, 0))
    ]
    b.process["user"] = {"uid": 4321, "gid": 0}  # who is not in /etc/passwd
    b.process["env"] = ["PATH=/bin", "HOME=/here"]


def _filtered(*more: str, safe: bool = False) -> Callable[[Bundle], None]:
    """An engine's filter; with *more* one that refuses these: under that no process can wait for what it is told."""

    def change(b: Bundle) -> None:
        b.process["noNewPrivileges"] = safe
        b.linux["seccomp"] = engine_profile()
        if more:
            for rule in b.linux["seccomp"]["syscalls"]:
                rule["names"] = [name for name in rule["names"] if name not in more]

    return change


def _in_the_hosts_namespaces(b: Bundle) -> None:
    del b.config["hostname"]
    for kind in ("pid", "network", "ipc", "uts", "cgroup"):
        b.without_namespace(kind)


PROCESSES: dict[str, Callable[[Bundle], None]] = {
    "plain": lambda b: None,
    "user": _as_a_user,
    "ambient": _with_ambient_capabilities,
    "limits": _with_limits,
    "filter": _filtered(),
    "filter without privileges": _filtered(safe=True),
    "filter that does not let it wait": _filtered("setsid"),
    "namespaces of the host": _in_the_hosts_namespaces,
}


@pytest.mark.parametrize("given", ["words", "file"])
@pytest.mark.parametrize("kind", PROCESSES)
def test_the_process_is_the_same(fast: Fast, bundle: MakeBundle, places: Path, kind: str, given: str) -> None:
    b = bundle()
    PROCESSES[kind](b)
    container = fast.runtime.start(b.sh(FOREVER))
    words = ["sh", "-c", ALL_OF_IT]

    def command(*args: str) -> list[str]:
        return [container.id, *args] if given == "words" else ["--process", process_file(container, [*args]), container.id]

    fast.prime(container, *command("true"))
    front, pure = fast(*command(*words)), fast.by(fast.pure, *command(*words))
    assert front.out.splitlines() == pure.out.splitlines()
    assert front.rc == pure.rc == 7 and "CapEff" in front.out and front.err == ""
    if (places / "checked").exists():  # with every access to memory checked
        checked = Fast(fast.runtime, places, "checked")
        checked.prime(container, *command("true"))
        assert checked(*command(*words)).out.splitlines() == pure.out.splitlines()


@pytest.mark.parametrize(("script", "rc"), [("exit 0", 0), ("exit 255", 255), ("kill -9 $$", 137), ("kill -15 $$", 143)])
def test_exit_codes(fast: Fast, container: Container, script: str, rc: int) -> None:
    assert fast(container.id, "sh", "-c", script) == Result(rc, "", "")


def test_output_and_input(fast: Fast, container: Container) -> None:
    assert fast(container.id, "sh", "-c", "cat; echo no >&2", stdin=b"yes\n") == Result(0, "yes\n", "no\n")


def test_words_of_a_process_file(fast: Fast, container: Container) -> None:
    """Letters as JSON escapes them; others are the launcher's to read."""
    fast.prime(container, "--process", process_file(container, ["true"]), container.id)
    words = ["printf", "%s|", 'a"b', "\\", "</&>", "\t\n\b\f\r\x7f", "", "[]", '"args":["x"]']
    text = Path(process_file(container, words)).read_text().replace("/&>", "\\/\\u0026\\u003E").replace("[", " [ ", 1)
    path = container.files / "process.json"
    path.write_text(text.replace(" [ ", "[", 1))
    assert fast("--process", str(path), container.id).out == "|".join([*words[2:], ""])
    for changed in (["echo", "\u00fc"], ["echo", "\U0001f600"], []):
        fast.falls_back("--process", process_file(container, changed), container.id)


def test_detached(fast: Fast, container: Container, bed: Bed) -> None:
    """The process is the caller's parent's, in the container's cgroup, with its pid in the file and nothing else open."""
    pid_file = container.files / "exec.pid"
    assert fast("--detach", "--pid-file", str(pid_file), container.id, "sleep", "1000") == Result(0, "", "")
    pid = int(pid_file.read_text())
    assert pid_file.read_bytes() == str(pid).encode() and pid_file.stat().st_mode & 0o777 == 0o644
    assert str(pid) in (bed.cgroup(container.cgroup()) / "cgroup.procs").read_text().split()
    wait_until(lambda: Path(f"/proc/{pid}/comm").read_text() == "sleep\n")
    assert sorted(os.listdir(f"/proc/{pid}/fd")) == ["0", "1", "2"]
    os.kill(pid, signal.SIGKILL)
    assert os.waitpid(pid, 0) == (pid, 9)


def test_signals_are_passed_on(fast: Fast, container: Container) -> None:
    files = fast.runtime.new_files()
    fast.runtime.path = str(fast.program)
    script = 'trap "echo usr1" USR1; trap "echo end; exit 3" TERM; echo up; while :; do sleep 0.02; done'
    command = fast.runtime.popen("exec", container.id, "sh", "-c", script, files=files)
    for number, said in ((0, "up"), (signal.SIGUSR1, "usr1"), (signal.SIGTERM, "end")):
        if number:
            command.send_signal(number)
        wait_until(lambda said=said: said in (files / "out").read_text())  # type: ignore[misc]
    assert command.wait(60) == 3


def test_a_program_that_the_kernel_refuses(fast: Fast, container: Container) -> None:
    """execve(2) alone is left to fail: the process says so, in the same words."""
    program = container.bundle.rootfs / "bin/refused"
    program.write_bytes(b"no program at all")
    program.chmod(0o755)
    try:
        front, pure = fast(container.id, "refused"), fast.by(fast.pure, container.id, "refused")
    finally:
        program.unlink()
    assert front == pure == Result(255, "", "exec /bin/refused: exec format error\n")


# ---- the launcher's


REQUESTS = [
    ["--tty"], ["--user", "1000"], ["--env", "A=1"], ["--cwd", "/tmp"], ["--cap", "CAP_CHOWN"], ["--no-new-privs"],
    ["--ignore-paused"], ["--preserve-fds", "1"], ["--cgroup", "x"], ["--detach=false"], ["--nonsense"], ["--pid-file="],
]  # fmt: skip


@pytest.mark.parametrize("options", REQUESTS, ids=lambda options: options[0])
def test_options_left_to_the_launcher(fast: Fast, container: Container, options: list[str]) -> None:
    fast.falls_back(*options, container.id, "true")


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
    assert {pid for pid in now if _is_exec(pid)} == set() and members[0] in now


def _is_exec(pid: str) -> bool:
    return _name(pid) == "gpurun:[exec]"


def _name(pid: str) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return ""  # it has gone


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
    assert {pid for pid in ours if _is_exec(pid)} == set()
    assert container.delete("--force") == Result(0, "", "")


def test_who_has_children_leaves_it_to_the_launcher(fast: Fast, container: Container) -> None:
    """What became gpurun by execve(2) may have some: which are exec's is not to be told then, and theirs stay."""
    before = _sleepers()
    fast.falls_back(container.id, "true", tracer=["sh", "-c", 'sleep 1000 2>/dev/null & exec "$@"', "sh"])
    left = _sleepers() - before
    for pid in left:
        os.kill(int(pid), signal.SIGKILL)
        os.waitpid(int(pid), 0)
    assert len(left) == 1, "the child that was there before has gone"


def _sleepers() -> set[str]:
    """Those that have become ours: we are their subreaper."""
    return {pid for pid in Path("/proc/thread-self/children").read_text().split() if _name(pid) == "sleep"}


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


# ---- attacks


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
        found = [pid for pid in members.read_text().split() if _is_exec(pid)]
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


def test_no_interpreter_is_started(fast: Fast, container: Container) -> None:
    """What the file that is built does without the launcher behind it."""
    log = container.files / "trace"
    fast.by(fast.whole, container.id, "true")
    done = fast.by(
        fast.whole, container.id, "true", tracer=["strace", "-f", "-qq", "-o", str(log), "-e", "trace=execve,execveat"]
    )
    assert done == Result(0, "", "")
    calls = [line.split(None, 1)[1] for line in log.read_text().splitlines() if line.rstrip().endswith("= 0")]
    assert [call.partition("(")[0] for call in calls] == ["execve", "execveat", "execve"], calls
    assert not any("python" in call for call in calls) and '"/bin/true"' in calls[2]
