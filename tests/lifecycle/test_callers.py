"""What callers rely on beside a command's own work: pipes that end, files they look at, what is listed, what is logged."""

from __future__ import annotations

import json
import os
import signal
import stat
import subprocess
from pathlib import Path

import pytest

from tests.conftest import MakeBundle
from tests.native.bed import Bed
from tests.native.runtime import Container, Result, Runtime
from tests.native.terminal import Listener
from tests.native.waiting import wait_until

pytestmark = pytest.mark.native

FOREVER = "trap 'exit 0' TERM; echo up; while :; do sleep 0.01; done"


def captured(runtime: Runtime, *args: str) -> tuple[int, bytes]:
    """Run a command as a shim does that reads stdout and stderr to their end; TimeoutExpired when somebody keeps them."""
    done = subprocess.run(
        [*runtime.argv, *args],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        preexec_fn=runtime.bed.enter(),
        timeout=30,
        check=False,
    )
    return done.returncode, done.stdout


def test_nobody_keeps_the_callers_pipes(runtime: Runtime, bundle: MakeBundle) -> None:
    """containerd's shim reads the output of each of these to its end before it looks at the exit code."""
    b = bundle().sh(FOREVER)
    b.process["terminal"] = True
    container_id = runtime.new_id()
    runtime.prepare(b, container_id)
    listener = Listener(runtime.directory / "console.sock")
    console = ("--console-socket", str(listener.path))
    assert captured(runtime, "create", "--bundle", str(b.directory), *console, container_id) == (0, b"")
    _, (master,) = listener.message()
    assert captured(runtime, "start", container_id) == (0, b"")
    process = runtime.directory / "process.json"
    process.write_text(json.dumps({"terminal": True, "cwd": "/", "env": ["PATH=/bin"], "args": ["sleep", "1000"]}))
    detached = ("--detach", "--pid-file", str(runtime.directory / "exec.pid"))
    assert captured(runtime, "exec", "--process", str(process), *console, *detached, container_id) == (0, b"")
    _, (second,) = listener.message()
    for command in (("pause", container_id), ("resume", container_id), ("kill", container_id, "9")):
        assert captured(runtime, *command) == (0, b"")
    os.waitpid(int((runtime.directory / "exec.pid").read_text()), 0)
    for fd in (master, second):
        os.close(fd)
    listener.socket.close()


def test_what_is_final_when_create_returns(runtime: Runtime, bundle: MakeBundle) -> None:
    """dockerd puts the network into /proc/<pid>/ns/net, the shim reads the cgroup of the pid for its statistics."""
    container = runtime.create(bundle().sh(FOREVER))

    def seen() -> tuple[str, ...]:
        return (container.cgroup(), *[os.readlink(container.proc(f"ns/{name}")) for name in ("net", "mnt", "pid", "uts")])

    created = seen()
    assert container.id in created[0] and created[1] != os.readlink("/proc/self/ns/net")
    container.start()
    container.wait_for("up")
    assert seen() == created


def test_a_file_over_a_directory(runtime: Runtime, bundle: MakeBundle) -> None:
    """moby looks for `not a directory`, answers 127 and says that a file and a directory were mixed up."""
    b = bundle()
    (b.directory / "file").write_text("")
    assert "not a directory" in runtime.refused(b.mount("/tmp", str(b.directory / "file"), "bind")).lower()


@pytest.mark.sweep(4)
@pytest.mark.parametrize(
    ("status", "command", "said"),
    [
        ("running", ["start"], "cannot start an already running container"),
        ("running", ["resume"], "container not paused"),
        ("running", ["delete"], "that is not stopped: running"),
        ("running", ["kill", "ID", "NOPE"], "unknown signal"),
        ("running", ["update", "--resources", "/nonexistent"], "no such file or directory"),
        ("paused", ["start"], "cannot start a container in the paused state"),
        ("paused", ["pause"], "container not running"),
        ("paused", ["delete"], "that is not stopped: paused"),
        ("paused", ["exec", "ID", "true"], "cannot exec in a paused container"),
        ("stopped", ["start"], "cannot start a container that has stopped"),
        ("stopped", ["pause"], "container not running"),
        ("stopped", ["exec", "ID", "true"], "cannot exec in a stopped container"),
    ],
    ids=str,
)
def test_the_log_ends_with_what_was_said(
    runtime: Runtime, bundle: MakeBundle, status: str, command: list[str], said: str
) -> None:
    """The shim shows the last error of the file, conmon and CRI-O read stderr; the file has the records of all commands."""
    container = runtime.start(bundle().sh("exit" if status == "stopped" else FOREVER))
    if status == "stopped":
        container.wait()
    elif status == "paused":
        assert runtime("pause", container.id).rc == 0
    log = runtime.directory / "log.json"
    log.write_text('{"level":"error","msg":"of an earlier command","time":"2026-01-01T00:00:00Z"}\n')
    words = [container.id if word == "ID" else word for word in command]
    words += [] if "ID" in command else [container.id]
    done = runtime(*words, globals_=("--log", str(log), "--log-format", "json"))
    assert done.rc == (255 if command[0] == "exec" else 1)
    assert said in done.err and done.out == ""
    first, *records = [json.loads(line) for line in log.read_text().splitlines()]
    assert first["msg"] == "of an earlier command"
    last = [record for record in records if record["level"] == "error"][-1]
    assert said in last["msg"] and {"level", "msg", "time"} <= last.keys()
    assert container.state()["status"] == status


