"""The process: who it is, what it may do, and the state in which it begins."""

from __future__ import annotations

import ctypes
import os
import resource
import signal
from pathlib import Path

import pytest

from tests.conftest import MakeBundle
from tests.native.leaks import Leaks
from tests.native.runtime import Runtime

pytestmark = pytest.mark.native

CAPS = {"CHOWN": 0, "DAC_OVERRIDE": 1, "KILL": 5, "NET_BIND_SERVICE": 10, "NET_RAW": 13, "SYS_ADMIN": 21, "AUDIT_WRITE": 29}
SETS = {"inheritable": "CapInh", "permitted": "CapPrm", "effective": "CapEff", "bounding": "CapBnd", "ambient": "CapAmb"}


def mask(*names: str) -> int:
    return sum(1 << CAPS[name] for name in names)


def status(text: str) -> dict[str, str]:
    return {k: v.strip() for k, _, v in (line.partition(":") for line in text.splitlines())}


@pytest.mark.parametrize(
    "sets",
    [
        {"bounding": ["KILL", "CHOWN"], "permitted": ["KILL"], "effective": ["KILL"], "inheritable": [], "ambient": []},
        {"bounding": ["KILL"], "permitted": ["KILL"], "effective": ["KILL"], "inheritable": ["KILL"], "ambient": ["KILL"]},
        {"bounding": [], "permitted": [], "effective": [], "inheritable": [], "ambient": []},
    ],
)
def test_capability_sets(runtime: Runtime, bundle: MakeBundle, sets: dict[str, list[str]]) -> None:
    b = bundle().args("cat", "/proc/self/status")
    b.process["capabilities"] = {k: [f"CAP_{n}" for n in v] for k, v in sets.items()}
    b.process["noNewPrivileges"] = False
    found = status(runtime.output(b))
    # For root execve(2) gives what is in the bounding or inheritable set; the other sets are then a matter of no account.
    expected = dict.fromkeys(SETS, mask(*sets["bounding"])) | {k: mask(*sets[k]) for k in ("inheritable", "ambient")}
    assert {k: int(found[SETS[k]], 16) for k in SETS} == expected


@pytest.mark.not_on("runc 1.1", reason="it cannot be created")
def test_ambient_capabilities_that_cannot_be(runtime: Runtime, bundle: MakeBundle) -> None:
    """What is not permitted and inheritable as well cannot be ambient: runc leaves it out and says so."""
    b = bundle().args("grep", "CapAmb", "/proc/self/status")
    names = ["CAP_KILL", "CAP_CHOWN"]
    b.process["capabilities"] = {"bounding": names, "permitted": names, "inheritable": ["CAP_KILL"], "ambient": names}
    result = runtime.run(b)
    assert (result.rc, result.out) == (0, f"CapAmb:\t{mask('KILL'):016x}\n")
    assert (
        "level=warning" in result.err and "can't raise ambient capability CAP_CHOWN: operation not permitted" in result.err
    )


@pytest.mark.parametrize("ambient", [[], ["NET_RAW"]])
def test_capabilities_of_an_ordinary_user(runtime: Runtime, bundle: MakeBundle, ambient: list[str]) -> None:
    b = bundle().args("cat", "/proc/self/status")
    b.process["user"] = {"uid": 1000, "gid": 1000}
    sets = {"bounding": ["NET_RAW", "KILL"], "permitted": ["NET_RAW"], "effective": ["NET_RAW"]}
    sets |= {"inheritable": ambient, "ambient": ambient}
    b.process["capabilities"] = {k: [f"CAP_{n}" for n in v] for k, v in sets.items()}
    found = status(runtime.output(b))
    expected = dict.fromkeys(SETS, mask(*ambient)) | {"bounding": mask("NET_RAW", "KILL")}
    assert {k: int(found[SETS[k]], 16) for k in SETS} == expected


