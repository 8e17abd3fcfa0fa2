"""A CDI document as records: decoded strictly, every mistake reported with its path in the document.

Specification: CDI 1.1.0 ("CDI JSON Definition").  As in the reference library an unknown key, a version that is unknown or
too low for what is used, and a name that breaks the rules reject the whole file, and an unquoted number or truth value
is taken as text where text is wanted.
"""

from __future__ import annotations

from gpurun.cdi.names import device_problem, kind_problem
from gpurun.errors import ConfigError
from gpurun.oci.reader import INT64_MAX, INT64_MIN, UINT32_MAX, as_int, child, get_array, type_name, wrong_type
from gpurun.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


#: All versions there are, ascending; a newer one than the last rejects the file.
VERSIONS = ("0.1.0", "0.2.0", "0.3.0", "0.4.0", "0.5.0", "0.6.0", "0.7.0", "0.8.0", "1.0.0", "1.1.0")
EARLIEST = "0.3.0"
HOOK_STAGES = ("prestart", "createRuntime", "createContainer", "startContainer", "poststart", "poststop")
#: The word for a device that the container may not use (only see).
NO_PERMISSIONS = "none"
_MAX_ANNOTATIONS = 256 * 1024
_MAX_CLOSID = 4095


class CdiNode(Record):
    """``deviceNodes[]``; what is ``None`` or empty is filled in from the host's node."""

    path: str
    host_path: str = ""
    type: str = ""
    major: int = 0
    minor: int = 0
    file_mode: int | None = None
    permissions: str = ""
    uid: int | None = None
    gid: int | None = None


class CdiMount(Record):
    host_path: str
    container_path: str
    options: tuple[str, ...] = ()
    type: str = ""


class CdiHook(Record):
    stage: str  # hookName
    path: str
    args: tuple[str, ...] = ()
    env: tuple[str, ...] = ()
    timeout: int | None = None


class CdiIntelRdt(Record):
    """``intelRdt``; *schemata* is ``None`` when it is not given (an empty one counts as given)."""

    clos_id: str = ""
    l3_cache_schema: str = ""
    mem_bw_schema: str = ""
    schemata: tuple[str, ...] | None = None
    enable_monitoring: bool = False


class CdiEdits(Record):
    """``containerEdits``."""

    env: tuple[str, ...] = ()
    device_nodes: tuple[CdiNode, ...] = ()
    net_devices: tuple[tuple[str, str], ...] = ()  # (hostInterfaceName, name)
    hooks: tuple[CdiHook, ...] = ()
    mounts: tuple[CdiMount, ...] = ()
    intel_rdt: CdiIntelRdt | None = None
    additional_gids: tuple[int, ...] = ()


class CdiDevice(Record):
    name: str
    edits: CdiEdits
    annotations: tuple[tuple[str, str], ...] = ()


class CdiSpec(Record):
    """One file; *version* without a leading ``v``."""

    version: str
    kind: str
    devices: tuple[CdiDevice, ...]
    edits: CdiEdits = CdiEdits()
    annotations: tuple[tuple[str, str], ...] = ()


def read_document(value: Any, source: str) -> CdiSpec:
    """*value* (parsed JSON or YAML) as a specification; raises :class:`ConfigError` naming *source* and the path in it."""
    try:
        return _spec(value)
    except ConfigError as e:
        raise ConfigError(f"{source}: {e.where}" if e.where else source, e.what) from None


def minimum_version(spec: CdiSpec) -> str:
    """The lowest version that has everything *spec* uses."""
    every = [spec.edits, *[device.edits for device in spec.devices]]
    rdt = [e.intel_rdt for e in every if e.intel_rdt is not None]
    if any(e.net_devices for e in every) or any(r.schemata is not None or r.enable_monitoring for r in rdt):
        return "1.1.0"
    if rdt or any(e.additional_gids for e in every):
        return "0.7.0"
    if spec.annotations or any(d.annotations for d in spec.devices) or "." in spec.kind.partition("/")[2]:
        return "0.6.0"
    if any(d.name[0].isdigit() for d in spec.devices) or any(n.host_path for e in every for n in e.device_nodes):
        return "0.5.0"
    return "0.4.0" if any(m.type for e in every for m in e.mounts) else EARLIEST


def _spec(value: Any) -> CdiSpec:
    obj = _object(value, "", ("cdiVersion", "kind", "annotations", "devices", "containerEdits"))
    version = _text(obj, "cdiVersion", "", required=True).removeprefix("v")
    if version not in VERSIONS:
        raise ConfigError("cdiVersion", f'invalid version "{version}", known are {VERSIONS[2]} to {VERSIONS[-1]}')
    kind = _text(obj, "kind", "", required=True)
    _refuse("kind", kind_problem(kind))
    devices = get_array(obj, "devices", "", _device)
    if not devices:
        raise ConfigError("devices", "is empty, a specification needs at least one device")
    seen: dict[str, int] = {}
    for i, device in enumerate(devices):
        if device.name in seen:
            raise ConfigError(f"devices[{i}].name", f'"{device.name}" is the name of devices[{seen[device.name]}] already')
        seen[device.name] = i
    spec = CdiSpec(version, kind, devices, _edits(obj, ""), _annotations(obj, ""))
    needed = minimum_version(spec)
    if VERSIONS.index(version) < VERSIONS.index(needed):
        raise ConfigError("cdiVersion", f"{version} is too low for what the file uses, it must be at least {needed}")
    return spec


