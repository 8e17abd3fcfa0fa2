"""The last part of the road to a user's process, which create's init and exec share: streams, user, capabilities, execve(2).

It runs inside the container, next to untrusted code: it imports nothing, opens nothing by a path that the container could
lead elsewhere, and leaves no descriptor behind.
"""

from __future__ import annotations

import posix
import sys
from _stat import S_ISBLK, S_ISCHR
from errno import EACCES, EINVAL, EPERM, EROFS

from gpurun.engine.inside.lookup import check_cwd, find_executable, home_directory
from gpurun.engine.messages import report
from gpurun.engine.signals import default_signals, end_on_signals
from gpurun.errors import GpurunError, Step, StepError, error_text, escape, oserror_text, strerror_lower
from gpurun.linux import process as lp
from gpurun.linux.files import O_CLOEXEC, Fd, write_all
from gpurun.linux.fs import (
    CLOSE_RANGE_CLOEXEC,
    O_DIRECTORY,
    O_NOFOLLOW,
    O_PATH,
    PROC_SUPER_MAGIC,
    RESOLVE_BENEATH,
    RESOLVE_NO_MAGICLINKS,
    RESOLVE_NO_SYMLINKS,
    RESOLVE_NO_XDEV,
    close_others,
    fstatfs_type,
    is_null_device,
    openat2,
)
from gpurun.ns.path import UNUSABLE, open_in_root, reopen
from gpurun.record import replace
from gpurun.security.capabilities import drop_bounding, set_capabilities

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import NoReturn

    from gpurun.engine.plan.records import ProcessPlan
    from gpurun.security.capabilities import CapabilityMasks

_CAP_SYS_ADMIN = 1 << 21
#: No link is followed, and nothing that is mounted on a file of procfs is written to in its place.
_ON_PROC = RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS | RESOLVE_NO_MAGICLINKS | RESOLVE_NO_XDEV


def begin_starter(command: str) -> int:
    """What a starter does first of all: its names in ps(1), by the *command* that it works for; returns its socket, of which
    ``argv[1]`` is the descriptor."""
    channel = int(sys.argv[1])
    posix.set_inheritable(channel, False)
    lp.set_name("gpurun:[start]")
    lp.set_command_line(f"gpurun {command}")
    return channel


def fail(channel: int, command: str, error: BaseException) -> NoReturn:
    """End, after the reason has been sent to the parent; a parent that has given up reports that itself.  *command* is who
    says it on stderr where no parent listens any more."""
    if not isinstance(error, (BrokenPipeError, ConnectionResetError)):
        text = error_text(error)
        try:
            report(channel, "failed", text)
        except OSError:
            posix.write(2, f"gpurun {command}: {escape(text)}\n".encode())
    posix._exit(1)


def open_proc() -> int:
    """The host's /proc, verified to be one: everything written to /proc goes through this descriptor.

    Raises :class:`GpurunError` where something else is mounted there.
    """
    fd = posix.open("/proc", O_PATH | O_DIRECTORY | O_CLOEXEC)
    if fstatfs_type(fd) != PROC_SUPER_MAGIC:
        raise GpurunError("/proc of the host is not a proc file system")
    return fd


def write_proc(proc_fd: int, path: str, value: str) -> None:
    """Write *value* to *path* below the /proc that *proc_fd* is.  Raises :class:`StepError`."""
    if path.startswith("self/"):
        path = posix.readlink("self", dir_fd=proc_fd) + path[4:]
    with Step("write", f'"{value}" to /proc/{path}'), Fd(openat2(proc_fd, path, posix.O_WRONLY, _ON_PROC)) as fd:
        write_all(fd, value.encode())


def set_oom_score_adj(value: int | None) -> None:
    """Our own OOM score adjustment, which all that we clone inherit (proc_pid_oom_score_adj(5)); None leaves it.

    To be called before a user namespace is entered and before PR_SET_DUMPABLE is 0: then the file is the host's root's.
    Raises :class:`GpurunError` when the kernel refuses.
    """
    if value is None:
        return
    with Fd(open_proc()) as proc_fd:
        try:
            write_proc(proc_fd, "self/oom_score_adj", str(value))
        except StepError as e:
            hint = (
                " (process.oomScoreAdj: only CAP_SYS_RESOURCE permits less than the caller's own)"
                if e.errno == EACCES
                else ""
            )
            raise GpurunError(f"{e}{hint}") from None


