"""``devices.json`` in the images of a checkpoint: what gpurun had put into the container for its devices.

CRIU cannot save what comes from the host, so each of these mounts is external to it, by the name :func:`external_name`.
restore has placeholders mounted there, takes them away before a process of the container opens a file, and makes the edits
anew from the driver that is there then (:mod:`gpurun.engine.checkpoint.restore_devices`).
"""

from __future__ import annotations

from gpurun.errors import ConfigError, GpurunError, Step, clean, oserror_text
from gpurun.formats.jsontext import dumps
from gpurun.linux.files import read_file, unlink_if_there, write_atomically
from gpurun.oci.reader import as_object, parse_json
from gpurun.record import Record

NAME = "devices.json"
#: What in a state directory tells of devices.
RECORDS = frozenset(("created", "edits", "gpus", "attached"))
_LIMIT = 16 << 20
_VERSION = 1


class SavedDevices(Record):
    """What is in the file.  All paths are those of the container, absolute and without links.

    *gpus* are (index, UUID), *mounts* (mount point, ``file`` or ``dir``) in the order in which they were made, *trees* the
    mount points of file systems that gpurun wrote itself, *nodes* the device nodes of NVIDIA's driver; *used* are those of
    the *mounts* that a process had open or mapped, *computing* says which process had a GPU open ("" for none), *driver*
    is its version ("" where it could not be read).
    """

    driver: str = ""
    gpus: tuple[tuple[int, str], ...] = ()
    mounts: tuple[tuple[str, str], ...] = ()
    trees: tuple[str, ...] = ()
    nodes: tuple[str, ...] = ()
    used: tuple[str, ...] = ()
    computing: str = ""


def external_name(point: str) -> str:
    """What the mount at *point* is called in CRIU's images."""
    return f"gpurun:{point}"


def write_devices(image_path: str, saved: SavedDevices | None) -> None:
    """Write *saved* into the images; without it, take away what an older checkpoint has left there."""
    path = f"{image_path}/{NAME}"
    with Step("write", path):
        if saved is None:
            unlink_if_there(path)
            return
        value = {name: getattr(saved, name) for name in SavedDevices._fields}
        text = dumps({"version": _VERSION, **{k: _plain(v) for k, v in value.items()}})
        write_atomically(path, text.encode("utf-8", "surrogateescape"), 0o600)


def read_devices(image_path: str) -> SavedDevices | None:
    """What :func:`write_devices` has written; ``None`` for a container without devices, or saved by another runtime.

    Raises :class:`GpurunError` for a file that cannot be read or is not as written.
    """
    path = f"{image_path}/{NAME}"
    try:
        document = as_object(parse_json(read_file(path, _LIMIT), path), path)
    except FileNotFoundError:
        return None
    except OSError as e:
        raise GpurunError(f"{path}: {oserror_text(OSError(e.errno, ''))}") from None
    if document.get("version") != _VERSION:
        raise ConfigError(path, f"is of version {clean(str(document.get('version')))}: this gpurun reads {_VERSION}")
    try:
        return SavedDevices(
            _text(document["driver"]),
            tuple([(_number(index), _text(name)) for index, name in document["gpus"]]),
            tuple([(_path(point), _kind(kind)) for point, kind in document["mounts"]]),
            tuple([_path(point) for point in document["trees"]]),
            tuple([_path(point) for point in document["nodes"]]),
            tuple([_path(point) for point in document["used"]]),
            _text(document["computing"]),
        )
    except (KeyError, TypeError, ValueError):
        raise ConfigError(path, "is damaged: save the container again") from None


def _plain(value: object) -> object:
    return [_plain(item) for item in value] if isinstance(value, tuple) else value


def _text(value: object) -> str:
    if type(value) is not str or "\0" in value:
        raise ValueError
    return value


def _path(value: object) -> str:
    """The images may be forged: no path in them is used as it stands."""
    path = _text(value)
    if not path.startswith("/") or any(part in ("", ".", "..") for part in path[1:].split("/")):
        raise ValueError
    return path


def _kind(value: object) -> str:
    if value not in ("file", "dir"):
        raise ValueError
    return str(value)


def _number(value: object) -> int:
    if type(value) is not int or value < 0:
        raise ValueError
    return value
