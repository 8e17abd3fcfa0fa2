"""Filters as the kernel would run them: libseccomp compiles, an interpreter of BPF judges."""

from __future__ import annotations

import itertools
import json
import platform
import random
from pathlib import Path
from typing import Any

import pytest

from gpurun.errors import ConfigError, GpurunError
from gpurun.linux import libseccomp
from gpurun.oci.seccomp import read_seccomp
from gpurun.record import replace
from gpurun.security import seccomp_compile
from gpurun.security.seccomp import X32, plan_seccomp
from gpurun.security.seccomp_compile import Compiled, compile_plan, enosys_stub, load_library
from tests.security import bpf
from tests.security.bpf import ALLOW, X32_BIT, X86, X86_64, errno, judge
from tests.security.profile import ALLOWED, NEW_NAMESPACES, engine_profile, long_profile

READ, WRITE, SOCKET, CLONE, MKDIR, PERSONALITY, CLONE3 = 0, 1, 41, 56, 83, 135, 435
EPERM, ENOSYS = errno(1), errno(38)


@pytest.fixture(scope="module")
def library() -> libseccomp.Library:
    if platform.machine() != "x86_64":
        pytest.skip("the numbers in these tests are those of x86_64")
    try:
        return libseccomp.Library(libseccomp.find()[0])
    except OSError as e:
        pytest.skip(f"libseccomp is not installed: {e}")


def compiled(library: libseccomp.Library, profile: dict[str, Any]) -> Compiled:
    plan = plan_seccomp(read_seccomp(profile), "x86_64")
    assert plan is not None
    return compile_plan(plan, library)


def program(library: libseccomp.Library, profile: dict[str, Any]) -> bytes:
    return compiled(library, profile).program


def one_rule(action: str, *args: dict[str, Any], default: str = "SCMP_ACT_ALLOW", **more: Any) -> dict[str, Any]:
    """A profile with one rule for mkdir."""
    return {"defaultAction": default, "syscalls": [{"names": ["mkdir"], "action": action, "args": list(args), **more}]}


@pytest.mark.parametrize(
    ("action", "errno_ret", "verdict"),
    [
        ("SCMP_ACT_ERRNO", None, EPERM),
        ("SCMP_ACT_ERRNO", 99, errno(99)),
        ("SCMP_ACT_ERRNO", 0, errno(0)),
        ("SCMP_ACT_KILL", None, bpf.KILL_THREAD),
        ("SCMP_ACT_KILL_THREAD", None, bpf.KILL_THREAD),
        ("SCMP_ACT_KILL_PROCESS", None, bpf.KILL_PROCESS),
        ("SCMP_ACT_TRAP", None, bpf.TRAP),
        ("SCMP_ACT_TRACE", None, bpf.TRACE | 1),
        ("SCMP_ACT_TRACE", 7, bpf.TRACE | 7),
        ("SCMP_ACT_LOG", None, bpf.LOG),
        ("SCMP_ACT_NOTIFY", None, bpf.NOTIFY),
    ],
)
def test_actions(library: libseccomp.Library, action: str, errno_ret: int | None, verdict: int) -> None:
    made = program(library, {**one_rule(action, errnoRet=errno_ret), "listenerPath": "/agent"})
    assert judge(made, MKDIR) == verdict
    assert judge(made, READ) == ALLOW


