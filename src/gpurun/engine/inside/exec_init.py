"""exec's processes, between their birth and execve(2) of the user's program.

The **starter** (exec_starter.py) is there only where the caller's interpreter is not sealed, or where systemd must let it
into the container's cgroup.  It clones the setter straight into the container's cgroup, as a child of the caller.  Else the
caller does that itself (engine/clone/setter.py).

The **setter** enters the namespaces of the container's init, but for the pid namespace, in which it only will make its
child: no process in the container sees it.  It makes the terminal, takes the labels, the user and the capabilities, closes
what it has open of the host, and clones the process.

The **process** is the only one that those in the container see.  With CAP_SYS_PTRACE they can trace it from its first
moment, in any runtime; here they gain nothing by that: it has been born with what the user's program will have, and no more.
(But for CAP_SYS_ADMIN, where there is a filter that does not let it wait, and no no_new_privs: installing it takes that.)
"""

from __future__ import annotations

import posix

from gpurun.engine import messages
from gpurun.engine.inside.enter_process import (
    become_process,
    close_listener,
    environment,
    execute,
    fail,
    filtered_early,
    notify_first,
    null_stdio,
    open_proc,
)
from gpurun.engine.plan.records import ExecPlan, ProcessPlan
from gpurun.errors import GpurunError, Step, StepError
from gpurun.linux import process as lp
from gpurun.linux import sched
from gpurun.linux.files import O_CLOEXEC
from gpurun.linux.fs import O_DIRECTORY, O_PATH
from gpurun.linux.process import join_session_keyring
from gpurun.ns.birth import CANNOT_TAKE, clone_into
from gpurun.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import NoReturn

_NEW_LISTENER = 8  # SECCOMP_FILTER_FLAG_NEW_LISTENER


class ExecDescriptors(Record):
    """Open files that come with the plan; -1 for none.  *cgroup* is where the process goes, or else to *other_cgroup*."""

    channel: int  # the socket they came by
    init: int  # pidfd of the container's init
    cgroup: int = -1
    other_cgroup: int = -1
    console: int = -1  # the socket that takes the terminal's master


class Setter(Record):
    """What the setter begins with: *proc_fd* is the host's /proc, *root_fd* the rootfs that it is to come to or -1, *late*
    are the namespaces that it enters after its birth (CLONE_NEW* flags)."""

    plan: ExecPlan
    fds: ExecDescriptors
    proc_fd: int
    root_fd: int
    late: int


def open_host(plan: ExecPlan) -> tuple[int, int]:
    """(descriptor of the host's /proc, descriptor of the container's rootfs or -1), for :class:`Setter`."""
    return open_proc(), posix.open(plan.rootfs, O_PATH | O_DIRECTORY | O_CLOEXEC) if plan.rootfs else -1


def become_setter(setter: Setter) -> NoReturn:
    """The setter, born in the container's cgroup, and the process that it makes.  Never returns; what goes wrong the parent
    is told."""
    plan, fds = setter.plan, setter.fds
    try:
        lp.set_name("gpurun:[exec]")
        messages.expect_go(fds.channel)  # the parent accepts no message from a process that it does not know
        posix.umask(0)
        for fd in (fds.cgroup, fds.other_cgroup):
            if fd >= 0:
                posix.close(fd)
        join(fds.init, setter.late & ~(lp.CLONE_NEWPID | lp.CLONE_NEWUSER | lp.CLONE_NEWCGROUP))
        join(
            fds.init, setter.late & lp.CLONE_NEWPID
        )  # before: it may be the host's, which the user namespace's root cannot enter
        join(fds.init, setter.late & (lp.CLONE_NEWUSER | lp.CLONE_NEWCGROUP))
        posix.close(fds.init)
        if plan.namespaces & lp.CLONE_NEWUSER:  # not before: the cgroup may be the caller's, whose ids these are no more
            lp.become_root()
        env, path, peer = _set(plan, fds, setter.proc_fd, setter.root_fd)
        filtered = filtered_early(plan.process)
        _clone_process(fds, filtered)
        _become(plan, fds, env, path, peer, filtered)
    except BaseException as e:  # nothing may leave here but by _exit
        fail(fds.channel, "exec", e)


def import_all(process: ProcessPlan) -> None:
    """Import all that the setter and the process will need."""
    if process.terminal:
        import gpurun.engine.terminal  # noqa: F401
    if process.knobs is not None:
        import gpurun.engine.inside.scheduling  # noqa: F401
    if process.apparmor_profile or process.selinux_label:
        import gpurun.security.lsm  # noqa: F401
    if process.seccomp is not None:
        import gpurun.linux.seccomp  # noqa: F401


def join(init: int, namespaces: int) -> None:
    """Enter these namespaces of the container's init, all at once or none (setns(2) with a pidfd).

    Raises :class:`GpurunError` where the init has ended, :class:`StepError` for what the kernel refuses.
    """
    if not namespaces:
        return
    try:
        lp.setns(init, namespaces)
    except ProcessLookupError:
        raise GpurunError("cannot exec in a stopped container") from None
    except OSError as e:
        raise StepError("join the namespaces of", "the container's init", e.errno) from None


