"""The libraries of the driver: where those that the capabilities need are under a driver root.

Everything is resolved inside the driver root (absolute links are links of that root, and
nothing leads out of it), and what is handed on is the real file.
"""

from __future__ import annotations

import posix
from _stat import S_ISREG

from gpurun.formats.elf import MACHINES, read_elf
from gpurun.formats.ldcache import FLAGS_COMPAT32, FLAGS_NATIVE, MAX_SIZE, CacheError, lookup
from gpurun.gpu.host import reads
from gpurun.gpu.nvidia.host.file_names import UNVERSIONED, VERSIONED
from gpurun.linux.files import O_CLOEXEC, Fd, read_fd
from gpurun.linux.fs import O_PATH
from gpurun.ns.path import open_in_root
from gpurun.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

_MULTIARCH = {"x86_64": "x86_64-linux-gnu", "aarch64": "aarch64-linux-gnu"}
_MULTIARCH32 = {"x86_64": "i386-linux-gnu", "aarch64": "arm-linux-gnueabihf"}


class HostFile(Record):
    """A file or directory of the driver: *kind* is ``binary``, ``config``, ``firmware``, ``module`` (of the X server),
    ``socket``, ``mps`` (the directory of the MPS daemon) or ``directory``; *link* a name that leads to it, beside it.
    """

    kind: str
    capability: str
    host_path: str
    path: str  # in the container
    link: str = ""


class Library(Record):
    """A shared library of the driver: *path* is its place below the driver root, and in the container."""

    name: str  # file name
    capabilities: tuple[str, ...]
    host_path: str
    path: str
    soname: str
    flags: int  # of the loader's cache
    dev_link: bool = False  # the host has a link for linking, libX.so, beside it
    compat32: bool = False


class DriverRoot(Record):
    """An opened driver root: *fd* its directory, *path* the real host path of it, without a slash at the end."""

    fd: int
    path: str
    machine: str
    ldcache: str = "/etc/ld.so.cache"
    first_dirs: tuple[str, ...] = ()


def open_driver_root(
    path: str, machine: str, ldcache: str = "/etc/ld.so.cache", first_dirs: tuple[str, ...] = ()
) -> DriverRoot:
    """Open the directory *path* as a driver root of that machine (``x86_64``, ``aarch64``); the caller closes *fd*.

    *ldcache* is its loader's cache, *first_dirs* are directories to look for libraries in before the usual ones.
    """
    fd = posix.open(path, posix.O_RDONLY | posix.O_DIRECTORY | O_CLOEXEC)
    if reads.listener is not None:
        reads.listener.there(path, posix.fstat(fd))
    real = posix.readlink(f"/proc/self/fd/{fd}")
    return DriverRoot(fd, "" if real == "/" else real, machine, ldcache, first_dirs)


def resolve(root: DriverRoot, path: str) -> str | None:
    """The real path below the driver root that *path* leads to (``/usr/lib/x.so.1.2``), ``None`` when there is none."""
    if reads.listener is not None:
        reads.listener.in_root(root.path, path)
    try:
        fd = open_in_root(root.fd, path)
    except OSError:
        return None  # absent, or behind something unreadable: for discovery the same
    with Fd(fd):
        return posix.readlink(f"/proc/self/fd/{fd}").removeprefix(root.path)


def library_dirs(root: DriverRoot, compat32: bool = False) -> tuple[str, ...]:
    """The directories, real and each once, in which libraries are looked for when the loader's cache has them not."""
    if compat32:
        multiarch = _MULTIARCH32.get(root.machine, "")
        tried = [f"/usr/lib/{multiarch}", f"/usr/lib/{multiarch}/nvidia/current", "/usr/lib32", "/usr/lib", "/lib"]
    else:
        multiarch = _MULTIARCH.get(root.machine, "")
        tried = ["/usr/lib64", f"/usr/lib/{multiarch}", f"/usr/lib/{multiarch}/nvidia/current", "/lib64"]
        tried += [f"/lib/{multiarch}", f"/lib/{multiarch}/nvidia/current", "/usr/lib", "/lib", "/lib/nvidia"]
        tried += ["/run/opengl-driver/lib"]  # NixOS
    return tuple(dict.fromkeys([real for d in (*root.first_dirs, *tried) if (real := resolve(root, d)) is not None]))


def machine_of(root: DriverRoot, compat32: bool = False) -> tuple[int, int]:
    """(flags of the loader's cache, e_machine) of the libraries of this root's machine, or of its 32-bit ones."""
    flags = (FLAGS_COMPAT32 if compat32 else FLAGS_NATIVE).get(root.machine, 0)
    return flags, MACHINES[root.machine][1 if compat32 else 0]


