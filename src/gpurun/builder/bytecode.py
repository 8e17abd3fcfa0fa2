"""Source text → the smallest code object that does the same, and the modules it imports on import; pure."""

from __future__ import annotations
import __future__

import ast
from types import CodeType


class _Strip(ast.NodeTransformer):
    """Takes out what only type checkers read: ``if TYPE_CHECKING``, annotations, ``from __future__``.

    Annotations of classes stay: a :class:`gpurun.record.Record` is made of them.
    """

    def __init__(self, constants: dict[str, str]) -> None:
        self.constants = constants
        self.in_class = False

    def visit_If(self, node: ast.If) -> ast.AST | list[ast.stmt]:
        self.generic_visit(node)
        return node.orelse if isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING" else node

    def visit_ImportFrom(self, node: ast.ImportFrom) -> ast.AST | None:
        return None if node.module == "__future__" else node

    def visit_Assign(self, node: ast.Assign) -> ast.AST | None:
        self.generic_visit(node)
        target = node.targets[0]
        if isinstance(target, ast.Name):
            if target.id == "TYPE_CHECKING":
                return None
            if target.id in self.constants and not self.in_class:
                node.value = ast.Constant(self.constants[target.id])
        return node

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AST | None:
        self.generic_visit(node)
        if self.in_class:
            return node
        return ast.copy_location(ast.Assign([node.target], node.value), node) if node.value else None

    def visit_ClassDef(self, node: ast.ClassDef) -> ast.AST:
        return self._body(node, in_class=True)

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        node.returns = None
        return self._body(node, in_class=False)

    def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> ast.AST:
        node.returns = None
        return self._body(node, in_class=False)

    def visit_arg(self, node: ast.arg) -> ast.AST:
        node.annotation = None
        return node

    def _body(self, node: ast.AST, in_class: bool) -> ast.AST:
        outer, self.in_class = self.in_class, in_class
        self.generic_visit(node)
        self.in_class = outer
        return node


def _fill(tree: ast.AST) -> None:
    """Put ``pass`` where taking statements out has left a block empty."""
    for node in ast.walk(tree):
        if isinstance(getattr(node, "body", None), list) and not node.body and not isinstance(node, ast.Module):  # type: ignore[attr-defined]
            node.body = [ast.Pass()]  # type: ignore[attr-defined]


def strip(source: str, constants: dict[str, str] | None = None) -> ast.Module:
    """The tree of *source* without what only type checkers read; module *constants* get other values."""
    tree = ast.parse(source)
    _Strip(constants or {}).visit(tree)
    _fill(tree)
    return ast.fix_missing_locations(tree)


def compile_tree(tree: ast.Module, filename: str) -> CodeType:
    """The code of a stripped *tree*, without docstrings and assertions; *filename* is what tracebacks show."""
    code: CodeType = compile(tree, filename, "exec", __future__.annotations.compiler_flag, dont_inherit=True, optimize=2)
    return _without_lines(code)


def _without_lines(code: CodeType) -> CodeType:
    """*code* without its line table, a fifth of its size; the first line of each function stays known."""
    consts = tuple([_without_lines(c) if isinstance(c, CodeType) else c for c in code.co_consts])
    return code.replace(co_linetable=b"", co_consts=consts)


def is_empty(tree: ast.Module) -> bool:
    """Whether running the module does nothing (a docstring is nothing)."""
    return all(isinstance(s, ast.Expr) and isinstance(s.value, ast.Constant) for s in tree.body)


def imports(tree: ast.Module, known: set[str]) -> tuple[str, ...]:
    """Those of the modules *known* that the stripped *tree* imports while it is being imported, and their packages."""
    found: dict[str, None] = {}

    def add(name: str) -> None:
        parts = name.split(".")
        for i in range(1, len(parts) + 1):
            if ".".join(parts[:i]) in known:
                found[".".join(parts[:i])] = None

    def walk(statements: list[ast.stmt]) -> None:
        for s in statements:
            if isinstance(s, ast.Import):
                for alias in s.names:
                    add(alias.name)
            elif isinstance(s, ast.ImportFrom):
                if s.level or not s.module:
                    raise ValueError(f"line {s.lineno}: relative imports are not used in gpurun")
                add(s.module)
                for alias in s.names:
                    if f"{s.module}.{alias.name}" in known:
                        add(f"{s.module}.{alias.name}")
            elif not isinstance(s, (ast.FunctionDef, ast.AsyncFunctionDef)):
                for _, inner in ast.iter_fields(s):
                    if isinstance(inner, list) and inner and isinstance(inner[0], ast.stmt):
                        walk(inner)
                    elif isinstance(inner, list) and inner and isinstance(inner[0], ast.ExceptHandler):
                        for handler in inner:
                            walk(handler.body)

    walk(tree.body)
    return tuple(found)


def check_cycles(graph: dict[str, tuple[str, ...]]) -> None:
    """Raise ValueError naming the modules when imports go round in a circle."""
    done: set[str] = set()

    def visit(name: str, path: tuple[str, ...]) -> None:
        if name in path:
            raise ValueError("import cycle: " + " → ".join((*path[path.index(name) :], name)))
        if name not in done:
            for wanted in graph[name]:
                visit(wanted, (*path, name))
            done.add(name)

    for name in graph:
        visit(name, ())


def reduce_graph(graph: dict[str, tuple[str, ...]]) -> dict[str, tuple[str, ...]]:
    """*graph*, which has no circle, without the imports of a module that another of its imports brings: loading a module
    looks at each of them, and would find it there already."""
    brings: dict[str, set[str]] = {}

    def brought(name: str) -> set[str]:
        if name not in brings:
            brings[name] = set(graph[name]).union(*[brought(wanted) for wanted in graph[name]])
        return brings[name]

    return {
        name: tuple([w for w in wanted if not any(w in brought(other) for other in wanted)])
        for name, wanted in graph.items()
    }
