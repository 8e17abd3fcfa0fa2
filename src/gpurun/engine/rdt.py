"""``linux.intelRdt``: cache and memory bandwidth by resctrl (config-linux.md "IntelRdt"; filesystems/resctrl.rst).

Imported only for configs that ask for it.  What is made is written down before it is made, and delete removes just that.
"""

from __future__ import annotations

import posix

from gpurun.errors import ConfigError, GpurunError, StepError
from gpurun.linux.files import O_CLOEXEC, read_file
from gpurun.oci.reader import get_bool, get_string, get_strings
from gpurun.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

RESCTRL = "/sys/fs/resctrl"


class RdtPlan(Record):
    """*group*: the control group's directory, *made* by us unless it must be there; *monitor*: "" for none."""

    group: str
    make: bool
    schemata: tuple[str, ...] = ()
    monitor: str = ""


def resctrl_mounted(root: str = RESCTRL) -> bool:
    """Whether this machine has resctrl, mounted at its usual place."""
    try:
        posix.stat(f"{root}/schemata")
    except OSError:
        return False
    return True


def plan_rdt(obj: dict[str, Any], container_id: str, available: bool, root: str = RESCTRL) -> RdtPlan:
    """The plan of ``linux.intelRdt``; raises :class:`ConfigError`."""
    where = "linux.intelRdt"
    if not available:
        raise ConfigError(where, f"intelRdt is specified in config, but resctrl is not mounted at {root} on this host")
    closid = get_string(obj, "closID", where)
    name = closid or container_id
    if name in (".", "..") or "/" in name or "\n" in name:
        raise ConfigError(f"{where}.closID", f'"{name}" cannot name a resctrl group')
    lines: list[str] = []
    for key in ("l3CacheSchema", "memBwSchema"):
        text = get_string(obj, key, where)
        if "\n" in text:
            raise ConfigError(f"{where}.{key}", "contains a line break, it must be one line")
        if key == "l3CacheSchema" and text.lstrip().startswith("MB:"):
            raise ConfigError(f"{where}.{key}", "must not hold a memory bandwidth (MB:) line, which memBwSchema gives")
        lines += [text] if text else []
    for i, text in enumerate(get_strings(obj, "schemata", where)):
        if "\n" in text:
            raise ConfigError(f"{where}.schemata[{i}]", "contains a line break, each schema is a string of its own")
        lines.append(text)
    group = f"{root}/{name}"
    monitored = any(get_bool(obj, key, where) for key in ("enableMonitoring", "enableCMT", "enableMBM"))
    # A closID without schemata joins a group that its owner has set up; without one it would silently limit nothing.
    return RdtPlan(group, not closid or bool(lines), tuple(lines), f"{group}/mon_groups/{container_id}" if monitored else "")


def apply_rdt(plan: RdtPlan, pid: int, record: str) -> None:
    """Put *pid* into the group; the directories that we make are written into the file *record*, one a line, before they are
    made.  Raises :class:`GpurunError`."""
    made = [path for path in (plan.group, plan.monitor) if path and not _exists(path)]
    if not plan.make and plan.group in made:
        raise ConfigError("linux.intelRdt.closID", f'"{plan.group}" does not exist, and no schema to make it with is given')
    if made:
        fd = posix.open(record, posix.O_WRONLY | posix.O_CREAT | posix.O_TRUNC | O_CLOEXEC, 0o600)
        posix.write(fd, "\n".join(made).encode())
        posix.close(fd)
    for path in (plan.group, plan.monitor):
        if path in made:
            try:
                posix.mkdir(path, 0o755)
            except OSError as e:
                raise StepError("linux.intelRdt: make the group", path, e.errno) from None
        if path == plan.group and plan.schemata:
            _write(f"{path}/schemata", "\n".join(plan.schemata) + "\n")
        if path:
            _write(f"{path}/tasks", str(pid))


def update_rdt(plan: RdtPlan, schemata: tuple[str, ...], pids: tuple[int, ...], record: str) -> None:
    """Give the group of a container with *pids* the lines *schemata*; it is made when there is none yet, as for create.

    Raises :class:`GpurunError`, and then the group is as it was.
    """
    if not _exists(plan.group):
        try:
            for pid in pids:
                apply_rdt(plan, pid, record)
        except GpurunError:
            remove_rdt(record)  # its tasks go back to where they were
            raise
        return
    before = read_file(f"{plan.group}/schemata", 1 << 16).decode()
    try:
        _write(f"{plan.group}/schemata", "\n".join(schemata) + "\n")
    except GpurunError:
        _write(f"{plan.group}/schemata", before)  # lines before the one that is refused are in force already
        raise


def remove_rdt(record: str) -> None:
    """Remove what :func:`apply_rdt` made for a container that has ended."""
    try:
        made = read_file(record, 1 << 16).decode().split("\n")
    except FileNotFoundError:
        return
    for path in reversed(made):
        try:
            posix.rmdir(path)
        except FileNotFoundError:
            pass  # a create that was killed before it made the group
        except OSError as e:
            raise StepError("linux.intelRdt: remove the group", path, e.errno) from None


def _exists(path: str) -> bool:
    try:
        posix.stat(path)
    except FileNotFoundError:
        return False
    return True


def _write(path: str, text: str) -> None:
    try:
        fd = posix.open(path, posix.O_WRONLY | O_CLOEXEC)
        try:
            posix.write(fd, text.encode())
        finally:
            posix.close(fd)
    except OSError as e:
        raise GpurunError(
            f'linux.intelRdt: writing "{text.strip()}" to {path}: {posix.strerror(e.errno or 0).lower()}'
        ) from None
