"""The fresh interpreter that create's init and exec's process begin in, run from a sealed executable.

What runs next to a container's code must not be the host's writable interpreter (CVE-2019-5736: overwritten through
/proc/self/exe), nor hold the caller's memory.
"""

from __future__ import annotations

import posix
from errno import EINVAL
from fcntl import fcntl

from gpurun.errors import GpurunError, StepError
from gpurun.launcher.child import Child, child_command
from gpurun.linux import mount as lm
from gpurun.linux import process as lp
from gpurun.linux.fs import CLOSE_RANGE_CLOEXEC, close_range
from gpurun.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable


_MFD_CLOEXEC, _MFD_ALLOW_SEALING, _MFD_EXEC = 1, 2, 0x10
_F_ADD_SEALS = 1033
_F_SEAL_SEAL, _F_SEAL_SHRINK, _F_SEAL_GROW, _F_SEAL_WRITE = 1, 2, 4, 8


class SealedChild(Record):
    """How to start it: *executable* is a descriptor of the sealed interpreter, the caller's to close."""

    command: Child
    executable: int


def sealed_child(entry: str) -> SealedChild:
    """A child that will call *entry* (``module:function``).

    The container sees its interpreter as a read-only mount of that file alone, through which nothing can be written.
    Where we may make no mounts (a user namespace in the host's mount namespace) it is a sealed copy in memory instead.
    """
    command = child_command(entry)
    try:
        try:
            fd = lm.open_tree_path(command.executable, recursive=False)
        except PermissionError:
            return SealedChild(command, _sealed_copy(command.executable))
        lm.mount_setattr(fd, lm.MOUNT_ATTR_RDONLY)
    except OSError as e:
        raise StepError("seal the interpreter", command.executable, e.errno) from None
    return SealedChild(command, fd)


def _sealed_copy(path: str) -> int:
    """A memfd with the content of *path* that nobody can change any more (memfd_create(2), F_ADD_SEALS); 6 ms, 7 MiB."""
    try:
        made = posix.memfd_create("gpurun", _MFD_CLOEXEC | _MFD_ALLOW_SEALING | _MFD_EXEC)
    except OSError as e:
        if e.errno != EINVAL:
            raise
        made = posix.memfd_create("gpurun", _MFD_CLOEXEC | _MFD_ALLOW_SEALING)  # before Linux 6.3
    source = posix.open(path, posix.O_RDONLY | posix.O_CLOEXEC)
    try:
        while posix.sendfile(made, source, None, 1 << 30):
            pass
    finally:
        posix.close(source)
    fcntl(made, _F_ADD_SEALS, _F_SEAL_SEAL | _F_SEAL_SHRINK | _F_SEAL_GROW | _F_SEAL_WRITE)
    return made


class Started(Record):
    """A child that runs and waits to be told what to do: *pid*, and our end of the Unix socket between us."""

    pid: int
    channel: int


def start_child(entry: str, preserve_fds: int = 0) -> Started:
    """Start a sealed child that calls *entry*, in our own namespaces and cgroup; ``sys.argv[1]`` is its end of the socket.

    It gets 0 to 2, the *preserve_fds* descriptors from 3 on, and no other of the caller's.  It touches nothing before it is
    told: it is started first of all, and reads its modules while we read ours and find out what there is to do.
    """
    from _socket import AF_UNIX, SOCK_CLOEXEC, SOCK_STREAM, socketpair

    child = sealed_child(entry)
    ours, its = socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC)
    close_range(3, flags=CLOSE_RANGE_CLOEXEC)
    kept = [its.fileno(), *([] if child.command.fd is None else [child.command.fd])]
    for fd in (*kept, *range(3, 3 + preserve_fds)):
        posix.set_inheritable(fd, True)
    try:
        # Started without a copy of our memory, as vfork(2) does it; from the descriptor, whose mount is read-only.
        command = (*child.command.argv, str(its.fileno()))
        pid = posix.posix_spawn(f"/proc/self/fd/{child.executable}", command, {})
    except OSError as e:
        raise StepError("start", child.command.executable, e.errno) from None
    finally:
        for fd in kept:
            posix.set_inheritable(fd, False)
        its.close()
        posix.close(child.executable)
    return Started(pid, ours.detach())


def exec_child(child: SealedChild, arguments: tuple[str, ...], keep: Iterable[int]) -> None:
    """Become the child: it gets *arguments*, the descriptors *keep* (negative ones are none) and 0 to 2, and no other."""
    close_range(3, flags=CLOSE_RANGE_CLOEXEC)
    for fd in keep:
        if fd >= 0:
            posix.set_inheritable(fd, True)
    if child.command.fd is not None:
        posix.set_inheritable(child.command.fd, True)
    lp.execveat(child.executable, (*child.command.argv, *arguments), ())


def check_preserved_fds(count: int) -> None:
    """Raise :class:`GpurunError` unless the caller has given us the *count* descriptors from 3 on, for a process to inherit.

    One that is open but closed on exec is not the caller's: it is ours, and must not get into a container.
    """
    for fd in range(3, 3 + count):
        try:
            given = posix.get_inheritable(fd)
        except OSError:
            given = False
        if not given:
            raise GpurunError(f"unable to stat preserved-fd {fd - 3} (of {count}): descriptor {fd} is not open")
