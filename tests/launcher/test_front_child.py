"""The process that the compiled front starts for create, run and exec, before an interpreter could."""

from __future__ import annotations

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


CHILD_PROBE = """
from __future__ import annotations
import posix
import sys
import time
from gpurun.engine.caller.start_init import dismiss, start_child
from gpurun.engine.caller.preserved import preserved_fds
INIT_ENTRY = "gpurun.engine.inside.init:main"
def create(invocation):
    given = "gpurun-child" in sys._xoptions
    started = start_child(INIT_ENTRY, preserved_fds(invocation.number("preserve-fds")))
    words, end = [""], time.monotonic() + 60
    while words[:1] != ["gpurun init"] and time.monotonic() < end:  # an interpreter's at first, and none in execve
        words = open(f"/proc/{started.pid}/cmdline").read().split(chr(0))
    name = open(f"/proc/{started.pid}/comm").read().strip()
    said = (words[0], name, posix.readlink(f"/proc/{started.pid}/exe"), posix.get_inheritable(started.channel), given)
    dismiss(started)
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


needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="the front starts a child only where it may make mounts")


@needs_root
@pytest.mark.parametrize("options", [[], ["--preserve-fds", "0"]])
def test_the_launcher_uses_the_child_of_the_front(tmp_path: Path, orphans: None, options: list[str]) -> None:
    """With the option that hands descriptors down the launcher starts one itself, which is another one in nothing."""
    package = shutil.copytree(PACKAGE, tmp_path / "gpurun", ignore=shutil.ignore_patterns("__pycache__"))
    (package / "commands/lifecycle.py").write_text(CHILD_PROBE)
    program = tmp_path / "program"
    program.write_bytes(
        join(compile_front(compiler()), assemble(real_interpreter(), sources=read_sources(package), base=BASE))
    )
    program.chmod(0o755)
    done = run(program, "create", *options, "x")
    assert (done.returncode, done.stderr) == (0, "")
    # The program it runs is the root of a mount of its own: sealed.
    assert done.stdout == repr(("gpurun init", "gpurun:[start]", "/", False, not options)) + "\n"


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
def test_refused_commands_leave_no_child(places: Path, tmp_path: Path, orphans: None, words: list[str]) -> None:
    store_words = ["--log", str(tmp_path / "log"), "--root", str(tmp_path / "none"), *words]
    whole, pure = [run(places / name, *store_words) for name in ("whole", "pure")]
    assert (whole.returncode, whole.stdout, whole.stderr) == (pure.returncode, pure.stdout, pure.stderr)
    assert "Traceback" not in whole.stderr


@needs_root
def test_an_8_bit_locale_keeps_the_child(places: Path, tmp_path: Path, orphans: None) -> None:
    env = {"LC_ALL": "de_DE.ISO-8859-1", "LANG": "de_DE.ISO-8859-1"}
    done = run(places / "whole", "--root", tmp_path / "none", "exec", "missing", "true", env=env)
    assert done.returncode == 255
    assert "container does not exist" in done.stderr


def test_no_variable_leads_to_another_standard_library(places: Path, tmp_path: Path) -> None:
    """PYTHONEXECUTABLE does, in spite of -I: the front takes all such variables away before there is an interpreter."""
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
