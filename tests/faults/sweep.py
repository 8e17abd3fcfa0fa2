"""Which system calls a command of gpurun makes, and with what each of them can fail.

A command runs once under strace(1).  Of what it says, the calls of the interpreter before it has opened gpurun and those of
the container's own program are left out: what becomes of these is not gpurun's.  The rest are the cases of a sweep: one
call, one error.

strace counts the calls of each process from its beginning.  So a call of a child fails in every process that makes as many
of that name, and those of a child that the interpreters make as well, before they have opened gpurun, are not met alone and
left out.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from pathlib import Path
from typing import NamedTuple

#: Calls that cannot fail, or whose failure is memory that the interpreter itself does not get.  close(2) is here because the
#: kernel closes a descriptor whatever it answers, and an injected error would leave it open.
_LEFT_OUT = re.compile(
    r"close|mmap|munmap|mprotect|mremap|madvise|brk|futex|exit|exit_group|rt_sig\w+|sigaltstack|get\w*|clock_\w+|wait4|waitid"
    r"|arch_prctl|set_\w+|rseq|lseek|umask|sysinfo|uname|poll|ppoll|restart_syscall|sched_yield|pause|alarm|time"
)
_ERRORS = {
    "openat": ("EMFILE", "EIO", "ENOMEM", "ENFILE"),
    "openat2": ("EMFILE", "EIO", "ENOMEM"),
    "open_tree": ("EMFILE", "ENOMEM", "EPERM"),
    "read": ("EIO",),
    "pread64": ("EIO",),
    "getdents64": ("EIO", "ENOMEM"),
    "write": ("ENOSPC", "EIO"),
    "pwrite64": ("ENOSPC", "EIO"),
    "ftruncate": ("EIO",),
    "mkdir": ("ENOSPC", "EIO", "EMFILE"),
    "mkdirat": ("ENOSPC", "EROFS", "EIO"),
    "mknod": ("ENOSPC", "EROFS"),
    "mknodat": ("ENOSPC", "EROFS", "EIO"),
    "symlinkat": ("ENOSPC", "EROFS", "EIO"),
    "linkat": ("ENOSPC", "EIO"),
    "rename": ("ENOSPC", "EIO"),
    "renameat": ("ENOSPC", "EIO"),
    "renameat2": ("ENOSPC", "EIO"),
    "unlink": ("EIO", "EBUSY"),
    "unlinkat": ("EIO", "EBUSY"),  # of what the kernel refuses, delete --force gives up: test_undo.py
    "rmdir": ("EBUSY", "EIO"),
    "mount": ("ENOMEM", "EPERM", "EBUSY"),
    "move_mount": ("ENOMEM", "EPERM", "ENOSPC"),
    "fsopen": ("EMFILE", "ENOMEM"),
    "fsconfig": ("ENOMEM", "EPERM"),
    "fsmount": ("EMFILE", "ENOMEM", "EPERM"),
    "mount_setattr": ("EPERM", "ENOMEM"),
    "umount2": ("EBUSY", "EPERM"),
    "pivot_root": ("EBUSY", "EPERM"),
    "clone": ("EAGAIN", "ENOMEM"),
    "clone3": ("EAGAIN", "ENOMEM", "EPERM", "ENOSPC"),
    "vfork": ("EAGAIN", "ENOMEM"),
    "execve": ("ENOMEM", "EACCES"),
    "execveat": ("ENOMEM", "EACCES"),
    "unshare": ("EPERM", "ENOSPC", "ENOMEM"),
    "setns": ("EPERM", "ENOMEM"),
    "pidfd_open": ("EMFILE", "ENOMEM"),
    "pidfd_send_signal": ("EPERM",),
    "kill": ("EPERM",),
    "bpf": ("ENOMEM", "EPERM"),
    "seccomp": ("ENOMEM", "EACCES"),
    "prctl": ("EPERM", "ENOMEM"),
    "keyctl": ("EDQUOT", "ENOMEM"),
    "prlimit64": ("EPERM",),
    "fcntl": ("EMFILE", "EIO"),
    "flock": ("ENOLCK", "EINTR"),
    "dup": ("EMFILE",),
    "dup2": ("EMFILE",),
    "dup3": ("EMFILE",),
    "pipe2": ("EMFILE", "ENFILE"),
    "socket": ("EMFILE", "ENOBUFS"),
    "socketpair": ("EMFILE", "ENOBUFS"),
    "sendmsg": ("ENOBUFS", "EPIPE"),
    "sendto": ("ENOBUFS", "EPIPE"),
    "recvmsg": ("ENOMEM", "EMFILE"),
    "recvfrom": ("ENOMEM",),
    "setresuid": ("EAGAIN", "EPERM"),
    "setresgid": ("EAGAIN", "EPERM"),
    "setgroups": ("ENOMEM", "EPERM"),
    "capset": ("EPERM",),
    "ioctl": ("EIO",),
}
_FILES = ("EIO", "ENOMEM")  # stat(2), chdir(2), chmod(2) and their like

_LINE = re.compile(r"(\d+) +(\w+)\((.*)")
_EXEC = re.compile(r'"([^"]*)", \[(.*?)\]')


class Call(NamedTuple):
    """The *number*-th call *name* of a process; *child*: not of the process that was started, but of one that it made."""

    name: str
    number: int
    child: bool

    @property
    def error(self) -> str:
        """What it fails with: each of the errors apt for a call in its turn."""
        errors = _ERRORS.get(self.name, _FILES)
        return errors[self.number % len(errors)]

    def __str__(self) -> str:
        return f"{self.name} #{self.number}{' of a child' if self.child else ''} = {self.error}"


def calls_made(log: Path, program: Path) -> list[Call]:
    """The calls of gpurun in *log* (``strace -f -o log``) that can fail, each once, in the order in which they were made."""
    counts: dict[int, Counter[str]] = {}
    awaited: dict[int, tuple[str, ...]] = {}  # pid → how the first call of gpurun itself may begin
    ended: set[int] = set()  # they run the container's program
    found: dict[Call, None] = {}
    before: dict[bool, Counter[str]] = {False: Counter(), True: Counter()}  # child → what interpreters make for themselves
    first = 0
    for line in log.read_text(errors="replace").splitlines():
        match = _LINE.match(line)
        if match is None:
            continue
        pid, name, rest = int(match[1]), match[2], match[3]
        first = first or pid
        count = counts.setdefault(pid, Counter())
        count[name] += 1
        if name in ("execve", "execveat") and "= -1 " not in rest and pid not in ended:
            begins = _gpurun_begins(rest, program)
            if begins:
                awaited[pid] = begins
            else:
                ended.add(pid)
        begins = awaited.get(pid, ())
        if f"{name}({rest}".startswith(begins):
            awaited.pop(pid)
            before[pid != first][name] = max(before[pid != first][name], count[name])
            opened = re.search(r"= (\d+)$", rest)
            if name == "openat" and opened:  # the interpreter line then reads what there is, and can say nothing of it
                awaited[pid] = (f"pread64({opened[1]}, ",)
            continue
        if pid in awaited:
            before[pid != first][name] = max(before[pid != first][name], count[name])
        elif pid not in ended and not _LEFT_OUT.fullmatch(name):
            found.setdefault(Call(name, count[name], pid != first))
    before[True] |= before[False]  # who traces children traces all
    return [call for call in found if call.number > before[call.child][call.name]]


def _gpurun_begins(arguments: str, program: Path) -> tuple[str, ...]:
    """How the first call of gpurun's own may begin in what execve(2) with *arguments* starts; () if that is not gpurun."""
    match = _EXEC.search(arguments)
    words = match[2] if match else ""
    if f'"{program}"' in words or f'"{program}"' in arguments:
        script = program.read_bytes()[:2] == b"#!"  # else the compiled front, which begins with its descriptors
        return (f'openat(AT_FDCWD, "{program}"',) if script else ("fcntl(0, F_GETFD",)
    if words == '"gpurun", "exec"':  # the setter of the compiled front
        return ("prctl(PR_SET_DUMPABLE",)
    child = re.search(r'"(\d+)", "gpurun\.', words)
    return (f"pread64({child[1]}, ",) if child else ()


#: With GPURUN_FAULTS=all all calls are taken, with a number N every Nth, with N+K every Nth from the Kth on (3+0, 3+1,
#: 3+2: all), else those whose description matches it (``sendmsg|recvmsg``).
FAULTS = os.environ.get("GPURUN_FAULTS", "")


def chosen(calls: list[Call], count: int) -> list[Call]:
    """Those of *calls* that GPURUN_FAULTS names; without it *count* of them (:func:`sample`)."""
    if not FAULTS:
        return sample(calls, count)
    every = re.fullmatch(r"(\d+)(?:\+(\d+))?", FAULTS)
    if every:
        return calls[int(every[2] or 0) :: int(every[1])]
    return calls if FAULTS == "all" else [call for call in calls if re.search(FAULTS, str(call))]


def sample(calls: list[Call], count: int) -> list[Call]:
    """*count* of *calls*, evenly spread: the same ones each time, of every part of what the command does."""
    if count >= len(calls):
        return calls
    return [calls[(2 * i + 1) * len(calls) // (2 * count)] for i in range(count)]