def _device(value: Any, json_path: str) -> CdiDevice:
    obj = _object(value, json_path, ("name", "annotations", "containerEdits"))
    name = _text(obj, "name", json_path, required=True)
    _refuse(child(json_path, "name"), device_problem(name))
    edits = _edits(obj, json_path)
    if edits == CdiEdits():
        raise ConfigError(child(json_path, "containerEdits"), "is empty, a device must edit something")
    return CdiDevice(name, edits, _annotations(obj, json_path))


def _edits(parent: dict[str, Any], json_path: str) -> CdiEdits:
    path = child(json_path, "containerEdits")
    keys = ("env", "deviceNodes", "netDevices", "hooks", "mounts", "intelRdt", "additionalGids")
    value = parent.get("containerEdits")
    if value is None:
        return CdiEdits()
    obj = _object(value, path, keys)
    rdt = obj.get("intelRdt")
    return CdiEdits(
        env=_env(obj, path),
        device_nodes=get_array(obj, "deviceNodes", path, _node),
        net_devices=_net_devices(obj, path),
        hooks=get_array(obj, "hooks", path, _hook),
        mounts=get_array(obj, "mounts", path, _mount),
        intel_rdt=None if rdt is None else _intel_rdt(rdt, child(path, "intelRdt")),
        additional_gids=get_array(obj, "additionalGids", path, _id),
    )


def _node(value: Any, json_path: str) -> CdiNode:
    keys = ("path", "hostPath", "type", "major", "minor", "fileMode", "permissions", "uid", "gid")
    obj = _object(value, json_path, keys)
    kind = _text(obj, "type", json_path)
    if kind not in ("", "b", "c", "u", "p"):
        raise ConfigError(child(json_path, "type"), f'"{kind}" is not b, c, u or p')
    permissions = _text(obj, "permissions", json_path)
    if permissions != NO_PERMISSIONS and permissions.strip("rwm"):
        raise ConfigError(child(json_path, "permissions"), f'"{permissions}" is not {NO_PERMISSIONS} or some of r, w, m')
    return CdiNode(
        path=_path(obj, "path", json_path),
        host_path=_text(obj, "hostPath", json_path),
        type=kind,
        major=_int(obj, "major", json_path, INT64_MIN, INT64_MAX) or 0,
        minor=_int(obj, "minor", json_path, INT64_MIN, INT64_MAX) or 0,
        file_mode=_int(obj, "fileMode", json_path, 0, UINT32_MAX),
        permissions=permissions,
        uid=_int(obj, "uid", json_path, 0, UINT32_MAX),
        gid=_int(obj, "gid", json_path, 0, UINT32_MAX),
    )


def _mount(value: Any, json_path: str) -> CdiMount:
    obj = _object(value, json_path, ("hostPath", "containerPath", "options", "type"))
    return CdiMount(
        host_path=_text(obj, "hostPath", json_path, required=True),
        container_path=_path(obj, "containerPath", json_path),
        options=get_array(obj, "options", json_path, _as_text),
        type=_text(obj, "type", json_path),
    )


def _hook(value: Any, json_path: str) -> CdiHook:
    obj = _object(value, json_path, ("hookName", "path", "args", "env", "timeout"))
    stage = _text(obj, "hookName", json_path, required=True)
    if stage not in HOOK_STAGES:
        raise ConfigError(child(json_path, "hookName"), f'"{stage}" is not one of {", ".join(HOOK_STAGES)}')
    return CdiHook(
        stage,
        _path(obj, "path", json_path),
        get_array(obj, "args", json_path, _as_text),
        _env(obj, json_path),
        _int(obj, "timeout", json_path, INT64_MIN, INT64_MAX),
    )


def _net_devices(parent: dict[str, Any], json_path: str) -> tuple[tuple[str, str], ...]:
    def read(value: Any, path: str) -> tuple[str, str]:
        obj = _object(value, path, ("hostInterfaceName", "name"))
        return _text(obj, "hostInterfaceName", path, required=True), _text(obj, "name", path, required=True)

    pairs = get_array(parent, "netDevices", json_path, read)
    for which, key in enumerate(("hostInterfaceName", "name")):
        names = [pair[which] for pair in pairs]
        for i, name in enumerate(names):
            if name in names[:i]:
                raise ConfigError(f"{child(json_path, 'netDevices')}[{i}].{key}", f'"{name}" is given twice')
    return pairs


