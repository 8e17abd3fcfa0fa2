"""Processes and namespaces: clone3(2), setns(2), unshare(2), prctl(2), pidfds."""

from __future__ import annotations

import posix
import sys
from _struct import pack, unpack
from errno import ENOSYS, EPERM

from gpurun.errors import Step, StepError
from gpurun.linux.libc import NR, address, buffer, cstring, is_refused, overwrite_arguments, syscall

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

SIGKILL, SIGCHLD = 9, 17
#: setrlimit(2)'s resources by number, without RLIMIT_ before them.
RLIMITS = (
    "CPU", "FSIZE", "DATA", "STACK", "CORE", "RSS", "NPROC", "NOFILE",
    "MEMLOCK", "AS", "LOCKS", "SIGPENDING", "MSGQUEUE", "NICE", "RTPRIO", "RTTIME",
)  # fmt: skip
RLIMIT_NPROC = 6
CAP_SETGID, CAP_SETUID, CAP_SYS_CHROOT, CAP_SYS_ADMIN, CAP_SETFCAP = 6, 7, 18, 21, 31

PR_GET_DUMPABLE, PR_SET_DUMPABLE = 3, 4
PR_SET_KEEPCAPS = 8
PR_SET_NAME = 15
PR_CAPBSET_DROP = 24
PR_SET_CHILD_SUBREAPER = 36
PR_SET_NO_NEW_PRIVS = 38
PR_CAP_AMBIENT = 47
PR_CAP_AMBIENT_RAISE = 2
PR_CAP_AMBIENT_CLEAR_ALL = 4


_KEYCTL_JOIN_SESSION_KEYRING, _KEYCTL_SETPERM, _KEYCTL_DESCRIBE = 1, 5, 6
_KEY_USR_SEARCH, _KEY_USR_ALL = 0x80000, 0x3F0000


class BornElsewhere(OSError):
    """A process can be born in no other cgroup than ours: it is to be moved."""


def clone3(flags: int, cgroup_fd: int = -1, pidfd: bool = True) -> tuple[int, int]:
    """clone3(2) as a fork with *flags*: (pid, pidfd or -1) in the parent, (0, -1) in the child.

    With *cgroup_fd* the child is born in that cgroup.  The child shares nothing but runs in a copy of this interpreter that
    no fork handler has seen: it must soon exec or _exit.  Where a filter refuses clone3(2), it is clone(2), which knows
    neither CLONE_NEWTIME nor cgroups: raises :class:`BornElsewhere` for a *cgroup_fd* then, else OSError.
    """
    made = buffer(4)
    if pidfd:
        flags |= CLONE_PIDFD
    if cgroup_fd >= 0:
        flags |= CLONE_INTO_CGROUP
    # struct clone_args: flags, pidfd, child_tid, parent_tid, exit_signal, stack, stack_size, tls, set_tid, set_tid_size,
    # cgroup
    signal = 0 if flags & CLONE_PARENT else SIGCHLD
    args = pack("11Q", flags, address(made) if pidfd else 0, 0, 0, signal, 0, 0, 0, 0, 0, cgroup_fd if cgroup_fd >= 0 else 0)
    try:
        pid = syscall(NR["clone3"], args, len(args))
    except OSError as e:
        if e.errno not in (ENOSYS, EPERM) or not is_refused("clone3"):
            raise
        if cgroup_fd >= 0:
            raise BornElsewhere(e.errno) from None
        pid = syscall(NR["clone"], flags | signal, 0, made if pidfd else None, 0, 0)
    return pid, int.from_bytes(made.raw, "little") if pid and pidfd else -1


def clone(flags: int) -> int:
    """clone(2) as a fork with *flags*, as :func:`clone3`; for a process whose filter knows no clone3: the pid, 0 in
    the child.

    The signal at its end is that of this process, with CLONE_PARENT.
    """
    return syscall(NR["clone"], flags, 0, 0, 0, 0)


def unshare(flags: int) -> None:
    """unshare(2)."""
    syscall(NR["unshare"], flags)


def setns(fd: int, nstype: int = 0) -> None:
    """setns(2): join the namespace of *fd*, which must be of the kind *nstype* (a CLONE_NEW* flag) unless that is 0."""
    syscall(NR["setns"], fd, nstype)


