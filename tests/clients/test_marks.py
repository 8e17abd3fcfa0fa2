"""The marks of an operation, and what they make of it on a machine."""

from __future__ import annotations

import pytest

from tests.clients.operation import Operation, parse

TEXT = """\
# Before the first.
# rootless docker: a mark of all
### one
# says: a+
# needs: criu memory
# compared if: idmap
# broken: containerd-2.1 drops it
# A comment stays.
echo aaa

### two
# guest
# nested userns: not there
# rootless: nobody
echo b
"""
ONE, TWO = parse("ctr", TEXT)


def test_marks_are_read_and_the_rest_is_the_script() -> None:
    script = "# A comment stays.\necho aaa"
    of_all = ("rootless docker", "a mark of all")
    wanted = Operation(
        "ctr", "one", script, ("a+",), ("criu", "memory"), compared=("idmap",), broken=("containerd-2.1 drops it",)
    )
    assert wanted._replace(rootless=(of_all,)) == ONE
    two = Operation("ctr", "two", "echo b", guest=True, nested=(("nested userns", "not there"),))
    assert two._replace(rootless=(("rootless", "nobody"), of_all)) == TWO


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


@pytest.mark.parametrize(
    ("operation", "client", "why"),
    [
        (ONE, "docker", ""),
        (ONE._replace(needs=()), "rootless", ""),
        (ONE, "rootless-docker", "a mark of all"),
        (TWO, "rootless", "nobody"),
        (TWO, "rootless-docker", "nobody"),
    ],
)
def test_what_a_user_cannot_do(operation: Operation, client: str, why: str) -> None:
    able = frozenset(("criu", "memory"))
    assert operation._replace(client=client).skipped(able, guest=False) == why


def test_what_a_container_cannot_do() -> None:
    assert [TWO.beyond_a_container(outer) for outer in ("userns", "docker")] == ["not there", ""]
    assert TWO._replace(nested=(("nested", "nowhere"),)).beyond_a_container("docker") == "nowhere"
