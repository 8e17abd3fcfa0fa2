"""``criu swrk``: CRIU as a child of ours that takes requests from a socket (criu(8), images/rpc.proto)."""

from __future__ import annotations

import posix
from _socket import AF_UNIX, SOCK_CLOEXEC, SOCK_SEQPACKET, socket, socketpair
from fcntl import F_DUPFD_CLOEXEC, fcntl

from gpurun.cgroup.manager import add_process
from gpurun.criu import rpc
from gpurun.errors import GpurunError, Step, error_text
from gpurun.linux.files import mkdir_p
from gpurun.linux.fs import CLOSE_RANGE_CLOEXEC, close_range
from gpurun.linux.scm_rights import receive_with, send_with
from gpurun.ns.birth import clone_into

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import NoReturn

    #: Called at each of CRIU's stages with what it says and the descriptors that came with it, which are closed after.
    Notified = Callable[[rpc.Answer, tuple[int, ...]], None]

_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_SOCKET = 3
#: The first of the descriptors that CRIU is given beside its socket.
FIRST_EXTRA = 4
_MAX_ANSWER = 1 << 16  # bytes
_MAX_LOG = 64 << 20  # bytes
_MAX_PASSED = 8  # descriptors beside one message


def find_criu() -> str:
    """The path of criu, from $PATH (many callers have none: then from the usual places); raises :class:`GpurunError`."""
    places = posix.environ.get(b"PATH", b"").decode("utf-8", "surrogateescape") or _PATH
    for directory in places.split(":"):
        path = f"{directory}/criu"
        if directory.startswith("/") and posix.access(path, posix.X_OK):
            return path
    raise GpurunError(f"checkpoint and restore need CRIU, and there is no criu in {places}: install it (criu.org)")


class Swrk:
    """One CRIU, for one request.

    It is born in the cgroup *cgroup_fd*, and *before_exec* runs in it.  It has our standard streams; from
    :data:`FIRST_EXTRA` on it has the descriptors *extra*, and then *directories*, opened in its own mount namespace: CRIU
    looks up the descriptors of a request in the process that has made the socket, so it makes the socket itself.
    """

    def __init__(
        self,
        path: str,
        directories: tuple[str, ...] = (),
        cgroup_fd: int = -1,
        extra: tuple[int, ...] = (),
        before_exec: Callable[[], None] | None = None,
    ) -> None:
        receive, send = socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC)

        def move(pid: int, dead: int) -> None:
            posix.waitpid(dead, 0)
            add_process(cgroup_fd, pid)

        self.pid, pidfd = clone_into(0, cgroup_fd, move)
        if self.pid == 0:
            _become(path, send, extra, directories, before_exec)
        send.close()
        posix.close(pidfd)
        said, passed = _receive(receive)
        receive.close()
        if not passed:
            posix.waitpid(self.pid, 0)
            raise GpurunError(f"cannot run {path}: {said.decode('utf-8', 'replace') or 'it ended at once'}")
        self._ours = socket(AF_UNIX, SOCK_SEQPACKET, 0, passed[0])

    def converse(self, request: bytes, notified: Notified) -> rpc.Answer:
        """Send *request*, call *notified* at each notification, and return the last answer, a success or not.

        What *notified* raises is raised here; CRIU then finds the socket closed (:meth:`end`) and gives up, undoing all.
        Raises :class:`GpurunError` when CRIU ends without an answer.
        """
        self._send(request)
        while True:
            data, passed = _receive(self._ours)
            if not data:
                raise GpurunError("criu ended without an answer")
            answer = rpc.answer(data)
            try:
                if answer.kind != rpc.NOTIFY or not answer.success:
                    return answer
                notified(answer, passed)
            finally:
                for fd in passed:
                    posix.close(fd)
            self._send(rpc.acknowledge())

    def _send(self, data: bytes) -> None:
        try:
            self._ours.send(data)
        except BrokenPipeError:
            pass  # it has ended; reading says so

    def end(self) -> int:
        """Hang up and wait for CRIU to end; its exit code."""
        self._ours.close()
        return posix.waitstatus_to_exitcode(posix.waitpid(self.pid, 0)[1])


def _receive(s: socket) -> tuple[bytes, tuple[int, ...]]:
    try:
        data, passed = receive_with(s, _MAX_ANSWER, _MAX_PASSED)
    except ConnectionResetError:
        return b"", ()
    return data, tuple(passed)


def _become(
    path: str, parent: socket, extra: tuple[int, ...], directories: tuple[str, ...], before_exec: Callable[[], None] | None
) -> NoReturn:
    """Become CRIU, once *parent* has been sent the other end of its socket, or what went wrong."""
    try:
        if before_exec is not None:
            before_exec()
        theirs, ours = socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC)
        opened = [posix.open(directory, posix.O_RDONLY | posix.O_DIRECTORY | posix.O_CLOEXEC) for directory in directories]
        # First out of the way, then to their places: they may be in each other's.
        wanted = (ours.fileno(), *extra, *opened)
        moved = [fcntl(fd, F_DUPFD_CLOEXEC, _SOCKET + len(wanted)) for fd in wanted]
        send_with(parent, b".", (theirs.fileno(),))
        close_range(_SOCKET, flags=CLOSE_RANGE_CLOEXEC)
        for place, fd in enumerate(moved, _SOCKET):
            posix.dup2(fd, place, True)
        posix.umask(0o022)  # the images are distinguished from others by their directory; restored processes must read them
        env = {b"PATH": posix.environ.get(b"PATH") or _PATH.encode()}
        posix.execve(path, ["criu", "swrk", str(_SOCKET)], env)
    except BaseException as e:  # whatever it is, this copy of the caller must not go on as the caller
        parent.send(error_text(e).encode("utf-8", "replace"))
    posix._exit(127)


def make_directory(path: str) -> None:
    """Make the directory *path* (absolute) for CRIU to work in, with mode 0700, unless it is there."""
    with Step("make the directory", path):
        mkdir_p(path, 0o700)  # it may be there: a container can be saved again and again
        posix.stat(f"{path}/")


def reasons(log: str) -> str:
    """The errors in CRIU's log file *log*, in one line; "" if there are none."""
    from gpurun.linux.files import read_file

    try:
        lines = read_file(log, _MAX_LOG).decode("utf-8", "replace").splitlines()
    except OSError:
        return ""
    said = [line.partition("): ")[2] or line for line in lines if "Error (" in line]
    # The limits of CRIU itself, which go on as they are, and that it failed, which we say ourselves.
    telling = [text for text in said if not text.startswith(("rlimit:", "Dumping FAILED", "Restoring FAILED"))]
    return "; ".join(dict.fromkeys(telling[:3]))
