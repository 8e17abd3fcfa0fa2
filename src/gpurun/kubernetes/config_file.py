"""The configuration file of NVIDIA's device plugin (version v1), and the variables that it is also set by.

What is read here means the same there: keys that NVIDIA's plugin ignores with a warning are ignored with a warning.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from math import inf
from typing import Annotated, Any, Literal, get_args

from pydantic import BeforeValidator, Field

from gpurun.errors import ConfigError, GpurunError
from gpurun.gpu.vendors import VENDORS
from gpurun.kubernetes.config import DEFAULT, MPS, PREFIX, TIME_SLICING, PluginConfig, Replicated, Sharing
from gpurun.kubernetes.models import Absent, Table, load_yaml, read, unknown_keys
from gpurun.record import replace

MigStrategy = Literal["none", "single", "mixed"]
ListStrategy = Literal["cdi-cri", "cdi-annotations", "envvar", "volume-mounts"]
IdStrategy = Literal["uuid", "index"]
Policy = Literal["distributed", "packed"]
SHARED_SUFFIX = ".shared"
_MAX_NAME = 63
_TRUE, _FALSE = ("1", "t", "true"), ("0", "f", "false", "")


def resource_name(value: object) -> str:
    """*value* as the whole name of a resource.  Raises ValueError with the sentence."""
    if not isinstance(value, str) or not value:
        raise ValueError("must be the name of a resource")
    whole = value.startswith(tuple([vendor.resource for vendor in VENDORS]))
    name = value if whole else f"{PREFIX}/{value}"
    tail = name.partition("/")[2]
    marks = "-." if name.startswith(f"{PREFIX}/") else "-._"  # of those divided as CPX and NPS4: cpx_nps4
    good = all(part and part[0].isalnum() and part[-1].isalnum() for part in tail.split("."))
    if (
        not good
        or not all((c.isascii() and (c.isdigit() or c.islower())) or c in marks for c in tail)
        or len(name) > _MAX_NAME
    ):
        raise ValueError(f"{value!r} is not the name of a resource: use at most {_MAX_NAME} of a-z, 0-9, - and .")
    return name


def _replicas(value: object) -> object:
    if type(value) is not int or value < 2:
        raise ValueError("must be a number from 2 on")
    return value


def _words(value: object) -> object:
    """A text of words with commas between them, or a list of such texts, as a list of words."""
    items = [value] if isinstance(value, str) else value
    if not isinstance(items, list) or not all(isinstance(item, str) for item in items):
        raise ValueError("must be a text or a list of texts")
    if not items:
        raise ValueError(f"is empty, known are {', '.join(get_args(ListStrategy))}")
    words = [word.strip() for item in items for word in item.split(",")]
    for word in words:
        if word not in get_args(ListStrategy):
            raise ValueError(f"{word!r} is unknown, known are {', '.join(get_args(ListStrategy))}")
    return words


def _channels(value: object) -> object:
    if value not in (None, [], [0]):
        raise ValueError("must be [] or [0]")
    return value


_UUID = "[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}"
#: A GPU's number, a MIG device's (GPU:number), or a UUID; MIG devices have two kinds of it.
_DEVICE = re.compile(f"[0-9]+(?::[0-9]+)?|(?:GPU|MIG)-{_UUID}|MIG-GPU-{_UUID}/[0-9]+/[0-9]+", re.ASCII)


def _devices(value: object) -> object:
    """``all``, how many, or which: what NVIDIA's plugin refuses is refused here, too."""
    if value is None or value == "all":
        return "all"
    if type(value) is int and value > 0:
        return value
    if not isinstance(value, list):
        raise ValueError("must be all, a number from 1 on, or a list of devices")
    for one in value:
        if not (type(one) is int and one >= 0) and not (isinstance(one, str) and _DEVICE.fullmatch(one)):
            raise ValueError(f"{one!r} is not a device: use the number of a GPU, GPU:MIG, or a UUID")
    return value


def seconds(value: object) -> object:
    """Seconds of a duration in Go's words (``1m30s``, ``infinite``), or of a number of nanoseconds.  Raises ValueError.

    No time at all is 0.0, which is as if nothing were said.
    """
    from gpurun.engine.caller.events import parse_duration

    if value is None:
        return None
    if value in ("0", "0s") or (type(value) in (int, float) and value == 0):
        return 0.0
    if value == "infinite":
        return inf
    if type(value) in (int, float) and value > 0:  # type: ignore[operator]
        return value / 1e9  # type: ignore[operator]
    try:
        return parse_duration(value if isinstance(value, str) else "")
    except GpurunError:
        raise ValueError(f"{value!r} is not a duration, write it like 30s or 1m30s, or infinite") from None


