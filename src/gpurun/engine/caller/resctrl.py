"""``linux.intelRdt``: cache and memory bandwidth by resctrl (config-linux.md "IntelRdt"; filesystems/resctrl.rst).

Imported only for configs that ask for it.  A group that is named after the container, and its monitoring group, are written
down before they are made, and delete removes just these: a class that is named by ``closID`` is others' too.
"""

from __future__ import annotations

import posix
from errno import EEXIST

from gpurun.engine.plan.resctrl import RESCTRL
from gpurun.errors import ConfigError, GpurunError, StepError, strerror_lower
from gpurun.linux.files import O_CLOEXEC, Fd, read_file

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from gpurun.engine.plan.resctrl import RdtPlan

#: Resources whose values are decimal; those of caches are bit masks, in hexadecimal.
_BANDWIDTHS = ("MB", "SMBA")


def resctrl_mounted(root: str = RESCTRL) -> bool:
    """Whether this machine has resctrl, mounted at its usual place."""
    try:
        posix.stat(f"{root}/schemata")
    except OSError:
        return False
    return True


def apply_rdt(plan: RdtPlan, pid: int, record: str, on_failure: Callable[[Callable[[], None]], None]) -> None:
    """Put *pid* into the group.

    What belongs only to the container is written into the file *record*, one directory a line, before it is made: that is
    for
    :func:`remove_rdt`.  *on_failure* gets what takes away a class that was made, should the container not come to be.

    Raises :class:`GpurunError`.
    """
    there = _exists(plan.group)
    if not there and not plan.make:
        raise ConfigError("linux.intelRdt.closID", f'"{plan.group}" does not exist, and no schema to make it with is given')
    alone = [path for path in (plan.group if plan.own and not there else "", plan.monitor) if path]
    if alone:
        fd = posix.open(record, posix.O_WRONLY | posix.O_CREAT | posix.O_TRUNC | O_CLOEXEC, 0o600)
        posix.write(fd, "\n".join(alone).encode())
        posix.close(fd)
    if not there and _make(plan.group) and not plan.own:
        on_failure(lambda: _remove_unused(plan.group, pid))
    elif not plan.own and plan.schemata:
        _must_match(plan)
    if plan.schemata and (plan.own or not there):
        _write(plan.root, f"{plan.group}/schemata", "\n".join(plan.schemata) + "\n")
    _write(plan.root, f"{plan.group}/tasks", str(pid))
    if plan.monitor:
        _make(plan.monitor)
        _write(plan.root, f"{plan.monitor}/tasks", str(pid))


def _must_match(plan: RdtPlan) -> None:
    """Raise :class:`ConfigError` unless the class, which is others' as well, has the schemata that are asked for."""
    present = _values(read_file(f"{plan.group}/schemata").decode().splitlines())
    differences = [
        f"{resource}:{domain} is {present.get((resource, domain), 'not there')} and not {value}"
        for (resource, domain), value in _values(plan.schemata).items()
        if not _same(plan.root, resource, present.get((resource, domain), ""), value)
    ]
    if differences:
        raise ConfigError("linux.intelRdt", f"the class {plan.group} is there with other schemata: {'; '.join(differences)}")


def _values(lines: Iterable[str]) -> dict[tuple[str, str], str]:
    """(resource, domain) → value, of lines such as ``L3:0=ff;1=f``; of several the last counts, as for the kernel."""
    found: dict[tuple[str, str], str] = {}
    for line in lines:
        resource, colon, domains = line.strip().partition(":")
        for part in domains.split(";"):
            domain, equals, value = part.partition("=")
            if not colon or not equals:
                raise ConfigError("linux.intelRdt", f'"{line.strip()}" is not a schema such as L3:0=ff;1=f')
            found[resource, domain.strip()] = value.strip()
    return found


def _same(root: str, resource: str, present: str, asked: str) -> bool:
    """Whether the kernel would make *present* of *asked*."""
    try:
        if resource not in _BANDWIDTHS:
            return int(present, 16) == int(asked, 16)
        step = 1
        try:
            step = int(read_file(f"{root}/info/{resource}/bandwidth_gran", 64))
        except OSError:
            pass  # bandwidth in MB/s, which is not rounded
        return int(present) in (int(asked), -(-int(asked) // step) * step)
    except ValueError:
        return present == asked


def update_rdt(plan: RdtPlan, schemata: tuple[str, ...], pids: tuple[int, ...], record: str) -> None:
    """Give the group of a container with *pids* the lines *schemata*; one that has gone away is made again, as for create.

    Raises :class:`GpurunError`, and then the group is as it was.
    """
    if not _exists(plan.group):
        undo: list[Callable[[], None]] = [lambda: remove_rdt(record)]  # its tasks go back to where they were
        try:
            for pid in pids:
                apply_rdt(plan, pid, record, undo.append)
        except GpurunError:
            for step in reversed(undo):
                step()
            raise
        return
    before = read_file(f"{plan.group}/schemata").decode()
    try:
        _write(plan.root, f"{plan.group}/schemata", "\n".join(schemata) + "\n")
    except GpurunError:
        _write(plan.root, f"{plan.group}/schemata", before)  # lines before the one that is refused are in force already
        raise


def remove_rdt(record: str) -> None:
    """Remove what :func:`apply_rdt` has made only for a container, when it has ended."""
    try:
        made = read_file(record).decode().split("\n")
    except FileNotFoundError:
        return
    for path in reversed(made):
        _remove(path)


def _remove_unused(group: str, pid: int) -> None:
    """Remove a class that was made for a container which did not come to be, unless others are in it by now."""
    if set(read_file(f"{group}/tasks").split()) <= {str(pid).encode()}:
        _remove(group)


def _remove(path: str) -> None:
    try:
        posix.rmdir(path)
    except FileNotFoundError:
        pass  # a create that was killed before it made the group
    except OSError as e:
        raise StepError("linux.intelRdt: remove the group", path, e.errno) from None


def _make(path: str) -> bool:
    """Whether the directory was made; False when another has been faster."""
    try:
        posix.mkdir(path, 0o755)
    except OSError as e:
        if e.errno == EEXIST:
            return False
        raise StepError("linux.intelRdt: make the group", path, e.errno) from None
    return True


def _exists(path: str) -> bool:
    try:
        posix.stat(path)
    except FileNotFoundError:
        return False
    return True


def _write(root: str, path: str, text: str) -> None:
    try:
        with Fd(posix.open(path, posix.O_WRONLY | O_CLOEXEC)) as fd:
            posix.write(fd, text.encode())
    except OSError as e:
        raise GpurunError(
            f'linux.intelRdt: writing "{text.strip()}" to {path}: {strerror_lower(e.errno)}{_why(root)}'
        ) from None


def _why(root: str) -> str:
    """What the kernel says of the last write that it has refused."""
    try:
        said = read_file(f"{root}/info/last_cmd_status", 4096).decode("utf-8", "replace").strip()
    except OSError:
        return ""
    return f" ({said})" if said not in ("", "ok") else ""
