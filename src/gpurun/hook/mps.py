"""The MPS daemon of the host: what a container needs to reach it beside its directory of pipes.

Client and daemon share memory in /dev/shm, so the container must have that of the daemon: the host's (``--ipc=host``), or
the one that whoever runs the daemon mounts there (the Kubernetes device plugin does).  gpurun does not give it: the host's
shared memory is not part of asking for a GPU.
"""

from __future__ import annotations

from gpurun.hook.host import exists
from gpurun.record import replace

TYPE_CHECKING = False
if TYPE_CHECKING:
    from gpurun.hook.edits import ContainerEdits, EditMount

DEFAULT_DIRECTORY = "/tmp/nvidia-mps"
VARIABLE = "CUDA_MPS_PIPE_DIRECTORY"


def with_mps(
    made: ContainerEdits, pipes: EditMount, env: tuple[str, ...], mounts: tuple[tuple[str, str], ...]
) -> ContainerEdits:
    """*made*, which mounts the directory *pipes*, with what a container with that *env* and those *mounts* lacks.

    *mounts* are pairs of source and destination.  A directory that is not where CUDA looks by itself is named in the
    environment, unless the container names one.  Nothing is said of shared memory without a running daemon, nor when the
    mounts are not known (none at all: a container configured from outside).
    """
    directory = pipes.container_path
    if directory != DEFAULT_DIRECTORY and not any(e.startswith(VARIABLE + "=") for e in env):
        made = replace(made, env=(*made.env, f"{VARIABLE}={directory}"))
    sources = [source for source, destination in mounts if destination.rstrip("/") == "/dev/shm"]
    shared = bool(sources) and sources[-1].startswith("/")  # else a tmpfs of its own, or none
    if not mounts or shared or not exists(f"{pipes.host_path}/control"):
        return made
    text = (
        f"the MPS daemon of this host ({directory}) cannot serve the container, whose /dev/shm is its own: share the host's "
        "(docker run --ipc=host, hostIPC: true), or no CUDA program will start while the daemon runs in exclusive mode"
    )
    return replace(made, warnings=(*made.warnings, text))
