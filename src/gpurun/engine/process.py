"""The user's process: ``process`` of the config → :class:`ProcessPlan`; pure."""

from __future__ import annotations

from gpurun.errors import ConfigError, UnsupportedError
from gpurun.oci.config import Process
from gpurun.record import Record
from gpurun.security.capabilities import CapabilityMasks, capability_masks

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


class ProcessPlan(Record):
    """Who runs what, and as whom.  *env* has unique names, in order; HOME is added by the init when it is missing."""

    args: tuple[str, ...]
    env: tuple[tuple[str, str], ...]
    cwd: str
    uid: int = 0
    gid: int = 0
    groups: tuple[int, ...] = ()
    umask: int = 0o022
    capabilities: CapabilityMasks | None = None
    no_new_privileges: bool = False
    oom_score_adj: int | None = None
    rlimits: tuple[tuple[int, int, int], ...] = ()  # (resource, soft, hard), set by the parent
    last_cap: int = 40
    terminal: bool = False
    console_size: tuple[int, int] | None = None  # (rows, columns)


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
    process: Process, last_cap: int, where: str = "process", groups: tuple[int, ...] = ()
) -> tuple[ProcessPlan, tuple[str, ...]]:
    """The plan of *process* and the warnings it gives rise to; *groups* are added by device edits."""
    if not process.cwd:
        raise ConfigError(f"{where}.cwd", "Cwd property must not be empty")
    if not process.cwd.startswith("/"):
        raise ConfigError(f"{where}.cwd", "Cwd must be an absolute path")
    if not process.args:
        raise ConfigError(f"{where}.args", "args must not be empty")
    _refuse(process, where)
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
        masks, unknown = capability_masks(process.capabilities, last_cap)
        if unknown:
            warnings = (f"ignoring unknown or unavailable capabilities: [{' '.join(unknown)}]",)
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
        ),
        warnings,
    )


def _refuse(process: Process, where: str) -> None:
    """What of the specification is not built yet is refused, never ignored."""
    for value, name in (
        (process.apparmor_profile, "apparmorProfile"),
        (process.selinux_label, "selinuxLabel"),
        (process.scheduler, "scheduler"),
        (process.io_priority, "ioPriority"),
        (process.exec_cpu_affinity, "execCPUAffinity"),
    ):
        if value:
            raise UnsupportedError(f"{where}.{name}", "is not supported yet, remove it")
