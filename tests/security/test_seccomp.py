"""Seccomp profiles: what is refused, and the plan that is made of the rest."""

from __future__ import annotations

from typing import Any

import pytest

from gpurun.errors import ConfigError
from gpurun.oci.seccomp import read_seccomp
from gpurun.security.seccomp import (
    ACTIONS,
    ARCHITECTURES,
    FLAGS,
    OPERATORS,
    Rule,
    SeccompPlan,
    can_close,
    can_wait,
    plan_seccomp,
)
from tests.security.profile import engine_profile

ALLOW, ERRNO, KILL, NOTIFY, TRACE = 0x7FFF0000, 0x50000, 0, 0x7FC00000, 0x7FF00000


def plan(profile: dict[str, Any], machine: str = "x86_64") -> SeccompPlan:
    made = plan_seccomp(read_seccomp(profile), machine)
    assert made is not None
    return made


def rule(action: str = "SCMP_ACT_ALLOW", *names: str, **more: Any) -> dict[str, Any]:
    return {"names": list(names) or ["read"], "action": action, **more}


def profile(*rules: dict[str, Any], default: str = "SCMP_ACT_ERRNO", **more: Any) -> dict[str, Any]:
    return {"defaultAction": default, "syscalls": list(rules), **more}


def arg(index: int, op: str, value: int, value_two: int = 0) -> dict[str, Any]:
    return {"index": index, "op": f"SCMP_CMP_{op}", "value": value, "valueTwo": value_two}


