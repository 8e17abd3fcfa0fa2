"""The stand-in for containerd's shim (shim.py), stopped in the moment in which delete comes."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from gpurun.linux.procfs import stat
from tests.native.inotify import masks
from tests.native.shim import IN_MODIFY, watch
from tests.native.waiting import wait_until

PROGRAM = Path(__file__).parent / "shim.py"


class StoppedShim:
    """A shim that watches *cgroup*, and that does not run from before its *command* begins until :meth:`go_on`.

    *changes* is the file whose change wakes it beside memory.events, *told* where its reader's words go.
    """

    def __init__(
        self,
        cgroup: Path,
        changes: Path,
        told: Path,
        command: Sequence[str | Path],
        env: Mapping[str, str],
        enter: Callable[[], None] | None = None,
    ) -> None:
        self.told = told
        self._freezes = watch(f"{cgroup}/cgroup.freeze")
        self._woken = False
        argv = [sys.executable, "-B", PROGRAM, cgroup, changes, told, *command]
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(argv, stdin=pipe, stdout=pipe, stderr=pipe, text=True, env=env, preexec_fn=enter)
        assert self.process.stdout and self.process.stdout.readline() == "watches\n"
        self.process.send_signal(signal.SIGSTOP)
        wait_until(lambda: self._letter() == "T")

    def _letter(self) -> str:
        found = stat(self.process.pid)
        return found[0] if found else ""

    def is_waited_for(self) -> bool:
        """Start the command; whether it has woken the shim, and then waits: it has slept some times since, and not ended."""
        assert self.process.stdin
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        wait_until(lambda: self._has_been_woken() or not self.runs_command())
        before = self._sleeps()
        wait_until(lambda: self._sleeps() >= before + 20 or not self.runs_command())
        return self.runs_command()

    def _has_been_woken(self) -> bool:
        """Whether cgroup.freeze has been written to; that it has been removed is an event as well (IN_IGNORED)."""
        self._woken |= any(mask & IN_MODIFY for mask in masks(self._freezes))
        return self._woken

    def _sleeps(self) -> int:
        """How often what it has called has slept (proc_pid_status(5), voluntary_ctxt_switches)."""
        count = 0
        for pid in self._children():
            with contextlib.suppress(OSError):  # it has ended
                fields = Path(f"/proc/{pid}/status").read_text().split()
                count += int(fields[fields.index("voluntary_ctxt_switches:") + 1])
        return count

    def _children(self) -> list[int]:
        return [int(pid) for pid in Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()]

    def runs_command(self) -> bool:
        """Whether what it has called has not ended; the shim, which is stopped, cannot have reaped it."""
        letters = [found[0] for found in map(stat, self._children()) if found]
        return any(letter != "Z" for letter in letters)

    def go_on(self) -> tuple[int, str, list[str]]:
        """(exit code of the command, what it has said, what the reader has told)."""
        self.process.send_signal(signal.SIGCONT)
        out, err = self.process.communicate(timeout=60)
        return self.process.returncode, out + err, self.told.read_text().splitlines()

    def close(self) -> None:
        os.close(self._freezes)
        if self.process.poll() is None:
            os.kill(self.process.pid, signal.SIGKILL)
            self.process.wait()
