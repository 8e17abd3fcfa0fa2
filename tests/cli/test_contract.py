"""What runc's clients read of a runtime's words, codes and files: each case names the client that it is for.

The texts are what the clients look for in their sources; `RUNTIME` runs the same cases on runc.
"""

from __future__ import annotations

import json
import os
import re
import socket
import stat
from pathlib import Path

import pytest

from gpurun import logsocket
from tests.conftest import MakeBundle
from tests.native.runtime import Result, Runtime

pytestmark = pytest.mark.native

SHIM = "containerd-shim-runc-v2"


def shims_log(result: Result, log: Path) -> str:
    """What containerd's shim makes of a failure: the message of the last record of level ``error`` in the log."""
    records = [json.loads(line) for line in log.read_text().splitlines()]
    assert all(re.search(r"(Z|[+-]\d\d:\d\d)$", record["time"]) for record in records), "Go needs a zone in RFC 3339"
    errors = [record["msg"] for record in records if record["level"] == "error"]
    assert errors, f"{SHIM} would say: unable to retrieve OCI runtime error: {result}"
    return str(errors[-1])


def moby_code(text: str) -> int:
    """The exit code that dockerd gives to a container that could not start, from the runtime's text; in its order."""
    low = text.lower()
    if "permission denied" in low or "is a directory" in low:
        return 126
    missing = ("executable file not found", "no such file or directory", "system cannot find the file specified")
    return 127 if "not a directory" in low or any(word in low for word in missing) else 128


def podman_code(text: str) -> int:
    """Podman's, from oci-log or stderr."""
    low = text.lower()
    if "permission denied" in low or "operation not permitted" in low:
        return 126
    return 127 if re.search("executable file not found in|no such file or directory|open executable", low) else 125


@pytest.mark.parametrize(
    ("args", "code"), [(["nope"], 127), (["/nope"], 127), (["/etc/passwd"], 126), (["/etc"], 126)], ids=lambda v: str(v)
)
def test_a_program_that_cannot_be_run(runtime: Runtime, bundle: MakeBundle, args: list[str], code: int) -> None:
    """dockerd and Podman tell 126 from 127 by the text; at create, for start is too late (R7)."""
    log = runtime.directory / "log.json"
    made = runtime.create(bundle().args(*args), globals_=("--log", str(log), "--log-format", "json"), check=False)
    assert made.result.rc == 1
    said = shims_log(made.result, log)
    assert moby_code(said) == code, said
    if args != ["/etc"] or runtime.name.startswith("gpurun"):  # runc says "is a directory" alone, which Podman does not know
        assert podman_code(made.result.text) == code, made.result.text
    if runtime.name == "gpurun":  # runc adds a warning where there is no memory controller
        assert len(log.read_text().splitlines()) == 1, "Podman reads the whole file as one object"


@pytest.mark.parametrize(("args", "code"), [(["nope"], 127), (["/etc/passwd"], 126), (["/etc"], 126)], ids=lambda v: str(v))
def test_exec_of_a_program_that_cannot_be_run(runtime: Runtime, bundle: MakeBundle, args: list[str], code: int) -> None:
    """conmon and the shim: exit code 255, and no pid file, or it would be the command's own status."""
    container = runtime.start(bundle().sh("sleep 1000"))
    pid_file = runtime.directory / "exec.pid"
    done = runtime("exec", "--pid-file", str(pid_file), "--detach", container.id, *args)
    assert done.rc == 255 and moby_code(done.text) == code, done
    if args != ["/etc"] or runtime.name.startswith("gpurun"):
        assert podman_code(done.text) == code, done
    assert not pid_file.exists()


@pytest.mark.parametrize(
    "command", ["state", "kill", "delete", "start", "pause", "resume", "ps", "exec", "update", "events"]
)
def test_no_such_container(runtime: Runtime, command: str) -> None:
    """The shim (NotFound; delete: success), CRI-O and moby look for `does not exist`, with case."""
    more = ["true"] if command == "exec" else []
    done = runtime(command, "nowhere", *more)
    assert done.rc == (255 if command == "exec" else 1)
    assert "does not exist" in done.err


