"""``make build``: all of gpurun in one executable file, ``build/gpurun``.

The file can be copied anywhere.  It starts with an interpreter line whose one argument is ``-ISBc`` and a few dozen
bytes of code, which read the rest of the file: running a script costs the interpreter more than running ``-c``.  After
a few lines of comment, from byte 512 on:

* ``marshal`` of the pair (code of :mod:`gpurun.launcher.boot`, index), padded;
* the code of each module of gpurun, that of the libraries for people (help must work wherever the file is) and a second
  index (see :data:`LATE`), at the offsets that the index says;
* for every Python but the one that the bytecode is for: the text of :mod:`gpurun.builder.any_python`, and the sources.
"""

from __future__ import annotations

import argparse
import ast
import importlib.util
import marshal
import os
import subprocess
import sys
import zlib
from collections.abc import Mapping
from hashlib import blake2b
from pathlib import Path
from types import CodeType
from typing import Any

from gpurun import __version__
from gpurun.builder.bytecode import check_cycles, compile_tree, imports, is_empty, reduce_graph, strip
from gpurun.builder.libraries import (
    LIBRARIES,
    compile_library,
    library_directory,
    library_sources,
    modules_of,
    source_files,
)
from gpurun.builder.machine_path import ALLOWED

PACKAGE = Path(__file__).resolve().parent.parent
START = 512
TEXT_SIZE = 8192  # of the text for any Python
LINE_MAX = 255  # the kernel's BINPRM_BUF_SIZE, less the newline
#: Rooms whose modules stand in the second index, which is read for a module that is not in the first: what shims call every
#: day needs none of them, and reading 400 places takes 0.4 ms.
_LATE_ROOMS = (
    *("clients", "criu", "engine.checkpoint", "gpu.nvidia.mps", "images", "kubernetes"),
    *("library", "metrics", "network", "toolkit"),
)
LATE = tuple([f"gpurun.{room}" for room in _LATE_ROOMS])
#: Run when the build is; no use to the finished file.
LEFT_OUT = ("gpurun.launcher.boot", "gpurun.builder")

#: What the interpreter line runs: the bytecode if it is this interpreter's, else the text for any Python.
MAIN_CODE = (
    "import posix,sys,marshal;f=posix.open(sys.argv[1],0);c,i=marshal.loads(posix.pread(f,{size},{start}))"
    "if sys.implementation.cache_tag=='{tag}'else(posix.pread(f,{text_size},{text}),0);exec(c)"
)
#: What a child of a running launcher runs, with the same interpreter.
CHILD_CODE = (
    "import posix,sys,marshal;f=int(sys.argv[1]);e=sys.argv[2];c,i=marshal.loads(posix.pread(f,{size},{start}));exec(c)"
)


def compile_gpurun(
    sources: Mapping[str, bytes], commit: str
) -> tuple[dict[str, CodeType | None], dict[str, tuple[str, ...]]]:
    """The code of each module of gpurun among *sources* (None when it does nothing), and what each imports.

    Returns (codes, imports).
    """
    files = {name: path for name, path in modules_of("gpurun", sources).items() if not name.startswith(LEFT_OUT)}
    known = set(files)
    codes: dict[str, CodeType | None] = {}
    graph = {}
    for name, path in files.items():
        constants = {"COMMIT": commit} if name == "gpurun.commands.version" else {}
        tree = strip(sources[path].decode(), constants)
        # A module's own packages come before it; gpurun itself is wanted by all.
        parents = tuple(".".join(name.split(".")[:i]) for i in range(1, name.count(".") + 1))
        graph[name] = tuple(dict.fromkeys((*parents, *(n for n in imports(tree, known) if n != name))))
        codes[name] = None if is_empty(tree) else compile_tree(tree, path)
    check_cycles(graph)
    return codes, reduce_graph(graph)


def read_sources(package: Path = PACKAGE) -> dict[str, bytes]:
    """File name → text of all that a launcher is made of: gpurun in the directory *package*, and libraries for people."""
    found = {}
    for _, path in source_files(package):
        found[str(path.relative_to(package.parent))] = path.read_bytes()
    for name in LIBRARIES:
        above = library_directory(name).parent
        found |= {str(path.relative_to(above)): text for path, text in library_sources(name).values()}
    return found


def pack_sources(sources: Mapping[str, bytes]) -> bytes:
    """*sources* as the launcher carries them, for a Python that its bytecode is not for."""
    return zlib.compress(marshal.dumps(dict(sources), 2), 9)  # version 2 is read by every Python 3