class _Replicated(Table):
    name: Annotated[str, BeforeValidator(resource_name)] = ""
    replicas: Annotated[int, BeforeValidator(_replicas)] = 0
    rename: Annotated[str, BeforeValidator(resource_name)] | None = None
    devices: Annotated[Any, BeforeValidator(_devices)] = "all"


def _not_empty(value: object) -> object:
    if not isinstance(value, list) or not value:
        raise ValueError("must be a list of at least one resource to share")
    return value


class _Replicas(Table):
    renameByDefault: bool | None = None
    failRequestsGreaterThanOne: bool | None = None
    resources: Annotated[list[_Replicated], BeforeValidator(_not_empty)] = Field(default_factory=list)


class _Sharing(Table):
    timeSlicing: _Replicas | None = None
    mps: _Replicas | None = None


class _Plugin(Table):
    deviceListStrategy: Annotated[list[str], BeforeValidator(_words)] | None = None
    deviceIDStrategy: IdStrategy | None = None
    passDeviceSpecs: bool | None = None
    cdiAnnotationPrefix: str | None = None
    sharedDevicesAllocationPolicy: Policy | None = None
    # Known to NVIDIA's programs, and of no use to this one, as others called ``Any`` below.
    nvidiaCTKPath: Any = None
    containerDriverRoot: Any = None


class _Gfd(Table):
    noTimestamp: bool | None = None
    sleepInterval: Annotated[float | None, BeforeValidator(seconds)] = None
    machineTypeFile: str | None = None
    oneshot: bool | None = None
    outputFile: str | None = None


class _Flags(Table):
    migStrategy: MigStrategy | None = None
    failOnInitError: bool | None = None
    nvidiaDriverRoot: str | None = None
    nvidiaDevRoot: str | None = None
    mpsRoot: str | None = None
    gdsEnabled: bool | None = None
    mofedEnabled: bool | None = None
    gdrcopyEnabled: bool | None = None
    plugin: Absent[_Plugin] = _Plugin()
    gfd: Absent[_Gfd] = _Gfd()
    useNodeFeatureAPI: bool | None = None
    deviceDiscoveryStrategy: Any = None


class _Imex(Table):
    channelIDs: Annotated[list[int] | None, BeforeValidator(_channels)] = None
    required: bool | None = None


class _Document(Table):
    version: Annotated[Literal["v1"], BeforeValidator(lambda value: value or "v1")] = "v1"
    flags: Absent[_Flags] = _Flags()
    resources: Absent[dict[str, Any]] = {}
    sharing: Absent[_Sharing] = _Sharing()
    imex: Absent[_Imex] = _Imex()


#: Key of ``flags``, ``flags.plugin`` or ``flags.gfd`` → (field of :class:`PluginConfig`, NVIDIA's variables, the first one
#: that is set counts).
_FLAGS = {
    "migStrategy": ("mig_strategy", "MIG_STRATEGY"),
    "failOnInitError": ("fail_on_init_error", "FAIL_ON_INIT_ERROR"),
    "nvidiaDriverRoot": ("driver_root", "NVIDIA_DRIVER_ROOT"),
    "nvidiaDevRoot": ("dev_root", "NVIDIA_DEV_ROOT"),
    "mpsRoot": ("mps_root", "MPS_ROOT"),
    "gdsEnabled": ("gds", "GDS_ENABLED"),
    "mofedEnabled": ("mofed", "MOFED_ENABLED"),
    "gdrcopyEnabled": ("gdrcopy", "GDRCOPY_ENABLED"),
    "useNodeFeatureAPI": ("node_feature_api", "GFD_USE_NODE_FEATURE_API", "USE_NODE_FEATURE_API"),
}
_PLUGIN = {
    "deviceListStrategy": ("list_strategies", "DEVICE_LIST_STRATEGY"),
    "deviceIDStrategy": ("id_strategy", "DEVICE_ID_STRATEGY"),
    "passDeviceSpecs": ("pass_device_specs", "PASS_DEVICE_SPECS"),
    "cdiAnnotationPrefix": ("annotation_prefix", "CDI_ANNOTATION_PREFIX"),
    "sharedDevicesAllocationPolicy": ("allocation_policy", "SHARED_DEVICES_ALLOCATION_POLICY"),
}
_GFD = {
    "noTimestamp": ("no_timestamp", "GFD_NO_TIMESTAMP"),
    "sleepInterval": ("sleep_interval", "GFD_SLEEP_INTERVAL"),
    "machineTypeFile": ("machine_type_file", "GFD_MACHINE_TYPE_FILE"),
    "outputFile": ("output_file", "GFD_OUTPUT_FILE"),
    "oneshot": ("oneshot", "GFD_ONESHOT"),
}