def test_kill_of_one_that_has_ended(runtime: Runtime, bundle: MakeBundle) -> None:
    """The shim's checkKillError and CRI-O's runtimeCmd look for `container not running`; with --all it is no error."""
    container = runtime.start(bundle())
    container.wait()
    for signal in ("9", "TERM", "sigterm", "0"):
        done = container.kill(signal)
        assert done.rc == 1 and "container not running" in done.err
    assert runtime("kill", "--all", container.id, "9").rc == 0


@pytest.mark.gpurun_only
def test_a_signal_that_comes_too_late_is_no_record_of_an_error(runtime: Runtime, bundle: MakeBundle, tmp_path: Path) -> None:
    """Podman shows its users what we say; its system tests take any `level=error` there for a defect."""
    container = runtime.start(bundle())
    container.wait()
    assert container.kill("INT").err == "container not running\n"
    log = tmp_path / "log"
    done = runtime("kill", container.id, "INT", globals_=("--log", str(log)))
    assert (done.rc, done.err) == (1, "container not running\n")
    assert 'level=error msg="container not running"' in log.read_text()
    done = runtime("kill", container.id, "INT", globals_=("--log-format", "json"))
    assert json.loads(done.err)["level"] == "error"
    assert "level=error" in runtime("kill", "nowhere", "INT").err


def test_delete_force_of_nothing(runtime: Runtime) -> None:
    """The shim, Podman and CRI-O clean up with it."""
    assert runtime("delete", "--force", "nowhere") == (0, "", "")


def test_pid_file(runtime: Runtime, bundle: MakeBundle) -> None:
    """go-runc's Atoi and conmon-rs' parse fail on a newline; a stale file is replaced by rename."""
    stale = runtime.directory / "pid"
    stale.write_text("1")
    before = stale.stat().st_ino
    container = runtime.create(bundle().sh("sleep 1000"), "--pid-file", str(stale))
    assert stale.read_bytes() == str(container.state()["pid"]).encode()
    assert stale.stat().st_ino != before


def test_only_a_runtime_dir_in_the_environment(runtime: Runtime, bundle: MakeBundle) -> None:
    """Podman calls kill, delete, pause, resume with XDG_RUNTIME_DIR alone."""
    env = {"XDG_RUNTIME_DIR": "/run/user/0"}
    container = runtime.start(bundle().sh("sleep 1000"))
    for command in (("pause", container.id), ("resume", container.id), ("kill", container.id, "9")):
        assert runtime(*command, env=env) == (0, "", ""), command
    container.wait()
    assert runtime("delete", container.id, env=env) == (0, "", "")


@pytest.mark.parametrize(
    "env", [{}, {"PATH": ""}, {"LANG": "de_DE.UTF-8", "PYTHONPATH": "/nonexistent", "HOME": "/"}], ids=str
)
def test_hardly_any_environment(runtime: Runtime, bundle: MakeBundle, env: dict[str, str]) -> None:
    done = runtime.run(bundle().sh("echo up"), env=env)
    assert (done.rc, done.out) == (0, "up\n"), done


def test_argument_forms(runtime: Runtime, bundle: MakeBundle) -> None:
    """go-runc sends `-no-subreaper` with one dash and --flag=value; conmon-rs repeats global options."""
    repeated = ("--root", "/nonexistent", f"--root={runtime.root}", "-root", str(runtime.root))
    container = runtime.create(bundle().sh("sleep 1000"), "-no-new-keyring=false", globals_=repeated)
    assert runtime("start", container.id, globals_=repeated).rc == 0
    more = ("--cwd=/tmp", "--env=A=1,2", "--env", "B=-x")
    done = runtime("exec", *more, container.id, "sh", "-c", 'echo "$PWD $A $B"; exit 3')
    assert (done.rc, done.out) == (3, "/tmp 1,2 -x\n"), "no splitting at commas; what follows the id is the command's"
    assert runtime("kill", container.id, "9").rc == 0


