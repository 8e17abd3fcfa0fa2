"""State, pid file, kill and delete; the texts are those that containerd, CRI-O and Podman look for."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import pytest

from tests.conftest import MakeBundle
from tests.native.inject import Injection
from tests.native.leaks import Leaks
from tests.native.runtime import Runtime
from tests.native.waiting import wait_until

pytestmark = pytest.mark.native

FOREVER = "trap 'exit 0' TERM; echo up; while :; do sleep 0.01; done"
CREATED = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d{1,9})?Z")


def test_life_of_a_container(runtime: Runtime, bundle: MakeBundle) -> None:
    b = bundle().sh(FOREVER)
    b.config["annotations"] = {"org.example.key": "value"}
    container = runtime.create(b)
    state = container.state()
    assert state["status"] == "created"
    assert state["id"] == container.id
    assert state["pid"] == container.pid
    assert state["bundle"] == str(b.directory)
    assert state["annotations"] == {"org.example.key": "value"}
    assert CREATED.fullmatch(state["created"]), state["created"]
    assert re.fullmatch(r"1\.\d+\.\d+(-[a-z0-9.]+)?", state["ociVersion"])

    assert container.start() == (0, "", "")
    container.wait_for("up")
    running = container.state()
    assert (running["status"], running["pid"], running["created"]) == ("running", container.pid, state["created"])

    assert container.kill("TERM") == (0, "", "")
    assert container.wait() == 0
    stopped = container.state()
    assert (stopped["status"], stopped["pid"]) == ("stopped", 0)

    assert container.delete() == (0, "", "")
    gone = runtime("state", container.id)
    assert gone.rc == 1
    assert "does not exist" in gone.text
    assert gone.out == ""


def test_a_zombie_is_stopped(runtime: Runtime, bundle: MakeBundle) -> None:
    """The shim asks before it has reaped."""
    container = runtime.start(bundle().args("true"))
    wait_until(lambda: ") Z " in container.proc("stat").read_text())
    assert container.state()["status"] == "stopped"
    killed = container.kill("KILL")
    assert killed.rc == 1
    assert "container not running" in killed.text
    assert container.delete() == (0, "", "")
    assert container.wait() == 0


def test_init_is_the_callers_child_and_alone(runtime: Runtime, bundle: MakeBundle, leaks: Leaks) -> None:
    """A shim (a child subreaper) waits for the pid it reads; a process left between would hide the exit code."""
    container = runtime.create(bundle().sh("exit 23"))
    assert int(container.proc("stat").read_text().rpartition(") ")[2].split()[1]) == os.getpid()
    assert leaks._children() - leaks.children == {container.pid}
    container.start()
    assert container.wait() == 23


def test_pid_file_is_the_bare_number_and_replaces_by_rename(runtime: Runtime, bundle: MakeBundle) -> None:
    pid_file = runtime.directory / "a.pid"
    pid_file.write_text("something older and longer\n")
    before = os.open(pid_file, os.O_RDONLY)
    try:
        container = runtime.create(bundle(), "--pid-file", str(pid_file))
        (container.files / "pid").write_text(pid_file.read_text())
        assert re.fullmatch(rb"[1-9][0-9]*", pid_file.read_bytes())
        assert container.state()["pid"] == int(pid_file.read_bytes())
        assert os.read(before, 100) == b"something older and longer\n", "the old file was written to, not replaced"
        assert [p.name for p in pid_file.parent.iterdir() if "pid" in p.name] == ["a.pid"]
    finally:
        os.close(before)


def test_relative_pid_file_is_of_the_callers_directory(runtime: Runtime, bundle: MakeBundle) -> None:
    here = runtime.directory / "here"
    here.mkdir()
    container = runtime.create(bundle(), "--pid-file", "x.pid", cwd=str(here))
    (container.files / "pid").write_text((here / "x.pid").read_text())
    assert container.state()["pid"] == container.pid


def test_a_pid_file_that_cannot_be_written_undoes_create(runtime: Runtime, bundle: MakeBundle) -> None:
    text = runtime.refused(bundle(), "--pid-file", "/nonexistent/directory/pid")
    assert "no such file or directory" in text


def test_id_in_use(runtime: Runtime, bundle: MakeBundle) -> None:
    container = runtime.create(bundle())
    second = runtime("create", "--bundle", str(container.bundle.directory), container.id)
    assert second.rc == 1
    assert "container with given ID already exists" in second.text
    assert container.state()["status"] == "created"


@pytest.mark.parametrize("bad", ["", ".", "..", "a/b", "a b", "ä", "a\n", "../x", "a@b"])
def test_bad_ids_are_refused(runtime: Runtime, bundle: MakeBundle, bad: str) -> None:
    b = bundle()
    b.write()
    result = runtime("create", "--bundle", str(b.directory), bad)
    assert result.rc == 1
    assert ("invalid container ID format" if bad else "container id cannot be empty") in result.text
    assert not runtime.root.exists() or not [*runtime.root.iterdir()]


@pytest.mark.parametrize("good", ["a", "A.b-c_d+e", "0", "a..b", "x" * 200])
def test_good_ids_are_taken(runtime: Runtime, bundle: MakeBundle, good: str) -> None:
    runtime.ids.append(good)
    assert runtime.output(bundle().args("echo", "hi"), container_id=good) == "hi\n"


@pytest.mark.parametrize("command", ["state", "start", "kill", "delete"])
def test_unknown_container(runtime: Runtime, bundle: MakeBundle, command: str) -> None:
    result = runtime(command, "nosuchcontainer")
    assert result.rc == 1
    assert "container does not exist" in result.text


def test_delete_force_of_an_unknown_container_is_fine(runtime: Runtime) -> None:
    assert runtime("delete", "--force", "nosuchcontainer").rc == 0


@pytest.mark.parametrize("status", ["running", "stopped"])
def test_start_only_what_is_created(runtime: Runtime, bundle: MakeBundle, status: str) -> None:
    container = runtime.start(bundle().sh(FOREVER if status == "running" else "true"))
    if status == "stopped":
        container.wait()
    again = container.start()
    assert again.rc == 1
    texts = {
        "running": "cannot start an already running container",
        "stopped": "cannot start a container that has stopped",
    }
    assert texts[status] in again.text
    assert container.state()["status"] == status


def test_start_while_it_is_created(runtime: Runtime, bundle: MakeBundle, tmp_path: Path) -> None:
    """A client that waits for any state at all calls start too early, and must not hear that the container runs."""
    b = bundle().sh(FOREVER)
    out = tmp_path / "start"
    script = f"{runtime.path} --root {runtime.root} start early >{out} 2>&1; echo $? >>{out}"
    b.config["hooks"] = {"createRuntime": [{"path": "/bin/sh", "args": ["sh", "-c", script]}]}
    runtime.ids.append("early")
    container = runtime.create(b, container_id="early")
    assert out.read_text().endswith("1\n")
    assert container.state()["status"] == "created"
    if runtime.name.startswith("gpurun"):
        assert "cannot start a container that is still being created" in out.read_text()
    assert container.start().rc == 0


def test_delete_refuses_what_runs(runtime: Runtime, bundle: MakeBundle) -> None:
    container = runtime.start(bundle().sh(FOREVER))
    container.wait_for("up")
    result = container.delete()
    assert result.rc == 1
    assert f"cannot delete container {container.id} that is not stopped: running" in result.text
    assert container.state()["status"] == "running"


def test_delete_of_a_created_container_ends_it(runtime: Runtime, bundle: MakeBundle) -> None:
    container = runtime.create(bundle().sh("echo must not run"))
    assert container.delete() == (0, "", "")
    assert container.wait() == 137
    assert container.out == ""


def test_delete_force_kills(runtime: Runtime, bundle: MakeBundle) -> None:
    container = runtime.start(bundle().sh("trap '' TERM INT; echo up; while :; do sleep 0.01; done"))
    container.wait_for("up")
    assert container.delete("--force").rc == 0
    assert container.wait() == 137


@pytest.mark.parametrize("name", ["TERM", "SIGTERM", "term", "sigterm", "15"])
def test_names_of_a_signal(runtime: Runtime, bundle: MakeBundle, name: str) -> None:
    container = runtime.start(bundle().sh("trap 'exit 66' TERM; echo up; while :; do sleep 0.01; done"))
    container.wait_for("up")
    assert container.kill(name).rc == 0
    assert container.wait() == 66


def test_the_default_signal_is_term(runtime: Runtime, bundle: MakeBundle) -> None:
    container = runtime.start(bundle().sh("trap 'exit 66' TERM; echo up; while :; do sleep 0.01; done"))
    container.wait_for("up")
    assert container.kill().rc == 0
    assert container.wait() == 66


def test_real_time_signals_by_number(runtime: Runtime, bundle: MakeBundle) -> None:
    container = runtime.start(bundle().sh("trap 'exit 67' 36; echo up; while :; do sleep 0.01; done"))
    container.wait_for("up")
    assert container.kill("36").rc == 0
    assert container.wait() == 67


@pytest.mark.parametrize("bad", ["NOSUCH", "SIGNOSUCH", "TERM "])
def test_unknown_signals(runtime: Runtime, bundle: MakeBundle, bad: str) -> None:
    container = runtime.start(bundle().sh(FOREVER))
    result = container.kill(bad)
    assert result.rc == 1
    assert f'unknown signal "{bad}"' in result.text
    assert container.state()["status"] == "running"


def test_signal_zero_only_asks(runtime: Runtime, bundle: MakeBundle) -> None:
    container = runtime.start(bundle().sh(FOREVER))
    assert container.kill("0").rc == 0
    assert container.state()["status"] == "running"


def test_kill_of_a_created_container(runtime: Runtime, bundle: MakeBundle) -> None:
    container = runtime.create(bundle().sh("echo must not run"))
    assert container.kill("KILL").rc == 0
    assert container.wait() == 137
    assert container.state()["status"] == "stopped"
    assert "cannot start a container that has stopped" in container.start().text


@pytest.mark.parametrize("name", ["TERM", "INT", "HUP", "QUIT", "37"])
def test_a_signal_that_ends_a_created_container(runtime: Runtime, bundle: MakeBundle, name: str) -> None:
    """The kernel shields the first process of a pid namespace; CRI-O would wait until its patience ends, then kill."""
    if runtime.name == "runc" and name in ("QUIT", "37"):
        pytest.skip("Go writes its stacks, and passes over real-time signals")
    container = runtime.create(bundle().sh("echo must not run"))
    assert container.kill(name) == (0, "", "")
    assert container.wait() != 0
    assert container.state()["status"] == "stopped"
    assert (container.out, container.err) == ("", "")


@pytest.mark.gpurun_only
def test_a_waiting_container_has_nothing_of_the_host_open(runtime: Runtime, bundle: MakeBundle) -> None:
    """Who may look into it could open what it has open, for writing: its own program and the host's files among it."""
    container = runtime.create(bundle())
    seen = {os.readlink(fd) for fd in container.proc("fd").iterdir()}
    streams = {str(container.files / "out"), str(container.files / "err"), "/dev/null"}
    assert seen == streams | {str(runtime.root / container.id / "exec.fifo")}


