"""Seccomp filters of containers: from the cache or compiled, before anything of the container is made; and handing the
listener of a filter to its agent.

The cache is a directory beside the state root (:func:`gpurun.cachefile.directory_of`): one file
a filter, named by all that the filter depends on, so that of containers with the same profile only the first loads
libseccomp.  It is a convenience: whatever is wrong with it,
the filter is compiled.
"""

from __future__ import annotations

import posix

from gpurun import log
from gpurun.cachefile import directory_of, entry_name, load, save, this_build
from gpurun.engine.state_root import make_root
from gpurun.errors import ConfigError, GpurunError, oserror_text
from gpurun.linux import libseccomp
from gpurun.linux import seccomp as ls
from gpurun.linux.libc import NR, syscall
from gpurun.oci import SPEC_VERSION
from gpurun.security.seccomp import FLAGS, SeccompPlan, can_close, can_wait


def make_filter(plan: SeccompPlan, root: str) -> tuple[bytes, int]:
    """(program, flags for seccomp(2), CAN_WAIT and CAN_CLOSE) of *plan*; *root* is the state root, which need not exist.

    Raises :class:`GpurunError` when the filter cannot be made on this host; nothing of a container has been made by then.
    Returns (program, flags).
    """
    flags = _kernel_flags(plan)
    path, identity = libseccomp.find()
    library = None
    if not identity:
        # Where the loader finds it we do not know; its version is a part of the name, so it must be asked.
        from gpurun.security.seccomp_compile import load_library

        library = load_library(plan.where)
        identity = library.version()
    host = posix.uname()
    name = entry_name(this_build(), identity, host.release, host.version, host.machine, plan)
    directory = directory_of(root, "seccomp")
    program = load(directory, name, ls.MAX_INSTRUCTIONS * ls.INSTRUCTION_SIZE)
    if not program:
        from gpurun.security.seccomp_compile import compile_plan, load_library

        compiled = compile_plan(plan, library or load_library(plan.where, path))
        for unknown in compiled.unknown:
            if plan.refuse_unknown:
                raise ConfigError(plan.where, f'unknown system call "{unknown}", and an annotation asks to refuse such')
            log.debug(f'unknown seccomp syscall "{unknown}" ignored')
        if compiled.newer_get_default:
            text = "the profile is so long that system calls newer than it get its default action instead of ENOSYS"
            log.warning(f"{plan.where}: {text}")
        program = compiled.program
        make_root(root)
        save(directory, name, program)
    log.debug(f"seccomp filter flags: {flags}")
    return program, flags | (ls.CAN_WAIT if can_wait(plan) else 0) | (ls.CAN_CLOSE if can_close(plan) else 0)


def _kernel_flags(plan: SeccompPlan) -> int:
    """The flags, after the kernel has been asked whether it takes them."""
    if ls.flags_supported(plan.flags):
        return plan.flags
    if not ls.flags_supported(0):
        raise ConfigError(plan.where, "this kernel has no seccomp filters (CONFIG_SECCOMP_FILTER)")
    without = plan.flags & ~ls.SECCOMP_FILTER_FLAG_SPEC_ALLOW
    if plan.default_flags and ls.flags_supported(without):
        return without
    missing = [name for name, flag in FLAGS.items() if flag & plan.flags and not _is_flag_supported(flag)]
    if not missing:
        raise ConfigError(plan.where, "this kernel cannot notify an agent of system calls (SCMP_ACT_NOTIFY)")
    raise ConfigError(f"{plan.where}.flags", f"this kernel does not know {', '.join(missing)}")


def _is_flag_supported(flag: int) -> bool:
    listener = ls.SECCOMP_FILTER_FLAG_NEW_LISTENER if flag == ls.SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV else 0
    return ls.flags_supported(flag | listener)


def supported_flags() -> list[str]:
    """The names of the flags that this kernel takes."""
    return [name for name, flag in FLAGS.items() if _is_flag_supported(flag)]


def send_listener(plan: SeccompPlan, pid: int, listener: int, state: str) -> None:
    """Give the listener, which is descriptor *listener* of our child *pid*, to the agent of the profile.

    One message: a ContainerProcessState (runtime-spec config-linux.md) with *state*, the state document, in it, and the
    descriptor.  Raises :class:`GpurunError` when there is no agent and the profile needs one.
    """
    import _socket

    from gpurun.formats.jsontext import quote
    from gpurun.linux.scm_rights import send_with

    text = (
        f'{{"ociVersion":{quote(SPEC_VERSION)},"fds":["seccompFd"],"pid":{pid}'
        f',"metadata":{quote(plan.listener_metadata)},"state":{state}}}'
    )
    fd = pidfd = -1
    agent = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM | _socket.SOCK_CLOEXEC)
    try:
        pidfd = posix.pidfd_open(pid, 0)
        fd = _take(pidfd, listener)
        agent.connect(plan.listener_path)
        data = text.encode("utf-8", "surrogateescape")
        sent = send_with(agent, data, (fd,))
        while sent < len(data):
            sent += agent.send(data[sent:])
    except OSError as e:
        if not plan.agent_needed:
            return
        raise GpurunError(
            f"failed to connect with seccomp agent specified in the seccomp profile: {plan.listener_path}: {oserror_text(e)}"
        ) from None
    finally:
        agent.close()
        for own in (fd, pidfd):
            if own >= 0:
                posix.close(own)


def _take(pidfd: int, listener: int) -> int:
    """A descriptor of ours for *listener* of the process (pidfd_getfd(2)); raises OSError."""
    try:
        return syscall(NR["pidfd_getfd"], pidfd, listener, 0)
    except PermissionError as e:
        step = "take the listener from the container (with kernel.yama.ptrace_scope = 3 nobody may)"
        raise PermissionError(e.errno, "", step) from None
