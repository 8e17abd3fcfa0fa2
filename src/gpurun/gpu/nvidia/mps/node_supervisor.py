"""The process on a node beside an MPS daemon of a cluster's pods: it starts the daemon, starts it again when it dies, starts
another one when another one is wanted, and ends with it when none is (:mod:`gpurun.gpu.nvidia.mps.node_service`).

``python -ISBc ... gpurun.gpu.nvidia.mps.node_supervisor:main DIRECTORY``.
"""

from __future__ import annotations

import fcntl
import os
import select
import shutil
import sys
import time

from gpurun import log
from gpurun.errors import GpurunError, oserror_text
from gpurun.gpu.nvidia.mps.daemon import MpsDaemon, MpsLimits
from gpurun.gpu.nvidia.mps.node_service import FAILED, LOCK, READY, NodeService, read_wanted
from gpurun.gpu.nvidia.mps.supervisor import mount_shm, restart_when_killed
from gpurun.linux import mount as lm
from gpurun.linux.files import unlink_if_there, write_atomically

_LOCK_S = 5.0
#: Seconds between two looks at what is wanted, and before a daemon that has died is started again.
_LOOK_S, _AGAIN_S = 0.5, 1.0


def main() -> int:
    """Entry point of the process; returns its exit code."""
    directory = sys.argv[1]
    return _serve(directory) if "INVOCATION_ID" in os.environ else restart_when_killed(lambda: _serve(directory))


def _serve(directory: str) -> int:
    """Do what is wanted in *directory* until nothing is; returns the exit code."""
    os.umask(0o022)
    try:
        lock = os.open(f"{directory}/{LOCK}", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    except FileNotFoundError:
        return 0  # it has gone meanwhile
    if not _take_lock(lock):
        return 0
    unlink_if_there(f"{directory}/{READY}")
    daemon: MpsDaemon | None = None
    current = ""
    once = False  # a daemon has answered
    try:
        while True:
            try:
                wanted = read_wanted(directory)
                if wanted is None:
                    if daemon is not None:
                        daemon.stop()
                    _tidy(directory)
                    return 0
                service, digest = wanted
                if daemon is not None and digest != current:
                    log.info(f"{directory}: another MPS daemon is wanted")
                    unlink_if_there(f"{directory}/{READY}")
                    daemon.stop()
                    daemon = None
                if daemon is None or not daemon.alive():
                    current = digest
                    unlink_if_there(f"{directory}/{READY}")
                    daemon = daemon or _make_daemon(directory, service)
                    daemon.start()
                    once = True
                    write_atomically(f"{directory}/{READY}", digest.encode(), 0o644)
                    unlink_if_there(f"{directory}/{FAILED}")
                _wait(daemon)
            except (GpurunError, OSError) as e:
                said = str(e) if isinstance(e, GpurunError) else oserror_text(e)
                log.warning(said)
                write_atomically(f"{directory}/{FAILED}", f"{current}\n{said}\n".encode("utf-8", "surrogateescape"), 0o644)
                if not once:
                    return 1  # who has asked for it hears of it, and asks again
                time.sleep(_AGAIN_S)
    finally:
        if daemon is not None and daemon.alive():
            daemon.stop()


def _make_daemon(directory: str, service: NodeService) -> MpsDaemon:
    limits = MpsLimits(service.threads, service.memory)
    made = MpsDaemon(directory, service.uuids, limits, service.programs, driver_root=service.driver_root)
    made.keep = True  # containers have its directories mounted
    mount_shm(made.shm, service.shm_size)
    return made


def _take_lock(lock: int) -> bool:
    """Whether this is the one supervisor of the directory.  Who looks whether there is one has the lock for a moment."""
    deadline = time.monotonic() + _LOCK_S
    while time.monotonic() < deadline:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            time.sleep(0.02)
    return False


def _wait(daemon: MpsDaemon) -> None:
    """Wait until the daemon has ended, or it is time to look what is wanted."""
    fd = os.pidfd_open(daemon.pid)  # a child, which is there until it is waited for
    try:
        waiting = select.poll()
        waiting.register(fd, select.POLLIN)
        ended = bool(waiting.poll(_LOOK_S * 1000))
    finally:
        os.close(fd)
    if ended:
        log.warning(f"the MPS daemon in {daemon.directory} has ended, it is started again")
        unlink_if_there(f"{daemon.directory}/{READY}")
        daemon.alive()
        time.sleep(_AGAIN_S)


def _tidy(directory: str) -> None:
    """Take the directory away."""
    shm = f"{directory}/shm"
    while os.path.ismount(shm):
        lm.umount2(shm, lm.MNT_DETACH)
    shutil.rmtree(directory)