def parse(text: str, where: str, base: PluginConfig = DEFAULT) -> PluginConfig:
    """The configuration in *text*, YAML or JSON, of the file *where*; *base* for what it does not say.

    Raises :class:`ConfigError` naming the key.
    """
    document = load_yaml(text, where)
    top = read(_Document, {} if document is None else document, where, ": ")
    tables = ((top.flags, _FLAGS, "flags"), (top.flags.plugin, _PLUGIN, "flags.plugin"), (top.flags.gfd, _GFD, "flags.gfd"))
    warnings = unknown_keys(top, where)
    values: dict[str, Any] = {}
    for table, known, path in tables:
        warnings += unknown_keys(table, f"{where}: {path}")
        for key, (field, *_) in known.items():
            value = getattr(table, key)
            if value is not None:
                values[field] = tuple(value) if isinstance(value, list) else value
    if any(top.resources.get(kind) for kind in ("gpus", "migs", "mig")):
        warnings.append("resources: resources cannot be named, as in NVIDIA's plugin; this is ignored")
    sharing = _sharing(top.sharing, f"{where}: sharing", warnings)
    return replace(
        base, **values, imex_channels=tuple(top.imex.channelIDs or ()), imex_required=bool(top.imex.required),
        sharing=sharing, warnings=tuple(warnings),
    )  # fmt: skip


def _sharing(table: _Sharing, where: str, warnings: list[str]) -> Sharing:
    warnings += unknown_keys(table, where)
    if table.mps is not None and table.timeSlicing is not None:
        warnings.append("sharing: both mps and timeSlicing are there; mps is taken, as in NVIDIA's plugin")
    if table.mps is not None:
        return _replicated(table.mps, MPS, f"{where}.mps", warnings)
    if table.timeSlicing is not None:
        return _replicated(table.timeSlicing, TIME_SLICING, f"{where}.timeSlicing", warnings)
    return Sharing()


def _replicated(table: _Replicas, strategy: str, where: str, warnings: list[str]) -> Sharing:
    warnings += unknown_keys(table, where)
    # A second replica is a second client of the same MPS server: it never brings more, and NVIDIA's plugin refuses it.
    fail = table.failRequestsGreaterThanOne
    made: list[Replicated] = []
    for number, entry in enumerate(table.resources):
        place = f"{where}.resources[{number}]"
        warnings += unknown_keys(entry, place)
        if strategy == MPS and entry.name and not entry.name.startswith(f"{PREFIX}/"):
            raise ConfigError(f"{place}.name", f"{entry.name} cannot be shared by MPS, which is NVIDIA's: use timeSlicing")
        if any(one.name == entry.name for one in made):
            raise ConfigError(f"{place}.name", f"{entry.name} is given twice")
        if entry.devices != "all":
            warnings.append(f"{place}.devices: devices cannot be chosen, as in NVIDIA's plugin; all are shared")
        default = entry.name + SHARED_SUFFIX if table.renameByDefault else ""
        if entry.rename and entry.rename != default:
            warnings.append(f"{place}.rename: resources cannot be renamed at will, as in NVIDIA's plugin; this is ignored")
        made.append(Replicated(entry.name, entry.replicas, default))
    return Sharing(strategy, strategy == MPS if fail is None else fail, tuple(made))


def from_environment(config: PluginConfig, env: Mapping[str, str]) -> PluginConfig:
    """*config* with what NVIDIA's variables in *env* say instead of the file.  Raises :class:`ConfigError`."""
    changes: dict[str, Any] = {}
    for known in (_FLAGS, _PLUGIN, _GFD):
        for field, *variables in known.values():
            for variable in [name for name in variables if name in env][:1]:
                changes[field] = _from_text(env[variable], getattr(config, field), variable)
    return checked(replace(config, **changes), "environment")


def _from_text(text: str, now: object, variable: str) -> Any:
    """The value of *variable* as the kind of value that its field has *now*."""
    if isinstance(now, tuple):
        return tuple([word.strip() for word in text.split(",")])
    if isinstance(now, bool):
        if text.lower() not in (*_TRUE, *_FALSE):
            raise ConfigError(variable, f"{text!r} is neither true nor false")
        return text.lower() in _TRUE
    if isinstance(now, float):
        try:
            return seconds(text) if text else 0.0
        except ValueError as e:
            raise ConfigError(variable, str(e)) from None
    return text


def checked(config: PluginConfig, where: str) -> PluginConfig:
    """*config* itself.  Raises :class:`ConfigError` for a word of a variable or an option that is none of those known."""
    plugin = {key: getattr(config, field) for key, (field, *_) in _PLUGIN.items()}
    plugin["deviceListStrategy"] = list(config.list_strategies)
    for model, table in ((_Flags, {"migStrategy": config.mig_strategy}), (_Plugin, plugin)):
        read(model, table, where, ": ")
    return config
