"""The configuration file of NVIDIA's device plugin (version v1), and the variables that it is also set by.

What is read here means the same there: keys that NVIDIA's plugin ignores with a warning are ignored with a warning.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import yaml

from gpurun.errors import ConfigError
from gpurun.record import Record, replace

MIG_STRATEGIES = ("none", "single", "mixed")
LIST_STRATEGIES = ("cdi-cri", "cdi-annotations", "envvar", "volume-mounts")
ID_STRATEGIES = ("uuid", "index")
POLICIES = ("distributed", "packed")
TIME_SLICING, MPS, NOT_SHARED = "time-slicing", "mps", "none"
PREFIX = "nvidia.com"
SHARED_SUFFIX = ".shared"
_MAX_NAME = 63
_TRUE, _FALSE = ("1", "t", "true"), ("0", "f", "false", "")


class Replicated(Record):
    """One resource that is shared: *name* and *rename* are whole (``nvidia.com/gpu``); *rename* empty: as it is called."""

    name: str
    replicas: int
    rename: str = ""


class Sharing(Record):
    """How GPUs are shared: *strategy* is ``time-slicing``, ``mps`` or ``none``.

    *fail_more_than_one* refuses a container that asks for more than one replica, which would get it no more GPU.
    """

    strategy: str = NOT_SHARED
    fail_more_than_one: bool = False
    resources: tuple[Replicated, ...] = ()

    def of(self, name: str) -> Replicated | None:
        """How the resource *name* is shared; None when it is not."""
        return next((one for one in self.resources if one.name == name), None)


class PluginConfig(Record):
    """The whole configuration, with the defaults of this program: CDI names, which every current runtime knows.

    *warnings* are sentences about what the file says and nobody does.
    """

    mig_strategy: str = "none"
    fail_on_init_error: bool = True
    list_strategies: tuple[str, ...] = ("cdi-cri",)
    id_strategy: str = "uuid"
    pass_device_specs: bool = False
    annotation_prefix: str = "cdi.k8s.io/"
    allocation_policy: str = "distributed"
    driver_root: str = ""
    dev_root: str = ""
    mps_root: str = "/run/gpurun/mps"
    gds: bool = False
    mofed: bool = False
    gdrcopy: bool = False
    imex_channels: tuple[int, ...] = ()
    imex_required: bool = False
    no_timestamp: bool = False
    sleep_interval: str = ""
    machine_type_file: str = "/sys/class/dmi/id/product_name"
    sharing: Sharing = Sharing()
    warnings: tuple[str, ...] = ()


#: Key of ``flags`` → (field, kind, NVIDIA's variable).
_FLAGS: dict[str, tuple[str, str, str]] = {
    "migStrategy": ("mig_strategy", "text", "MIG_STRATEGY"),
    "failOnInitError": ("fail_on_init_error", "flag", "FAIL_ON_INIT_ERROR"),
    "nvidiaDriverRoot": ("driver_root", "text", "NVIDIA_DRIVER_ROOT"),
    "nvidiaDevRoot": ("dev_root", "text", "NVIDIA_DEV_ROOT"),
    "mpsRoot": ("mps_root", "text", "MPS_ROOT"),
    "gdsEnabled": ("gds", "flag", "GDS_ENABLED"),
    "mofedEnabled": ("mofed", "flag", "MOFED_ENABLED"),
    "gdrcopyEnabled": ("gdrcopy", "flag", "GDRCOPY_ENABLED"),
}
_PLUGIN: dict[str, tuple[str, str, str]] = {
    "deviceListStrategy": ("list_strategies", "texts", "DEVICE_LIST_STRATEGY"),
    "deviceIDStrategy": ("id_strategy", "text", "DEVICE_ID_STRATEGY"),
    "passDeviceSpecs": ("pass_device_specs", "flag", "PASS_DEVICE_SPECS"),
    "cdiAnnotationPrefix": ("annotation_prefix", "text", "CDI_ANNOTATION_PREFIX"),
    "sharedDevicesAllocationPolicy": ("allocation_policy", "text", "SHARED_DEVICES_ALLOCATION_POLICY"),
}
_GFD: dict[str, tuple[str, str, str]] = {
    "noTimestamp": ("no_timestamp", "flag", "GFD_NO_TIMESTAMP"),
    "sleepInterval": ("sleep_interval", "text", "GFD_SLEEP_INTERVAL"),
    "machineTypeFile": ("machine_type_file", "text", "GFD_MACHINE_TYPE_FILE"),
}
#: Known to NVIDIA's programs, and of no use to this one.
_UNUSED = ("useNodeFeatureAPI", "deviceDiscoveryStrategy")
_UNUSED_PLUGIN = ("nvidiaCTKPath", "containerDriverRoot")
_UNUSED_GFD = ("oneshot", "outputFile")


def parse(text: str, where: str) -> PluginConfig:
    """The configuration in *text*, YAML or JSON, of the file *where*.  Raises :class:`ConfigError` naming the key."""
    try:
        document = yaml.safe_load(text)
    except yaml.YAMLError as e:
        raise ConfigError(where, f"is no YAML: {' '.join(str(e).split())}") from None
    if document is None:
        document = {}
    top = _mapping(document, where)
    version = top.get("version") or "v1"
    if version != "v1":
        raise ConfigError(f"{where}: version", f"{version!r} is unknown, known is v1")
    warnings: list[str] = []
    _unknown(top, ("version", "flags", "resources", "sharing", "imex"), where, warnings)
    values: dict[str, Any] = {}
    flags = _mapping(top.get("flags"), f"{where}: flags")
    tables = (
        (flags, _FLAGS, (*_UNUSED, "plugin", "gfd"), "flags"),
        (_mapping(flags.get("plugin"), f"{where}: flags.plugin"), _PLUGIN, _UNUSED_PLUGIN, "flags.plugin"),
        (_mapping(flags.get("gfd"), f"{where}: flags.gfd"), _GFD, _UNUSED_GFD, "flags.gfd"),
    )
    for table, known, unused, path in tables:
        _unknown(table, (*known, *unused), f"{where}: {path}", warnings)
        for key, (field, kind, _) in known.items():
            if table.get(key) is not None:
                values[field] = _value(table[key], kind, f"{where}: {path}.{key}")
    if any(_mapping(top.get("resources"), f"{where}: resources").get(kind) for kind in ("gpus", "migs", "mig")):
        warnings.append("resources: resources cannot be named, as in NVIDIA's plugin; this is ignored")
    imex = _mapping(top.get("imex"), f"{where}: imex")
    _imex(imex, values, where)
    values["sharing"] = _sharing(_mapping(top.get("sharing"), f"{where}: sharing"), f"{where}: sharing", warnings)
    return checked(PluginConfig(**values, warnings=tuple(warnings)), where)


def from_environment(config: PluginConfig, env: Mapping[str, str]) -> PluginConfig:
    """*config* with what NVIDIA's variables in *env* say instead of the file.  Raises :class:`ConfigError`."""
    changes: dict[str, Any] = {}
    for known in (_FLAGS, _PLUGIN, _GFD):
        for field, kind, variable in known.values():
            if variable in env:
                changes[field] = _from_text(env[variable], kind, variable)
    return checked(replace(config, **changes), "environment")


