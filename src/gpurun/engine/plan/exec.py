"""What exec is asked for, and what it comes to: options and the container's saved config → :class:`ExecPlan`; pure.

A process given as a file stands for itself, and gets from the container what it leaves out; one given by options is the
container's own with changes.  Capabilities given by option never become inheritable (CVE-2022-29162).
"""

from __future__ import annotations

from gpurun.decimals import decimal
from gpurun.engine.plan.process import ProcessHost, plan_process
from gpurun.engine.plan.records import ExecPlan
from gpurun.errors import GpurunError
from gpurun.linux.process import CLONE_NEWNS
from gpurun.ns.namespaces import NAMESPACES
from gpurun.oci.annotations import CRUN_KEEP_GROUPS
from gpurun.oci.config import Capabilities, Linux, Process, User, read_process
from gpurun.oci.reader import as_object, get_array, get_object, get_string, get_string_map, parse_json
from gpurun.record import Record, replace

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


_MAX_ID = (1 << 32) - 2  # the last one means "no id" to the kernel


class ExecOptions(Record):
    """What the command line says; paths are absolute.  *process* is the object of the process file: with it, what stands
    below *process* up to *no_new_privileges* does not count."""

    id: str
    root: str
    process: dict[str, Any] | None = None
    process_text: bytes = b""  # of the process file, which *process* was read from
    args: tuple[str, ...] = ()
    cwd: str = ""
    env: tuple[str, ...] = ()
    user: str = ""
    additional_gids: tuple[str, ...] = ()
    capabilities: tuple[str, ...] = ()
    tty: bool = False
    apparmor_profile: str = ""
    selinux_label: str = ""
    no_new_privileges: bool | None = None
    detach: bool = False
    pid_file: str = ""
    console_socket: str = ""
    pidfd_socket: str = ""
    preserved: tuple[int, ...] = ()  # descriptors of the caller's that the process inherits
    cgroup: str = ""
    ignore_paused: bool = False

    @property
    def terminal(self) -> bool:
        """Whether the process is to have a terminal."""
        return self.tty if self.process is None else bool(self.process.get("terminal"))


class ExecHost(Record):
    """What the plan depends on besides: facts that were read."""

    last_cap: int
    apparmor: bool = False
    selinux: bool = False


class SavedConfig(Record):
    """What exec needs of the config that the container was made from."""

    process: Process
    namespaces: int  # CLONE_NEW* flags
    linux: Linux  # only personality, memoryPolicy and seccomp
    keep_groups: bool = False  # the additional groups are the caller's (run.oci.keep_original_groups)


def read_saved_config(data: bytes, path: str) -> SavedConfig:
    """From the text of the container's own copy of its config.json."""
    obj = as_object(parse_json(data, path), path)
    linux = get_object(obj, "linux", "") or {}
    namespaces = 0
    for kind in get_array(linux, "namespaces", "linux", _namespace_type):
        namespaces |= NAMESPACES[kind][0]
    return SavedConfig(
        read_process(get_object(obj, "process", "") or {}, "process"),
        namespaces,
        Linux(
            personality=get_object(linux, "personality", "linux"),
            memory_policy=get_object(linux, "memoryPolicy", "linux"),
            seccomp=get_object(linux, "seccomp", "linux"),
        ),
        get_string_map(obj, "annotations", "").get(CRUN_KEEP_GROUPS) == "1",
    )


def _namespace_type(value: Any, json_path: str) -> str:
    return get_string(as_object(value, json_path), "type", json_path)


def plan_exec(
    options: ExecOptions,
    config: SavedConfig,
    edits: tuple[tuple[str, ...], tuple[int, ...]],
    host: ExecHost,
    rootfs: str,
    session_keyring: str,
    seccomp: tuple[bytes, int] | None = None,
) -> tuple[ExecPlan, tuple[str, ...]]:
    """The plan and its warnings.  *edits* are the variables and groups of the container's devices: as at create, they go
    before those of the process.  *seccomp* is the container's filter (program, flags)."""
    if options.process is None:
        given = _from_options(options, config.process)
    else:
        given = _complete(read_process(options.process, "process"), config.process)
    env = given.env + edits[0]
    if options.process is None:
        env += options.env
    given = replace(given, env=env)
    its_host = ProcessHost(host.last_cap, host.apparmor, host.selinux)
    process, warnings = plan_process(given, its_host, edits[1], config.linux)
    if config.keep_groups:
        process = replace(process, groups=None)
    affinity = (b"", b"")
    if given.exec_cpu_affinity is not None:
        from gpurun.engine.plan.scheduling import exec_affinity

        affinity = exec_affinity(given)
    plan = ExecPlan(
        id=options.id,
        process=process if seccomp is None else replace(process, seccomp=seccomp),
        namespaces=config.namespaces,
        rootfs="" if config.namespaces & CLONE_NEWNS else rootfs,
        session_keyring=session_keyring,
        preserved=options.preserved,
        affinity=affinity,
    )
    return plan, warnings


def _complete(process: Process, base: Process) -> Process:
    """The file's *process* with what it does not say taken from the container's own; but for limits, which are then the
    caller's, as under runc and crun."""
    changes: dict[str, Any] = {
        name: getattr(base, name)
        for name in ("capabilities", "oom_score_adj", "scheduler", "io_priority", "exec_cpu_affinity")
        if getattr(process, name) is None
    }
    for name in ("apparmor_profile", "selinux_label"):
        if not getattr(process, name):
            changes[name] = getattr(base, name)
    if process.user.umask is None:
        changes["user"] = replace(process.user, umask=base.user.umask)
    return replace(process, **changes)


def _from_options(options: ExecOptions, base: Process) -> Process:
    """The container's own process with what the options change; their variables come later, after the devices'."""
    if not options.args:
        raise GpurunError("exec args cannot be empty")
    changes: dict[str, Any] = {"args": options.args, "terminal": options.tty, "user": _user(options, base.user)}
    if options.cwd:
        changes["cwd"] = options.cwd
    if options.apparmor_profile:
        changes["apparmor_profile"] = options.apparmor_profile
    if options.selinux_label:
        changes["selinux_label"] = options.selinux_label
    if options.no_new_privileges is not None:
        changes["no_new_privileges"] = options.no_new_privileges
    if options.capabilities:
        changes["capabilities"] = _with_capabilities(base.capabilities or Capabilities(), options.capabilities)
    return replace(base, **changes)


def _with_capabilities(base: Capabilities, more: tuple[str, ...]) -> Capabilities:
    return replace(
        base,
        bounding=base.bounding + more,
        effective=base.effective + more,
        permitted=base.permitted + more,
        ambient=base.ambient + more if base.inheritable else base.ambient,
    )


def _user(options: ExecOptions, base: User) -> User:
    changes: dict[str, Any] = {}
    if options.user:
        uid, colon, gid = options.user.partition(":")
        changes["uid"] = _id(uid, "bad uid")
        if colon:
            changes["gid"] = _id(gid, "bad gid")
    more = tuple([_id(gid, "bad additional gid") for gid in options.additional_gids])
    return replace(base, additional_gids=base.additional_gids + more, **changes)


def _id(text: str, what: str) -> int:
    number = decimal(text, _MAX_ID)
    if number is None:
        raise GpurunError(f'{what} "{text}": it must be a number from 0 to {_MAX_ID}')
    return number