def test_what_a_dropped_capability_forbids(runtime: Runtime, bundle: MakeBundle) -> None:
    result = runtime.run(bundle().args("chown", "1000", "/tmp"))
    assert result.rc == 1
    assert "Operation not permitted" in result.err


def test_the_callers_groups_do_not_come_along(runtime: Runtime, bundle: MakeBundle) -> None:
    container = bundle().args("cat", "/proc/self/status")
    out = runtime.run(container, preexec=lambda: os.setgroups([7, 8, 9])).out
    assert status(out)["Groups"] == ""


def test_umask_is_not_the_callers(runtime: Runtime, bundle: MakeBundle) -> None:
    assert runtime.output(bundle().sh("umask"), preexec=lambda: os.umask(0o027) and None) == "0022\n"


def test_missing_working_directory_is_made(runtime: Runtime, bundle: MakeBundle, leaks: Leaks) -> None:
    leaks.allow_rootfs_changes()
    b = bundle().args("stat", "-c", "%n %a %u", "/new/deep/dir", ".")
    b.process["cwd"] = "/new/deep/dir"
    assert runtime.output(b).splitlines() == ["/new/deep/dir 755 0", ". 755 0"]


@pytest.mark.parametrize(("owner", "user"), [(1000, 1000), (0, 0)])
def test_working_directory_that_only_the_user_may_enter(runtime: Runtime, bundle: MakeBundle, owner: int, user: int) -> None:
    b = bundle().args("pwd")
    (b.rootfs / "private").mkdir(mode=0o700)
    os.chown(b.rootfs / "private", owner, owner)
    b.process["cwd"] = "/private"
    b.process["user"] = {"uid": user, "gid": user}
    assert runtime.output(b) == "/private\n"


@pytest.mark.parametrize(("cwd", "says"), [("relative", "must be an absolute path"), ("", "must not be empty")])
def test_bad_working_directory(runtime: Runtime, bundle: MakeBundle, cwd: str, says: str) -> None:
    b = bundle()
    b.process["cwd"] = cwd
    assert says in runtime.refused(b)


def test_working_directory_outside_the_container(runtime: Runtime, bundle: MakeBundle) -> None:
    """Leaky Vessels: a descriptor of the host given as working directory must lead nowhere."""
    host = os.open("/", os.O_RDONLY)
    try:
        for fd in range(3, 20):
            b = bundle().sh("ls -d /etc/debian_version ../../../etc/debian_version ./etc/debian_version")
            b.process["cwd"] = f"/proc/self/fd/{fd}"
            container = runtime.create(b, check=False, pass_fds=[host])
            if container.result.rc == 0:
                container.start()
                container.wait()
            assert "/etc/debian_version" not in container.out
    finally:
        os.close(host)


def test_environment_is_just_what_is_given(runtime: Runtime, bundle: MakeBundle) -> None:
    b = bundle().args("cat", "/proc/self/environ")
    b.process["env"] = ["PATH=/bin", "A=1", "EMPTY=", "LINES=one\ntwo", "HOME=/there", "UNICODE=grüße", "EQ=a=b"]
    out = runtime.output(b, env={"SECRET": "of the caller", "PATH": "/usr/bin:/bin"})
    assert out.rstrip("\0").split("\0") == b.process["env"]


@pytest.mark.parametrize(("uid", "home"), [(0, "/root"), (1000, "/home/alice"), (4242, "/")])
@pytest.mark.parametrize("given", [[], ["HOME="]])
def test_home_comes_from_the_images_passwd(
    runtime: Runtime, bundle: MakeBundle, uid: int, home: str, given: list[str]
) -> None:
    b = bundle().sh("echo $HOME")
    b.process["env"] += given
    b.process["user"] = {"uid": uid, "gid": 0}
    assert runtime.output(b) == f"{home}\n"


