"""Every operation of every client, with gpurun and with runc: both must say what they must, and the same, line by line.

`RUNTIME` is the runtime under test, `REFERENCE` the other one (this machine's runc).
"""

from __future__ import annotations

import os
import secrets
import shutil
from collections.abc import Iterator

import pytest

from tests.clients.bed import GUEST, IMAGE, ClientBed, ClientBedUnavailable, abilities, make_bed
from tests.clients.differences import compare
from tests.clients.operation import CLIENTS, Operation, missing, operations, transcript
from tests.conftest import runtime_path

IN_GUEST = os.uname().nodename == GUEST
pytestmark = [pytest.mark.clients, pytest.mark.vm if IN_GUEST else pytest.mark.native]

ALL = [operation for client in CLIENTS for operation in operations(client)]


@pytest.fixture(scope="module")
def bed() -> Iterator[ClientBed]:
    reference = os.environ.get("REFERENCE") or shutil.which("runc")
    if not os.access(runtime_path(), os.X_OK):
        pytest.fail(f"{runtime_path()} is missing: run `make build` first, or set RUNTIME")
    if not reference:
        pytest.skip("runc is not installed: there is nothing to compare with")
    try:
        made = make_bed({"tested": runtime_path(), "reference": reference})
    except ClientBedUnavailable as e:
        pytest.skip(str(e))
    yield made
    made.close()
    shutil.rmtree(made.directory)


def perform(bed: ClientBed, operation: Operation, which: str) -> list[str]:
    """The transcript of *operation* with one of the bed's runtimes."""
    runtime = bed.runtimes[which]
    container = f"t{secrets.token_hex(4)}"
    env = {"C": container, "IMAGE": IMAGE, "BEDS": str(bed.beds), "DOCKER_RUNTIME": runtime.docker, "BINARY": runtime.binary}
    result = bed.run("bash", "-c", operation.whole, timeout=bed.timeout, **env)
    return transcript(result, {container: "<name>", runtime.binary: "<runtime>", str(bed.directory): "<directory>"})


@pytest.mark.parametrize("operation", ALL, ids=lambda o: f"{o.client}: {o.name}")
def test_operation(operation: Operation, bed: ClientBed, record_property: pytest.RecordProperty) -> None:
    if reason := operation.skipped(abilities(bed), IN_GUEST):
        pytest.skip(reason)
    name = f"{operation.client}: {operation.name}"
    tested = perform(bed, operation, "tested")
    lacks = missing(operation, tested)
    record_property("tested", "fail" if lacks or tested[-1] != "exit 0" else "pass")
    wrong = [f"gpurun never said {lacks}"] if lacks else []
    wrong += ["gpurun: " + tested[-1]] if tested[-1] != "exit 0" else []
    said = ["--- gpurun", *tested]
    if not operation.gpurun:
        reference = perform(bed, operation, "reference")
        lacked = missing(operation, reference)
        record_property("reference", "fail" if lacked or reference[-1] != "exit 0" else "pass")
        found = compare(name, tested, reference)
        record_property("reasons", found.listed)
        wrong += found.unlisted
        said += ["--- runc", *reference]
    if wrong:
        pytest.fail("\n".join([*wrong, *said]), pytrace=False)
