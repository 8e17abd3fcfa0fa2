"""dockerd's ``daemon.json``: gpurun as one of its runtimes, with every other character of the file left as it is."""

from __future__ import annotations

import json
from typing import Any

from gpurun.clients.toml_files import RuntimeEntry
from gpurun.errors import ConfigError
from gpurun.formats.jsonedit import with_member, without_member


def add_runtime(text: str | None, path: str, wanted: RuntimeEntry) -> str:
    """daemon.json with the runtime *wanted*; *text* None is no file.  Raises :class:`ConfigError`."""
    document = read_document(text, path)
    members: list[tuple[tuple[str, ...], Any]] = [(("runtimes", wanted.name, "path"), wanted.binary)]
    if wanted.default:
        members.append((("default-runtime",), wanted.name))
    if wanted.cdi:
        members.append((("features", "cdi"), True))
    made = text if text and text.strip() else "{}\n"
    for place, value in members:
        if _at(document, place) != value:
            made = with_member(made, place, value)
    return made


def remove_runtime(text: str, path: str, name: str) -> str:
    """daemon.json without the runtime *name*; empty when nothing would be left."""
    document = read_document(text, path)
    made = without_member(text, ("runtimes", name))
    if document.get("default-runtime") == name:
        made = without_member(made, ("default-runtime",))
    return made if json.loads(made) else ""


def entry(text: str, path: str, name: str) -> RuntimeEntry | None:
    """What daemon.json says of the runtime *name*; None when that is nothing."""
    document = read_document(text, path)
    binary = _at(document, ("runtimes", name, "path"))
    if binary is None:
        return None
    return RuntimeEntry(
        name, str(binary), document.get("default-runtime") == name, _at(document, ("features", "cdi")) is True
    )


def entries(text: str, path: str) -> list[RuntimeEntry]:
    """The runtimes that daemon.json names."""
    runtimes = read_document(text, path).get("runtimes", {})
    return [found for name in runtimes if (found := entry(text, path, name)) is not None]


def meaning(text: str, path: str) -> dict[str, Any]:
    """What daemon.json says, without how it is written."""
    return read_document(text, path)


def read_document(text: str | None, path: str) -> dict[str, Any]:
    """The object that is *text*, of the file *path*; empty for no file.  Raises :class:`ConfigError` where dockerd would."""
    try:
        document = json.loads(text) if text and text.strip() else {}
    except RecursionError:
        raise ConfigError(path, "is nested too deeply") from None
    except ValueError as e:
        raise ConfigError(path, f"is not valid JSON, and dockerd cannot read it either: {e}{_comment(text or '')}") from None
    if not isinstance(document, dict):
        raise ConfigError(path, "is not a JSON object")
    for key in ("runtimes", "features"):
        if not isinstance(document.get(key, {}), dict):
            raise ConfigError(f"{path}: {key}", "is not an object")
    return document


def _comment(text: str) -> str:
    """What to do about the line that is most likely wrong: JSON has no comments."""
    for number, line in enumerate(text.splitlines(), 1):
        if line.lstrip().startswith(("//", "#", "/*")):
            return f" (line {number} is a comment, which JSON does not have: take it out)"
    return ""


def _at(document: Any, place: tuple[str, ...]) -> Any:
    for key in place:
        if not isinstance(document, dict):
            return None
        document = document.get(key)
    return document
