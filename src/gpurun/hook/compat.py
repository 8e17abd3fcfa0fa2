"""CUDA forward compatibility: newer libraries that an image brings along, in place of the driver's of the same name.

Images of the CUDA toolkit carry the userspace of the driver they were made for in ``/usr/local/cuda/compat``, so that they
run on an older kernel driver.  Nothing of it is mounted or executed here: when it fits, its directory goes first in the
loader's cache.  Everything in the image is hostile: what is read is bounded, and read as data only.
"""

from __future__ import annotations

import _json  # noqa: F401 - parse_json wants it later, when nothing can be imported any more
import posix

from gpurun.cdi.edits import CacheEntry, FileEdit, ForwardCompat
from gpurun.errors import ConfigError
from gpurun.formats.elf import MACHINES, read_elf, read_note
from gpurun.formats.ldcache import FLAGS_NATIVE
from gpurun.formats.ldconf import COMPAT_CONF
from gpurun.linux.files import Fd
from gpurun.linux.fs import O_DIRECTORY, O_NOFOLLOW
from gpurun.ns.path import open_file, open_in_root, path_in_root
from gpurun.oci.reader import parse_json
from gpurun.record import Record

_SECTION, _OWNER = ".note.cuda.fwd_compatibility", b"NVIDIA Corporation"
_MAX_NAMES = 1000
_MAX_LIBRARIES = 100


class Note(Record):
    """What libraries say of themselves: the branches of *drivers* that they run on, and the *cuda_version* they are of."""

    drivers: tuple[int, ...] = ()
    cuda_version: str = ""


def is_newer(wanted: ForwardCompat, compat_version: str, note: Note | None) -> bool:
    """Whether libraries of *compat_version* are to be used on the host that *wanted* speaks of.

    They say it themselves in the *note*: by the driver's branch, or by the version of CUDA where the driver's version is
    not known (a Tegra).  Without one a greater major version of the driver counts.
    """
    driver, compat = _numbers(wanted.driver_version), _numbers(compat_version)
    if note is None:
        return bool(wanted.driver_version) and not wanted.cuda_version and compat[0] > driver[0]
    if wanted.driver_version:
        return driver[0] in note.drivers and compat > driver
    return bool(wanted.cuda_version and note.cuda_version) and _numbers(note.cuda_version) > _numbers(wanted.cuda_version)


def compat_libraries(root_fd: int, wanted: ForwardCompat) -> tuple[tuple[CacheEntry, ...], tuple[FileEdit, ...]]:
    """(entries for the loader's cache, files for ldconfig) of the image's compatibility libraries, if they are to be used.

    Unreadable or strange ones are not used: then the driver's own libraries serve, as in any other image.
    """
    try:
        fd = open_in_root(root_fd, wanted.directory, posix.O_RDONLY | O_DIRECTORY)
    except OSError:
        return (), ()
    with Fd(fd):
        try:
            names = _names(fd)
            versions = [name.removeprefix("libcuda.so.") for name in names if _is_libcuda(name)]
            if len(versions) != 1:
                return (), ()
            libcuda = _open_file(fd, f"libcuda.so.{versions[0]}")
            if libcuda < 0:
                return (), ()
            with Fd(libcuda):
                newer = is_newer(wanted, versions[0], _note(libcuda))
            if not newer:
                return (), ()
            directory = "/" + path_in_root(root_fd, fd, "").rstrip("/")
            entries = _entries(fd, directory, names)
        except OSError:
            return (), ()
    if not entries:
        return (), ()
    text = f"{directory}\n".encode("utf-8", "surrogateescape")
    return entries, (FileEdit(COMPAT_CONF, text, 0o644, wanted.reason),)


def _numbers(version: str) -> tuple[int, ...]:
    found = [int(word[:9]) for word in version.split(".") if word.isascii() and word.isdigit()]
    return tuple(found) + (0,) * (3 - len(found))


def _names(fd: int) -> list[str]:
    """The names in the directory *fd* that can be those of libraries; none when there are too many to be one of CUDA's."""
    found = []
    with posix.scandir(fd) as listing:
        for number, entry in enumerate(listing):
            if number >= _MAX_NAMES:
                return []
            if entry.name.startswith("lib") and ".so." in entry.name and "\n" not in entry.name:
                found.append(entry.name)
    return sorted(found)


def _is_libcuda(name: str) -> bool:
    """Whether *name* is ``libcuda.so.<version with at least two numbers>``."""
    words = name.removeprefix("libcuda.so.").split(".")
    return name.startswith("libcuda.so.") and len(words) > 1 and all(w.isascii() and w.isdigit() for w in words)


def _open_file(directory: int, name: str) -> int:
    """A regular file in *directory*, no link followed; -1 for anything else."""
    try:
        return open_file(directory, name, O_NOFOLLOW)
    except OSError:
        return -1  # nothing that we may read


def _note(libcuda: int) -> Note | None:
    """The note of the file *libcuda*; ``None`` where it has none that can be read.

    The keys are "driver" and "CUDA version" in the libraries that NVIDIA ships; their case is of no importance.
    """
    text = read_note(libcuda, _SECTION, _OWNER)
    if text is None:
        return None
    try:
        document = parse_json(text.rstrip(b"\0"), _SECTION)
    except (ConfigError, ImportError, RecursionError):  # ImportError: the words for a syntax error are not loaded here
        return None
    if not isinstance(document, dict):
        return None
    values = {key.lower(): value for key, value in document.items() if value is not None}
    drivers, cuda_version = values.get("driver", []), values.get("cuda version", "")
    if not isinstance(drivers, list) or not isinstance(cuda_version, str) or any(type(d) is not int for d in drivers):
        return None
    return Note(tuple(drivers), cuda_version)


def _entries(directory: int, path: str, names: list[str]) -> tuple[CacheEntry, ...]:
    """An entry for each SONAME that this machine's loader can use."""
    machine = posix.uname().machine
    native, flags = MACHINES.get(machine, (0, 0))[0], FLAGS_NATIVE.get(machine, 0)
    found: dict[str, CacheEntry] = {}
    for name in names[:_MAX_LIBRARIES]:
        fd = _open_file(directory, name)
        if fd < 0:
            continue
        with Fd(fd):
            elf = read_elf(fd)
        if elf is not None and elf.machine == native and elf.soname:
            found.setdefault(elf.soname, CacheEntry(elf.soname, f"{path}/{name}", flags))
    return tuple(found.values())
