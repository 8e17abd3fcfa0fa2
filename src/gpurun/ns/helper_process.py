"""A process for one task in other namespaces: the caller itself never leaves its own.

The task runs in a copy of this interpreter; it imports nothing and is gone when the call returns.  fork(2) makes it, and not
a clone3(2) of our own: the caller may be a program with threads (the library, a test), and where another thread held the
interpreter's lock at that moment, a child of which the interpreter knows nothing would wait for it for ever.
"""

from __future__ import annotations

import posix

from gpurun.errors import GpurunError, error_text
from gpurun.linux.files import O_CLOEXEC, Fd, read_fd, write_all
from gpurun.linux.process import CLONE_NEWNS, CLONE_NEWUSER, setns

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

_MAX_ANSWER = 16 << 20  # bytes: the mount points of a config of the largest size


def run_in_child(task: Callable[[], None]) -> None:
    """Run *task* in a child and wait for it; raises :class:`GpurunError` with the text of what it raised."""

    def without_answer() -> bytes:
        task()
        return b""

    ask_child(without_answer)


def ask_child(task: Callable[[], bytes]) -> bytes:
    """What *task* returns, run in a child; raises :class:`GpurunError` with the text of what it raised."""
    receive, send = posix.pipe2(O_CLOEXEC)
    pid = posix.fork()
    if pid == 0:
        try:
            write_all(send, b"+" + task())
        except BaseException as e:  # whatever it is, this copy must not go on as the caller
            write_all(send, b"-" + error_text(e).encode("utf-8", "surrogateescape"))
        finally:
            posix._exit(0)
    posix.close(send)
    try:
        with Fd(receive):
            answer = read_fd(receive, _MAX_ANSWER)
    finally:
        code = posix.waitstatus_to_exitcode(posix.waitpid(pid, 0)[1])
    if answer[:1] != b"+":
        how = f"was killed by signal {-code}" if code < 0 else f"ended with status {code}"
        raise GpurunError(answer[1:].decode("utf-8", "surrogateescape") or f"a helper process {how}")
    return answer[1:]


def join_container(mount_fd: int, user_fd: int = -1, as_its_root: Callable[[], None] | None = None) -> None:
    """Go into the mount namespace *mount_fd* of a container, for ever; as root of its user namespace *user_fd*, if any, so
    that what is made belongs to the container.  *as_its_root* is called between the two.  Raises OSError."""
    if user_fd >= 0:
        setns(user_fd, CLONE_NEWUSER)
        if as_its_root is not None:
            as_its_root()
    setns(mount_fd, CLONE_NEWNS)
    if user_fd >= 0:
        posix.setgroups([])
        posix.setresgid(0, 0, 0)
        posix.setresuid(0, 0, 0)
