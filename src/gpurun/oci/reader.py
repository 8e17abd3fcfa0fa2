"""Reading JSON documents for the engine: fast, typed, and naming the JSON path that is wrong.

``json`` costs 5 ms to import (nearly all of it ``re`` and ``enum``); the C scanner under it does the same work and costs
0.6 ms, so it is used directly.  The semantics are those of Go's ``encoding/json`` as runc's callers know them: the first
value of the file counts, unknown keys are ignored, ``null`` is absent, of duplicate keys the last one wins.

Every ``get_*`` function takes the object, the key and the JSON path of the object, and returns a checked value or the
default; a value of the wrong type raises :class:`ConfigError` naming the path.
"""

from __future__ import annotations

from gpurun.errors import ConfigError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, TypeVar

    T = TypeVar("T")
    JSONObject = dict[str, Any]  # an object of a parsed document
else:
    JSONObject = dict

INT64_MIN, INT64_MAX, UINT64_MAX = -(1 << 63), (1 << 63) - 1, (1 << 64) - 1
UINT32_MAX = (1 << 32) - 1

#: The largest document that is read, in bytes: a container's annotations and the state that has them have the same bound.
MAX_DOCUMENT = 16 << 20
_WHITESPACE = " \t\n\r"


class _Context:
    """What the C scanner asks of a decoder."""

    strict = False
    object_hook = None
    object_pairs_hook = None
    parse_float = float
    parse_int = int
    memo: dict[str, str] = {}

    @staticmethod
    def parse_constant(name: str) -> Any:
        raise ValueError(f"{name} is not JSON")


def parse_json(data: bytes, source: str) -> Any:
    """The first JSON value of *data*; *source* (a file name) is named in the error.

    Raises :class:`ConfigError` when there is none, saying line and column.
    """
    from _json import make_scanner  # the import is late: a third of the commands never parse JSON

    try:
        # Not "utf-8-sig": that codec is a file of Python that would be read for it.
        text = (data[3:] if data.startswith(b"\xef\xbb\xbf") else data).decode()
    except UnicodeDecodeError as e:
        raise ConfigError(source, f"is not UTF-8 text (byte {e.start})") from None
    scan: Any = make_scanner(_Context)  # type: ignore[arg-type]
    start = len(text) - len(text.lstrip(_WHITESPACE))
    if start == len(text):
        raise ConfigError(source, "is empty, a JSON object is needed")
    try:
        value = scan(text, start)[0]
        return _whole_characters(value) if "\\ud" in text or "\\uD" in text else value
    except RecursionError:
        raise ConfigError(source, "is nested too deeply") from None
    except (StopIteration, ValueError, SystemError):
        # A SystemError: the scanner has its error class only if something has imported it.
        import json.decoder  # noqa: F401
    try:
        scan(text, start)
        raise AssertionError("the scanner accepts what it refused")
    except StopIteration as e:
        position, reason = int(e.value), "a JSON value is expected"
    except ValueError as e:
        position, reason = int(getattr(e, "pos", start)), str(getattr(e, "msg", e))
    line = text.count("\n", 0, position) + 1
    column = position - text.rfind("\n", 0, position)
    raise ConfigError(source, f"is not valid JSON at line {line}, column {column}: {reason[:1].lower()}{reason[1:]}")


def _whole_characters(value: Any) -> Any:
    """*value* with U+FFFD for each half of an unpaired surrogate, as Go reads it: no file name can have one."""
    if type(value) is str:
        return value if value.isascii() else "".join(["\ufffd" if "\ud800" <= c <= "\udfff" else c for c in value])
    if type(value) is list:
        return [_whole_characters(one) for one in value]
    if type(value) is dict:
        return {_whole_characters(key): _whole_characters(one) for key, one in value.items()}
    return value


def child(json_path: str, key: str) -> str:
    """The JSON path of member *key* of the object at *json_path*."""
    return f"{json_path}.{key}" if json_path else key


