"""The source tree, for tests that hold all of it to a rule.

Each file is parsed when it is first asked for, and once: every process of a run collects all tests, so what is done then is
done by each of them.
"""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterator, Mapping
from pathlib import Path

PACKAGE = Path(__file__).resolve().parents[1] / "src/gpurun"


def module_name(path: Path) -> str:
    parts = ("gpurun", *path.relative_to(PACKAGE).with_suffix("").parts)
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


#: Module → its file.
FILES = {module_name(path): path for path in sorted(PACKAGE.rglob("*.py"))}


@functools.cache
def parsed(path: Path) -> ast.Module:
    """The syntax tree of the file *path*."""
    return ast.parse(path.read_text(encoding="utf-8"))


class Tree(Mapping[str, ast.Module]):
    """Path below src/gpurun, like ``ns/path.py`` → the file's syntax tree."""

    _files = {path.relative_to(PACKAGE).as_posix(): path for path in FILES.values()}

    def __getitem__(self, name: str) -> ast.Module:
        return parsed(self._files[name])

    def __iter__(self) -> Iterator[str]:
        return iter(self._files)

    def __len__(self) -> int:
        return len(self._files)
