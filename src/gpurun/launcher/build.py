"""``make build``: all of gpurun in one executable file, ``build/gpurun``.

The file can be copied anywhere.  It starts with an interpreter line whose one argument is ``-ISBc`` and a few dozen
bytes of code, which read the rest of the file: running a script costs the interpreter more than running ``-c``.  After
a few lines of comment, from byte 512 on:

* ``marshal`` of the pair (code of :mod:`gpurun.launcher.boot`, index), padded;
* the code of each module of gpurun, that of the libraries for people (help must work wherever the file is) and their
  index, at the offsets that the index says.
"""

from __future__ import annotations

import argparse
import ast
import importlib.util
import marshal
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import CodeType
from typing import Any

from gpurun import __version__
from gpurun.launcher.bytecode import check_cycles, compile_tree, imports, is_empty, strip

PACKAGE = Path(__file__).resolve().parent.parent
START = 512
LINE_MAX = 255  # the kernel's BINPRM_BUF_SIZE, less the newline
LIBRARIES = ("click", "tomlkit", "yaml")
#: C modules of the standard library on the machine path; where they are files, the build remembers which.
EXTENSIONS = ("_blake2", "_ctypes", "_json", "_struct", "_socket", "fcntl", "select", "_posixsubprocess")
#: Run when the build is; no use to the finished file.
LEFT_OUT = ("gpurun.launcher.build", "gpurun.launcher.bytecode", "gpurun.launcher.boot", "gpurun.launcher.front")

_READ = "c,i=marshal.loads(posix.pread(f,{size},{start}));exec(c)"
MAIN_CODE = "import posix,sys,marshal;f=posix.open(sys.argv[1],0);" + _READ
CHILD_CODE = "import posix,sys,marshal;f=int(sys.argv[1]);e=sys.argv[2];" + _READ


def source_files(package: Path) -> Iterator[tuple[str, Path]]:
    """(module name, file) of all modules of the package directory, in a stable order."""
    for path in sorted(package.rglob("*.py")):
        parts = (package.name, *path.relative_to(package).with_suffix("").parts)
        yield ".".join(parts[:-1] if parts[-1] == "__init__" else parts), path


def compile_gpurun(package: Path, commit: str) -> tuple[dict[str, CodeType | None], dict[str, tuple[str, ...]]]:
    """The code of each module (None when it does nothing), and what each imports."""
    files = {name: path for name, path in source_files(package) if name not in LEFT_OUT}
    known = set(files)
    codes: dict[str, CodeType | None] = {}
    graph = {}
    for name, path in files.items():
        constants = {"COMMIT": commit} if name == "gpurun.cli.version" else {}
        tree = strip(path.read_text(encoding="utf-8"), constants)
        # A module's own packages come before it; gpurun itself is wanted by all.
        parents = tuple(".".join(name.split(".")[:i]) for i in range(1, name.count(".") + 1))
        graph[name] = tuple(dict.fromkeys((*parents, *(n for n in imports(tree, known) if n != name))))
        codes[name] = None if is_empty(tree) else compile_tree(tree, f"gpurun/{path.relative_to(package)}")
    check_cycles(graph)
    return codes, graph


def compile_library(name: str) -> tuple[dict[str, CodeType], dict[str, bool]]:
    """The code of each module of the pure Python package *name*, and which of them are packages."""
    spec = importlib.util.find_spec(name)
    if spec is None or not spec.submodule_search_locations:
        raise ValueError(f"the package {name} is not installed in {sys.prefix}: run tools/setup")
    codes, packages = {}, {}
    for module, path in source_files(Path(spec.submodule_search_locations[0])):
        code = compile(
            path.read_text(encoding="utf-8"), f"{module.replace('.', '/')}.py", "exec", dont_inherit=True, optimize=1
        )
        codes[module] = code
        packages[module] = path.name == "__init__.py"
    return codes, packages


def extension_files() -> dict[str, str]:
    """Where the C modules of the machine path are, of those that are files."""
    found = {}
    for name in EXTENSIONS:
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.has_location and spec.origin:
            found[name] = spec.origin
    return found


