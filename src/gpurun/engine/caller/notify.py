"""sd_notify(3) for a container that a systemd unit runs: its readiness is passed on to the unit (NOTIFY_SOCKET).

create puts a directory of the state directory into the container at /run/notify and names a socket in it; start binds
that socket, releases the process, waits for its ``READY=``, and tells systemd the main pid (barrier included).
"""

from __future__ import annotations

import posix
from _socket import AF_UNIX, SOCK_CLOEXEC, SOCK_DGRAM, socket

from gpurun.cdi.edits import ContainerEdits, EditMount
from gpurun.engine.state import State
from gpurun.errors import StepError
from gpurun.linux.files import O_CLOEXEC, Fd
from gpurun.linux.fs import O_PATH
from gpurun.linux.procfs import is_alive
from gpurun.linux.scm_rights import send_with
from gpurun.record import replace

_INSIDE = "/run/notify"
#: What tells the container's first process (and no other) where to report.
NOTIFY_ENV = (f"NOTIFY_SOCKET={_INSIDE}/notify.sock",)
_BARRIER_SECONDS = 30


def with_notify(edits: ContainerEdits, state_directory: str) -> ContainerEdits:
    """*edits* with the way to the unit's socket; *state_directory* is the container's, which need not exist yet."""
    mount = EditMount(
        host_path=f"{state_directory}/notify",
        container_path=_INSIDE,
        options=("bind", "ro", "nosuid", "nodev", "noexec"),
        kind="dir",
        reason="NOTIFY_SOCKET: the container's readiness is reported to systemd",
    )
    return replace(edits, mounts=(*edits.mounts, mount))


def bind_socket(directory: str) -> socket:
    """The socket that the container will write to; anyone in the container may.  Raises :class:`StepError`."""
    made = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC)
    try:
        at = posix.open(directory, O_PATH | O_CLOEXEC)
        made.bind(f"/proc/self/fd/{at}/notify.sock")
        posix.close(at)
        posix.chmod(f"{directory}/notify.sock", 0o777)
    except OSError as e:
        made.close()
        raise StepError("bind the notify socket in", directory, e.errno) from None
    return made


def forward(inside: socket, host_path: str, state: State) -> None:
    """Pass on the first ``READY=`` of the container, then say who the main process is; returns also when that has ended.

    Raises :class:`StepError` when *host_path* cannot be written to.
    """
    unit = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC)
    address = "\0" + host_path[1:] if host_path.startswith("@") else host_path
    inside.settimeout(0.1)
    try:
        while True:
            try:
                data = inside.recv(4096)
            except TimeoutError:
                if not is_alive(state.pid, state.start_time):
                    return
                continue
            for line in data.split(b"\n"):
                if line.startswith(b"READY="):
                    unit.sendto(line + b"\n", address)
                    unit.sendto(b"MAINPID=%d\n" % state.pid, address)
                    _barrier(unit, address)
                    return
    except OSError as e:
        raise StepError("tell systemd over", host_path, e.errno) from None
    finally:
        unit.close()
        inside.close()


def _barrier(unit: socket, address: str) -> None:
    """Wait until systemd has read all we sent: it closes the descriptor that comes with the last message."""
    from select import POLLHUP, poll

    read, write = posix.pipe2(O_CLOEXEC)
    with Fd(write):
        unit.connect(address)
        send_with(unit, b"BARRIER=1", (write,))
    poller = poll()
    poller.register(read, POLLHUP)
    poller.poll(_BARRIER_SECONDS * 1000)
    posix.close(read)
