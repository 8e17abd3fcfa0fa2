"""What is wrong with a config.json, for people: all of it, in sentences, each with its JSON path."""

from __future__ import annotations

from typing import Any

from gpurun.oci.models import Config
from gpurun.oci.reader import type_name
from gpurun.oci.schema import Problem, mistakes, unknown_members


def problems(document: Any) -> tuple[Problem, ...]:
    """Every mistake of the config.json *document* (parsed JSON), in the order of the fields; then what is ignored."""
    if not isinstance(document, dict):
        return (Problem("", f"must be an object, not {type_name(document)}"),)
    document = _without_nulls(document)
    return (*mistakes(Config, document), *unknown_members(Config, document))


def _without_nulls(value: Any) -> Any:
    """``null`` is absent."""
    if isinstance(value, dict):
        return {k: _without_nulls(v) for k, v in value.items() if v is not None}
    return [_without_nulls(v) for v in value] if isinstance(value, list) else value
