"""exec: what its process is: home, capabilities, limits, keyring, signals, CPUs, streams, working directory."""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys

import pytest

from tests.conftest import MakeBundle
from tests.native.execs import FOREVER, execute, mask, output, status
from tests.native.runtime import Container, Runtime

pytestmark = pytest.mark.native

KEYCTL = 250 if os.uname().machine == "x86_64" else 219


def test_empty_home_is_replaced(container: Container) -> None:
    text = output(container, "env", options=("-e", "HOME=", "-e", "HOME="))
    assert [line for line in text.splitlines() if line.startswith("HOME")] == ["HOME=/root"]


@pytest.mark.parametrize("inheritable", [False, True])
def test_added_capability(runtime: Runtime, bundle: MakeBundle, inheritable: bool) -> None:
    """Never inheritable (CVE-2022-29162), and ambient only where the container has inheritable ones."""
    b = bundle().sh(FOREVER)
    if inheritable:
        for kind in ("inheritable", "ambient"):
            b.process["capabilities"][kind] = ["CAP_KILL"]
    container = runtime.start(b)
    found = status(output(container, "cat", "/proc/self/status", options=("--cap", "CAP_NET_RAW")))
    assert int(found["CapBnd"], 16) == mask("KILL", "NET_BIND_SERVICE", "AUDIT_WRITE", "NET_RAW")
    assert int(found["CapEff"], 16) & mask("NET_RAW")
    assert int(found["CapInh"], 16) == (mask("KILL") if inheritable else 0)
    assert int(found["CapAmb"], 16) == (mask("KILL") if inheritable else 0)  # the kernel refuses what is not inheritable


@pytest.mark.parametrize("given", [True, False])
def test_no_new_privileges(runtime: Runtime, bundle: MakeBundle, given: bool) -> None:
    b = bundle().sh(FOREVER)
    b.process["noNewPrivileges"] = False
    container = runtime.start(b)
    text = output(container, "cat", "/proc/self/status", options=("--no-new-privs",) if given else ())
    assert status(text)["NoNewPrivs"] == str(int(given))


@pytest.mark.not_on("runc 1.1", reason="its Go raises the soft limit of open files")
def test_limits_are_the_containers(runtime: Runtime, bundle: MakeBundle) -> None:
    b = bundle().sh(FOREVER)
    b.process["rlimits"] = [
        {"type": "RLIMIT_NOFILE", "soft": 77, "hard": 88},
        {"type": "RLIMIT_CORE", "soft": 0, "hard": 0},
    ]
    container = runtime.start(b)
    text = output(container, "cat", "/proc/self/limits")
    limits = {line[:25].strip(): line[25:].split()[:2] for line in text.splitlines()}
    assert limits["Max open files"] == ["77", "88"]
    assert limits["Max core file size"] == ["0", "0"]


def test_limits_of_a_process_file(runtime: Runtime, bundle: MakeBundle) -> None:
    """A file that names none leaves those of the caller, as with runc and crun; what it names counts."""
    b = bundle().sh(FOREVER)
    b.process["rlimits"] = [{"type": "RLIMIT_NOFILE", "soft": 77, "hard": 88}]
    container = runtime.start(b)
    process = {"cwd": "/", "args": ["cat", "/proc/self/limits"], "env": ["PATH=/bin"], "user": {"uid": 0, "gid": 0}}

    def limit(name: str, **more: object) -> list[str]:
        (container.files / "process.json").write_text(json.dumps(process | more))
        shown = runtime(
            "exec", "--process", str(container.files / "process.json"), container.id,
            preexec=lambda: resource.setrlimit(resource.RLIMIT_CORE, (11, 22)),
        )  # fmt: skip
        assert shown.rc == 0, shown
        return next(line[25:].split()[:2] for line in shown.out.splitlines() if line.startswith(name))

    soft, hard = (str(value) for value in resource.getrlimit(resource.RLIMIT_NOFILE))
    assert limit("Max open files") == [soft, hard]
    assert limit("Max core file size") == ["11", "22"]
    assert limit("Max open files", rlimits=[{"type": "RLIMIT_NOFILE", "soft": 33, "hard": 44}]) == ["33", "44"]


def test_oom_score_is_the_containers(runtime: Runtime, bundle: MakeBundle) -> None:
    b = bundle().sh(FOREVER)
    b.process["oomScoreAdj"] = 345
    container = runtime.start(b)
    assert output(container, "cat", "/proc/self/oom_score_adj") == "345\n"


