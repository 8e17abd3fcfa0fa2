"""Go's text/template, as much of it as a chart uses: parsed once, then rendered for some data.

``{{ }}`` with trimming, comments, ``define``, ``if``/``else if``/``else``, ``range``, ``with``, variables, pipelines,
fields, parentheses and functions (:mod:`.functions`).  What is not known here is an error and not left out: the same file
must mean the same here and in helm.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from gpurun.errors import GpurunError
from gpurun.record import Record

_ACTION = re.compile(r"\{\{(-\s)?\s*(.*?)\s*(\s-)?\}\}", re.DOTALL)
_TOKEN = re.compile(
    r"""\s+|(?P<string>"(?:[^"\\]|\\.)*"|`[^`]*`)|(?P<number>-?\d+(?:\.\d+)?)(?![\w.])|(?P<assign>:?=)|(?P<mark>[()|,])"""
    r"""|(?P<variable>\$\w*)|(?P<field>\.\w*)|(?P<word>\w+)"""
)
_CONSTANTS = {"true": True, "false": False, "nil": None}

Function = Callable[..., Any]
Expression = tuple[Any, ...]


class TemplateNode(Record):
    """A piece of a template: *kind* ``text``, ``print``, ``set``, ``if``, ``range`` or ``with``; *names* are variables."""

    kind: str
    text: str = ""
    expression: Expression = ()
    names: tuple[str, ...] = ()
    body: tuple[Any, ...] = ()
    otherwise: tuple[Any, ...] = ()


Blocks = dict[str, tuple[TemplateNode, ...]]


class TemplateError(GpurunError):
    """What is wrong with a template, or with the values that it was given."""


def parse(text: str, where: str, blocks: Blocks) -> tuple[TemplateNode, ...]:
    """The nodes of *text*; what it defines goes to *blocks*.  Raises :class:`TemplateError` with *where*."""
    try:
        nodes, end = _nodes(_pieces(text), blocks)
    except StopIteration:
        raise TemplateError(f"{where}: a block has no end") from None
    except TemplateError as e:
        raise TemplateError(f"{where}: {e}") from None
    if end:
        raise TemplateError(f"{where}: {{{{ {end} }}}} without a block")
    return nodes


def _pieces(text: str) -> Iterator[tuple[bool, str]]:
    """(whether it is an action, its text), with the blanks gone that actions trim."""
    at, trim = 0, False
    for found in _ACTION.finditer(text):
        before = text[at : found.start()]
        before = before.lstrip() if trim else before
        yield False, before.rstrip() if found[1] else before
        if not found[2].startswith("/*"):
            yield True, found[2]
        at, trim = found.end(), bool(found[3])
    yield False, text[at:].lstrip() if trim else text[at:]
    yield True, ""  # the end


def _nodes(pieces: Iterator[tuple[bool, str]], blocks: Blocks) -> tuple[tuple[TemplateNode, ...], str]:
    """(the nodes, the action that ended them: ``end``, ``else …``, or empty at the end of the text)."""
    made: list[TemplateNode] = []
    while True:
        action, text = next(pieces)
        if not action:
            if text:
                made.append(TemplateNode("text", text))
            continue
        word, _, rest = text.partition(" ")
        if not text or word in ("end", "else"):
            return tuple(made), text
        if word == "define":
            body, _ = _nodes(pieces, blocks)
            blocks[_string(rest.strip())] = body
        elif word in ("if", "with", "range"):
            made.append(_block(word, rest, pieces, blocks))
        else:
            names, expression = _assigned(text)
            made.append(TemplateNode("set" if names else "print", "", expression, names))


def _block(word: str, rest: str, pieces: Iterator[tuple[bool, str]], blocks: Blocks) -> TemplateNode:
    names, expression = _assigned(rest)
    body, end = _nodes(pieces, blocks)
    otherwise: tuple[TemplateNode, ...] = ()
    if end.startswith("else"):
        following = end[4:].strip()
        if following:
            inner, _, condition = following.partition(" ")
            otherwise = (_block(inner, condition, pieces, blocks),)
        else:
            otherwise, end = _nodes(pieces, blocks)
    elif end != "end":
        raise TemplateError(f"{{{{ {word} }}}} has no end")
    return TemplateNode(word, "", expression, names, body, otherwise)


def _assigned(text: str) -> tuple[tuple[str, ...], Expression]:
    """(variables, expression) of ``$a, $b := expression``, or only of an expression."""
    tokens = _tokens(text)
    at = next((i for i, (kind, _) in enumerate(tokens) if kind == "assign"), -1)
    names = tuple([value for kind, value in tokens[: max(at, 0)] if kind == "variable"])
    left = tokens[at + 1 :]
    made = _pipeline(left)
    if left:
        raise TemplateError(f"cannot read {text!r}")
    return names, made


