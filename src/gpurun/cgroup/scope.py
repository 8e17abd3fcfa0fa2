"""The transient unit that systemd makes for a container: its name, its place, its properties.  Pure.

Most often it is a scope.  A name that ends in ``.slice`` makes it a slice: the container's processes are then in the slice
itself, and systemd, which keeps no processes in slices of its own, does not touch them.

What is set as a property is written to the cgroup as well (:mod:`gpurun.cgroup.resources` decides what): the properties
are there so that systemd, whenever it applies what it knows of a unit, at ``systemctl daemon-reload`` for one, knows the
same, the devices of the container's GPUs included.

Reference: org.freedesktop.systemd1(5), systemd.resource-control(5), systemd.slice(5); the form of ``cgroupsPath`` and the
annotations ``org.systemd.property.*`` are runc's.
"""

from __future__ import annotations

from gpurun.cgroup.devices import BPF_DEVCG_ACC_MKNOD, BPF_DEVCG_ACC_READ, BPF_DEVCG_ACC_WRITE
from gpurun.decimals import bit_mask, decimal, number_list
from gpurun.errors import ConfigError
from gpurun.oci.annotations import SYSTEMD_PROPERTY
from gpurun.record import Record, replace

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from typing import Any

    from gpurun.cgroup.devices import DeviceException, DeviceFilter
    from gpurun.cgroup.resources import CgroupWrite
    from gpurun.cgroup.service_manager import UserManager


_UINT64_MAX = (1 << 64) - 1
_WHERE = "linux.cgroupsPath"

#: The versions of systemd that first take OOMPolicy of a scope, and CPUWeight=0.  With an older one only the file is
#: written.
_OOM_POLICY_SINCE, _IDLE_SINCE = 253, 252


class Property(Record):
    """A property of a unit, for :mod:`gpurun.formats.dbus`; *where* is the JSON path that asked for it."""

    name: str
    signature: str
    value: Any
    where: str = ""
    since: int = 0  # the first version of systemd that takes it; 0 for all that gpurun can meet


class Scope(Record):
    """A scope unit: *properties* are those it is made with, *limits* are set before the container's process runs."""

    unit: str
    slice: str
    properties: tuple[Property, ...]
    limits: tuple[Property, ...]
    manager: str = ""  # the text of a user's service manager's endpoint; "" is the system's
    base: str = ""  # that manager's own cgroup, below which its slices are


def scope_names(cgroups_path: str, container_id: str, default_slice: str = "system.slice") -> tuple[str, str]:
    """(slice, unit) that ``linux.cgroupsPath`` names: ``slice:prefix:name``; empty means ``:gpurun:<id>``.

    A *name* that ends in ``.slice`` is the unit as it stands, the prefix does not count.  Its own dashes say where in the
    tree it is, and *slice* must agree.

    Raises :class:`ConfigError` for another form and for names that systemd does not take.
    """
    parts = (cgroups_path or f":gpurun:{container_id}").split(":")
    if len(parts) != 3:
        raise ConfigError(
            _WHERE,
            f'expected cgroupsPath to be of format "slice:prefix:name" for systemd cgroups, got "{cgroups_path}" instead',
        )
    slice_name, prefix, name = parts
    slice_name = slice_name or default_slice
    expand_slice(slice_name)
    if name.endswith(".slice"):
        above = expand_slice(name).rpartition("/")[0]
        if name == "-.slice" or above != expand_slice(slice_name):
            within = above.rpartition("/")[2] or "-.slice"
            raise ConfigError(_WHERE, f'the slice "{name}" cannot be in "{slice_name}": by its name it is in "{within}"')
        unit = name
    else:
        unit = f"{prefix}-{name}.scope"
    wrong = [c for c in unit if not (c.isascii() and (c.isalnum() or c in ":-_.\\@"))]
    if not name or wrong or len(unit) > 255:
        raise ConfigError(
            _WHERE,
            f'"{unit}" cannot be the name of a systemd unit: use at most 255 letters, digits and the characters ":-_.\\@"',
        )
    return slice_name, unit


def expand_slice(slice_name: str) -> str:
    """The path of a slice in the tree: each dash nests, ``a-b.slice`` is ``/a.slice/a-b.slice``; ``-.slice`` is the root.

    Raises :class:`ConfigError` for a name that is not one of a slice.
    """
    if slice_name == "-.slice":
        return ""
    name = slice_name.removesuffix(".slice")
    words = name.split("-")
    if name == slice_name or "/" in name or not all(words):
        raise ConfigError(_WHERE, f"invalid slice name: {slice_name}")
    return "".join([f"/{'-'.join(words[:end])}.slice" for end in range(1, len(words) + 1)])


