"""The configuration file of NVIDIA's mig-parted and of its MIG manager for Kubernetes (version v1), as records.

What is in it is checked whole, also what was not asked for: a mistake is reported before anything is changed.  All but
:func:`load` is pure.
"""

from __future__ import annotations

import posix
import stat

from gpurun.errors import ConfigError, GpurunError, clean, oserror_text
from gpurun.formats.yaml import read_yaml
from gpurun.gpu.nvidia.mig.profile import MigProfile, parse_profile
from gpurun.linux.files import O_CLOEXEC, Fd, read_fd
from gpurun.linux.owners import is_own_or_roots
from gpurun.oci.reader import type_name
from gpurun.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

VERSION = "v1"
_LIMIT = (1 << 20) + 1  # one more than YAML may have, which is refused there
_KEYS = ("device-filter", "devices", "mig-enabled", "mig-devices")
_MOST_GPUS, _MOST_DEVICES = 1024, 1024


class PciId(Record):
    """The ids of a GPU in its PCI configuration, each (device << 16 | vendor); *subsystem* None: any."""

    device: int
    subsystem: int | None = None

    def matches(self, device: int, subsystem: int) -> bool:
        """Whether this is the model of a GPU with these ids."""
        return self.device == device and self.subsystem in (None, subsystem)


class MigEntry(Record):
    """What some GPUs are to be.  *devices* are their indices, None for all; *filters* the models, none for all.

    *profiles* are (profile, how many); *where* is the place in the file.
    """

    devices: tuple[int, ...] | None
    filters: tuple[PciId, ...]
    enabled: bool
    profiles: tuple[tuple[MigProfile, int], ...]
    where: str

    def means(self, index: int, device: int, subsystem: int) -> bool:
        """Whether the GPU with this *index* and these PCI ids is one of those that the entry is for."""
        known = not self.filters or any(one.matches(device, subsystem) for one in self.filters)
        return known and (self.devices is None or index in self.devices)


Configs = dict[str, tuple[MigEntry, ...]]


def load(path: str) -> Configs:
    """The configurations of the file *path*; ``-`` is stdin.

    Root obeys no file that another user could have written.  Raises :class:`GpurunError`.
    """
    try:
        if path == "-":
            return read_configs(read_fd(0, _LIMIT), "stdin")
        # Not to wait for a writer of a FIFO; a link is followed, as the files of a ConfigMap are links.
        with Fd(posix.open(path, posix.O_RDONLY | posix.O_NONBLOCK | O_CLOEXEC)) as fd:
            _check(fd, path)
            return read_configs(read_fd(fd, _LIMIT), path)
    except OSError as e:
        raise GpurunError(f"{path}: {oserror_text(e)}") from None


def _check(fd: int, path: str) -> None:
    found = posix.fstat(fd)
    if not stat.S_ISREG(found.st_mode):
        raise GpurunError(f"{path} is not a regular file")
    writers = stat.S_IWOTH | (stat.S_IWGRP if found.st_gid else 0)
    if found.st_mode & writers or not is_own_or_roots(found, fd):
        raise GpurunError(
            f"{path} can be written by a user other than root and you, so it is not used: make it yours (chown, chmod go-w)"
        )


def read_configs(data: bytes, source: str) -> Configs:
    """Name → entries of the configuration file *data*.  Raises :class:`ConfigError` with the place in *source*."""
    document = _mapping(read_yaml(data, source), source)
    version = document.get("version")
    if version != VERSION:
        said = "is missing" if "version" not in document else f"is {clean(str(version))}"
        raise ConfigError(f"{source}: version", f"{said}, and gpurun reads only {VERSION}")
    for key in document:
        if key not in ("version", "mig-configs"):
            raise ConfigError(f"{source}: {clean(key)}", "is unknown: the keys of this file are version and mig-configs")
    configs = _mapping(document.get("mig-configs"), f"{source}: mig-configs")
    if not configs:
        raise ConfigError(f"{source}: mig-configs", "is empty: it needs at least one configuration")
    found: Configs = {}
    for name, value in configs.items():
        where = f"{source}: mig-configs.{clean(name)}"
        if not isinstance(value, list) or not value:
            raise ConfigError(where, "must be a list of entries, one at least")
        found[name] = tuple([_entry(item, f"{where}[{n}]") for n, item in enumerate(value)])
    return found