def test_of_a_variable_given_twice_the_last_one_counts(runtime: Runtime, bundle: MakeBundle) -> None:
    b = bundle().sh("cat /proc/self/environ | tr '\\0' '\\n' | grep ^A=")
    b.process["env"] += ["A=first", "A=last"]
    assert runtime.output(b).split()[-1] == "A=last"


def test_rlimits_not_given_are_the_callers(runtime: Runtime, bundle: MakeBundle) -> None:
    """The runtime must not leave its own adjustments behind."""
    b = bundle().args("cat", "/proc/self/limits")
    b.process["rlimits"] = []
    own = {line[:26]: line[26:].split()[:2] for line in Path("/proc/self/limits").read_text().splitlines()[1:]}
    found = {line[:26]: line[26:].split()[:2] for line in runtime.output(b).splitlines()[1:]}
    assert found == own


def test_rlimit_that_takes_a_privilege(runtime: Runtime, bundle: MakeBundle) -> None:
    """setrlimit(2): above one's own hard limit only with CAP_SYS_RESOURCE."""
    hard = resource.getrlimit(resource.RLIMIT_MSGQUEUE)[1]
    if hard == resource.RLIM_INFINITY:
        pytest.skip("there is no limit here that could be exceeded")
    b = bundle().args("true")
    b.process["rlimits"] = [{"type": "RLIMIT_MSGQUEUE", "soft": 10, "hard": hard + 1}]
    if int(status(Path("/proc/self/status").read_text())["CapEff"], 16) >> 24 & 1:
        assert runtime.run(b).rc == 0
    elif runtime.name in ("gpurun", "gpurun-fast"):
        assert f"RLIMIT_MSGQUEUE to 10:{hard + 1}: operation not permitted" in runtime.refused(b)
    else:
        assert runtime.refused(b)


def test_unknown_rlimit(runtime: Runtime, bundle: MakeBundle) -> None:
    b = bundle()
    b.process["rlimits"] = [{"type": "RLIMIT_COFFEE", "soft": 1, "hard": 2}]
    assert "RLIMIT_COFFEE" in runtime.refused(b)


@pytest.mark.sweep(8)
@pytest.mark.parametrize("value", [None, 0, 300, 1000])
@pytest.mark.parametrize("where", ["plain", "user namespace", "joined user namespace", "joined pid namespace"])
def test_oom_score_adj(runtime: Runtime, bundle: MakeBundle, where: str, value: int | None) -> None:
    """In a user namespace as well: the file belongs to the host's root from there on, so it is written before."""
    b = bundle().sh("cat /proc/self/oom_score_adj; sleep 1000")
    if where != "plain":
        b.user_namespace()
    if where.startswith("joined"):
        kind = where.split()[1]
        first = runtime.create(bundle().user_namespace())
        for joined in {"user", kind}:
            b.namespace(joined, f"/proc/{first.pid}/ns/{joined}")
    own = Path("/proc/self/oom_score_adj").read_text()
    if value is not None:
        b.process["oomScoreAdj"] = value
    wanted = own if value is None else f"{value}\n"
    container = runtime.start(b)
    assert container.wait_for("\n") == wanted
    assert runtime("exec", container.id, "cat", "/proc/self/oom_score_adj").out == wanted
    assert Path("/proc/self/oom_score_adj").read_text() == own


def test_oom_score_adj_that_takes_a_privilege(runtime: Runtime, bundle: MakeBundle) -> None:
    """proc_pid_oom_score_adj(5): below what one has only with CAP_SYS_RESOURCE."""
    b = bundle().user_namespace()
    b.process["oomScoreAdj"] = -500
    if int(status(Path("/proc/self/status").read_text())["CapEff"], 16) >> 24 & 1:
        assert runtime.output(b.args("cat", "/proc/self/oom_score_adj")) == "-500\n"
    else:
        assert "oom_score_adj: permission denied" in runtime.refused(b)


