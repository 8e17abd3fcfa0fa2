"""The user's process: ``process`` of the config → :class:`ProcessPlan`; pure."""

from __future__ import annotations

from gpurun.errors import ConfigError
from gpurun.record import Record
from gpurun.security.capabilities import CapabilityMasks, capability_masks

TYPE_CHECKING = False
if TYPE_CHECKING:
    from gpurun.oci.config import Linux, Process

#: setrlimit(2) resources by the specification's names.
RLIMITS = {
    name: number
    for number, name in enumerate(
        [
            "RLIMIT_CPU",
            "RLIMIT_FSIZE",
            "RLIMIT_DATA",
            "RLIMIT_STACK",
            "RLIMIT_CORE",
            "RLIMIT_RSS",
            "RLIMIT_NPROC",
            "RLIMIT_NOFILE",
            "RLIMIT_MEMLOCK",
            "RLIMIT_AS",
            "RLIMIT_LOCKS",
            "RLIMIT_SIGPENDING",
            "RLIMIT_MSGQUEUE",
            "RLIMIT_NICE",
            "RLIMIT_RTPRIO",
            "RLIMIT_RTTIME",
        ]
    )
}


class Knobs(Record):
    """Scheduling and memory placement; what is None is left as it was inherited.  See engine/knobs.py."""

    #: (policy, flags, nice, priority, runtime, deadline, period) as sched_setattr(2) takes them; times in nanoseconds
    scheduler: tuple[int, int, int, int, int, int, int] | None = None
    io_priority: int | None = None  # as ioprio_set(2) takes it
    personality: int | None = None
    memory_policy: tuple[int, int] | None = None  # (MPOL_* with its flags, bit mask of nodes)


class ProcessPlan(Record):
    """Who runs what, and as whom.  *env* has unique names, in order; HOME is added by the init when it is missing."""

    args: tuple[str, ...]
    env: tuple[tuple[str, str], ...]
    cwd: str
    uid: int = 0
    gid: int = 0
    groups: tuple[int, ...] | None = ()  # None: the caller's
    umask: int = 0o022
    capabilities: CapabilityMasks | None = None
    no_new_privileges: bool = False
    oom_score_adj: int | None = None
    rlimits: tuple[tuple[int, int, int], ...] = ()  # (resource, soft, hard), set by the parent
    last_cap: int = 40
    terminal: bool = False
    console_size: tuple[int, int] | None = None  # (rows, columns)
    knobs: Knobs | None = None
    apparmor_profile: str = ""
    selinux_label: str = ""
    #: (program, flags for seccomp(2)): installed by the system call before execve, see engine/seccomp.py
    seccomp: tuple[bytes, int] | None = None


def plan_env(env: tuple[str, ...], where: str) -> tuple[tuple[str, str], ...]:
    """``NAME=value`` strings → pairs; of duplicate names the last value wins at the first one's place."""
    pairs: dict[str, str] = {}
    for i, entry in enumerate(env):
        name, equals, value = entry.partition("=")
        if not equals:
            raise ConfigError(f"{where}[{i}]", f"invalid environment variable: missing '=' in \"{entry}\"")
        if not name:
            raise ConfigError(f"{where}[{i}]", f'invalid environment variable: name cannot be empty in "{entry}"')
        pairs[name] = value
    return tuple(pairs.items())


def plan_process(
    process: Process,
    last_cap: int,
    where: str = "process",
    groups: tuple[int, ...] = (),
    linux: Linux | None = None,
    apparmor: bool = False,
    selinux: bool = False,
) -> tuple[ProcessPlan, tuple[str, ...]]:
    """The plan of *process* and the warnings it gives rise to.

    *groups* are added by device edits; *linux* has what else places the process (personality, memoryPolicy); *apparmor* and
    *selinux* say whether this host runs them, which only a process with a label needs to know.
    """
    if not process.cwd:
        raise ConfigError(f"{where}.cwd", "Cwd property must not be empty")
    if not process.cwd.startswith("/"):
        raise ConfigError(f"{where}.cwd", "Cwd must be an absolute path")
    if not process.args:
        raise ConfigError(f"{where}.args", "args must not be empty")
    limits: dict[int, tuple[int, int, int]] = {}
    for i, limit in enumerate(process.rlimits):
        at = f"{where}.rlimits[{i}]"
        if limit.type not in RLIMITS:
            raise ConfigError(f"{at}.type", f'wrong rlimit value: "{limit.type}"')
        number = RLIMITS[limit.type]
        if number in limits:
            raise ConfigError(at, f"{limit.type} is given twice")
        if limit.soft > limit.hard:
            raise ConfigError(at, f"the soft limit {limit.soft} is above the hard limit {limit.hard}")
        limits[number] = (number, limit.soft, limit.hard)
    masks = None
    warnings: tuple[str, ...] = ()
    if process.capabilities is not None:
        masks, warnings = capability_masks(process.capabilities, last_cap)
    if process.apparmor_profile or process.selinux_label:
        from gpurun.security.lsm import check_apparmor, check_selinux

        check_apparmor(process.apparmor_profile, f"{where}.apparmorProfile", apparmor)
        check_selinux(process.selinux_label, f"{where}.selinuxLabel", selinux)
    knobs = None
    placed = linux is not None and (linux.personality is not None or linux.memory_policy is not None)
    if placed or process.scheduler is not None or process.io_priority is not None or process.exec_cpu_affinity is not None:
        from gpurun.engine.knobs import exec_affinity, plan_knobs

        exec_affinity(process, where)  # for exec alone, but a mistake in it is told now
        knobs, more = plan_knobs(process, linux, where)
        warnings += more
    user = process.user
    return (
        ProcessPlan(
            args=process.args,
            env=plan_env(process.env, f"{where}.env"),
            cwd=process.cwd,
            uid=user.uid,
            gid=user.gid,
            groups=user.additional_gids + tuple([g for g in groups if g not in user.additional_gids]),
            umask=0o022 if user.umask is None else user.umask,
            capabilities=masks,
            no_new_privileges=process.no_new_privileges,
            oom_score_adj=process.oom_score_adj,
            rlimits=tuple(limits.values()),
            last_cap=last_cap,
            terminal=process.terminal,
            console_size=process.console_size,
            knobs=knobs,
            apparmor_profile=process.apparmor_profile,
            selinux_label=process.selinux_label,
        ),
        warnings,
    )