def test_kill_of_a_stopped_container(runtime: Runtime, bundle: MakeBundle) -> None:
    container = runtime.start(bundle().args("true"))
    container.wait()
    result = container.kill("KILL")
    assert result.rc == 1
    assert "container not running" in result.text
    assert runtime("kill", "--all", container.id, "9").rc == 0, "the shim sends this after every end"


@pytest.mark.gpurun_only
def test_kill_of_a_container_that_ends_just_then(runtime: Runtime, bundle: MakeBundle, tmp_path: Path) -> None:
    """The init ends after it was opened and before the signal is sent: as if it had ended before."""
    container = runtime.start(bundle().sh(FOREVER))
    container.wait_for("up")
    for words, rc in (((), 1), (("--all",), 0)):
        injection = Injection(tmp_path / "log", "pidfd_send_signal", "ESRCH")
        with injection as tracer:
            done = runtime("kill", *words, container.id, "TERM", tracer=tracer)
        assert injection.injected
        assert (done.rc, "container not running" in done.err, bool(done.text)) == (rc, bool(rc), bool(rc))


def test_kill_reaches_the_leftovers_without_a_pid_namespace(runtime: Runtime, bundle: MakeBundle) -> None:
    """In a shared pid namespace the kernel kills nobody when the first process ends: the runtime has to."""
    b = bundle().without_namespace("pid").sh("sleep 1000 & echo $!; exit 0")
    container = runtime.start(b)
    assert container.wait() == 0
    left = int(container.out)
    assert Path(f"/proc/{left}").exists()
    assert runtime("kill", "--all", container.id, "9").rc == 0
    assert os.waitpid(left, 0) == (left, 9)
    assert container.delete().rc == 0


