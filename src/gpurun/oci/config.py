"""config.json as records: what the runtime specification 1.3 (config.md, config-linux.md) says, checked for its types.

Reading decides nothing: whether a value makes sense together with others is the plan's question.  Absent and ``null`` are
the same, unknown keys are ignored (Go's ``encoding/json``, which runc's callers rely on).
"""

from __future__ import annotations

from gpurun.errors import ConfigError
from gpurun.oci.reader import (
    UINT32_MAX,
    UINT64_MAX,
    as_int,
    as_object,
    child,
    get_array,
    get_bool,
    get_int,
    get_object,
    get_string,
    get_string_map,
    get_strings,
    parse_json,
)
from gpurun.oci.resources import Resources, read_resources
from gpurun.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


class User(Record):
    uid: int = 0
    gid: int = 0
    umask: int | None = None
    additional_gids: tuple[int, ...] = ()


class Capabilities(Record):
    bounding: tuple[str, ...] = ()
    effective: tuple[str, ...] = ()
    inheritable: tuple[str, ...] = ()
    permitted: tuple[str, ...] = ()
    ambient: tuple[str, ...] = ()


class Rlimit(Record):
    type: str
    soft: int
    hard: int


class Process(Record):
    """``process``; what has readers of its own (scheduler, ioPriority ...) stays a JSON object here."""

    args: tuple[str, ...]
    cwd: str
    env: tuple[str, ...] = ()
    terminal: bool = False
    console_size: tuple[int, int] | None = None  # (height, width) in characters
    user: User = User()
    capabilities: Capabilities | None = None
    rlimits: tuple[Rlimit, ...] = ()
    no_new_privileges: bool = False
    apparmor_profile: str = ""
    selinux_label: str = ""
    oom_score_adj: int | None = None
    scheduler: dict[str, Any] | None = None
    io_priority: dict[str, Any] | None = None
    exec_cpu_affinity: dict[str, Any] | None = None


class IdMapping(Record):
    container_id: int
    host_id: int
    size: int


class Mount(Record):
    destination: str
    type: str = ""
    source: str = ""
    options: tuple[str, ...] = ()
    uid_mappings: tuple[IdMapping, ...] = ()
    gid_mappings: tuple[IdMapping, ...] = ()


class Namespace(Record):
    type: str
    path: str = ""


class Device(Record):
    path: str
    type: str
    major: int = 0
    minor: int = 0
    file_mode: int | None = None
    uid: int | None = None
    gid: int | None = None


class OciHook(Record):
    """A hook: *args* is the whole argv; *env* is None where the stage decides; *timeout* in seconds, None for none."""

    path: str
    args: tuple[str, ...] = ()
    env: tuple[str, ...] | None = None
    timeout: int | None = None


class Hooks(Record):
    prestart: tuple[OciHook, ...] = ()
    create_runtime: tuple[OciHook, ...] = ()
    create_container: tuple[OciHook, ...] = ()
    start_container: tuple[OciHook, ...] = ()
    poststart: tuple[OciHook, ...] = ()
    poststop: tuple[OciHook, ...] = ()


class TimeOffset(Record):
    clock: str
    secs: int
    nanosecs: int


class Linux(Record):
    namespaces: tuple[Namespace, ...] = ()
    uid_mappings: tuple[IdMapping, ...] = ()
    gid_mappings: tuple[IdMapping, ...] = ()
    time_offsets: tuple[TimeOffset, ...] = ()
    devices: tuple[Device, ...] = ()
    cgroups_path: str = ""
    resources: Resources | None = None
    rootfs_propagation: str = ""
    masked_paths: tuple[str, ...] = ()
    readonly_paths: tuple[str, ...] = ()
    sysctl: dict[str, str] = {}
    mount_label: str = ""
    seccomp: dict[str, Any] | None = None
    personality: dict[str, Any] | None = None
    intel_rdt: dict[str, Any] | None = None
    memory_policy: dict[str, Any] | None = None
    net_devices: dict[str, Any] | None = None


