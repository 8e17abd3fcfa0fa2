"""Objects held to the API's models, as the kubernetes client carries them: unknown fields, types, what is required."""

from __future__ import annotations

import re
from typing import Any

from kubernetes import client

#: Kinds that are not of Kubernetes itself.
FOREIGN = ("ServiceMonitor",)
_BASIC: dict[str, tuple[type, ...]] = {
    "str": (str,), "int": (int,), "bool": (bool,), "float": (int, float), "datetime": (str,), "object": (object,),
}  # fmt: skip


def problems(document: dict[str, Any]) -> list[str]:
    """What the API server would refuse, or with strict validation warn of, in *document*; empty when nothing."""
    version = str(document["apiVersion"]).rpartition("/")[2]
    name = f"{version.capitalize() if version.startswith('v1') else version}{document['kind']}"
    name = re.sub(r"^v", "V", name)
    if not hasattr(client, name):
        return [f"{document['apiVersion']} {document['kind']}: the client has no model {name}"]
    return list(_checked(document, name, document["kind"]))


def _checked(value: Any, kind: str, where: str) -> list[str]:
    if found := re.fullmatch(r"[dD]ict[(\[]str, (.*)[)\]]", kind):
        if not isinstance(value, dict):
            return [f"{where}: must be an object"]
        return [problem for key, item in value.items() for problem in _checked(item, found[1], f"{where}.{key}")]
    if found := re.fullmatch(r"[lL]ist\[(.*)\]", kind):
        if not isinstance(value, list):
            return [f"{where}: must be a list"]
        return [problem for number, item in enumerate(value) for problem in _checked(item, found[1], f"{where}[{number}]")]
    if kind in _BASIC:
        quantity = ".limits." in where or ".requests." in where  # a number is one, too
        if quantity and kind == "str" and type(value) in (int, float):
            return []
        wrong = not isinstance(value, _BASIC[kind]) or (kind != "bool" and kind != "object" and isinstance(value, bool))
        return [f"{where}: {value!r} is no {kind}"] if wrong else []
    model = getattr(client, kind)
    if not isinstance(value, dict):
        return [f"{where}: must be an object"]
    fields = {name: attribute for attribute, name in model.attribute_map.items()}
    made = [f"{where}.{key}: unknown field" for key in value if key not in fields]
    for key, item in value.items():
        if key in fields:
            made += _checked(item, model.openapi_types[fields[key]], f"{where}.{key}")
    return made + _missing(model, value, fields, where)


def _missing(model: Any, value: dict[str, Any], fields: dict[str, str], where: str) -> list[str]:
    """What is required; clients before 36 tell by setters that refuse None."""
    if hasattr(model, "model_fields"):
        required = [attribute for attribute, field in model.model_fields.items() if field.is_required()]
        names = {attribute: name for name, attribute in fields.items()}
        return [f"{where}.{names[one]}: required" for one in required if names[one] not in value]
    made = []
    for name, attribute in fields.items():
        if name not in value:
            bare = model.__new__(model)
            bare.local_vars_configuration = client.Configuration()
            try:
                setattr(bare, attribute, None)
            except ValueError:
                made.append(f"{where}.{name}: required")
    return made
