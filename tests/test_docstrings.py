"""What docstrings of public functions say: that there is one, which errors the function raises, what a tuple holds, units.

Public is what a room's other files can call: a function of a module, a method of a class, whose names do not begin with an
underscore.  `ALLOWED` is how many functions of a room lack something today; a room that is not in it lacks nothing.
"""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterator

import pytest

from tests.source_tree import Tree

#: Room → functions that lack something.  These numbers only ever go down: lower them with what you have mended.
ALLOWED: dict[str, int] = {
    "builder": 3,  # any_python.py, whose text is in every program
}

Function = ast.FunctionDef | ast.AsyncFunctionDef

#: What says that the code is wrong, or ends the process: no caller prepares for them.
NOT_FOR_CALLERS = {"NotImplementedError", "AssertionError", "SystemExit", "KeyboardInterrupt"}
#: Parameters that are amounts, and words that give an amount its unit.
AMOUNTS = {
    "timeout",
    "limit",
    "size",
    "interval",
    "period",
    "grace",
    "duration",
    "deadline",
    "delay",
    "wait",
    "age",
    "memory",
}
UNITS = re.compile(
    r"\b(nano|micro|milli)?seconds?\b|\b([KMG]i)?bytes?\b|\b[KMG]iB\b|\bcharacters?\b|\bids\b|\bnames\b|\bms\b|\bns\b|\bs\b|:func:`"
)


def room_of(name: str) -> str:
    """The room of the file *name* (``gpu/leases/store.py``): its folder, of ``gpu`` and ``kubernetes`` with the next one."""
    parts = name.split("/")[:-1]
    return "/".join(parts[: 2 if parts[:1] in (["gpu"], ["kubernetes"]) else 1]) or "."


def public_functions(tree: ast.Module) -> Iterator[tuple[str, Function]]:
    """(qualified name, function) of each public function and of each public method of a public class."""
    for node in tree.body:
        if isinstance(node, Function) and not node.name.startswith("_"):
            yield node.name, node
        elif isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
            for method in node.body:
                if isinstance(method, Function) and not method.name.startswith("_"):
                    yield f"{node.name}.{method.name}", method


def own_nodes(function: Function) -> Iterator[ast.AST]:
    """The nodes of *function*'s own body: without those of functions and classes inside it."""
    waiting: list[ast.AST] = list(function.body)
    while waiting:
        node = waiting.pop()
        yield node
        if not isinstance(node, (*Function.__args__, ast.ClassDef, ast.Lambda)):
            waiting.extend(ast.iter_child_nodes(node))


def raised(function: Function) -> set[str]:
    """The names of what *function* itself raises for its callers: of a class, or of the function that makes the error."""
    names = set()
    for node in own_nodes(function):
        if isinstance(node, ast.Raise) and node.exc is not None:
            what = node.exc.func if isinstance(node.exc, ast.Call) else node.exc
            names.add(ast.unparse(what).rpartition(".")[2])
    return {name for name in names if not name.startswith("_") or name[1:2].islower()} - NOT_FOR_CALLERS


def tuple_length(annotation: ast.expr | None) -> int:
    """How many things the tuple that *annotation* says has, 0 for what is no tuple of a fixed length."""
    if isinstance(annotation, ast.BinOp):
        return max(tuple_length(annotation.left), tuple_length(annotation.right))
    if not isinstance(annotation, ast.Subscript) or ast.unparse(annotation.value) != "tuple":
        return 0
    parts = annotation.slice.elts if isinstance(annotation.slice, ast.Tuple) else [annotation.slice]
    return 0 if any(isinstance(part, ast.Constant) and part.value is ... for part in parts) else len(parts)


def names_of_tuple(docstring: str) -> set[int]:
    """How many things are named between the parentheses of *docstring*: ``(descriptor, path)`` has two."""
    return {inside.count(",") + 1 for inside in re.findall(r"\(([^()]*)\)", docstring)}


def lacks(function: Function) -> list[str]:
    """What the docstring of *function* lacks, in words."""
    marks = [ast.unparse(mark) for mark in function.decorator_list]
    if any(mark == "overload" or "click" in mark or ".command" in mark for mark in marks):
        return []  # the docstring of one of click's commands is its help
    docstring = ast.get_docstring(function)
    if not docstring:
        return ["has no docstring"]
    found = []
    errors = raised(function)
    if errors and not re.search(r"\braises?\b", docstring, re.IGNORECASE):
        found.append(f"raises {', '.join(sorted(errors))} and does not say Raises")
    length = tuple_length(function.returns)
    if length > 1 and length not in names_of_tuple(docstring):
        found.append(f"returns a tuple and does not name its {length} things, like (descriptor, path)")
    arguments = (*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs)
    numbers = {a.arg for a in arguments if a.annotation and re.match(r"(int|float)\b", ast.unparse(a.annotation))}
    if numbers & AMOUNTS and not UNITS.search(docstring):
        found.append(f"takes {', '.join(sorted(numbers & AMOUNTS))} and gives no unit")
    return found


def faults() -> dict[str, list[str]]:
    """Room → a line for each function that lacks something."""
    found: dict[str, list[str]] = {}
    for name, tree in Tree().items():
        if name.endswith(("_pb2.py", "_pb2_grpc.py")):  # generated
            continue
        for function_name, function in public_functions(tree):
            if said := lacks(function):
                line = f"src/gpurun/{name}:{function.lineno}: {function_name} {'; '.join(said)}"
                found.setdefault(room_of(name), []).append(line)
    return found


def test_public_docstrings_are_complete() -> None:
    found = faults()
    over = {room: lines for room, lines in found.items() if len(lines) > ALLOWED.get(room, 0)}
    text = "\n".join(
        f"{room}: {len(lines)}, allowed {ALLOWED.get(room, 0)}\n  " + "\n  ".join(lines) for room, lines in over.items()
    )
    assert not over, text


def test_the_allowance_names_rooms_that_are_there() -> None:
    assert set(ALLOWED) <= {room_of(name) for name in Tree()}


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("def f(): pass", "has no docstring"),
        ("def f():\n '''Do it.'''\n raise ConfigError('a', 'b')", "does not say Raises"),
        ("def f():\n '''Do it.'''\n raise errors.bad('a')", "raises bad"),
        ("def f():\n '''Do it.  Raises ConfigError.'''\n raise ConfigError('a', 'b')", ""),
        ("def f():\n '''Do it.'''\n raise NotImplementedError", ""),
        ("def f():\n '''Do it.'''\n def g():\n  raise ConfigError('a', 'b')", ""),
        ("def f() -> tuple[int, str]:\n '''Open it.'''", "its 2 things"),
        ("def f() -> tuple[int, str] | None:\n '''(descriptor, path, mode) of it.'''", "its 2 things"),
        ("def f() -> tuple[int, str] | None:\n '''(descriptor, path) of it.'''", ""),
        ("def f() -> tuple[int, ...]:\n '''Numbers.'''", ""),
        ("def f(timeout: float):\n '''Wait.'''", "no unit"),
        ("def f(timeout: float | None = None):\n '''Wait *timeout* seconds.'''", ""),
    ],
)
def test_what_a_docstring_lacks(source: str, said: str) -> None:
    [(_, function)] = public_functions(ast.parse(source))
    found = "; ".join(lacks(function))
    assert said in found and bool(said) == bool(found), found


def test_private_functions_are_nobody_elses() -> None:
    source = "def _f(): pass\nclass _C:\n def g(self): pass\nclass D:\n def _h(self): pass\n def i(self): pass"
    assert Counter(name for name, _ in public_functions(ast.parse(source))) == {"D.i": 1}