def boot_code() -> Any:
    """The code of :mod:`gpurun.launcher.boot` with the call of it at the end."""
    tree = strip((PACKAGE / "launcher" / "boot.py").read_text(encoding="utf-8"))
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


def assemble(python: str, commit: str = "", package: Path = PACKAGE, base: int = 0) -> bytes:
    """The whole file, for the interpreter *python* (an absolute path); it will stand at offset *base* of another file."""
    start = base + START
    codes, graph = compile_gpurun(package, commit)
    body = _Body()
    modules = {}
    for name, code in codes.items():
        at, length = body.add(b"" if code is None else marshal.dumps(code))
        is_package = (package.parent / name.replace(".", "/")).is_dir()
        modules[name] = (at, length, is_package, graph[name])
    library: dict[str, Any] = {}
    for name in LIBRARIES:
        more, which = compile_library(name)
        library |= {n: (*body.add(marshal.dumps(code)), which[n], ()) for n, code in more.items()}

    def head(size: int) -> tuple[bytes, bytes]:
        """The head, and the index of the libraries that ends the file; the head is to be *size* bytes."""
        begin = start + size

        def placed(entries: dict[str, Any]) -> dict[str, Any]:
            return {name: (begin + entry[0], *entry[1:]) for name, entry in entries.items()}

        tail = marshal.dumps(placed(library))
        index = {
            "python": python,
            "extensions": extension_files(),
            "main_code": MAIN_CODE.format(size=size, start=start),
            "child_code": CHILD_CODE.format(size=size, start=start),
            "modules": placed(modules),
            "libraries": (LIBRARIES, begin + body.size, len(tail)),
        }
        return marshal.dumps((boot_code(), index)), tail

    # marshal reads as far as it needs, so the size that stands inside may be a little more than the truth.
    size = (len(head(0)[0]) + 256 + 511) // 512 * 512
    data, tail = head(size)
    if len(data) > size:
        raise AssertionError("the index has outgrown its margin")
    line = f"#!{python} -ISBc{MAIN_CODE.format(size=size, start=start)}\n"
    if len(line) > LINE_MAX:
        raise ValueError(
            f"the interpreter line is {len(line)} bytes, the kernel reads {LINE_MAX}: {python} is too long a path"
        )
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    text = f"{line}# gpurun {__version__}, for CPython {version}; what follows is its bytecode (made by `make build`).\n"
    text += f"# child: {CHILD_CODE.format(size=size, start=start)}\n"
    if len(text) >= START:
        raise ValueError(f"{python} is too long a path")
    header = text.encode() + b"#" * (START - len(text.encode()) - 1) + b"\n"
    return header + data.ljust(size, b"\0") + b"".join(body.blobs) + tail


def real_interpreter() -> str:
    """The path of this interpreter itself: not of a virtual environment or a version manager, which come and go."""
    return os.path.realpath(getattr(sys, "_base_executable", sys.executable))


def git_commit() -> str:
    """``git describe`` of the source tree; empty where that cannot be known."""
    command = ["git", "-C", str(PACKAGE), "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):  # no git, or not a checkout: a source archive
        return ""


def main() -> int:
    parser = argparse.ArgumentParser(prog="gpurun.launcher.build", description=__doc__.partition("\n")[0] if __doc__ else "")
    parser.add_argument("--output", type=Path, default=Path("build/gpurun"))
    output: Path = parser.parse_args().output
    put(assemble(real_interpreter(), git_commit()), output)
    return 0


def put(program: bytes, output: Path) -> None:
    """Write the executable file *output*, in one step and only if it works: containers may be running with the old one."""
    output.parent.mkdir(parents=True, exist_ok=True)
    made = output.with_name(f".{output.name}.{os.getpid()}")
    made.write_bytes(program)
    made.chmod(0o755)
    try:
        for arguments in (["--version"], ["--help"]):
            subprocess.run([str(made.resolve()), *arguments], env={}, cwd="/", check=True, stdout=subprocess.DEVNULL)
        made.rename(output)
    finally:
        made.unlink(missing_ok=True)
    print(f"{output}: {output.stat().st_size // 1024} KiB for {real_interpreter()}")


if __name__ == "__main__":
    sys.exit(main())
