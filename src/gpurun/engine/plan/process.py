"""The user's process: ``process`` of the config → :class:`ProcessPlan`; pure."""

from __future__ import annotations

from gpurun.engine.plan.records import ProcessPlan
from gpurun.errors import ConfigError, clean
from gpurun.linux.process import RLIMITS as LIMITS
from gpurun.record import Record
from gpurun.security.capabilities import capability_masks

TYPE_CHECKING = False
if TYPE_CHECKING:
    from gpurun.oci.config import Linux, Process

#: setrlimit(2) resources by the specification's names.
RLIMITS = {f"RLIMIT_{name}": number for number, name in enumerate(LIMITS)}


def plan_env(env: tuple[str, ...], json_path: str) -> tuple[tuple[str, str], ...]:
    """``NAME=value`` strings → pairs; of duplicate names the last value wins at the first one's place.

    Raises :class:`ConfigError` at *json_path* for an entry without ``=`` or without a name.
    """
    pairs: dict[str, str] = {}
    for i, entry in enumerate(env):
        name, equals, value = entry.partition("=")
        if not equals:
            raise ConfigError(f"{json_path}[{i}]", f"invalid environment variable: missing '=' in \"{entry}\"")
        if not name:
            raise ConfigError(f"{json_path}[{i}]", f'invalid environment variable: name cannot be empty in "{entry}"')
        pairs[name] = value
    return tuple(pairs.items())


class ProcessHost(Record):
    """What the plan of a process depends on: the newest capability, and whether the host runs the modules of its labels."""

    last_cap: int  # /proc/sys/kernel/cap_last_cap
    apparmor: bool = False
    selinux: bool = False


def plan_process(
    process: Process, host: ProcessHost, groups: tuple[int, ...], linux: Linux | None
) -> tuple[ProcessPlan, tuple[str, ...]]:
    """The plan of *process* and the warnings it gives rise to; raises :class:`ConfigError`.

    *groups* are added by device edits; *linux* has what else places the process (personality, memoryPolicy).
    """
    _check_program(process)
    masks = None
    warnings: tuple[str, ...] = ()
    if process.capabilities is not None:
        masks, warnings = capability_masks(process.capabilities, host.last_cap)
    if process.apparmor_profile or process.selinux_label:
        from gpurun.security.lsm import check_apparmor, check_selinux

        check_apparmor(process.apparmor_profile, "process.apparmorProfile", host.apparmor)
        check_selinux(process.selinux_label, "process.selinuxLabel", host.selinux)
    knobs = None
    placed = linux is not None and (linux.personality is not None or linux.memory_policy is not None)
    if placed or process.scheduler is not None or process.io_priority is not None or process.exec_cpu_affinity is not None:
        from gpurun.engine.plan.scheduling import exec_affinity, plan_knobs

        exec_affinity(process)  # only for exec, but a mistake in it is reported now
        knobs, more = plan_knobs(process, linux)
        warnings += more
    user = process.user
    return (
        ProcessPlan(
            args=process.args,
            env=plan_env(process.env, "process.env"),
            cwd=process.cwd,
            uid=user.uid,
            gid=user.gid,
            groups=user.additional_gids + tuple([g for g in groups if g not in user.additional_gids]),
            umask=0o022 if user.umask is None else user.umask,
            capabilities=masks,
            no_new_privileges=process.no_new_privileges,
            oom_score_adj=process.oom_score_adj,
            rlimits=_plan_limits(process),
            last_cap=host.last_cap,
            terminal=process.terminal,
            console_size=process.console_size,
            knobs=knobs,
            apparmor_profile=process.apparmor_profile,
            selinux_label=process.selinux_label,
        ),
        warnings,
    )


def _check_program(process: Process) -> None:
    if not process.cwd:
        raise ConfigError("process.cwd", "Cwd property must not be empty")
    if not process.cwd.startswith("/"):
        raise ConfigError("process.cwd", "Cwd must be an absolute path")
    if not process.args:
        raise ConfigError("process.args", "args must not be empty")


def _plan_limits(process: Process) -> tuple[tuple[int, int, int], ...]:
    """(RLIMIT_* number, soft, hard) of each limit."""
    limits: dict[int, tuple[int, int, int]] = {}
    for i, limit in enumerate(process.rlimits):
        at = f"process.rlimits[{i}]"
        if limit.type not in RLIMITS:
            known = ", ".join(sorted(RLIMITS))
            raise ConfigError(f"{at}.type", f'wrong rlimit value: "{clean(limit.type)}" (known are {known})')
        number = RLIMITS[limit.type]
        if number in limits:
            raise ConfigError(at, f"{limit.type} is given twice")
        if limit.soft > limit.hard:
            raise ConfigError(at, f"the soft limit {limit.soft} is above the hard limit {limit.hard}")
        limits[number] = (number, limit.soft, limit.hard)
    return tuple(limits.values())
