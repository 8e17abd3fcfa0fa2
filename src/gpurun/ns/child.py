"""A process for one task in other namespaces: the caller itself never leaves its own.

The task runs in a copy of this interpreter that no fork handler has seen; it imports nothing and is gone when the call
returns.
"""

from __future__ import annotations

import posix

from gpurun.errors import GpurunError, oserror_text
from gpurun.linux.files import O_CLOEXEC, read_fd
from gpurun.linux.process import clone3

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable


def run_in_child(task: Callable[[], None]) -> None:
    """Run *task* in a child and wait for it; raises :class:`GpurunError` with the text of what it raised."""
    receive, send = posix.pipe2(O_CLOEXEC)
    pid, pidfd = clone3(0)
    if pid == 0:
        try:
            task()
            posix.write(send, b"+")
        except BaseException as e:  # whatever it is, this copy must not go on as the caller
            text = oserror_text(e) if isinstance(e, OSError) else str(e)
            posix.write(send, b"-" + text.encode("utf-8", "replace"))
        posix._exit(0)
    posix.close(send)
    posix.close(pidfd)
    try:
        answer = read_fd(receive)
    finally:
        posix.close(receive)
        posix.waitpid(pid, 0)
    if answer[:1] != b"+":
        raise GpurunError(answer[1:].decode("utf-8", "replace") or "a helper process ended without a word")
