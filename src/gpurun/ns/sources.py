"""Mount trees that the container's init may not make itself: opened for it with the host's privileges, and handed to it.

They are opened in the container's mount namespace, not in ours: there the kernel has locked the restrictions that the host
put on a mount (ro, nosuid, nodev, noexec) against a user namespace that does not own it, and a copy keeps the locks
(mount_namespaces(7)).  A tree copied in our namespace could be remounted writable by root in the container.
"""

from __future__ import annotations

import posix
from _socket import AF_UNIX, SCM_RIGHTS, SOCK_CLOEXEC, SOCK_SEQPACKET, SOL_SOCKET, socket, socketpair
from _struct import pack, unpack
from errno import EINVAL, ENOENT

from gpurun.errors import GpurunError, StepError, strerror_lower
from gpurun.linux import mount as lm
from gpurun.linux.files import O_CLOEXEC
from gpurun.linux.fs import O_DIRECTORY, O_PATH
from gpurun.linux.process import CLONE_NEWNS, setns
from gpurun.ns.child import run_in_child
from gpurun.ns.steps import MountStep, failed_mount

_CHUNK = 200  # descriptors in one message; the kernel takes 253
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
    propagation: int,
    user_namespaces: dict[tuple[str, str], int],
) -> None:
    """Open the rootfs (unless *rootfs* is empty) and the sources of the bind mounts among *steps* (None stands for one that
    the init does alone), and send them to the init *pid*.

    *mount_namespace* is that of the container if it is joined, -1 for the init's own.  *user_namespaces* has a descriptor
    for each pair of maps that id-mapped mounts use.  Raises :class:`GpurunError`.
    """
    target, its_root = mount_namespace, -1
    if mount_namespace < 0:
        target = posix.open(f"/proc/{pid}/ns/mnt", posix.O_RDONLY | O_CLOEXEC)
        its_root = posix.open(f"/proc/{pid}/root", O_PATH | O_DIRECTORY | O_CLOEXEC)

    def in_container() -> None:
        setns(target, CLONE_NEWNS)
        if its_root >= 0:  # setns(2) goes to the root of the namespace; we may be in a chroot, and so is the init
            posix.fchdir(its_root)
            posix.chroot(".")
        trees: list[tuple[int, int]] = []
        if rootfs:
            trees.append((ROOT, _open_root(rootfs, propagation)))
        for index, step in enumerate(steps):
            if step is not None and step.kind == "bind" and not step.options.remount:
                tree = _open_source(step, propagation, user_namespaces)
                if tree >= 0:
                    trees.append((index, tree))
        for start in range(0, len(trees), _CHUNK):
            _send(ours, trees[start : start + _CHUNK])

    try:
        run_in_child(in_container)
    finally:
        if mount_namespace < 0:
            posix.close(target)
            posix.close(its_root)
        ours.close()


def receive_trees(fd: int) -> dict[int, int]:
    """The init's side: index of the mount (or :data:`ROOT`) → the descriptor of its tree; *fd* is closed."""
    its = socket(fileno=fd)
    trees: dict[int, int] = {}
    while True:
        data, ancillary, _, _ = its.recvmsg(4 * _CHUNK, 16 + 4 * _CHUNK + 16)
        if not data:
            break
        count = len(data) // 4
        fds: tuple[int, ...] = ()
        for level, kind, rights in ancillary:
            if level == SOL_SOCKET and kind == SCM_RIGHTS:
                fds = unpack(f"{len(rights) // 4}i", rights[: len(rights) // 4 * 4])
        if len(fds) != count:
            raise GpurunError(f"{count} mount trees were sent, {len(fds)} came: the limit RLIMIT_NOFILE is too low")
        for index, tree in zip(unpack(f"{count}i", data), fds):  # noqa: B905 - the lengths are checked above
            posix.set_inheritable(tree, False)
            trees[index] = tree
    its.close()
    return trees


def _send(ours: socket, trees: list[tuple[int, int]]) -> None:
    indexes = pack(f"{len(trees)}i", *[index for index, _ in trees])
    rights = pack(f"{len(trees)}i", *[fd for _, fd in trees])
    ours.sendmsg([indexes], [(SOL_SOCKET, SCM_RIGHTS, rights)])


def _open_root(rootfs: str, propagation: int) -> int:
    try:
        tree = lm.open_tree_path(rootfs, recursive=True)
        lm.mount_setattr(tree, propagation=propagation, recursive=True)
        return tree
    except OSError as e:
        raise StepError("open the rootfs", rootfs, e.errno) from None


def _open_source(step: MountStep, propagation: int, user_namespaces: dict[tuple[str, str], int]) -> int:
    """The tree of a bind mount's source; -1 when it is not there yet: an earlier mount of the list may make it."""
    try:
        tree = lm.open_tree_path(step.source, step.options.recursive)
        lm.mount_setattr(tree, propagation=propagation, recursive=True)
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
            raise GpurunError(
                f'{step.where}: cannot map the ids of "{step.source}": {strerror_lower(e.errno)} '
                f"(not every file system can be mounted with mapped ids)"
            ) from None
    return tree
