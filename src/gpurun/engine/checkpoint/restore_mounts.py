"""The mounts of a container that is restored: what CRIU is given to begin with, and what it leaves to be repaired."""

from __future__ import annotations

import posix
from _stat import S_ISDIR, S_ISLNK

from gpurun.engine.checkpoint.criu_options import path_in
from gpurun.engine.checkpoint.restore_devices import make_points
from gpurun.errors import GpurunError, Step
from gpurun.linux import mount as lm
from gpurun.linux import process as lp
from gpurun.linux.files import O_CLOEXEC, Fd
from gpurun.linux.fs import AT_RECURSIVE, O_DIRECTORY, O_PATH
from gpurun.ns import masks
from gpurun.ns.helper_process import ask_child, run_in_child
from gpurun.ns.mount import attach
from gpurun.ns.path import make_target

TYPE_CHECKING = False
if TYPE_CHECKING:
    from gpurun.engine.checkpoint.saved_devices import SavedDevices
    from gpurun.engine.plan.container import Plan
    from gpurun.engine.plan.records import InitPlan


def own_mounts(rootfs: str, root: str) -> None:
    """In CRIU's process: a mount namespace in which *root* shows the rootfs.  CRIU needs a mount point that nothing is
    mounted over; no other process sees it, and it goes away with CRIU."""
    lp.unshare(lp.CLONE_NEWNS)
    lm.mount("", "/", "", lm.MS_SLAVE | lm.MS_REC)
    lm.mount(rootfs, root, "", lm.MS_BIND | lm.MS_REC)


def prepare_mount_points(plan: Plan, saved: SavedDevices | None = None, journal: int = -1) -> tuple[tuple[str, str], ...]:
    """Make the mount points that the rootfs and the bind sources lack, as create would; those of *saved* are written in the
    *journal*.

    It is done in a process with a mount namespace of its own, where each bind is mounted for those inside it.
    Returns (name in the image, source) of what is mounted from outside.  Raises :class:`GpurunError`.
    """

    def in_child() -> bytes:
        return "\0".join(_walk_mounts(plan, saved, journal)).encode("utf-8", "surrogateescape")

    try:
        words = ask_child(in_child).decode("utf-8", "surrogateescape").split("\0")
    except GpurunError as e:
        raise GpurunError(f"cannot prepare the mount points: {e}") from None
    return tuple(zip(words[::2], words[1::2], strict=False))


def _walk_mounts(plan: Plan, saved: SavedDevices | None, journal: int) -> list[str]:
    """Mount what :func:`prepare_mount_points` says; names and sources in turn."""
    init = plan.init
    lp.unshare(lp.CLONE_NEWNS)
    lm.mount("", "/", "", lm.MS_PRIVATE | lm.MS_REC)
    lm.mount(plan.rootfs, plan.rootfs, "", lm.MS_BIND | lm.MS_REC)
    root = posix.open(plan.rootfs, O_PATH | O_DIRECTORY | O_CLOEXEC)
    found: list[str] = []
    covered: list[str] = []
    for step in init.mounts:
        if step.options.remount:
            continue
        bind = step.kind == "bind"
        if step.options.copy_symlink and S_ISLNK(posix.lstat(step.source).st_mode):
            continue  # no mount: create has made a link in the rootfs
        if not any(step.destination.startswith(f"{path}/") for path in covered):
            directory = not bind or S_ISDIR(posix.stat(step.source).st_mode)
            with Step("make the mount point", step.destination):
                target = make_target(root, step.destination, directory)
                if bind:
                    tree = lm.open_tree(-100, step.source, lm.OPEN_TREE_CLONE | AT_RECURSIVE)
                    attach(tree, target)
                    posix.close(tree)
                posix.close(target)
        if bind:
            found += [path_in(root, step.destination) or step.destination, step.source]
        else:
            covered.append(step.destination)  # its content is CRIU's to restore
    if saved is not None:
        make_points(root, journal, saved, covered, plan)
    for device in init.devices:
        found += [device.path, device.path]
    if init.masked_paths:
        found += ["/dev/null", "/dev/null"]
    return found


def repair_mounts(pid: int, init: InitPlan) -> None:
    """What CRIU does not restore as create makes it, in the mount namespace of *pid*, whose processes do not run yet.

    See :func:`gpurun.ns.masks.repair_masks`.  And the root is cut off the host's, of which it is a slave in the images of
    others, unless it is to be one.
    """
    root = posix.open(f"/proc/{pid}/root", O_PATH | O_DIRECTORY | O_CLOEXEC)
    namespace = posix.open(f"/proc/{pid}/ns/mnt", posix.O_RDONLY | O_CLOEXEC)

    def in_container() -> None:
        lp.setns(namespace, lp.CLONE_NEWNS)
        if init.propagation[0] in (0, lm.MS_PRIVATE):
            lm.mount_setattr(root, propagation=lm.MS_PRIVATE)
        masks.repair_masks(root, init.masked_paths)

    with Fd(root), Fd(namespace):
        run_in_child(in_container)
