"""exec's two processes, between their interpreter's start and execve(2) of the user's program.

The first starts outside the container, in the caller's cgroup: what its interpreter takes of memory is not the container's.
It imports all that is needed, enters the namespaces of the container's init and clones the second straight into the
container's cgroup and pid namespace, as a child of the caller.  Only the second is ever seen from inside the container, and
by then it has the container's root and namespaces.  What the kernel ties to the cgroup it clones into (user and cgroup
namespace) the second enters itself.
"""

from __future__ import annotations

import posix
import sys
from errno import EBUSY, ENODEV, ENOENT, EOPNOTSUPP

from gpurun.engine import sync
from gpurun.engine.become import become_process, environment, execute, notify_first, null_stdio, open_proc, write_proc
from gpurun.engine.process import ProcessPlan
from gpurun.errors import GpurunError, StepError, oserror_text
from gpurun.launcher.child import end_imports
from gpurun.linux import process as lp
from gpurun.linux import sched
from gpurun.linux.files import O_CLOEXEC
from gpurun.linux.fs import O_DIRECTORY, O_PATH
from gpurun.linux.keyring import join_session_keyring
from gpurun.record import Record, from_wire

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NoReturn

_NEW_LISTENER = 8  # SECCOMP_FILTER_FLAG_NEW_LISTENER


class ExecPlan(Record):
    """What exec's process does; it is sent to it as it stands.  *namespaces*: CLONE_NEW* flags of those to join."""

    id: str
    process: ProcessPlan
    namespaces: int
    rootfs: str  # where the container has no mount namespace of its own: what its root is
    session_keyring: bool
    preserve_fds: int = 0
    affinity: tuple[bytes, bytes] = (b"", b"")  # CPU masks before and after the cgroup is entered


class ExecDescriptors(Record):
    """Open files that come with the plan; -1 for none.  *cgroup* is where the process goes, or else to *other_cgroup*."""

    channel: int  # the socket they came by
    init: int  # pidfd of the container's init
    cgroup: int = -1
    other_cgroup: int = -1
    console: int = -1  # the socket that takes the terminal's master


def main() -> NoReturn:
    """Entry point of the child interpreter: ``argv[1]`` is the descriptor of the socket."""
    lp.prctl(lp.PR_SET_DUMPABLE, 0)
    channel = int(sys.argv[1])
    posix.set_inheritable(channel, False)
    try:
        _run(channel)
    except BaseException as e:  # nothing may leave here but by _exit: the parent tells the error
        if isinstance(e, OSError):
            text = oserror_text(e)
        else:
            text = str(e) if isinstance(e, GpurunError) else f"{type(e).__name__}: {e}"
        try:
            sync.send(channel, "failed", text)
        except OSError:
            posix.write(2, f"gpurun exec: {text}\n".encode("utf-8", "replace"))
    posix._exit(1)


def _run(channel: int) -> None:
    received = sync.receive_files(channel)
    if received is None:
        posix._exit(1)  # the parent has refused what it was asked for, and told why
    (_, wire, names), files = received
    if len(names) != len(files):
        raise GpurunError(f"{len(names)} files were sent, {len(files)} came: the limit RLIMIT_NOFILE is too low")
    plan: ExecPlan = from_wire(wire)
    fds = ExecDescriptors(channel, **dict(zip(names, files)))  # noqa: B905 - as many: looked at above
    posix.umask(0)
    proc_fd = open_proc()
    if plan.process.oom_score_adj is not None:
        write_proc(proc_fd, "self/oom_score_adj", str(plan.process.oom_score_adj))
    if plan.affinity[0]:
        sched.sched_setaffinity(plan.affinity[0])
    if not (plan.process.apparmor_profile or plan.process.selinux_label):
        posix.close(proc_fd)
        proc_fd = -1
    root_fd = posix.open(plan.rootfs, O_PATH | O_DIRECTORY | O_CLOEXEC) if plan.rootfs else -1
    _import_all(plan.process)
    own = plan.namespaces & (lp.CLONE_NEWUSER | lp.CLONE_NEWCGROUP)
    if posix.geteuid() != 0:
        # What a caller without privilege may join, it may by the user namespace only: all at once.  The cgroup namespace
        # waits all the same: from inside it the kernel lets nobody be born out of a cgroup that it does not show.
        own &= ~lp.CLONE_NEWUSER
    _join(fds.init, plan.namespaces & ~own)
    if plan.namespaces & ~own & lp.CLONE_NEWUSER:
        _become_root()
    pid = _clone(fds)
    if pid:
        sync.send(channel, "child", pid)
        posix._exit(0)
    # From here on the container's processes can see us, and a privileged one what we have open: no door to the host's
    # tree longer than must be.
    for fd in (fds.cgroup, fds.other_cgroup):
        if fd >= 0:
            posix.close(fd)
    _join(fds.init, own)
    posix.close(fds.init)
    if own & lp.CLONE_NEWUSER:
        _become_root()
    _become(plan, fds, proc_fd, root_fd)


