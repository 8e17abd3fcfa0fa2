"""The values of YAML and TOML documents, which are parsed once and kept as long as their text stays the same.

PyYAML needs 20 ms to be imported and as long again for a CDI file of eight GPUs, tomllib 10 ms: more than all the rest of
``create``.  An entry of the cache (:mod:`gpurun.cachefile`) is named by the text itself, so that nothing can make it stale:
its file is read at each create, as it was before.
"""

from __future__ import annotations

import marshal
from _blake2 import blake2b

from gpurun import log
from gpurun.cachefile import directory_of, entry_name, load, save, this_build

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

_LIMIT = 8 << 20  # bytes of a value
_directory = ""


def keep_documents(root: str) -> None:
    """From now on keep values in the cache of the state root *root*, an absolute path; in none where it is empty."""
    global _directory
    _directory = directory_of(root, "documents") if root else ""


def read_yaml(data: bytes, source: str) -> Any:
    """As :func:`gpurun.formats.yaml.read_yaml`, once for each text."""

    def parse() -> Any:
        from gpurun.formats.yaml import read_yaml

        return read_yaml(data, source)

    return cached_value("yaml", data, parse)


def read_toml(data: bytes, source: str) -> dict[str, Any]:
    """As :func:`gpurun.formats.toml.parse`, once for each text; bytes that are no UTF-8 stay what they are in strings."""

    def parse() -> dict[str, Any]:
        from gpurun.formats.toml import parse

        return parse(data.decode("utf-8", "surrogateescape"), source)

    found: dict[str, Any] = cached_value("toml", data, parse)
    return found


def cached_value(kind: str, text: bytes, parse: Callable[[], Any]) -> Any:
    """The value that *parse* makes of *text*, a document of *kind* (``yaml`` or ``toml``): kept, or made and then kept.

    The value consists of dictionaries, lists, strings, numbers, booleans and None.  What *parse* raises is raised, and kept
    nowhere.  Without :func:`keep_documents` each call parses.
    """
    if not _directory:
        return parse()
    name = entry_name(this_build(), kind, blake2b(text).hexdigest())
    data = load(_directory, name, _LIMIT)
    if data:
        try:
            return marshal.loads(data)
        except (EOFError, TypeError, ValueError):
            pass  # whole, by its digest, and yet unreadable: by another marshal
    log.debug(f"a {kind} document of {len(text)} bytes is parsed: {_directory} has nothing of it")
    value = parse()
    data = marshal.dumps(value)
    if len(data) <= _LIMIT:
        save(_directory, name, data)
    return value