def prctl(option: int, arg2: int = 0, arg3: int = 0, arg4: int = 0, arg5: int = 0) -> int:
    """prctl(2)."""
    return syscall(NR["prctl"], option, arg2, arg3, arg4, arg5)


def set_name(name: str) -> None:
    """What ps and top call this process until its next execve(2), which names it after its program: at most 15 bytes."""
    text = buffer(cstring(name))
    prctl(PR_SET_NAME, address(text))


def set_command_line(text: str) -> None:
    """*text* in the place of this process's arguments, as far as they reach, in /proc/self/cmdline; for this and what it
    clones, until the next execve(2).

    ``sys.argv`` and ``sys.orig_argv`` are copies, and stay.
    """
    room = sum([len(word) + 1 for word in sys.orig_argv])  # in characters, of which each is a byte or more
    overwrite_arguments(cstring(text)[: room - 1].ljust(room, b"\0"))


def prlimit(pid: int, resource: int, soft: int, hard: int) -> None:
    """prlimit64(2): set the limits of another process; values are unsigned 64-bit, all ones for no limit."""
    syscall(NR["prlimit64"], pid, resource, pack("QQ", soft, hard), None)


def set_limit(pid: int, resource: int, soft: int, hard: int) -> None:
    """prlimit(2) of *pid*, 0 for this process; raises :class:`StepError`."""
    with Step("set the limit", f"RLIMIT_{RLIMITS[resource]} to {soft}:{hard}"):
        prlimit(pid, resource, soft, hard)


def get_limit(pid: int, resource: int) -> tuple[int, int]:
    """(soft, hard) limit of another process, as :func:`prlimit` takes them."""
    found = buffer(16)
    syscall(NR["prlimit64"], pid, resource, None, found)
    soft, hard = unpack("QQ", found.raw)
    return soft, hard


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
    """capget(2) of this thread: the effective, permitted and inheritable sets as 64-bit masks.

    Returns (effective, permitted, inheritable).
    """
    data = buffer(24)
    syscall(NR["capget"], pack("Ii", 0x20080522, 0), data)
    words = unpack("6I", data.raw)
    return words[0] | words[3] << 32, words[1] | words[4] << 32, words[2] | words[5] << 32


def has_capabilities(*numbers: int) -> bool:
    """Whether all of those CAP_* are effective here: in our own user namespace, whichever that is."""
    effective = capget()[0]
    return all(effective >> number & 1 for number in numbers)


def capset(effective: int, permitted: int, inheritable: int) -> None:
    """capset(2) of this thread, version 3 (64-bit masks)."""
    header = pack("Ii", 0x20080522, 0)
    low = 0xFFFFFFFF
    data = pack(
        "6I", effective & low, permitted & low, inheritable & low, effective >> 32, permitted >> 32, inheritable >> 32
    )
    syscall(NR["capset"], header, data)


def become_root() -> None:
    """Take the ids of the user namespace's root; the caller's groups mean nothing in it."""
    posix.setresgid(0, 0, 0)
    posix.setresuid(0, 0, 0)


def make_session_keyring(name: str) -> None:
    """Join the session keyring *name*: a container must not hold the runtime's keys.

    Others of its user that know the name may join it, as exec does.  They may not view it, which would tell them the name,
    nor read it or link to it (keyrings(7)).
    """
    keyring = join_session_keyring(name)
    if not keyring:
        return
    with Step("set the permissions of the session keyring", name):
        described = buffer(1024)
        syscall(NR["keyctl"], _KEYCTL_DESCRIBE, keyring, described, 1024, 0)
        permissions = int(described.raw.split(b";")[3], 16)  # "type;uid;gid;perm;description"
        syscall(NR["keyctl"], _KEYCTL_SETPERM, keyring, (permissions & ~_KEY_USR_ALL) | _KEY_USR_SEARCH, 0, 0)


def join_session_keyring(name: str) -> int:
    """Join the session keyring *name*, or make one where there is none that we may search; its serial number.

    0 is of a kernel without keyrings, which has no keys to protect.  Raises :class:`StepError` when the kernel refuses.
    """
    try:
        return syscall(NR["keyctl"], _KEYCTL_JOIN_SESSION_KEYRING, cstring(name), 0, 0, 0)
    except OSError as e:
        if e.errno == ENOSYS:
            return 0
        raise StepError("join the session keyring", f"{name} (--no-new-keyring goes without)", e.errno) from None
