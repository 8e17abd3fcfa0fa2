"""CUDA's Multi-Process Service for a set of GPUs: its control daemon started, given limits, watched and ended.

The daemon is NVIDIA's (``nvidia-cuda-mps-control -f``), a child of ours: when it dies it is started again, and when we are
killed it ends with us.  Commands go to it by the same program, which reads them from stdin.  util-linux's setpriv and
unshare start it: a process with threads should run no code between fork and exec.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Sequence

from gpurun import log
from gpurun.errors import GpurunError, program_error_text
from gpurun.gpu.nvidia.mps.programs import Program, call, find_driver_program, mount_place
from gpurun.record import Record

CONTROL = "nvidia-cuda-mps-control"
_TIMEOUT_S = 10.0
#: In a mount namespace of its own the daemon's /dev/shm is $0; with the thread that starts it, it ends.
_ALONE = ("setpriv", "--pdeathsig", "TERM", "unshare", "--mount", "--propagation", "private")
_SHARE = ("sh", "-c", 'mount --bind "$0" /dev/shm && exec "$@"')
#: With the driver's root as its own it finds its shared memory and its directory there: $0 at $1, and $2 at $3.
_SHARE_THERE = ("sh", "-c", 'mount --bind "$0" "$1" && mount --bind "$2" "$3" && shift 3 && exec "$@"')
#: Directories of a driver's root, one of which becomes the daemon's own, in its mount namespace.
_PLACES = ("/mnt", "/media", "/tmp")
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_MIB = 1 << 20


class MpsLimits(Record):
    """What each client may have: *threads* in percent (0: all), *memory* as (GPU, bytes).

    The GPU is its number among those of the daemon, or its UUID.
    """

    threads: int = 0
    memory: tuple[tuple[str, int], ...] = ()


def replica_limits(memory: Sequence[int], replicas: int) -> MpsLimits:
    """The limits when each of the daemon's GPUs, with that *memory* in bytes (0: unknown), is shared by *replicas*."""
    shares = [(str(number), size // replicas) for number, size in enumerate(memory) if size]
    return MpsLimits(100 // replicas, tuple(shares))


def _has_ended(process: subprocess.Popen[bytes]) -> bool:
    """Whether *process* ends within some seconds: by itself, or by signals to its group."""
    for sign in (signal.SIGTERM, signal.SIGKILL, 0):
        try:
            process.wait(2)
            return True
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, sign)
    return False


class MpsDaemon:
    """One daemon.  *directory* is its own (pipes, log), *uuids* the GPUs that it serves.

    Daemon and clients share memory: the directory :attr:`shm` is the daemon's /dev/shm, and must become the clients'.
    *driver_root* is where NVIDIA's programs are, when they are not in *programs* (default: PATH); *exclusive* puts the GPUs
    into the compute mode that lets no program bypass the daemon.
    """

    def __init__(
        self, directory: str, uuids: tuple[str, ...], limits: MpsLimits, programs: str = "", exclusive: bool = True,
        driver_root: str = "",
    ) -> None:  # fmt: skip
        self.directory, self.uuids, self.limits = directory, uuids, limits
        self.pipes, self.logs, self.shm = f"{directory}/pipe", f"{directory}/log", f"{directory}/shm"
        self._programs, self._exclusive, self._driver_root = programs, exclusive, driver_root
        self._process: subprocess.Popen[bytes] | None = None
        self.keep = False  # the directory: containers have it mounted, and another daemon is to be started there

    def start(self) -> None:
        """Start it and set its limits; returns when it answers.  Raises :class:`GpurunError`, with nothing left behind."""
        control = self._program(CONTROL)
        for path in (self.pipes, self.logs, self.shm):
            os.makedirs(path, 0o755, exist_ok=True)
        self._quit_old(control)
        try:
            if self._exclusive:
                self._compute_mode("EXCLUSIVE_PROCESS")
            self._process = subprocess.Popen(
                [*_ALONE, *self._among_mounts(control), *control.words, "-f"], env=self._environment(control),
                stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True,
            )  # fmt: skip
            self._until_it_answers()
            for index, size in self.limits.memory:
                self.command(f"set_default_device_pinned_mem_limit {index} {size // _MIB}M")
            if self.limits.threads:
                self.command(f"set_default_active_thread_percentage {self.limits.threads}")
        except (OSError, subprocess.SubprocessError) as e:
            self.stop()
            raise GpurunError(f"{CONTROL}: cannot be started: {program_error_text(e)}") from None
        except GpurunError:
            self.stop()
            raise

    def alive(self) -> bool:
        """Whether it runs."""
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int:
        """The daemon's process; 0 when it has not been started."""
        return self._process.pid if self._process is not None else 0

    def command(self, text: str) -> str:
        """Send the line *text* to the daemon; what it answers.  Raises :class:`GpurunError`."""
        control = self._program(CONTROL)
        try:
            done = self._send(control, text)
        except (OSError, subprocess.SubprocessError) as e:
            raise GpurunError(f"{CONTROL}: {text}: {program_error_text(e)}") from None
        if done.returncode:
            said = " ".join((done.stderr or done.stdout).split()) or f"exit code {done.returncode}"
            raise GpurunError(f"{CONTROL}: {text}: {said}")
        return done.stdout

    def stop(self) -> None:
        """End it: first by its own word, then by signals; the GPUs go back to the default compute mode."""
        if self.alive():
            try:
                self.command("quit -t 1")
            except GpurunError as e:
                log.debug(str(e))
        process, self._process = self._process, None
        if process is not None and not _has_ended(process):
            log.warning(f"{CONTROL}: process {process.pid} was killed and is still there: the NVIDIA driver holds it")
        if self._exclusive:
            try:
                self._compute_mode("DEFAULT")
            except GpurunError as e:
                log.warning(str(e))
        if not self.keep:
            shutil.rmtree(self.directory, ignore_errors=True)

    def _until_it_answers(self) -> None:
        deadline = time.monotonic() + _TIMEOUT_S
        while True:
            if not self.alive():
                code = self._process.returncode if self._process else "?"
                raise GpurunError(f"{CONTROL} ended with exit code {code} as it started: see {self.logs}/control.log")
            try:
                self.command("get_default_active_thread_percentage")
                return
            except GpurunError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.05)

    def _send(self, control: Program, text: str) -> subprocess.CompletedProcess[str]:
        """Write the line *text* to the daemon's control program."""
        apart = (*_ALONE[3:], *self._among_mounts(control)) if control.root else ()
        words = [*apart, *control.words]
        return call(words, _TIMEOUT_S, text + "\n", self._environment(control))

    def _quit_old(self, control: Program) -> None:
        """A daemon that an earlier process of ours left behind would keep the directory."""
        try:
            self._send(control, "quit")
        except (OSError, subprocess.SubprocessError) as e:
            log.debug(f"{CONTROL}: quit: {program_error_text(e)}")

    def _compute_mode(self, mode: str) -> None:
        program = self._program("nvidia-smi")
        for uuid in self.uuids:
            words = [*program.words, "-i", uuid, "-c", mode]
            try:
                done = call(words, _TIMEOUT_S)
            except (OSError, subprocess.SubprocessError) as e:
                raise GpurunError(f"{' '.join(words)}: {program_error_text(e)}") from None
            if done.returncode:
                raise GpurunError(f"{' '.join(words)}: {' '.join((done.stdout + done.stderr).split())}")

    def _among_mounts(self, control: Program) -> tuple[str, ...]:
        """The words before those of *control*: what has it find the directories of this daemon."""
        if not control.root:
            return (*_SHARE, self.shm)
        shm, own = mount_place(control.root, ("/dev/shm",)), mount_place(control.root, _PLACES)
        return (*_SHARE_THERE, self.shm, control.root + shm, self.directory, control.root + own)

    def _environment(self, control: Program) -> dict[str, str]:
        directory = mount_place(control.root, _PLACES) if control.root else self.directory
        return {
            "PATH": _PATH if control.root else os.environ.get("PATH", "/usr/bin:/bin"),
            "CUDA_VISIBLE_DEVICES": ",".join(self.uuids),
            "CUDA_MPS_PIPE_DIRECTORY": directory + self.pipes[len(self.directory) :],
            "CUDA_MPS_LOG_DIRECTORY": directory + self.logs[len(self.directory) :],
        }

    def _program(self, name: str) -> Program:
        found = find_driver_program(name, self._driver_root, self._programs)
        if found is None:
            searched = self._driver_root or self._programs or "PATH"
            raise GpurunError(f"MPS needs {name}, which is not in {searched}: is the driver installed?")
        return found
