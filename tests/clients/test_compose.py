"""The Compose file with replicas (examples/compose/replicas) through Docker's own Compose: a GPU for each, whoever dies."""

from __future__ import annotations

import json
import os
import random
import secrets
from collections.abc import Iterator

import pytest

from tests.clients.bed import IMAGE, ClientBed
from tests.clients.gpu_bed import gpu_bed
from tests.conftest import REPOSITORY
from tests.native.runtime import Result
from tests.simdriver import Options, uuid

pytestmark = [pytest.mark.native, pytest.mark.clients, pytest.mark.gpurun_only]

GPUS = 8
#: Of its own: who else on this machine has a GPU of that number would be seen.
MAJOR = 2600 + os.getpid() % 400
FILE = REPOSITORY / "examples/compose/replicas/compose.yaml"


@pytest.fixture(scope="module")
def clients() -> Iterator[ClientBed]:
    with gpu_bed("gpurun", Options(gpus=GPUS, major=MAJOR)) as bed:
        yield bed


@pytest.fixture(scope="module")
def compose(clients: ClientBed) -> tuple[str, ...]:
    """``docker compose`` (the plugin), or the program of that name: Docker's package has the one, Debian's both."""
    for words in (("docker", "compose"), ("docker-compose",)):
        said = clients.run(*words, "version")
        if said.rc == 0 and " version 2" in said.out.replace("version v", "version "):
            return words
    pytest.skip("needs Docker's Compose, version 2")


def test_each_replica_has_its_own(clients: ClientBed, compose: tuple[str, ...]) -> None:
    project = f"p{secrets.token_hex(4)}"
    chance = random.Random(17)

    def run(*words: str) -> Result:
        return clients.run(*compose, "--project-name", project, "--file", str(FILE), *words, IMAGE=IMAGE)

    def scale(count: int) -> Result:
        return run("up", "--detach", "--no-recreate", "--no-build", "--scale", f"worker={count}")

    def leases() -> dict[str, str]:
        """The container's name → its GPU."""
        listed = json.loads(clients.run(clients.runtimes["gpurun"].binary, "gpu", "leases", "--json").out)["leases"]
        assert all(len(lease["gpus"]) == 1 for lease in listed)
        return {lease["name"]: lease["gpus"][0]["uuid"] for lease in listed}

    def check(count: int) -> list[str]:
        """So many run, each sees one GPU, and no two the same; the names of the containers."""
        names = sorted(run("ps", "--format", "{{.Name}}").out.split())
        said = [
            clients.run("docker", "exec", name, "sh", "-c", "echo $NVIDIA_VISIBLE_DEVICES").out.strip() for name in names
        ]
        assert len(names) == count and set(said) <= {uuid(n) for n in range(GPUS)} and len(set(said)) == count, said
        assert leases() == dict(zip(names, said, strict=True))
        return names

    try:
        up = run("up", "--detach")
        assert up.rc == 0, up.text
        check(4)  # as the file has it
        assert scale(GPUS).rc == 0
        names = check(GPUS)
        refused = scale(GPUS + 1)
        assert (
            refused.rc != 0
            and "1 GPU wanted, 0 of 8 free" in refused.text
            and f"leased by {project}-worker-" in refused.text
        )
        for _ in range(2):
            for name in chance.sample(names, GPUS // 3 + 1):
                pid = clients.run("docker", "inspect", "--format", "{{.State.Pid}}", name).out.strip()
                assert clients.run("kill", "-KILL", pid).rc == 0
                clients.run("docker", "wait", name)
            held = leases()
            assert len(set(held.values())) == len(held) == GPUS - GPUS // 3 - 1
            again = scale(GPUS)
            assert again.rc == 0, again.text
            names = check(GPUS)
    finally:
        down = run("down", "--timeout", "0", "--remove-orphans")
    assert down.rc == 0, down.text
    assert leases() == {}
