"""Create's side of the container's cgroup: made by us or, as a scope, by systemd; then its limits and its device program."""

from __future__ import annotations

from errno import EACCES, EPERM

from gpurun import log
from gpurun.cgroup import manager
from gpurun.engine.caller.rollback import CGROUP, EXCLUSIVE_CPUS, PLACEHOLDER
from gpurun.errors import StepError
from gpurun.linux.files import Fd
from gpurun.linux.process import CAP_SYS_ADMIN, has_capabilities
from gpurun.linux.procfs import in_user_namespace

TYPE_CHECKING = False
if TYPE_CHECKING:
    from gpurun.engine.caller.rollback import Rollback
    from gpurun.engine.plan.container import Plan


def make(plan: Plan, rollback: Rollback, directory: str, *children: int) -> int:
    """Make the cgroup of *plan*; returns the pid of the placeholder that holds it until the init is in it, 0 for none.

    Where we have to be moved for it, our *children* are moved along.  What takes it back is added to *rollback*;
    *directory* is the container's state directory.  Raises :class:`GpurunError`.
    """
    cgroup = plan.cgroup
    if not cgroup.path:
        return 0  # --cgroup-manager disabled
    if _is_partition(plan):
        from gpurun.cgroup.exclusive import give_back

        rollback.add(EXCLUSIVE_CPUS, lambda: give_back(f"{directory}/exclusive"))
    scope = cgroup.scope
    if scope is None:
        made = manager.create(cgroup.path, cgroup.root, cgroup.writes)
        rollback.add(CGROUP, lambda: manager.undo_create(made))
        rollback.add(CGROUP, lambda: _take_away(cgroup.path))
        return 0
    from gpurun.cgroup import systemd

    manager.check_usable(cgroup.path, cgroup.root)
    if scope.manager:
        systemd.enter(scope.manager, *children)
    placeholder = systemd.start_scope(scope)
    rollback.add(CGROUP, lambda: systemd.stop_unit(scope.unit, cgroup.path, scope.manager))

    def end() -> None:
        release(placeholder)

    rollback.add(PLACEHOLDER, end)
    # systemd enables the controllers that it knows; limits of huge pages, for one, need others.
    manager.create(cgroup.path, cgroup.root, cgroup.writes, new=False)
    return placeholder


def _take_away(path: str) -> None:
    """Remove the cgroup with what is in it: the init has been ended before, a hook's process that went on may be left."""
    if manager.processes(path):
        manager.kill(path)
    manager.remove(path, end=True)


def _is_partition(plan: Plan) -> bool:
    return any(write.file == "cpuset.cpus.partition" for write in plan.cgroup.writes)


def release(placeholder: int) -> bool:
    """End what :func:`make` has returned, if anything; whether it was there until now."""
    if not placeholder:
        return False
    from gpurun.cgroup.placeholder import release as end

    return end(placeholder)


def keep(plan: Plan, placeholder: int) -> bool:
    """Whether the *placeholder* stays while the caller waits for the container: it did, once this has returned True.

    A scope goes with its last process, and with it all that the kernel knew of how that process died.  So where a limit of
    memory may be the reason, the placeholder holds the scope until that has been read.  Not beside a limit of processes, for
    it would count as one.
    """
    files = [write.file for write in plan.cgroup.writes]
    if not placeholder or "memory.max" not in files or "pids.max" in files:
        return False
    from gpurun.cgroup.placeholder import spare

    spare(placeholder)
    return True


def load_devices(plan: Plan) -> int:
    """The container's device program, loaded while the init still starts up; -1 when it needs (or can have) none."""
    if not plan.cgroup.program:
        return -1
    try:
        return manager.load_devices(plan.cgroup.program)
    except StepError as e:
        if not _is_refused(e):
            raise
        return -1


def _is_refused(error: StepError) -> bool:
    """Whether bpf(2) has refused a program of a caller without CAP_SYS_ADMIN over the host, from whom the kernel takes none.

    The container of such a caller is in a user namespace, where device nodes cannot be made.
    """
    return error.errno in (EPERM, EACCES) and (not has_capabilities(CAP_SYS_ADMIN) or in_user_namespace())


def restrict(plan: Plan, program_fd: int, directory: str, rollback: Rollback) -> None:
    """Set the limits and the device program: once the init has made its device nodes, which the rules may forbid.

    systemd gets the values first: what it writes, rounded its way, is then written again as it was asked for.  What changes
    outside of the cgroup is noted in the container's state *directory*: CPUs that cgroups above must leave to this one, and
    memory of GPUs that they keep for it.
    """
    if not plan.cgroup.path:
        return
    scope = plan.cgroup.scope
    if scope is not None:
        from gpurun.cgroup import systemd

        systemd.set_properties(scope.unit, scope.limits, scope.manager)
    if _is_partition(plan):
        from gpurun.cgroup import exclusive

        lent = exclusive.find_cpus_write(plan.cgroup.writes)
        if lent is not None:
            exclusive.lend(lent, plan.cgroup.root, plan.cgroup.path, f"{directory}/exclusive")
    fd = manager.open_dir(plan.cgroup.path)
    with Fd(fd), Fd(program_fd):
        manager.write_resources(fd, plan.cgroup.writes)
        manager.check_partition(fd, plan.cgroup.writes)
        if plan.cgroup.owner:
            from gpurun.cgroup.manager import delegate

            delegate(fd, plan.cgroup.owner)
        if program_fd >= 0:
            manager.attach_devices(fd, program_fd, beside=scope is not None)
    if plan.cgroup.memory_limits:
        from gpurun.engine.gpus import memory_limits

        rollback.add(CGROUP, lambda: log.warnings(memory_limits.take_away(directory)))
        memory_limits.set_limits(plan.cgroup.root, plan.cgroup.path, plan.cgroup.memory_limits, directory)
