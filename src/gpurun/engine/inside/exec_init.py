"""exec's three processes, between their interpreter's start and execve(2) of the user's program.

The **starter** begins outside the container, in the caller's cgroup: what its interpreter takes of memory is not the
container's.  It imports all that is needed, enters namespaces of the container's init and clones the setter straight into
the container's cgroup, as a child of the caller.

The **setter** enters the other namespaces (user and cgroup namespace the kernel ties to the cgroup that one is in), but for
the pid namespace, in which it only will make its child: nobody in the container sees it.  It makes the terminal, takes the
labels, the user and the capabilities, closes what it has open of the host, and clones the process.

The **process** is the only one that those in the container see.  With CAP_SYS_PTRACE they can trace it from its first
moment, in any runtime; here they gain nothing by that: it has been born with what the user's program will have, and no more.
(But for CAP_SYS_ADMIN, where there is a filter that does not let it wait, and no no_new_privs: installing it takes that.)
"""

from __future__ import annotations

import posix
import sys
from errno import EBUSY, ENODEV, ENOENT, EOPNOTSUPP

from gpurun.engine import messages
from gpurun.engine.inside.enter_process import (
    become_process,
    close_listener,
    environment,
    execute,
    filtered_early,
    notify_first,
    null_stdio,
    open_proc,
    set_oom_score_adj,
)
from gpurun.engine.plan.records import ProcessPlan
from gpurun.errors import GpurunError, Step, StepError, error_text, escaped
from gpurun.launcher.fresh_interpreter import end_imports
from gpurun.linux import process as lp
from gpurun.linux import sched
from gpurun.linux.files import O_CLOEXEC
from gpurun.linux.fs import O_DIRECTORY, O_PATH, close_others
from gpurun.linux.process import join_session_keyring
from gpurun.ns.birth import clone_into
from gpurun.record import Record, from_wire

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NoReturn

    from gpurun.engine.plan.records import ExecPlan

_NEW_LISTENER = 8  # SECCOMP_FILTER_FLAG_NEW_LISTENER


class ExecDescriptors(Record):
    """Open files that come with the plan; -1 for none.  *cgroup* is where the process goes, or else to *other_cgroup*."""

    channel: int  # the socket they came by
    init: int  # pidfd of the container's init
    cgroup: int = -1
    other_cgroup: int = -1
    console: int = -1  # the socket that takes the terminal's master


def main() -> NoReturn:
    """Entry point of the child interpreter: ``argv[1]`` is the descriptor of the socket."""
    channel = int(sys.argv[1])
    posix.set_inheritable(channel, False)
    lp.set_name("gpurun:[start]")
    lp.set_command_line("gpurun exec")
    try:
        _run(channel)
    except (BrokenPipeError, ConnectionResetError):
        pass  # the parent has given up, and tells why
    except BaseException as e:  # nothing may leave here but by _exit: the parent tells the error
        text = error_text(e)
        try:
            messages.report(channel, "failed", text)
        except OSError:
            posix.write(2, f"gpurun exec: {escaped(text)}\n".encode())
    posix._exit(1)


def _run(channel: int) -> None:
    received = messages.receive_files(channel)
    if received is None:
        posix._exit(1)  # the parent has refused what it was asked for, and told why
    (_, wire, names), files = received
    if len(names) != len(files):
        raise GpurunError(f"{len(files)} of {len(names)} descriptors arrived: the limit RLIMIT_NOFILE is too low")
    plan: ExecPlan = from_wire(wire)
    fds = ExecDescriptors(channel, **dict(zip(names, files)))  # noqa: B905 - as many: looked at above
    posix.umask(0)
    set_oom_score_adj(plan.process.oom_score_adj)
    lp.prctl(lp.PR_SET_DUMPABLE, 0)  # before any namespace of the container's is entered
    if plan.affinity[0]:
        sched.sched_setaffinity(plan.affinity[0])
    proc_fd = open_proc()
    root_fd = posix.open(plan.rootfs, O_PATH | O_DIRECTORY | O_CLOEXEC) if plan.rootfs else -1
    _import_all(plan.process)
    close_others((*[getattr(fds, name) for name in type(fds)._fields], proc_fd, root_fd, *plan.preserved))
    own = plan.namespaces & (lp.CLONE_NEWUSER | lp.CLONE_NEWCGROUP | lp.CLONE_NEWPID)
    if not lp.has_capabilities(lp.CAP_SYS_ADMIN, lp.CAP_SYS_CHROOT):
        # What a caller without privilege may join, it may by the user namespace only: all at once.  The cgroup namespace
        # waits all the same: from inside it the kernel lets nobody be born out of a cgroup that it does not show.
        own &= ~lp.CLONE_NEWUSER
    _join(fds.init, plan.namespaces & ~own)
    pid = _clone_setter(fds, names)
    if pid:
        messages.report(channel, "child", pid)
        posix._exit(0)
    lp.set_name("gpurun:[exec]")
    _expect_go(fds)  # the parent hears nobody whom it has not been told of
    for fd in (fds.cgroup, fds.other_cgroup):
        if fd >= 0:
            posix.close(fd)
    _join(fds.init, own & lp.CLONE_NEWPID)  # first: it may be the host's, which the user namespace's root cannot enter
    _join(fds.init, own & ~lp.CLONE_NEWPID)
    posix.close(fds.init)
    if plan.namespaces & lp.CLONE_NEWUSER:  # not before: the cgroup may be the caller's, whose ids these are no more
        _become_root()
    env, path, peer = _set(plan, fds, proc_fd, root_fd)
    filtered = filtered_early(plan.process)
    _clone_process(fds, filtered)
    _become(plan, fds, env, path, peer, filtered)


def _import_all(process: ProcessPlan) -> None:
    """Import what the rest of the road needs, then take away the means to."""
    if process.terminal:
        import gpurun.engine.terminal  # noqa: F401
    if process.knobs is not None:
        import gpurun.engine.inside.scheduling  # noqa: F401
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


def _clone_setter(fds: ExecDescriptors, names: tuple[str, ...]) -> int:
    """The setter, born in the container's cgroup, a child of our parent: its pid, or 0 in it.

    Where the container has made cgroups of its own for its processes (as systemd does), its own can take none: then the
    cgroup that its init is in now takes this one too.
    """

    def clone(name: str, cgroup: int) -> int:
        def move(pid: int, dead: int) -> None:
            messages.report(fds.channel, "move", pid, dead, names.index(name))
            _expect_go(fds)

        return clone_into(lp.CLONE_PARENT, cgroup, move)[0]

    with Step("start a process in", "the container's cgroup"):
        if fds.cgroup >= 0:
            try:
                return clone("cgroup", fds.cgroup)
            except OSError as e:
                if fds.other_cgroup < 0 or e.errno not in (EBUSY, ENOENT, ENODEV, EOPNOTSUPP):
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
    _expect_go(fds)
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


def _become(plan: ExecPlan, fds: ExecDescriptors, env: dict[str, str], path: str, peer: int, filtered: bool) -> None:
    process = plan.process
    seccomp = None if filtered else process.seccomp
    _expect_go(fds)
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
        _expect_go(fds)
        close_listener(listener, seccomp[1])
        become()
    messages.report(fds.channel, "created")
    _expect_go(fds)
    execute(path, process.args, env, plan.preserved, seccomp)


def _expect_go(fds: ExecDescriptors) -> None:
    if messages.receive(fds.channel) != ("go",):
        posix._exit(1)  # the parent gave up (and has told why) or was killed
