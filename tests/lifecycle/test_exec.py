"""exec: another process in a container; what it is, how it ends, and what its caller is told."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest

from tests.conftest import MakeBundle, runtime_version
from tests.native.execs import FOREVER, execute, mask, output, process_file, status
from tests.native.leaks import Leaks
from tests.native.runtime import Container, Runtime
from tests.native.waiting import wait_until

pytestmark = pytest.mark.native


@pytest.mark.parametrize(
    ("script", "code"), [("true", 0), ("false", 1), ("exit 42", 42), ("kill -TERM $$", 143), ("kill -9 $$", 137)]
)
def test_exit_code_is_the_processes(container: Container, script: str, code: int) -> None:
    assert execute(container, "sh", "-c", script).rc == code


def test_streams(container: Container) -> None:
    result = execute(container, "sh", "-c", "cat; echo oops >&2", stdin=b"in and out\n")
    assert result == (0, "in and out\n", "oops\n")


@pytest.mark.sweep(4)
@pytest.mark.parametrize("form", ["options", "file"])
@pytest.mark.parametrize(
    ("command", "says"),
    [
        ("nosuchcommand", "executable file not found in $PATH"),
        ("/bin/nosuchfile", "no such file or directory"),
        ("/etc/passwd", "permission denied"),
        ("/etc", ""),
    ],
)
def test_what_cannot_be_executed(container: Container, form: str, command: str, says: str) -> None:
    """Docker makes 126 and 127 of these words; 255 and no pid file tell conmon that the runtime failed."""
    pid_file = container.files / "exec.pid"
    options: tuple[str, ...] = ("--pid-file", str(pid_file))
    if form == "file":
        result = execute(container, options=(*options, *process_file(container, args=[command])))
    else:
        result = execute(container, command, options=options)
    assert result.rc == 255
    assert says in result.text
    assert command in result.text
    assert not pid_file.exists()


def test_a_directory_is_no_command(container: Container) -> None:
    old = runtime_version().startswith("runc 1.1")
    assert f'exec: "/etc": {"permission denied" if old else "is a directory"}' in execute(container, "/etc").text


def test_bad_interpreter_is_said_by_the_process_alone(runtime: Runtime, bundle: MakeBundle) -> None:
    b = bundle().sh(FOREVER)
    (b.rootfs / "run.sh").write_text("#!/no/such/interpreter\n")
    (b.rootfs / "run.sh").chmod(0o755)
    container = runtime.start(b)
    result = execute(container, "/run.sh")
    assert result.rc != 0
    assert result.out == ""
    assert result.err.strip().endswith("exec /run.sh: no such file or directory")
    assert len(result.err.splitlines()) == 1


@pytest.mark.parametrize("args", [("nosuchcontainer", "true"), ("nosuchcontainer",)])
def test_unknown_container(runtime: Runtime, leaks: Leaks, args: tuple[str, ...]) -> None:
    result = runtime("exec", *args)
    assert result.rc == 255
    assert "does not exist" in result.text


def test_command_is_needed(container: Container) -> None:
    result = execute(container)
    assert result.rc == 255
    assert "args cannot be empty" in result.text


def test_options_after_the_id_are_the_commands(container: Container) -> None:
    assert output(container, "echo", "--cwd", "/nonexistent", "-e", "x") == "--cwd /nonexistent -e x\n"


def test_in_a_created_container(runtime: Runtime, bundle: MakeBundle) -> None:
    container = runtime.create(bundle().sh("echo started"))
    assert output(container, "hostname") == "test\n"
    assert container.state()["status"] == "created"
    container.start()
    assert container.wait() == 0


def test_in_a_stopped_container(runtime: Runtime, bundle: MakeBundle) -> None:
    container = runtime.start(bundle().args("true"))
    container.wait()
    result = execute(container, "true")
    assert result.rc == 255
    assert "cannot exec in a stopped container" in result.text


def test_detached(container: Container) -> None:
    pid_file = container.files / "exec.pid"
    result = execute(container, "sh", "-c", "echo $PPID; exit 7", options=("--detach", "--pid-file", str(pid_file)))
    assert result.rc == 0
    pid = int(pid_file.read_text())
    assert pid_file.read_text() == str(pid)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7, "it has become its caller's child"


def test_detached_process_outlives_the_command_and_is_ours(container: Container) -> None:
    pid_file = container.files / "exec.pid"
    execute(container, "sleep", "1000", options=("--detach", "--pid-file", str(pid_file)))
    pid = int(pid_file.read_text())
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()
    assert int(fields[1]) == os.getpid(), "parent"
    assert int(fields[2]) == int(fields[3]) == pid, "leader of a session of its own"
    os.kill(pid, signal.SIGKILL)
    assert os.waitpid(pid, 0) == (pid, signal.SIGKILL)


def test_nothing_but_the_process_is_left(container: Container) -> None:
    """A shim is told of every child that ends: there must be the one it knows."""
    before = set(Path("/proc/thread-self/children").read_text().split())
    pid_file = container.files / "exec.pid"
    execute(container, "sleep", "1000", options=("--detach", "--pid-file", str(pid_file)))
    after = set(Path("/proc/thread-self/children").read_text().split())
    assert after - before == {pid_file.read_text()}
    os.kill(int(pid_file.read_text()), signal.SIGKILL)
    os.waitpid(int(pid_file.read_text()), 0)


def test_pid_file_that_cannot_be_written(container: Container) -> None:
    result = execute(container, "sleep", "1000", options=("--detach", "--pid-file", "/nonexistent/dir/pid"))
    assert result.rc == 255
    assert len(container.runtime("ps", "--format", "json", container.id).out.split(",")) <= 2, "no sleep 1000 is left"


@pytest.mark.gpurun_only
def test_process_does_not_run_before_its_pid_file_is_there(container: Container) -> None:
    """runc starts it, finds that the pid file cannot be written, and kills what has run already."""
    execute(container, "touch", "/tmp/ran", options=("--detach", "--pid-file", "/nonexistent/dir/pid"))
    assert not (container.bundle.rootfs / "tmp/ran").exists()


def test_signals_to_the_command_are_the_processes(container: Container) -> None:
    files = container.runtime.new_files()
    script = "trap 'exit 33' TERM; echo ready; while :; do sleep 0.02; done"
    command = container.runtime.popen("exec", container.id, "sh", "-c", script, files=files)
    wait_until(lambda: "ready" in (files / "out").read_text())
    command.send_signal(signal.SIGTERM)
    assert command.wait(30) == 33


def test_options(container: Container) -> None:
    options = (
        "--cwd",
        "/usr",
        "-e",
        "A=1",
        "-e",
        "B=two words",
        "-e",
        "A=3",
        "--user",
        "1000:1001",
        "-g",
        "5",
        "-g",
        "7",
    )
    text = output(container, "sh", "-c", "id; pwd; echo $A; echo $B; echo $HOME; echo $TERM", options=options)
    assert text.splitlines() == [
        "uid=1000(alice) gid=1001 groups=5,7",
        "/usr",
        "3",
        "two words",
        "/home/alice",
        "xterm",
    ]


def test_environment_is_the_containers_and_nothing_else(container: Container) -> None:
    env = {"PATH": os.environ["PATH"], "LEAK": "me", "LISTEN_FDS": "1"}
    text = output(container, "env", options=("-e", "X=a,b"), env=env)
    assert sorted(text.splitlines()) == ["HOME=/root", "PATH=/usr/sbin:/usr/bin:/sbin:/bin", "TERM=xterm", "X=a,b"]


@pytest.mark.sweep(4)
@pytest.mark.parametrize(
    ("options", "says"),
    [
        (("--user", "alice"), "bad uid"),
        (("--user", "0:wheel"), "bad gid"),
        (("--user", " 1"), ""),
        (("--user", "1_0"), ""),
        (("--user", "-1"), ""),
        (("--user", "4294967295"), ""),
        (("--user", "1:"), ""),
        (("-g", "-5"), ""),
        (("-g", "x"), ""),
        (("--cwd", "relative"), "absolute"),
    ],
)
def test_refused_options(container: Container, options: tuple[str, ...], says: str) -> None:
    if container.runtime.name == "runc" and options[1] == "4294967295":
        pytest.skip("runc takes the id that means none")
    result = execute(container, "id", options=options)
    assert result.rc != 0
    assert "uid=" not in result.out
    if container.runtime.name == "gpurun":
        assert result.rc == 255
        assert says in result.text


def test_process_file_stands_for_itself(container: Container) -> None:
    """The file is what shims send: nothing of the container's own args, env, cwd or user is added."""
    process = {
        "args": ["sh", "-c", "id; env; pwd; umask; cat /proc/self/status /proc/self/limits"],
        "env": ["PATH=/bin:/usr/bin", "ONLY=this"],
        "cwd": "/tmp",
        "user": {"uid": 1000, "gid": 1000, "additionalGids": [9]},
        "capabilities": {"bounding": ["CAP_KILL"], "permitted": ["CAP_KILL"], "effective": ["CAP_KILL"]},
        "rlimits": [{"type": "RLIMIT_NOFILE", "soft": 100, "hard": 200}],
        "noNewPrivileges": True,
    }
    text = output(container, options=process_file(container, **process))
    assert "uid=1000(alice) gid=1000(alice) groups=9" in text
    assert "ONLY=this\n" in text
    assert "HOME=/home/alice\n" in text
    assert "TERM=" not in text
    assert "\n/tmp\n0022\n" in text
    found = status(text)
    assert int(found["CapBnd"], 16) == mask("KILL")
    assert int(found["CapEff"], 16) == 0
    assert found["NoNewPrivs"] == "1"
    if container.runtime.name != "runc":  # 1.1's Go raises the soft limit
        assert "Max open files            100                  200" in text