def clone_into_cgroup(fds: ExecDescriptors, relation: int, move: Callable[[str, int, int], None]) -> int:
    """A copy of this process in the container's cgroup, a sibling (*relation* CLONE_PARENT) or a child (0): its pid, or 0
    in it.

    Where the container has made cgroups of its own for its processes (as systemd does), its own can take none: then the
    cgroup that its init is in now takes this one too.  ``move(name, pid, dead)`` is what :func:`gpurun.ns.birth.clone_into`
    calls, *name* that of the descriptor.
    """

    def clone(name: str, cgroup: int) -> int:
        return clone_into(relation, cgroup, lambda pid, dead: move(name, pid, dead))[0]

    with Step("start a process in", "the container's cgroup"):
        if fds.cgroup >= 0:
            try:
                return clone("cgroup", fds.cgroup)
            except OSError as e:
                if fds.other_cgroup < 0 or e.errno not in CANNOT_TAKE:
                    raise
        return clone("other_cgroup", fds.other_cgroup)


def _set(plan: ExecPlan, fds: ExecDescriptors, proc_fd: int, root_fd: int) -> tuple[dict[str, str], str, int]:
    """All that takes privileges, which are gone afterwards, and all that is open of the host, which is closed: the
    environment, the path of the program, and the container's side of its terminal, or -1."""
    process = plan.process
    if plan.affinity[1]:
        sched.sched_setaffinity(plan.affinity[1])
    else:
        sched.reset_affinity()
    if plan.session_keyring:
        join_session_keyring(plan.session_keyring)
    if root_fd >= 0:
        posix.fchdir(root_fd)
        posix.chroot(".")
        posix.close(root_fd)
    posix.chdir("/")
    root_fd = posix.open("/", O_PATH | O_DIRECTORY | O_CLOEXEC)
    if plan.root is not None:
        _check_root(root_fd, plan.root)
    null_stdio(root_fd, proc_fd)
    peer = -1
    if process.terminal:
        from gpurun.engine import terminal  # imported before the host's tree was left

        master, peer = terminal.open_pty(root_fd, proc_fd, process.console_size)
        terminal.send_master(fds.console, master)
        for fd in (0, 1, 2):
            posix.dup2(peer, fd)
    if process.apparmor_profile or process.selinux_label:
        from gpurun.security.lsm import apply_labels  # imported before the host's tree was left

        apply_labels(proc_fd, process.apparmor_profile, process.selinux_label)
    posix.umask(process.umask)
    env = environment(process, root_fd, proc_fd)
    posix.close(proc_fd)
    posix.close(root_fd)
    if process.no_new_privileges:
        lp.prctl(lp.PR_SET_NO_NEW_PRIVS, 1)
    if process.knobs is not None:
        from gpurun.engine.inside.scheduling import apply_knobs  # imported before the host's tree was left

        apply_knobs(process.knobs, born_with=True)
    messages.report(fds.channel, "ready")
    messages.expect_go(fds.channel)
    path = become_process(process, env)
    lp.prctl(lp.PR_SET_DUMPABLE, 0)  # a change of the user has set it to what fs.suid_dumpable says
    return env, path, peer


def _check_root(root_fd: int, wanted: tuple[int, int]) -> None:
    """Raise :class:`GpurunError` where joining the mount namespace has led to another root than the init has.

    pivot_root(2) exchanges the root mount of the caller.  In a chroot that is the chroot's, and the mount namespace keeps
    the host's whole tree as its root, where setns(2) leads.
    """
    found = posix.fstat(root_fd)
    if (found.st_dev, found.st_ino) != wanted:
        raise GpurunError(
            "the root of the container's mount namespace is not the container's: "
            "it was made in a chroot, and exec would run in the host's tree: "
            "make the container outside of the chroot, or behind pivot_root(2)"
        )


def _clone_process(fds: ExecDescriptors, filtered: bool) -> None:
    """Return in the process; the setter ends."""
    with Step("start a process in", "the container's pid namespace"):
        if filtered:  # engines' profiles know no clone3, whose flags a filter cannot see
            pid = lp.clone(lp.CLONE_PARENT)
        else:
            pid, _ = lp.clone3(lp.CLONE_PARENT, pidfd=False)  # for which RLIMIT_NOFILE may leave no room
    if pid:
        messages.report(fds.channel, "child", pid)
        posix._exit(0)


def _become(plan: ExecPlan, fds: ExecDescriptors, env: dict[str, str], path: str, peer: int, filtered: bool) -> NoReturn:
    process = plan.process
    seccomp = None if filtered else process.seccomp
    messages.expect_go(fds.channel)
    for resource, soft, hard in process.rlimits:
        if resource == lp.RLIMIT_NPROC:  # only now: the setter would have counted as well
            lp.set_limit(0, resource, soft, hard)
    posix.setsid()
    if process.terminal:
        from gpurun.engine import terminal  # imported before the host's tree was left

        terminal.take_terminal(peer)
    if seccomp is not None and seccomp[1] & _NEW_LISTENER:
        listener, become = notify_first(path, process.args, env, plan.preserved, seccomp)
        messages.report(fds.channel, "created", listener)
        messages.expect_go(fds.channel)
        close_listener(listener, seccomp[1])
        become()
    messages.report(fds.channel, "created")
    messages.expect_go(fds.channel)
    execute(path, process.args, env, plan.preserved, seccomp)