def extension_files(multiarch: str = "") -> dict[str, str]:
    """Where the C modules of the machine path are, of those that are files, on this machine or on one of the architecture
    *multiarch* (``aarch64-linux-gnu``) with the same Python."""
    found = {}
    for name in ALLOWED:
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.has_location and spec.origin:
            found[name] = spec.origin
    here = str(getattr(sys.implementation, "_multiarch", ""))
    return {name: path.replace(here, multiarch) for name, path in found.items()} if multiarch and here else found


def boot_code(sources: Mapping[str, bytes]) -> Any:
    """The code of :mod:`gpurun.launcher.boot` among *sources*, with the call of it at the end."""
    tree = strip(sources["gpurun/launcher/boot.py"].decode())
    tree.body += ast.parse('boot(f, i, globals().get("e", ""))').body
    return compile_tree(ast.fix_missing_locations(tree), "gpurun/launcher/boot.py")


class _Body:
    """What follows the index: blobs, and where each has come to lie (relative to the body's begin)."""

    def __init__(self) -> None:
        self.blobs: list[bytes] = []
        self.size = 0

    def add(self, blob: bytes) -> tuple[int, int]:
        place = (self.size, len(blob))
        self.blobs.append(blob)
        self.size += len(blob)
        return place


def assemble(
    python: str,
    commit: str = "",
    sources: Mapping[str, bytes] | None = None,
    base: int = 0,
    tag: str = "",
    multiarch: str = "",
) -> bytes:
    """The whole file, for the interpreter *python* (an absolute path); it will stand at offset *base* of another file.

    It is made of *sources*, by default those of this very tree (:func:`read_sources`); nothing else is read.

    *tag* is whose bytecode it says to be (``sys.implementation.cache_tag`` of this interpreter, but for tests); *multiarch*
    the architecture that it is for, if it is another than this machine's.  Raises ValueError when the path of *python* is
    too long for the first line.
    """
    start = base + START
    sources = read_sources() if sources is None else sources
    body, modules, library = _compile_body(sources, commit)
    carried = pack_sources(sources)
    build = build_name(sources)
    tag = tag or str(sys.implementation.cache_tag)

    def head(size: int) -> tuple[bytes, bytes, bytes, str]:
        """The head, the second index, the text for any Python, the code of the interpreter line; the head is to be
        *size* bytes."""
        begin = start + size

        def placed(entries: dict[str, Any]) -> dict[str, Any]:
            return {name: (begin + entry[0], *entry[1:]) for name, entry in entries.items()}

        tail = marshal.dumps(placed(library))
        text_at = begin + body.size + len(tail)
        carried_build = (tag, build, text_at + TEXT_SIZE, len(carried), commit)
        text = f"BASE = {base}\nBUILD = {carried_build!r}\n".encode() + sources["gpurun/builder/any_python.py"]
        if len(text) > TEXT_SIZE:
            raise AssertionError("the text for any Python has outgrown its room")
        main_code = MAIN_CODE.format(size=size, start=start, tag=tag, text_size=TEXT_SIZE, text=text_at)
        index = {
            "extensions": extension_files(multiarch),
            "main_code": main_code,
            "child_code": CHILD_CODE.format(size=size, start=start),
            "modules": placed(modules),
            "late": (("gpurun", *LIBRARIES), begin + body.size, len(tail)),
        }
        return marshal.dumps((boot_code(sources), index)), tail, text.ljust(TEXT_SIZE), main_code

    # marshal reads as far as it needs, so the size that stands inside may be a little more than the truth.
    size = (len(head(0)[0]) + 256 + 511) // 512 * 512
    data, tail, any_python, main_code = head(size)
    if len(data) > size:
        raise AssertionError("the index has outgrown its margin")
    header = _interpreter_lines(python, main_code, tag)
    return header + data.ljust(size, b"\0") + b"".join(body.blobs) + tail + any_python + carried


def _compile_body(sources: Mapping[str, bytes], commit: str) -> tuple[_Body, dict[str, Any], dict[str, Any]]:
    """(the bytecode of all modules, the entries of gpurun's modules by name, those of the libraries and late modules)."""
    codes, graph = compile_gpurun(sources, commit)
    body = _Body()
    modules: dict[str, Any] = {}
    library: dict[str, Any] = {}
    for name, code in codes.items():
        at, length = body.add(b"" if code is None else marshal.dumps(code))
        is_package = f"{name.replace('.', '/')}/__init__.py" in sources
        (library if name.startswith(LATE) else modules)[name] = (at, length, is_package, graph[name])
    for name in LIBRARIES:
        more, which = compile_library(name, sources)
        library |= {n: (*body.add(marshal.dumps(code)), which[n], ()) for n, code in more.items()}
    return body, modules, library