def plan_scope(
    cgroups_path: str,
    container_id: str,
    annotations: Mapping[str, str],
    writes: tuple[CgroupWrite, ...],
    devices: DeviceFilter | None,
    user: UserManager | None = None,
) -> Scope:
    """The scope of a container with those limits; raises :class:`ConfigError` for names and annotations that cannot be.

    A *user*'s manager gets no device rules: only root may restrict them.
    """
    slice_name, unit = scope_names(cgroups_path, container_id, "user.slice" if user else "system.slice")
    properties = unit_properties(container_id, slice_name, annotations, writes, unit.endswith(".slice"))
    limits = limit_properties(writes)
    if user is not None:
        return Scope(unit, slice_name, properties, limits, user.endpoint.text, user.cgroup)
    return Scope(unit, slice_name, properties, limits + (device_properties(devices) if devices is not None else ()))


def scope_path(scope: Scope) -> str:
    """The path of the scope's cgroup, from the root of the tree."""
    return f"{scope.base.rstrip('/')}{expand_slice(scope.slice)}/{scope.unit}"


def unit_properties(
    container_id: str,
    slice_name: str,
    annotations: Mapping[str, str],
    writes: tuple[CgroupWrite, ...],
    is_slice: bool = False,
) -> tuple[Property, ...]:
    """What the unit is made with, besides the process in it: what cannot be set later, and what annotations ask for."""
    kind: tuple[Property, ...] = (Property("Slice", "s", slice_name, _WHERE), Property("Delegate", "b", True))
    if is_slice:  # systemd finds its place by its name, and delegates no slices
        kind = (Property("Wants", "as", (slice_name,), _WHERE),) if slice_name != "-.slice" else ()
        writes = ()
    own: tuple[Property, ...] = (
        Property("Description", "s", f"gpurun container {container_id}"),
        *kind,
        Property("DefaultDependencies", "b", False),
        Property("CPUAccounting", "b", True),
        Property("MemoryAccounting", "b", True),
        Property("IOAccounting", "b", True),
        Property("TasksAccounting", "b", True),
    )
    for write in writes:
        if write.file == "memory.oom.group":
            policy = "kill" if write.value == "1" else "continue"
            own = (*own, Property("OOMPolicy", "s", policy, write.where, _OOM_POLICY_SINCE))
    asked = annotation_properties(annotations)
    names = [one.name for one in asked]
    return tuple([one for one in own if one.name not in names]) + asked


def annotation_properties(annotations: Mapping[str, str]) -> tuple[Property, ...]:
    """The properties that annotations ask for: ``org.systemd.property.NAME`` with a value in GVariant's text format.

    Raises :class:`ConfigError` for a name or a value that systemd does not take.
    """
    found = []
    for key, text in annotations.items():
        if not key.startswith(SYSTEMD_PROPERTY):
            continue
        json_path = f"annotations.{key}"
        name = key[len(SYSTEMD_PROPERTY) :]
        if len(name) < 3 or not (name.isascii() and name.isalpha()):
            raise ConfigError(
                json_path, f'"{name}" cannot be a property of a systemd unit: it must be three letters or more'
            )
        from gpurun.formats.gvariant import parse_variant

        try:
            signature, value = parse_variant(text)
        except ValueError as e:
            raise ConfigError(json_path, f"is not a value in GVariant text format: {e}") from None
        if name.endswith("Sec") and not name.endswith("USec"):
            # People write seconds, D-Bus carries microseconds.
            if signature not in tuple("nqiuxtd") or value < 0:
                raise ConfigError(json_path, f"must be a number of seconds, not {text}")
            if not value * 1_000_000 < _UINT64_MAX:
                raise ConfigError(json_path, f"{text} is more seconds than systemd can count")
            name, signature, value = f"{name[:-3]}USec", "t", int(value * 1_000_000)
        found.append(Property(name, signature, value, json_path))
    return tuple(found)


def limit_properties(writes: tuple[CgroupWrite, ...]) -> tuple[Property, ...]:
    """*writes* as properties, as far as systemd has one for the file; the last write to a file counts."""
    made: dict[str, Property] = {}
    for write in writes:
        for one in _properties_of(write):
            made[one.name] = one
    return tuple(made.values())