def null_stdio(root_fd: int, proc_fd: int) -> None:
    """Where stdin, stdout or stderr is the host's /dev/null, put the container's in its place.

    Raises :class:`StepError`.
    """
    for fd in (0, 1, 2):
        if not is_null_device(fd):
            continue
        try:
            with Fd(open_in_root(root_fd, "/dev/null", O_PATH | O_NOFOLLOW)) as found:
                if not is_null_device(found):  # looked at first: to open another device may do something already
                    return  # a container without one keeps what it was given
                null = reopen(found, posix.O_RDWR, proc_fd)
        except OSError as e:
            if e.errno in UNUSABLE:
                return
            raise StepError("open", "/dev/null of the container", e.errno) from None
        posix.dup2(null, fd)
        posix.close(null)


def environment(process: ProcessPlan, root_fd: int, proc_fd: int) -> dict[str, str]:
    """The variables of the process, with HOME of its user's entry in the container's /etc/passwd where it has none."""
    env = dict(process.env)
    if not env.get("HOME"):
        env["HOME"] = home_directory(root_fd, proc_fd, process.uid)
    return env


def become_process(process: ProcessPlan, env: dict[str, str]) -> str:
    """Take the user, groups and capabilities of the process; returns the path of its program, looked up as that user.

    Raises :class:`GpurunError` and :class:`StepError` for what the kernel refuses, in runc's words.
    """
    masks = process.capabilities
    if masks is not None:
        drop_bounding(masks.bounding, process.last_cap)
    lp.prctl(lp.PR_SET_KEEPCAPS, 1)
    _own_stdio(process)
    # As root first: the directory may be closed to the user, or (below) open only to the user.
    entered = _try_chdir(process.cwd)
    try:
        if process.groups is not None:
            posix.setgroups(list(process.groups))
    except PermissionError:
        if process.groups:
            raise StepError(
                "set the additional groups",
                str(list(process.groups)),
                EPERM,
                "a user namespace that maps only the caller's group may not set any (user_namespaces(7)): map more groups "
                "(newgidmap, /etc/subgid), leave process.user.additionalGids out, or keep the caller's groups "
                '(the annotation "run.oci.keep_original_groups": "1")',
            ) from None
    with Step("setgid", f"{process.gid} (is it mapped in the user namespace?)"):
        posix.setresgid(process.gid, process.gid, process.gid)
    with Step("setuid", f"{process.uid} (is it mapped in the user namespace?)"):
        posix.setresuid(process.uid, process.uid, process.uid)
    if not entered:
        try:
            posix.chdir(process.cwd)
        except OSError as e:
            raise GpurunError(
                f'chdir to cwd ("{process.cwd}") set in config.json failed: {oserror_text(OSError(e.errno, ""))}'
            ) from None
    check_cwd()
    lp.prctl(lp.PR_SET_KEEPCAPS, 0)
    needs_admin = process.seccomp is not None and not process.no_new_privileges
    if masks is not None:
        set_capabilities(_with_admin(masks) if needs_admin else masks)
    elif needs_admin:
        effective, permitted, inheritable = lp.capget()  # an ordinary user's are permitted still, but not effective
        lp.capset(effective | _CAP_SYS_ADMIN, permitted, inheritable)
    return find_executable(process.args[0], env.get("PATH", ""))


def _with_admin(masks: CapabilityMasks) -> CapabilityMasks:
    """*masks* and CAP_SYS_ADMIN, which installing a filter takes without no_new_privs; :func:`filtered_early` drops it again
    where the process can wait under its filter.

    It makes no difference to the program: execve(2) computes its permitted and effective sets anew, from the other three,
    the user and the file, and never from these two.  So the capability needs no dropping after the filter is on, and the
    filter needs to allow no system call but execve.
    """
    return replace(masks, effective=masks.effective | _CAP_SYS_ADMIN, permitted=masks.permitted | _CAP_SYS_ADMIN)