def find_libraries(root: DriverRoot, version: str, capabilities: Iterable[str], compat32: bool) -> tuple[Library, ...]:
    """The libraries that *capabilities* need, of exactly that driver version.  What is not there is left out."""
    wanted: dict[str, tuple[str, ...]] = {}  # name → the capabilities that need it
    for capability in capabilities:
        names = [f"{name}.so.{version}" for name in VERSIONED.get(capability, ())]
        for name in (*names, *UNVERSIONED.get(capability, ())):
            wanted[name] = (*wanted.get(name, ()), capability)
    flags, machine = machine_of(root, compat32)
    places = _from_cache(root, version, wanted, flags)
    missing = [name for name in wanted if name not in places]
    if missing:
        _from_dirs(root, missing, library_dirs(root, compat32), places)
    found = [read_library(root, wanted[name], places[name], flags, machine, compat32) for name in wanted if name in places]
    return tuple([library for library in found if library is not None])


def _from_cache(root: DriverRoot, version: str, wanted: Iterable[str], flags: int) -> dict[str, str]:
    """Name → real path of those that the loader's cache of the driver root knows, in the version wanted."""
    if reads.listener is not None:
        reads.listener.in_root(root.path, root.ldcache)
    try:
        fd = open_in_root(root.fd, root.ldcache, posix.O_RDONLY | posix.O_NONBLOCK)
    except OSError:
        return {}  # NixOS, Guix, COS and Alpine hosts have none
    with Fd(fd):
        data = read_fd(fd, MAX_SIZE)
    stems = {name.removesuffix("." + version) if name.endswith("." + version) else name: name for name in wanted}
    try:
        entries = lookup(data, flags, tuple([stem.encode() for stem in stems]))
    except CacheError:
        return {}
    places: dict[str, str] = {}
    for key, path in entries:
        stem = key if key in stems else key[: key.find(".so") + 3]
        name = stems.get(stem)
        if name is None or name in places:
            continue
        real = resolve(root, path)
        if real is not None and (stem == key or real.endswith("/" + name)):
            places[name] = real
    return places


def _from_dirs(root: DriverRoot, names: list[str], dirs: tuple[str, ...], places: dict[str, str]) -> None:
    for directory in dirs:
        if reads.listener is not None:
            for name in names:
                reads.listener.in_root(root.path, f"{directory}/{name}")
        try:
            fd = open_in_root(root.fd, directory, O_PATH | posix.O_DIRECTORY)
        except OSError:
            continue  # no directory, or not for us
        with Fd(fd):
            for name in names:
                if name in places:
                    continue
                # Most are not there, which this tells at a fifth of the price.
                there = posix.access(name, posix.F_OK, dir_fd=fd, follow_symlinks=False)
                real = resolve(root, f"{directory}/{name}") if there else None
                if real is None and name.startswith("libvdpau_"):
                    real = resolve(root, f"{directory}/vdpau/{name}")
                if real is not None:
                    places[name] = real


def read_library(
    root: DriverRoot, capabilities: tuple[str, ...], path: str, flags: int, machine: int, compat32: bool
) -> Library | None:
    """*path* as a library, when it is a file of the right machine that only root may have written."""
    if reads.listener is not None:
        reads.listener.in_root(root.path, path)
    try:
        fd = open_in_root(root.fd, path, posix.O_RDONLY | posix.O_NONBLOCK)
    except OSError:
        return None  # it was there a moment ago: the driver is being replaced, and the version check will tell
    with Fd(fd):
        stat = posix.fstat(fd)
        if not S_ISREG(stat.st_mode) or stat.st_mode & 0o002:
            return None  # a world-writable library is not used
        elf = read_elf(fd)
    if elf is None or elf.machine != machine:
        return None
    directory, _, base = path.rpartition("/")
    stem = base[: base.find(".so") + 3]
    dev_link = stem != base and resolve(root, f"{directory}/{stem}") == path
    return Library(base, capabilities, root.path + path, path, elf.soname or base, flags, dev_link, compat32)


def list_dir(root: DriverRoot, path: str) -> list[str]:
    """The names in the directory *path* of the driver root; none when it cannot be read."""
    if reads.listener is not None:
        reads.listener.in_root(root.path, path, listed=True)
    try:
        fd = open_in_root(root.fd, path, posix.O_RDONLY | posix.O_DIRECTORY)
    except OSError:
        return []
    with Fd(fd):
        return posix.listdir(fd)


def installed_versions(root: DriverRoot) -> dict[str, str]:
    """Version → a file of it, of every libnvidia-ml and libcuda there is: for telling what is installed instead."""
    found: dict[str, str] = {}
    for directory in library_dirs(root):
        for name in list_dir(root, directory):
            for stem in ("libnvidia-ml.so.", "libcuda.so."):
                version = name[len(stem) :]
                if name.startswith(stem) and "." in version and version.replace(".", "").isdigit():
                    found.setdefault(version, f"{directory}/{name}")
    return found
