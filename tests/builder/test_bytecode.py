"""What is taken out of the code, and what must stay."""

from __future__ import annotations

import ast
from typing import Any

import pytest

from gpurun.builder.bytecode import check_cycles, compile_tree, imports, is_empty, reduce_graph, strip

SOURCE = '''
"""Doc."""
from __future__ import annotations
import posix
TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any
else:
    kept = 1
limit: int = 3
later: Missing
COMMIT = ""

class Fields:
    """Doc."""
    name: str
    size: int = 4
    def method(self, a: Missing, *b: Missing, **c: Missing) -> Missing:
        """Doc."""
        total: Missing = a
        return total

def function() -> Missing:
    if TYPE_CHECKING:
        import nothing
    def inner(x: Missing) -> Missing: return x
    return inner
'''


def scope() -> dict[str, Any]:
    found: dict[str, Any] = {}
    exec(compile_tree(strip(SOURCE, {"COMMIT": "abc"}), "x.py"), found)
    return found


def test_the_code_does_the_same() -> None:
    found = scope()
    assert (found["kept"], found["limit"], found["COMMIT"]) == (1, 3, "abc")
    assert found["Fields"]().method(5) == 5
    assert found["function"]()(6) == 6


def test_only_the_annotations_of_classes_stay() -> None:
    found = scope()
    assert found["Fields"].__annotations__ == {"name": "str", "size": "int"}
    assert not found["Fields"].method.__annotations__
    assert not found["function"].__annotations__
    assert "later" not in found
    assert "TYPE_CHECKING" not in found
    assert found["Fields"].__doc__ is None


def test_imports_of_import_time() -> None:
    tree = strip(
        "import a.b\nfrom a import c, thing\nif x:\n import d\nelse:\n import e\n"
        "try:\n import f\nexcept E:\n import g\ndef late():\n import h\nclass K:\n import k\n"
    )
    known = {"a", "a.b", "a.c", "d", "e", "f", "g", "h", "k"}
    assert imports(tree, known) == ("a", "a.b", "a.c", "d", "e", "f", "g", "k")
    with pytest.raises(ValueError, match="relative"):
        imports(ast.parse("from . import x"), known)


def test_cycles_are_named() -> None:
    check_cycles({"a": ("b", "c"), "b": ("c",), "c": ()})
    with pytest.raises(ValueError, match="import cycle: b → c → b"):
        check_cycles({"a": ("b",), "b": ("c",), "c": ("b",)})


def test_an_import_that_another_one_brings_is_not_listed() -> None:
    graph = {"a": ("b", "c", "d"), "b": ("c",), "c": (), "d": ("e",), "e": ("c",)}
    assert reduce_graph(graph) == {"a": ("b", "d"), "b": ("c",), "c": (), "d": ("e",), "e": ("c",)}


def test_empty() -> None:
    assert is_empty(strip('"""Only words."""\nfrom __future__ import annotations\n'))
    assert not is_empty(strip("x = 1"))
