"""The MPS daemon of the host: what a container needs to reach it beside its directory of pipes.

Client and daemon share memory in /dev/shm, so the container must have that of the daemon: the host's (``--ipc=host``), or
the one that whoever runs the daemon mounts there (the Kubernetes device plugin does).  gpurun does not give it: the host's
shared memory is not part of asking for a GPU.  For a share of a GPU, gpurun's own daemon has shared memory of its own, which
is given.
"""

from __future__ import annotations

from gpurun.cdi.edits import EditMount
from gpurun.gpu.host.reads import exists
from gpurun.gpu.nvidia.edits.files import SOCKET_OPTIONS
from gpurun.gpu.nvidia.host.file_names import MPS_REASON
from gpurun.record import replace

TYPE_CHECKING = False
if TYPE_CHECKING:
    from gpurun.cdi.edits import ContainerEdits
    from gpurun.gpu.request.share import Share

DEFAULT_DIRECTORY = "/tmp/nvidia-mps"
_THEIRS = "the MPS daemon of this host"
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
        f"{_THEIRS} ({directory}) cannot serve the container, whose /dev/shm is its own: share the host's "
        "(docker run --ipc=host, hostIPC: true), or no CUDA program will start while the daemon runs in exclusive mode"
    )
    return replace(made, warnings=(*made.warnings, text))


def with_host_share(made: ContainerEdits, pipes: EditMount, share: Share) -> ContainerEdits:
    """*made*, which mounts the directory *pipes* of the host's own daemon, with *share* there."""
    return replace(made, env=(*made.env, f"{VARIABLE}={pipes.container_path}", *_limits(share)))


def with_share(made: ContainerEdits, pipes: str, shm: str, share: Share) -> ContainerEdits:
    """*made* with *share* on a daemon of gpurun's: its directories *pipes* and *shm* in the container, its limits there."""
    reason = f"a share of the GPU: {share.text}"
    mounts = (
        *[mount for mount in made.mounts if mount.reason != MPS_REASON],
        EditMount(pipes, DEFAULT_DIRECTORY, SOCKET_OPTIONS, "dir", reason),
        EditMount(shm, "/dev/shm", SOCKET_OPTIONS, "dir", reason),
    )
    warnings = tuple([text for text in made.warnings if not text.startswith(_THEIRS)])
    return replace(
        made, mounts=mounts, warnings=warnings, env=(*made.env, f"{VARIABLE}={DEFAULT_DIRECTORY}", *_limits(share))
    )


def _limits(share: Share) -> tuple[str, ...]:
    """What tells CUDA in the container, which has one GPU, how much of it it may use."""
    memory = (f"CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=0={share.memory >> 20}M",) if share.memory else ()
    return (*memory, *((f"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE={share.threads}",) if share.threads else ()))
