"""The starter of exec: a fresh, isolated interpreter, from a sealed executable, of which the setter becomes a copy.

It begins outside the container, in the caller's cgroup, and holds none of the caller's memory.
"""

from __future__ import annotations

import posix

from gpurun.engine import messages
from gpurun.engine.inside.enter_process import begin_starter, fail, set_oom_score_adj
from gpurun.engine.inside.exec_init import (
    ExecDescriptors,
    Setter,
    become_setter,
    clone_into_cgroup,
    import_all,
    join,
    open_host,
)
from gpurun.engine.plan.records import ExecPlan
from gpurun.errors import GpurunError
from gpurun.launcher.fresh_interpreter import end_imports
from gpurun.linux import process as lp
from gpurun.linux import sched
from gpurun.linux.fs import close_others
from gpurun.record import from_wire

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NoReturn


def main() -> NoReturn:
    """Entry point of the starter's interpreter."""
    channel = begin_starter("exec")
    try:
        setter = _make_setter(channel)
    except BaseException as e:  # nothing may leave here but by _exit
        fail(channel, "exec", e)
    become_setter(setter)


def _make_setter(channel: int) -> Setter:
    """The starter's part: make the setter and end; returns in the setter."""
    received = messages.receive_files(channel)
    if received is None:
        posix._exit(1)  # the parent has refused what it was asked for, and said why
    (_, wire, names), files = received
    if len(names) != len(files):
        raise GpurunError(f"{len(files)} of {len(names)} descriptors arrived: the limit RLIMIT_NOFILE is too low")
    plan: ExecPlan = from_wire(wire)
    fds = ExecDescriptors(channel, **dict(zip(names, files)))  # noqa: B905 - as many: looked at above
    set_oom_score_adj(plan.process.oom_score_adj)
    lp.prctl(lp.PR_SET_DUMPABLE, 0)  # before any namespace of the container's is entered
    if plan.affinity[0]:
        sched.sched_setaffinity(plan.affinity[0])
    proc_fd, root_fd = open_host(plan)
    import_all(plan.process)
    end_imports()
    close_others((*[getattr(fds, name) for name in type(fds)._fields], proc_fd, root_fd, *plan.preserved))
    late = plan.namespaces & (lp.CLONE_NEWUSER | lp.CLONE_NEWCGROUP | lp.CLONE_NEWPID)
    if not lp.has_capabilities(lp.CAP_SYS_ADMIN, lp.CAP_SYS_CHROOT):
        # What a caller without privilege may join, it may by the user namespace only: all at once.  The cgroup namespace
        # waits all the same: from inside it the kernel does not clone into a cgroup that the namespace does not show.
        late &= ~lp.CLONE_NEWUSER
    join(fds.init, plan.namespaces & ~late)
    pid = _clone_setter(fds, names)
    if pid:
        messages.report(channel, "child", pid)
        posix._exit(0)
    return Setter(plan, fds, proc_fd, root_fd, late)


def _clone_setter(fds: ExecDescriptors, names: tuple[str, ...]) -> int:
    """The setter, born in the container's cgroup, a child of our parent: its pid, or 0 in it."""

    def move(name: str, pid: int, dead: int) -> None:
        messages.report(fds.channel, "move", pid, dead, names.index(name))
        messages.expect_go(fds.channel)

    return clone_into_cgroup(fds, lp.CLONE_PARENT, move)