class Config(Record):
    oci_version: str
    root_path: str
    root_readonly: bool
    process: Process
    hostname: str = ""
    domainname: str = ""
    mounts: tuple[Mount, ...] = ()
    hooks: Hooks = Hooks()
    annotations: dict[str, str] = {}
    linux: Linux = Linux()


def read_config(data: bytes) -> Config:
    """The records of the text of a config.json; raises :class:`ConfigError` naming the JSON path that is wrong."""
    value = parse_json(data, "config.json")
    if value is None:
        raise ConfigError("config.json", "config cannot be null")
    obj = as_object(value, "config.json")
    root = get_object(obj, "root", "")
    if root is None:
        raise ConfigError("root", "root must be specified")
    process = get_object(obj, "process", "")
    if process is None:
        raise ConfigError("process", "process property must not be empty")
    linux = get_object(obj, "linux", "")
    hooks = get_object(obj, "hooks", "")
    return Config(
        oci_version=get_string(obj, "ociVersion", ""),
        root_path=get_string(root, "path", "root"),
        root_readonly=get_bool(root, "readonly", "root"),
        process=read_process(process, "process"),
        hostname=get_string(obj, "hostname", ""),
        domainname=get_string(obj, "domainname", ""),
        mounts=get_array(obj, "mounts", "", _mount),
        hooks=_hooks(hooks) if hooks else Hooks(),
        annotations=get_string_map(obj, "annotations", ""),
        linux=_linux(linux) if linux else Linux(),
    )


def read_process(obj: dict[str, Any], json_path: str) -> Process:
    """``process`` (also the whole of the file that ``exec --process`` names)."""
    console = get_object(obj, "consoleSize", json_path)
    size = None
    if console is not None:
        at = child(json_path, "consoleSize")
        size = (get_int(console, "height", at, 0, 65535) or 0, get_int(console, "width", at, 0, 65535) or 0)
    user = get_object(obj, "user", json_path)
    caps = get_object(obj, "capabilities", json_path)
    return Process(
        args=get_strings(obj, "args", json_path),
        cwd=get_string(obj, "cwd", json_path),
        env=get_strings(obj, "env", json_path),
        terminal=get_bool(obj, "terminal", json_path),
        console_size=size,
        user=_user(user, child(json_path, "user")) if user else User(),
        capabilities=_capabilities(caps, child(json_path, "capabilities")) if caps is not None else None,
        rlimits=get_array(obj, "rlimits", json_path, _rlimit),
        no_new_privileges=get_bool(obj, "noNewPrivileges", json_path),
        apparmor_profile=get_string(obj, "apparmorProfile", json_path),
        selinux_label=get_string(obj, "selinuxLabel", json_path),
        oom_score_adj=get_int(obj, "oomScoreAdj", json_path, -1000, 1000),
        scheduler=get_object(obj, "scheduler", json_path),
        io_priority=get_object(obj, "ioPriority", json_path),
        exec_cpu_affinity=get_object(obj, "execCPUAffinity", json_path),
    )


def _id(value: Any, json_path: str) -> int:
    return as_int(value, json_path, 0, UINT32_MAX)


def _user(obj: dict[str, Any], json_path: str) -> User:
    return User(
        uid=get_int(obj, "uid", json_path, 0, UINT32_MAX - 1) or 0,
        gid=get_int(obj, "gid", json_path, 0, UINT32_MAX - 1) or 0,
        umask=get_int(obj, "umask", json_path, 0, 0o7777),
        additional_gids=get_array(obj, "additionalGids", json_path, _id),
    )


def _capabilities(obj: dict[str, Any], json_path: str) -> Capabilities:
    return Capabilities(*[get_strings(obj, k, json_path) for k in Capabilities._fields])


def _rlimit(value: Any, json_path: str) -> Rlimit:
    obj = as_object(value, json_path)
    return Rlimit(
        type=get_string(obj, "type", json_path),
        soft=get_int(obj, "soft", json_path, 0, UINT64_MAX) or 0,
        hard=get_int(obj, "hard", json_path, 0, UINT64_MAX) or 0,
    )