@pytest.mark.parametrize("room", ["tree", "list", "no ENOSYS", "nothing"])
def test_a_profile_that_does_not_fit_is_made_shorter(
    library: libseccomp.Library, monkeypatch: pytest.MonkeyPatch, room: str
) -> None:
    """As a list, then without the answer to newer calls; and judged the same but for these."""
    plan = plan_seccomp(read_seccomp(engine_profile()), "x86_64")
    assert plan is not None
    sizes = [len(seccomp_compile._filter(plan, library, as_tree)[0]) // 8 for as_tree in (True, False)]
    stub = len(enosys_stub(seccomp_compile._newest_calls(plan, library))) // 8
    assert sizes[1] + stub < sizes[0]
    limits = {
        "tree": sizes[0] + stub,
        "list": sizes[0] + stub - 1,
        "no ENOSYS": sizes[1] + stub - 1,
        "nothing": sizes[1] - 1,
    }
    monkeypatch.setattr(seccomp_compile, "MAX_INSTRUCTIONS", limits[room])
    if room == "nothing":
        with pytest.raises(
            ConfigError, match=rf"the profile makes {sizes[1]} BPF instructions, the kernel takes .*: shorten it"
        ):
            compile_plan(plan, library)
        return
    made = compile_plan(plan, library)
    assert len(made.program) // 8 == {"tree": limits["tree"], "list": sizes[1] + stub, "no ENOSYS": sizes[1]}[room]
    assert made.newer_get_default is (room == "no ENOSYS")
    assert judge(made.program, 100000) == (EPERM if made.newer_get_default else ENOSYS)
    monkeypatch.undo()
    whole = compile_plan(plan, library)
    for number, arch in itertools.product(range(400), (X86_64, X86)):
        assert judge(made.program, number, 8, arch=arch) == judge(whole.program, number, 8, arch=arch)


def test_a_long_profile(library: libseccomp.Library) -> None:
    """Six hundred rules on two arguments, which fit as a list alone."""
    made = compiled(library, long_profile(610))
    assert not made.newer_get_default
    for number in (0, 1, 300, 609):
        assert judge(made.program, PERSONALITY, 1, number * 7 + 1, number * 7 + 2) == ALLOW
        assert judge(made.program, PERSONALITY, 1, number * 7 + 1, number * 7 + 3) == EPERM
    with pytest.raises(ConfigError, match=r"linux\.seccomp: the profile makes \d+ BPF instructions"):
        compiled(library, long_profile(700))


def test_the_default_action(library: libseccomp.Library) -> None:
    made = program(library, {**one_rule("SCMP_ACT_ALLOW", default="SCMP_ACT_ERRNO"), "defaultErrnoRet": 38})
    assert judge(made, MKDIR) == ALLOW
    assert judge(made, READ) == ENOSYS
    assert judge(made, 100000) == ENOSYS


BIG = 0xFFFFFFFF_00000001
VALUES = (0, 1, 2, 4, 5, 6, 0x80000000, 0xFFFFFFFF, 0x1_00000000, 0x1_00000005, BIG - 1, BIG, BIG + 1, (1 << 64) - 1)
COMPARE = {
    "NE": lambda a, x, y: a != x,
    "LT": lambda a, x, y: a < x,
    "LE": lambda a, x, y: a <= x,
    "EQ": lambda a, x, y: a == x,
    "GE": lambda a, x, y: a >= x,
    "GT": lambda a, x, y: a > x,
    "MASKED_EQ": lambda a, x, y: a & x == y,
}


@pytest.mark.parametrize("op", sorted(COMPARE))
@pytest.mark.parametrize("value", [0, 5, 0x1_00000005, BIG])
def test_comparisons(library: libseccomp.Library, op: str, value: int) -> None:
    two = value & 5
    made = program(
        library, one_rule("SCMP_ACT_ERRNO", {"index": 3, "op": f"SCMP_CMP_{op}", "value": value, "valueTwo": two})
    )
    for actual in VALUES:
        expected = EPERM if COMPARE[op](actual, value, two) else ALLOW
        assert judge(made, MKDIR, 9, 9, 9, actual, 9, 9) == expected, hex(actual)


@pytest.mark.parametrize("index", range(6))
def test_every_argument(library: libseccomp.Library, index: int) -> None:
    made = program(library, one_rule("SCMP_ACT_ERRNO", {"index": index, "op": "SCMP_CMP_EQ", "value": 7}))
    for other in range(6):
        args = [0] * 6
        args[other] = 7
        assert judge(made, MKDIR, *args) == (EPERM if other == index else ALLOW)


def test_conditions_on_different_arguments(library: libseccomp.Library) -> None:
    made = program(
        library,
        one_rule(
            "SCMP_ACT_ERRNO", {"index": 0, "op": "SCMP_CMP_EQ", "value": 1}, {"index": 1, "op": "SCMP_CMP_GT", "value": 2}
        ),
    )
    for a, b in itertools.product(range(4), repeat=2):
        assert judge(made, MKDIR, a, b) == (EPERM if a == 1 and b > 2 else ALLOW)


def test_an_argument_that_occurs_twice(library: libseccomp.Library) -> None:
    made = program(
        library,
        one_rule(
            "SCMP_ACT_ERRNO",
            {"index": 0, "op": "SCMP_CMP_EQ", "value": 1},
            {"index": 0, "op": "SCMP_CMP_EQ", "value": 3},
            {"index": 1, "op": "SCMP_CMP_EQ", "value": 9},
        ),
    )
    for a, b in ((1, 0), (3, 0), (0, 9), (2, 9)):
        assert judge(made, MKDIR, a, b) == EPERM
    assert judge(made, MKDIR, 2, 0) == ALLOW


def test_unknown_names_are_left_out(library: libseccomp.Library) -> None:
    made = compiled(
        library,
        {"defaultAction": "SCMP_ACT_ALLOW", "syscalls": [{"names": ["frobnicate", "mkdir"], "action": "SCMP_ACT_ERRNO"}]},
    )
    assert made.unknown == ("frobnicate",)
    assert judge(made.program, MKDIR) == EPERM


def test_other_architectures(library: libseccomp.Library) -> None:
    native = program(library, one_rule("SCMP_ACT_ERRNO"))
    assert judge(native, 39, arch=X86) == bpf.KILL_THREAD
    assert judge(native, MKDIR | X32_BIT) == bpf.KILL_THREAD
    rule = one_rule("SCMP_ACT_ERRNO")
    all_three = program(library, {**rule, "architectures": ["SCMP_ARCH_X86", "SCMP_ARCH_X32"]})
    assert judge(all_three, MKDIR) == EPERM
    assert judge(all_three, 39, arch=X86) == EPERM  # mkdir there
    assert judge(all_three, MKDIR, arch=X86) == ALLOW
    assert judge(all_three, MKDIR | X32_BIT) == EPERM
    assert judge(all_three, MKDIR, arch=bpf.AARCH64) == bpf.KILL_THREAD


def test_calls_newer_than_the_profile_give_enosys(library: libseccomp.Library) -> None:
    made = program(
        library, {"defaultAction": "SCMP_ACT_ERRNO", "syscalls": [{"names": ["read", "mkdir"], "action": "SCMP_ACT_ALLOW"}]}
    )
    assert judge(made, READ) == ALLOW
    assert judge(made, MKDIR - 1) == EPERM
    assert judge(made, MKDIR + 1) == ENOSYS
    assert judge(made, 100000) == ENOSYS


def test_how_new_a_profile_is_rules_that_change_nothing_say_too(library: libseccomp.Library) -> None:
    rules = [{"names": ["read"], "action": "SCMP_ACT_ALLOW"}, {"names": ["mkdir"], "action": "SCMP_ACT_ERRNO"}]
    made = program(library, {"defaultAction": "SCMP_ACT_ERRNO", "syscalls": rules})
    assert judge(made, MKDIR) == EPERM
    assert judge(made, MKDIR + 1) == ENOSYS


def test_the_newest_call_of_each_architecture(library: libseccomp.Library) -> None:
    made = program(
        library,
        {
            "defaultAction": "SCMP_ACT_KILL_PROCESS",
            "architectures": ["SCMP_ARCH_X86", "SCMP_ARCH_X32"],
            "syscalls": [{"names": ["mkdir"], "action": "SCMP_ACT_ALLOW"}],
        },
    )
    for number, arch in ((MKDIR, X86_64), (39, X86), (MKDIR | X32_BIT, X86_64)):
        assert judge(made, number, arch=arch) == ALLOW
        assert judge(made, number + 1, arch=arch) == ENOSYS
        assert judge(made, number - 1, arch=arch) == bpf.KILL_PROCESS
    assert judge(made, 500, arch=bpf.AARCH64) == bpf.KILL_THREAD  # none of the profile's: the filter decides


def test_private_calls_of_32_bit_arm_do_not_say_how_new_a_profile_is(library: libseccomp.Library) -> None:
    """They are numbered from 0x0f0000 on, and engines name them in the profiles for aarch64."""
    made = program(
        library,
        {
            "defaultAction": "SCMP_ACT_ERRNO",
            "architectures": ["SCMP_ARCH_ARM"],
            "syscalls": [{"names": ["mkdir", "cacheflush", "set_tls"], "action": "SCMP_ACT_ALLOW"}],
        },
    )
    mkdir, breakpoint, cacheflush, set_tls = 39, 0x0F0001, 0x0F0002, 0x0F0005
    for number, verdict in (
        (mkdir - 1, EPERM), (mkdir, ALLOW), (mkdir + 1, ENOSYS), (0x0EFFFF, ENOSYS),
        (breakpoint, EPERM), (cacheflush, ALLOW), (set_tls, ALLOW), (set_tls + 1, EPERM),
    ):  # fmt: skip
        assert judge(made, number, arch=bpf.ARM) == verdict, hex(number)


def test_the_stub_alone() -> None:
    """Whatever it does not answer itself goes on to what follows it."""
    tail = enosys_stub({}) + b"\x06\0\0\0" + (0x1234).to_bytes(4, "little")
    choices = {X86_64: 300, X32: 310 | X32_BIT, X86: 400, bpf.AARCH64: 250, bpf.ARM: 401}
    for size in range(1, 6):
        for tokens in itertools.permutations(choices, size):
            newest = {t: choices[t] for t in tokens}
            if X32 in newest and X86_64 not in newest:
                continue  # the machine's own architecture is always there
            made = enosys_stub(newest) + tail
            for arch in (X86_64, X86, bpf.AARCH64, bpf.ARM):
                for number in (0, 250, 251, 300, 301, 310, 311, 400, 401, 402, 0x0F0000, 310 | X32_BIT, 311 | X32_BIT):
                    limit = newest.get(arch, 1 << 32)
                    if arch == bpf.ARM and number >= 0x0F0000:
                        limit = 1 << 32
                    if arch == X86_64 and X32 in newest and number & X32_BIT:
                        limit = newest[X32]
                    assert judge(made, number, arch=arch) == (ENOSYS if number > limit else 0x1234)


def test_a_profile_of_an_engine(library: libseccomp.Library) -> None:
    made = compiled(library, engine_profile())
    assert 300 < len(made.program) // 8 <= 4096
    numbers = {name: library.resolve(name, X86_64) for name in ALLOWED}
    known = {number for number in numbers.values() if number >= 0}
    for number in sorted(known):
        assert judge(made.program, number) == ALLOW
    assert judge(made.program, 165) == EPERM  # mount
    assert judge(made.program, CLONE3) == ENOSYS
    assert judge(made.program, 2000) == ENOSYS
    assert judge(made.program, CLONE, 0x11) == ALLOW
    assert judge(made.program, CLONE, 0x11 | 0x10000000) == EPERM
    assert judge(made.program, SOCKET, 40) == EPERM
    assert judge(made.program, SOCKET, 1) == ALLOW
    for value, verdict in ((0, ALLOW), (8, ALLOW), (0xFFFFFFFF, ALLOW), (7, EPERM)):
        assert judge(made.program, PERSONALITY, value) == verdict
    assert NEW_NAMESPACES & 0x10000000


def test_the_search_tree_says_what_the_list_says(library: libseccomp.Library, monkeypatch: pytest.MonkeyPatch) -> None:
    tree = program(library, engine_profile())
    monkeypatch.setattr(seccomp_compile, "_TREE_FROM", 1 << 30)
    flat = program(library, engine_profile())
    assert tree != flat
    generator = random.Random(1)
    for _ in range(3000):
        number = generator.choice(
            [generator.randrange(470), generator.randrange(470) | X32_BIT, generator.randrange(1 << 32)]
        )
        args = [generator.choice(VALUES) for _ in range(6)]
        arch = generator.choice([X86_64, X86, bpf.AARCH64])
        assert judge(tree, number, *args, arch=arch) == judge(flat, number, *args, arch=arch)


def test_the_profile_of_containers_common(library: libseccomp.Library) -> None:
    path = Path("/usr/share/containers/seccomp.json")
    if not path.exists():
        pytest.skip(f"{path} is not installed")
    found = json.loads(path.read_text())
    for rule in found["syscalls"]:
        rule.pop("includes", None), rule.pop("excludes", None), rule.pop("errno", None)
    found["architectures"] = ["SCMP_ARCH_X86_64", "SCMP_ARCH_X86", "SCMP_ARCH_X32"]
    made = program(library, found)
    assert judge(made, READ) == ALLOW
    assert judge(made, 100000) == ENOSYS  # its defaultErrnoRet


def test_the_same_profile_gives_the_same_program(library: libseccomp.Library) -> None:
    assert program(library, engine_profile()) == program(library, engine_profile())


def test_too_long_a_profile_is_refused(library: libseccomp.Library) -> None:
    rules = [
        {"names": ["mkdir"], "action": "SCMP_ACT_ERRNO", "args": [{"index": 0, "op": "SCMP_CMP_EQ", "value": i << 32 | i}]}
        for i in range(2500)
    ]
    with pytest.raises(ConfigError, match=r"^linux.seccomp: the profile makes \d+ BPF instructions"):
        program(library, {"defaultAction": "SCMP_ACT_ALLOW", "syscalls": rules})


def test_an_architecture_that_libseccomp_does_not_know(library: libseccomp.Library) -> None:
    plan = plan_seccomp(read_seccomp(one_rule("SCMP_ACT_ERRNO")), "x86_64")
    assert plan is not None
    with pytest.raises(ConfigError, match=r"^linux.seccomp.architectures: libseccomp .* not know .* 0x40001234$"):
        compile_plan(replace(plan, architectures=(X86_64, 0x40001234)), library)


def test_a_missing_library_is_one_sentence() -> None:
    with pytest.raises(GpurunError, match=r"^linux.seccomp: the library libseccomp.so.2 is needed .*: install lib"):
        load_library("linux.seccomp", "/nonexistent/libseccomp.so.2")


def test_finding_the_library(tmp_path: Path) -> None:
    assert libseccomp.find((str(tmp_path),)) == ("", "")
    (tmp_path / "libseccomp.so.2.5.4").write_bytes(b"old")
    (tmp_path / "libseccomp.so.2").symlink_to("libseccomp.so.2.5.4")
    path, before = libseccomp.find(("/nonexistent", str(tmp_path)))
    assert path == f"{tmp_path}/libseccomp.so.2"
    assert before.startswith("libseccomp.so.2.5.4 ")
    (tmp_path / "libseccomp.so.2.5.4").unlink()
    (tmp_path / "libseccomp.so.2.5.4").write_bytes(b"upgraded")
    assert libseccomp.find((str(tmp_path),))[1] != before
