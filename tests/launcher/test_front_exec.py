"""exec by the compiled front, as the plan says that the launcher has kept: the same process as the launcher's.

``bare`` is the front with no launcher behind it: what it does it does alone, what it leaves to the launcher it cannot do.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from gpurun.builder.front import compiler
from tests.conftest import MakeBundle
from tests.launcher.fast import FOREVER, Fast, process_file
from tests.native.bed import Bed
from tests.native.bundle import Bundle
from tests.native.runtime import Container, Result
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


USERS = [
    *(
        b"",
        b"\n\n",
        b":::::",
        b"u:x:0:0::/a:/b",
        b"u:x:0:0::/a",
        b"u:x:0:0:/a",
        b"u:x:0\0:0::/a:/b",
        b"u:x:0\0:0::/a\nv:x:0:0::/c:",
    ),
    *(
        b"u:x:00:0::/a:/b",
        b"u:x:0:0::/a\0b:/b",
        b"u:x:0:0:::/b\nv:x:0:0::/c:/b",
        b"u\0:x:0:0::/a:/b",
        b"u:x:0:0::/a:b:c:d\r\n",
    ),
    *(b"u:x:0:0::" + b"/" * 4095 + b":", b"u:x:0:0::" + b"/" * 4096 + b":", b"\n" * (1 << 20) + b"u:x:0:0::/a:/b"),
    *(b"u:x:1:0::/a:/b" * 70000 + b"\nu:x:0:0::/a:/b", b"u:x:0:0::/\xff\x01:", b"\0" * 4096 + b"\nu:x:0:0::/a:/b"),
]


def test_the_home_of_a_user(fast: Fast, container: Container) -> None:
    """Whatever the image's /etc/passwd is like."""
    words = ("sh", "-c", 'printf %s "$HOME" | md5sum')
    path = container.bundle.rootfs / "etc/passwd"
    before = path.read_bytes()
    for text in (*USERS, before):
        path.write_bytes(text)
        front, pure = fast(container.id, *words), fast.by(fast.pure, container.id, *words)
        assert front == pure and front.rc == 0, text[:80]


NO_FILES: dict[str, Callable[[Path], object]] = {
    "directory": lambda path: path.mkdir(),
    "FIFO": lambda path: os.mkfifo(path, 0o644),
    "link to a device": lambda path: path.symlink_to("/dev/zero"),
    "link to nothing": lambda path: path.symlink_to("/nowhere"),
    "link to itself": lambda path: path.symlink_to("passwd"),
    "link by a process": lambda path: path.symlink_to("/proc/self/root/etc/others"),
    "link": lambda path: path.symlink_to("/etc/../../../etc/others"),
}


@pytest.mark.parametrize("kind", NO_FILES)
def test_users_that_are_in_no_file(fast: Fast, container: Container, kind: str) -> None:
    """The image's /etc/passwd is something else: it is not waited for, and no link leads anywhere but into the image."""
    etc = container.bundle.rootfs / "etc"
    (etc / "others").write_bytes(b"u:x:0:0::/of/others:/b\n")
    (etc / "passwd").rename(etc / "kept")
    NO_FILES[kind](etc / "passwd")
    try:
        front, pure = [fast.by(by, container.id, "sh", "-c", "echo $HOME") for by in (fast.program, fast.pure)]
    finally:
        (etc / "passwd").rmdir() if kind == "directory" else (etc / "passwd").unlink()
        (etc / "kept").rename(etc / "passwd")
        (etc / "others").unlink()
    assert front == pure == Result(0, "/of/others\n" if kind == "link" else "/\n", "")


@pytest.mark.parametrize("owner", [0, 1000])
def test_a_working_directory_for_one_user(fast: Fast, bundle: MakeBundle, owner: int) -> None:
    """Closed to the user of the process, or to all others."""
    b = bundle()
    b.process["user"] = {"uid": 1000, "gid": 1000}
    b.process["cwd"] = "/tmp/here"
    (b.rootfs / "tmp/here").mkdir(mode=0o700)
    os.chown(b.rootfs / "tmp/here", owner, owner)
    container = fast.runtime.start(b.sh(f"cd /; {FOREVER}"))
    fast.prime(container, container.id, "true")
    assert fast(container.id, "readlink", "/proc/self/cwd") == Result(0, "/tmp/here\n", "")


ODD_WORDS = [
    *(
        ("printf", "%s|", "\udcff\udc80", "\u00fc", "", " ", "\n"),
        ("printf", "%s", "x" * 131_000),
        ("true", *["x" * 100_000] * 3),
    ),
    *(
        ("true", *["x"] * 5000),
        ("sh", "-c", "echo $#", "-x", "--", "--env"),
        ("./bin/echo", "x"),
        ("bin/../bin/echo", "x"),
        ("/bin",),
    ),
    *(("/",), (".",), ("echo\n",), ("\udcff",), ("-x",), ("--", "true"), ("/bin/" * 900 + "true",), ("x" * 5000,), ('"\\',)),
]


def test_odd_words(fast: Fast, container: Container) -> None:
    """By the front, or by the launcher behind it: as by the launcher alone."""
    for words in ODD_WORDS:
        whole, pure = [fast.by(program, container.id, *words) for program in (fast.whole, fast.pure)]
        assert (whole.rc, whole.out) == (pure.rc, pure.out), [word[:99] for word in words]
        assert whole.err.partition("level=")[2] == pure.err.partition("level=")[2], [word[:99] for word in words]


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
