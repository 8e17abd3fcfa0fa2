"""Free GPUs through Docker and containerd: replicas get a GPU each, and a container that runs gets one more by its name."""

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
from tests.simdriver import Options, minor, uuid

pytestmark = [pytest.mark.native, pytest.mark.clients, pytest.mark.gpurun_only]

GPUS = 4
MAJOR = 3000 + os.getpid() % 500
DENIED, NO_DRIVER = "Operation not permitted", "No such device or address"


@pytest.fixture(scope="module")
def clients() -> Iterator[ClientBed]:
    with gpu_bed("tested", Options(gpus=GPUS, major=MAJOR)) as bed:
        yield bed


def test_replicas_and_one_more(clients: ClientBed) -> None:
    runtime = clients.runtimes["tested"]

    def gpurun(*words: str) -> Result:
        return clients.run(runtime.binary, *words)

    def docker(name: str, gpus: str) -> Result:
        words = ("docker", "run", "--detach", "--network", "none", "--runtime", runtime.docker, "--name", name)
        script = "echo $NVIDIA_VISIBLE_DEVICES; exec sleep 600"
        return clients.run(*words, "--label", "team=a", "--env", f"NVIDIA_VISIBLE_DEVICES={gpus}", IMAGE, "sh", "-c", script)

    def has(name: str) -> str:
        said = clients.run("docker", "exec", name, "sh", "-c", "echo $NVIDIA_VISIBLE_DEVICES; ls /dev | grep 'nvidia[0-9]'")
        names, *nodes = said.out.split()
        assert sorted(nodes) == sorted(f"nvidia{minor(n, GPUS)}" for n in range(GPUS) if uuid(n) in names.split(","))
        return names

    def opens(name: str, gpu: str) -> str:
        number = next(minor(n, GPUS) for n in range(GPUS) if uuid(n) == gpu)
        script = f"mknod /tmp/gpu c {MAJOR} {number}; (: <>/tmp/gpu) 2>&1; rm /tmp/gpu"
        return clients.run("docker", "exec", name, "sh", "-c", script).out.strip().rpartition(": ")[2]

    try:
        for n in range(3):
            made = docker(f"worker-{n}", "free:1")
            assert made.rc == 0, made.text
        task = f"t{secrets.token_hex(4)}"
        ctr = ("ctr", "run", "--detach", "--runc-binary", runtime.binary, "--env", "NVIDIA_VISIBLE_DEVICES=free")
        made = clients.run(*ctr, f"docker.io/{IMAGE}", task, "sleep", "600")
        assert made.rc == 0, made.text
        replicas = [has(f"worker-{n}") for n in range(3)]
        assert len(set(replicas)) == 3
        refused = docker("worker-3", "free:1")
        assert refused.rc != 0 and "1 GPU wanted, 0 of 4 free" in refused.text
        assert "leased by worker-0 (" in refused.text and ") of Docker since" in refused.text and task in refused.text
        listed = json.loads(gpurun("gpu", "leases", "--json").out)["leases"]
        assert [lease["name"] for lease in listed] == ["worker-0", "worker-1", "worker-2", None]
        assert clients.run("docker", "kill", "worker-1").rc == 0
        assert opens("worker-0", replicas[1]) == DENIED
        attached = gpurun("gpu", "attach", "worker-0", "free")
        assert attached.rc == 0, attached.text
        assert opens("worker-0", replicas[1]) == NO_DRIVER
        assert sorted(has("worker-0").split(",")) == sorted([replicas[0], replicas[1]])
        assert clients.run("docker", "start", "worker-1").rc != 0, "a container that starts again asks again"
        assert opens("worker-0", replicas[0]) == NO_DRIVER
        assert gpurun("gpu", "detach", "worker-0", replicas[0]).rc == 0
        assert opens("worker-0", replicas[0]) == DENIED
        assert clients.run("docker", "start", "worker-1").rc == 0
        assert (has("worker-0"), has("worker-1")) == (replicas[1], replicas[0])
    finally:
        clients.run("docker", "rm", "--force", *[f"worker-{n}" for n in range(4)])
        clients.run("ctr", "task", "rm", "--force", task)
        clients.run("ctr", "container", "rm", task)
    assert json.loads(gpurun("gpu", "leases", "--json").out)["leases"] == []


