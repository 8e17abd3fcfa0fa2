"""A ResourceClaim's allocation, read: which devices of this node for which requests, configured how; pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gpurun.errors import ConfigError
from gpurun.kubernetes.dra.slices import DRIVER
from gpurun.record import Record

CONFIG_VERSION = "resource.nvidia.com/v1beta1"
_KINDS = ("GpuConfig", "MigDeviceConfig")
TIME_SLICES = {"Default": 0, "Short": 1, "Medium": 2, "Long": 3}
_UNITS = {"": 1, "Ki": 1 << 10, "Mi": 1 << 20, "Gi": 1 << 30, "Ti": 1 << 40, "k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}

Object = Mapping[str, Any]


class DeviceConfig(Record):
    """How a device is shared by the containers of a claim.  *strategy* is ``TimeSlicing``, ``MPS`` or empty.

    *interval* is a number for nvidia-smi; *threads* in percent, *memory* in bytes (0: no limit), *memory_of* by GPU.
    """

    strategy: str = ""
    interval: int = 0
    threads: int = 0
    memory: int = 0
    memory_of: tuple[tuple[str, int], ...] = ()


class Allocated(Record):
    """One device of a claim; *share* is the share of a device that several claims have."""

    request: str
    pool: str
    device: str
    admin: bool = False
    share: str = ""
    config: DeviceConfig = DeviceConfig()


class Claim(Record):
    """A claim, with the devices of this driver on this node; none when it is not allocated."""

    uid: str
    namespace: str
    name: str
    devices: tuple[Allocated, ...] = ()


def read_claim(claim: Object, pool: str) -> Claim:
    """The record of a ResourceClaim object.  Raises :class:`ConfigError` for configuration that is not understood.

    Of several configurations for a device the last one counts, those of the claim after those of its classes.
    """
    metadata = claim.get("metadata") or {}
    allocation = ((claim.get("status") or {}).get("allocation") or {}).get("devices") or {}
    where = f"claim {metadata.get('namespace')}/{metadata.get('name')}"
    configs = sorted(
        [(entry.get("source") == "FromClaim", number, entry) for number, entry in enumerate(allocation.get("config") or ())],
        key=lambda item: item[:2],
    )
    parsed = [
        (tuple(entry.get("requests") or ()), read_config(entry["opaque"].get("parameters"), f"{where}: config[{number}]"))
        for _, number, entry in configs
        if (entry.get("opaque") or {}).get("driver") == DRIVER
    ]
    devices = []
    for result in allocation.get("results") or ():
        if result.get("driver") != DRIVER or result.get("pool") != pool:
            continue
        request = str(result.get("request", ""))
        # A request with alternatives is called main/sub; a configuration may name the whole or the alternative.
        names = {request, request.partition("/")[0]}
        fitting = [config for requests, config in parsed if not requests or names & set(requests)]
        devices.append(
            Allocated(
                request, pool, str(result.get("device", "")),
                bool(result.get("adminAccess")), str(result.get("shareID") or ""),
                fitting[-1] if fitting else DeviceConfig(),
            )
        )  # fmt: skip
    return Claim(
        str(metadata.get("uid", "")), str(metadata.get("namespace", "")), str(metadata.get("name", "")), tuple(devices)
    )


def read_config(parameters: object, where: str) -> DeviceConfig:
    """Opaque parameters in NVIDIA's words (``GpuConfig``, ``MigDeviceConfig``).  Raises :class:`ConfigError`."""
    table = _mapping(parameters, where)
    version, kind = table.get("apiVersion"), table.get("kind")
    if version != CONFIG_VERSION or kind not in _KINDS:
        raise ConfigError(where, f"{version} {kind} is not known, known are {CONFIG_VERSION} {' and '.join(_KINDS)}")
    sharing = _mapping(table.get("sharing") or {}, f"{where}.sharing")
    strategy = sharing.get("strategy") or ""
    if not sharing:
        return DeviceConfig()
    if strategy == "TimeSlicing":
        if sharing.get("mpsConfig"):
            raise ConfigError(f"{where}.sharing.mpsConfig", "is there with the strategy TimeSlicing")
        slicing = _mapping(sharing.get("timeSlicingConfig") or {}, f"{where}.sharing.timeSlicingConfig")
        interval = slicing.get("interval") or "Default"
        if interval not in TIME_SLICES:
            known = ", ".join(TIME_SLICES)
            raise ConfigError(f"{where}.sharing.timeSlicingConfig.interval", f"{interval!r} is unknown, known are {known}")
        return DeviceConfig(strategy, TIME_SLICES[interval])
    if strategy == "MPS":
        if sharing.get("timeSlicingConfig"):
            raise ConfigError(f"{where}.sharing.timeSlicingConfig", "is there with the strategy MPS")
        return _mps(_mapping(sharing.get("mpsConfig") or {}, f"{where}.sharing.mpsConfig"), f"{where}.sharing.mpsConfig")
    raise ConfigError(f"{where}.sharing.strategy", f"{strategy!r} is unknown, known are TimeSlicing and MPS")


def _mps(table: Object, where: str) -> DeviceConfig:
    threads = table.get("defaultActiveThreadPercentage") or 0
    if type(threads) is not int or not 0 <= threads <= 100:
        raise ConfigError(f"{where}.defaultActiveThreadPercentage", "must be a number from 0 to 100")
    limit = table.get("defaultPinnedDeviceMemoryLimit")
    each = _mapping(table.get("defaultPerDevicePinnedMemoryLimit") or {}, f"{where}.defaultPerDevicePinnedMemoryLimit")
    return DeviceConfig(
        "MPS",
        threads=threads,
        memory=bytes_of(limit, f"{where}.defaultPinnedDeviceMemoryLimit") if limit is not None else 0,
        memory_of=tuple(
            [
                (str(gpu), bytes_of(size, f"{where}.defaultPerDevicePinnedMemoryLimit.{gpu}"))
                for gpu, size in sorted(each.items())
            ]
        ),
    )


def bytes_of(quantity: object, where: str) -> int:
    """A Kubernetes quantity of memory in bytes.  Raises :class:`ConfigError`."""
    text = str(quantity)
    digits = text.rstrip("KMGTik")
    unit = text[len(digits) :]
    if unit not in _UNITS or not digits.isascii() or not digits.isdigit():
        raise ConfigError(where, f"{text!r} is no amount of memory such as 8Gi")
    return int(digits) * _UNITS[unit]


def _mapping(value: object, where: str) -> Object:
    if not isinstance(value, dict):
        raise ConfigError(where, "must be an object")
    return value
