"""What create does for a new init from outside, with the host's privileges, before the init goes its way."""

from __future__ import annotations

import posix
from errno import ENOENT

from gpurun.cdi.edits import ContainerEdits
from gpurun.engine.caller.rollback import RESCTRL
from gpurun.errors import GpurunError, strerror_lower
from gpurun.linux.process import CAP_SYS_ADMIN, CAP_SYS_CHROOT, CLONE_NEWNS, has_capabilities
from gpurun.ns.mount_plan import failed_mount, is_late

TYPE_CHECKING = False
if TYPE_CHECKING:
    from _socket import socket
    from collections.abc import Callable

    from gpurun.engine.caller.rollback import Rollback
    from gpurun.engine.plan.container import Plan
    from gpurun.ns.mount_plan import MountStep
    from gpurun.ns.namespaces import Join


def source_channel(plan: Plan) -> tuple[socket | None, int]:
    """(our end, the init's end) of what mount trees are handed over by; (None, -1) when the init can open all by itself.

    It cannot in a user namespace, which may be unable to reach the rootfs and sources, nor can it map the ids of a mount.
    For these the caller enters its mount namespace, as setns(2) says; one who may not has no privilege that the init lacks.
    """
    init = plan.init
    if not init.mount_namespace or not (init.user_namespace or any(step.idmap is not None for step in init.mounts)):
        return None, -1
    if not has_capabilities(CAP_SYS_ADMIN, CAP_SYS_CHROOT):
        _refuse_idmaps(plan)
        return None, -1
    from gpurun.ns.sources import channel

    ours, its = channel()
    return ours, its.detach()


def _refuse_idmaps(plan: Plan) -> None:
    """Raise :class:`GpurunError` for the first id-mapped mount: only this process could map its ids, and it may not."""
    for step in plan.init.mounts:
        if step.idmap is not None:
            raise GpurunError(
                f'{step.where}: cannot map the ids of "{step.source}": this takes CAP_SYS_ADMIN, CAP_SYS_CHROOT and '
                "CAP_SYS_PTRACE: run gpurun as root with all of them"
            )


def hand_over_sources(plan: Plan, ours: socket, pid: int, joins: tuple[tuple[Join, int], ...]) -> None:
    """Open the mount trees of *plan* and send them to the init; none where we may not look into its mount namespace, and
    the init opens them itself.  Raises :class:`GpurunError`.
    """
    mount_namespace = next((fd for join, fd in joins if join.flag == CLONE_NEWNS), -1)
    # Without a user namespace the init can do all the rest itself, and only id-mapped sources are sent, after the root,
    # which is to be the first in mountinfo.
    rootfs = "" if plan.edits_come_first else plan.rootfs
    more: tuple[Callable[[], int], ...] = ()
    if plan.init.user_namespace and plan.init.edits != ContainerEdits():
        from gpurun.hook.apply import source_openers

        more = source_openers(plan.init.edits)
    if not _open_sources(plan, ours, pid, mount_namespace, rootfs, lambda step: not is_late(step, plan.rootfs), more):
        _refuse_idmaps(plan)


def open_late_source(plan: Plan, pid: int, index: int) -> int:
    """A descriptor of the source of mount *index*, of which the init *pid* says that its turn has come; -1 where it is to
    open that itself.

    Raises :class:`GpurunError` with the mount's JSON path.
    """
    from gpurun.ns.sources import channel, receive_trees

    wanted = plan.init.mounts[index]
    ours, its = channel()
    if not _open_sources(plan, ours, pid, -1, "", lambda step: step is wanted):
        its.close()
        return -1
    try:
        return receive_trees(its.detach())[index]
    except KeyError:
        raise failed_mount(wanted, strerror_lower(ENOENT)) from None


def _open_sources(
    plan: Plan,
    ours: socket,
    pid: int,
    mount_namespace: int,
    rootfs: str,
    wanted: Callable[[MountStep], bool],
    more: tuple[Callable[[], int], ...] = (),
) -> bool:
    """Open and send the sources of the mounts that are *wanted*; False where we may not enter the init's namespace."""
    from gpurun.ns.idmap import make_user_namespace
    from gpurun.ns.sources import hand_over

    init = plan.init
    steps = [s if (init.user_namespace or s.idmap is not None) and wanted(s) else None for s in init.mounts]
    maps: dict[tuple[str, str], int] = {}
    try:
        for step in steps:
            if step is not None and step.idmap is not None and (step.idmap.uid_map, step.idmap.gid_map) not in maps:
                pair = step.idmap.uid_map, step.idmap.gid_map
                maps[pair] = make_user_namespace(*pair)
        return hand_over(ours, pid, mount_namespace, rootfs, tuple(steps), init.propagation, maps, more)
    finally:
        for fd in maps.values():
            posix.close(fd)


def lend_nodes(plan: Plan) -> int:
    """The device nodes of a container that cannot make its own, as :func:`gpurun.ns.devices.lend_nodes` has them; -1 for
    one that can, and where we ourselves may make none (the host's nodes are bound then)."""
    init = plan.init
    if not init.user_namespace or not init.mount_namespace or init.dev_is_bind:
        return -1
    from gpurun.ns import devices
    from gpurun.ns.namespaces import host_id

    maps = plan.namespaces

    def host_ids(uid: int, gid: int) -> tuple[int, int]:
        return host_id(maps.uids, uid), host_id(maps.gids, gid)

    from gpurun.hook.missing_nodes import missing_nodes

    return devices.lend_nodes(init.devices + missing_nodes(init.edits.device_nodes), host_ids, init.mount_label)


def lend_resctrl(plan: Plan, pid: int, record: str, rollback: Rollback) -> None:
    """Put the container's process into its resctrl group, if it has one; what belongs only to it is noted in *record*."""
    if plan.intel_rdt is not None:
        from gpurun.engine.caller.resctrl import apply_rdt, remove_rdt

        rollback.add(RESCTRL, lambda: remove_rdt(record))
        apply_rdt(plan.intel_rdt, pid, record, lambda step: rollback.add(RESCTRL, step))


def lend_network_devices(plan: Plan, pid: int) -> None:
    """Move the network devices that the host gives into the network namespace of *pid*."""
    if plan.net_devices:
        from gpurun.ns.netdev import move_devices

        move_devices(plan.net_devices, f"/proc/{pid}/ns/net")