def test_the_systemd_option_does_not_matter_to_what_is_there(runtime: Runtime, bundle: MakeBundle) -> None:
    """CRI-O gives it with every command, the shim leaves it out of its clean-up: what create was told counts."""
    container = runtime.start(bundle().sh(FOREVER))
    for command in (["state"], ["pause"], ["resume"], ["ps", "--format", "json"], ["kill"]):
        words = [*command, container.id, *(["KILL"] if command == ["kill"] else [])]
        done = runtime(*words, globals_=("--systemd-cgroup",))
        assert (done.rc, done.err) == (0, ""), words
    container.wait()
    assert runtime("delete", container.id, globals_=("--systemd-cgroup",)) == (0, "", "")


def test_list_as_json(runtime: Runtime, bundle: MakeBundle) -> None:
    first = runtime.create(bundle())
    (found,) = json.loads(runtime("list", "--format", "json").out)
    assert (found["id"], found["pid"], found["status"]) == (first.id, first.pid, "created")
    assert (found["bundle"], found["rootfs"]) == (str(first.bundle.directory), str(first.bundle.rootfs))
    assert found["owner"] == "root"
    state = first.state()
    if runtime.name == "runc":
        state["owner"] = "root"  # which runc's state leaves empty
    assert found == state
    first.delete()
    assert not json.loads(runtime("list", "--format", "json").out)


def test_list_where_nothing_is(runtime: Runtime, bundle: MakeBundle) -> None:
    """A root that was asked for must be there; one bad directory does not hide the others, and is told."""
    assert runtime("list").rc == 1
    container = runtime.create(bundle())
    (runtime.root / "broken").mkdir()
    done = runtime("list", "--quiet")
    assert (done.rc, done.out) == (0, f"{container.id}\n")
    assert "load container broken" in done.err


def test_files_of_the_state(runtime: Runtime, bundle: MakeBundle) -> None:
    container = runtime.create(bundle().sh(FOREVER))
    directory = runtime.root / container.id
    assert stat.S_IMODE(directory.stat().st_mode) == 0o711
    fifo = directory / "exec.fifo"
    assert stat.S_ISFIFO(fifo.stat().st_mode)
    container.start()
    assert not fifo.exists()


@pytest.mark.gpurun_only
def test_a_pid_that_is_somebody_elses_now(runtime: Runtime, bundle: MakeBundle) -> None:
    """The pid of a container that ended long ago may be that of any process: its time of start tells them apart."""
    container = runtime.start(bundle())
    container.wait()
    other = subprocess.Popen(["sleep", "1000"])
    try:
        file = runtime.root / container.id / "state"
        lines = file.read_text().splitlines()
        file.write_text("".join(f"pid={other.pid}\n" if x.startswith("pid=") else f"{x}\n" for x in lines))
        assert f"pid={other.pid}\n" in file.read_text()
        assert container.state()["status"] == "stopped"
        killed = container.kill("KILL")
        assert killed.rc == 1 and "container not running" in killed.err
        assert container.delete("--force").rc == 0
        assert other.poll() is None
    finally:
        other.kill()
        other.wait()


@pytest.mark.gpurun_only
def test_a_temporary_pid_file_that_was_left(runtime: Runtime, bundle: MakeBundle) -> None:
    """runc fails on one that a killed runtime has left."""
    (runtime.directory / ".a.pid").write_text("99")
    container = runtime.create(bundle(), "--pid-file", str(runtime.directory / "a.pid"))
    assert (runtime.directory / "a.pid").read_text() == str(container.state()["pid"])


@pytest.mark.gpurun_only
def test_an_id_with_a_dot_first(runtime: Runtime, bundle: MakeBundle) -> None:
    assert "invalid container ID format" in runtime.refused(bundle(), container_id=".seccomp")
    runtime.ids.clear()


def test_a_frozen_cgroup(runtime: Runtime, bundle: MakeBundle, bed: Bed) -> None:
    b = bundle()
    b.linux["cgroupsPath"] = f"{bed.subtree}/frozen"
    path = bed.cgroup(b.linux["cgroupsPath"])
    path.mkdir()
    (path / "cgroup.freeze").write_text("1")
    try:
        assert "frozen" in runtime.refused(b)
    finally:
        if path.exists():
            path.rmdir()