def type_name(value: Any) -> str:
    """The JSON name of the type of *value*, for error messages."""
    if value is None:
        return "null"
    for python, json in ((bool, "a boolean"), (int, "a number"), (float, "a number"), (str, "a string"), (list, "an array")):
        if isinstance(value, python):
            return json
    return "an object"


def wrong_type(json_path: str, wanted: str, value: Any) -> ConfigError:
    """The error for a *value* at *json_path* that is not *wanted* ("a string")."""
    return ConfigError(json_path, f"must be {wanted}, not {type_name(value)}")


def as_object(value: Any, json_path: str) -> JSONObject:
    """*value*, if it is an object.  Raises :class:`ConfigError` at *json_path*."""
    if type(value) is not dict:
        raise wrong_type(json_path, "an object", value)
    return value


def as_string(value: Any, json_path: str) -> str:
    """*value*, if it is a string without NUL.  Raises :class:`ConfigError` at *json_path*."""
    if type(value) is not str:
        raise wrong_type(json_path, "a string", value)
    if "\0" in value:
        raise ConfigError(json_path, "contains a null byte")
    return value


def as_int(value: Any, json_path: str, low: int = INT64_MIN, high: int = INT64_MAX) -> int:
    """*value*, if it is an integer from *low* to *high*.  Raises :class:`ConfigError` at *json_path*."""
    if type(value) is not int:
        raise wrong_type(json_path, "an integer", value)
    if not low <= value <= high:
        raise ConfigError(json_path, f"{value} is out of range, it must be from {low} to {high}")
    return value


def get_object(obj: JSONObject, key: str, json_path: str) -> JSONObject | None:
    """The object *key* of *obj*, None where it is absent or null.  Raises :class:`ConfigError`."""
    value = obj.get(key)
    return None if value is None else as_object(value, child(json_path, key))


def get_string(obj: JSONObject, key: str, json_path: str) -> str:
    """The string *key* of *obj*, empty where it is absent or null.  Raises :class:`ConfigError`."""
    value = obj.get(key)
    return "" if value is None else as_string(value, child(json_path, key))


def get_bool(obj: JSONObject, key: str, json_path: str) -> bool:
    """The boolean *key* of *obj*, false where it is absent or null.  Raises :class:`ConfigError`."""
    value = obj.get(key)
    if value is None:
        return False
    if type(value) is not bool:
        raise wrong_type(child(json_path, key), "true or false", value)
    return value


def get_int(obj: JSONObject, key: str, json_path: str, low: int = INT64_MIN, high: int = INT64_MAX) -> int | None:
    """The integer *key* of *obj*, from *low* to *high*; None where it is absent or null.  Raises :class:`ConfigError`."""
    value = obj.get(key)
    return None if value is None else as_int(value, child(json_path, key), low, high)


def get_array(obj: JSONObject, key: str, json_path: str, read: Callable[[Any, str], T]) -> tuple[T, ...]:
    """The array *key*, each element read by ``read(value, path)``; absent or null is the empty tuple.

    Raises :class:`ConfigError` for what is not an array.
    """
    value = obj.get(key)
    if value is None:
        return ()
    path = child(json_path, key)
    if type(value) is not list:
        raise wrong_type(path, "an array", value)
    return tuple([read(v, f"{path}[{i}]") for i, v in enumerate(value)])


def get_strings(obj: JSONObject, key: str, json_path: str) -> tuple[str, ...]:
    """The array of strings *key* of *obj*, empty where it is absent or null.  Raises :class:`ConfigError`."""
    return get_array(obj, key, json_path, as_string)


def get_string_map(obj: JSONObject, key: str, json_path: str) -> dict[str, str]:
    """The object of strings *key* of *obj*, empty where it is absent or null.  Raises :class:`ConfigError`."""
    value = get_object(obj, key, json_path)
    if value is None:
        return {}
    path = child(json_path, key)
    for k, v in value.items():
        as_string(v, child(path, k))
    return value


def require(value: T | None, json_path: str, key: str) -> T:
    """*value*, or the error that the member *key* of the object at *json_path* is missing.  Raises :class:`ConfigError`."""
    if value is None:
        raise ConfigError(child(json_path, key), "is missing")
    return value
