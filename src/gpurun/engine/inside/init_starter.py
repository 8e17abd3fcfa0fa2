"""The starter of create: a fresh, isolated interpreter, from a sealed executable, of which the init becomes a copy.

create starts it before it knows what is to be made.  With the plan it clones the init into the container's namespaces and
cgroup, as a child of create, and ends.  None of the caller's memory is in it.
"""

from __future__ import annotations

import posix

from gpurun.engine import messages
from gpurun.engine.inside.enter_process import begin_starter, fail, set_oom_score_adj
from gpurun.engine.inside.init import become_init, import_for_edits, open_edits, set_by_parent
from gpurun.errors import GpurunError
from gpurun.linux import process as lp
from gpurun.ns.namespaces import NamespacePlan
from gpurun.ns.spawn import spawn
from gpurun.record import from_wire, replace

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NoReturn

    from gpurun.cdi.edits import ContainerEdits
    from gpurun.engine.plan.records import InitPlan
    from gpurun.hook.apply import Opened


def main() -> NoReturn:
    """Entry point of the starter's interpreter."""
    channel = begin_starter("init")
    try:
        plan, fds, opened = _make_init(channel)
    except BaseException as e:  # nothing may leave here but by _exit
        fail(channel, "init", e)
    become_init(plan, fds, opened)


def _make_init(channel: int) -> tuple[InitPlan, messages.Descriptors, Opened | None]:
    """The starter's part: make the init and end; returns in the init.

    The third thing is what the device edits bring from the host, opened already.
    """
    received = messages.receive_files(channel)
    edits: ContainerEdits | None = None
    opened: Opened | None = None
    root = -1
    while received is not None and received[0][0] != "plan":
        import_for_edits()  # while the parent looks for the devices
        if received[0][0] == "edits":
            _, edits_wire, rootfs_path, propagation, label = received[0]
            edits = from_wire(edits_wire)
            root, opened = open_edits(edits, rootfs_path, propagation, label)  # while it makes what the plan says
        received = messages.receive_files(channel)
    if received is None:
        posix._exit(1)  # the parent has refused what it was asked for, and said why
    (_, oom_score_adj, namespaces_wire, plan_wire, names, edits_came), files = received
    if len(names) != len(files):
        raise GpurunError(f"{len(files)} of {len(names)} descriptors arrived: the limit RLIMIT_NOFILE is too low")
    named = dict(zip(names, files))  # noqa: B905 - as many: looked at above
    namespaces: NamespacePlan = from_wire(namespaces_wire)
    joins = tuple([(join, named.pop(f"{join.type} namespace")) for join in namespaces.joins])
    cgroup = named.pop("cgroup", -1)
    set_oom_score_adj(oom_score_adj)
    if not set_by_parent(namespaces):
        lp.prctl(lp.PR_SET_DUMPABLE, 0)
    pid = spawn(namespaces, joins, cgroup, lambda pid: messages.report(channel, "child", pid))
    if pid:
        messages.report(channel, "spawned", pid)
        posix._exit(0)
    if set_by_parent(namespaces):
        lp.prctl(lp.PR_SET_DUMPABLE, 0)
    for join, fd in joins:
        if join.flag == lp.CLONE_NEWNS:
            named["mount_namespace"] = fd
        else:
            posix.close(fd)
    if cgroup >= 0:
        posix.close(cgroup)
    fds = messages.Descriptors(channel, root=root, **named)
    plan: InitPlan = from_wire(plan_wire)  # while the parent lends what it lends
    if edits_came:
        if edits is None:
            raise GpurunError("the device edits did not come before the plan")
        plan = replace(plan, edits=edits)
    return plan, fds, opened
