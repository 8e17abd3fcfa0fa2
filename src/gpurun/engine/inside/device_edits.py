"""The device edits of a container, as its init applies them: imported by the one that has any, before it leaves the host."""

from __future__ import annotations

from gpurun.hook.apply import apply_edits
from gpurun.hook.device_steps import node_step
from gpurun.hook.rootfs_target import Target
from gpurun.ns.journal import Journal
from gpurun.ns.outside import is_outside, other_than

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from gpurun.engine.plan.records import InitPlan
    from gpurun.hook.apply import Opened
    from gpurun.ns.mount_plan import DeviceStep


def apply_plan(
    plan: InitPlan,
    root_fd: int,
    journal_fd: int,
    opened: Opened | None,
    views: dict[str, int],
    own: set[int],
    on_uncovered: Callable[[int, int], None],
) -> None:
    """Apply the device edits and close the journal, however that ends; *own*: see :func:`gpurun.ns.rootfs.mount_all`.

    *on_uncovered* is called with the number of a tree in /sys that cannot be covered, and with the errno that says why.
    """
    trees = [tree.path for tree in plan.edits.proc_trees]
    journal = Journal(root_fd, journal_fd)
    try:
        proc_fd, label = views.get("/proc", -1), plan.mount_label
        how = (plan.user_namespace, plan.readonly, False, proc_fd >= 0, proc_fd, label, other_than(own))
        target = Target(root_fd, journal, *how)
        target.on_uncovered = lambda path, number: on_uncovered(trees.index(path), number)
        apply_edits(plan.edits, target, opened)
    finally:
        journal.close()


def nodes_of(plan: InitPlan) -> tuple[DeviceStep, ...]:
    """The nodes of the device edits, of which the parent lends those that the host lacks."""
    return tuple([node_step(node) for node in plan.edits.device_nodes])


def left_out(root_fd: int, nodes: tuple[DeviceStep, ...], own: set[int]) -> Callable[[DeviceStep], bool]:
    """Which of the lent nodes are not made: those of the device edits (*nodes*) in a directory of the host."""
    return lambda step: step in nodes and is_outside(root_fd, step.path, other_than(own))
