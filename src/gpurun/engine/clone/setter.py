"""exec's setter as a copy of the caller (clone3(2)), where the caller's own interpreter is sealed: see init.py."""

from __future__ import annotations

import posix

from gpurun.engine.clone.process import clone_copy
from gpurun.engine.inside.exec_init import (
    ExecDescriptors,
    Setter,
    become_setter,
    clone_into_cgroup,
    import_all,
    open_host,
)
from gpurun.launcher.fresh_interpreter import end_imports, program_file
from gpurun.launcher.sealed import drop_the_rest, is_sealed
from gpurun.linux import process as lp

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import NoReturn

    from gpurun.engine.plan.records import ExecPlan
    from gpurun.engine.state import State


def may_clone_setter(state: State) -> bool:
    """Whether the setter of a process in the container *state* can be a copy of this process, as far as is known before
    there is a plan: not where systemd must let it into the cgroup, nor for a caller who may enter namespaces only by way of
    the user namespace."""
    return is_sealed() and not state.manager and lp.has_capabilities(lp.CAP_SYS_ADMIN, lp.CAP_SYS_CHROOT)


def clone_setter(plan: ExecPlan, files: dict[str, int], move: Callable[[str, int, int], None], channel: int) -> int:
    """Make the setter of *plan*, which gets the open *files* by their names, and *channel*; returns its pid.

    *move* is that of :func:`gpurun.engine.inside.exec_init.clone_into_cgroup`.  Raises :class:`GpurunError`.
    """
    drop_the_rest()
    fds = ExecDescriptors(channel, **files)
    import_all(plan.process)
    proc_fd, root_fd = open_host(plan)

    def become() -> NoReturn:
        lp.set_command_line("gpurun exec")
        end_imports()
        become_setter(Setter(plan, fds, proc_fd, root_fd, plan.namespaces))

    kept = (*[getattr(fds, name) for name in type(fds)._fields], proc_fd, root_fd, *plan.preserved, *program_file())
    score = plan.process.oom_score_adj
    try:
        return clone_copy(lambda: clone_into_cgroup(fds, 0, move), become, kept, score, dumpable=False)
    finally:
        for fd in (proc_fd, root_fd):
            if fd >= 0:
                posix.close(fd)
