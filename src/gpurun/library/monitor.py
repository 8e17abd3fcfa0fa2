"""The process beside a container that a program has made: the parent of its init, which learns how it ended.

``python -ISBc … gpurun.library.monitor:main PID_FILE CREATED COMMAND…`` runs COMMAND (a ``create`` that writes PID_FILE),
writes one byte into the descriptor CREATED when that has succeeded, waits for the init and exits as it did: with its exit
status, or 128 and the number of the signal that ended it.  Where COMMAND fails it exits with :data:`FAILED`, silently.

create's init becomes a child of the nearest subreaper above (prctl(2), PR_SET_CHILD_SUBREAPER), which is why the program
itself cannot wait for it without a change to the program.
"""

from __future__ import annotations

import posix
import sys

from gpurun.linux.files import O_CLOEXEC, read_file
from gpurun.linux.process import PR_SET_CHILD_SUBREAPER, prctl

FAILED = 125


def main() -> int:
    """Entry point of the process; returns its exit code."""
    pid_file, created, *command = sys.argv[1:]
    prctl(PR_SET_CHILD_SUBREAPER, 1)
    posix.set_inheritable(int(created), False)
    runtime = posix.posix_spawn(command[0], command, posix.environ)
    if posix.waitstatus_to_exitcode(posix.waitpid(runtime, 0)[1]):
        return FAILED
    init = int(read_file(pid_file, 32))
    # Only the container holds its streams from now on: a reader sees their end when it has ended.
    null = posix.open("/dev/null", posix.O_RDWR | O_CLOEXEC)
    for fd in (0, 1, 2):
        posix.dup2(null, fd)
    posix.write(int(created), b"1")
    while True:
        pid, status = posix.waitpid(-1, 0)
        if pid == init:
            code = posix.waitstatus_to_exitcode(status)
            return 128 - code if code < 0 else code
