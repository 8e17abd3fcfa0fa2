"""A CDI specification as text: YAML as generators write it, or JSON.  The same records give the same bytes.

What is empty is left out; the version written is the lowest that has all that is used, so that old readers take the file.
"""

from __future__ import annotations

from gpurun.cdi.document import CdiSpec, minimum_version
from gpurun.formats.jsontext import dumps, quote
from gpurun.formats.yaml import resolve_plain

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from gpurun.cdi.document import CdiEdits

_INDENT = 4
#: What a plain scalar must not begin with.
_INDICATORS = "-?:,[]{}#&*!|>'\"%@`="
_YAML_1_1_WORDS = ("y", "Y", "n", "N")


def to_value(spec: CdiSpec) -> dict[str, Any]:
    """*spec* as the plain value of a document, with its minimum version."""
    devices = [
        _without_empty({"name": d.name, "annotations": dict(d.annotations), "containerEdits": _edits(d.edits)})
        for d in spec.devices
    ]
    return _without_empty(
        {
            "cdiVersion": minimum_version(spec),
            "kind": spec.kind,
            "annotations": dict(spec.annotations),
            "devices": devices,
            "containerEdits": _edits(spec.edits),
        }
    )


def to_text(spec: CdiSpec, form: str) -> str:
    """*spec* as a file in the format *form*, ``yaml`` or ``json``."""
    value = to_value(spec)
    return dumps(value, 2) + "\n" if form == "json" else to_yaml(value)


def to_yaml(value: dict[str, Any]) -> str:
    """A document of mappings, lists, strings, integers and booleans as YAML."""
    lines = ["---"]
    _mapping(value, 0, "", 0, lines)
    return "\n".join(lines) + "\n"


def _without_empty(value: dict[str, Any]) -> dict[str, Any]:
    return {k: v for k, v in value.items() if v not in ("", None, [], {})}


def _edits(edits: CdiEdits) -> dict[str, Any]:
    rdt: dict[str, Any] = {}
    if edits.intel_rdt is not None:
        r = edits.intel_rdt
        rdt = _without_empty({"closID": r.clos_id, "l3CacheSchema": r.l3_cache_schema, "memBwSchema": r.mem_bw_schema})
        if r.schemata is not None:
            rdt["schemata"] = list(r.schemata)
        if r.enable_monitoring:
            rdt["enableMonitoring"] = True
    return _without_empty(
        {
            "env": list(edits.env),
            "deviceNodes": [
                _without_empty(
                    {
                        "path": n.path,
                        "hostPath": n.host_path,
                        "type": n.type,
                        "major": n.major or None,
                        "minor": n.minor or None,
                        "fileMode": n.file_mode,
                        "permissions": n.permissions,
                        "uid": n.uid,
                        "gid": n.gid,
                    }
                )
                for n in edits.device_nodes
            ],
            "netDevices": [{"hostInterfaceName": host, "name": name} for host, name in edits.net_devices],
            "hooks": [
                _without_empty(
                    {"hookName": h.stage, "path": h.path, "args": list(h.args), "env": list(h.env), "timeout": h.timeout}
                )
                for h in edits.hooks
            ],
            "mounts": [
                _without_empty(
                    {
                        "hostPath": m.host_path,
                        "containerPath": m.container_path,
                        "options": list(m.options),
                        "type": m.type,
                    }
                )
                for m in edits.mounts
            ],
            "intelRdt": rdt,
            "additionalGids": list(edits.additional_gids),
        }
    )


def _mapping(value: dict[str, Any], indent: int, first: str, base: int, lines: list[str]) -> None:
    """*first* stands before the first key (the dash of a list); what is nested stands at *base* + 4."""
    prefix = " " * (indent - len(first)) + first
    for key, item in value.items():
        head = f"{prefix}{scalar(key)}:"
        prefix = " " * indent
        if isinstance(item, dict) and item:
            lines.append(head)
            _mapping(item, base + _INDENT, "", base + _INDENT, lines)
        elif isinstance(item, list) and item:
            lines.append(head)
            _sequence(item, base + _INDENT, lines)
        else:
            lines.append(f"{head} {scalar(item)}")


def _sequence(items: list[Any], indent: int, lines: list[str]) -> None:
    for item in items:
        if isinstance(item, dict) and item:
            _mapping(item, indent + 2, "- ", indent, lines)
        else:
            lines.append(f"{' ' * indent}- {scalar(item)}")


def scalar(value: Any) -> str:
    """One scalar, quoted where it would be read as something else."""
    if value is None or isinstance(value, (dict, list)):
        return "null" if value is None else "{}" if isinstance(value, dict) else "[]"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(value)
    text = str(value)
    if not text or not _plain(text):
        return quote(text)
    return text


def _plain(text: str) -> bool:
    if type(resolve_plain(text)) is not str or text in _YAML_1_1_WORDS or not text.isprintable():
        return False
    if text[0] in _INDICATORS and not (text[0] == "-" and text[1:2] not in ("", " ")):
        return False
    if ": " in text or " #" in text or text[-1] in ": " or text[0] == " ":
        return False
    # Base 60 and dates, which some readers of YAML know.
    return not (text[0].isdigit() and not text.strip("0123456789_.:-") and (":" in text or "-" in text))
