"""Seccomp profiles → what to compile; pure (runtime-spec config-linux.md "Seccomp").

Everything that can be wrong with a profile is found here, before anything is made, but for what only libseccomp or the
kernel can say (see :mod:`gpurun.security.seccomp_compile`).
"""

from __future__ import annotations

from gpurun.errors import ConfigError
from gpurun.linux import seccomp as ls
from gpurun.oci.seccomp import Seccomp, SeccompArg, SeccompSyscall
from gpurun.record import Record

#: SCMP_ACT_* → the action's word for kernel and libseccomp (SECCOMP_RET_*).
ACTIONS = {
    "SCMP_ACT_ALLOW": 0x7FFF0000,
    "SCMP_ACT_ERRNO": 0x00050000,
    "SCMP_ACT_KILL": 0x00000000,
    "SCMP_ACT_KILL_PROCESS": 0x80000000,
    "SCMP_ACT_KILL_THREAD": 0x00000000,
    "SCMP_ACT_LOG": 0x7FFC0000,
    "SCMP_ACT_NOTIFY": 0x7FC00000,
    "SCMP_ACT_TRACE": 0x7FF00000,
    "SCMP_ACT_TRAP": 0x00030000,
}

#: SCMP_CMP_* → enum scmp_compare
OPERATORS = {
    "SCMP_CMP_EQ": 4,
    "SCMP_CMP_GE": 5,
    "SCMP_CMP_GT": 6,
    "SCMP_CMP_LE": 3,
    "SCMP_CMP_LT": 2,
    "SCMP_CMP_MASKED_EQ": 7,
    "SCMP_CMP_NE": 1,
}

#: SCMP_ARCH_* → libseccomp's token, which is the kernel's AUDIT_ARCH_* but for X32 (a bit in the number of the call there).
ARCHITECTURES = {
    "SCMP_ARCH_AARCH64": 0xC00000B7,
    "SCMP_ARCH_ARM": 0x40000028,
    "SCMP_ARCH_LOONGARCH64": 0xC0000102,
    "SCMP_ARCH_MIPS": 0x00000008,
    "SCMP_ARCH_MIPS64": 0x80000008,
    "SCMP_ARCH_MIPS64N32": 0xA0000008,
    "SCMP_ARCH_MIPSEL": 0x40000008,
    "SCMP_ARCH_MIPSEL64": 0xC0000008,
    "SCMP_ARCH_MIPSEL64N32": 0xE0000008,
    "SCMP_ARCH_PARISC": 0x0000000F,
    "SCMP_ARCH_PARISC64": 0x8000000F,
    "SCMP_ARCH_PPC": 0x00000014,
    "SCMP_ARCH_PPC64": 0x80000015,
    "SCMP_ARCH_PPC64LE": 0xC0000015,
    "SCMP_ARCH_RISCV64": 0xC00000F3,
    "SCMP_ARCH_S390": 0x00000016,
    "SCMP_ARCH_S390X": 0x80000016,
    "SCMP_ARCH_X32": 0x4000003E,
    "SCMP_ARCH_X86": 0x40000003,
    "SCMP_ARCH_X86_64": 0xC000003E,
}
X86_64, X32 = ARCHITECTURES["SCMP_ARCH_X86_64"], ARCHITECTURES["SCMP_ARCH_X32"]
AARCH64, ARM = ARCHITECTURES["SCMP_ARCH_AARCH64"], ARCHITECTURES["SCMP_ARCH_ARM"]
_LITTLE_ENDIAN = 0x40000000  # __AUDIT_ARCH_LE

#: SECCOMP_FILTER_FLAG_* → the flag for seccomp(2).  TSYNC is for other threads, of which there are none.
FLAGS = {
    "SECCOMP_FILTER_FLAG_LOG": ls.SECCOMP_FILTER_FLAG_LOG,
    "SECCOMP_FILTER_FLAG_SPEC_ALLOW": ls.SECCOMP_FILTER_FLAG_SPEC_ALLOW,
    "SECCOMP_FILTER_FLAG_TSYNC": 0,
    "SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV": ls.SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV,
}

EPERM, ENOSYS = 1, 38
_MAX_ERRNO = 4095
_ERRNO, _TRACE, _NOTIFY = ACTIONS["SCMP_ACT_ERRNO"], ACTIONS["SCMP_ACT_TRACE"], ACTIONS["SCMP_ACT_NOTIFY"]
#: Default actions under which an unknown call is made (or shown to a tracer) anyway.
_PERMISSIVE = (ACTIONS["SCMP_ACT_ALLOW"], ACTIONS["SCMP_ACT_LOG"], _TRACE)
_ACTION_MASK = 0xFFFF0000


