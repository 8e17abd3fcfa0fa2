"""What every part of the discovery reads of a host: its roots, small files of procfs and sysfs, majors, device nodes."""

from __future__ import annotations

from gpurun.errors import GpuError
from gpurun.gpu.host.reads import exists
from gpurun.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping


PROC = "/proc/driver/nvidia"


class Roots(Record):
    """Where to look: *driver_root* as the administrator writes it, *sysroot* in front of every path (empty for ``/``).

    *dev_root* is the directory with the ``dev/`` of the GPUs, where it is neither the driver root's nor the host's (empty:
    found out).  *ldcache* is a loader's cache to read instead of the driver root's own, *library_dirs* where to look for
    libraries before the usual directories (below the driver root), *config_dirs* the same for files of configuration.
    *excluded* are GPUs, by index, UUID or PCI address, that are not among ``all``.
    """

    driver_root: str = "/"
    sysroot: str = ""
    dev_root: str = ""
    ldcache: str = "/etc/ld.so.cache"
    library_dirs: tuple[str, ...] = ()
    config_dirs: tuple[str, ...] = ()
    excluded: tuple[str, ...] = ()


def roots_from_environment(env: Mapping[str, str], driver_root: str = "/") -> Roots:
    """The roots that gpurun's own environment *env* asks for (GPURUN_SYSROOT)."""
    return Roots(driver_root or "/", env.get("GPURUN_SYSROOT", "").rstrip("/"))


def driver_root_path(roots: Roots) -> str:
    """The driver root as a path of this host; raises :class:`GpuError` when it is not there."""
    path = roots.sysroot + ("" if roots.driver_root == "/" else roots.driver_root.rstrip("/"))
    if path and not exists(path):
        raise GpuError(f"no NVIDIA driver: the driver root {path} does not exist: `gpurun gpu doctor` says more")
    return path or "/"


def dev_root(roots: Roots) -> str:
    """The directory with ``dev/``: the driver root when its /dev has the nodes (a containerised driver), else the host."""
    if roots.dev_root:
        return roots.sysroot + roots.dev_root.rstrip("/")
    own = driver_root_path(roots).rstrip("/")
    return own if own != roots.sysroot and exists(f"{own}/dev/nvidiactl") else roots.sysroot


def bus_order(bus_id: str) -> tuple[int, ...]:
    """*bus_id* (``domain:bus:device.function``, hexadecimal) as numbers, to sort and compare; -1 for another text."""
    numbers = bus_id.replace(".", ":").split(":")
    try:
        return tuple([int(n, 16) for n in numbers])
    except ValueError:
        return (-1,)
