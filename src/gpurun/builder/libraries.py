"""The libraries for people that the one file carries, as files and as code."""

from __future__ import annotations

import ast
import importlib.util
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import CodeType

LIBRARIES = ("click", "pyroute2", "tomlkit", "yaml")
#: Of a library that is much larger than what gpurun asks of it: the modules that gpurun imports. They are carried with all
#: that they import; the library's own ``__init__``, which would import everything, is carried as an empty module.
PARTS = {"pyroute2": ("pyroute2.iproute.linux",)}


def source_files(package: Path) -> Iterator[tuple[str, Path]]:
    """(module name, file) of all modules of the package directory, in a stable order."""
    for path in sorted(package.rglob("*.py")):
        parts = (package.name, *path.relative_to(package).with_suffix("").parts)
        yield ".".join(parts[:-1] if parts[-1] == "__init__" else parts), path


def library_directory(name: str) -> Path:
    """Where the pure Python package *name* is installed; raises ValueError when it is not."""
    spec = importlib.util.find_spec(name)
    if spec is None or not spec.submodule_search_locations:
        raise ValueError(f"the package {name} is not installed: run tools/setup")
    return Path(spec.submodule_search_locations[0])


def library_sources(name: str) -> dict[str, tuple[Path, bytes]]:
    """Module name → (file, its text) of what is carried of the package *name*."""
    files = dict(source_files(library_directory(name)))
    if name not in PARTS:
        return {module: (path, path.read_bytes()) for module, path in files.items()}
    wanted = _closure({module: path for module, path in files.items() if module != name}, PARTS[name])
    return {name: (files[name], b""), **{module: (files[module], files[module].read_bytes()) for module in sorted(wanted)}}


def modules_of(name: str, sources: Mapping[str, bytes]) -> dict[str, str]:
    """Module name → file name of the modules of the package *name* among *sources* (file name → text)."""
    found = {}
    for file in sources:
        if file.startswith(f"{name}/"):
            found[file.removesuffix(".py").removesuffix("/__init__").replace("/", ".")] = file
    return found


def compile_library(name: str, sources: Mapping[str, bytes]) -> tuple[dict[str, CodeType], dict[str, bool]]:
    """The code of each module of the pure Python package *name* among *sources*, and which of them are packages.

    Returns (codes, packages).
    """
    codes, packages = {}, {}
    for module, path in modules_of(name, sources).items():
        file = f"{module.replace('.', '/')}.py"
        codes[module] = compile(sources[path], file, "exec", dont_inherit=True, optimize=1 if name not in PARTS else 2)
        packages[module] = path.endswith("/__init__.py")
    return codes, packages


def _closure(files: dict[str, Path], roots: tuple[str, ...]) -> set[str]:
    """Those of the modules *files* that *roots* import, at once or later."""
    todo, found = list(roots), set()
    while todo:
        module = todo.pop()
        if module in found or module not in files:
            continue
        found.add(module)
        todo += [module.rpartition(".")[0], *_imports_of(module, files[module])]
    return found


def _imports_of(module: str, path: Path) -> Iterator[str]:
    """What *module* imports anywhere in its text: names of modules, and some of what is in them."""
    package = module if path.name == "__init__.py" else module.rpartition(".")[0]
    for node in ast.walk(ast.parse(path.read_bytes())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                above = package.split(".")
                base = ".".join([*above[: len(above) - node.level + 1], *([base] if base else [])])
            yield base
            yield from (f"{base}.{alias.name}" for alias in node.names)
