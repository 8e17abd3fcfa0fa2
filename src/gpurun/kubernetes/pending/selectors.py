"""CEL selectors of devices, as far as they can be read without CEL: comparisons of one value each, joined by ``&&``.

What is not understood is said to be so, and excludes nothing.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from decimal import Decimal, InvalidOperation
from typing import Any

Object = Mapping[str, Any]

_PLACE = r"device\.(attributes|capacity)\[(?:'([^']*)'|\"([^\"]*)\")\]\.(\w+)"
_LITERAL = r"(?:'[^']*'|\"[^\"]*\"|-?\d+|true|false)"
_COMPARED = re.compile(rf"{_PLACE}\s*(==|!=|<=|>=|<|>)\s*({_LITERAL})", re.ASCII)
_AMONG = re.compile(rf"{_PLACE}\s+in\s+\[\s*({_LITERAL}(?:\s*,\s*{_LITERAL})*)\s*\]", re.ASCII)
_SAID = re.compile(rf"{_PLACE}\.(startsWith|endsWith|contains|matches)\(({_LITERAL})\)", re.ASCII)
_ORDERED = re.compile(
    rf"{_PLACE}\.compareTo\((quantity|semver)\(({_LITERAL})\)\)\s*(==|!=|<=|>=|<|>)\s*0", re.ASCII
)  # fmt: skip
_DRIVER = re.compile(rf"device\.driver\s*(==|!=)\s*({_LITERAL})", re.ASCII)
_UNITS = {"": 1, "k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "Ki": 1 << 10, "Mi": 1 << 20, "Gi": 1 << 30, "Ti": 1 << 40}


def excluded_by(expression: str, driver: str, device: Object) -> str | None:
    """Why *expression* does not let *device* of *driver* pass; empty: it does; None: it is not understood."""
    unknown = False
    for part in _conjuncts(expression):
        why = _part(part, driver, device)
        if why:
            return why
        unknown = unknown or why is None
    return None if unknown else ""


def _conjuncts(expression: str) -> list[str]:
    """The parts between ``&&`` that are in no parentheses and no text."""
    parts, depth, quote, begin = [], 0, "", 0
    for at, character in enumerate(expression):
        if quote:
            quote = "" if character == quote else quote
        elif character in "'\"":
            quote = character
        elif character in "([":
            depth += 1
        elif character in ")]":
            depth -= 1
        elif depth == 0 and expression.startswith("&&", at):
            parts.append(expression[begin:at])
            begin = at + 2
    return [part.strip() for part in [*parts, expression[begin:]]]


def _part(part: str, driver: str, device: Object) -> str | None:
    if found := _DRIVER.fullmatch(part):
        return "" if _holds(driver, found[1], _literal(found[2])) else f"its driver is {driver}"
    for pattern in (_COMPARED, _AMONG, _SAID, _ORDERED):
        found = pattern.fullmatch(part)
        if found:
            kind, domain, name = found[1], found[2] or found[3] or "", found[4]
            value = _value(device, driver, kind, domain, name)
            if value is None:
                return f"it has no {name}"
            passes = _passes(pattern, value, found)
            return passes if passes is None else "" if passes else f"{name} is {value}"
    return None


def _passes(pattern: re.Pattern[str], value: Any, found: re.Match[str]) -> bool | None:
    if pattern is _COMPARED:
        return _holds(value, found[5], _literal(found[6]))
    if pattern is _AMONG:
        return value in [_literal(one) for one in re.findall(_LITERAL, found[5])]
    if pattern is _SAID:
        word = str(_literal(found[6]))
        if found[5] == "matches":  # RE2 is not Python's, and a hostile pattern would keep us busy
            return None
        return bool(
            getattr(str(value), {"startsWith": "startswith", "endsWith": "endswith"}.get(found[5], "__contains__"))(word)
        )
    left, right = (_quantity if found[5] == "quantity" else _version)(value), None
    right = (_quantity if found[5] == "quantity" else _version)(_literal(found[6]))
    return None if left is None or right is None else _holds(left, found[7], right)


def _value(device: Object, driver: str, kind: str, domain: str, name: str) -> Any:
    """The value of an attribute or a capacity; names without a domain are in the driver's own."""
    table = device.get(kind) or {}
    found = table.get(f"{domain}/{name}") if f"{domain}/{name}" in table or domain != driver else table.get(name)
    if not isinstance(found, dict):
        return None
    return next(iter(found.values()), None)


def _holds(left: Any, operator: str, right: Any) -> bool:
    if operator in ("==", "!="):
        return bool(left == right) is (operator == "==")
    try:
        return bool({"<": left < right, "<=": left <= right, ">": left > right, ">=": left >= right}[operator])
    except TypeError:
        return False


def _literal(text: str) -> Any:
    if text in ("true", "false"):
        return text == "true"
    return text[1:-1] if text[0] in "'\"" else int(text)


def _quantity(value: Any) -> Decimal | None:
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([kMGT]|[KMGT]i)?", str(value), re.ASCII)
    try:
        return Decimal(found[1]) * _UNITS[found[2] or ""] if found else None
    except InvalidOperation:
        return None


def _version(value: Any) -> tuple[int, ...] | None:
    found = re.fullmatch(r"(\d{1,9})\.(\d{1,9})\.(\d{1,9})", str(value), re.ASCII)
    return tuple([int(number) for number in found.groups()]) if found else None