@pytest.mark.parametrize(
    "user_namespace",
    [False, pytest.param(True, marks=pytest.mark.not_on("runc 1.1", reason="cannot join it there, and makes another"))],
)
def test_the_session_keyring_is_the_containers(runtime: Runtime, bundle: MakeBundle, user_namespace: bool) -> None:
    """One for the container, which all of its processes have (proc_keys(5): serial number, ..., permissions)."""
    b = bundle()
    if user_namespace:
        b.user_namespace()
    b.linux["maskedPaths"] = []
    container = runtime.start(b.sh("cat /proc/keys; echo up; sleep 1000"))

    def keyrings(shown: str) -> list[tuple[str, str]]:
        lines = [line.split() for line in shown.splitlines() if f"_ses.{container.id}" in line]
        return [(line[0], line[4]) for line in lines]

    (made,) = keyrings(container.wait_for("up"))
    assert int(made[1], 16) & 0x80008, "it may be searched, which is what joining it takes"
    for options in ((), ("--user", "1000")):
        assert keyrings(output(container, "cat", "/proc/keys", options=options)) == [made]


@pytest.mark.gpurun_only  # under the others a neighbour that knows the id is in
def test_the_session_keyring_cannot_be_joined_by_its_neighbours(runtime: Runtime, bundle: MakeBundle) -> None:
    """A process of the same user that knows the container's id: it finds neither the keyring nor its name."""
    b = bundle()
    b.linux["maskedPaths"] = []
    container = runtime.start(b.sh("cat /proc/keys; echo up; sleep 1000"))
    (serial,) = [line.split()[0] for line in container.wait_for("up").splitlines() if f"_ses.{container.id}" in line]
    join = f"""
import ctypes
call = ctypes.CDLL(None).syscall
print(call({KEYCTL}, 1, b"_ses.{container.id}"), "{container.id}." in open("/proc/keys").read())
"""
    joined, named = subprocess.run([sys.executable, "-c", join], capture_output=True, text=True, check=True).stdout.split()
    assert int(joined) > 0 and int(joined) != int(serial, 16) and named == "False"


def test_signals_are_at_their_defaults(container: Container) -> None:
    def ignore() -> None:
        signal.signal(signal.SIGPIPE, signal.SIG_IGN)
        signal.signal(signal.SIGUSR1, signal.SIG_IGN)
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])

    found = status(output(container, "cat", "/proc/self/status", preexec=ignore))
    assert [int(found[name], 16) for name in ("SigIgn", "SigBlk", "SigPnd")] == [0, 0, 0]


def test_affinity_of_the_caller_stays_with_the_caller(container: Container) -> None:
    cpus = os.sched_getaffinity(0)
    if len(cpus) < 2:
        pytest.skip("one CPU")
    if container.runtime.name == "runc":
        pytest.skip("runc 1.1 hands it down")
    text = output(container, "cat", "/proc/self/status", preexec=lambda: os.sched_setaffinity(0, {min(cpus)}))
    assert status(text)["Cpus_allowed_list"] != str(min(cpus))


@pytest.mark.gpurun_only
def test_cpus_of_exec(runtime: Runtime, bundle: MakeBundle) -> None:
    b = bundle().sh(FOREVER)
    b.process["execCPUAffinity"] = {"initial": "0", "final": "0"}
    container = runtime.start(b)
    assert status(output(container, "cat", "/proc/self/status"))["Cpus_allowed_list"] == "0"


def test_user_can_open_its_streams(container: Container) -> None:
    result = execute(container, "sh", "-c", "echo out >/dev/stdout && echo err >/dev/stderr", options=("--user", "1000"))
    assert (result.rc, result.out, result.err) == (0, "out\n", "err\n")


def test_closed_streams(container: Container) -> None:
    def close() -> None:
        for fd in (0, 1, 2):
            os.close(fd)

    script = "echo hi >/tmp/x; exit 5"
    assert execute(container, "sh", "-c", script, preexec=close).rc == 5
    container.runtime("exec", container.id, "rm", "/tmp/x")


def test_cwd_that_is_missing_is_an_error(container: Container) -> None:
    result = execute(container, "pwd", options=("--cwd", "/no/such/dir"))
    assert result.rc == 255
    assert not (container.bundle.rootfs / "no").exists()


def test_cwd_that_only_the_user_may_enter(runtime: Runtime, bundle: MakeBundle) -> None:
    b = bundle().sh(FOREVER)
    (b.rootfs / "private").mkdir(mode=0o700)
    os.chown(b.rootfs / "private", 1000, 1000)
    container = runtime.start(b)
    assert output(container, "pwd", options=("--cwd", "/private", "--user", "1000")) == "/private\n"
