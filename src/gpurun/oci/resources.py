"""``linux.resources`` of config.json, and the same object as ``update --resources`` gets it.

Specification: runtime-spec 1.3, config-linux.md, "Control groups".  What only cgroup v1 has is not read, as runc ignores it
on cgroup v2 and clients send it out of habit: ``kernel``, ``kernelTCP``, ``swappiness``, ``disableOOMKiller`` and
``useHierarchy`` of memory, ``realtime*`` of cpu, ``leafWeight`` of blockIO, and ``network``.

Unknown members are ignored, ``null`` is absent.  Zero means "not given", as in the Go programs that write these
documents, except where a field is ``None`` by default.
"""

from __future__ import annotations

from gpurun.errors import ConfigError
from gpurun.oci.reader import (
    INT64_MAX,
    INT64_MIN,
    UINT32_MAX,
    UINT64_MAX,
    JSONObject,
    as_object,
    child,
    get_array,
    get_bool,
    get_int,
    get_object,
    get_string,
    get_string_map,
    wrong_type,
)
from gpurun.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


class DeviceRule(Record):
    """An entry of ``devices``: *type* is ``a`` (all), ``b`` or ``c``; a number that is None means any.

    *access* is a subset of ``rwm`` in this order; it is empty where the config has only other letters, which have no
    meaning.
    """

    allow: bool
    type: str
    major: int | None
    minor: int | None
    access: str


class Memory(Record):
    """Bytes; -1 is unlimited, 0 not given.  *swap* is memory and swap together, as the specification has it."""

    limit: int = 0
    reservation: int = 0
    swap: int = 0
    check_before_update: bool = False


class Cpu(Record):
    """*quota*, *period*, *burst* in microseconds; a *quota* below 0 is unlimited."""

    shares: int = 0
    quota: int = 0
    period: int = 0
    burst: int | None = None
    idle: int | None = None
    cpus: str = ""
    mems: str = ""


class WeightDevice(Record):
    major: int
    minor: int
    weight: int


class ThrottleDevice(Record):
    """*rate* in bytes or operations each second; 0 lifts the limit."""

    major: int
    minor: int
    rate: int


class BlockIO(Record):
    weight: int = 0
    weight_devices: tuple[WeightDevice, ...] = ()
    read_bps: tuple[ThrottleDevice, ...] = ()
    write_bps: tuple[ThrottleDevice, ...] = ()
    read_iops: tuple[ThrottleDevice, ...] = ()
    write_iops: tuple[ThrottleDevice, ...] = ()


class HugepageLimit(Record):
    """*size* as the kernel names it in its files (``2MB``), *limit* in bytes."""

    size: str
    limit: int


class Rdma(Record):
    handles: int | None = None
    objects: int | None = None


class Resources(Record):
    """All limits of one container.  *pids_limit*: None is not given, a negative number unlimited."""

    devices: tuple[DeviceRule, ...] = ()
    memory: Memory | None = None
    cpu: Cpu | None = None
    pids_limit: int | None = None
    block_io: BlockIO | None = None
    hugepage_limits: tuple[HugepageLimit, ...] = ()
    rdma: dict[str, Rdma] = {}
    unified: dict[str, str] = {}


def read_resources(obj: JSONObject, json_path: str = "linux.resources") -> Resources:
    """The records of the resources object at *json_path*.  Raises :class:`ConfigError` naming the wrong member."""
    pids = get_object(obj, "pids", json_path)
    return Resources(
        devices=_read_devices(obj, json_path),
        memory=_read_memory(get_object(obj, "memory", json_path), child(json_path, "memory")),
        cpu=_read_cpu(get_object(obj, "cpu", json_path), child(json_path, "cpu")),
        pids_limit=None if pids is None else get_int(pids, "limit", child(json_path, "pids")),
        block_io=_read_block_io(get_object(obj, "blockIO", json_path), child(json_path, "blockIO")),
        hugepage_limits=get_array(obj, "hugepageLimits", json_path, _read_hugepage_limit),
        rdma=_read_rdma(obj, json_path),
        unified=_read_unified(obj, json_path),
    )


def _read_devices(obj: JSONObject, json_path: str) -> tuple[DeviceRule, ...]:
    path = child(json_path, "devices")
    entries = obj.get("devices")
    if entries is None:
        return ()
    if type(entries) is not list:
        raise wrong_type(path, "an array", entries)
    return tuple([_read_device(entry, index, f"{path}[{index}]") for index, entry in enumerate(entries)])


def _read_device(value: Any, index: int, json_path: str) -> DeviceRule:
    obj = as_object(value, json_path)
    kind = get_string(obj, "type", json_path) or "a"
    if kind not in ("a", "b", "c"):
        raise ConfigError(child(json_path, "type"), f'invalid cgroup device type "{kind}", it must be a, b or c')
    access = get_string(obj, "access", json_path)
    if not access:
        raise ConfigError(child(json_path, "access"), f"device access at {index} field cannot be empty")
    return DeviceRule(
        allow=get_bool(obj, "allow", json_path),
        type=kind,
        major=_device_number(obj, "major", json_path),
        minor=_device_number(obj, "minor", json_path),
        access="".join([letter for letter in "rwm" if letter in access]),
    )