def _mapping(value: Any, json_path: str) -> IdMapping:
    obj = as_object(value, json_path)
    return IdMapping(*[get_int(obj, k, json_path, 0, UINT32_MAX) or 0 for k in ("containerID", "hostID", "size")])


def _mount(value: Any, json_path: str) -> Mount:
    obj = as_object(value, json_path)
    return Mount(
        destination=get_string(obj, "destination", json_path),
        type=get_string(obj, "type", json_path),
        source=get_string(obj, "source", json_path),
        options=get_strings(obj, "options", json_path),
        uid_mappings=get_array(obj, "uidMappings", json_path, _mapping),
        gid_mappings=get_array(obj, "gidMappings", json_path, _mapping),
    )


def _namespace(value: Any, json_path: str) -> Namespace:
    obj = as_object(value, json_path)
    return Namespace(type=get_string(obj, "type", json_path), path=get_string(obj, "path", json_path))


def _device(value: Any, json_path: str) -> Device:
    obj = as_object(value, json_path)
    return Device(
        path=get_string(obj, "path", json_path),
        type=get_string(obj, "type", json_path),
        major=get_int(obj, "major", json_path, 0, UINT32_MAX) or 0,
        minor=get_int(obj, "minor", json_path, 0, UINT32_MAX) or 0,
        file_mode=get_int(obj, "fileMode", json_path, 0, UINT32_MAX),
        uid=get_int(obj, "uid", json_path, 0, UINT32_MAX),
        gid=get_int(obj, "gid", json_path, 0, UINT32_MAX),
    )


def _hook(value: Any, json_path: str) -> OciHook:
    obj = as_object(value, json_path)
    return OciHook(
        path=get_string(obj, "path", json_path),
        args=get_strings(obj, "args", json_path),
        env=get_strings(obj, "env", json_path) if obj.get("env") is not None else None,
        timeout=get_int(obj, "timeout", json_path),
    )


#: The hooks as config.json names them, in the order of the fields of :class:`Hooks`.
HOOK_NAMES = ("prestart", "createRuntime", "createContainer", "startContainer", "poststart", "poststop")


def _hooks(obj: dict[str, Any]) -> Hooks:
    return Hooks(*[get_array(obj, name, "hooks", _hook) for name in HOOK_NAMES])


def _time_offsets(obj: dict[str, Any], json_path: str) -> tuple[TimeOffset, ...]:
    offsets = []
    for clock, value in obj.items():
        at = child(json_path, clock)
        entry = as_object(value, at)
        offsets.append(TimeOffset(clock, get_int(entry, "secs", at) or 0, get_int(entry, "nanosecs", at, 0, 999999999) or 0))
    return tuple(offsets)


def _linux(obj: dict[str, Any]) -> Linux:
    resources = get_object(obj, "resources", "linux")
    offsets = get_object(obj, "timeOffsets", "linux")
    return Linux(
        namespaces=get_array(obj, "namespaces", "linux", _namespace),
        uid_mappings=get_array(obj, "uidMappings", "linux", _mapping),
        gid_mappings=get_array(obj, "gidMappings", "linux", _mapping),
        time_offsets=_time_offsets(offsets, "linux.timeOffsets") if offsets else (),
        devices=get_array(obj, "devices", "linux", _device),
        cgroups_path=get_string(obj, "cgroupsPath", "linux"),
        resources=read_resources(resources, "linux.resources") if resources is not None else None,
        rootfs_propagation=get_string(obj, "rootfsPropagation", "linux"),
        masked_paths=get_strings(obj, "maskedPaths", "linux"),
        readonly_paths=get_strings(obj, "readonlyPaths", "linux"),
        sysctl=get_string_map(obj, "sysctl", "linux"),
        mount_label=get_string(obj, "mountLabel", "linux"),
        seccomp=get_object(obj, "seccomp", "linux"),
        personality=get_object(obj, "personality", "linux"),
        intel_rdt=get_object(obj, "intelRdt", "linux"),
        memory_policy=get_object(obj, "memoryPolicy", "linux"),
        net_devices=get_object(obj, "netDevices", "linux"),
    )
