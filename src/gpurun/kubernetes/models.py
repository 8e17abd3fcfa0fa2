"""What documents of the cluster have in common: pydantic models that say what is wrong in one sentence.

Field names are the documents' own.  Values are strict (a text is no number), null is as if the key were absent, and unknown
keys are kept, so that :func:`unknown_keys` can name them.
"""

from __future__ import annotations

from typing import Annotated, Any, TypeVar

import yaml
from pydantic import BaseModel, BeforeValidator, ConfigDict, ValidationError

from gpurun.errors import ConfigError


class Table(BaseModel):
    """A mapping of a document."""

    model_config = ConfigDict(extra="allow", strict=True, frozen=True, validate_default=True)


T = TypeVar("T", bound=Table)
N = TypeVar("N")
#: A mapping in which null means that it is empty.
Absent = Annotated[N, BeforeValidator(lambda value: {} if value is None else value)]

#: pydantic's kind of error → our sentence; what is not here says what the model's own check said.
_SENTENCES = {
    "bool_type": "must be true or false",
    "string_type": "must be a text",
    "list_type": "must be a list",
    "model_type": "must be a mapping",
    "dict_type": "must be a mapping",
    "missing": "is missing",
}


def read(model: type[T], document: object, where: str, separator: str = ".") -> T:
    """*document* as a *model*.  Raises :class:`ConfigError` for its first mistake, with the place below *where*.

    *separator* stands between *where* and the first key: ``config.yaml: flags`` or ``claim.sharing``.
    """
    if not isinstance(document, dict) or not all(isinstance(key, str) for key in document):
        raise ConfigError(where, "must be a mapping")
    try:
        return model.model_validate(document)
    except ValidationError as e:
        first = e.errors(include_url=False)[0]
    place = "".join([f"[{key}]" if isinstance(key, int) else f".{key}" for key in first["loc"]]).removeprefix(".")
    raise ConfigError(f"{where}{separator}{place}" if place else where, _sentence(first)) from None


def _sentence(error: Any) -> str:
    kind, context = error["type"], error.get("ctx", {})
    if kind == "value_error":
        return str(context["error"])
    if kind == "literal_error":
        known = context["expected"].replace("'", "").replace(" or ", ", ")
        return f"{error['input']!r} is unknown, known {'are' if ',' in known else 'is'} {known}"
    return _SENTENCES.get(kind) or str(error["msg"]).replace("Input should", "must")


def load_yaml(text: str, where: str) -> Any:
    """The document in *text*, YAML, of the file *where*.  Raises :class:`ConfigError`."""
    try:
        return yaml.safe_load(text)
    except (yaml.YAMLError, ValueError) as e:  # ValueError: a date that no calendar has
        raise ConfigError(where, f"is not valid YAML: {' '.join(str(e).split())}") from None
    except RecursionError:
        raise ConfigError(where, "is nested too deeply") from None


def unknown_keys(table: Table, where: str) -> list[str]:
    """A warning for each key that the model of *table* does not know."""
    return [f"{where}: the key {key} is not known and ignored" for key in table.model_extra or {}]
