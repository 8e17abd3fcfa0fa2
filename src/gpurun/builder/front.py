"""``build/gpurun-fast``: the launcher with a small compiled program before it (``front.c``), where there is a C compiler.

The program does the plain forms of ``state``, ``start``, ``kill``, ``pause``, ``resume``, ``delete`` and ``exec`` itself, in
one to three milliseconds instead of an interpreter's start, and becomes the launcher behind it for all else.  One file,
which can be copied anywhere, like the launcher; nothing needs it.
"""

from __future__ import annotations

import argparse
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from gpurun.builder.launcher import (
    PACKAGE,
    add_multiarch,
    assemble,
    build_name,
    git_commit,
    put,
    read_sources,
    real_interpreter,
)
from gpurun.engine.caller import kept_plan
from gpurun.engine.state import State
from gpurun.launcher.sealed import OPTION
from gpurun.linux.seccomp import CAN_WAIT
from gpurun.oci import SPEC_VERSION

#: Where in the file the launcher begins: more than the program needs, which is linked with the C library in it.  On aarch64,
#: whose kernels may have pages of 64 KiB, the linker gives each segment pages of its own.
BASE = 1280 << 10
#: Where any_python.py keeps launchers that were compiled for root.
CACHE = "/var/cache/gpurun"
SOURCE = PACKAGE / "launcher" / "front.c"
WARNINGS = ("-Wall", "-Wextra", "-Wconversion", "-Wshadow", "-Werror")
HARDENED = ("-fstack-protector-strong", "-U_FORTIFY_SOURCE", "-D_FORTIFY_SOURCE=2", "-fPIE")
_GLIBC = re.compile(rb"GLIBC_2\.(\d+)\0")
LINKED = ("-Wl,-z,relro", "-Wl,-z,now", "-Wl,-z,noexecstack", "-s")
#: With the C library in it the program starts in half the time (0.3 ms instead of 0.6): nothing is looked for and relocated.
STATIC, DYNAMIC = ("-static-pie",), ("-pie",)
#: The oldest glibc that a wheel's name can ask for, which one that needs none asks for as well (PEP 600).
_OLDEST_GLIBC = 17


def compiler(multiarch: str = "") -> list[str]:
    """The C compiler: ``$CC``, else ``cc`` or ``gcc``, or the one for *multiarch*; empty when there is none."""
    if os.environ.get("CC"):
        return shlex.split(os.environ["CC"])
    found = shutil.which(f"{multiarch}-gcc") if multiarch else shutil.which("cc") or shutil.which("gcc")
    return [found] if found else []


def constants() -> tuple[str, ...]:
    """What the program takes over from gpurun: the fields of the state file, the name of an option, and so on."""
    lists = {
        "STATE_FIELDS(X)": " ".join([f'X({name.upper()},"{name}")' for name in State._fields]),
        "PLAN_NUMBERS(X)": " ".join([f"X({name.upper()})" for name in kept_plan.NUMBERS]),
        "PLAN_TEXTS(X)": " ".join([f"X({name.upper()})" for name in kept_plan.TEXTS]),
        "PLAN_FILES": ",".join([f'"{name}"' for name in kept_plan.FILES]),
    }
    texts = {
        "SPEC_VERSION": SPEC_VERSION,
        "SEALED_OPTION": OPTION,
        "BUILD_NAME": build_name(read_sources()),
        "CACHE": CACHE,
        "PLAN_NAME": kept_plan.NAME,
    }
    numbers = {"BASE": BASE, "PYTHON_MINOR": sys.version_info.minor, "PLAN_BYTES": kept_plan.MAX_BYTES, "CAN_WAIT": CAN_WAIT}
    given = {**numbers, **lists, **{name: f'"{text}"' for name, text in texts.items()}}
    return tuple([f"-D{name}={value}" for name, value in given.items()])


def compile_front(
    command: list[str], more: tuple[str, ...] = (), link: tuple[str, ...] = DYNAMIC, stderr: int | None = None
) -> bytes:
    """Only the program, made by the compiler *command* with the flags *more* and *link*; raises CalledProcessError.

    *stderr* is where the compiler's own messages go, None for ours.
    """
    with tempfile.TemporaryDirectory() as directory:
        made = Path(directory, "front")
        flags = ("-std=gnu11", "-O2", *WARNINGS, *HARDENED, *LINKED, *constants(), *more)
        subprocess.run([*command, *flags, *link, str(SOURCE), "-o", str(made)], check=True, stderr=stderr)
        return made.read_bytes()


def compile_best(command: list[str]) -> bytes:
    """:func:`compile_front` with the C library in it, where this machine has the library's archive."""
    try:
        return compile_front(command, link=STATIC, stderr=subprocess.DEVNULL)
    except subprocess.CalledProcessError:
        return compile_front(command)


def join(program: bytes, launcher: bytes) -> bytes:
    """*program*, and behind it, from :data:`BASE` on, the *launcher* that was assembled to stand there.

    Raises ValueError when *program* reaches beyond BASE.
    """
    if len(program) > BASE:
        raise ValueError(f"the compiled front has {len(program)} bytes, more than the {BASE} before the launcher")
    return program.ljust(BASE, b"\0") + launcher


def glibc_of(program: bytes) -> int:
    """The N of the oldest glibc 2.N that the compiled front of *program* runs with; 0 for a launcher without a front."""
    if not program.startswith(b"\x7fELF"):
        return 0
    return max((int(minor) for minor in _GLIBC.findall(program[:BASE])), default=_OLDEST_GLIBC)


def build(output: Path, multiarch: str = "", compiled: Path | None = None) -> bool:
    """Make *output*, for the architecture *multiarch* if it is another; False, and no file, where there is no C compiler.

    *compiled* is the program, where another machine has compiled it of these sources for this machine's Python.
    """
    command = compiler(multiarch)
    if not command and compiled is None:
        output.unlink(missing_ok=True)
        return False
    launcher = assemble(real_interpreter(), git_commit(), base=BASE, multiarch=multiarch)
    program = compile_best(command) if compiled is None else compiled.read_bytes()
    put(join(program, launcher), output, run=not multiarch)
    return True


def main() -> int:
    """Build gpurun-fast where there is a C compiler; the exit code."""
    parser = argparse.ArgumentParser(prog="gpurun.builder.front", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--output", type=Path, default=Path("build/gpurun-fast"))
    add_multiarch(parser)
    parser.add_argument("--compiled", type=Path, help="the program, compiled on another machine for this one's Python")
    given = parser.parse_args()
    if not build(given.output, given.multiarch, given.compiled):
        print("no C compiler: gpurun comes without its compiled front, which nothing needs")
    return 0


if __name__ == "__main__":
    sys.exit(main())
