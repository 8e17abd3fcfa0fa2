"""The marks of an operation, and what they make of it on a machine."""

from __future__ import annotations

import pytest

from tests.clients.operation import Operation, parse

TEXT = """\
# Before the first.
### one
# says: a+
# needs: criu memory
# compared if: idmap
# broken: containerd-2.1 drops it
# A comment stays.
echo aaa

### two
# guest
echo b
"""
ONE, TWO = parse("ctr", TEXT)


def test_marks_are_read_and_the_rest_is_the_script() -> None:
    script = "# A comment stays.\necho aaa"
    wanted = Operation(
        "ctr", "one", script, ("a+",), ("criu", "memory"), compared=("idmap",), broken=("containerd-2.1 drops it",)
    )
    assert wanted == ONE
    assert Operation("ctr", "two", "echo b", guest=True) == TWO


@pytest.mark.parametrize(
    ("operation", "abilities", "why"),
    [
        (ONE, ("criu",), "needs memory"),
        (ONE, ("criu", "memory"), ""),
        (ONE, ("criu", "memory", "containerd-2.0"), ""),
        (ONE, ("criu", "memory", "containerd-2.1"), "with containerd-2.1 drops it"),
        (TWO, ("containerd-2.1",), ""),
    ],
)
def test_what_is_skipped_and_why(operation: Operation, abilities: tuple[str, ...], why: str) -> None:
    assert operation.skipped(frozenset(abilities), guest=False) == why
