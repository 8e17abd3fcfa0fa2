"""The node's container engine made to read its configuration again; its containers go on meanwhile."""

from __future__ import annotations

import os
import signal
import socket
import struct
import subprocess
import time

from gpurun import log
from gpurun.errors import GpurunError, program_error_text, strerror_lower

_CREDENTIALS = struct.Struct("iII")  # struct ucred, unix(7)
_WAIT_S = 60.0
_SYSTEMD_S = 120.0


def restart(engine: str, mode: str, path: str) -> None:
    """Restart *engine*, whose socket is *path*, by *mode*; returns when it answers again.  Raises :class:`GpurunError`.

    ``signal``: SIGHUP to the process that listens on the socket.  containerd has no handler for it and ends, and systemd (or
    whoever started it) starts it again; CRI-O reads its configuration.  ``systemd``: ``systemctl restart``.
    """
    if mode == "none":
        log.info(f"{engine} reads its new configuration when it is started next")
        return
    if mode == "systemd":
        _systemd(engine)
        _until(path, 0)
    else:
        pid = _until(path, 0)
        _signal(pid, engine)
        if engine == "containerd":
            _until(path, pid)
    log.info(f"{engine} has been restarted and answers")


def _systemd(engine: str) -> None:
    command = ["systemctl", "restart", engine]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_SYSTEMD_S, stdin=subprocess.DEVNULL)
    except (OSError, subprocess.SubprocessError) as e:
        raise GpurunError(f"`{' '.join(command)}` on the node: {program_error_text(e)}") from None
    if done.returncode:
        raise GpurunError(f"`{' '.join(command)}` on the node: {' '.join(done.stderr.split())}")


def _signal(pid: int, engine: str) -> None:
    if pid == 0:
        raise GpurunError(f"the process of {engine} cannot be seen from here: the pod needs `hostPID: true`")
    try:
        with open(f"/proc/{pid}/comm", encoding="utf-8") as file:
            name = file.read().strip()
        if name != engine:
            raise GpurunError(f"process {pid} listens on the socket of {engine} and is {name}: no signal is sent to it")
        os.kill(pid, signal.SIGHUP)
    except OSError as e:
        raise GpurunError(f"signal process {pid} of {engine}: {strerror_lower(e.errno or 0)}") from None


def _until(path: str, old: int) -> int:
    """The process that listens on the socket *path*, once that is not *old*.  Raises :class:`GpurunError`."""
    deadline = time.monotonic() + _WAIT_S
    while True:
        try:
            pid = listener(path)
            if pid != old or old == 0:
                return pid
            why = f"process {pid} goes on after SIGHUP: use --restart-mode systemd"
        except OSError as e:
            why = strerror_lower(e.errno or 0)
        if time.monotonic() > deadline:
            raise GpurunError(f"no new process answers at {path} within {_WAIT_S:g} s: {why}")
        time.sleep(0.1)


def listener(path: str) -> int:
    """The PID of the process that listens on the Unix socket *path*, 0 for one of another pid namespace.  Raises OSError."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC) as connection:
        connection.settimeout(5)
        connection.connect(path)
        credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    pid: int = _CREDENTIALS.unpack(credentials)[0]
    return pid
