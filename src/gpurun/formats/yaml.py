"""The YAML that generators of CDI files write, read in one pass: block mappings and sequences of plain and quoted scalars.

PyYAML takes 25 ms to import and as long again for an ordinary file, more than all the rest of ``create``.  What this reader
does not know for certain (anchors, tags, block scalars, flow collections that are not empty or of plain words, tabs)
it does not guess: it raises :class:`OtherYaml`, and :func:`read_yaml` hands the whole text to PyYAML.

Plain scalars are resolved as YAML 1.1 and the reference library do (``0666`` is octal), by one function for both ways.
"""

from __future__ import annotations

from gpurun.errors import ConfigError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    import yaml

    Line = tuple[int, str, int]  # indentation, text without it, number

_NULL = ("", "~", "null", "Null", "NULL")
_TRUE = ("true", "True", "TRUE", "yes", "Yes", "YES", "on", "On", "ON")
_FALSE = ("false", "False", "FALSE", "no", "No", "NO", "off", "Off", "OFF")
#: What a plain scalar of the subset may not begin with: an indicator of YAML that means something else.
_INDICATORS = "&*!|>%@`'\"#{}[],?"
_ESCAPES = {'"': '"', "\\": "\\", "/": "/", "n": "\n", "t": "\t", "r": "\r", "0": "\0", "e": "\x1b"}
_MAX_DEPTH = 32


_STR_TAG = "tag:yaml.org,2002:str"
_MAX_VALUES = 100_000  # aliases can make a few lines stand for billions


class OtherYaml(Exception):
    """The text is not of the subset: it may be good YAML or bad, PyYAML knows."""


def read_yaml(data: bytes, source: str) -> Any:
    """The one document in *data*; *source* is named in errors.  Raises :class:`ConfigError` for what is not YAML."""
    try:
        text = (data[3:] if data.startswith(b"\xef\xbb\xbf") else data).decode()
    except UnicodeDecodeError as e:
        raise ConfigError(source, f"is not UTF-8 text (byte {e.start})") from None
    try:
        return read_subset(text)
    except OtherYaml:
        return read_full(text, source)


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


def read_subset(text: str) -> Any:
    """The document *text* of the subset; raises :class:`OtherYaml` for everything else."""
    lines = _lines(text)
    if not lines:
        return None
    value, rest = _block(lines, 0, lines[0][0], 0)
    if rest != len(lines):
        raise OtherYaml
    return value


def _lines(text: str) -> list[Line]:
    lines: list[Line] = []
    begun = False
    for number, raw in enumerate(text.split("\n"), 1):
        line = raw.removesuffix("\r")
        stripped = line.lstrip(" ")
        if not stripped or stripped[0] == "#":
            continue
        if not line.isprintable():
            raise OtherYaml  # tabs among them: where they may stand is a long story
        if line.startswith(("---", "...", "%")):
            if line.rstrip() != "---" or begun or lines:
                raise OtherYaml
            begun = True
            continue
        lines.append((len(line) - len(stripped), stripped.rstrip(" "), number))
    return lines


def _block(lines: list[Line], at: int, indent: int, depth: int) -> tuple[Any, int]:
    """The collection whose first line is *at*, and the number of the line after it."""
    if depth > _MAX_DEPTH:
        raise OtherYaml
    text = lines[at][1]
    if text == "-" or text.startswith("- "):
        return _sequence(lines, at, indent, depth)
    if _split_key(text) is None:
        if at == 0 and len(lines) == 1:
            return _scalar(text), 1
        raise OtherYaml
    return _mapping(lines, at, indent, depth)


def _sequence(lines: list[Line], at: int, indent: int, depth: int) -> tuple[list[Any], int]:
    made: list[Any] = []
    while at < len(lines) and lines[at][0] == indent and (lines[at][1] == "-" or lines[at][1].startswith("- ")):
        rest = lines[at][1][1:]
        inner = rest.lstrip(" ")
        if not inner or inner[0] == "#":
            value, at = _nested(lines, at + 1, indent, depth)
        elif inner == "-" or inner.startswith("- ") or _split_key(inner) is not None:
            # "- key: value": the rest of the line is the first line of a block that stands further in.
            deeper = indent + 1 + len(rest) - len(inner)
            lines[at] = (deeper, inner, lines[at][2])
            value, at = _block(lines, at, deeper, depth + 1)
        else:
            value = _scalar(inner)
            at += 1
        made.append(value)
    if at < len(lines) and lines[at][0] > indent:
        raise OtherYaml  # a scalar that goes on in the next line, or bad indentation
    return made, at


def _mapping(lines: list[Line], at: int, indent: int, depth: int) -> tuple[dict[str, Any], int]:
    made: dict[str, Any] = {}
    while at < len(lines) and lines[at][0] == indent:
        pair = _split_key(lines[at][1])
        if pair is None:
            raise OtherYaml
        key, rest = pair
        if key in made:
            raise OtherYaml  # PyYAML's way says where
        if rest and rest[0] != "#":
            made[key] = _scalar(rest)
            at += 1
        else:
            made[key], at = _nested(lines, at + 1, indent, depth, in_mapping=True)
    if at < len(lines) and lines[at][0] > indent:
        raise OtherYaml
    return made, at