def _device_number(obj: JSONObject, key: str, json_path: str) -> int | None:
    """-1 means any, as in the documents that Docker writes."""
    number = get_int(obj, key, json_path, -1, UINT32_MAX)
    return None if number == -1 else number


def _read_memory(obj: JSONObject | None, json_path: str) -> Memory | None:
    if obj is None:
        return None
    return Memory(
        limit=_zero(obj, "limit", json_path, -1),
        reservation=_zero(obj, "reservation", json_path, -1),
        swap=_zero(obj, "swap", json_path, -1),
        check_before_update=get_bool(obj, "checkBeforeUpdate", json_path),
    )


def _read_cpu(obj: JSONObject | None, json_path: str) -> Cpu | None:
    if obj is None:
        return None
    return Cpu(
        shares=_zero(obj, "shares", json_path, 0, UINT64_MAX),
        quota=_zero(obj, "quota", json_path, INT64_MIN),
        period=_zero(obj, "period", json_path, 0, UINT64_MAX),
        burst=get_int(obj, "burst", json_path, 0, UINT64_MAX),
        idle=get_int(obj, "idle", json_path, 0, 1),
        cpus=get_string(obj, "cpus", json_path),
        mems=get_string(obj, "mems", json_path),
    )


def _read_block_io(obj: JSONObject | None, json_path: str) -> BlockIO | None:
    if obj is None:
        return None
    return BlockIO(
        weight=_weight(obj, json_path),
        weight_devices=get_array(obj, "weightDevice", json_path, _read_weight_device),
        read_bps=get_array(obj, "throttleReadBpsDevice", json_path, _read_throttle_device),
        write_bps=get_array(obj, "throttleWriteBpsDevice", json_path, _read_throttle_device),
        read_iops=get_array(obj, "throttleReadIOPSDevice", json_path, _read_throttle_device),
        write_iops=get_array(obj, "throttleWriteIOPSDevice", json_path, _read_throttle_device),
    )


def _read_weight_device(value: Any, json_path: str) -> WeightDevice:
    obj = as_object(value, json_path)
    return WeightDevice(*_numbers(obj, json_path), _weight(obj, json_path))


def _read_throttle_device(value: Any, json_path: str) -> ThrottleDevice:
    obj = as_object(value, json_path)
    return ThrottleDevice(*_numbers(obj, json_path), _zero(obj, "rate", json_path, 0, UINT64_MAX))


def _numbers(obj: JSONObject, json_path: str) -> tuple[int, int]:
    return _zero(obj, "major", json_path, 0, UINT32_MAX), _zero(obj, "minor", json_path, 0, UINT32_MAX)


def _weight(obj: JSONObject, json_path: str) -> int:
    weight = _zero(obj, "weight", json_path, 0)
    if weight and not 10 <= weight <= 1000:
        raise ConfigError(
            child(json_path, "weight"), f"{weight} is out of range, it must be from 10 to 1000 (or 0 for none)"
        )
    return weight


def _read_hugepage_limit(value: Any, json_path: str) -> HugepageLimit:
    obj = as_object(value, json_path)
    size = get_string(obj, "pageSize", json_path)
    # The size becomes part of a file name: nothing but the specification's form may pass.
    digits = size[:-2]
    if size[-2:] not in ("KB", "MB", "GB") or not (digits.isascii() and digits.isdigit()) or digits[0] == "0":
        raise ConfigError(child(json_path, "pageSize"), f'"{size}" is not a page size like 64KB, 2MB or 1GB')
    return HugepageLimit(size, _zero(obj, "limit", json_path, 0, UINT64_MAX))


def _read_rdma(obj: JSONObject, json_path: str) -> dict[str, Rdma]:
    path = child(json_path, "rdma")
    made: dict[str, Rdma] = {}
    for device, value in (get_object(obj, "rdma", json_path) or {}).items():
        # The name becomes a word of a line that the kernel splits at white space.
        if not device or device.split() != [device] or "\0" in device:
            raise ConfigError(path, f'"{device}" is not the name of an RDMA device')
        limits = as_object(value, child(path, device))
        made[device] = Rdma(
            get_int(limits, "hcaHandles", child(path, device), 0, UINT32_MAX),
            get_int(limits, "hcaObjects", child(path, device), 0, UINT32_MAX),
        )
    return made


def _read_unified(obj: JSONObject, json_path: str) -> dict[str, str]:
    unified = get_string_map(obj, "unified", json_path)
    for key in unified:
        if "/" in key:
            raise ConfigError(child(json_path, "unified"), f'unified resource "{key}" must be a file name (no slashes)')
        if "." not in key.strip(".") or "\0" in key:
            raise ConfigError(
                child(json_path, "unified"), f'unified resource "{key}" must be in the form CONTROLLER.PARAMETER'
            )
    return unified


def _zero(obj: JSONObject, key: str, json_path: str, low: int = 0, high: int = INT64_MAX) -> int:
    """A number whose absence is 0."""
    return get_int(obj, key, json_path, low, high) or 0
