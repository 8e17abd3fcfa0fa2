"""What every part of the discovery reads of a host: its roots, small files of procfs and sysfs, majors, device nodes."""

from __future__ import annotations

import posix

from gpurun.errors import GpuError
from gpurun.linux.files import read_file
from gpurun.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from gpurun.hook.looked import Looked

#: Who is told what is looked at; nobody, unless the answer is to be remembered.
listener: Looked | None = None

PROC = "/proc/driver/nvidia"


class Roots(Record):
    """Where to look: *driver_root* as the administrator writes it, *sysroot* in front of every path (empty for ``/``).

    *dev_root* is the directory with the ``dev/`` of the GPUs, where it is neither the driver root's nor the host's (empty:
    found out).  *ldcache* is a loader's cache to read instead of the driver root's own, *library_dirs* where to look for
    libraries before the usual directories (below the driver root), *config_dirs* the same for files of configuration.
    """

    driver_root: str = "/"
    sysroot: str = ""
    dev_root: str = ""
    ldcache: str = "/etc/ld.so.cache"
    library_dirs: tuple[str, ...] = ()
    config_dirs: tuple[str, ...] = ()


class HostNode(Record):
    """A device node of the host, *exists* or merely known by its numbers; *path* is where the container gets it."""

    path: str
    host_path: str
    major: int
    minor: int
    exists: bool
    mode: int = 0o666
    gid: int = 0


def roots_from_environment(env: Mapping[str, str], driver_root: str = "/") -> Roots:
    """The roots that gpurun's own environment *env* asks for (GPURUN_SYSROOT)."""
    return Roots(driver_root or "/", env.get("GPURUN_SYSROOT", "").rstrip("/"))


def driver_root_path(roots: Roots) -> str:
    """The driver root as a path of this host; raises :class:`GpuError` when it is not there."""
    path = roots.sysroot + ("" if roots.driver_root == "/" else roots.driver_root.rstrip("/"))
    if path and not exists(path):
        raise GpuError(f"no NVIDIA driver: the driver root {path} does not exist")
    return path or "/"


def dev_root(roots: Roots) -> str:
    """The directory with ``dev/``: the driver root when its /dev has the nodes (a containerised driver), else the host."""
    if roots.dev_root:
        return roots.sysroot + roots.dev_root.rstrip("/")
    own = driver_root_path(roots).rstrip("/")
    return own if own != roots.sysroot and exists(f"{own}/dev/nvidiactl") else roots.sysroot


def read_majors(roots: Roots) -> dict[str, int]:
    """Name → major number of the character devices; of equal names the first one counts."""
    found: dict[str, int] = {}
    for line in read_text(f"{roots.sysroot}/proc/devices").partition("Block devices:")[0].splitlines():
        number, _, name = line.strip().partition(" ")
        if number.isdigit() and name:
            found.setdefault(name.strip(), int(number))
    return found


def find_node(root: str, path: str, major: int, minor: int, mode: int = 0o666) -> HostNode:
    """The node at *path* below *root*; *mode* is what it would have where it does not exist.

    A file there that is not the device it should be is never handed to a container: :class:`GpuError`.
    """
    host_path = root + path
    stat = _lstat(host_path)
    if stat is None:
        return HostNode(path, host_path, major, minor, False, mode)
    numbers = (posix.major(stat.st_rdev), posix.minor(stat.st_rdev))
    if stat.st_mode & 0o170000 != 0o020000 or numbers != (major, minor):
        raise GpuError(
            f"invalid device node: {host_path} is not the character device {major}:{minor}: remove it and let "
            "`nvidia-modprobe` or the driver make it again"
        )
    return HostNode(path, host_path, major, minor, True, stat.st_mode & 0o777, stat.st_gid)


def node_as_it_is(root: str, path: str) -> HostNode | None:
    """The character device at *path* below *root*, whatever its numbers; ``None`` for anything else, a link too."""
    stat = _lstat(root + path)
    if stat is None or stat.st_mode & 0o170000 != 0o020000:
        return None
    major, minor = posix.major(stat.st_rdev), posix.minor(stat.st_rdev)
    return HostNode(path, root + path, major, minor, True, stat.st_mode & 0o777, stat.st_gid)


def _lstat(path: str) -> posix.stat_result | None:
    try:
        found = posix.lstat(path)
    except (FileNotFoundError, NotADirectoryError):
        found = None
    if listener is not None:
        listener.node(path, found)
    return found


def bus_order(bus_id: str) -> tuple[int, ...]:
    """*bus_id* (``domain:bus:device.function``, hexadecimal) as numbers: for sorting and comparing; -1 for what is none."""
    numbers = bus_id.replace(".", ":").split(":")
    try:
        return tuple([int(n, 16) for n in numbers])
    except ValueError:
        return (-1,)


def exists(path: str) -> bool:
    """Whether there is something at *path*, links followed."""
    try:
        found = posix.stat(path)
    except OSError:
        found = None
    if listener is not None:
        listener.there(path, found)
    return found is not None


def names_in(path: str) -> list[str]:
    """The names in the directory *path*, sorted; none when it is not there."""
    try:
        names = sorted(posix.listdir(path))
    except (FileNotFoundError, NotADirectoryError):
        names = []
    if listener is not None:
        listener.names(path, names)
    return names


def read_bytes(path: str, limit: int = 1 << 16) -> bytes | None:
    """The first *limit* bytes of *path*, ``None`` when it is not there."""
    try:
        content = read_file(path, limit)
    except (FileNotFoundError, NotADirectoryError):
        content = None
    if listener is not None:
        listener.text(path, limit, content)
    return content


def read_text(path: str) -> str:
    """The first 64 KiB of *path* as text, empty when it is not there."""
    return (read_bytes(path) or b"").decode("utf-8", "replace")


def fields(path: str) -> dict[str, str]:
    """Name → value of the lines ``Name: value`` of a file of procfs."""
    pairs = [line.partition(":") for line in read_text(path).splitlines()]
    return {name.strip(): value.strip() for name, colon, value in pairs if colon}
