"""The starter, in which create's init and exec's process begin, run from a sealed executable.

What runs next to a container's code must not be the host's writable interpreter (CVE-2019-5736: overwritten through
/proc/self/exe).  Nor does it hold the caller's memory.  Where the caller's own interpreter is sealed, most containers need
no starter (engine/clone/).
"""

from __future__ import annotations

import posix
from errno import EACCES, EINVAL, ENOSYS, EPERM
from fcntl import fcntl

from gpurun.engine.caller.children import kill_child, kill_children
from gpurun.engine.caller.rollback import PROCESSES
from gpurun.engine.messages import channel, check_child, hang_up, receive_report, send
from gpurun.errors import GpurunError, Step, StepError
from gpurun.launcher.fresh_interpreter import Child, child_command
from gpurun.linux import mount as lm
from gpurun.linux.files import Fd
from gpurun.linux.fs import CLOSE_RANGE_CLOEXEC, close_range
from gpurun.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from gpurun.engine.caller.rollback import Rollback

_MFD_CLOEXEC, _MFD_ALLOW_SEALING, _MFD_EXEC = 1, 2, 0x10
_F_ADD_SEALS = 1033
_F_SEAL_SEAL, _F_SEAL_SHRINK, _F_SEAL_GROW, _F_SEAL_WRITE = 1, 2, 4, 8


class SealedChild(Record):
    """How to start it: *executable* is a descriptor of the sealed interpreter, the caller's to close."""

    command: Child
    executable: int


def sealed_child(entry: str) -> SealedChild:
    """A child that will call *entry* (``module:function``).

    The container sees its interpreter as a read-only mount of only that file, through which nothing can be written.
    Where we may make no mounts (a user namespace in the host's mount namespace, a seccomp filter) it is a sealed copy in
    memory instead.
    """
    command = child_command(entry)
    with Step("seal the interpreter", command.executable):
        fd = -1
        try:
            fd = lm.open_tree_path(command.executable, recursive=False)
            lm.mount_setattr(fd, lm.MOUNT_ATTR_RDONLY, propagation=lm.MS_PRIVATE)
        except OSError as e:
            if fd >= 0:
                posix.close(fd)
            if e.errno not in (EPERM, EACCES, ENOSYS):
                raise
            return SealedChild(command, _sealed_copy(command.executable))
    return SealedChild(command, fd)


def _sealed_copy(path: str) -> int:
    """A memfd with the content of *path* that can no longer be changed (memfd_create(2), F_ADD_SEALS); 6 ms, 7 MiB."""
    try:
        made = posix.memfd_create("gpurun", _MFD_CLOEXEC | _MFD_ALLOW_SEALING | _MFD_EXEC)
    except OSError as e:
        if e.errno != EINVAL:
            raise
        made = posix.memfd_create("gpurun", _MFD_CLOEXEC | _MFD_ALLOW_SEALING)  # before Linux 6.3
    with Fd(posix.open(path, posix.O_RDONLY | posix.O_CLOEXEC)) as source:
        while posix.sendfile(made, source, None, 1 << 30):
            pass
    fcntl(made, _F_ADD_SEALS, _F_SEAL_SEAL | _F_SEAL_SHRINK | _F_SEAL_GROW | _F_SEAL_WRITE)
    return made


class Started(Record):
    """A child that runs and waits for instructions: *pid*, and our end of the Unix socket between us."""

    pid: int
    channel: int


def start_child(entry: str, preserved: tuple[int, ...] = ()) -> Started:
    """Start a sealed child that calls *entry*, in our own namespaces and cgroup; ``sys.argv[1]`` is its end of the socket.

    It gets 0 to 2, the descriptors *preserved*, and no other of the caller's.  It touches nothing before it is
    told: it is started first of all, and reads its modules while we read ours and find out what there is to do.
    """
    child = sealed_child(entry)
    ours, its = channel()
    close_range(3, flags=CLOSE_RANGE_CLOEXEC)
    kept = [its, *([] if child.command.fd is None else [child.command.fd])]
    for fd in (*kept, *preserved):
        posix.set_inheritable(fd, True)
    try:
        pid = _spawn(child, (*child.command.argv, str(its)))
    finally:
        for fd in kept:
            posix.set_inheritable(fd, False)
        posix.close(its)
        posix.close(child.executable)
    return Started(pid, ours)


def _spawn(child: SealedChild, argv: tuple[str, ...]) -> int:
    """Start *child* without a copy of our memory, as vfork(2) does it, from its descriptor; its pid."""
    try:
        return posix.posix_spawn(f"/proc/self/fd/{child.executable}", argv, {})
    except OSError as e:
        if e.errno == EPERM:  # of a C library that asks for clone3(2) only, where a filter refuses that
            return _fork(child, argv)
        if e.errno != EACCES:
            raise StepError("start", child.command.executable, e.errno) from None
    # AppArmor calls a file that is mounted by itself "/", which few profiles of a caller let it execute; a copy has a name.
    try:
        with Fd(_sealed_copy(child.command.executable)) as copy:
            return posix.posix_spawn(f"/proc/self/fd/{copy}", argv, {})
    except OSError as e:
        raise StepError("start", child.command.executable, e.errno) from None


def _fork(child: SealedChild, argv: tuple[str, ...]) -> int:
    """As :func:`_spawn`, by fork(2); a child that cannot be executed ends without a word."""
    pid = posix.fork()
    if pid == 0:
        try:
            posix.execve(f"/proc/self/fd/{child.executable}", argv, {})
        finally:
            posix._exit(127)
    return pid


def tell(started: Started, *message: object) -> None:
    """Send the waiting starter something ahead of the plan (:mod:`gpurun.engine.messages`)."""
    try:
        send(started.channel, *message)
    except BrokenPipeError:
        hang_up(started.channel)  # it has ended; its last message, if any, says why


def await_init(started: Started, rollback: Rollback) -> tuple[int, tuple[int, ...]]:
    """The pid of the init, once it is in its namespaces, and those of our children that have done their part.

    *rollback* gets the step that ends what was made.  Raises :class:`GpurunError` with what the starter tells.  Returns
    (pid, pids).
    """
    made: list[int] = []
    rollback.add(PROCESSES, lambda: kill_children(made))
    while True:
        said = receive_report(started.channel, (started.pid, *made))
        if said is None:
            raise GpurunError("the process that makes the container's init ended without an answer")
        if said.word == "failed":
            raise GpurunError(said.text)
        if said.word not in ("child", "spawned") or said.sender != started.pid:
            raise GpurunError(f'the process that makes the container\'s init sent "{said.word}", which it must not send')
        pid = check_child(said.numbers[0])
        if said.word == "spawned":
            return pid, (started.pid, *[other for other in made if other != pid])
        made.append(pid)


def dismiss(started: Started) -> None:
    """End what :func:`start_child` has started, and what that made without our having heard of it; reap all."""
    hang_up(started.channel)
    try:
        posix.waitpid(started.pid, 0)  # it ends by itself: having done its part, or for want of a plan
    except ChildProcessError:
        pass  # reaped before
    posix.set_blocking(started.channel, False)
    try:
        while True:
            said = receive_report(started.channel, None)
            if said is None:
                break
            if said.word == "child":
                kill_child(said.numbers[0])
    except BlockingIOError:
        pass  # all that was said before the first child ended has been read
    except GpurunError:
        pass  # nothing that any of them says
    posix.close(started.channel)