@pytest.mark.gpurun_only
def test_two_forms_of_an_option_in_one_line(runtime: Runtime, bundle: MakeBundle) -> None:
    """runc refuses it ("Cannot use two forms of the same flag"), so no client sends it; people do."""
    container = runtime.start(bundle().sh("sleep 1000"))
    assert runtime("exec", "-e", "A=1", "--env=B=2", container.id, "sh", "-c", "echo $A $B").out == "1 2\n"


def test_ps_prints_json_and_nothing_else(runtime: Runtime, bundle: MakeBundle) -> None:
    """The shim parses stdout and stderr of `ps --format json` together."""
    container = runtime.start(bundle().sh("sleep 1000"))
    done = runtime("ps", "--format", "json", container.id)
    assert container.pid in json.loads(done.out + done.err)


def test_features_and_version(runtime: Runtime) -> None:
    """CRI-O decodes stdout and stderr of `features` together; go-runc, moby and Podman read --version."""
    done = runtime("features")
    document = json.loads(done.out + done.err)
    assert document["ociVersionMin"] and document["ociVersionMax"], "CRI-O refuses a document without"
    assert "rro" in document["mountOptions"] and document["linux"]["mountExtensions"]["idmap"]["enabled"]
    lines = runtime("--version").out.splitlines()
    assert lines[0].startswith(f"{runtime.name} version ") and sum("version" in line for line in lines) == 1
    assert any(re.fullmatch(r"spec: 1\.\d+\.\d+", line) for line in lines)
    assert any(re.fullmatch(r"libseccomp: \d+\.\d+\.\d+", line) for line in lines)


def test_state_is_what_cri_o_decodes(runtime: Runtime, bundle: MakeBundle) -> None:
    b = bundle().sh("sleep 1000")
    b.config["annotations"] = {"a.b": "c"}
    container = runtime.create(b)
    state = container.state()
    assert state["status"] == "created" and state["pid"] == container.pid and state["annotations"] == {"a.b": "c"}
    assert state["bundle"] == str(b.directory) and re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z", state["created"])
    container.start()
    container.kill("9")
    container.wait()
    assert container.state()["status"] == "stopped" and container.state()["pid"] == 0


@pytest.mark.gpurun_only
def test_the_state_root_in_a_runtime_dir_is_sticky(runtime: Runtime, bundle: MakeBundle) -> None:
    """systemd-tmpfiles removes what is old in $XDG_RUNTIME_DIR, but not what is sticky."""
    runtime.create(bundle().sh("sleep 1000"), env={"XDG_RUNTIME_DIR": str(runtime.directory)})
    assert stat.S_IMODE(runtime.root.stat().st_mode) == 0o1700


@pytest.mark.gpurun_only
def test_log_to_a_file_by_its_kind(runtime: Runtime) -> None:
    """crun's form."""
    log = runtime.directory / "log"
    assert runtime("state", "nowhere", globals_=("--log", f"file:{log}")).rc == 1
    assert "does not exist" in log.read_text()


@pytest.mark.gpurun_only
@pytest.mark.parametrize("kind", ["journald", "syslog"])
def test_log_to_a_daemon(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    """conmon-rs logs to journald:ID."""
    path = str(tmp_path / "s")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as s:
        s.bind(path)
        s.settimeout(10)
        monkeypatch.setitem(logsocket.SOCKETS, kind, path)
        logsocket.sender(kind, "me")("error", "two\nlines")
        sent = s.recv(4096)
    if kind == "journald":
        assert sent == b"PRIORITY=3\nSYSLOG_IDENTIFIER=me\nMESSAGE\n" + (9).to_bytes(8, "little") + b"two\nlines\n"
    else:
        assert sent == b"<27>me: two\nlines"


@pytest.mark.gpurun_only
@pytest.mark.parametrize("kind", ["journald", "syslog"])
def test_log_to_a_daemon_that_is_not_there(runtime: Runtime, kind: str) -> None:
    if os.path.exists(logsocket.SOCKETS[kind]):
        pytest.skip("it is there")
    done = runtime("state", "nowhere", globals_=("--log", f"{kind}:me"))
    assert done.rc == 1 and f"cannot log to {kind}" in done.err
