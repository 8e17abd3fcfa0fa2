"""The whole program as a process: exit codes, what goes to stdout, stderr and the log, and that no traceback ever shows."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from datetime import datetime
from pathlib import Path

import pytest

from gpurun import __version__
from gpurun.__main__ import main
from gpurun.cli.rows import command
from gpurun.cli.table import COMMANDS
from gpurun.cli.topics import BELOW

SOURCE = Path(__file__).resolve().parents[2] / "src"


def gpurun(*args: str, env: dict[str, str] | None = None, script: str = "") -> subprocess.CompletedProcess[str]:
    """Run gpurun from the source tree; *script* is Python to run before it."""
    code = f"import sys\nsys.path.insert(0, {str(SOURCE)!r})\nfrom gpurun.__main__ import main\n{script}\nsys.exit(main())"
    environ = {"PATH": os.environ["PATH"], **(env or {})}
    return subprocess.run([sys.executable, "-c", code, *args], capture_output=True, text=True, env=environ, timeout=60)


FAIL = "import gpurun.__main__ as m\nfrom gpurun.errors import *\ndef fail(_): raise {}\nm.handler = lambda name: fail\n"


def test_version_is_what_clients_parse() -> None:
    done = gpurun("--version")
    lines = done.stdout.splitlines()
    assert done.returncode == 0
    assert lines[0] == f"gpurun version {__version__}"
    assert [line for line in lines if "version" in line] == lines[:1], "dockerd takes the last line with the word"
    assert any(line.startswith("spec: 1.") for line in lines)
    assert done.stderr == ""


def test_json_log_and_bare_stderr(tmp_path: Path) -> None:
    log = tmp_path / "log.json"
    args = ("--root", str(tmp_path), "--log", str(log), "--log-format", "json", "state", "x")
    for _ in range(2):
        done = gpurun(*args, script=FAIL.format("ContainerNotFound()"))
        assert (done.returncode, done.stdout, done.stderr) == (1, "", "container does not exist\n")
    records = [json.loads(line) for line in log.read_text().splitlines()]
    assert [(r["level"], r["msg"]) for r in records] == [("error", "container does not exist")] * 2
    assert datetime.fromisoformat(records[0]["time"]).tzinfo is not None
    assert log.stat().st_mode & 0o777 == 0o644


def test_text_log(tmp_path: Path) -> None:
    log = tmp_path / "log"
    done = gpurun("--log", str(log), "state", "x", script=FAIL.format(r"""GpurunError('a "b"\n\x1b[31m \udcff é')"""))
    assert done.stderr.startswith('a "b"')
    assert log.read_text().endswith('level=error msg="a \\"b\\"\\n\\x1b[31m \\xff é"\n')
    assert log.read_text().startswith('time="2')


def test_stderr_without_log() -> None:
    done = gpurun("state", "x", script=FAIL.format('GpurunError("no")'))
    assert done.returncode == 1
    assert done.stderr.startswith('time="')
    assert done.stderr.endswith('level=error msg="no"\n')
    done = gpurun("--log-format", "json", "state", "x", script=FAIL.format('GpurunError("no")'))
    assert json.loads(done.stderr)["msg"] == "no"


@pytest.mark.parametrize(
    ("error", "said"),
    [
        ('OSError(2, "x", "/a/b")', "/a/b: no such file or directory"),
        ("MemoryError()", "run gpurun: cannot allocate memory"),
        ('TypeError("oops")', "internal error in gpurun: TypeError: oops; --debug logs where"),
        ('RecursionError("deep")', "internal error in gpurun: RecursionError: deep; --debug logs where"),
    ],
)
def test_any_exception_is_one_sentence(error: str, said: str, tmp_path: Path) -> None:
    log = tmp_path / "log"
    done = gpurun("--log", str(log), "state", "x", script=FAIL.format(error))
    assert (done.returncode, done.stderr) == (1, said + "\n")


def test_debug_logs_where(tmp_path: Path) -> None:
    log = tmp_path / "log"
    done = gpurun("--debug", "--log", str(log), "--log-format=json", "state", "x", script=FAIL.format('TypeError("oops")'))
    assert done.stderr == "internal error in gpurun: TypeError: oops\n"
    command, first, last = (json.loads(line) for line in log.read_text().splitlines())
    assert command["msg"].startswith("state x ")
    assert first["level"] == "debug"
    assert "__main__.py" in first["msg"]
    assert last["level"] == "error"


def test_warnings_wait_in_a_json_log(tmp_path: Path) -> None:
    """Podman reads the file as one object: a warning must not stand before an error, and is kept when there is none.

    That is so as well when `run` returns the code of a container that has failed.
    """
    script = "import gpurun.__main__ as m\nfrom gpurun import log\nfrom gpurun.errors import *\ndef warn(_):\n"
    script += " log.warning('careful')\n{}\nm.handler = lambda name: warn\n"
    good, bad = tmp_path / "good", tmp_path / "bad"
    for code in (0, 137):
        returns = script.format(f" return {code}")
        assert gpurun("--log", str(good), "--log-format=json", "state", "x", script=returns).returncode == code
        assert json.loads(good.read_text())["level"] == "warning"
        good.unlink()
    assert (
        gpurun("--log", str(bad), "--log-format=json", "state", "x", script=script.format(" raise NotRunning")).returncode
        == 1
    )
    assert json.loads(bad.read_text())["msg"] == "container not running"


def test_a_log_that_cannot_be_opened(tmp_path: Path) -> None:
    done = gpurun("--log", str(tmp_path / "no/log"), "--version")
    assert done.returncode == 1
    assert "cannot open the log file" in done.stderr and "no such file or directory" in done.stderr


def test_usage_error_shows_help_and_reaches_the_log(tmp_path: Path) -> None:
    log = tmp_path / "log"
    done = gpurun("--log", str(log), "--log-format=json", "create")
    message = 'gpurun: "create" requires exactly 1 argument(s)'
    assert done.returncode == 1
    assert done.stdout.startswith(f"Incorrect Usage: {message}")
    assert "--bundle" in done.stdout
    assert done.stderr == message + "\n"
    assert json.loads(log.read_text())["msg"] == message


def test_unknown_command_suggests() -> None:
    done = gpurun("creat", "x")
    assert done.returncode == 3
    assert "No help topic for 'creat'" in done.stderr and "create" in done.stderr.replace("'creat'", "")


def test_help_shows_every_visible_option() -> None:
    overall = gpurun().stdout
    for name in COMMANDS:
        assert f"\n  {name} " in overall
        row = command(name)
        # of a command with others below it, the help of each of them; which has which option: test_help.py
        topics = [(name, below) for below in BELOW[name]] if name in BELOW else [(name,)]
        text = "".join([gpurun("help", *topic).stdout for topic in topics])
        for option in row.options:
            assert (f"--{option.name}" in text) is option.visible, f"{name} --{option.name}"


def test_completion() -> None:
    env = {"_GPURUN_COMPLETE": "bash_complete", "COMP_WORDS": "gpurun fea", "COMP_CWORD": "1"}
    assert "features" in gpurun(env=env).stdout


def test_no_libraries_for_people_on_errors_of_machines() -> None:
    script = FAIL.format("ContainerNotFound()") + "import atexit\natexit.register(lambda: print('click' in sys.modules))"
    assert gpurun("state", "x", script=script).stdout == "False\n"


@pytest.mark.parametrize("name", ["nvidia-container-runtime-hook", "/usr/bin/nvidia-container-runtime-hook"])
def test_hook_by_name(name: str) -> None:
    assert gpurun("-version", script=f"sys.argv[0] = {name!r}").stdout.startswith("NVIDIA Container Runtime Hook version")


@pytest.mark.parametrize("words", [["state", "nobody"], ["explain", "--running", "nobody"]])
def test_a_container_that_is_nowhere(capfd: pytest.CaptureFixture[str], words: list[str]) -> None:
    """Whichever argument names it: people, who give no --root, are told where it was looked for."""
    assert main(["gpurun", *words]) == 1
    assert 'container does not exist: there is no "nobody" in ' in capfd.readouterr().err.replace("\\", "")


def test_a_cdi_file_that_is_to_be_moved_and_is_not_there() -> None:
    assert "--from is missing" in gpurun("cdi", "transform", "root").stderr
    done = gpurun("cdi", "transform", "root", "--from", "/a", "--to", "/b")
    assert done.returncode == 1 and "stdin: is empty: give a CDI file there, or name one with --input" in done.stderr
