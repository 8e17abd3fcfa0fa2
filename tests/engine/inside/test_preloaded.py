"""What runs after ``end_imports`` has been imported before: what came later would come from the image, or not at all.

Read from the source: each import inside a function, of every module that the init or exec's process has, is of a module
that is there by then, or stands in a list with the reason why it does not count.
"""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterator

import pytest

from tests.source_tree import FILES, parsed

ROOTS = ("gpurun.engine.inside.init", "gpurun.engine.inside.exec_init")
#: The functions that import for later.
PRELOADERS = ("import_all", "import_for_edits", "open_edits")
#: (module, function) whose imports do not count, and why.
NOT_LATER = {
    ("gpurun.engine.messages", "send_files"): "the first message has come by the same modules",
    ("gpurun.engine.messages", "receive_files"): "called first of all, for the plan",
    ("gpurun.engine.signals", "wait_signal"): "the caller's",
    ("gpurun.engine.state", "user_name"): "the caller's",
    ("gpurun.ns.mount", "filesystem"): "the init's, which calls import_stand_ins before",
    ("gpurun.ns.mount", "reconfigure"): "the init's, which calls import_stand_ins before",
    ("gpurun.ns.mount", "import_stand_ins"): "called before end_imports by who mounts",
    ("gpurun.ns.mount_plan", "_idmap"): "the plan's",
    ("gpurun.ns.namespaces", "_check_same"): "the plan's",
    ("gpurun.ns.spawn", "_serve"): "the starter's, which never leaves the host",
    ("gpurun.ns.options", "likely_option"): "the plan's, and the caller's for an error of the init's",
    ("gpurun.oci.reader", "parse_json"): "the caller's",
}


def imports_in(tree: ast.AST, function: str = "", condition: str = "") -> Iterator[tuple[str, str, str]]:
    """(outermost function, module, condition of the nearest ``if``) of every import but those for types."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
            continue
        if isinstance(node, ast.Import):
            yield from ((function, alias.name, condition) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                yield function, inner if inner in FILES else str(node.module), condition
        elif isinstance(node, ast.FunctionDef):
            yield from imports_in(node, function or node.name, "")
        else:
            yield from imports_in(node, function, ast.unparse(node.test) if isinstance(node, ast.If) else condition)


@functools.cache  # not while tests are collected, which each process of a run does
def imports() -> dict[str, list[tuple[str, str, str]]]:
    return {name: list(imports_in(parsed(path))) for name, path in FILES.items()}


def loaded(names: list[str]) -> set[str]:
    """*names*, and all that comes with them when they are imported."""
    todo, seen = list(names), set()
    while todo:
        name = todo.pop()
        if name not in seen:
            seen.add(name)
            todo += [module for function, module, _ in imports().get(name, ()) if not function]
    return seen


def preloaded(root: str) -> dict[str, str]:
    """module → condition of what *root* imports for later."""
    return {module: condition for function, module, condition in imports()[root] if function in PRELOADERS}


@pytest.mark.parametrize("root", ROOTS)
def test_each_late_import_is_of_what_is_there(root: str) -> None:
    there = loaded([root, *preloaded(root)])
    late = {
        f"{name}.{function} imports {module}"
        for name in there & imports().keys()
        for function, module, _ in imports()[name]
        if function and module not in there and (name, function) not in NOT_LATER and function not in PRELOADERS
    }
    assert not late


def plain(condition: str) -> str:
    """*condition* by the process' own name: the plan is a local one here, and an attribute there."""
    return condition.replace("self.plan.", "").replace("plan.process.", "process.")


@pytest.mark.parametrize("root", ROOTS)
def test_what_is_imported_for_later_is_imported_when_it_is_needed(root: str) -> None:
    """Where the one who needs a module asks for a condition, whoever imports it before asks for the same."""
    before = {module: plain(condition) for module, condition in preloaded(root).items()}
    asked = 0
    for function, module, condition in imports()[root]:
        if condition and function not in PRELOADERS and before.get(module):
            assert plain(condition) == before[module], f"{root}.{function}: {module}"
            asked += 1
    assert asked > 1


def test_what_does_not_count_is_there() -> None:
    named = {(name, function) for name, found in imports().items() for function, _, _ in found}
    assert named >= NOT_LATER.keys()


def test_a_module_that_is_forgotten_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    root = ROOTS[0]
    kept = [found for found in imports()[root] if found[:2] != ("import_all", "gpurun.engine.terminal")]
    assert kept != imports()[root]
    monkeypatch.setitem(imports(), root, kept)
    with pytest.raises(AssertionError, match=r"imports gpurun[.]engine[.]terminal"):
        test_each_late_import_is_of_what_is_there(root)
