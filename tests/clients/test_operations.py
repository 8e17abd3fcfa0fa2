"""Every operation of every client, with gpurun and with runc: both must say what they must, and the same, line by line.

`RUNTIME` is the runtime under test, `REFERENCE` the other one (this machine's runc).  Both do an operation at the same time.
`make test-clients` runs this natively, `make test-vm-all` in the guest, and each writes its part of docs/clients.md.
"""

from __future__ import annotations

import functools
import os
import secrets
import shutil
import time
import warnings
from collections.abc import Callable, Iterator

import pytest

from tests.clients.bed import IMAGE, ClientBed, ClientBedUnavailable, abilities, make_bed, program, versions
from tests.clients.cri.daemon import CriDaemon
from tests.clients.differences import Comparison, compare
from tests.clients.operation import CLIENTS, Operation, missing, operations, transcript
from tests.clients.report import VERSIONS
from tests.conftest import runtime_path
from tests.native.abilities import GUEST

IN_GUEST = os.uname().nodename == GUEST
pytestmark = [pytest.mark.clients, pytest.mark.slow, pytest.mark.vm if IN_GUEST else pytest.mark.native]

ALL = [
    pytest.param(operation, marks=[pytest.mark.short] if operation.short else [])
    for client in CLIENTS
    for operation in operations(client)
]


@pytest.fixture(scope="module")
def bed(request: pytest.FixtureRequest) -> Iterator[ClientBed]:
    reference = os.environ.get("REFERENCE") or program("runc")
    if not os.access(runtime_path(), os.X_OK):
        pytest.fail(f"{runtime_path()} is missing: run `make build` first, or set RUNTIME")
    if not reference:
        pytest.skip("runc is not installed: there is nothing to compare with")
    try:
        made = make_bed({"tested": runtime_path(), "reference": reference})
    except ClientBedUnavailable as e:
        pytest.skip(str(e))
    request.config.stash[VERSIONS] = versions(made)
    yield made
    if cri_of.cache_info().currsize:
        cri_of(made).close()
    made.close()
    shutil.rmtree(made.directory)


@functools.cache
def cri_of(bed: ClientBed) -> CriDaemon:
    """containerd's CRI plugin in this bed, from the first operation on that needs it."""
    return CriDaemon(bed)


def perform(bed: ClientBed, operation: Operation, runtimes: tuple[str, ...]) -> list[tuple[list[str], list[str]]]:
    """What *operation* says with each of these of the bed's runtimes, and what is wrong with that."""
    commands, names = [], []
    for runtime in (bed.runtimes[which] for which in runtimes):
        container = f"t{secrets.token_hex(4)}"
        env = {"C": container, "IMAGE": IMAGE, "ARCHIVE": str(bed.archive()), "BEDS": str(bed.beds)}
        env |= {"DOCKER_RUNTIME": runtime.docker, "BINARY": runtime.binary, "PATIENCE": str(int(bed.patience))}
        if operation.client == "cri":
            env |= cri_of(bed).environment()
        commands.append((("bash", "-c", operation.whole), env))
        names.append({container: "<name>", runtime.binary: "<runtime>", str(bed.directory): "<directory>"})
    called = [bed.calls(which) for which in runtimes]
    found = []
    for which, before, result, known in zip(runtimes, called, bed.run_together(commands), names, strict=True):
        lines = transcript(result, known)
        faults = [f"never said: {wanted}" for wanted in missing(operation, lines)]
        faults += [lines[-1]] if lines[-1] != "exit 0" else []
        faults += ["the runtime was never called"] if bed.calls_are_logged and bed.calls(which) == before else []
        found.append((lines, faults))
    return found


def compared_with(operation: Operation, found: list[tuple[list[str], list[str]]]) -> Comparison:
    """What gpurun said beside what runc did."""
    (tested, _), (reference, _) = found
    return compare(f"{operation.client}: {operation.name}", tested, reference)


@pytest.mark.sweep(120)
@pytest.mark.parametrize("operation", ALL, ids=lambda o: f"{o.client}: {o.name}")
def test_operation(operation: Operation, bed: ClientBed, record_property: Callable[[str, object], None]) -> None:
    able = abilities(bed)
    if reason := operation.skipped(able, IN_GUEST):
        pytest.skip(reason)
    alone = operation.gpurun or not able.issuperset(operation.compared)
    runtimes = ("tested",) if alone else ("tested", "reference")
    found = perform(bed, operation, runtimes)
    races = False
    for _ in range(1 if IN_GUEST else 3):
        if alone or not (found[1][1] or (races and found[0][1])):
            break
        # runc fails: a client's own race, or a test's.  What gpurun does in such a moment says nothing, and it may be caught
        # by the same race at the next attempt: there has to be one at which both pass.
        races = True
        failed = "\n".join([f"{operation.client}: {operation.name}: failed with runc:", *found[1][1]])
        warnings.warn(failed if found[1][1] else f"{operation.name}: failed where runc had failed before", stacklevel=1)
        found = perform(bed, operation, runtimes)
    compared = None if alone else compared_with(operation, found)
    if compared and compared.unlisted and not found[0][1] and not found[1][1]:
        # Both said what they must; the words between differ.  Those are a client's as well as a runtime's: what is the
        # runtime's differs again.
        warnings.warn("\n".join([f"{operation.client}: {operation.name}: differed once:", *compared.unlisted]), stacklevel=1)
        found = perform(bed, operation, runtimes)
        compared = compared_with(operation, found)
    wrong, said = [], []
    for which, (lines, faults) in zip(("gpurun", "runc"), found, strict=False):
        record_property(which, "fail" if faults else "pass")
        wrong += [f"{which}: {fault}" for fault in faults]
        said += [f"--- {which}", *lines]
    if compared:
        record_property("reasons", compared.listed)
        wrong += compared.unlisted
    if wrong:
        pytest.fail("\n".join([*wrong, *said]), pytrace=False)


def left(bed: ClientBed) -> dict[str, list[str]]:
    """What is still there of containers, by the command that finds it."""
    engines = ["docker ps -aq", "podman ps -aq --external", "ctr containers ls -q"]
    if cri_of.cache_info().currsize:
        engines.append(f"ctr -a {cri_of(bed).address} -n k8s.io containers ls -q")
    places = [
        "find /sys/fs/cgroup -mindepth 1 -type d | grep -E 'libpod-|/docker/|docker-|/default/|/cri/|cri-containerd'",
        "find /run/containerd/runc /run/docker/runtime-runc -mindepth 2 -maxdepth 2 -not -path '*/.*'",
        "pgrep -fa '^/[^ ]*containerd-shim'",  # not those that have ended and that their parent has not asked for
    ]
    asked = {command: bed.run("sh", "-c", command) for command in engines + places}
    assert not [asked[command] for command in engines if asked[command].rc]
    return {command: answer.out.splitlines() for command, answer in asked.items() if answer.out}


@pytest.mark.parametrize("client", CLIENTS, ids=lambda client: f"{client}: after all of them")
def test_nothing_is_left(bed: ClientBed, client: str) -> None:
    """No container, no cgroup, no state of a runtime, no shim, after all that was done; asked in the bed of each client."""
    # A shim ends some time after its last container, and systemd removes a scope when it comes to it.
    deadline = time.monotonic() + bed.patience
    while (found := left(bed)) and time.monotonic() < deadline:
        time.sleep(0.5)
    if found:
        pytest.fail("\n".join(f"{command}: {lines}" for command, lines in found.items()), pytrace=False)
