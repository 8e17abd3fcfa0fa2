"""TOML by tomllib, as the flat dictionary that the readers of configuration files ask by ``table.key``."""

from __future__ import annotations

from gpurun.errors import ConfigError, clean

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

_MAX_DEPTH = 64


def parse(text: str, source: str) -> dict[str, Any]:
    """``table.key`` → value, for the document *text*: strings, numbers, booleans, and arrays of those and of tables.

    *source* is named in errors.  Raises :class:`ConfigError` for text that is not TOML, with its line, and for dates and
    times.
    """
    import tomllib  # 10 ms

    try:
        document = tomllib.loads(text)
    except RecursionError:
        raise ConfigError(source, "is nested too deeply") from None
    except ValueError as e:  # TOMLDecodeError, and what int() says of thousands of digits
        reason, _, place = str(e).partition(" (at ")
        line = place.partition(",")[0] if place.startswith("line ") else "" if not place else f"line {_last_line(text)}"
        raise ConfigError(f"{source}: {line}" if line else source, f"is not valid TOML: {clean(reason)}") from None
    values: dict[str, Any] = {}
    _flatten(document, "", source, values, 0)
    return values


def _last_line(text: str) -> int:
    return max(1, len(text.splitlines()))


def _flatten(table: dict[str, Any], prefix: str, source: str, values: dict[str, Any], depth: int) -> None:
    if depth > _MAX_DEPTH:
        raise ConfigError(source, "is nested too deeply")
    for name, value in table.items():
        key = f"{prefix}{name}"
        if type(value) is dict:
            _flatten(value, f"{key}.", source, values, depth + 1)
            continue
        if key in values:  # "a.b" in quotes, and b in the table a
            raise ConfigError(f"{source}: {clean(key)}", "is given twice")
        _check_plain(value, f"{source}: {clean(key)}", depth)
        values[key] = value


def _check_plain(value: Any, where: str, depth: int) -> None:
    if depth > _MAX_DEPTH:
        raise ConfigError(where, "is nested too deeply")
    if type(value) is list or type(value) is dict:
        items: Iterable[Any] = value.values() if isinstance(value, dict) else value
        for item in items:
            _check_plain(item, where, depth + 1)
    elif type(value) not in (str, int, float, bool):
        raise ConfigError(where, "is a date or a time, which no key here takes: write it in quotes")
