"""The functions of a chart's templates: Go's own and helm's (sprig), with their order of arguments."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import Any, NoReturn

import yaml

from gpurun.kubernetes.manifests.template import TemplateError, printed

_NUMBERS = re.compile(r"v?(\d+)\.(\d+)(?:\.(\d+))?")


def to_yaml(value: object) -> str:
    """*value* in YAML, without the newline at its end."""
    return (
        yaml.safe_dump(value, default_flow_style=False, width=10**6, allow_unicode=True)
        .removesuffix("\n")
        .removesuffix("\n...")
    )


def indent(spaces: int, text: str) -> str:
    """*text* with *spaces* blanks before each line."""
    return "\n".join([" " * spaces + line for line in text.split("\n")])


def semver_compare(wanted: str, version: str) -> bool:
    """Whether *version* is at least that of ``>=X.Y.Z-0``, the one comparison that is known.  Raises TemplateError."""
    found, least = _NUMBERS.match(version), _NUMBERS.match(wanted.removeprefix(">="))
    if found is None or least is None or not (wanted.startswith(">=") and wanted.endswith("-0")):
        raise TemplateError(f"semverCompare: cannot compare {version!r} with {wanted!r}")
    return [int(n or 0) for n in found.groups()] >= [int(n or 0) for n in least.groups()]


def _fail(text: str) -> NoReturn:
    raise TemplateError(text)


def _index(value: Any, *keys: Any) -> Any:
    for key in keys:
        try:
            value = value.get(key) if isinstance(value, dict) else value[key]
        except (TypeError, IndexError):
            raise TemplateError(f"index: there is no {key!r}") from None
    return value


def _printf(form: str, *values: Any) -> str:
    left = list(values)

    def one(found: re.Match[str]) -> str:
        if found[0] == "%%":
            return "%"
        value = left.pop(0)
        return json.dumps(printed(value), ensure_ascii=False) if found[0] == "%q" else printed(value)

    return re.sub(r"%[%sqdv]", one, form)


def _and(*values: Any) -> Any:
    return next((value for value in values if not value), values[-1])


def _or(*values: Any) -> Any:
    return next((value for value in values if value), values[-1])


def _quote(*values: Any) -> str:
    return " ".join([json.dumps(printed(value), ensure_ascii=False) for value in values if value is not None])


def _dict(*pairs: Any) -> dict[str, Any]:
    return dict(sorted(zip(pairs[::2], pairs[1::2], strict=True)))


def _replace_all(pattern: str, text: str, by: str) -> str:
    return re.sub(pattern, re.sub(r"\$\{(\w+)\}", r"\\g<\1>", by.replace("\\", "\\\\")), text)


def _kind(value: object) -> str:
    names = {bool: "bool", str: "string", int: "float64", float: "float64", list: "slice", dict: "map"}
    return names.get(type(value), "invalid")


FUNCTIONS: Mapping[str, Callable[..., Any]] = {
    "and": _and, "or": _or, "not": lambda value: not value, "index": _index, "printf": _printf, "len": len,
    "eq": lambda value, *others: value in others, "ne": lambda value, other: value != other,
    "lt": lambda one, other: one < other, "le": lambda one, other: one <= other,
    "gt": lambda one, other: one > other, "ge": lambda one, other: one >= other,
    "list": lambda *values: list(values), "dict": _dict, "hasKey": lambda table, key: key in table,
    "has": lambda value, values: value in (values or ()), "get": lambda table, key: table.get(key, ""),
    "default": lambda instead, value=None: value or instead, "empty": lambda value: not value,
    "coalesce": lambda *values: next((value for value in values if value), None),
    "ternary": lambda yes, no, which: yes if which else no,
    "kindIs": lambda kind, value: _kind(value) == kind, "kindOf": _kind,
    "quote": _quote, "squote": lambda value: f"'{printed(value)}'", "toString": printed,
    "join": lambda separator, values: separator.join([printed(value) for value in values]),
    "trim": lambda text: text.strip(), "lower": lambda text: text.lower(), "upper": lambda text: text.upper(),
    "trimSuffix": lambda end, text: text.removesuffix(end), "trimPrefix": lambda start, text: text.removeprefix(start),
    "contains": lambda part, text: part in text, "replace": lambda old, new, text: text.replace(old, new),
    "regexReplaceAll": _replace_all, "regexMatch": lambda pattern, text: re.search(pattern, text) is not None,
    "indent": indent, "nindent": lambda spaces, text: "\n" + indent(spaces, text),
    "toYaml": to_yaml, "fromYaml": yaml.safe_load, "toJson": lambda value: json.dumps(value, sort_keys=True),
    "semverCompare": semver_compare, "fail": _fail, "required": lambda why, value: value if value else _fail(why),
}  # fmt: skip
