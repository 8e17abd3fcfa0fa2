"""The clients' operations in a privileged container of gpurun's, with gpurun, crun and runc in there: gpurun as those.

The outer container is Docker's (a CI runner's docker:dind), Podman's, and Podman's with a user namespace (as sysbox has it).
Inside are Docker, Podman, and containerd's CRI plugin (a kind-like node).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator

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
def bed(request: pytest.FixtureRequest) -> Iterator[NestedBed]:
    """The bed in the outer container whose name in ``OUTERS`` is the parameter."""
    if IN_GUEST:
        pytest.skip("the guest is too slow for it")
    runtimes = {"gpurun": runtime_path(), "crun": program("crun"), "peer": program("runc")}
    if missing := [name for name, path in runtimes.items() if not os.access(path, os.X_OK)]:
        pytest.skip(f"{' and '.join(missing)} are not here to compare with")
    with nested_bed(OUTERS[request.param], runtimes) as made:
        request.config.stash[VERSIONS] = versions(made)
        yield made


@pytest.mark.sweep(75)
@pytest.mark.parametrize("bed, operation", CASES, indirect=["bed"])
def test_operation(operation: Operation, bed: NestedBed, record_property: Callable[[str, object], None]) -> None:
    record_property("outer", bed.outer.name)
    if reason := operation.beyond_a_container(bed.outer.name) or operation.skipped(abilities(bed), IN_GUEST):
        pytest.skip(reason)
    hold_to(bed, operation, NAMES, record_property)