def test_signals_begin_default(runtime: Runtime, bundle: MakeBundle) -> None:
    """Python ignores SIGPIPE, callers ignore more; what is ignored stays so through execve."""

    def ignore() -> None:
        for number in (signal.SIGPIPE, signal.SIGHUP, signal.SIGUSR1):
            signal.signal(number, signal.SIG_IGN)

    found = status(runtime.output(bundle().args("cat", "/proc/self/status"), preexec=ignore))
    assert int(found["SigIgn"], 16) == 0


@pytest.mark.gpurun_only
@pytest.mark.skipif(os.uname().machine != "x86_64", reason="the number of rt_sigaction is x86_64's")
def test_signals_of_the_c_library_begin_default(runtime: Runtime, bundle: MakeBundle) -> None:
    """32 and 33 are nobody's to change by sigaction(3), but are inherited all the same."""
    libc = ctypes.CDLL(None)

    def ignore() -> None:
        for number in (32, 33):
            libc.syscall(13, number, (ctypes.c_ulong * 4)(1, 0, 0, 0), None, 8)  # SIG_IGN

    found = status(runtime.output(bundle().args("cat", "/proc/self/status"), preexec=ignore))
    assert int(found["SigIgn"], 16) == 0


@pytest.mark.not_on("runc 1", reason="passes the mask on")
def test_signals_begin_unblocked(runtime: Runtime, bundle: MakeBundle) -> None:
    def block() -> None:
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM, signal.SIGUSR2])

    found = status(runtime.output(bundle().args("cat", "/proc/self/status"), preexec=block))
    assert int(found["SigBlk"], 16) == 0


def test_no_descriptor_but_the_streams(runtime: Runtime, bundle: MakeBundle) -> None:
    host = os.open("/", os.O_RDONLY)
    try:
        out = runtime.output(bundle().args("ls", "-l", "/proc/self/fd"), pass_fds=[host])
    finally:
        os.close(host)
    # ls itself has the directory open while it lists it.
    found = {line.split()[-3]: line.split()[-1] for line in out.splitlines() if "->" in line}
    assert found.pop("3", "/proc/").startswith("/proc/")
    assert sorted(found) == ["0", "1", "2"]


def test_preserved_descriptors(runtime: Runtime, bundle: MakeBundle) -> None:
    read, write = os.pipe()
    os.write(write, b"through the pipe")
    os.close(write)

    def at_three() -> None:
        os.dup2(read, 3)

    try:
        b = bundle().sh("cat <&3; ls /proc/self/fd | wc -l")
        assert runtime.output(b, "--preserve-fds", "1", preexec=at_three, pass_fds=[3]) == "through the pipe5\n"
    finally:
        os.close(read)


def test_process_is_leader_of_its_session(runtime: Runtime, bundle: MakeBundle) -> None:
    fields = runtime.output(bundle().args("cat", "/proc/self/stat")).rpartition(") ")[2].split()
    assert fields[2:4] == ["1", "1"], "process group and session"


def test_name_and_arguments_are_the_programs(runtime: Runtime, bundle: MakeBundle) -> None:
    b = bundle().args("cat", "/proc/self/cmdline", "/proc/self/comm")
    assert runtime.output(b) == "cat\0/proc/self/cmdline\0/proc/self/comm\0cat\n"


def test_streams_belong_to_the_user(runtime: Runtime, bundle: MakeBundle) -> None:
    """An ordinary user may open /dev/stdout, and the host's /dev/null keeps its owner."""
    b = bundle().sh("echo one >/dev/stdout; echo two >/dev/stderr")
    b.process["user"] = {"uid": 1000, "gid": 1000}
    result = runtime.run(b)
    assert result.rc == 0, result.text
    assert (os.stat("/dev/null").st_uid, os.stat("/dev/null").st_gid) == (0, 0)


def test_no_keyring_option_is_taken(runtime: Runtime, bundle: MakeBundle) -> None:
    assert runtime.output(bundle().args("echo", "hi"), "--no-new-keyring") == "hi\n"