def _intel_rdt(value: Any, json_path: str) -> CdiIntelRdt:
    keys = ("closID", "l3CacheSchema", "memBwSchema", "schemata", "enableMonitoring")
    obj = _object(value, json_path, keys)
    clos = _text(obj, "closID", json_path)
    if clos != "/" and (
        len(clos.encode("utf-8", "replace")) > _MAX_CLOSID or clos in (".", "..") or set(clos) & {"/", "\n"}
    ):
        raise ConfigError(child(json_path, "closID"), f'"{clos[:80]}" cannot name a resctrl group')
    monitoring = obj.get("enableMonitoring")
    if monitoring is not None and type(monitoring) is not bool:
        raise wrong_type(child(json_path, "enableMonitoring"), "true or false", monitoring)
    schemata = get_array(obj, "schemata", json_path, _as_text) if obj.get("schemata") is not None else None
    return CdiIntelRdt(
        clos, _text(obj, "l3CacheSchema", json_path), _text(obj, "memBwSchema", json_path), schemata, bool(monitoring)
    )


def _annotations(parent: dict[str, Any], json_path: str) -> tuple[tuple[str, str], ...]:
    path = child(json_path, "annotations")
    value = parent.get("annotations")
    if value is None:
        return ()
    obj = _object(value, path)
    pairs = []
    for key in obj:
        _refuse(child(path, key), annotation_problem(key))
        pairs.append((key, _as_text(obj[key], child(path, key))))
    if sum([len(k.encode()) + len(v.encode("utf-8", "replace")) for k, v in pairs]) > _MAX_ANNOTATIONS:
        raise ConfigError(path, f"is larger than {_MAX_ANNOTATIONS // 1024} KiB")
    return tuple(pairs)


def annotation_problem(key: str) -> str:
    """What is wrong with an annotation's key, by the rules of Kubernetes: ``[DNS subdomain/]name``; empty for nothing."""
    prefix, slash, name = key.rpartition("/")
    if slash:
        labels = prefix.split(".")
        if len(prefix) > 253 or not all(_is_name(label, "-", 63) and label == label.lower() for label in labels):
            return f'"{prefix}" is not a DNS name'
    if not _is_name(name, "-_.", 63):
        return f'"{name}" must be 1 to 63 letters, digits, - _ . with a letter or digit at both ends'
    return ""


def _is_name(text: str, middle: str, longest: int) -> bool:
    return (
        0 < len(text) <= longest
        and text.isascii()
        and text[0].isalnum()
        and text[-1].isalnum()
        and all(c.isalnum() or c in middle for c in text)
    )


def _refuse(json_path: str, problem: str) -> None:
    if problem:
        raise ConfigError(json_path, problem)


def _object(value: Any, json_path: str, keys: tuple[str, ...] | None = None) -> dict[str, Any]:
    if type(value) is not dict:
        raise wrong_type(json_path, "an object", value)
    if keys is not None:
        for key in value:
            if key not in keys:
                raise ConfigError(child(json_path, str(key)), f"is unknown here, known are {', '.join(keys)}")
    return value


def _as_text(value: Any, json_path: str) -> str:
    if type(value) is bool:
        return "true" if value else "false"
    if type(value) is int:
        return str(value)
    if type(value) is not str:
        hint = " (quote it)" if type(value) is float else ""
        raise ConfigError(json_path, f"must be a string, not {type_name(value)}{hint}")
    if "\0" in value:
        raise ConfigError(json_path, "contains a null byte")
    return value


def _text(obj: dict[str, Any], key: str, json_path: str, required: bool = False) -> str:
    value = obj.get(key)
    text = "" if value is None else _as_text(value, child(json_path, key))
    if required and not text:
        raise ConfigError(child(json_path, key), "is missing")
    return text


def _path(obj: dict[str, Any], key: str, json_path: str) -> str:
    """A path that must be there and absolute: the specification does not say what it could be relative to."""
    path = _text(obj, key, json_path, required=True)
    if not path.startswith("/"):
        raise ConfigError(child(json_path, key), f'"{path}" must be an absolute path')
    return path


def _int(obj: dict[str, Any], key: str, json_path: str, low: int, high: int) -> int | None:
    value = obj.get(key)
    return None if value is None else as_int(value, child(json_path, key), low, high)


def _id(value: Any, json_path: str) -> int:
    return as_int(value, json_path, 0, UINT32_MAX)


def _env(obj: dict[str, Any], json_path: str) -> tuple[str, ...]:
    entries = get_array(obj, "env", json_path, _as_text)
    for i, entry in enumerate(entries):
        if entry.find("=") <= 0:
            raise ConfigError(f"{child(json_path, 'env')}[{i}]", f'"{entry}" is not of the form NAME=VALUE')
    return entries