@pytest.mark.parametrize("rounds", [3, pytest.param(25, marks=pytest.mark.slow)])
def test_many_at_once_and_a_third_killed(clients: ClientBed, rounds: int) -> None:
    """Docker and containerd make eight at a time, for one or two of four GPUs; a third of what runs is killed.

    At least one is killed in each round, and at least one starts: a killed one's GPUs are free, and the first asks for one.
    """
    runtime = clients.runtimes["tested"]
    chance = random.Random(17)
    listing: tuple[tuple[str, ...], dict[str, str]] = ((runtime.binary, "gpu", "leases", "--json"), {})
    running: dict[str, bool] = {}  # name → whether it is Docker's
    ran = killed = 0

    def make_words(name: str, docker: bool, wanted: int) -> tuple[tuple[str, ...], dict[str, str]]:
        asked = f"NVIDIA_VISIBLE_DEVICES=free:{wanted}"
        script = ("sh", "-c", "echo $NVIDIA_VISIBLE_DEVICES; exec sleep 600")
        if docker:
            words = f"docker run --detach --network none --runtime {runtime.docker} --name {name} --env {asked}"
            return (*words.split(), IMAGE, *script), {}
        words = f"ctr run --detach --null-io --runc-binary {runtime.binary} --env {asked}"
        return (*words.split(), f"docker.io/{IMAGE}", name, *script), {}

    def pid_of(name: str, docker: bool) -> str:
        if docker:
            return clients.run("docker", "inspect", "--format", "{{.State.Pid}}", name).out.strip()
        listed = clients.run("ctr", "tasks", "ls").out.splitlines()
        return next(line.split()[1] for line in listed if line.startswith(f"{name} "))

    def remove(name: str, docker: bool) -> None:
        if docker:
            clients.run("docker", "rm", "--force", name)
        else:
            clients.run("ctr", "tasks", "rm", "--force", name)
            clients.run("ctr", "containers", "rm", name)

    def held(text: str) -> list[str]:
        return [gpu["uuid"] for lease in json.loads(text)["leases"] for gpu in lease["gpus"]]

    try:
        for _ in range(rounds):
            names = [(f"m{secrets.token_hex(4)}", n % 2 == 0) for n in range(8)]
            commands = [make_words(*one, wanted=chance.choice((1, 1, 2)) if n else 1) for n, one in enumerate(names)]
            answers = clients.run_together([*commands[:4], listing, *commands[4:], listing])
            for answer in (answers.pop(4), answers.pop()):
                got = held(answer.out)
                assert len(got) == len(set(got)), answer.out
            for (name, docker), answer in zip(names, answers, strict=True):
                if answer.rc == 0:
                    running[name] = docker
                    ran += 1
                else:
                    assert "wanted" in answer.text and " free" in answer.text, answer.text
                    remove(name, docker)
            got = held(clients.run(*listing[0]).out)
            assert len(got) == len(set(got)) and len(got) >= len(running) > 0
            for n, (name, docker) in enumerate(chance.sample(list(running.items()), len(running))):
                if n % 3 == 0:
                    assert clients.run("kill", "-KILL", pid_of(name, docker)).rc == 0
                    killed += 1
                if n % 3 == 0 or chance.random() < 0.7:
                    remove(name, docker)
                    del running[name]
    finally:
        for name, docker in running.items():
            remove(name, docker)
    assert ran > rounds and killed >= rounds
    assert held(clients.run(*listing[0]).out) == []


def test_the_compose_file_asks_for_a_free_gpu_for_each_replica() -> None:
    """Read as Compose would: tests/clients/test_compose.py runs it where Compose is."""
    import yaml

    service = yaml.safe_load((REPOSITORY / "examples/compose/replicas/compose.yaml").read_text())["services"]["worker"]
    assert service["runtime"] == "gpurun" and service["environment"] == {"NVIDIA_VISIBLE_DEVICES": "free:1"}
    assert service["deploy"] == {"replicas": 4}