class Rule(Record):
    """*names* get *action* where one of the *conditions* holds, each a conjunction of (argument, operator, a, b); no
    conditions: always.  *where* is the JSON path."""

    names: tuple[str, ...]
    action: int
    conditions: tuple[tuple[tuple[int, int, int, int], ...], ...]
    where: str


class SeccompPlan(Record):
    """What to compile, and how to install it.

    *enosys*: calls newer than all that the profile names give ENOSYS instead of the default action.  *listener_path* is
    empty unless a rule asks for an agent.
    """

    where: str
    default_action: int
    architectures: tuple[int, ...]  # libseccomp's tokens; the machine's own is always among them
    rules: tuple[Rule, ...]
    enosys: bool
    skipped: tuple[str, ...]  # names whose rules say what the default says
    flags: int
    default_flags: bool  # the profile names none: they are dropped where the kernel lacks them
    listener_path: str = ""
    listener_metadata: str = ""
    refuse_unknown: bool = False  # whether names of system calls that are not known are an error
    agent_needed: bool = False  # whether some system call waits for the agent's answer


def plan_seccomp(profile: Seccomp, machine: str) -> SeccompPlan | None:
    """The plan of *profile* on *machine* (``uname -m``), None for an empty one; raises :class:`ConfigError`."""
    json_path = "linux.seccomp"
    if not profile.default_action and not profile.syscalls:
        return None
    default = _action(profile.default_action, profile.default_errno_ret, json_path, "defaultAction", "defaultErrnoRet")
    if default == _NOTIFY:
        raise ConfigError(f"{json_path}.defaultAction", "SCMP_ACT_NOTIFY cannot be used as default action")
    rules: list[Rule] = []
    skipped: list[str] = []
    for i, syscall in enumerate(profile.syscalls):
        rule = _rule(syscall, f"{json_path}.syscalls[{i}]")
        if rule.action == default:
            skipped += rule.names  # libseccomp refuses a rule that changes nothing
        else:
            rules.append(rule)
    notify = any(rule.action == _NOTIFY for rule in rules)
    if notify and not profile.listener_path:
        raise ConfigError(f"{json_path}.listenerPath", "seccomp listenerPath is not set, but a rule has SCMP_ACT_NOTIFY")
    if notify and not profile.listener_path.startswith("/"):
        raise ConfigError(f"{json_path}.listenerPath", f'"{profile.listener_path}" must be an absolute path')
    # An agent without a rule for it gets the listener if it is there, as crun does; runc ignores the path, and so it may
    # also name nothing.
    agent = notify or profile.listener_path.startswith("/")
    return SeccompPlan(
        where=json_path,
        default_action=default,
        architectures=_architectures(profile.architectures, machine, f"{json_path}.architectures"),
        rules=tuple(rules),
        enosys=default & _ACTION_MASK not in _PERMISSIVE and profile.default_errno_ret != ENOSYS,
        skipped=tuple(skipped),
        flags=_flags(profile.flags, agent, f"{json_path}.flags"),
        default_flags=profile.flags is None,
        listener_path=profile.listener_path if agent else "",
        listener_metadata=profile.listener_metadata if agent else "",
        agent_needed=notify,
    )


#: What the last part of a process's way calls before execve(2), in the init and in exec's processes: dropping capabilities,
#: the messages, the FIFO, memory, signals, descriptors, the terminal.  With it whatever Python needs in between.
_WAITING = frozenset(
    """brk capset clock_gettime close close_range dup2 dup3 execve exit exit_group fcntl fstat futex getpid getuid
    ioctl lseek madvise mmap mprotect mremap munmap newfstatat prctl prlimit64 read recvmsg recvfrom rt_sigaction
    rt_sigprocmask rt_sigreturn setsid write""".split()
)
_CLONE_PARENT = 0x8000
_LETS_THROUGH = (ACTIONS["SCMP_ACT_ALLOW"], ACTIONS["SCMP_ACT_LOG"])
_MASKED_EQ = OPERATORS["SCMP_CMP_MASKED_EQ"]


def can_wait(plan: SeccompPlan) -> bool:
    """Whether a process can wait to be started under the filter: all that it calls until its execve(2) is let through.

    Then the filter can be installed while CAP_SYS_ADMIN is still there for it, and the capability be dropped.
    """
    clones = False
    for rule in plan.rules:
        through = rule.action in _LETS_THROUGH
        if "clone" in rule.names:
            clones = clones or (through and (not rule.conditions or any(map(_matches_clone, rule.conditions))))
            if not through:
                return False
    return _lets_through(plan, _WAITING) and (clones or plan.default_action in _LETS_THROUGH)


