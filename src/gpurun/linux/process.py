"""Processes and namespaces: clone3(2), setns(2), unshare(2), prctl(2), pidfds."""

from __future__ import annotations

import posix
from _struct import pack, unpack

from gpurun.linux.libc import NR, address, buffer, syscall

CLONE_NEWTIME = 0x00000080
CLONE_PIDFD = 0x00001000
CLONE_PARENT = 0x00008000
CLONE_NEWNS = 0x00020000
CLONE_NEWCGROUP = 0x02000000
CLONE_NEWUTS = 0x04000000
CLONE_NEWIPC = 0x08000000
CLONE_NEWUSER = 0x10000000
CLONE_NEWPID = 0x20000000
CLONE_NEWNET = 0x40000000
CLONE_INTO_CGROUP = 0x200000000

SIGCHLD = 17

PR_SET_DUMPABLE = 4
PR_SET_KEEPCAPS = 8
PR_CAPBSET_DROP = 24
PR_SET_CHILD_SUBREAPER = 36
PR_SET_NO_NEW_PRIVS = 38
PR_CAP_AMBIENT = 47
PR_CAP_AMBIENT_RAISE = 2
PR_CAP_AMBIENT_CLEAR_ALL = 4


def clone3(flags: int, cgroup_fd: int = -1) -> tuple[int, int]:
    """clone3(2) as a fork with *flags*: (pid, pidfd) in the parent, (0, -1) in the child.

    With *cgroup_fd* the child is born in that cgroup.  The child shares nothing but runs in a copy of this interpreter that
    no fork handler has seen: it must soon exec or _exit.
    """
    pidfd = buffer(4)
    if cgroup_fd >= 0:
        flags |= CLONE_INTO_CGROUP
    # struct clone_args: flags, pidfd, child_tid, parent_tid, exit_signal, stack, stack_size, tls, set_tid, set_tid_size,
    # cgroup
    signal = 0 if flags & CLONE_PARENT else SIGCHLD
    args = pack("11Q", flags | CLONE_PIDFD, address(pidfd), 0, 0, signal, 0, 0, 0, 0, 0, cgroup_fd if cgroup_fd >= 0 else 0)
    pid = syscall(NR["clone3"], args, len(args))
    return pid, int.from_bytes(pidfd.raw, "little") if pid else -1


def unshare(flags: int) -> None:
    """unshare(2)."""
    syscall(NR["unshare"], flags)


def setns(fd: int, nstype: int = 0) -> None:
    """setns(2): join the namespace of *fd*, which must be of the kind *nstype* (a CLONE_NEW* flag) unless that is 0."""
    syscall(NR["setns"], fd, nstype)


def prctl(option: int, arg2: int = 0, arg3: int = 0, arg4: int = 0, arg5: int = 0) -> int:
    """prctl(2)."""
    return syscall(NR["prctl"], option, arg2, arg3, arg4, arg5)


def prlimit(pid: int, resource: int, soft: int, hard: int) -> None:
    """prlimit64(2): set the limits of another process; values are unsigned 64-bit, all ones for no limit."""
    syscall(NR["prlimit64"], pid, resource, pack("QQ", soft, hard), None)


def pidfd_open(pid: int) -> int:
    """pidfd_open(2)."""
    return posix.pidfd_open(pid, 0)


def sethostname(name: str) -> None:
    """sethostname(2)."""
    raw = name.encode("utf-8", "surrogateescape")
    syscall(NR["sethostname"], raw, len(raw))


def setdomainname(name: str) -> None:
    """setdomainname(2)."""
    raw = name.encode("utf-8", "surrogateescape")
    syscall(NR["setdomainname"], raw, len(raw))


def capget() -> tuple[int, int, int]:
    """capget(2) of this thread: the effective, permitted and inheritable sets as 64-bit masks."""
    data = buffer(24)
    syscall(NR["capget"], pack("Ii", 0x20080522, 0), data)
    words = unpack("6I", data.raw)
    return words[0] | words[3] << 32, words[1] | words[4] << 32, words[2] | words[5] << 32


def capset(effective: int, permitted: int, inheritable: int) -> None:
    """capset(2) of this thread, version 3 (64-bit masks)."""
    header = pack("Ii", 0x20080522, 0)
    low = 0xFFFFFFFF
    data = pack(
        "6I", effective & low, permitted & low, inheritable & low, effective >> 32, permitted >> 32, inheritable >> 32
    )
    syscall(NR["capset"], header, data)