@pytest.mark.not_on("runc 1.1", reason="leaves the cgroup behind")
def test_delete_kills_the_leftovers_without_a_pid_namespace(runtime: Runtime, bundle: MakeBundle) -> None:
    b = bundle().without_namespace("pid").sh("sleep 1000 & echo $!; exit 0")
    container = runtime.start(b)
    assert container.wait() == 0
    assert container.delete("--force").rc == 0
    assert os.waitpid(int(container.out), 0)[1] == 9


def test_list_of_containers(runtime: Runtime, bundle: MakeBundle) -> None:
    first, second = runtime.create(bundle()), runtime.start(bundle().sh(FOREVER))
    assert runtime("list", "--quiet").out.split() == sorted([first.id, second.id])
    table = runtime("list").out.splitlines()
    assert table[0].split() == ["ID", "PID", "STATUS", "BUNDLE", "CREATED", "OWNER"]
    rows = {line.split()[0]: line.split() for line in table[1:]}
    assert rows[first.id][1:4] == [str(first.pid), "created", str(first.bundle.directory)]
    assert rows[second.id][2] == "running"
    assert rows[second.id][5] == "root"


def test_log_file_has_the_error_as_one_json_record(runtime: Runtime, bundle: MakeBundle) -> None:
    """What containerd's shim shows to people is the last error record of this file."""
    log = runtime.directory / "log.json"
    b = bundle().args("nosuchcommand")
    container = runtime.create(b, check=False, globals_=["--log", str(log), "--log-format", "json"])
    assert container.result.rc == 1
    records = [json.loads(line) for line in log.read_text().splitlines()]
    errors = [r for r in records if r["level"] == "error"]
    assert "executable file not found in $PATH" in errors[-1]["msg"]
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?(Z|[+-]\d\d:\d\d)", errors[-1]["time"])
    assert "executable file not found in $PATH" in container.err