def select(configs: Configs, name: str, source: str) -> tuple[str, tuple[MigEntry, ...]]:
    """(the name, the entries) of the configuration *name*; an empty one means the only one of the file.

    Raises :class:`ConfigError`.
    """
    known = ", ".join([clean(one) for one in configs])
    if not name:
        if len(configs) > 1:
            raise ConfigError(source, f"has several configurations, say which (-c): {known}")
        name = next(iter(configs))
    if name not in configs:
        raise ConfigError(source, f'has no configuration "{clean(name)}", it has: {known}')
    return name, configs[name]


def _entry(value: object, where: str) -> MigEntry:
    entry = _mapping(value, where)
    for key in entry:
        if key not in _KEYS:
            raise ConfigError(f"{where}.{clean(key)}", f"is unknown: the keys of an entry are {', '.join(_KEYS)}")
    for key in ("devices", "mig-enabled"):
        if key not in entry:
            raise ConfigError(f"{where}.{key}", "is missing")
    enabled = entry["mig-enabled"]
    if not isinstance(enabled, bool):
        raise ConfigError(f"{where}.mig-enabled", f"must be true or false, not {type_name(enabled)}")
    profiles = _profiles(entry.get("mig-devices"), f"{where}.mig-devices")
    if enabled and entry.get("mig-devices") is None:
        raise ConfigError(f"{where}.mig-devices", "is missing, and mig-enabled is true: write {} for none")
    if profiles and not enabled:
        raise ConfigError(f"{where}.mig-devices", "has devices, and mig-enabled is false")
    devices = _devices(entry["devices"], f"{where}.devices")
    return MigEntry(devices, _filters(entry.get("device-filter"), f"{where}.device-filter"), enabled, profiles, where)


def _devices(value: object, where: str) -> tuple[int, ...] | None:
    if value == "all":
        return None
    if not isinstance(value, list) or not all(type(n) is int and 0 <= n < _MOST_GPUS for n in value):
        raise ConfigError(where, "must be all, or a list of indices of GPUs such as [0, 1]")
    return tuple(sorted(set(value)))


def _filters(value: object, where: str) -> tuple[PciId, ...]:
    items = [] if value is None or value == "" else value if isinstance(value, list) else [value]
    return tuple([_pci_id(item, where) for item in items])


def _pci_id(value: object, where: str) -> PciId:
    if isinstance(value, int) and not isinstance(value, bool):
        value = hex(value)  # YAML has read 0x20B010DE as a number
    words = value.split(":") if isinstance(value, str) else []
    numbers = [_hexadecimal(word) for word in words]
    if len(words) not in (1, 2) or None in numbers:
        raise ConfigError(
            where, f'{clean(str(value))} is not a model of a GPU: write its PCI device and vendor ("0x20B010DE"), or '
            'add those of the subsystem ("0x20B010DE:0x144E10DE")'
        )  # fmt: skip
    return PciId(numbers[0] or 0, numbers[1] if len(numbers) == 2 else None)


def _hexadecimal(word: str) -> int | None:
    digits = word[2:] if word[:2] in ("0x", "0X") else ""
    good = 0 < len(digits) <= 8 and all(c in "0123456789abcdefABCDEF" for c in digits)
    return int(digits, 16) if good else None


def _profiles(value: object, where: str) -> tuple[tuple[MigProfile, int], ...]:
    if value is None:
        return ()
    counts: dict[MigProfile, int] = {}
    for name, count in _mapping(value, where).items():
        place = f"{where}.{clean(name)}"
        if type(count) is not int or not 0 <= count <= _MOST_DEVICES:
            raise ConfigError(place, f"must be how many of them, from 0 to {_MOST_DEVICES}")
        profile = parse_profile(name, place)
        counts[profile] = counts.get(profile, 0) + count
    if counts and not any(counts.values()):
        raise ConfigError(where, "has no device at all, each count is 0: write {} for none")
    return tuple([(profile, count) for profile, count in counts.items() if count])


def _mapping(value: object, where: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ConfigError(where, "is missing" if value is None else f"must be a mapping, not {type_name(value)}")
    return value
