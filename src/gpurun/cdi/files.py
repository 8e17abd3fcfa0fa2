"""The CDI files of a host: which directories, which file's device counts, what is left out and why.

Specification: CDI 1.1.0, "CDI JSON Definition" and the reference library's cache: later directories win over earlier
ones; a device that two files of one directory define is in neither; a file that is wrong in any way is left out whole.
"""

from __future__ import annotations

import posix
from _stat import S_ISREG

from gpurun.cdi.document import CdiSpec, read_document
from gpurun.document_cache import read_yaml
from gpurun.errors import ConfigError, oserror_text
from gpurun.linux.files import O_CLOEXEC, Fd, read_fd
from gpurun.linux.owners import is_hidden, is_own_or_roots
from gpurun.oci.reader import parse_json
from gpurun.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from gpurun.cdi.document import CdiDevice

#: In ascending order of precedence.
DEFAULT_DIRS = ("/etc/cdi", "/var/run/cdi")
_MAX_FILE = 8 << 20


class SpecFile(Record):
    """A file that was read: *path*, *priority* (the place of its directory) and what it says."""

    path: str
    priority: int
    spec: CdiSpec


class Found(Record):
    """A device and the file it comes from."""

    file: SpecFile
    device: CdiDevice


class Registry(Record):
    """*devices* by qualified name; *errors* say what was left out: (file or device, reason); *dirs* were looked through."""

    files: tuple[SpecFile, ...]
    devices: dict[str, Found]
    errors: tuple[tuple[str, str], ...]
    dirs: tuple[str, ...] = ()


def read_registry(dirs: tuple[str, ...]) -> Registry:
    """All devices that the files in *dirs* (ascending precedence) define.  Raises nothing: see :class:`Registry`."""
    files: list[SpecFile] = []
    errors: list[tuple[str, str]] = []
    seen: set[tuple[int, int]] = set()
    for priority, directory in enumerate(dirs):
        for path in _spec_paths(directory, seen, errors):
            try:
                files.append(SpecFile(path, priority, read_spec_file(path)))
            except ConfigError as e:
                errors.append((path, str(e)))
    devices, conflicts = resolve_conflicts(tuple(files))
    return Registry(tuple(files), devices, tuple(errors) + conflicts, dirs)


def resolve_conflicts(files: tuple[SpecFile, ...]) -> tuple[dict[str, Found], tuple[tuple[str, str], ...]]:
    """Which device of which file counts, and the conflicts there are.  Pure.

    Returns (name → what is found, conflicts); a conflict is (name, the sentence about it).
    """
    best: dict[str, list[Found]] = {}
    for file in files:
        for device in file.spec.devices:
            name = f"{file.spec.kind}={device.name}"
            others = best.get(name)
            if others is None or others[0].file.priority < file.priority:
                best[name] = [Found(file, device)]
            elif others[0].file.priority == file.priority:
                others.append(Found(file, device))
    conflicts = []
    for name, found in best.items():
        if len(found) > 1:
            paths = ", ".join([one.file.path for one in found])
            conflicts.append((name, f"conflicting device {name}: {paths} all define it, so none counts"))
    return {name: found[0] for name, found in best.items() if len(found) == 1}, tuple(conflicts)


def read_spec_file(path: str) -> CdiSpec:
    """The specification in the file *path* (``.json`` or ``.yaml``); raises :class:`ConfigError`."""
    try:
        fd = posix.open(path, posix.O_RDONLY | posix.O_NONBLOCK | O_CLOEXEC)
    except OSError as e:
        raise ConfigError(path, f"cannot be read: {e.strerror}") from None
    with Fd(fd):
        found = posix.fstat(fd)
        if not S_ISREG(found.st_mode):
            raise ConfigError(path, "is not a file")
        if found.st_mode & 0o002 or not _is_trusted(found, fd, path):
            # Who writes here mounts what he likes into containers and runs hooks as root.
            raise ConfigError(path, "may be written by others than root: chown root it, chmod o-w it")
        data = read_fd(fd, _MAX_FILE + 1)
    if len(data) > _MAX_FILE:
        raise ConfigError(path, f"is larger than {_MAX_FILE >> 20} MiB")
    return parse_spec(data, path)


def _is_trusted(found: posix.stat_result, fd: int, path: str) -> bool:
    """Whether *found*, of the file *fd* at *path*, may say what containers get: it is root's or our own.

    A user namespace does not show that a file is the host root's.  There it may be anybody's that the namespace does not
    show, if no more than the owner of its directory, who is trusted likewise, can make files there: /etc/cdi, but not /tmp.
    """
    if is_own_or_roots(found, fd):
        return True
    if not is_hidden(found.st_uid):
        return False
    above = posix.stat(path.rpartition("/")[0] or ("/" if path.startswith("/") else "."))
    return not above.st_mode & 0o022 and (above.st_uid in (0, posix.geteuid()) or is_hidden(above.st_uid))


def parse_spec(data: bytes, source: str) -> CdiSpec:
    """The specification in the text *data*; YAML unless *source* ends in ``.json``.  Raises :class:`ConfigError`."""
    value: Any = parse_json(data, source) if source.endswith(".json") else read_yaml(data, source)
    return read_document(value, source)


def _spec_paths(directory: str, seen: set[tuple[int, int]], errors: list[tuple[str, str]]) -> list[str]:
    """The files of *directory* in the order of their names; a directory met under another name already has none."""
    try:
        stat = posix.stat(directory)
        identity = (stat.st_dev, stat.st_ino)
        if identity in seen:
            return []
        seen.add(identity)
        names = posix.listdir(directory)
    except (FileNotFoundError, NotADirectoryError):
        return []  # most hosts have neither directory
    except OSError as e:
        errors.append((directory, f"{oserror_text(e)}"))
        return []
    return [f"{directory.rstrip('/')}/{name}" for name in sorted(names) if name.endswith((".json", ".yaml"))]
