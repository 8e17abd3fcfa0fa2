"""The clients' operations in a privileged container of gpurun's, with gpurun, crun and runc in there: gpurun as those.

The outer container is Docker's (a CI runner's docker:dind), Podman's, and Podman's with a user namespace (as sysbox has it).
Inside are Docker, Podman, and containerd's CRI plugin (a kind-like node).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from tests.clients.bed import abilities, program, versions
from tests.clients.beside import hold_to
from tests.clients.nested_bed import NestedBed, nested_bed
from tests.clients.operation import Operation, nested_operations
from tests.clients.outers import OUTERS
from tests.clients.report import VERSIONS
from tests.clients.test_operations import IN_GUEST
from tests.conftest import runtime_path

pytestmark = [pytest.mark.clients, pytest.mark.slow, pytest.mark.native]

CASES = [
    pytest.param(outer, operation, id=f"{operation.client} in {outer}: {operation.name}")
    for outer in OUTERS
    for client in OUTERS[outer].inside
    for operation in nested_operations(client)
]
NAMES = ("gpurun", "crun", "peer")


@pytest.fixture(scope="module")
def bed_in(request: pytest.FixtureRequest) -> Iterator[Callable[[str], NestedBed]]:
    """Gives the bed in the outer container of a name in ``OUTERS``, which is kept until another one is asked for.

    As a parameter of the fixture it was made anew for each operation: pytest tells two cases by their numbers.
    """
    if IN_GUEST:
        pytest.skip("the guest is too slow for it")
    runtimes = {"gpurun": runtime_path(), "crun": program("crun"), "peer": program("runc")}
    if missing := [name for name, path in runtimes.items() if not os.access(path, os.X_OK)]:
        pytest.skip(f"{' and '.join(missing)} are not here to compare with")
    made: dict[str, NestedBed] = {}
    with ExitStack() as held:

        def give(outer: str) -> NestedBed:
            if outer not in made:
                made.clear()
                held.close()
                made[outer] = held.enter_context(nested_bed(OUTERS[outer], runtimes))
                request.config.stash[VERSIONS] = versions(made[outer])
            return made[outer]

        yield give


@pytest.mark.sweep(75)
@pytest.mark.parametrize("outer, operation", CASES)
def test_operation(
    operation: Operation,
    outer: str,
    bed_in: Callable[[str], NestedBed],
    record_property: Callable[[str, object], None],
) -> None:
    record_property("outer", outer)
    bed = bed_in(outer)
    if reason := operation.beyond_a_container(outer) or operation.skipped(abilities(bed), IN_GUEST):
        pytest.skip(reason)
    hold_to(bed, operation, NAMES, record_property)
