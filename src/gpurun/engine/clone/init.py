"""The container's process as a copy of the caller (clone3(2)), where the caller's own interpreter is sealed.

No second interpreter starts, nothing is imported twice, and nothing has to be sent that both sides know.  The copy closes
every descriptor that is not its own before anything else.  What it has of the caller's memory is what the caller has read to
make the container (docs/security.md lists it), and no more of the environment than gpurun itself reads (launcher/sealed.py).

A container that joins a user or a pid namespace is made by a starter all the same (engine/caller/start_init.py): a process
who waits there may be able to look into the process.  So is one whose cgroup a caller without privilege can enter only by
systemd's leave.
"""

from __future__ import annotations

import posix

from gpurun.engine.clone.process import clone_copy
from gpurun.engine.inside import init as init_module
from gpurun.engine.messages import Descriptors
from gpurun.launcher.fresh_interpreter import program_file
from gpurun.launcher.sealed import drop_the_rest, is_sealed
from gpurun.linux import process as lp
from gpurun.ns.spawn import spawn
from gpurun.record import replace

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import NoReturn

    from gpurun.engine.plan.container import Plan
    from gpurun.ns.namespaces import Join


def can_clone_init(plan: Plan) -> bool:
    """Whether the init of *plan* can be a copy of this process."""
    scope = plan.cgroup.scope
    return is_sealed() and not plan.namespaces.needs_helper and not (scope is not None and scope.manager)


def clone_init(
    plan: Plan, files: dict[str, int], joins: tuple[tuple[Join, int], ...], channel: int, made: Callable[[int], None]
) -> int:
    """Make the init of *plan*, which gets the open *files* by their names, the namespaces *joins* among them, and *channel*;
    returns its pid.

    ``made(pid)`` is called for each process that is made, at once.  Raises :class:`GpurunError`; then all of them have got
    the error.
    """
    init, namespaces, hooks = plan.init, plan.namespaces, plan.hooks
    if not (hooks.prestart or hooks.create_runtime or hooks.poststart or hooks.poststop):
        drop_the_rest()
    init_module.import_all(init, "trees" in files)
    root, opened = -1, None
    if plan.edits_come_first:
        root, opened = init_module.open_edits(init.edits, plan.rootfs, init.propagation, init.mount_label)
    names = Descriptors._fields
    fds = Descriptors(channel, root=root, **{name: fd for name, fd in files.items() if name in names})
    for join, fd in joins:
        if join.flag == lp.CLONE_NEWNS:
            fds = replace(fds, mount_namespace=fd)
    lent = init_module.set_by_parent(namespaces)

    def clone() -> int:
        return spawn(namespaces, joins, files.get("cgroup", -1), made, 0)

    def become() -> NoReturn:
        if lent:
            lp.prctl(lp.PR_SET_DUMPABLE, 0)
        lp.set_command_line("gpurun init")
        init_module.become_init(init, fds, opened)

    sources = opened.descriptors if opened is not None else ()
    kept = (*[getattr(fds, name) for name in names], *sources, *init.preserved, *program_file())
    try:
        return clone_copy(clone, become, kept, init.process.oom_score_adj, bool(lent))
    finally:
        for fd in (root, *sources):
            if fd >= 0:
                posix.close(fd)
