"""The rooms of ARCHITECTURE.md: imports only point down, and nothing outside ``hook/`` knows of GPUs' vendors."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parents[1] / "src/gpurun"
TREE = {path: ast.parse(path.read_text(encoding="utf-8")) for path in sorted(PACKAGE.rglob("*.py"))}

#: From the bottom up.  A room may import from itself and from those before it.
ROOMS = (
    ("gpurun", "gpurun.record", "gpurun.errors", "gpurun.paths", "gpurun.jsontext"),
    ("gpurun.invocation", "gpurun.log", "gpurun.logsocket"),
    ("gpurun.linux",),
    ("gpurun.cachefile",),
    ("gpurun.oci",),
    ("gpurun.security",),
    ("gpurun.cgroup",),
    ("gpurun.ns",),
    ("gpurun.launcher.child",),  # how the engine starts the container's init, and hook its helper
    ("gpurun.hook",),
    ("gpurun.criu",),
    ("gpurun.engine",),
    ("gpurun.cli.output",),
    ("gpurun.commands",),
    ("gpurun.cli",),
    ("gpurun.toolkit",),
    ("gpurun.launcher", "gpurun.__main__"),
)


def module_name(path: Path) -> str:
    parts = ("gpurun", *path.relative_to(PACKAGE).with_suffix("").parts)
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def floor(module: str) -> int:
    """The number of the room of *module*; the longest name that fits decides."""
    found, best = -1, ""
    for number, names in enumerate(ROOMS):
        for name in names:
            if (module == name or (name != "gpurun" and module.startswith(name + "."))) and len(name) >= len(best):
                found, best = number, name
    assert found >= 0, f"{module} is in no room: say in tests/test_rooms.py and ARCHITECTURE.md where it belongs"
    return found


def imported(tree: ast.AST) -> Iterator[tuple[str, int]]:
    """(module, line) of every import of gpurun, wherever it stands: types too, for a type is knowledge."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((alias.name, node.lineno) for alias in node.names if alias.name.split(".")[0] == "gpurun")
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"line {node.lineno}: relative import"
            if node.module and node.module.split(".")[0] == "gpurun":
                for alias in node.names:
                    inner = f"{node.module}.{alias.name}"
                    yield (inner if inner in MODULES else node.module), node.lineno


MODULES = {module_name(path) for path in TREE}


@pytest.mark.parametrize("path", TREE, ids=module_name)
def test_imports_point_down(path: Path) -> None:
    own = floor(module_name(path))
    upward = [f"{path}:{line} imports {name}" for name, line in imported(TREE[path]) if floor(name) > own]
    assert not upward


@pytest.mark.parametrize("path", TREE, ids=module_name)
def test_linux_knows_no_oci_and_only_hook_knows_gpus(path: Path) -> None:
    names = {node.id.lower() for node in ast.walk(TREE[path]) if isinstance(node, ast.Name)}
    words = {s.value.lower() for s in ast.walk(TREE[path]) if isinstance(s, ast.Constant) and isinstance(s.value, str)}
    if path.parent.name == "linux":
        assert not {n for n in names if n.startswith("oci")}
    if path.parent.name not in ("hook", "cli", "commands", "toolkit", "gpurun"):
        assert not {w for w in words if "nvidia_" in w or "/dev/nvidia" in w}


def test_no_two_records_share_a_name() -> None:
    # They go over pipes by name (record.py), and two modules that are never imported together would not notice.
    found: dict[str, list[str]] = {}
    for path, tree in TREE.items():
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef) and any(
                isinstance(base, ast.Name) and base.id == "Record" for base in node.bases
            ):
                found.setdefault(node.name, []).append(str(path))
    assert found and not {name: paths for name, paths in found.items() if len(paths) > 1}


def test_no_file_outgrows_one_subject() -> None:
    long = {str(path): lines for path in TREE if (lines := path.read_text(encoding="utf-8").count("\n")) > 450}
    assert not long