def _import_all(process: ProcessPlan) -> None:
    """Import what the rest of the road needs, then take away the means to."""
    if process.terminal:
        import gpurun.engine.terminal  # noqa: F401
    if process.knobs is not None:
        import gpurun.engine.knobs  # noqa: F401
    if process.apparmor_profile or process.selinux_label:
        import gpurun.security.lsm  # noqa: F401
    if process.seccomp is not None:
        import gpurun.linux.seccomp  # noqa: F401
    end_imports()


def _become_root() -> None:
    """Take the ids of the root of the user namespace that was joined."""
    posix.setresgid(0, 0, 0)
    posix.setresuid(0, 0, 0)


def _join(init: int, namespaces: int) -> None:
    """Enter these namespaces of the container's init, all at once or none (setns(2) with a pidfd)."""
    if not namespaces:
        return
    try:
        lp.setns(init, namespaces)
    except ProcessLookupError:
        raise GpurunError("cannot exec in a stopped container") from None
    except OSError as e:
        raise StepError("join the namespaces of", "the container's init", e.errno) from None


def _clone(fds: ExecDescriptors) -> int:
    """The second process, born in the container's cgroup, a child of our parent: its pid, or 0 in it.

    Where the container has made cgroups of its own for its processes (as systemd does), its own can take none: then the
    cgroup that its init is in now takes this one too.
    """
    try:
        if fds.cgroup >= 0:
            try:
                return lp.clone3(lp.CLONE_PARENT, fds.cgroup)[0]
            except OSError as e:
                if fds.other_cgroup < 0 or e.errno not in (EBUSY, ENOENT, ENODEV, EOPNOTSUPP):
                    raise
        return lp.clone3(lp.CLONE_PARENT, fds.other_cgroup)[0]
    except OSError as e:
        raise StepError("start a process in", "the container's cgroup", e.errno) from None


def _become(plan: ExecPlan, fds: ExecDescriptors, proc_fd: int, root_fd: int) -> None:
    process = plan.process
    posix.setsid()
    if plan.affinity[1]:
        sched.sched_setaffinity(plan.affinity[1])
    else:
        sched.reset_affinity()
    if plan.session_keyring:
        join_session_keyring(f"_ses.{plan.id}")
    if root_fd >= 0:
        posix.fchdir(root_fd)
        posix.chroot(".")
        posix.close(root_fd)
    posix.chdir("/")
    root_fd = posix.open("/", O_PATH | O_DIRECTORY | O_CLOEXEC)
    null_stdio(root_fd)
    if process.terminal:
        from gpurun.engine import terminal  # imported before the host's tree was left

        master, peer = terminal.open_pty(root_fd, proc_fd, process.console_size)
        terminal.send_master(fds.console, master)
        terminal.take_terminal(peer)
    if process.apparmor_profile or process.selinux_label:
        from gpurun.security.lsm import apply_labels  # imported before the host's tree was left

        apply_labels(proc_fd, process.apparmor_profile, process.selinux_label)
    if proc_fd >= 0:
        posix.close(proc_fd)
    posix.umask(process.umask)
    env = environment(process, root_fd)
    posix.close(root_fd)
    if process.no_new_privileges:
        lp.prctl(lp.PR_SET_NO_NEW_PRIVS, 1)
    if process.knobs is not None:
        from gpurun.engine.knobs import apply_knobs  # imported before the host's tree was left

        apply_knobs(process.knobs)
    sync.send(fds.channel, "ready")
    _expect_go(fds)
    path = become_process(process, env)
    if process.seccomp is not None and process.seccomp[1] & _NEW_LISTENER:
        listener, become = notify_first(path, process.args, env, 3 + plan.preserve_fds, process.seccomp)
        sync.send(fds.channel, "created", listener)
        _expect_go(fds)
        become()
    sync.send(fds.channel, "created")
    _expect_go(fds)
    execute(path, process.args, env, 3 + plan.preserve_fds, process.seccomp)


def _expect_go(fds: ExecDescriptors) -> None:
    if sync.receive(fds.channel) != ("go",):
        posix._exit(1)  # the parent gave up (and has told why) or was killed