def can_close(plan: SeccompPlan) -> bool:
    """Whether the filter lets close(2) through, without asking an agent."""
    return _lets_through(plan, frozenset(["close"]))


def _lets_through(plan: SeccompPlan, calls: frozenset[str]) -> bool:
    """Whether each of these *calls* is made whatever its arguments are."""
    named: set[str] = set()
    for rule in plan.rules:
        if rule.action not in _LETS_THROUGH:
            if not calls.isdisjoint(rule.names):
                return False
        elif not rule.conditions:
            named.update(rule.names)
    return plan.default_action in _LETS_THROUGH or calls <= named


def _matches_clone(conditions: tuple[tuple[int, int, int, int], ...]) -> bool:
    """Whether clone(2) with no flag but CLONE_PARENT meets all *conditions*, as engines write them."""
    return all(index == 0 and operator == _MASKED_EQ and _CLONE_PARENT & a == b for index, operator, a, b in conditions)


def _action(name: str, errno_ret: int | None, json_path: str, key: str, errno_key: str) -> int:
    """The action's word, with the number that it gives back."""
    if name not in ACTIONS:
        what = f'"{name}" is unknown' if name else "is missing"
        raise ConfigError(f"{json_path}.{key}", f"{what}, it must be one of {', '.join(ACTIONS)}")
    action = ACTIONS[name]
    if action not in (_ERRNO, _TRACE):
        return action  # a number given with another action means nothing; engines do give one
    number = EPERM if errno_ret is None else errno_ret
    limit = _MAX_ERRNO - 1 if action == _ERRNO else 0xFFFF
    if number > limit:
        raise ConfigError(f"{json_path}.{errno_key}", f"{number} is out of range, it must be from 0 to {limit}")
    return action | number


def _rule(syscall: SeccompSyscall, json_path: str) -> Rule:
    if not syscall.names:
        raise ConfigError(f"{json_path}.names", "must name at least one system call")
    action = _action(syscall.action, syscall.errno_ret, json_path, "action", "errnoRet")
    if action == _NOTIFY and "write" in syscall.names:
        # The init tells its listener's number by write(2); until it has, no agent could answer.
        raise ConfigError(f"{json_path}.names", "SCMP_ACT_NOTIFY cannot be used for the write syscall")
    conditions = tuple([_condition(arg, f"{json_path}.args[{k}]") for k, arg in enumerate(syscall.args)])
    alternatives: tuple[tuple[tuple[int, int, int, int], ...], ...] = (conditions,) if conditions else ()
    if len({condition[0] for condition in conditions}) < len(conditions):
        # An argument that occurs twice: profiles mean "one of these values", and libseccomp takes it once in a rule.
        alternatives = tuple([(condition,) for condition in conditions])
    return Rule(syscall.names, action, alternatives, json_path)


def _condition(arg: SeccompArg, json_path: str) -> tuple[int, int, int, int]:
    if arg.op not in OPERATORS:
        what = f'"{arg.op}" is unknown' if arg.op else "is missing"
        raise ConfigError(f"{json_path}.op", f"{what}, it must be one of {', '.join(OPERATORS)}")
    return arg.index, OPERATORS[arg.op], arg.value, arg.value_two


def native_architecture(machine: str) -> int:
    """libseccomp's token of *machine* (``uname -m``)."""
    return AARCH64 if machine == "aarch64" else X86_64


def _architectures(names: tuple[str, ...], machine: str, json_path: str) -> tuple[int, ...]:
    native = native_architecture(machine)
    tokens = [native]
    for i, name in enumerate(names):
        token = ARCHITECTURES.get(name)
        if token is None:
            raise ConfigError(f"{json_path}[{i}]", f'"{name}" is unknown, it must be one of {", ".join(ARCHITECTURES)}')
        if (token ^ native) & _LITTLE_ENDIAN:
            raise ConfigError(
                f"{json_path}[{i}]", f"{name} has the other byte order than this machine ({machine}), remove it"
            )
        if token not in tokens:
            tokens.append(token)
    return tuple(tokens)


def _flags(names: tuple[str, ...] | None, notify: bool, json_path: str) -> int:
    flags = ls.SECCOMP_FILTER_FLAG_NEW_LISTENER if notify else 0
    if names is None:
        return flags | ls.SECCOMP_FILTER_FLAG_SPEC_ALLOW
    for i, name in enumerate(names):
        if name not in FLAGS:
            raise ConfigError(
                f"{json_path}[{i}]", f"seccomp flag {name} is not known to gpurun, known are {', '.join(FLAGS)}"
            )
        flags |= FLAGS[name]
    if not notify:
        # The kernel refuses it where no agent is notified, and then it would change nothing.
        flags &= ~ls.SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV
    return flags
