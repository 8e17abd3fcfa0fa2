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
    return _Supervisor(directory).run()


class _Supervisor:
    """Has the daemon run that is wanted in *directory*."""

    def __init__(self, directory: str) -> None:
        self._directory = directory
        self._daemon: MpsDaemon | None = None
        self._digest = ""  # of what the daemon was made for
        self._has_answered = False

    def run(self) -> int:
        """Return when none is wanted any more, with 0, or with 1 when the first one does not start."""
        try:
            while True:
                try:
                    wanted = read_wanted(self._directory)
                    if wanted is None:
                        if self._daemon is not None:
                            self._daemon.stop()
                        _tidy(self._directory)
                        return 0
                    _wait(self._provide(*wanted))
                except (GpurunError, OSError) as e:
                    self._note_failure(str(e) if isinstance(e, GpurunError) else oserror_text(e))
                    if not self._has_answered:
                        return 1  # the process that has asked for it reads the failure, and asks again
                    time.sleep(_AGAIN_S)
        finally:
            if self._daemon is not None and self._daemon.alive():
                self._daemon.stop()

    def _provide(self, service: NodeService, digest: str) -> MpsDaemon:
        """The daemon for *service*, started anew where it has died or was made for another one."""
        if self._daemon is not None and digest != self._digest:
            log.info(f"{self._directory}: another MPS daemon is wanted")
            unlink_if_there(f"{self._directory}/{READY}")
            self._daemon.stop()
            self._daemon = None
        if self._daemon is None or not self._daemon.alive():
            self._digest = digest
            unlink_if_there(f"{self._directory}/{READY}")
            self._daemon = self._daemon or _make_daemon(self._directory, service)
            self._daemon.start()
            self._has_answered = True
            write_atomically(f"{self._directory}/{READY}", digest.encode(), 0o644)
            unlink_if_there(f"{self._directory}/{FAILED}")
        return self._daemon

    def _note_failure(self, text: str) -> None:
        log.warning(text)
        content = f"{self._digest}\n{text}\n".encode("utf-8", "surrogateescape")
        write_atomically(f"{self._directory}/{FAILED}", content, 0o644)


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
