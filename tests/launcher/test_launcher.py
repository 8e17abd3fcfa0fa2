"""The launcher file works wherever and however it is started: no environment, any directory, hostile variables, symlinks."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from gpurun import __version__
from gpurun.builder.launcher import PACKAGE, assemble, read_sources, real_interpreter
from gpurun.launcher.fresh_interpreter import child_command

SAID = f"gpurun version {__version__}\n"


@pytest.fixture(scope="session")
def launcher(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("launcher") / "gpurun"
    path.write_bytes(assemble(real_interpreter(), commit="0123456789ab"))
    path.chmod(0o755)
    return path


def run(
    *command: str | Path,
    env: dict[str, str] | None = None,
    cwd: str | Path = "/",
    close: tuple[int, ...] = (),
    preexec: Callable[[], None] | None = None,
) -> subprocess.CompletedProcess[str]:
    def before() -> None:
        for fd in close:
            os.close(fd)
        if preexec:
            preexec()

    return subprocess.run(
        [str(c) for c in command], env=env or {}, cwd=cwd, capture_output=True, text=True, timeout=60, preexec_fn=before
    )


def test_empty_environment(launcher: Path) -> None:
    done = run(launcher, "--version")
    assert (done.returncode, done.stderr) == (0, "")
    name, commit, spec, *libraries = done.stdout.splitlines(keepends=True)
    assert (name, commit) == (SAID, "commit: 0123456789ab\n")
    assert spec.startswith("spec: ")
    assert all(line.startswith("libseccomp: ") for line in libraries)


def test_errors_and_exit_codes(launcher: Path, tmp_path: Path) -> None:
    done = run(launcher, "--log", tmp_path / "log", "--root", tmp_path / "none", "state", "x")
    assert (done.returncode, done.stdout, done.stderr) == (1, "", "container does not exist\n")


def test_people_get_help_and_completion(launcher: Path) -> None:
    assert "--bundle" in run(launcher, "create", "--help").stdout
    done = run(launcher, env={"_GPURUN_COMPLETE": "bash_complete", "COMP_WORDS": "gpurun del", "COMP_CWORD": "1"})
    assert "delete" in done.stdout


def test_usage_error(launcher: Path) -> None:
    done = run(launcher, "create")
    assert done.returncode == 1
    assert done.stdout.startswith("Incorrect Usage: ")


def test_symlink_copy_and_relative_path(launcher: Path, tmp_path: Path) -> None:
    link = tmp_path / "link" / "runtime"
    link.parent.mkdir()
    link.symlink_to(launcher)
    copy = tmp_path / "copy" / "gpurun"
    copy.parent.mkdir()
    copy.write_bytes(launcher.read_bytes())
    copy.chmod(0o755)
    assert run(link, "--version").stdout.startswith(SAID)
    assert run(copy, "--version").stdout.startswith(SAID)
    assert run("./gpurun", "--version", cwd=copy.parent).stdout.startswith(SAID)
    found = run("/usr/bin/env", "PATH=" + str(copy.parent), "gpurun", "--version")
    assert found.stdout.startswith(SAID)


def test_symlink_named_like_the_hook(launcher: Path, tmp_path: Path) -> None:
    link = tmp_path / "nvidia-container-runtime-hook"
    link.symlink_to(launcher)
    assert run(link, "-version").stdout.startswith("NVIDIA Container Runtime Hook")


def test_hostile_python_variables(launcher: Path, tmp_path: Path) -> None:
    """Neither the caller's environment nor its directory can put code into a program that runs as root."""
    for name in ("posix", "marshal", "gpurun", "sitecustomize", "usercustomize", "gc", "encodings", "json", "click", "os"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('hostile')")
    hostile = {
        "PYTHONPATH": str(tmp_path),
        "PYTHONHOME": str(tmp_path),
        "PYTHONSTARTUP": str(tmp_path / "os.py"),
        "PYTHONINSPECT": "1",
        "PYTHONVERBOSE": "1",
        "PYTHONOPTIMIZE": "0",
        "PYTHONWARNINGS": "error",
        "PYTHONIOENCODING": "utf-16",
        "PYTHONDONTWRITEBYTECODE": "",
        "PYTHONPLATLIBDIR": "/nowhere",
        "PYTHONBREAKPOINT": "posix.abort",
    }
    for arguments in (["--version"], ["create", "--help"], ["state", "x"]):
        calm = run(launcher, "--log", "/dev/null", "--root", tmp_path / "none", *arguments, cwd=tmp_path)
        done = run(launcher, "--log", "/dev/null", "--root", tmp_path / "none", *arguments, cwd=tmp_path, env=hostile)
        assert (done.returncode, done.stdout, done.stderr) == (calm.returncode, calm.stdout, calm.stderr)


@pytest.mark.parametrize("close", [(0,), (1,), (2,), (0, 1), (0, 1, 2)])
def test_closed_descriptors(launcher: Path, tmp_path: Path, close: tuple[int, ...]) -> None:
    """What is opened must not become stdin, stdout or stderr: the log would then hold what was meant for them."""
    log = tmp_path / "log"
    done = run(launcher, "--log", log, "--root", tmp_path / "none", "state", "x", close=close)
    assert done.returncode == 1
    assert done.stdout == ""
    assert log.read_text().count("container does not exist") == 1


@pytest.mark.parametrize("name", ["C", "POSIX", "C.UTF-8", "de_DE.ISO-8859-1", "nonsense"])
def test_any_locale(launcher: Path, tmp_path: Path, name: str) -> None:
    log = tmp_path / "protokoll-\u00fc\u4e16"
    run(launcher, "--log", log, "--root", tmp_path / "none", "state", "x", env={"LC_ALL": name, "LANG": name})
    assert "does not exist" in log.read_text()


def test_stdout_gone(launcher: Path) -> None:
    with open("/dev/full", "w") as full:
        done = subprocess.run([launcher, "features"], stdout=full, stderr=subprocess.PIPE, text=True, env={}, timeout=60)
    assert done.returncode == 1
    assert "cannot write to stdout: no space left on device" in done.stderr


CHILD_PROBE = """
from __future__ import annotations
import posix, sys
from gpurun.launcher.fresh_interpreter import child_command

def state(invocation):
    child = child_command("gpurun.commands.inspect:inside")
    posix.unlink(sys.argv[0])
    posix.set_inheritable(child.fd, True)
    posix.execve(child.executable, [*child.argv, *invocation.args], {})

def inside() -> int:
    from gpurun.oci.default_spec import default_spec
    kept = posix.get_inheritable(sys.gpurun_bundle.fd)
    said = (sys.argv, kept, sys.flags.isolated, sys.flags.no_site, len(default_spec()) > 0)
    posix.write(1, repr(said).encode())
    return 7
"""


def test_child_needs_only_the_descriptor(tmp_path: Path) -> None:
    """The engine's child finds its modules though no path leads to the file any more, and keeps the descriptor to itself."""
    package = shutil.copytree(PACKAGE, tmp_path / "gpurun", ignore=shutil.ignore_patterns("__pycache__"))
    (package / "commands/inspect.py").write_text(CHILD_PROBE)
    program = tmp_path / "program"
    program.write_bytes(assemble(real_interpreter(), sources=read_sources(package)))
    program.chmod(0o755)
    done = run(program, "state", "x")
    assert done.stderr == ""
    assert done.returncode == 7
    assert done.stdout == repr((["gpurun.commands.inspect:inside", "x"], False, 1, 1, True))
    assert not program.exists()


def test_child_from_source(tmp_path: Path) -> None:
    made = child_command("gpurun.errors:strerror_lower")
    assert made.fd is None
    assert made.argv[0] == made.executable
    done = run(*made.argv, "word", cwd=tmp_path)
    assert "strerror_lower() missing 1 required" in done.stderr, "the entry was called"


def test_debug_says_where_without_lines(tmp_path: Path) -> None:
    """The bytecode has no line table; --debug names the functions and instructions all the same."""
    package = shutil.copytree(PACKAGE, tmp_path / "gpurun", ignore=shutil.ignore_patterns("__pycache__"))
    (package / "commands/inspect.py").write_text("\n\ndef state(invocation):\n    return 1 / 0\n")
    program = tmp_path / "program"
    program.write_bytes(assemble(real_interpreter(), sources=read_sources(package)))
    program.chmod(0o755)
    done = run(program, "--debug", "state", "x")
    assert done.returncode == 1
    assert "internal error in gpurun: ZeroDivisionError: division by zero" in done.stderr
    assert "gpurun/commands/inspect.py:3+" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_program_that_cannot_be_read_to_its_end(launcher: Path, tmp_path: Path) -> None:
    """A damaged disk, an installation that was interrupted: a sentence, no traceback."""
    whole = launcher.read_bytes()
    cut = tmp_path / "gpurun"
    for size in (60_000, len(whole) // 8):
        cut.write_bytes(whole[:size])
        cut.chmod(0o755)
        done = subprocess.run([cut, "state", "x"], capture_output=True, text=True, timeout=60)
        assert done.returncode == 1 and done.stderr.count("\n") == 1
        assert done.stderr.startswith("gpurun cannot read its own program: ")
