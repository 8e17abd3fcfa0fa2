"""Mount trees that the container's init may not make itself: opened for it with the host's privileges, and handed to it.

They are opened in the container's mount namespace, not in ours: there the kernel has locked the restrictions that the host
put on a mount (ro, nosuid, nodev, noexec) against a user namespace that does not own it, and a copy keeps the locks
(mount_namespaces(7)).  A tree copied in our namespace could be remounted writable by root in the container.
"""

from __future__ import annotations

import posix
from _socket import AF_UNIX, SOCK_CLOEXEC, SOCK_SEQPACKET, socket, socketpair
from _struct import pack, unpack
from errno import EINVAL, ENOENT

from gpurun.errors import GpurunError, strerror_lower
from gpurun.linux import mount as lm
from gpurun.linux.files import O_CLOEXEC
from gpurun.linux.fs import O_DIRECTORY, O_PATH
from gpurun.linux.libc import is_refused
from gpurun.linux.process import CLONE_NEWNS, setns
from gpurun.linux.scm_rights import receive_with, send_with
from gpurun.ns.helper_process import ask_child
from gpurun.ns.mount import import_stand_ins
from gpurun.ns.mount_plan import MountStep, failed_mount
from gpurun.ns.pivot import cut, root_tree

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from gpurun.ns.pivot import Propagation

_CHUNK = 200  # descriptors in one message; the kernel takes 253
_REFUSED = b"refused"
ROOT = -1  # the index that stands for the rootfs


def channel() -> tuple[socket, socket]:
    """(our end, the init's end) of what the trees are handed over by."""
    return socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC)


def hand_over(
    ours: socket,
    pid: int,
    mount_namespace: int,
    rootfs: str,
    steps: tuple[MountStep | None, ...],
    propagation: Propagation,
    user_namespaces: dict[tuple[str, str], int],
    more: tuple[Callable[[], int], ...] = (),
) -> bool:
    """Open the rootfs (unless *rootfs* is empty) and the sources of the bind mounts among *steps* (None stands for one that
    only the init does), and send them to the init *pid*; then what each of *more* opens (-1: nothing), with the numbers
    that follow those of the steps.

    *mount_namespace* is that of the container if it is joined, -1 for the init's own.  *user_namespaces* has a descriptor
    for each pair of maps that id-mapped mounts use.  Returns False, with nothing sent, where we may not enter that
    namespace: it takes CAP_SYS_PTRACE to open it, CAP_SYS_ADMIN and CAP_SYS_CHROOT to enter it.  Raises
    :class:`GpurunError`.
    """
    target, its_root = mount_namespace, -1
    if mount_namespace < 0:
        try:
            target = posix.open(f"/proc/{pid}/ns/mnt", posix.O_RDONLY | O_CLOEXEC)
            its_root = posix.open(f"/proc/{pid}/root", O_PATH | O_DIRECTORY | O_CLOEXEC)
        except PermissionError:
            if target >= 0:
                posix.close(target)
            ours.close()
            return False

    import_stand_ins()

    def in_container() -> bytes:
        try:
            setns(target, CLONE_NEWNS)
            if its_root >= 0:  # setns(2) goes to the root of the namespace; we may be in a chroot, and so is the init
                posix.fchdir(its_root)
                posix.chroot(".")
        except PermissionError:
            return _REFUSED
        trees: list[tuple[int, int]] = []
        if rootfs:
            trees.append((ROOT, root_tree(rootfs, propagation)))
        for index, step in enumerate(steps):
            if step is not None and step.kind == "bind" and not step.options.remount:
                tree = _open_source(step, propagation, user_namespaces)
                if tree >= 0:
                    trees.append((index, tree))
        for index, open_one in enumerate(more, len(steps)):
            tree = open_one()
            if tree >= 0:
                trees.append((index, tree))
        for start in range(0, len(trees), _CHUNK):
            send_trees(ours, trees[start : start + _CHUNK])
        return b""

    try:
        return ask_child(in_container) != _REFUSED
    finally:
        if mount_namespace < 0:
            posix.close(target)
            posix.close(its_root)
        ours.close()


def receive_trees(fd: int) -> dict[int, int]:
    """The init's side: index of the mount (or :data:`ROOT`) → the descriptor of its tree; *fd* is closed.

    Raises :class:`GpurunError` when fewer descriptors came than were sent.
    """
    its = socket(fileno=fd)
    trees: dict[int, int] = {}
    while True:
        data, files = receive_with(its, 4 * _CHUNK, _CHUNK)
        if not data:
            break
        count = len(data) // 4
        if len(files) != count:
            raise GpurunError(f"{len(files)} of {count} mount trees arrived: the limit RLIMIT_NOFILE is too low")
        trees.update(zip(unpack(f"{count}i", data), files))  # noqa: B905 - the lengths are checked above
    its.close()
    return trees


def send_trees(ours: socket, trees: list[tuple[int, int]]) -> None:
    """Send (index, descriptor) of up to some 200 trees at once."""
    indexes = pack(f"{len(trees)}i", *[index for index, _ in trees])
    send_with(ours, indexes, [fd for _, fd in trees])


def _open_source(step: MountStep, propagation: Propagation, user_namespaces: dict[tuple[str, str], int]) -> int:
    """The tree of a bind mount's source; -1 when it is not there yet: an earlier mount of the list may make it."""
    try:
        tree = lm.open_tree_path(step.source, step.options.recursive, not step.options.copy_symlink)
        if cut(propagation):
            lm.mount_setattr(tree, propagation=cut(propagation), recursive=True)
    except OSError as e:
        if e.errno == ENOENT and step.idmap is None:
            return -1
        reason = strerror_lower(e.errno)
        if e.errno == EINVAL and not step.options.recursive:
            reason += " (it has mounts below it, which a user namespace may not uncover: use rbind)"
        raise failed_mount(step, reason) from None
    if step.idmap is not None:
        fd = user_namespaces[step.idmap.uid_map, step.idmap.gid_map]
        try:
            lm.mount_setattr(tree, lm.MOUNT_ATTR_IDMAP, recursive=step.idmap.recursive, userns_fd=fd)
        except OSError as e:
            why = f"{strerror_lower(e.errno)} (not every file system can be mounted with mapped ids)"
            if is_refused("mount_setattr"):
                why = "a seccomp filter refuses mount_setattr(2), and no other call maps the ids of a mount"
            raise GpurunError(f'{step.where}: cannot map the ids of "{step.source}": {why}') from None
    return tree