def test_process_file_without_capabilities_has_the_containers(container: Container) -> None:
    text = output(container, options=process_file(container, args=["cat", "/proc/self/status"]))
    found = status(text)
    assert int(found["CapEff"], 16) == mask("KILL", "NET_BIND_SERVICE", "AUDIT_WRITE")
    assert found["NoNewPrivs"] == "0", "as the file says, which says nothing"


@pytest.mark.sweep(4)
@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("null", "must not be empty"),
        ("", ""),
        ("{", ""),
        ('{"args": ["true"], "env": [], "cwd": ""}', "Cwd property must not be empty"),
        ('{"args": ["true"], "env": [], "cwd": "x"}', "Cwd must be an absolute path"),
        ('{"args": [], "env": [], "cwd": "/"}', "args must not be empty"),
        ('{"cwd": "/"}', "args must not be empty"),
        ('{"args": "true", "cwd": "/"}', ""),
    ],
)
def test_bad_process_file(container: Container, text: str, says: str) -> None:
    path = container.files / "process.json"
    path.write_text(text)
    result = execute(container, options=("--process", str(path)))
    assert result.rc == 255
    assert says in result.text


def test_missing_process_file(container: Container) -> None:
    result = execute(container, options=("--process", "/nonexistent/process.json"))
    assert result.rc == 255
    assert "no such file or directory" in result.text


def test_json_log_has_one_error(container: Container) -> None:
    log = container.files / "log.json"
    globals_ = ["--log", str(log), "--log-format", "json"]
    result = execute(container, "nosuchcommand", globals_=globals_)
    assert result.rc == 255
    records = [json.loads(line) for line in log.read_text().splitlines()]
    assert [r["level"] for r in records] == ["error"]
    assert 'exec: "nosuchcommand": executable file not found in $PATH' in records[0]["msg"]
