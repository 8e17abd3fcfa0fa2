"""YAML by PyYAML, bounded, with the scalars of CDI files resolved as the reference library resolves them.

Plain scalars are those of YAML 1.1 (``0666`` is octal); the writer of CDI files asks
:func:`resolve_plain` what needs quotes.  The loader is PyYAML's own in Python: of 200,000 nested brackets the one in C
(libyaml's) dies with SIGSEGV.
"""

from __future__ import annotations

from gpurun.errors import ConfigError, clean

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    import yaml

_NULL = ("", "~", "null", "Null", "NULL")
_TRUE = ("true", "True", "TRUE", "yes", "Yes", "YES", "on", "On", "ON")
_FALSE = ("false", "False", "FALSE", "no", "No", "NO", "off", "Off", "OFF")
_STR_TAG = "tag:yaml.org,2002:str"
_MAX_VALUES = 100_000  # aliases can make a few lines stand for billions
_MAX_SIZE = 1 << 20  # bytes: eight GPUs need 40 KB, and PyYAML a second and a half for a MiB


def read_yaml(data: bytes, source: str) -> Any:
    """The one document in *data*: dictionaries, lists, strings, numbers, booleans, None.  *source* is named in errors.

    Raises :class:`ConfigError` for what is not YAML, has a tag of its own, or is too large, too deep or of too many values.
    """
    try:
        text = (data[3:] if data.startswith(b"\xef\xbb\xbf") else data).decode()
    except UnicodeDecodeError as e:
        raise ConfigError(source, f"is not UTF-8 text (byte {e.start})") from None
    if len(data) > _MAX_SIZE:
        raise ConfigError(source, f"is larger than {_MAX_SIZE >> 20} MiB, more YAML is not read: write it as JSON")
    import yaml  # 20 ms

    try:
        node = _compose(yaml.BaseLoader(text), source)
        return None if node is None else _value(node, source, 0, [_MAX_VALUES])
    except yaml.MarkedYAMLError as e:
        mark = e.problem_mark or e.context_mark
        where = f"{source}: line {mark.line + 1}" if mark else source
        raise ConfigError(where, f"is not valid YAML: {clean(e.problem or e.context or '')}") from None
    except yaml.YAMLError as e:
        raise ConfigError(source, f"is not valid YAML: {clean(str(e).splitlines()[0])}") from None
    except RecursionError:
        raise ConfigError(source, "is nested too deeply") from None
    except (ValueError, OverflowError):  # of chr() and int() in PyYAML
        raise ConfigError(source, "is not valid YAML: it has an escape or a number that stands for nothing") from None


def resolve_plain(text: str) -> Any:
    """The value of the plain scalar *text*: null, boolean, integer, float or the text itself."""
    if text in _NULL:
        return None
    if text in _TRUE:
        return True
    if text in _FALSE:
        return False
    if text[0] in "+-.0123456789":
        number = _number(text)
        if number is not None:
            return number
    return text


_MAX_NUMBER = 400  # characters: longer ones are words; int() refuses those of more than 4300 digits


def _number(text: str) -> int | float | None:
    digits = text.lstrip("+-") if len(text) - len(text.lstrip("+-")) <= 1 else ""
    bare = digits.replace("_", "")
    if not bare or not digits[0].isascii() or digits[0] == "_" or len(text) > _MAX_NUMBER:
        return None
    sign = -1 if text[0] == "-" else 1
    if bare.isascii() and bare.isdigit():
        if bare[0] == "0" and len(bare) > 1:
            return sign * int(bare, 8) if not set(bare) & set("89") else None
        return sign * int(bare)
    for prefix, base in (("0x", 16), ("0o", 8), ("0b", 2)):
        if bare.startswith(prefix):
            try:
                return sign * int(bare[2:], base)
            except ValueError:
                return None
    if bare in (".inf", ".Inf", ".INF"):
        return sign * float("inf")
    if set(digits) <= set("0123456789.eE+-") and any(c.isdigit() for c in digits) and digits[0] not in "eE":
        try:
            return sign * float(digits)
        except ValueError:
            return None
    return None


def _compose(loader: yaml.BaseLoader, source: str) -> yaml.Node | None:
    """The nodes of the one document that *loader* reads, refused as soon as there are too many of them."""
    compose_node, left = loader.compose_node, [_MAX_VALUES]

    def counted(parent: Any, index: Any) -> Any:
        left[0] -= 1
        if left[0] < 0:
            raise ConfigError(f"{source}: line {loader.line + 1}", f"has more than {_MAX_VALUES} values")
        return compose_node(parent, index)

    loader.compose_node = counted  # type: ignore[method-assign]
    try:
        return loader.get_single_node()
    finally:
        loader.dispose()


def _value(node: yaml.Node, source: str, depth: int, left: list[int]) -> Any:
    """The value of *node*; *left* counts down how many values the document may still have."""
    import yaml

    where = f"{source}: line {node.start_mark.line + 1}"
    left[0] -= 1
    if depth > 64 or left[0] < 0:
        raise ConfigError(where, "is nested too deeply" if depth > 64 else f"has more than {_MAX_VALUES} values")
    if not node.tag.startswith("tag:yaml.org,2002:"):
        raise ConfigError(where, f"has the tag {node.tag}, which means nothing here")
    if isinstance(node, yaml.ScalarNode):
        return resolve_plain(node.value) if node.style is None and node.tag == _STR_TAG else _whole(node, where)
    if isinstance(node, yaml.SequenceNode):
        return [_value(n, source, depth + 1, left) for n in node.value]
    made = {}
    for key_node, value_node in node.value:
        if not isinstance(key_node, yaml.ScalarNode):
            raise ConfigError(where, "has a key that is not a word")
        key = _whole(key_node, where)
        if key in made:
            raise ConfigError(f"{source}: line {key_node.start_mark.line + 1}", f'has the key "{key}" twice')
        made[key] = _value(value_node, source, depth + 1, left)
    return made


def _whole(node: yaml.ScalarNode, where: str) -> str:
    """The text of *node*.  PyYAML takes escapes for halves of a surrogate pair, which are no characters of any file."""
    text: str = node.value
    if not text.isascii() and any("\ud800" <= c <= "\udfff" for c in text):
        raise ConfigError(where, "has an escape that is no character (\\uD800 to \\uDFFF)")
    return text
