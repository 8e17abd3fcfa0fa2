"""The MPS daemon that the host runs itself: whether it is there, and can serve a container."""

from __future__ import annotations

import posix

from gpurun.gpu.host.reads import exists
from gpurun.gpu.nvidia.host.file_names import MPS_REASON
from gpurun.linux import procfs
from gpurun.linux.files import read_regular

TYPE_CHECKING = False
if TYPE_CHECKING:
    from gpurun.cdi.edits import ContainerEdits, EditMount

_SHM = "/dev/shm"


def host_daemon(made: ContainerEdits) -> EditMount | None:
    """The pipes of the host's own daemon, which *made* mounts, where that daemon runs."""
    for mount in made.mounts:
        if mount.reason == MPS_REASON and exists(f"{mount.host_path}/control"):
            try:
                pid = read_regular(f"{mount.host_path}/nvidia-cuda-mps-control.pid", 64).strip()
            except OSError:
                return mount  # not every version writes it
            return mount if pid.isdigit() and procfs.stat(int(pid)) is not None else None
    return None


def has_host_shm(mounts: tuple[tuple[str, str], ...]) -> bool:
    """Whether a container with these *mounts* (source, destination) has the host's shared memory."""
    sources = [source for source, destination in mounts if destination.rstrip("/") == _SHM]
    try:
        return bool(sources) and posix.stat(sources[-1]).st_dev == posix.stat(_SHM).st_dev
    except OSError:
        return False
