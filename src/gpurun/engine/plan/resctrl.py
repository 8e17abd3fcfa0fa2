"""``linux.intelRdt`` → :class:`RdtPlan` (config-linux.md "IntelRdt"; filesystems/resctrl.rst); pure."""

from __future__ import annotations

from gpurun.errors import ConfigError
from gpurun.oci.reader import get_bool, get_string, get_strings
from gpurun.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

RESCTRL = "/sys/fs/resctrl"


class RdtPlan(Record):
    """*group*: the control group's directory below *root*; its *own* it is when it has the container's name.

    It must be there unless it is to be made (*make*).  *monitor*: the monitoring group's directory, "" for none.
    """

    root: str
    group: str
    own: bool
    make: bool
    schemata: tuple[str, ...] = ()
    monitor: str = ""


def plan_rdt(obj: dict[str, Any], container_id: str, available: bool, root: str = RESCTRL) -> RdtPlan:
    """The plan of ``linux.intelRdt``; raises :class:`ConfigError`."""
    json_path = "linux.intelRdt"
    if not available:
        raise ConfigError(json_path, f"intelRdt is specified in config, but resctrl is not mounted at {root} on this host")
    closid = get_string(obj, "closID", json_path)
    name = closid or container_id
    if name in (".", "..") or (name != "/" and "/" in name) or "\n" in name:
        raise ConfigError(f"{json_path}.closID", f'"{name}" cannot name a resctrl group')
    lines = [line for line in get_string(obj, "l3CacheSchema", json_path).split("\n") if line.strip()]
    bandwidth = get_string(obj, "memBwSchema", json_path)
    if bandwidth and (not bandwidth.startswith("MB:") or "\n" in bandwidth):
        raise ConfigError(f"{json_path}.memBwSchema", "must be one line that begins with MB:")
    lines += [bandwidth] if bandwidth else []
    for i, text in enumerate(get_strings(obj, "schemata", json_path)):
        if "\n" in text:
            raise ConfigError(f"{json_path}.schemata[{i}]", "contains a line break, each schema is a string of its own")
        lines.append(text)
    group = root if closid == "/" else f"{root}/{name}"
    monitored = any(get_bool(obj, key, json_path) for key in ("enableMonitoring", "enableCMT", "enableMBM"))
    monitor = f"{group}/mon_groups/{container_id}" if monitored else ""
    # A closID without schemata joins a class that its owner has set up; without one it would silently limit nothing.
    return RdtPlan(root, group, not closid, not closid or (bool(lines) and closid != "/"), tuple(lines), monitor)