def _nested(lines: list[Line], at: int, indent: int, depth: int, in_mapping: bool = False) -> tuple[Any, int]:
    """The value that begins on the line after its key or dash; null when that one stands no further in."""
    if at < len(lines):
        inner = lines[at][0]
        dash = lines[at][1] == "-" or lines[at][1].startswith("- ")
        if inner > indent or (in_mapping and inner == indent and dash):
            return _block(lines, at, inner, depth + 1)
    return None, at


def _split_key(text: str) -> tuple[str, str] | None:
    """(key, what follows the colon) of a line of a block mapping; ``None`` when it is none."""
    if text[0] in "\"'":
        end = text.find(text[0], 1)
        after = text[end + 1 :]
        if end < 0 or "\\" in text[:end] or not after.startswith(":") or after[1:2] not in ("", " "):
            return None
        return text[1:end], after[1:].lstrip(" ")
    end = text.find(": ")
    if end < 0:
        if not text.endswith(":"):
            return None
        end = len(text) - 1
    key = text[:end]
    if key[:1] in _INDICATORS or key.startswith("- ") or " #" in key or type(resolve_plain(key)) is not str:
        return None
    return key.rstrip(" "), text[end + 1 :].lstrip(" ")


def _scalar(text: str) -> Any:
    first = text[0]
    if first == '"':
        return _double_quoted(text)
    if first == "'":
        return _single_quoted(text)
    if text in ("[]", "{}"):
        return [] if text == "[]" else {}
    if first == "[":
        return _flow(text)
    comment = text.find(" #")
    if comment >= 0:
        text = text[:comment].rstrip(" ")
    if first in _INDICATORS or text in ("-", "?", ":") or text.startswith(("- ", "? ", ": ")):
        raise OtherYaml
    if ": " in text or text.endswith(":"):
        raise OtherYaml
    return resolve_plain(text)


def _ends(text: str) -> None:
    """Nothing but a comment may follow a closed scalar."""
    rest = text.lstrip(" ")
    if rest and not (rest[0] == "#" and text[0] == " "):
        raise OtherYaml


def _double_quoted(text: str) -> str:
    made: list[str] = []
    i = 1
    while i < len(text):
        c = text[i]
        if c == '"':
            _ends(text[i + 1 :])
            return "".join(made)
        if c == "\\":
            i += 1
            if text[i : i + 1] not in _ESCAPES:
                raise OtherYaml
            c = _ESCAPES[text[i]]
        made.append(c)
        i += 1
    raise OtherYaml


def _single_quoted(text: str) -> str:
    made: list[str] = []
    i = 1
    while i < len(text):
        if text[i] == "'":
            if text[i + 1 : i + 2] != "'":
                _ends(text[i + 1 :])
                return "".join(made)
            i += 1
        made.append(text[i])
        i += 1
    raise OtherYaml


def _flow(text: str) -> list[Any]:
    """``[ro, nosuid, "x"]``: words without indicators only."""
    inner, end, after = text[1:].partition("]")
    if not end:
        raise OtherYaml
    _ends(after)
    parts = [part.strip(" ") for part in inner.split(",")]
    if parts and not parts[-1]:
        parts.pop()
    made: list[Any] = []
    for part in parts:
        quoted = len(part) >= 2 and part[0] == part[-1] and part[0] in "\"'"
        word = part[1:-1] if quoted else part
        if not word or not all(c.isalnum() or c in "_-./=" for c in word) or word[0] in "-":
            raise OtherYaml
        made.append(word if quoted else resolve_plain(word))
    return made


def read_full(text: str, source: str) -> Any:
    """The one document in *text*, plain scalars resolved as in the subset.  Raises :class:`ConfigError` naming the line."""
    import yaml  # 21 ms; and gpurun works without it

    try:
        node = yaml.compose(text, Loader=yaml.BaseLoader)
        return None if node is None else _value(node, source, 0, [_MAX_VALUES])
    except yaml.MarkedYAMLError as e:
        mark = e.problem_mark or e.context_mark
        where = f"{source}: line {mark.line + 1}" if mark else source
        raise ConfigError(where, f"is not valid YAML: {e.problem or e.context}") from None
    except yaml.YAMLError as e:
        raise ConfigError(source, f"is not valid YAML: {str(e).splitlines()[0]}") from None
    except RecursionError:
        raise ConfigError(source, "is nested too deeply") from None


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
        return resolve_plain(node.value) if node.style is None and node.tag == _STR_TAG else node.value
    if isinstance(node, yaml.SequenceNode):
        return [_value(n, source, depth + 1, left) for n in node.value]
    made = {}
    for key_node, value_node in node.value:
        if not isinstance(key_node, yaml.ScalarNode):
            raise ConfigError(where, "has a key that is not a word")
        if key_node.value in made:
            raise ConfigError(f"{source}: line {key_node.start_mark.line + 1}", f'has the key "{key_node.value}" twice')
        made[key_node.value] = _value(value_node, source, depth + 1, left)
    return made
