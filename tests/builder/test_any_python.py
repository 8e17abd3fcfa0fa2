"""One file for every Python: compiled again where the bytecode is not for the one that is there, or one clear sentence."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from gpurun import __version__
from gpurun.builder.front import BASE, compile_front, compiler, join
from gpurun.builder.launcher import PACKAGE, assemble, real_interpreter

pytestmark = [pytest.mark.native, pytest.mark.skipif(os.geteuid() != 0, reason="mounts a cache of its own")]

SAID = f"gpurun version {__version__}\n"
#: Bytecode for a Python that is nowhere, so that each interpreter here is another one.
NOWHERE = "cpython-399"
CACHE = "/var/cache/gpurun"
#: Makes the directory ``$1`` all that there is of programs.
ALONE = 'mount --bind "$1" /usr/local/bin && mount --bind "$1" /usr/bin &&'


@pytest.fixture(scope="module")
def foreign(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """``pure`` and ``fast``, made for a Python that is not there."""
    made = tmp_path_factory.mktemp("foreign")
    (made / "pure").write_bytes(assemble(real_interpreter(), tag=NOWHERE))
    if compiler():
        program = compile_front(compiler(), ("-UPYTHON_MINOR", "-DPYTHON_MINOR=99"))
        (made / "fast").write_bytes(join(program, assemble(real_interpreter(), base=BASE, tag=NOWHERE)))
    for path in made.iterdir():
        path.chmod(0o755)
    return made


@pytest.fixture(params=["pure", "fast"])
def program(foreign: Path, request: pytest.FixtureRequest) -> Path:
    path: Path = foreign / request.param
    if not path.exists():
        pytest.skip("no C compiler")
    return path


@pytest.fixture(scope="module")
def kept(foreign: Path) -> str:
    """The name under which a launcher is kept for this Python."""
    return run(f'"$1" --version >/dev/null; ls {CACHE}', foreign / "pure").stdout.strip()


def run(script: str, *words: str | Path, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """The shell *script* where /var/cache is empty and nobody else's; *words* are its ``$1``, ``$2`` ..."""
    private = f"mount -t tmpfs none /var/cache && {script}"
    command = ["unshare", "-m", "--propagation", "private", "sh", "-c", private, "sh", *map(str, words)]
    given = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", **(env or {})}
    return subprocess.run(command, capture_output=True, text=True, timeout=120, env=given)


def test_compiled_once_for_the_python_that_is_here(program: Path) -> None:
    both = f'"$1" --version; stat -c "%a %u %z %i" {CACHE} {CACHE}/*'
    done = run(f"{both}; {both}", program)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.count(SAID) == 2
    kept = [line for line in done.stdout.splitlines() if line.startswith(("755 0 ", "644 0 "))]
    assert len(kept) == 4 and kept[:2] == kept[2:], "made by the first call, used by the second, written by nobody but root"


def test_it_is_the_program_that_was_called(program: Path, tmp_path: Path) -> None:
    """Compiled and kept under another name, it goes by the name it is called by, and links lead to it."""
    script = """ln -s "$1" "$2/nvidia-ctk"; for i in 1 2 3; do "$2/nvidia-ctk" --version; done
        "$1" install-names --force "$2\""""
    done = run(script, program, tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.count("NVIDIA Container Toolkit CLI version") == 3
    assert (tmp_path / "nvidia-container-cli").readlink() == program


@pytest.mark.sweep(2)
@pytest.mark.parametrize(
    ("name", "deed"),
    [
        ("pure", "chmod 666 $kept"),
        ("pure", "chown 1234 {CACHE}"),
        ("fast", "chmod 777 {CACHE}"),
        ("fast", "chown 1234 $kept"),
    ],
)
def test_what_others_may_write_is_not_executed(foreign: Path, kept: str, name: str, deed: str) -> None:
    """A kept launcher that is not root's, or lies where others may write, is as if it were not there."""
    if not (foreign / name).exists():
        pytest.skip("no C compiler")
    script = f"""mkdir {CACHE}; kept={CACHE}/{kept}; printf '#!/bin/sh -ISBcprint("kept")\\n# child: x\\n' >$kept
        {deed.format(CACHE=CACHE)}; "$1" --version"""
    done = run(script, foreign / name)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith(SAID)


def test_what_root_has_kept_is_executed(program: Path, kept: str) -> None:
    """The counterpart: without that the test above would show nothing."""
    script = f"""mkdir {CACHE}; printf '#!/bin/sh -ISBcprint("kept")\\n# child: x\\n' >{CACHE}/{kept}; "$1" state x"""
    assert run(script, program).stdout == "kept\n"


@pytest.mark.sweep(1)
def test_a_cache_that_cannot_be_written(program: Path) -> None:
    done = run('mount -o remount,ro /var/cache && "$1" --version', program)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith(SAID)


@pytest.mark.parametrize("form", ["json", "text"])
def test_without_a_python_it_says_so(foreign: Path, tmp_path: Path, form: str) -> None:
    if not (foreign / "fast").exists():
        pytest.skip("no C compiler")
    (tmp_path / "empty").mkdir()
    script = f'{ALONE} exec "$2" --root /r --log "$3" --log-format "$4" create x'
    done = run(script, tmp_path / "empty", foreign / "fast", tmp_path / "log", form)
    assert done.returncode == 1
    assert done.stderr.startswith("gpurun needs Python 3.11 or newer, and none is in ")
    logged = (tmp_path / "log").read_text()
    if form == "json":
        entry = json.loads(logged)
        assert (entry["level"], entry["msg"]) == ("error", done.stderr.strip())
    else:
        assert f'level=error msg="{done.stderr.strip()}"' in logged


def test_an_older_python_says_so(tmp_path: Path) -> None:
    """An old interpreter is played by this one, alone in /usr/bin."""
    package = shutil.copytree(PACKAGE, tmp_path / "gpurun", ignore=shutil.ignore_patterns("__pycache__"))
    text = package / "builder/any_python.py"
    text.write_text(text.read_text().replace("def main():\n", "def main():\n    sys.version_info = (3, 9)\n"))
    program = tmp_path / "program"
    program.write_bytes(assemble(real_interpreter(), package=package, tag=NOWHERE))
    (tmp_path / "bin").mkdir()
    shutil.copy(os.path.realpath(real_interpreter()), tmp_path / "bin/python3")
    script = f'{ALONE} exec python3 -ISBc "$2" "$3" --log "$4" create x'
    code = program.read_bytes().split(b"\n")[0].decode().partition(" -ISBc")[2]
    done = run(script, tmp_path / "bin", code, program, tmp_path / "log")
    assert done.returncode == 1
    said = "gpurun needs Python 3.11 or newer, and /usr/bin/python3 is cpython 3.9: install a newer one in /usr/bin"
    assert done.stderr == f"{said}\n"
    assert f'level=error msg="{said}"' in (tmp_path / "log").read_text()


@pytest.mark.sweep(1)
def test_an_interpreter_with_a_wrong_name_is_tried_once(program: Path) -> None:
    """What is called as the bytecode's interpreter, and is another one, is no circle."""
    script = 'mount -t tmpfs none /usr/local/bin && ln -s "$2" /usr/local/bin/python3.99 && "$1" --version'
    done = run(script, program, os.path.realpath(real_interpreter()))
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith(SAID)