def test_an_empty_profile_is_no_profile() -> None:
    assert plan_seccomp(read_seccomp({}), "x86_64") is None
    assert plan_seccomp(read_seccomp({"architectures": ["SCMP_ARCH_X86"]}), "x86_64") is None
    assert plan_seccomp(read_seccomp({"defaultAction": "SCMP_ACT_ALLOW"}), "x86_64") is not None


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ({"syscalls": [rule()]}, "linux.seccomp.defaultAction: is missing, it must be one of SCMP_ACT_ALLOW, "),
        (profile(default="SCMP_ACT_NO"), 'linux.seccomp.defaultAction: "SCMP_ACT_NO" is unknown, it must be one of'),
        (
            profile(default="SCMP_ACT_NOTIFY", listenerPath="/a"),
            "linux.seccomp.defaultAction: SCMP_ACT_NOTIFY cannot be used as default action",
        ),
        (profile(rule("x")), 'linux.seccomp.syscalls[0].action: "x" is unknown'),
        (profile(rule(), rule("")), "linux.seccomp.syscalls[1].action: is missing"),
        (profile({"action": "SCMP_ACT_ALLOW"}), "linux.seccomp.syscalls[0].names: must name at least one system call"),
        (profile(rule(args=[{"index": 1}])), "linux.seccomp.syscalls[0].args[0].op: is missing"),
        (profile(rule(args=[arg(1, "XX", 1)])), 'linux.seccomp.syscalls[0].args[0].op: "SCMP_CMP_XX" is unknown'),
        (profile(defaultErrnoRet=4095), "linux.seccomp.defaultErrnoRet: 4095 is out of range, it must be from 0 to 4094"),
        (profile(rule("SCMP_ACT_ERRNO", errnoRet=9999)), "linux.seccomp.syscalls[0].errnoRet: 9999 is out of range"),
        (profile(rule("SCMP_ACT_TRACE", errnoRet=65536)), "linux.seccomp.syscalls[0].errnoRet: 65536 is out of range"),
        (profile(rule("SCMP_ACT_NOTIFY")), "linux.seccomp.listenerPath: seccomp listenerPath is not set"),
        (
            profile(rule("SCMP_ACT_NOTIFY"), listenerPath="@abstract"),
            'linux.seccomp.listenerPath: "@abstract" must be an absolute path',
        ),
        (
            profile(rule("SCMP_ACT_NOTIFY", "read", "write"), listenerPath="/a"),
            "linux.seccomp.syscalls[0].names: SCMP_ACT_NOTIFY cannot be used for the write syscall",
        ),
        (
            profile(flags=["SECCOMP_FILTER_FLAG_LOG", "X"]),
            "linux.seccomp.flags[1]: seccomp flag X is not known to gpurun, known are",
        ),
        (profile(architectures=["X86"]), 'linux.seccomp.architectures[0]: "X86" is unknown'),
        (
            profile(architectures=["SCMP_ARCH_X86_64", "SCMP_ARCH_S390X"]),
            "linux.seccomp.architectures[1]: SCMP_ARCH_S390X has the other byte order",
        ),
    ],
)
def test_what_is_refused(bad: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as e:
        plan(bad)
    assert str(e.value).startswith(message)


def test_actions() -> None:
    for name, action in ACTIONS.items():
        if name == "SCMP_ACT_NOTIFY":
            continue
        expected = action | 1 if name in ("SCMP_ACT_ERRNO", "SCMP_ACT_TRACE") else action
        assert plan(profile(default=name)).default_action == expected


def test_errno_numbers() -> None:
    made = plan(
        profile(
            rule("SCMP_ACT_ERRNO", "a"),
            rule("SCMP_ACT_ERRNO", "b", errnoRet=38),
            rule("SCMP_ACT_TRACE", "c", errnoRet=40000),
            rule("SCMP_ACT_KILL", "d", errnoRet=5),  # means nothing with this action
            rule("SCMP_ACT_ERRNO", "e", errnoRet=0),
            default="SCMP_ACT_ALLOW",
        )
    )
    assert [r.action for r in made.rules] == [ERRNO | 1, ERRNO | 38, TRACE | 40000, KILL, ERRNO]


def test_a_rule_that_says_what_the_default_says_is_skipped() -> None:
    made = plan(
        profile(rule("SCMP_ACT_ERRNO", "a", "b"), rule("SCMP_ACT_ERRNO", "c", errnoRet=2), rule("SCMP_ACT_ALLOW", "d"))
    )
    assert [r.names for r in made.rules] == [("c",), ("d",)]
    assert made.skipped == ("a", "b")
    assert [r.where for r in made.rules] == ["linux.seccomp.syscalls[1]", "linux.seccomp.syscalls[2]"]


def test_conditions_on_different_arguments_must_all_hold() -> None:
    made = plan(profile(rule(args=[arg(0, "EQ", 1), arg(1, "MASKED_EQ", 7, 2)])))
    assert made.rules == (
        Rule(("read",), ALLOW, (((0, OPERATORS["SCMP_CMP_EQ"], 1, 0), (1, 7, 7, 2)),), "linux.seccomp.syscalls[0]"),
    )


def test_conditions_on_one_argument_twice_are_alternatives() -> None:
    made = plan(profile(rule(args=[arg(0, "EQ", 1), arg(1, "LT", 5), arg(0, "EQ", 2)])))
    assert made.rules[0].conditions == (((0, 4, 1, 0),), ((1, 2, 5, 0),), ((0, 4, 2, 0),))


def test_architectures() -> None:
    native = ARCHITECTURES["SCMP_ARCH_X86_64"]
    assert plan(profile()).architectures == (native,)
    made = plan(profile(architectures=["SCMP_ARCH_X86", "SCMP_ARCH_X86_64", "SCMP_ARCH_X32", "SCMP_ARCH_X86"]))
    assert made.architectures == (native, 0x40000003, 0x4000003E)
    assert plan(profile(), "aarch64").architectures == (0xC00000B7,)


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        (None, 4),
        ([], 0),
        (["SECCOMP_FILTER_FLAG_TSYNC"], 0),
        (["SECCOMP_FILTER_FLAG_LOG"], 2),
        (["SECCOMP_FILTER_FLAG_SPEC_ALLOW", "SECCOMP_FILTER_FLAG_LOG"], 6),
        (["SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV"], 0),  # nobody is notified
    ],
)
def test_flags(flags: list[str] | None, expected: int) -> None:
    assert plan(profile(flags=flags)).flags == expected
    assert plan(profile(flags=flags)).default_flags is (flags is None)


def test_an_agent() -> None:
    more: dict[str, Any] = {
        "listenerPath": "/run/agent",
        "listenerMetadata": "m",
        "flags": ["SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV"],
    }
    made = plan(profile(rule("SCMP_ACT_NOTIFY"), **more))
    assert (made.flags, made.listener_path, made.listener_metadata) == (8 | 32, "/run/agent", "m")
    nobody = plan(profile(rule(), listenerPath="relative is of no account", listenerMetadata="m"))
    assert (nobody.flags, nobody.listener_path, nobody.listener_metadata) == (4, "", "")


