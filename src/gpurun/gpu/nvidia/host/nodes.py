"""The device nodes of the host, and the majors of its drivers."""

from __future__ import annotations

import posix
from _stat import S_ISCHR

from gpurun.decimals import decimal
from gpurun.errors import GpuError
from gpurun.gpu.host.reads import HostNode, lstat, read_text

TYPE_CHECKING = False
if TYPE_CHECKING:
    from gpurun.gpu.nvidia.host.roots import Roots


#: The largest numbers of a device (makedev(3) on Linux).
MAX_MAJOR, MAX_MINOR = (1 << 12) - 1, (1 << 20) - 1


def read_majors(roots: Roots) -> dict[str, int]:
    """Name → major number of the character devices; of equal names the first one counts."""
    found: dict[str, int] = {}
    for line in read_text(f"{roots.sysroot}/proc/devices").partition("Block devices:")[0].splitlines():
        digits, _, name = line.strip().partition(" ")
        major = decimal(digits, MAX_MAJOR)
        if major is not None and name:
            found.setdefault(name.strip(), major)
    return found


def find_node(root: str, path: str, major: int, minor: int, mode: int = 0o666) -> HostNode:
    """The node at *path* below *root*; *mode* is what it would have where it does not exist.

    A file there that is not the device it should be is never handed to a container: :class:`GpuError`.  Raises
    :class:`GpuError`.
    """
    host_path = root + path
    stat = lstat(host_path)
    if stat is None:
        return HostNode(path, host_path, major, minor, False, mode)
    numbers = (posix.major(stat.st_rdev), posix.minor(stat.st_rdev))
    if not S_ISCHR(stat.st_mode) or numbers != (major, minor):
        raise GpuError(
            f"invalid device node: {host_path} is not the character device {major}:{minor}: remove it and let "
            "`nvidia-modprobe` or the driver make it again"
        )
    return HostNode(path, host_path, major, minor, True, stat.st_mode & 0o777, stat.st_gid)
