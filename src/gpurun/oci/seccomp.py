"""``linux.seccomp`` as records (runtime-spec config-linux.md "Seccomp"), checked for its types.

Read apart from the rest of config.json: a container without a profile loads nothing of it.
"""

from __future__ import annotations

from gpurun.oci.reader import (
    UINT32_MAX,
    UINT64_MAX,
    as_object,
    get_array,
    get_int,
    get_string,
    get_strings,
)
from gpurun.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


class SeccompArg(Record):
    """A condition on argument *index* of a system call; for MASKED_EQ *value* is the mask, *value_two* what must be left."""

    index: int
    value: int
    value_two: int
    op: str


class SeccompSyscall(Record):
    """What is done about the system calls *names*; *errno_ret* None when it is not given."""

    names: tuple[str, ...]
    action: str
    errno_ret: int | None = None
    args: tuple[SeccompArg, ...] = ()


class Seccomp(Record):
    """A profile; *flags* None (not given) differs from none at all."""

    default_action: str
    default_errno_ret: int | None = None
    architectures: tuple[str, ...] = ()
    flags: tuple[str, ...] | None = None
    listener_path: str = ""
    listener_metadata: str = ""
    syscalls: tuple[SeccompSyscall, ...] = ()


def read_seccomp(obj: dict[str, Any]) -> Seccomp:
    """The profile *obj* of ``linux.seccomp``; raises :class:`gpurun.errors.ConfigError` naming what is wrong."""
    where = "linux.seccomp"
    return Seccomp(
        default_action=get_string(obj, "defaultAction", where),
        default_errno_ret=get_int(obj, "defaultErrnoRet", where, 0, UINT32_MAX),
        architectures=get_strings(obj, "architectures", where),
        flags=None if obj.get("flags") is None else get_strings(obj, "flags", where),
        listener_path=get_string(obj, "listenerPath", where),
        listener_metadata=get_string(obj, "listenerMetadata", where),
        syscalls=get_array(obj, "syscalls", where, _syscall),
    )


def _syscall(value: Any, where: str) -> SeccompSyscall:
    obj = as_object(value, where)
    return SeccompSyscall(
        names=get_strings(obj, "names", where),
        action=get_string(obj, "action", where),
        errno_ret=get_int(obj, "errnoRet", where, 0, UINT32_MAX),
        args=get_array(obj, "args", where, _arg),
    )


def _arg(value: Any, where: str) -> SeccompArg:
    obj = as_object(value, where)
    return SeccompArg(
        index=get_int(obj, "index", where, 0, 5) or 0,
        value=get_int(obj, "value", where, 0, UINT64_MAX) or 0,
        value_two=get_int(obj, "valueTwo", where, 0, UINT64_MAX) or 0,
        op=get_string(obj, "op", where),
    )