def filtered_early(process: ProcessPlan) -> bool:
    """Install the filter now, and drop the CAP_SYS_ADMIN that :func:`become_process` has left for it: where the profile lets
    the process wait under it, and where the capability was needed.  Returns whether it is on.

    So a process that looks into one that waits, or traces one in its first moment, does not find that capability there.
    """
    seccomp = process.seccomp
    if seccomp is None or process.no_new_privileges:
        return False
    from gpurun.linux.seccomp import CAN_WAIT, SECCOMP_FILTER_FLAG_NEW_LISTENER, install  # imported before, too

    if not seccomp[1] & CAN_WAIT or seccomp[1] & SECCOMP_FILTER_FLAG_NEW_LISTENER:
        return False
    with Step("install", "the seccomp filter"):
        install(*seccomp)
    masks = process.capabilities
    if masks is not None:
        lp.capset(masks.effective, masks.permitted, masks.inheritable)
    elif process.uid:  # root without a list keeps what the caller has, as its program will
        effective, permitted, inheritable = lp.capget()
        lp.capset(effective & ~_CAP_SYS_ADMIN, permitted & ~_CAP_SYS_ADMIN, inheritable)
    return True


def _try_chdir(path: str) -> bool:
    try:
        posix.chdir(path)
        return True
    except OSError:
        return False  # tried again as the user


def _own_stdio(process: ProcessPlan) -> None:
    """Give the user the streams it inherits, so that it can open /dev/stdout; never a device, which is the host's, but for
    the terminal that was made for it.

    That keeps its group, which is what lets write(1) and its like reach it.
    """
    for fd in (0, 1, 2):
        found = posix.fstat(fd)
        device = S_ISCHR(found.st_mode) or S_ISBLK(found.st_mode)
        if found.st_uid == process.uid or (device and not process.terminal):
            continue
        try:
            posix.fchown(fd, process.uid, -1 if device else process.gid)
        except OSError as e:
            if e.errno not in (EPERM, EINVAL, EROFS):  # it works without, as in runc; EINVAL: the id is not mapped
                raise StepError("change the owner of the standard stream", str(fd), e.errno) from None


def execute(
    path: str,
    args: tuple[str, ...],
    env: dict[str, str],
    preserved: tuple[int, ...] = (),
    seccomp: tuple[bytes, int] | None = None,
) -> NoReturn:
    """Close all descriptors but the streams and those *preserved*, reset the signals and become the user's program, under
    the filter *seccomp*.

    When execve(2) fails the process says so on its stderr and ends with status 255.
    """
    default_signals()
    close_others(preserved)
    try:
        if seccomp is None:
            posix.execve(path, list(args), env)
        else:
            execve_filtered(path, args, env, seccomp)
    except OSError as e:
        _last_words(path, e)


def execve_filtered(path: str, args: tuple[str, ...], env: dict[str, str], seccomp: tuple[bytes, int]) -> NoReturn:
    """execve(2) right after installing the filter; raises OSError when one of the two fails."""
    from gpurun.linux.seccomp import prepare_execve  # imported before the host's tree was left

    raise prepare_execve(path, args, env, *seccomp)()


def notify_first(
    path: str, args: tuple[str, ...], env: dict[str, str], preserved: tuple[int, ...], seccomp: tuple[bytes, int]
) -> tuple[int, Callable[[], NoReturn]]:
    """For a filter with an agent, which must get the listener while the container is being created: install it now.

    Returns the listener's descriptor and a function that becomes the program by nothing but execve(2): descriptors and
    signals are as they must be then already, for of what comes in between every system call is up to the profile and the
    agent.  The tuple is (descriptor, function).
    """
    from gpurun.linux.seccomp import install, prepare_execve  # imported before the host's tree was left

    default_signals()
    end_on_signals()  # which is undone by execve(2)
    close_others(preserved, CLOSE_RANGE_CLOEXEC)
    execve = prepare_execve(path, args, env)

    def become() -> NoReturn:
        _last_words(path, execve())

    return install(*seccomp), become


def close_listener(listener: int, flags: int) -> None:
    """Close our own descriptor of the listener, which the agent has got by now.

    While it is open, a system call waits for an answer even though the agent has gone, where the kernel would fail it with
    ENOSYS.  Under a filter that does not let close(2) through, by its *flags*, execve(2) is what closes it.
    """
    from gpurun.linux.seccomp import CAN_CLOSE  # imported before the host's tree was left

    if flags & CAN_CLOSE:
        posix.close(listener)


def _last_words(path: str, e: OSError) -> NoReturn:
    what = "install the seccomp filter" if e.filename == "seccomp" else f"exec {path}"
    posix.write(2, f"{escape(what)}: {strerror_lower(e.errno)}\n".encode())
    posix._exit(255)