@pytest.mark.parametrize(
    ("default", "errno_ret", "expected"),
    [
        ("SCMP_ACT_ERRNO", None, True),
        ("SCMP_ACT_ERRNO", 1, True),
        ("SCMP_ACT_ERRNO", 38, False),
        ("SCMP_ACT_KILL", None, True),
        ("SCMP_ACT_KILL_PROCESS", None, True),
        ("SCMP_ACT_TRAP", None, True),
        ("SCMP_ACT_ALLOW", None, False),
        ("SCMP_ACT_LOG", None, False),
        ("SCMP_ACT_TRACE", None, False),
    ],
)
def test_when_calls_newer_than_the_profile_get_enosys(default: str, errno_ret: int | None, expected: bool) -> None:
    assert (
        plan(profile(rule("SCMP_ACT_NOTIFY"), default=default, defaultErrnoRet=errno_ret, listenerPath="/a")).enosys
        is expected
    )


def test_the_tables_are_whole() -> None:
    """What the specification names; ``features`` is made of these tables."""
    assert len(ACTIONS) == 9 and len(OPERATORS) == 7 and len(FLAGS) == 4 and len(ARCHITECTURES) == 20


ENGINES: list[dict[str, Any]] = engine_profile()["syscalls"]
NO_CLONE = [r for r in ENGINES if r["names"] != ["clone"]]
NO_READ = [{**r, "names": [n for n in r["names"] if n != "read"]} for r in ENGINES]


def clone(op: str, value: int) -> list[dict[str, Any]]:
    return [*NO_CLONE, rule("SCMP_ACT_ALLOW", "clone", args=[arg(0, op, value)])]


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (engine_profile(), True),
        (profile(default="SCMP_ACT_ALLOW"), True),
        (profile(default="SCMP_ACT_LOG"), True),
        (profile(rule("SCMP_ACT_ERRNO", "mkdir"), default="SCMP_ACT_ALLOW"), True),
        (profile(rule("SCMP_ACT_ERRNO", "capset"), default="SCMP_ACT_ALLOW"), False),
        (profile(rule("SCMP_ACT_ERRNO", "read", args=[arg(0, "EQ", 7)]), default="SCMP_ACT_ALLOW"), False),
        (profile(rule("SCMP_ACT_ERRNO", "clone", args=[arg(0, "EQ", 7)]), default="SCMP_ACT_ALLOW"), False),
        (profile(rule("SCMP_ACT_ALLOW", "execve")), False),
        (engine_profile(syscalls=NO_CLONE), False),
        (engine_profile(syscalls=[*ENGINES, rule("SCMP_ACT_KILL", "write")]), False),
        (engine_profile(syscalls=NO_READ), False),
        (engine_profile(syscalls=clone("EQ", 17)), False),
        (engine_profile(syscalls=clone("MASKED_EQ", 0x8000)), False),
        (engine_profile(syscalls=clone("MASKED_EQ", 0x7E020000)), True),
    ],
)
def test_under_which_filters_a_process_can_wait(given: dict[str, Any], expected: bool) -> None:
    assert can_wait(plan(given)) is expected


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (engine_profile(), True),
        (profile(rule("SCMP_ACT_NOTIFY", "execve"), default="SCMP_ACT_ALLOW", listenerPath="/a"), True),
        (profile(rule("SCMP_ACT_NOTIFY", "execve", "close"), default="SCMP_ACT_ALLOW", listenerPath="/a"), False),
        (profile(rule("SCMP_ACT_ERRNO", "close", args=[arg(0, "EQ", 7)]), default="SCMP_ACT_LOG"), False),
        (profile(rule("SCMP_ACT_ALLOW", "close", args=[arg(0, "EQ", 7)])), False),
        (profile(rule("SCMP_ACT_LOG", "close")), True),
        (profile(rule("SCMP_ACT_ALLOW", "execve")), False),
    ],
)
def test_under_which_filters_a_process_can_close_its_listener(given: dict[str, Any], expected: bool) -> None:
    assert can_close(plan(given)) is expected
