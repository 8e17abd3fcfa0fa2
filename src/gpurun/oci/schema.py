"""Models of documents, declared as classes with annotations, and every mistake of a document by them.

A model says what one of pydantic's would, in the same notation.  pydantic itself is a compiled library for one Python, and
cannot be in the one-file program, which has to find all mistakes on every host.  Values are strict: an integer is no float
and no boolean.
"""

from __future__ import annotations

import difflib
import types
import typing
from collections.abc import Callable
from typing import Any, Literal

from gpurun.oci.reader import child, type_name
from gpurun.record import Record


class Problem(Record):
    """A mistake, or with *fatal* False something that is only ignored, at the JSON path *where*."""

    where: str
    what: str
    fatal: bool = True


class Field:
    """What a value must be: at least *ge*, at most *le*, of *min_length* entries; *alias* is its name in the document."""

    def __init__(self, *, ge: int | None = None, le: int | None = None, min_length: int = 0, alias: str = "") -> None:
        self.ge, self.le, self.min_length, self.alias = ge, le, min_length, alias

    def wrong(self, value: Any) -> str:
        """What is wrong with *value*; empty when nothing is."""
        if self.min_length and len(value) < self.min_length:
            return "must not be empty"
        if self.ge is not None and value < self.ge:
            return f"{value} is out of range, it must be {self.ge} or more"
        if self.le is not None and value > self.le:
            return f"{value} is out of range, it must be {self.le} or less"
        return ""


class Check:
    """A rule in words: *wrong* says what is wrong with a value, or nothing."""

    def __init__(self, wrong: Callable[[Any], str]) -> None:
        self.wrong = wrong


class Member(typing.NamedTuple):
    """One member of an object: its type, and whether it must be there."""

    annotation: Any
    required: bool


class Model:
    """An object of a document; a field with a value in the class may be left out."""

    _members: dict[str, Member] | None = None

    @classmethod
    def members(cls) -> dict[str, Member]:
        """The members that the specification has, by their names in the document, in order."""
        if cls.__dict__.get("_members") is None:
            found = {}
            for name, annotation in typing.get_type_hints(cls, include_extras=True).items():
                default = cls.__dict__.get(name, ...)
                if name != "_members":
                    own = default.alias if isinstance(default, Field) else ""
                    found[own or name] = Member(annotation, default is ... or isinstance(default, Field))
            cls._members = found
        assert cls._members is not None
        return cls._members


_PLAIN = {str: "a string", int: "an integer", bool: "true or false"}


def mistakes(kind: Any, value: Any, json_path: str = "") -> list[Problem]:
    """What is wrong with *value* as a *kind* (a type, a model, or an annotation of these), in the order of the fields."""
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if kind is Any:
        return []
    if origin is typing.Annotated:
        found = mistakes(arguments[0], value, json_path)
        for rule in arguments[1:]:
            if not found and (what := rule.wrong(value)):
                found = [Problem(json_path, what)]
        return found
    if origin in (typing.Union, types.UnionType):
        tried = [mistakes(branch, value, json_path) for branch in arguments if branch is not type(None)]
        return min(tried, key=bool)  # the first that has none, else the first
    if origin is Literal:
        return _of_literal(arguments, value, json_path)
    if origin is list:
        if not isinstance(value, list):
            return [Problem(json_path, f"must be an array, not {type_name(value)}")]
        return [problem for i, entry in enumerate(value) for problem in mistakes(arguments[0], entry, f"{json_path}[{i}]")]
    if origin is dict or (isinstance(kind, type) and issubclass(kind, Model)):
        if not isinstance(value, dict):
            return [Problem(json_path, f"must be an object, not {type_name(value)}")]
        if origin is dict:
            return [p for name, entry in value.items() for p in mistakes(arguments[1], entry, child(json_path, name))]
        return _of_model(kind, value, json_path)
    if type(value) is not kind:
        return [Problem(json_path, f"must be {_PLAIN[kind]}, not {type_name(value)}")]
    return []


def _of_literal(words: tuple[str, ...], value: Any, json_path: str) -> list[Problem]:
    if value in words and isinstance(value, str):
        return []
    if not isinstance(value, str):
        return [Problem(json_path, f"must be a string, not {type_name(value)}")]
    names = [word for word in words if word] or ['""']
    known = " or ".join([*filter(None, [", ".join(names[:-1])]), names[-1]])
    return [Problem(json_path, f'"{value}" is unknown, it must be one of {known}{likely(value, words)}')]


def _of_model(model: type[Model], value: dict[str, Any], json_path: str) -> list[Problem]:
    found = []
    for name, member in model.members().items():
        if name in value:
            found += mistakes(member.annotation, value[name], child(json_path, name))
        elif member.required:
            found.append(Problem(child(json_path, name), "is missing"))
    return found


def unknown_members(kind: Any, value: Any, json_path: str = "") -> list[Problem]:
    """Members of *value* that *kind* does not have: typing mistakes, most often.  What has another type is left out."""
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin in (typing.Annotated, typing.Union, types.UnionType):
        branches = arguments[:1] if origin is typing.Annotated else arguments
        return [problem for branch in branches for problem in unknown_members(branch, value, json_path)]
    if origin is list and isinstance(value, list):
        return [
            problem for i, entry in enumerate(value) for problem in unknown_members(arguments[0], entry, f"{json_path}[{i}]")
        ]
    if origin is dict and isinstance(value, dict):
        return [p for name, entry in value.items() for p in unknown_members(arguments[1], entry, child(json_path, name))]
    if not (isinstance(kind, type) and issubclass(kind, Model) and isinstance(value, dict)):
        return []
    members = kind.members()
    found = []
    for name in value:
        if name not in members:
            what = f"is not in the specification and ignored{likely(name, tuple(members))}"
            found.append(Problem(child(json_path, name), what, fatal=False))
    for name, member in members.items():
        if name in value:
            found += unknown_members(member.annotation, value[name], child(json_path, name))
    return found


def likely(word: str, known: tuple[str, ...]) -> str:
    """`` (did you mean "mounts"?)`` where one of *known* looks like *word*, else nothing."""
    close = difflib.get_close_matches(word, [name for name in known if name], 1, 0.7)
    return f' (did you mean "{close[0]}"?)' if close else ""
