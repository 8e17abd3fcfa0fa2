"""The MPS daemon of one GPU that containers share: where it is, whether it is there, and having it started.

``/run/gpurun-mps/GPU/`` has ``lock``, held by the supervisor for as long as it lives, ``ready``, which names it (pid and
start time) while its daemon answers, and ``daemon/``, which the containers have mounted.  The supervisor
(:mod:`gpurun.gpu.nvidia.mps.supervisor`) is a service of systemd where that runs the host, else a process of its own
session.  It ends when no container has a share of the GPU any more: it reads the shares itself, so no command has to end it.

Who wants the daemon notes a share first and then looks for ``ready``.  The supervisor takes ``ready`` away under the lock of
the shares, when there is none.  So either it sees the new share and stays, or ``ready`` is gone and another one is started.
"""

from __future__ import annotations

import posix
import time

from gpurun.errors import GpuError, oserror_text
from gpurun.formats.jsontext import dumps
from gpurun.gpu.leases.liveness import lives
from gpurun.gpu.nvidia.mps.detached import start_detached
from gpurun.launcher.fresh_interpreter import MPS_ENTRY, command_line
from gpurun.linux.files import mkdir_p, read_file
from gpurun.record import Record, to_plain

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

#: Seconds until the daemon answers: NVIDIA's takes a tenth, on a loaded host a few.
START_S = 30.0
_LOOK_S = 0.02
_PROGRAMS = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


class Service(Record):
    """What a supervisor gets: the GPU's *key* and *uuid*, the *directory*, the *store* of the shares, the size of *shm*.

    *programs* is where NVIDIA's programs are.
    """

    key: str
    uuid: str
    directory: str
    store: str
    programs: str = _PROGRAMS
    shm_size: int = 1 << 30

    @property
    def pipes(self) -> str:
        """The directory of the daemon's pipes (CUDA_MPS_PIPE_DIRECTORY)."""
        return f"{self.directory}/daemon/pipe"

    @property
    def shm(self) -> str:
        """The directory that clients have as their /dev/shm."""
        return f"{self.directory}/daemon/shm"


def service_of(key: str, uuid: str, store: str, own_env: Mapping[str, str], shm_size: int = 1 << 30) -> Service:
    """The service of the GPU or MIG device *key*."""
    base = own_env.get("GPURUN_SYSROOT", "").rstrip("/")
    name = "".join([letter if letter.isalnum() or letter in ".-" else "-" for letter in key])
    programs = ":".join([base + path for path in _PROGRAMS.split(":")]) + f":{_PROGRAMS}" if base else _PROGRAMS
    return Service(key, uuid, f"{base}/run/gpurun-mps/{name}", store, programs, shm_size)


def is_served(service: Service) -> bool:
    """Whether its daemon answers: it did, and who watches it lives."""
    try:
        words = read_file(f"{service.directory}/ready").split()
    except FileNotFoundError:
        return False
    return len(words) == 2 and all(word.isdigit() for word in words) and lives(int(words[0]), int(words[1]))


def ensure(service: Service) -> None:
    """Have the daemon of *service* answer; a share of its GPU must be noted.  Raises :class:`GpuError` where it does not."""
    deadline = time.monotonic() + START_S
    token = posix.urandom(4).hex()
    failure = f"{service.directory}/failed.{token}"
    if is_served(service):
        return
    try:
        mkdir_p(service.directory, 0o755)
        unit = f"gpurun-mps-{service.directory.rpartition('/')[2]}-{token}.service"
        words = (*command_line(MPS_ENTRY), dumps(to_plain(service)), token)
        start_detached(words, unit, f"MPS daemon of GPU {service.key}, shared by containers")
        while not is_served(service):
            said = _take(failure)
            if said:
                raise GpuError(f"MPS: {said}")
            if time.monotonic() > deadline:
                raise GpuError(f"MPS: the daemon of the GPU does not answer after {START_S:g} s ({service.directory})")
            time.sleep(_LOOK_S)
    except OSError as e:
        raise GpuError(f"MPS: the daemon of the GPU cannot be started: {oserror_text(e)}") from None
    _take(failure)  # a second supervisor that found the first one at work says nothing, an earlier one may have


def _take(path: str) -> str:
    """What stands in the file, which is removed; "" where there is none."""
    try:
        text = read_file(path).decode("utf-8", "replace")
        posix.unlink(path)
    except FileNotFoundError:
        return ""
    return text