def _interpreter_lines(python: str, main_code: str, tag: str) -> bytes:
    """The first :data:`START` bytes.  Raises ValueError when the path of *python* is too long for the first line."""
    line = f"#!{python} -ISBc{main_code}\n"
    if len(line) > LINE_MAX:
        raise ValueError(
            f"the interpreter line is {len(line)} bytes, the kernel reads {LINE_MAX}: {python} is too long a path"
        )
    text = f"{line}# gpurun {__version__}: bytecode for {tag} and sources for any other, made by `make build`.\n"
    if len(text) >= START:
        raise ValueError(f"{python} is too long a path")
    return text.encode() + b"#" * (START - len(text.encode()) - 1) + b"\n"


def build_name(sources: Mapping[str, bytes]) -> str:
    """What distinguishes one build from another: a digest of its sources."""
    return blake2b(marshal.dumps(sorted(sources.items()), 2), digest_size=12).hexdigest()


def real_interpreter() -> str:
    """The path of this interpreter: not of a virtual environment or a version manager, which come and go.

    ``python3`` in its directory where that is this one: the name outlives an upgrade of the distribution.
    """
    real = os.path.realpath(getattr(sys, "_base_executable", sys.executable))
    lasting = os.path.join(os.path.dirname(real), "python3")
    return lasting if os.path.realpath(lasting) == real else real


def check_interpreter(python: str) -> None:
    """End the program with one sentence unless *python* starts without an environment: gpurun runs it so (sealed.py)."""
    done = subprocess.run([python, "-ISc", ""], env={}, capture_output=True, text=True, errors="replace")
    if done.returncode:
        said = done.stderr.strip().rpartition("\n")[2] or f"exit code {done.returncode}"
        sys.exit(
            f"{python} does not start with an empty environment, in which gpurun runs it: {said}\nBuild with a Python that "
            "needs no LD_LIBRARY_PATH: the distribution's, or one that was linked with -Wl,-rpath"
        )


def git_commit() -> str:
    """``git describe`` of the source tree, or what GPURUN_COMMIT says of a copy of it; empty where that cannot be known."""
    if "GPURUN_COMMIT" in os.environ:
        return os.environ["GPURUN_COMMIT"]
    command = ["git", "-C", str(PACKAGE), "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):  # no git, or not a checkout: a source archive
        return ""


def main() -> int:
    """Build gpurun; the exit code."""
    parser = argparse.ArgumentParser(
        prog="gpurun.builder.launcher", description=__doc__.partition("\n")[0] if __doc__ else ""
    )
    parser.add_argument("--output", type=Path, default=Path("build/gpurun"))
    add_multiarch(parser)
    given = parser.parse_args()
    put(assemble(real_interpreter(), git_commit(), multiarch=given.multiarch), given.output, run=not given.multiarch)
    return 0


def add_multiarch(parser: argparse.ArgumentParser) -> None:
    """The option with which a program for another machine is made: it is not run here."""
    parser.add_argument(
        "--for", dest="multiarch", default="", metavar="TRIPLET", help="for another architecture, as aarch64-linux-gnu"
    )


def put(program: bytes, output: Path, run: bool = True) -> None:
    """Write the executable file *output*, in one step, and only if it works where it can be *run*: containers may be running
    with the old one.  Ends the program where the interpreter takes variables to start."""
    if run:
        check_interpreter(real_interpreter())
    output.parent.mkdir(parents=True, exist_ok=True)
    made = output.with_name(f".{output.name}.{os.getpid()}")
    made.write_bytes(program)
    made.chmod(0o755)
    try:
        for arguments in (["--version"], ["--help"]) if run else ():
            subprocess.run([str(made.resolve()), *arguments], env={}, cwd="/", check=True, stdout=subprocess.DEVNULL)
        made.rename(output)
    finally:
        made.unlink(missing_ok=True)
    print(f"{output}: {output.stat().st_size // 1024} KiB for {real_interpreter()}")


if __name__ == "__main__":
    sys.exit(main())