def checked(config: PluginConfig, where: str) -> PluginConfig:
    """*config* itself.  Raises :class:`ConfigError` for a word that is none of those that are known."""
    for value, known, key in (
        (config.mig_strategy, MIG_STRATEGIES, "migStrategy"),
        (config.id_strategy, ID_STRATEGIES, "deviceIDStrategy"),
        (config.allocation_policy, POLICIES, "sharedDevicesAllocationPolicy"),
        *[(strategy, LIST_STRATEGIES, "deviceListStrategy") for strategy in config.list_strategies],
    ):
        if value not in known:
            raise ConfigError(f"{where}: {key}", f"{value!r} is unknown, known are {', '.join(known)}")
    if not config.list_strategies:
        raise ConfigError(f"{where}: deviceListStrategy", f"is empty, known are {', '.join(LIST_STRATEGIES)}")
    return config


def _sharing(table: Mapping[str, Any], where: str, warnings: list[str]) -> Sharing:
    _unknown(table, ("timeSlicing", "mps"), where, warnings)
    mps, slicing = table.get("mps"), table.get("timeSlicing")
    if mps is not None and slicing:
        warnings.append("sharing: both mps and timeSlicing are there; mps is taken, as in NVIDIA's plugin")
    if mps is not None:
        return _replicated(_mapping(mps, f"{where}.mps"), MPS, f"{where}.mps", warnings)
    if slicing:
        return _replicated(_mapping(slicing, f"{where}.timeSlicing"), TIME_SLICING, f"{where}.timeSlicing", warnings)
    return Sharing()