def _tokens(text: str) -> list[tuple[str, str]]:
    made: list[tuple[str, str]] = []
    at = 0
    while at < len(text):
        found = _TOKEN.match(text, at)
        if found is None:
            raise TemplateError(f"cannot read {text!r}")
        if found.lastgroup:
            blank = at == 0 or text[at - 1].isspace() or text[at - 1] in "(|,"
            made.append(("chain" if found.lastgroup == "field" and not blank else found.lastgroup, found[0]))
        at = found.end()
    return made


def _pipeline(tokens: list[tuple[str, str]]) -> Expression:
    made = _command(tokens)
    while tokens and tokens[0] == ("mark", "|"):
        tokens.pop(0)
        following = _command(tokens)
        if following[0] != "call":
            raise TemplateError(f"a pipe leads to {following[0]}, which is not a function")
        made = (*following, made)
    return made


def _command(tokens: list[tuple[str, str]]) -> Expression:
    if tokens and tokens[0][0] == "word" and tokens[0][1] not in _CONSTANTS:
        name = tokens.pop(0)[1]
        arguments = []
        while tokens and tokens[0] not in (("mark", ")"), ("mark", "|")):
            arguments.append(_operand(tokens))
        return "call", name, *arguments
    return _operand(tokens)


def _operand(tokens: list[tuple[str, str]]) -> Expression:
    if not tokens:
        raise TemplateError("an expression is missing")
    kind, text = tokens.pop(0)
    made: Expression
    if (kind, text) == ("mark", "("):
        made = _pipeline(tokens)
        if not tokens or tokens.pop(0) != ("mark", ")"):
            raise TemplateError("a parenthesis has no end")
    elif kind == "string":
        made = ("value", _string(text))
    elif kind == "number":
        made = ("value", float(text) if "." in text else int(text))
    elif kind == "variable":
        made = ("variable", text)
    elif kind == "field":
        made = ("field", ("dot",), text[1:]) if text != "." else ("dot",)
    elif kind == "word":
        made = ("value", _CONSTANTS[text]) if text in _CONSTANTS else ("call", text)
    else:
        raise TemplateError(f"cannot read {text!r}")
    while tokens and tokens[0][0] == "chain":
        made = ("field", made, tokens.pop(0)[1][1:])
    return made


def _string(text: str) -> str:
    if text.startswith("`"):
        return text[1:-1]
    return re.sub(r"\\(.)", lambda found: {"n": "\n", "t": "\t"}.get(found[1], found[1]), text[1:-1], flags=re.DOTALL)


class Renderer:
    """Renders nodes with *functions*, which get evaluated arguments; ``include`` is its own."""

    def __init__(self, blocks: Mapping[str, Sequence[TemplateNode]], functions: Mapping[str, Function]) -> None:
        self._blocks = blocks
        self._functions = {**functions, "include": self.include}

    def include(self, name: str, data: object) -> str:
        """The block *name* for *data*.  Raises :class:`TemplateError`."""
        if name not in self._blocks:
            raise TemplateError(f"there is no template {name!r}")
        return self.render(self._blocks[name], data)

    def render(self, nodes: Sequence[TemplateNode], data: object) -> str:
        """The text of *nodes* for *data*.  Raises :class:`TemplateError`."""
        return "".join(self._texts(nodes, data, {"$": data}))

    def _texts(self, nodes: Sequence[TemplateNode], dot: object, scope: dict[str, Any]) -> Iterator[str]:
        for node in nodes:
            if node.kind == "text":
                yield node.text
                continue
            value = self._value(node.expression, dot, scope)
            if node.kind == "print":
                yield printed(value)
            elif node.kind == "set":
                scope[node.names[0]] = value
            elif node.kind == "range" and value:
                for key, one in value.items() if isinstance(value, dict) else enumerate(value):
                    pair = (one,) if len(node.names) == 1 else (key, one)
                    yield from self._texts(node.body, one, scope | dict(zip(node.names, pair, strict=False)))
            else:
                inner = value if node.kind == "with" and value else dot
                more = {node.names[0]: value} if node.names else {}
                yield from self._texts(node.body if value else node.otherwise, inner, scope | more)

    def _value(self, expression: Expression, dot: object, scope: Mapping[str, Any]) -> Any:
        kind, *rest = expression
        if kind == "value":
            return rest[0]
        if kind == "dot":
            return dot
        if kind == "variable":
            if rest[0] not in scope:
                raise TemplateError(f"there is no variable {rest[0]}")
            return scope[rest[0]]
        if kind == "field":
            owner = self._value(rest[0], dot, scope)
            return owner.get(rest[1]) if isinstance(owner, dict) else None
        name, *arguments = rest
        if name not in self._functions:
            raise TemplateError(f"the function {name} is not known here: helm may know it")
        return self._functions[name](*[self._value(one, dot, scope) for one in arguments])


def printed(value: object) -> str:
    """*value* as a template prints it."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value)
