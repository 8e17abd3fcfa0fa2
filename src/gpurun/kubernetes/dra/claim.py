"""A ResourceClaim's allocation, read: which devices of this node for which requests, configured how; pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gpurun.errors import ConfigError
from gpurun.kubernetes.dra.opaque import TIME_SLICES, Mps, Opaque, amount_of, bytes_of
from gpurun.kubernetes.dra.slices import DRIVER
from gpurun.kubernetes.models import read
from gpurun.record import Record

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
    """One device of a claim; *share* names the share of a device that several claims have, *memory* is its size in bytes.

    No *memory* is said of a device that only one claim has.
    """

    request: str
    pool: str
    device: str
    admin: bool = False
    share: str = ""
    config: DeviceConfig = DeviceConfig()
    memory: int = 0


class Claim(Record):
    """A claim, with the devices of this driver on this node; none when it is not allocated."""

    uid: str
    namespace: str
    name: str
    devices: tuple[Allocated, ...] = ()


def read_claim(claim: Object, pool: str, driver: str = DRIVER) -> Claim:
    """The record of a ResourceClaim object, with its devices of *driver*.

    Raises :class:`ConfigError` for configuration, and an amount of memory, that is not understood.

    Of several configurations for a device the last one counts, those of the claim after those of its classes.
    """
    metadata = claim.get("metadata") or {}
    allocation = ((claim.get("status") or {}).get("allocation") or {}).get("devices") or {}
    where = f"claim {metadata.get('namespace')}/{metadata.get('name')}"
    configs = sorted(
        [(entry.get("source") == "FromClaim", number, entry) for number, entry in enumerate(allocation.get("config") or ())],
        key=lambda item: item[:2],
    )
    understood = read_config if driver == DRIVER else _no_config
    parsed = [
        (tuple(entry.get("requests") or ()), understood(entry["opaque"].get("parameters"), f"{where}: config[{number}]"))
        for _, number, entry in configs
        if (entry.get("opaque") or {}).get("driver") == driver
    ]
    devices = []
    for result in allocation.get("results") or ():
        if result.get("driver") != driver or result.get("pool") != pool:
            continue
        request = str(result.get("request", ""))
        # A request with alternatives is called main/sub; a configuration may name the whole or the alternative.
        names = {request, request.partition("/")[0]}
        fitting = [config for requests, config in parsed if not requests or names & set(requests)]
        devices.append(
            Allocated(
                request, pool, str(result.get("device", "")),
                bool(result.get("adminAccess")), str(result.get("shareID") or ""),
                fitting[-1] if fitting else DeviceConfig(), _consumed(result, where),
            )
        )  # fmt: skip
    return Claim(
        str(metadata.get("uid", "")), str(metadata.get("namespace", "")), str(metadata.get("name", "")), tuple(devices)
    )


def _consumed(result: Object, where: str) -> int:
    """The memory, in bytes, that a device of an allocation gives to the claim; 0 where the device is not shared."""
    amount = (result.get("consumedCapacity") or {}).get("memory")
    try:
        return 0 if amount is None else amount_of(amount)
    except ValueError as e:
        raise ConfigError(f"{where}: consumedCapacity.memory", str(e)) from None


def _no_config(parameters: object, where: str) -> DeviceConfig:
    """Raises :class:`ConfigError`: what would not be done is not taken."""
    raise ConfigError(where, "the devices of this driver have no configuration: leave out opaque")


def read_config(parameters: object, where: str) -> DeviceConfig:
    """Opaque parameters in NVIDIA's words (``GpuConfig``, ``MigDeviceConfig``).  Raises :class:`ConfigError`."""
    sharing = read(Opaque, parameters, where).sharing
    if sharing is None:
        return DeviceConfig()
    if sharing.strategy == "TimeSlicing":
        interval = (sharing.timeSlicingConfig and sharing.timeSlicingConfig.interval) or "Default"
        return DeviceConfig("TimeSlicing", TIME_SLICES[interval])
    mps = sharing.mpsConfig or Mps()
    limit = mps.defaultPinnedDeviceMemoryLimit
    each = mps.defaultPerDevicePinnedMemoryLimit or {}
    return DeviceConfig(
        "MPS",
        threads=mps.defaultActiveThreadPercentage or 0,
        memory=bytes_of(limit) if limit is not None else 0,
        memory_of=tuple([(gpu, bytes_of(size)) for gpu, size in sorted(each.items())]),
    )