def _properties_of(write: CgroupWrite) -> Iterator[Property]:
    file, value, json_path = write.file, write.value.strip(), write.where
    if file in _NUMBERS:
        number = _number(value)
        if number is not None:
            yield Property(_NUMBERS[file], "t", number, json_path)
    elif file == "cpu.idle":
        if value == "1":
            yield Property("CPUWeight", "t", 0, json_path, _IDLE_SINCE)
    elif file == "cpu.max":
        quota, length = _number(value.partition(" ")[0]), _number(value.partition(" ")[2] or "100000")
        if quota is not None and length:
            yield Property("CPUQuotaPerSecUSec", "t", quota if quota == _UINT64_MAX else cpu_quota(quota, length), json_path)
            yield Property("CPUQuotaPeriodUSec", "t", length, json_path)
    elif file in ("cpuset.cpus", "cpuset.mems"):
        numbers = number_list(value)
        if numbers is None:
            raise ConfigError(json_path, f'"{value}" is not a list of numbers like 0-3,8')
        yield Property("AllowedCPUs" if file == "cpuset.cpus" else "AllowedMemoryNodes", "ay", bit_mask(numbers), json_path)
    elif file == "io.weight" and ":" not in value:
        weight = _number(value.removeprefix("default "))
        if weight is not None:
            yield Property("IOWeight", "t", weight, json_path)
    elif write.otherwise is not None:
        yield from _properties_of(write.otherwise)


def _number(text: str) -> int | None:
    """A number as the kernel reads it, ``max`` or with a unit (``64M``); None for what it may know and we do not."""
    if text == "max":
        return _UINT64_MAX
    digits = text.rstrip("kmgtpeKMGTPE")
    number = decimal(digits)
    if len(text) - len(digits) > 1 or number is None:
        return None  # systemd does not get it, and the kernel says whether it is valid
    number <<= 10 * ("kmgtpe".index(text[-1].lower()) + 1) if text != digits else 0
    return number if number < _UINT64_MAX else None


#: Files whose value is a number or ``max``.
_NUMBERS = {
    "memory.max": "MemoryMax",
    "memory.high": "MemoryHigh",
    "memory.low": "MemoryLow",
    "memory.min": "MemoryMin",
    "memory.swap.max": "MemorySwapMax",
    "memory.zswap.max": "MemoryZSwapMax",
    "cpu.weight": "CPUWeight",
    "pids.max": "TasksMax",
}


def cpu_quota(quota: int, period: int) -> int:
    """Microseconds of CPU time in a second; systemd keeps whole percents of a CPU, so this is rounded up to one."""
    return (-(-quota * 1_000_000 // period) + 9_999) // 10_000 * 10_000


def as_systemd_rounds(writes: tuple[CgroupWrite, ...]) -> tuple[CgroupWrite, ...]:
    """*writes* with the quotas of CPU time that systemd will keep (:func:`cpu_quota`), as runc writes them since 1.3: so the
    value in force does not change when systemd next applies what it knows."""
    return tuple([_round_quota(write) if write.file == "cpu.max" else write for write in writes])


def _round_quota(write: CgroupWrite) -> CgroupWrite:
    quota, length = _number(write.value.partition(" ")[0]), _number(write.value.partition(" ")[2] or "100000")
    if quota is None or quota == _UINT64_MAX or not length:
        return write
    return replace(write, value=f"{cpu_quota(quota, length) * length // 1_000_000} {length}")


def device_properties(devices: DeviceFilter) -> tuple[Property, ...]:
    """Who may open which device, in systemd's words: DevicePolicy and DeviceAllow.

    systemd knows lists of what is allowed, whole major numbers among them, and nothing else: what it cannot say
    (all but some; one minor of every major) is left to the container's own program, which a reload does not touch.
    """
    json_path = "linux.resources.devices"
    allowed = tuple([_device_allow(one) for one in devices.exceptions])
    inexpressible = devices.default_allow or any(one.major is None and one.minor is not None for one in devices.exceptions)
    if inexpressible:
        return (Property("DevicePolicy", "s", "auto", json_path), Property("DeviceAllow", "a(ss)", (), json_path))
    # The empty list first: a list that is set is added to the one that is there.
    return (
        Property("DevicePolicy", "s", "strict", json_path),
        Property("DeviceAllow", "a(ss)", (), json_path),
        Property("DeviceAllow", "a(ss)", allowed, json_path),
    )


def _device_allow(device: DeviceException) -> tuple[str, str]:
    letters = (("r", BPF_DEVCG_ACC_READ), ("w", BPF_DEVCG_ACC_WRITE), ("m", BPF_DEVCG_ACC_MKNOD))
    may = "".join([letter for letter, bit in letters if device.access & bit])
    name = "block" if device.type == "b" else "char"
    if device.minor is None:
        return f"{name}-{'*' if device.major is None else device.major}", may
    # Of this form systemd takes the numbers, whether or not the file exists.
    return f"/dev/{name}/{device.major}:{device.minor}", may
