"""The MPS daemon of one GPU that containers share: where it is, whether it is there, and having it started.

``/run/gpurun-mps/GPU/`` has ``lock``, held by the supervisor for as long as it lives, ``ready``, which names it (pid and
start time) while its daemon answers, and ``daemon/``, which the containers have mounted.  The supervisor
(:mod:`gpurun.gpu.mps.supervisor`) is a service of systemd where that runs the host, else a process of its own session.  It
ends when nobody has a share of the GPU any more: it looks at the shares themselves, so nobody has to tell it.

Who wants the daemon notes a share first and then looks for ``ready``.  The supervisor takes ``ready`` away under the lock of
the shares, when there is none.  So either it sees the new share and stays, or ``ready`` is gone and another one is started.
"""

from __future__ import annotations

import posix
import time

from gpurun import log
from gpurun.errors import GpuError, GpurunError, oserror_text
from gpurun.formats.jsontext import dumps
from gpurun.gpu.host.reads import exists
from gpurun.gpu.leases.liveness import lives
from gpurun.launcher.fresh_interpreter import MPS_ENTRY, command_line
from gpurun.linux.files import O_CLOEXEC, Fd, mkdir_p, read_file
from gpurun.linux.fs import close_others
from gpurun.record import Record, to_plain

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

#: Seconds until the daemon answers: NVIDIA's takes a tenth, on a loaded host a few.
START_S = 30.0
_BOOTED = "/run/systemd/system"  # sd_booted(3)
_LOOK_S = 0.02
_PROGRAMS = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_SIGNALS = 64


class Service(Record):
    """What a supervisor is told: the GPU's *key* and *uuid*, the *directory*, the *store* of the shares, the size of *shm*.

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
        _start(service, token)
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


def _start(service: Service, token: str) -> None:
    """Start a supervisor, which lives on when this process and its container are gone."""
    words = (*command_line(MPS_ENTRY), dumps(to_plain(service)), token)
    if exists(_BOOTED):
        try:
            _start_unit(service, words, token)
            return
        except GpurunError as e:
            log.warning(f"MPS: the daemon is not supervised by systemd: {e}")
    with Fd(posix.open("/dev/null", posix.O_RDWR | O_CLOEXEC)) as null:
        # A child of a child: whoever made this container waits for children of its own alone.
        pid = posix.fork()
        if pid == 0:
            try:
                close_others((null,))  # an engine's pipes, which it waits for the end of
                posix.posix_spawn(
                    words[0], words, {"PATH": _PROGRAMS, "LC_ALL": "C.UTF-8"},
                    file_actions=[(posix.POSIX_SPAWN_DUP2, null, fd) for fd in (0, 1, 2)], setsid=True, setsigmask=(),
                    setsigdef=[n for n in range(1, _SIGNALS + 1) if n not in (9, 19, 32, 33)],
                )  # fmt: skip
            finally:
                posix._exit(0)
        posix.waitpid(pid, 0)


def _start_unit(service: Service, words: tuple[str, ...], token: str) -> None:
    from gpurun.cgroup.scope import Property
    from gpurun.cgroup.systemd import start_service

    # systemd would replace variables in the words of a command.
    command = tuple([word.replace("$", "$$") for word in words])
    properties = (
        Property("Description", "s", f"MPS daemon of GPU {service.key}, shared by containers"),
        Property("ExecStart", "a(sasb)", ((words[0], command, False),)),
        Property("CollectMode", "s", "inactive-or-failed"),
        Property("Restart", "s", "on-abnormal"),
    )
    start_service(f"gpurun-mps-{service.directory.rpartition('/')[2]}-{token}.service", properties)