def _replicated(table: Mapping[str, Any], strategy: str, where: str, warnings: list[str]) -> Sharing:
    _unknown(table, ("renameByDefault", "failRequestsGreaterThanOne", "resources"), where, warnings)
    rename = _value(table.get("renameByDefault") or False, "flag", f"{where}.renameByDefault")
    given = table.get("failRequestsGreaterThanOne")
    # A second replica is a second client of the same MPS server: it never brings more, and NVIDIA's plugin refuses it.
    fail = strategy == MPS if given is None else _value(given, "flag", f"{where}.failRequestsGreaterThanOne")
    listed = table.get("resources")
    if not isinstance(listed, list) or not listed:
        raise ConfigError(f"{where}.resources", "must be a list of at least one resource to share")
    made: list[Replicated] = []
    for number, item in enumerate(listed):
        place = f"{where}.resources[{number}]"
        entry = _mapping(item, place)
        _unknown(entry, ("name", "rename", "devices", "replicas"), place, warnings)
        name = resource_name(entry.get("name"), f"{place}.name")
        replicas = entry.get("replicas")
        if type(replicas) is not int or replicas < 2:
            raise ConfigError(f"{place}.replicas", "must be a number from 2 on")
        if any(one.name == name for one in made):
            raise ConfigError(f"{place}.name", f"{name} is there twice")
        if entry.get("devices", "all") != "all":
            warnings.append(f"{place}.devices: devices cannot be chosen, as in NVIDIA's plugin; all are shared")
        default = name + SHARED_SUFFIX if rename else ""
        if entry.get("rename") and resource_name(entry["rename"], f"{place}.rename") != default:
            warnings.append(f"{place}.rename: resources cannot be renamed at will, as in NVIDIA's plugin; this is ignored")
        made.append(Replicated(name, replicas, default))
    return Sharing(strategy, bool(fail), tuple(made))


def resource_name(value: object, where: str) -> str:
    """*value* as the whole name of a resource.  Raises :class:`ConfigError`."""
    if not isinstance(value, str) or not value:
        raise ConfigError(where, "must be the name of a resource")
    name = value if value.startswith(f"{PREFIX}/") else f"{PREFIX}/{value}"
    tail = name.partition("/")[2]
    good = all(part and part[0].isalnum() and part[-1].isalnum() for part in tail.split("."))
    if (
        not good
        or not all((c.isascii() and (c.isdigit() or c.islower())) or c in "-." for c in tail)
        or len(name) > _MAX_NAME
    ):
        raise ConfigError(where, f"{value!r} is no name of a resource: at most {_MAX_NAME} of a-z, 0-9, - and . are")
    return name


def resource_part(profile: str) -> str:
    """*profile* as a part of a resource's name: ``1g.10gb+me`` is ``1g.10gb.me``."""
    return profile.replace("+", ".")


def _imex(table: Mapping[str, Any], values: dict[str, Any], where: str) -> None:
    channels = table.get("channelIDs") or []
    if channels not in ([], [0]):
        raise ConfigError(f"{where}: imex.channelIDs", "must be [] or [0]")
    values["imex_channels"] = tuple(channels)
    values["imex_required"] = _value(table.get("required") or False, "flag", f"{where}: imex.required")


def _mapping(value: object, where: str) -> Mapping[str, Any]:
    if value is None:
        return {}
    if not isinstance(value, dict) or not all(isinstance(key, str) for key in value):
        raise ConfigError(where, "must be a mapping")
    return value


def _value(value: object, kind: str, where: str) -> Any:
    if kind == "flag":
        if type(value) is not bool:
            raise ConfigError(where, "must be true or false")
        return value
    if kind == "texts":
        items = [value] if isinstance(value, str) else value
        if not isinstance(items, list) or not all(isinstance(item, str) for item in items):
            raise ConfigError(where, "must be a text or a list of texts")
        return tuple([word.strip() for item in items for word in item.split(",")])
    if not isinstance(value, str):
        raise ConfigError(where, "must be a text")
    return value


def _from_text(text: str, kind: str, variable: str) -> Any:
    if kind == "texts":
        return tuple([word.strip() for word in text.split(",")])
    if kind == "flag":
        if text.lower() not in (*_TRUE, *_FALSE):
            raise ConfigError(variable, f"{text!r} is neither true nor false")
        return text.lower() in _TRUE
    return text


def _unknown(table: Mapping[str, Any], known: tuple[str, ...], where: str, warnings: list[str]) -> None:
    warnings += [f"{where}: the key {key} is not known and ignored" for key in table if key not in known]
