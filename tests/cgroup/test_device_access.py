"""What a device program lets be opened, against an independent interpreter, and programs as other runtimes write them."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from gpurun.cgroup.device_access import NotUnderstood, device_programs, granted_numbers, openable, run
from gpurun.cgroup.devices import container_rules, device_program
from gpurun.errors import StepError
from gpurun.oci.resources import DeviceRule
from tests.cgroup import ebpf


def insn(opcode: int, target: int = 0, source: int = 0, offset: int = 0, immediate: int = 0) -> bytes:
    registers = target | source << 4
    return (
        bytes((opcode, registers)) + offset.to_bytes(2, "little", signed=True) + immediate.to_bytes(4, "little", signed=True)
    )


def test_as_the_independent_interpreter() -> None:
    chance = random.Random(1)
    for _ in range(200):
        numbers = [(chance.randrange(4), chance.choice([None, 0, 1, 2])) for _ in range(chance.randrange(1, 6))]
        rules = tuple(DeviceRule(True, "c", major, minor, chance.choice(["r", "rw", "rwm"])) for major, minor in numbers)
        code = device_program(rules)
        for major in range(5):
            for minor in range(4):
                for access in (2, 4, 6):
                    letters = {2: "r", 4: "w", 6: "rw"}[access]
                    assert run(code, 2, access, major, minor) == ebpf.run(code, "c", major, minor, letters)


def test_the_loader_of_another_runtime() -> None:
    """As libcontainer compiles it: comparisons of 64 bits, a copy of a register; and a jump over nothing, as the verifier
    leaves where it has removed code."""
    code = b"".join([
        insn(0x61, 2, 1, 0), insn(0x54, 2, immediate=0xFFFF), insn(0x61, 3, 1, 0), insn(0x74, 3, immediate=16),
        insn(0x61, 4, 1, 4), insn(0x61, 5, 1, 8), insn(0x05),
        insn(0x55, 2, offset=7, immediate=2),
        insn(0xBC, 1, 3), insn(0x54, 1, immediate=6), insn(0x5D, 1, 3, 4),
        insn(0x55, 4, offset=3, immediate=195), insn(0x55, 5, offset=2, immediate=3),
        insn(0xB4, 0, immediate=1), insn(0x95),
        insn(0xB4, 0, immediate=0), insn(0x95),
    ])  # fmt: skip
    assert [minor for minor in range(8) if run(code, 2, 6, 195, minor)] == [3]
    assert not run(code, 1, 6, 195, 3) and not run(code, 2, 7, 195, 3)


def test_what_is_meant_for_the_container_alone() -> None:
    gpus = [(195, 0), (195, 1), (240, 7)]
    one = device_program(container_rules((DeviceRule(True, "c", 195, 1, "rw"), DeviceRule(True, "c", 240, None, "rwm"))))
    assert openable((one,), gpus) == {(195, 1), (240, 7)}
    assert granted_numbers((one,), gpus) == {(195, 1)}, "a rule for the whole major says nothing of one GPU"
    assert openable((), gpus) == set(gpus) and granted_numbers((), gpus) == frozenset()
    other = device_program(container_rules((DeviceRule(True, "c", 195, 0, "rw"),)))
    assert openable((one, other), gpus) == frozenset(), "each of the programs must allow it"


@pytest.mark.parametrize(
    "code",
    [
        insn(0x85, immediate=1) + insn(0x95),  # a call of a helper function
        insn(0x61, 2, 3) + insn(0x95),  # a load from what is not the context
        insn(0x61, 2, 1, 64) + insn(0x95),
        insn(0x0F, 2, 1) + insn(0x95),  # arithmetic with a pointer
        insn(0x05, offset=-1),  # no end
        b"",
    ],
)
def test_what_is_not_understood_says_nothing(code: bytes) -> None:
    with pytest.raises(NotUnderstood):
        run(code, 2, 6, 195, 0)
    assert openable((code,), [(195, 0)]) == {(195, 0)} and granted_numbers((code,), [(195, 0)]) == frozenset()


def test_a_cgroup_that_is_gone_and_one_that_cannot_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import errno
    import posix

    assert device_programs(str(tmp_path / "gone")) == ()

    def full(*_: object, **__: object) -> int:
        raise OSError(errno.EMFILE, "")

    monkeypatch.setattr(posix, "open", full)
    with pytest.raises(StepError, match="too many open files"):
        device_programs("/sys/fs/cgroup")
