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
from gpurun.builder.launcher import PACKAGE, assemble, read_sources, real_interpreter

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


def test_root_of_a_user_namespace_keeps_it_as_a_user_does(program: Path, kept: str, tmp_path: Path) -> None:
    """As which Podman calls the runtime of a user: root's directory is not theirs there."""
    twice = f'for i in 1 2; do unshare -Ur "$1" --version | sed -n 1p; stat -c "%i %z" "$2/.cache/gpurun/{kept}"; done'
    done = run(
        f"chown 1 /var/cache; chmod 755 /var/cache; {twice}; ls -A /var/cache",
        program,
        tmp_path,
        env={"HOME": str(tmp_path)},
    )
    said, first, again, second = done.stdout.splitlines()
    assert (said + "\n", again + "\n", first, done.stderr) == (SAID, SAID, second, "")


@pytest.mark.parametrize("map_", ["", "r"])
def test_what_is_another_users_is_not_executed_in_a_user_namespace(
    foreign: Path, kept: str, tmp_path: Path, map_: str
) -> None:
    """Of an id that the namespace has no number for; without a map that is what our own id looks like as well."""
    script = f"""mkdir -p "$2/.cache/gpurun"; kept="$2/.cache/gpurun/{kept}"
        printf '#!/bin/sh -ISBcprint("kept")\\n# child: x\\n' >"$kept"; chmod 755 "$2" "$2/.cache" "$2/.cache/gpurun"
        for i in none "$kept" "$2/.cache/gpurun"; do
        test $i = none || chown 1 "$i"; unshare -U{map_} "$1" --version | sed -n 1p; done"""
    done = run(script, foreign / "pure", tmp_path, env={"HOME": str(tmp_path)})
    ours = "kept\n" if map_ else SAID
    assert (done.stdout, done.stderr) == (f"{ours}{SAID}{SAID}", "")


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
    program.write_bytes(assemble(real_interpreter(), sources=read_sources(package), tag=NOWHERE))
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


@pytest.mark.sweep(1)
def test_a_call_that_is_killed_while_it_compiles(program: Path, kept: str) -> None:
    """As by a caller's time-out: what it has begun is finished and kept all the same, and its streams end with it."""
    script = f"""mkdir {CACHE}; mkfifo {CACHE}/stream
        setsid "$1" --version >{CACHE}/stream 2>&1 & call=$!
        exec 8<{CACHE}/stream
        until child=$(cat /proc/$call/task/$call/children) && test "$child" -a "$(ps -o sid= -p $child)" -eq $child
        do test ! -e "$2" || exit 1; sleep 0.02; done
        kill -9 -$call; cat <&8; test ! -e "$2" || exit 2
        flock {CACHE}/.lock stat -c %i "$2"; "$1" --version | head -1; stat -c %i "$2"; ls -A {CACHE}"""
    done = run(script, program, f"{CACHE}/{kept}")
    before, said, after, *names = done.stdout.splitlines()
    assert f"{said}\n" == SAID and before == after and names == [".lock", kept, "stream"], done


def test_of_two_at_once_one_compiles(program: Path, kept: str) -> None:
    """The other waits for the lock, and then finds what is kept."""
    script = f"""mkdir {CACHE}; umask 077; exec 9>{CACHE}/.lock; flock 9
        "$1" --version 9>&- & call=$!
        until ls -l /proc/$call/fd 2>&1 | grep -q "{CACHE}/.lock"; do sleep 0.02; done
        umask 022; printf '#!/bin/sh -ISBcprint("kept")\\n# child: x\\n' >"$2".new; mv "$2".new "$2"; wait $call"""
    done = run(script, program, f"{CACHE}/{kept}")
    assert (done.stdout, done.stderr) == ("kept\n", "")


@pytest.mark.sweep(2)
@pytest.mark.parametrize(
    "deed",
    [
        "mount -t tmpfs -o size=64k none /var/cache",
        f"mkdir {CACHE} && mkfifo {CACHE}/.lock",
        f"mkdir {CACHE} && ln -s /etc/passwd {CACHE}/.lock",
        f"mkdir {CACHE} && touch {CACHE}/.lock && chown 1234 {CACHE}/.lock",
        f"mkdir -p {CACHE}/.$2.new",
    ],
    ids=["full", "fifo", "link", "another's", "directory"],
)
def test_a_cache_that_cannot_be_used(program: Path, kept: str, deed: str) -> None:
    """Then it is compiled in memory, and nothing is left there."""
    script = f'{deed} && "$1" --version | head -1 && rm -rf {CACHE}/.lock && ls -A {CACHE} | grep -v "^[.].*new$"'
    done = run(script, program, kept)
    assert (done.stdout, done.stderr) == (SAID, "")


@pytest.mark.sweep(1)
def test_no_directory_that_can_be_written(program: Path) -> None:
    script = """mount -t tmpfs none /mnt && cp "$1" /mnt/gpurun && cd /mnt && mount -o remount,ro /mnt
        for i in /var/cache /tmp /var/tmp /dev/shm; do mount -t tmpfs -o ro none $i; done
        ./gpurun --version | head -1; ./gpurun --root /run/gpurun-nowhere state x"""
    done = run(script, program)
    assert done.stdout == SAID and "container does not exist" in done.stderr, done


@pytest.mark.sweep(1)
def test_what_a_killed_compiler_has_left_is_written_over(program: Path, kept: str) -> None:
    script = f'mkdir {CACHE}; echo x >{CACHE}/.$2.new; "$1" --version | head -1; ls -A {CACHE}'
    assert run(script, program, kept).stdout == f"{SAID}.lock\n{kept}\n"


def test_sources_that_cannot_be_compiled(tmp_path: Path) -> None:
    sources = read_sources()
    sources["gpurun/builder/launcher.py"] = b"raise ValueError('broken')\n"
    program = tmp_path / "program"
    program.write_bytes(assemble(real_interpreter(), sources=sources, tag=NOWHERE))
    program.chmod(0o755)
    done = run('"$1" --log "$2" create x', program, tmp_path / "log")
    said = f"gpurun cannot be compiled for {real_interpreter()}: ValueError: broken"
    assert (done.returncode, done.stdout, done.stderr) == (1, "", f"{said}\n")
    assert f'level=error msg="{said}"' in (tmp_path / "log").read_text()
