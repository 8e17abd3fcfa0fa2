"""The interpreter that the compiled front seals for create, run and exec, and what becomes of the environment there."""

from __future__ import annotations

import ast
import ctypes
import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpurun.builder.front import BASE, compile_front, compiler, join
from gpurun.builder.launcher import PACKAGE, assemble, read_sources, real_interpreter
from tests.launcher.front import run

pytestmark = pytest.mark.skipif(not compiler(), reason="there is no C compiler here")


PROBE = """
from __future__ import annotations
import os
import posix
from gpurun.engine.caller.preserved import preserved_fds
from gpurun.launcher import sealed
def create(invocation):
    own = sorted(name.decode() for name in posix.environ)
    program = posix.readlink("/proc/self/exe")
    handed = preserved_fds(invocation.number("preserve-fds"))
    everything = sorted(name.decode() for name in sealed.all_variables())
    sealed.drop_the_rest()
    said = (sealed.is_sealed(), program, own, everything, sorted(name.decode() for name in sealed.all_variables()), handed)
    said += (os.statvfs("/proc/self/exe").f_flag & os.ST_RDONLY,)
    posix.write(1, repr(said).encode() + bytes([10]))
    return 0
"""


@pytest.fixture
def orphans() -> Iterator[None]:
    """Fails the test when it leaves a process to us, be it a child of ours or of a child that has ended."""
    libc = ctypes.CDLL(None)
    was = ctypes.c_int()
    libc.prctl(37, ctypes.byref(was), 0, 0, 0)  # PR_GET_CHILD_SUBREAPER
    before = _children()
    libc.prctl(36, 1, 0, 0, 0)  # PR_SET_CHILD_SUBREAPER
    yield
    left = _children() - before
    libc.prctl(36, was.value, 0, 0, 0)  # other suites of this process may be one
    assert not left


def _children() -> set[int]:
    return {int(pid) for pid in Path("/proc/thread-self/children").read_text().split()}


needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="the front seals an interpreter only where it may make mounts")


@pytest.fixture
def probe(tmp_path: Path) -> Path:
    """A program whose create says how it was started."""
    package = shutil.copytree(PACKAGE, tmp_path / "gpurun", ignore=shutil.ignore_patterns("__pycache__"))
    (package / "commands/lifecycle.py").write_text(PROBE)
    program = tmp_path / "program"
    program.write_bytes(
        join(compile_front(compiler()), assemble(real_interpreter(), sources=read_sources(package), base=BASE))
    )
    program.chmod(0o755)
    return program


@needs_root
def test_create_is_sealed_and_has_the_environment_elsewhere(probe: Path, orphans: None) -> None:
    """Nothing can be written by /proc/PID/exe, and the process has those variables alone that gpurun reads."""
    env = {"HOME": "/root", "TOKEN": "secret", "GPURUN_SYSROOT": "/nowhere", "PYTHONPATH": "/nowhere", "EMPTY": ""}
    env["PYTHONEXECUTABLE"] = "/nowhere/bin/python3"
    done = run(probe, "create", "--preserve-fds", "1000", "x", env=env)
    assert (done.returncode, done.stderr) == (0, "")
    own = ["GPURUN_SYSROOT", "HOME"]
    said = (True, "/", own, ["EMPTY", *own, "PYTHONPATH", "TOKEN"], own, (), os.ST_RDONLY)
    assert ast.literal_eval(done.stdout) == said


@needs_root
def test_no_environment_at_all(probe: Path) -> None:
    done = run(probe, "create", "x")
    assert ast.literal_eval(done.stdout)[2:5] == ([], [], [])


@needs_root
@pytest.mark.parametrize(
    "words",
    [
        ["create", "--bundle", "/nowhere", "x"],
        ["create", "--nonsense", "x"],
        ["create"],
        ["create", "--help"],
        ["run", "--bundle", "/nowhere", "x"],
        ["exec", "missing", "true"],
        ["exec", "--process", "/nowhere", "missing"],
        ["exec", "--preserve-fds", "1", "missing", "true"],
    ],
)
def test_refused_commands_leave_no_process(places: Path, tmp_path: Path, orphans: None, words: list[str]) -> None:
    store_words = ["--log", str(tmp_path / "log"), "--root", str(tmp_path / "none"), *words]
    whole, pure = [run(places / name, *store_words) for name in ("whole", "pure")]
    assert (whole.returncode, whole.stdout, whole.stderr) == (pure.returncode, pure.stdout, pure.stderr)
    assert "Traceback" not in whole.stderr


@needs_root
def test_an_8_bit_locale(places: Path, tmp_path: Path, orphans: None) -> None:
    env = {"LC_ALL": "de_DE.ISO-8859-1", "LANG": "de_DE.ISO-8859-1"}
    done = run(places / "whole", "--root", tmp_path / "none", "exec", "missing", "true", env=env)
    assert done.returncode == 255
    assert "container does not exist" in done.stderr


def test_no_variable_leads_to_another_standard_library(places: Path, tmp_path: Path) -> None:
    """PYTHONEXECUTABLE does, in spite of -I: the front takes it away before there is an interpreter."""
    version = f"python3.{sys.version_info.minor}"
    encodings = tmp_path / "lib" / version / "encodings"
    encodings.mkdir(parents=True)
    (encodings / "__init__.py").write_text("import posix; posix.write(2, b'hostile'); posix._exit(9)")
    (encodings.parent / "os.py").write_text("")
    (tmp_path / "bin").mkdir()
    (tmp_path / "pyvenv.cfg").write_text(f"home = {tmp_path}/bin\n")
    env = {"PYTHONEXECUTABLE": f"{tmp_path}/bin/{version}"}
    assert "hostile" in run(places / "pure", "--version", env=env).stderr, "an interpreter does follow it"
    done = run(places / "whole", "--version", env=env)
    assert (done.returncode, done.stderr) == (0, "")
