"""CUDA forward compatibility: newer libraries that an image brings along, in place of the driver's of the same name.

Images of the CUDA toolkit carry the userspace of the driver they were made for in ``/usr/local/cuda/compat``, so that they
run on an older kernel driver.  Nothing of it is mounted or executed here: when it fits, its directory goes first in the
loader's cache.  Everything in the image is hostile: what is read is bounded, and read as data only.
"""

from __future__ import annotations

import _json  # noqa: F401 - parse_json wants it later, when nothing can be imported any more
import posix

from gpurun.errors import ConfigError
from gpurun.hook.edits import CacheEntry, FileEdit, ForwardCompat
from gpurun.hook.elf import MACHINES, read_elf, read_note
from gpurun.hook.ldcache import FLAGS_NATIVE
from gpurun.hook.ldconf import COMPAT_CONF
from gpurun.linux.files import O_CLOEXEC
from gpurun.linux.fs import O_DIRECTORY, O_NOFOLLOW
from gpurun.ns.path import open_in_root, path_in_root
from gpurun.oci.reader import parse_json

_SECTION, _OWNER = ".note.cuda.fwd_compatibility", b"NVIDIA Corporation"
_MAX_NAMES = 1000
_MAX_LIBRARIES = 100
_S_IFMT, _S_IFREG = 0o170000, 0o100000


def is_newer(driver_version: str, compat_version: str, supported_majors: tuple[int, ...] | None) -> bool:
    """Whether libraries of *compat_version* are to be used on a host with *driver_version*.

    *supported_majors* are the driver branches that the libraries say they run on; ``None`` when they say nothing: then a
    greater major version counts.
    """
    driver, compat = _numbers(driver_version), _numbers(compat_version)
    if supported_majors is None:
        return compat[0] > driver[0]
    return driver[0] in supported_majors and compat > driver


def compat_libraries(root_fd: int, wanted: ForwardCompat) -> tuple[tuple[CacheEntry, ...], tuple[FileEdit, ...]]:
    """(entries for the loader's cache, files for ldconfig) of the image's compatibility libraries, if they are to be used.

    Unreadable or strange ones are left alone: then the driver's own libraries serve, as in any other image.
    """
    try:
        fd = open_in_root(root_fd, wanted.directory, posix.O_RDONLY | O_DIRECTORY)
    except OSError:
        return (), ()
    try:
        names = _names(fd)
        versions = [name.removeprefix("libcuda.so.") for name in names if _is_libcuda(name)]
        if len(versions) != 1:
            return (), ()
        if not is_newer(wanted.driver_version, versions[0], _supported_majors(fd, f"libcuda.so.{versions[0]}")):
            return (), ()
        directory = "/" + path_in_root(root_fd, fd, "").rstrip("/")
        entries = _entries(fd, directory, names)
    except OSError:
        return (), ()
    finally:
        posix.close(fd)
    if not entries:
        return (), ()
    text = f"{directory}\n".encode("utf-8", "surrogateescape")
    return entries, (FileEdit(COMPAT_CONF, text, 0o644, wanted.reason),)


def _numbers(version: str) -> tuple[int, ...]:
    return tuple([int(word[:9]) for word in version.split(".") if word.isascii() and word.isdigit()]) or (0,)


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
        fd = posix.open(name, posix.O_RDONLY | O_NOFOLLOW | posix.O_NONBLOCK | O_CLOEXEC, dir_fd=directory)
    except OSError:
        return -1  # a link, or nothing that we may read
    if posix.fstat(fd).st_mode & _S_IFMT != _S_IFREG:
        posix.close(fd)
        return -1
    return fd


def _supported_majors(directory: int, name: str) -> tuple[int, ...] | None:
    fd = _open_file(directory, name)
    if fd < 0:
        return ()  # not a file: nothing to be used
    try:
        note = read_note(fd, _SECTION, _OWNER)
    finally:
        posix.close(fd)
    if note is None:
        return None
    try:
        document = parse_json(note.rstrip(b"\0"), _SECTION)
    except (ConfigError, ImportError, RecursionError):  # ImportError: the words for a syntax error are not loaded here
        return None
    majors = document.get("Driver") if isinstance(document, dict) else None
    if not isinstance(majors, list):
        return None
    texts = [str(m) for m in majors[:_MAX_NAMES] if type(m) in (int, str)]
    return tuple([int(t[:9]) for t in texts if t.isascii() and t.isdigit()])


def _entries(directory: int, path: str, names: list[str]) -> tuple[CacheEntry, ...]:
    """An entry for each SONAME that this machine's loader can use."""
    machine = posix.uname().machine
    native, flags = MACHINES.get(machine, (0, 0))[0], FLAGS_NATIVE.get(machine, 0)
    found: dict[str, CacheEntry] = {}
    for name in names[:_MAX_LIBRARIES]:
        fd = _open_file(directory, name)
        if fd < 0:
            continue
        try:
            elf = read_elf(fd)
        finally:
            posix.close(fd)
        if elf is not None and elf.machine == native and elf.soname:
            found.setdefault(elf.soname, CacheEntry(elf.soname, f"{path}/{name}", flags))
    return tuple(found.values())