def test_a_long_path_of_the_console_socket(runtime: Runtime, bundle: MakeBundle) -> None:
    """sun_path has room for 107 bytes; Kubernetes' directories are longer."""
    if runtime.name == "runc":
        pytest.skip("fails: invalid argument")
    directory = runtime.directory / ("d" * 120)
    directory.mkdir()
    listener = Listener(directory / "s")
    b = bundle()
    b.process["terminal"] = True
    runtime.create(b, "--console-socket", str(listener.path))
    _, (master,) = listener.message()
    os.close(master)
    listener.socket.close()


@pytest.mark.not_on("runc 1.1.5", reason="removes the cgroup all the same")
def test_run_that_keeps(runtime: Runtime, bundle: MakeBundle) -> None:
    """BuildKit runs so, and deletes by itself."""
    b, container_id = bundle().sh("exit 3"), runtime.new_id()
    runtime.prepare(b, container_id)
    assert runtime("run", "--keep", "--bundle", str(b.directory), container_id).rc == 3
    container = Container(runtime, container_id, b, runtime("state", container_id), runtime.directory)
    assert container.state()["status"] == "stopped"
    assert container.delete() == (0, "", "")


@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGUSR1, signal.SIGRTMIN + 3])
def test_signals_to_run_go_on(runtime: Runtime, bundle: MakeBundle, number: int) -> None:
    b, container_id = bundle().sh(f"trap 'exit 9' {number}; echo up; while :; do sleep 0.01; done"), runtime.new_id()
    runtime.prepare(b, container_id)
    files = runtime.new_files()
    process = runtime.popen("run", "--bundle", str(b.directory), container_id, files=files)
    wait_until(
        lambda: "up" in (files / "out").read_text(),
        meanwhile=lambda: None if process.poll() is None else (files / "err").read_text(),
    )
    process.send_signal(number)
    assert process.wait(30) == 9


@pytest.mark.parametrize("form", ["text", "json"])
@pytest.mark.parametrize("command", ["run", "exec"])
def test_debug(runtime: Runtime, bundle: MakeBundle, form: str, command: str) -> None:
    """All of it is in the log, none on stderr; without a log it is on stderr."""
    log = runtime.directory / "log"
    globals_ = ("--debug", "--log", str(log), "--log-format", form)
    if command == "run":
        done = runtime.run(bundle().sh("echo out"), globals_=globals_)
    else:
        container = runtime.start(bundle().sh(FOREVER))
        done = runtime("exec", container.id, "echo", "out", globals_=globals_)
        assert "level=debug" in runtime("exec", container.id, "true", globals_=("--debug",)).err
    assert done == (0, "out\n", "")
    lines = log.read_text().splitlines()
    if form == "text":
        assert lines and all(" level=debug " in line for line in lines)
    else:
        assert "debug" in [json.loads(line)["level"] for line in lines]


def test_members_of_the_future(runtime: Runtime, bundle: MakeBundle) -> None:
    """Every client writes fields that are newer than some runtime."""
    container = runtime.start(bundle().sh(FOREVER))
    process = Path(runtime.directory / "process.json")
    process.write_text(
        json.dumps({"cwd": "/", "args": ["/bin/true"], "ofTheFuture": {"a": [1]}, "env": None, "rlimits": None})
    )
    assert runtime("exec", "--process", str(process), container.id) == (0, "", "")
    resources = b'{"ofTheFuture": {"a": 1}, "memory": null, "cpu": {"ofTheFuture": 1}}'
    assert runtime("update", "--resources=-", container.id, stdin=resources) == (0, "", "")


def test_callers_directory_is_gone(runtime: Runtime, bundle: MakeBundle, tmp_path: Path) -> None:
    """A pod's shim stands in the directory of the pod's own container, which containerd removes when that one has ended."""

    def leave_nothing() -> None:
        directory = tmp_path / "gone"
        directory.mkdir()
        os.chdir(directory)
        directory.rmdir()

    def call(*args: str) -> Result:
        done = runtime(*args, preexec=leave_nothing)
        assert done.rc == 0, done
        return done

    box = runtime.create(bundle().sh(FOREVER), preexec=leave_nothing)
    call("start", box.id)
    assert json.loads(call("state", box.id).out)["status"] == "running"
    assert call("exec", box.id, "sh", "-c", "echo in $PWD").out == "in /\n"
    assert str(box.pid) in call("ps", box.id).out
    call("pause", box.id)
    call("resume", box.id)
    call("kill", box.id, "KILL")
    assert box.wait() == 137
    call("delete", box.id)
