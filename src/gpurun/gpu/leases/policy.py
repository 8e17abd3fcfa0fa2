"""What the site says of leases: the table ``[leases]`` of /etc/gpurun/config.toml.  Pure.

[leases]
shared = "refuse"                  # GPUs named by others while they are leased: share (default), warn or refuse
never = ["0", "GPU-5d4f..."]       # GPUs that are not leased: index, UUID or PCI bus id
ignore = ["dcgm-exporter*"]        # containers that have GPUs and do not count, by the engine's name or by id
wait = "30s"                       # how long a container waits for GPUs, in order of arrival (default: not at all)
per-user = 4                       # GPUs that the containers of one user of the host may have leased at a time
longest = "8h"                     # the longest time of a lease (default: as long as its container lives)
at-end = "end"                     # what comes then: tell (default: only a warning in the log) or end (SIGTERM, SIGKILL)
warn = "10m"                       # how long before that a warning is logged
grace = "1m"                       # how long after SIGTERM a container gets SIGKILL
per-label = ["com.docker.compose.project=4"]   # the same, of containers whose label has the same value

and the table ``[shares]``, of shares of a GPU:

[shares]
allow = "annotations"              # who may ask: all (default), annotations (no variables: images set those) or none
memory = "auto"                    # who limits it: nvml (the driver), mps, or auto (the driver where it can, else MPS)
shm = "1GiB"                       # the most that all containers on one GPU put into the /dev/shm that they share
"""

from __future__ import annotations

from gpurun.decimals import decimal
from gpurun.errors import ConfigError
from gpurun.gpu.leases.limits import AUTO, KEEPERS
from gpurun.gpu.request.free import read_size
from gpurun.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

AT_END = ("tell", "end")
SHARED = ("share", "warn", "refuse")
TABLE = "leases."
ALLOW = ("all", "annotations", "none")
SHARES_TABLE = "shares."
_MIB = 1 << 20
#: The longest wait: engines give up after a few minutes.
MAX_WAIT_S = 24 * 3600.0
#: The longest time that a lease can be limited to: a year.
MAX_LEASE_S = 366 * 24 * 3600.0
_KNOWN = "shared, never, ignore, wait, longest, at-end, warn, grace, per-user and per-label"
_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "": 1.0}


class LeasePolicy(Record):
    """The table, with its defaults; times in seconds, limits 0 for none."""

    shared: str = "share"
    never: tuple[str, ...] = ()
    ignore: tuple[str, ...] = ()
    wait: float = 0.0
    per_user: int = 0
    per_label: tuple[tuple[str, int], ...] = ()
    longest: float = 0.0
    at_end: str = "tell"
    warn: float = 600.0
    grace: float = 60.0


def read_policy(values: dict[str, Any], path: str) -> LeasePolicy:
    """The policy in *values* of the file *path*, ``leases.KEY`` → value; raises :class:`ConfigError`."""
    found: dict[str, Any] = {}
    for key, value in values.items():
        if not key.startswith(TABLE):
            continue
        name = key[len(TABLE) :]
        where = f"{path}: {key}"
        if name == "shared":
            if value not in SHARED:
                raise ConfigError(where, f"must be one of {', '.join(SHARED)}")
            found["shared"] = value
        elif name in ("never", "ignore"):
            found[name] = _texts(value, where)
        elif name == "at-end":
            if value not in AT_END:
                raise ConfigError(where, f"must be one of {', '.join(AT_END)}")
            found["at_end"] = value
        elif name in ("wait", "warn", "grace"):
            found[name] = _seconds(value, where)
        elif name == "longest":
            found[name] = _seconds(value, where, MAX_LEASE_S)
        elif name == "per-user":
            found["per_user"] = _number(value, where)
        elif name == "per-label":
            found["per_label"] = tuple([_limit(text, where) for text in _texts(value, where)])
        else:
            raise ConfigError(where, f"is unknown; known are {_KNOWN}")
    return LeasePolicy(**found)


class SharePolicy(Record):
    """The table ``[shares]``, with its defaults; *shm* in bytes."""

    allow: str = "all"
    memory: str = AUTO
    shm: int = 1 << 30


def read_share_policy(values: dict[str, Any], path: str) -> SharePolicy:
    """The policy in *values* of the file *path*, ``shares.KEY`` → value; raises :class:`ConfigError`."""
    found: dict[str, Any] = {}
    for key, value in values.items():
        if not key.startswith(SHARES_TABLE):
            continue
        where = f"{path}: {key}"
        if key == "shares.allow":
            if value not in ALLOW:
                raise ConfigError(where, f"must be one of {', '.join(ALLOW)}")
            found["allow"] = value
        elif key == "shares.memory":
            if value not in KEEPERS:
                raise ConfigError(where, f"must be one of {', '.join(KEEPERS)}")
            found["memory"] = value
        elif key == "shares.shm":
            size = read_size(value) if type(value) is str else -1
            if not _MIB <= size <= _MIB << 20:
                raise ConfigError(where, "must be a size from 1MiB to 1TiB, such as 1GiB")
            found["shm"] = size
        else:
            raise ConfigError(where, "is unknown; known are allow, memory and shm")
    return SharePolicy(**found)


def _texts(value: Any, where: str) -> tuple[str, ...]:
    if type(value) is not list or not all(type(text) is str and text for text in value):
        raise ConfigError(where, "must be an array of strings")
    return tuple(value)


def _number(value: Any, where: str) -> int:
    if type(value) is not int or not 0 <= value < 1 << 16:
        raise ConfigError(where, "must be a number of GPUs, 0 for no limit")
    return value


def _limit(text: str, where: str) -> tuple[str, int]:
    label, _, digits = text.rpartition("=")
    number = decimal(digits, 99999)
    if not label or number is None:
        raise ConfigError(where, f"'{text}' is not a limit, write LABEL=NUMBER")
    return label, number


def _seconds(value: Any, where: str, most: float = MAX_WAIT_S) -> float:
    """A duration: ``30s``, ``5m``, ``500ms``, or a number of seconds."""
    text = str(value) if type(value) is int else value
    if type(text) is str:
        digits = text.rstrip("mhs")
        unit = text[len(digits) :]
        number = decimal(digits)
        if number is not None and unit in _UNITS and number * _UNITS[unit] <= most:
            return number * _UNITS[unit]
    raise ConfigError(where, "must be a time such as 30s, 5m or 0")
