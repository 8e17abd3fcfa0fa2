"""What is wrong with a config.json, for people: all of it, in sentences, each with its JSON path."""

from __future__ import annotations

from typing import Any

from pydantic import ValidationError

from gpurun.oci.models import Config, Model
from gpurun.oci.problem import Problem
from gpurun.oci.reader import child, type_name


def problems(document: Any) -> tuple[Problem, ...]:
    """Every mistake of the config.json *document* (parsed JSON), in the order of the fields; then what is ignored."""
    if not isinstance(document, dict):
        return (Problem("", f"must be an object, not {type_name(document)}"),)
    document = _without_nulls(document)
    try:
        config = Config.model_validate(document)
    except ValidationError as e:
        found = [Problem(_json_path(error["loc"]), _sentence(error)) for error in e.errors()]
        return tuple({problem.where: problem for problem in found[::-1]}.values())[::-1]
    return tuple(_ignored(config, ""))


def _without_nulls(value: Any) -> Any:
    """``null`` is absent."""
    if isinstance(value, dict):
        return {k: _without_nulls(v) for k, v in value.items() if v is not None}
    return [_without_nulls(v) for v in value] if isinstance(value, list) else value


def _json_path(location: tuple[int | str, ...]) -> str:
    path = ""
    for step in location:
        if isinstance(step, int):
            path += f"[{step}]"
        elif not step.startswith(("constrained-", "function-", "literal[")):  # names of a union's branches
            path += f".{step}" if path else step
    return path


_TYPES = {
    "string_type": "a string",
    "int_type": "an integer",
    "int_from_float": "an integer",
    "bool_type": "true or false",
    "list_type": "an array",
    "dict_type": "an object",
    "model_type": "an object",
    "model_attributes_type": "an object",
}


def _sentence(error: Any) -> str:
    kind, value, context = error["type"], error["input"], error.get("ctx", {})
    if kind in _TYPES:
        return f"must be {_TYPES[kind]}, not {type_name(value)}"
    if kind == "missing":
        return "is missing"
    if kind == "literal_error":
        if not isinstance(value, str):
            return f"must be a string, not {type_name(value)}"
        return f'"{value}" is unknown, it must be one of {context["expected"].replace(chr(39), "").lstrip(", ")}'
    if kind == "greater_than_equal":
        return f"{value} is out of range, it must be {context['ge']} or more"
    if kind == "less_than_equal":
        return f"{value} is out of range, it must be {context['le']} or less"
    if kind == "too_short":
        return "must not be empty"
    return str(error["msg"])


def _ignored(model: Any, where: str) -> list[Problem]:
    """Members that no field stands for: typing mistakes, most often."""
    found = []
    if isinstance(model, Model):
        members = {field.alias or name: getattr(model, name) for name, field in type(model).model_fields.items()}
        for name in model.model_extra or {}:
            found.append(Problem(child(where, name), "is not in the specification and ignored", fatal=False))
    elif isinstance(model, dict):
        members = model
    elif isinstance(model, list):
        return [problem for i, value in enumerate(model) for problem in _ignored(value, f"{where}[{i}]")]
    else:
        return []
    for name, value in members.items():
        found += _ignored(value, child(where, name))
    return found
