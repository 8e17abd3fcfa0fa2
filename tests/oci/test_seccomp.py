"""``linux.seccomp`` read into records."""

from __future__ import annotations

from typing import Any

import pytest

from gpurun.errors import ConfigError
from gpurun.oci.seccomp import Seccomp, SeccompArg, SeccompSyscall, read_seccomp


def test_everything_is_read() -> None:
    found = read_seccomp(
        {
            "defaultAction": "SCMP_ACT_ERRNO",
            "defaultErrnoRet": 38,
            "architectures": ["SCMP_ARCH_X86_64"],
            "flags": ["SECCOMP_FILTER_FLAG_LOG"],
            "listenerPath": "/run/agent",
            "listenerMetadata": "who",
            "syscalls": [
                {
                    "names": ["ioctl", "fcntl"],
                    "action": "SCMP_ACT_ERRNO",
                    "errnoRet": 1,
                    "args": [{"index": 5, "value": 18446744073709551615, "valueTwo": 7, "op": "SCMP_CMP_MASKED_EQ"}],
                },
                {"names": ["read"], "action": "SCMP_ACT_ALLOW", "comment": "unknown members are ignored"},
            ],
        },
    )
    assert found == Seccomp(
        default_action="SCMP_ACT_ERRNO",
        default_errno_ret=38,
        architectures=("SCMP_ARCH_X86_64",),
        flags=("SECCOMP_FILTER_FLAG_LOG",),
        listener_path="/run/agent",
        listener_metadata="who",
        syscalls=(
            SeccompSyscall(
                ("ioctl", "fcntl"), "SCMP_ACT_ERRNO", 1, (SeccompArg(5, (1 << 64) - 1, 7, "SCMP_CMP_MASKED_EQ"),)
            ),
            SeccompSyscall(("read",), "SCMP_ACT_ALLOW"),
        ),
    )


def test_absent_flags_differ_from_none() -> None:
    assert read_seccomp({}).flags is None
    assert read_seccomp({"flags": None}).flags is None
    assert read_seccomp({"flags": []}).flags == ()


def test_an_errno_of_zero_differs_from_none() -> None:
    assert read_seccomp({"defaultErrnoRet": 0}).default_errno_ret == 0
    assert read_seccomp({"defaultErrnoRet": None}).default_errno_ret is None


@pytest.mark.parametrize(
    ("profile", "message"),
    [
        ({"defaultAction": 1}, "linux.seccomp.defaultAction: must be a string, not a number"),
        ({"defaultErrnoRet": -1}, "linux.seccomp.defaultErrnoRet: -1 is out of range, it must be from 0 to 4294967295"),
        ({"flags": "X"}, "linux.seccomp.flags: must be an array, not a string"),
        ({"flags": [1]}, "linux.seccomp.flags[0]: must be a string, not a number"),
        ({"syscalls": [{"names": [None]}]}, "linux.seccomp.syscalls[0].names[0]: must be a string, not null"),
        (
            {"syscalls": [{}, {"args": [{"index": 6}]}]},
            "linux.seccomp.syscalls[1].args[0].index: 6 is out of range",
        ),
        ({"syscalls": [{"args": [{"value": -1}]}]}, "linux.seccomp.syscalls[0].args[0].value: -1 is out of range"),
        ({"syscalls": [{"names": ["a\0b"]}]}, "linux.seccomp.syscalls[0].names[0]: contains a null byte"),
    ],
)
def test_wrong_types_are_named(profile: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as e:
        read_seccomp(profile)
    assert str(e.value).startswith(message)
