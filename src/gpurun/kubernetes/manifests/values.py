"""The values of a chart: the user's over its own, held to its schema (what of JSON Schema that uses)."""

from __future__ import annotations

import copy
import re
from collections.abc import Mapping
from typing import Any

from gpurun.errors import ConfigError

_TYPES: dict[str, tuple[type, ...]] = {
    "object": (dict,), "array": (list,), "string": (str,), "boolean": (bool,), "integer": (int,), "number": (int, float),
    "null": (type(None),),
}  # fmt: skip
_SHOWN = 80  # characters of a value in a sentence
_KNOWN = {
    "$schema", "$ref", "definitions", "type", "enum", "pattern", "properties", "additionalProperties", "items", "minimum",
    "maximum", "minLength", "maxLength", "minItems", "uniqueItems", "required", "description", "title",
}  # fmt: skip


def merged(values: Mapping[str, Any], more: Mapping[str, Any]) -> dict[str, Any]:
    """*values* with *more* over them: tables are merged, everything else takes the place of what was there; null removes."""
    made = copy.deepcopy(dict(values))
    for key, value in more.items():
        if value is None:
            made.pop(key, None)
        elif isinstance(value, dict) and isinstance(made.get(key), dict):
            made[key] = merged(made[key], value)
        else:
            made[key] = copy.deepcopy(value)
    return made


def check(values: object, schema: Mapping[str, Any], where: str) -> None:
    """Raise :class:`ConfigError` for the first value that *schema* does not allow, with its place below *where*."""
    _check(values, schema, schema, where)


def _check(value: Any, schema: Mapping[str, Any], top: Mapping[str, Any], where: str) -> None:
    unknown = set(schema) - _KNOWN
    assert not unknown, f"the schema says {unknown}, which nothing here checks"
    if "$ref" in schema:
        _check(value, top["definitions"][schema["$ref"].rpartition("/")[2]], top, where)
    kinds = schema.get("type", [])
    for_type = [kinds] if isinstance(kinds, str) else kinds
    allowed = tuple([kind for name in for_type for kind in _TYPES[name]])
    if allowed and (not isinstance(value, allowed) or (isinstance(value, bool) and bool not in allowed)):
        raise ConfigError(where, f"must be of type {' or '.join(for_type)}")
    if "enum" in schema and value not in schema["enum"]:
        raise ConfigError(where, f"{_short(value)} is unknown, known are {', '.join(repr(one) for one in schema['enum'])}")
    if isinstance(value, str):
        _check_text(value, where)
        # In a JSON Schema $ is the end and nothing else; in Python a line's end may follow.
        if "pattern" in schema and not re.search(re.sub(r"\$(?=\)|$)", r"\\Z", schema["pattern"]), value):
            raise ConfigError(where, f"{_short(value)} does not match {schema['pattern']}")
        _check_size(len(value), schema.get("minLength"), schema.get("maxLength"), where, "characters")
    elif isinstance(value, list):
        _check_size(len(value), schema.get("minItems"), None, where, "entries")
        if schema.get("uniqueItems") and len({repr(one) for one in value}) < len(value):
            raise ConfigError(where, "has an entry twice")
        for number, one in enumerate(value):
            _check(one, schema.get("items", {}), top, f"{where}[{number}]")
    elif isinstance(value, dict):
        _check_table(value, schema, top, where)
    elif isinstance(value, (int, float)):
        _check_size(value, schema.get("minimum"), schema.get("maximum"), where, "")


def _check_table(value: dict[Any, Any], schema: Mapping[str, Any], top: Mapping[str, Any], where: str) -> None:
    known, others = schema.get("properties", {}), schema.get("additionalProperties", True)
    for key in schema.get("required", ()):
        if key not in value:
            raise ConfigError(where, f"the key {key} is missing")
    for key, one in value.items():
        _check_text(str(key), where)
        place = f"{where}.{_short(key).strip(chr(39))}"
        if key in known:
            _check(one, known[key], top, place)
        elif others is False:
            raise ConfigError(place, f"is not known, known are {', '.join(known)}")
        elif isinstance(others, dict):
            _check(one, others, top, place)


def _check_text(text: str, where: str) -> None:
    """Half a surrogate pair is in no file, and YAML has no zero byte that is not escaped."""
    if "\0" in text or any("\ud800" <= c <= "\udfff" for c in text):
        raise ConfigError(where, f"{_short(text)} has a character that no manifest may have")


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"


def _check_size(size: float, least: float | None, most: float | None, where: str, unit: str) -> None:
    if least is not None and size < least:
        raise ConfigError(where, f"must be at least {least} {unit}".rstrip())
    if most is not None and size > most:
        raise ConfigError(where, f"must be at most {most} {unit}".rstrip())
