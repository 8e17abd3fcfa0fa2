"""Create's side of the container's cgroup: made by us or, as a scope, by systemd; then its limits and its device program."""

from __future__ import annotations

import posix
from errno import EPERM

from gpurun.cgroup import manager
from gpurun.errors import StepError
from gpurun.linux.proc import in_user_namespace

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from gpurun.engine.plan import Plan


def make(plan: Plan, undo: list[Callable[[], None]]) -> int:
    """Make the cgroup of *plan*; returns the pid of the placeholder that holds it until the init is in it, 0 for none.

    What undoes it is added to *undo* (last first).  Raises :class:`GpurunError`.
    """
    cgroup = plan.cgroup
    if not cgroup.path:
        return 0  # --cgroup-manager disabled
    scope = cgroup.scope
    if scope is None:
        made = manager.create(cgroup.path, cgroup.root, cgroup.writes)
        undo.append(lambda: manager.undo_create(made))
        undo.append(lambda: manager.remove(cgroup.path))
        return 0
    from gpurun.cgroup import systemd

    if scope.manager:
        systemd.enter(scope.manager)
    placeholder = systemd.start_scope(scope)
    undo.append(lambda: systemd.stop_unit(scope.unit, cgroup.path, scope.manager))
    undo.append(lambda: systemd.release(placeholder))
    # systemd enables the controllers that it knows; limits of huge pages, for one, need others.
    manager.create(cgroup.path, cgroup.root, cgroup.writes, new=False)
    return placeholder


def release(placeholder: int) -> None:
    """The init is in the cgroup: end what :func:`make` has returned, if anything."""
    if placeholder:
        from gpurun.cgroup import systemd

        systemd.release(placeholder)


def load_devices(plan: Plan) -> int:
    """The container's device program, loaded while the init still starts up; -1 when it needs (or can have) none."""
    if not plan.cgroup.program:
        return -1
    try:
        return manager.load_devices(plan.cgroup.program, tolerate=plan.init.user_namespace)
    except StepError as e:
        # Under rootless Podman and its like gpurun itself is in a user namespace: nodes cannot be made there either.
        if e.errno != EPERM or not in_user_namespace():
            raise
        return -1


def restrict(plan: Plan, program_fd: int) -> None:
    """Set the limits and the device program: once the init has made its device nodes, which the rules may forbid.

    systemd is told first: what it writes, rounded its way, is then written again as it was asked for.
    """
    if not plan.cgroup.path:
        return
    scope = plan.cgroup.scope
    if scope is not None:
        from gpurun.cgroup import systemd

        systemd.set_properties(scope.unit, scope.limits, scope.manager)
    fd = manager.open_dir(plan.cgroup.path)
    try:
        manager.write_resources(fd, plan.cgroup.writes)
        manager.check_partition(fd, plan.cgroup.writes)
        if plan.cgroup.owner:
            from gpurun.cgroup.delegate import delegate

            delegate(fd, plan.cgroup.owner)
        if program_fd >= 0:
            manager.attach_devices(fd, program_fd, tolerate=plan.init.user_namespace, beside=scope is not None)
    finally:
        posix.close(fd)
        if program_fd >= 0:
            posix.close(program_fd)
