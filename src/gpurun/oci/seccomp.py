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
    json_path = "linux.seccomp"
    return Seccomp(
        default_action=get_string(obj, "defaultAction", json_path),
        default_errno_ret=get_int(obj, "defaultErrnoRet", json_path, 0, UINT32_MAX),
        architectures=get_strings(obj, "architectures", json_path),
        flags=None if obj.get("flags") is None else get_strings(obj, "flags", json_path),
        listener_path=get_string(obj, "listenerPath", json_path),
        listener_metadata=get_string(obj, "listenerMetadata", json_path),
        syscalls=get_array(obj, "syscalls", json_path, _syscall),
    )


def _syscall(value: Any, json_path: str) -> SeccompSyscall:
    obj = as_object(value, json_path)
    return SeccompSyscall(
        names=get_strings(obj, "names", json_path),
        action=get_string(obj, "action", json_path),
        errno_ret=get_int(obj, "errnoRet", json_path, 0, UINT32_MAX),
        args=get_array(obj, "args", json_path, _arg),
    )


def _arg(value: Any, json_path: str) -> SeccompArg:
    obj = as_object(value, json_path)
    return SeccompArg(
        index=get_int(obj, "index", json_path, 0, 5) or 0,
        value=get_int(obj, "value", json_path, 0, UINT64_MAX) or 0,
        value_two=get_int(obj, "valueTwo", json_path, 0, UINT64_MAX) or 0,
        op=get_string(obj, "op", json_path),
    )
