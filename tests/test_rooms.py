"""The rooms of ARCHITECTURE.md: imports only point down its list, none goes round in a circle, and few rooms know NVIDIA.

An import counts wherever it stands: at the top, inside a function, or for types alone, for a type is knowledge.
"""

from __future__ import annotations

import ast
import importlib
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from tests.source_tree import FILES, PACKAGE, module_name, parsed

DOCUMENT = PACKAGE.parents[1] / "ARCHITECTURE.md"

#: The only files that name functions of rooms above them, as texts: what is typed, and what a fresh interpreter begins with.
ENTRY_TABLES = (
    "gpurun.cli.container_commands",
    "gpurun.cli.table",
    "gpurun.toolkit.names",
    "gpurun.launcher.fresh_interpreter",
    "gpurun.launcher.boot",
)
ENTRY_POINT = re.compile(r"(gpurun(?:\.\w+)*):(\w+)")


def trees() -> dict[Path, ast.Module]:
    """Each file of the source with its syntax tree."""
    return {path: parsed(path) for path in FILES.values()}


def rooms_of(document: str) -> list[tuple[str, ...]]:
    """The rooms in the first table of the section "Rooms", from the top down: a row's names are one room."""
    section = document.partition("\n## Rooms\n")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| (`.*?) \|", section, re.MULTILINE)
    return [tuple(_dotted(word) for word in re.findall(r"`([\w./]+)`", row)) for row in rows]


def _dotted(word: str) -> str:
    return ".".join(["gpurun", *word.removesuffix(".py").strip("/").split("/")])


ROOMS = rooms_of(DOCUMENT.read_text(encoding="utf-8"))


def room_of(module: str) -> int:
    """The number of the room of *module*, 0 is the top one; the longest name that fits decides."""
    fitting = [
        (len(name), number)
        for number, names in enumerate(ROOMS)
        for name in names
        if module == name or module.startswith(name + ".")
    ]
    assert fitting or module == "gpurun", f"{module} is in no room: say in ARCHITECTURE.md where it belongs"
    return max(fitting)[1] if fitting else len(ROOMS)


def imports_of(tree: ast.AST) -> Iterator[tuple[str, int]]:
    """(module, line) of every import of gpurun."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((alias.name, node.lineno) for alias in node.names if alias.name.split(".")[0] == "gpurun")
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"line {node.lineno}: relative import"
            if node.module and node.module.split(".")[0] == "gpurun":
                for alias in node.names:
                    inner = f"{node.module}.{alias.name}"
                    yield (inner if inner in FILES else node.module), node.lineno


def circles(graph: Mapping[str, set[str]]) -> list[list[str]]:
    """The sets of two or more nodes that can all be reached from each other (Tarjan)."""
    number: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found: list[list[str]] = []

    def visit(node: str) -> None:
        number[node] = low[node] = len(number)
        stack.append(node)
        for other in sorted(graph[node]):
            if other not in number:
                visit(other)
                low[node] = min(low[node], low[other])
            elif other in stack:
                low[node] = min(low[node], number[other])
        if low[node] == number[node]:
            members = stack[stack.index(node) :]
            del stack[stack.index(node) :]
            if len(members) > 1:
                found.append(sorted(members))

    for node in graph:
        if node not in number:
            visit(node)
    return found


def test_circles_are_found() -> None:
    assert circles({"a": {"b"}, "b": {"c"}, "c": {"a", "d"}, "d": set()}) == [["a", "b", "c"]]
    assert circles({"a": {"b", "c"}, "b": {"c"}, "c": set()}) == []


@pytest.mark.parametrize("path", FILES.values(), ids=FILES)
def test_imports_point_down(path: Path) -> None:
    own = room_of(module_name(path))
    upward = [f"{path}:{line} imports {name}" for name, line in imports_of(parsed(path)) if room_of(name) < own]
    assert not upward


def test_no_circle_of_files() -> None:
    graph = {name: {other for other, _ in imports_of(parsed(path))} - {name} for name, path in FILES.items()}
    assert not circles(graph)


def test_no_circle_of_folders() -> None:
    def folder(module: str) -> str:
        alone = FILES[module].name == "__init__.py" or any(module in names for names in ROOMS)
        return module if alone else module.rpartition(".")[0]

    graph: dict[str, set[str]] = {}
    for path, tree in trees().items():
        own = folder(module_name(path))
        if own != "gpurun":  # its files are the ground and the entry point: rooms of their own
            graph.setdefault(own, set()).update({folder(n) for n, _ in imports_of(tree)} - {own, "gpurun"})
    assert len(graph) > 10 and not circles(graph)


def test_the_document_names_each_room_once() -> None:
    names = [name for row in ROOMS for name in row]
    assert len(names) == len(set(names)) > 20
    assert all(name in FILES for name in names), "a room that is not there"
    packages = {name for name, path in FILES.items() if path.name == "__init__.py"} - {"gpurun"}
    assert packages <= set(names), "a folder without a row of its own"


@pytest.mark.parametrize(
    ("one", "other"),
    [pair for own in ("caller", "checkpoint", "gpus") for pair in ((own, "inside"), ("inside", own))],
)
def test_the_two_sides_of_the_engine_do_not_know_each_other(one: str, other: str) -> None:
    # They are two processes, and speak by engine/messages.py about the records of engine/plan/.
    files = {path: tree for path, tree in trees().items() if path.parent.relative_to(PACKAGE).as_posix() == f"engine/{one}"}
    assert files and not [
        f"{path}:{line}" for path, tree in files.items() for name, line in imports_of(tree) if f".engine.{other}" in name
    ]


def test_entry_points_are_named_in_tables_and_are_there() -> None:
    found = 0
    for path, tree in trees().items():
        for node in ast.walk(tree):
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and (m := ENTRY_POINT.fullmatch(node.value)):
                assert module_name(path) in ENTRY_TABLES, f"{path}:{node.lineno}: {node.value}"
                assert callable(getattr(importlib.import_module(m[1]), m[2])), node.value
                found += 1
    assert found > 20


def texts_of(tree: ast.AST) -> set[str]:
    """The texts of a module in lower case, docstrings left out."""
    docstrings = {
        id(node.body[0].value)
        for node in ast.walk(tree)
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef)) and node.body and isinstance(node.body[0], ast.Expr)
    }
    constants = [node for node in ast.walk(tree) if isinstance(node, ast.Constant) and id(node) not in docstrings]
    return {node.value.lower() for node in constants if isinstance(node.value, str)}


@pytest.mark.parametrize("path", FILES.values(), ids=FILES)
def test_few_rooms_know_nvidia(path: Path) -> None:
    rooms = ("gpu", "hook", "cli", "commands", "kubernetes", "metrics", "toolkit", "__main__.py")
    if path.relative_to(PACKAGE).parts[0] not in rooms:
        # The name of a module to import says nothing of what is in it.
        assert not {text for text in texts_of(parsed(path)) if "nvidia" in text.replace("gpu.nvidia.", "")}


#: Where makers' names may stand, beside their rooms: who speaks of products to people and to other programs.
MAKERS = ("nvidia", "amd", "rocm", "kfd", "intel", "habana")
KNOWING = (
    "toolkit",
    "kubernetes",
    "metrics",
    "commands",
    "cli",
    "hook",
    "__main__.py",
    "gpu/vendors.py",
)
#: Files of other rooms that still know one: what is left to be put behind the table.
LEFT = (
    "gpu/doctor.py", "gpu/doctor_host.py", "gpu/host/access.py",
)  # fmt: skip


@pytest.mark.parametrize("path", FILES.values(), ids=FILES)
def test_makers_are_known_in_their_rooms_alone(path: Path) -> None:
    name = path.relative_to(PACKAGE).as_posix()
    own = [f"gpu/{maker}/" for maker in MAKERS]
    if name.startswith((*own, "__main__.py", *KNOWING, *LEFT)):
        return
    # The name of a module to import says nothing of what is in it, and Intel RDT is no GPU.
    texts = [re.sub(r"gpu\.[a-z]+\.|intel.?rdt", "", text) for text in texts_of(parsed(path))]
    words = {word for text in texts for word in re.findall(r"[a-z0-9]+", text)}
    assert not words & set(MAKERS), name


def test_the_rule_about_nvidia_is_asked_of_texts_and_of_most_rooms() -> None:
    assert "nvidia" not in texts_of(ast.parse('"""nvidia"""\nx = "NVML"')) and "nvidia" in texts_of(
        ast.parse('x = "NVIDIA"')
    )
    rooms = {path.relative_to(PACKAGE).parts[0] for path in FILES.values()}
    assert {"linux", "ns", "cgroup", "oci", "cdi", "engine", "launcher", "formats"} <= rooms


def test_no_two_records_share_a_name() -> None:
    # They go over pipes by name (record.py), and two modules that are never imported together would not notice.
    found: dict[str, list[str]] = {}
    for path, tree in trees().items():
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef) and any(
                isinstance(base, ast.Name) and base.id == "Record" for base in node.bases
            ):
                found.setdefault(node.name, []).append(str(path))
    assert found and not {name: paths for name, paths in found.items() if len(paths) > 1}


def test_no_file_outgrows_one_subject() -> None:
    long = {str(path): lines for path in FILES.values() if (lines := path.read_text(encoding="utf-8").count("\n")) > 450}
    assert not long
