"""Containers with (simulated) GPUs through engines' own checkpoint commands, on their GPU and on another."""

from __future__ import annotations

import contextlib
import os
import secrets
import subprocess
from collections.abc import Callable, Iterator

import pytest

from tests.clients.bed import IMAGE, ClientBed
from tests.clients.gpu_bed import gpu_bed
from tests.conftest import runtime_path
from tests.native.runtime import Result
from tests.native.waiting import wait_until
from tests.simdriver import Options, bus_id, uuid

pytestmark = [pytest.mark.native, pytest.mark.clients, pytest.mark.gpurun_only]

COUNT = "i=0; while :; do i=$((i+1)); echo $i >/new; mv /new /count; sleep 0.05; done"
LOOK = (
    "cat /count; echo $NVIDIA_VISIBLE_DEVICES; ls /proc/driver/nvidia/gpus; cd /dev; "
    "for n in nvidia[0-9]*; do (: <>$n) 2>&1; done"
)
#: Of its own: who else on this machine has a GPU of that number would be seen.
MAJOR = 3600 + os.getpid() % 400
NO_DRIVER = "No such device or address"


@contextlib.contextmanager
def bed_with(major: int) -> Iterator[ClientBed]:
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("NATIVE_DOCKERD_OPTS", "--experimental")  # Docker's checkpoints are that
        with gpu_bed("tested", Options(gpus=2, major=major)) as bed:
            if bed.run("sh", "-c", "command -v criu").rc:
                pytest.skip("needs CRIU")
            yield bed


@pytest.fixture(scope="module")
def clients() -> Iterator[ClientBed]:
    with bed_with(MAJOR) as bed:
        yield bed


@pytest.fixture(scope="module")
def with_cdi() -> Iterator[ClientBed]:
    """GPUs that an engine brings are known by NVIDIA's own major."""
    with bed_with(195) as bed:
        spec = bed.directory / "nvidia.yaml"
        # Podman 4 knows CDI 0.5, and no groups of nodes.
        command = [runtime_path(), "cdi", "generate", "--feature-flag", "no-additional-gids-for-device-nodes"]
        env = os.environ | {"GPURUN_SYSROOT": str(bed.sysroot)}
        subprocess.run([*command, "--output", str(spec)], env=env, check=True)
        done(bed.run("sh", "-c", f"mkdir -p /run/cdi && cp {spec} /run/cdi/"))  # /run is the bed's own
        yield bed


def done(result: Result) -> str:
    assert result.rc == 0, result.text
    return result.out


def seen(look: Callable[[], str], index: int, after: int) -> int:
    """The container has the GPU *index* and no other, and counts on from *after*; how far it is."""
    said: list[str] = []

    def counts() -> bool:
        said[:] = look().splitlines()
        return bool(said) and said[0].isdecimal() and int(said[0]) > after

    wait_until(counts)
    count, names, *rest = said
    assert names in (uuid(index), str(index), "void", ""), "of a CDI file it says void; an old Podman's exec has none"
    assert rest[0] == bus_id(index) and len(rest) == 2 and rest[1].endswith(NO_DRIVER), rest
    return int(count)


def test_podman(clients: ClientBed) -> None:
    through_podman(clients, "--env=NVIDIA_VISIBLE_DEVICES=1")


def test_podman_with_cdi(with_cdi: ClientBed) -> None:
    through_podman(with_cdi, "--device=nvidia.com/gpu=1")


def through_podman(clients: ClientBed, asked: str) -> None:
    podman = ("podman", "--runtime", clients.runtimes["tested"].binary)
    name, other = f"c{secrets.token_hex(4)}", f"c{secrets.token_hex(4)}"

    def look(container: str) -> Callable[[], str]:
        return lambda: clients.run(*podman, "exec", container, "sh", "-c", LOOK).out

    archive = clients.directory / f"{name}.tar.gz"
    try:
        done(clients.run(*podman, "run", "-d", "--name", name, "--network", "none", asked, IMAGE, "sh", "-c", COUNT))
        count = seen(look(name), 1, 3)
        done(clients.run(*podman, "container", "checkpoint", name))
        done(clients.run(*podman, "container", "restore", name))
        count = seen(look(name), 1, count)
        done(clients.run(*podman, "container", "checkpoint", "--export", str(archive), name))
        done(clients.run(*podman, "rm", "--force", name))
        done(clients.run(*podman, "container", "restore", "--import", str(archive), "--name", other))
        seen(look(other), 1, count)
    finally:
        for one in (name, other):
            clients.run(*podman, "rm", "--force", one)
        archive.unlink(missing_ok=True)


@pytest.mark.parametrize("how", ["free", "annotation", "flag"])
def test_podman_moves_it(clients: ClientBed, how: str) -> None:
    """Its old GPU is taken meanwhile (a container that asked for a free one, or that has said what to do), or it is told
    which one at restore."""
    podman = ("podman", "--runtime", clients.runtimes["tested"].binary)
    name, *others = [f"c{secrets.token_hex(4)}" for _ in range(3)]

    def run(called: str, devices: str, script: str, *options: str) -> None:
        words = (*podman, "run", "-d", "--name", called, "--network", "none", f"--env=NVIDIA_VISIBLE_DEVICES={devices}")
        done(clients.run(*words, *options, IMAGE, "sh", "-c", script))

    def look() -> str:
        return clients.run(*podman, "exec", name, "sh", "-c", LOOK).out

    try:
        options = ("--annotation", "dev.gpurun.gpu.restore=free") if how == "annotation" else ()
        run(name, "free:1" if how == "free" else "1", COUNT, *options)
        wait_until(lambda: bool(look()))
        had = int(bus_id(1) in look())
        count = seen(look, had, 3)
        done(clients.run(*podman, "container", "checkpoint", name))
        if how == "free":
            run(others[0], str(had), "exec sleep 600")
        elif how == "annotation":
            run(others[0], "0", "exec sleep 600")
            run(others[1], "free", "exec sleep 600")  # which is 1
            refused = clients.run(*podman, "container", "restore", name)
            assert refused.rc and "1 GPU wanted, 0 of 2 free" in refused.text and others[1] in refused.text, refused.text
            done(clients.run(*podman, "rm", "--force", "--time", "0", others[0]))
        flag = ("--runtime-flag", "gpu-map=1=0") if how == "flag" else ()
        done(clients.run(*podman, *flag, "container", "restore", name))
        seen(look, 1 - had, count)
    finally:
        for one in (name, *others):
            clients.run(*podman, "rm", "--force", "--time", "0", one)


@pytest.mark.parametrize("how", ["its own", "free"])
def test_docker(clients: ClientBed, how: str) -> None:
    name, other = f"c{secrets.token_hex(4)}", f"c{secrets.token_hex(4)}"

    def run(called: str, devices: str, script: str) -> None:
        words = ("docker", "run", "--detach", "--network", "none", "--runtime", clients.runtimes["tested"].docker)
        done(clients.run(*words, "--name", called, f"--env=NVIDIA_VISIBLE_DEVICES={devices}", IMAGE, "sh", "-c", script))

    def look() -> str:
        return clients.run("docker", "exec", name, "sh", "-c", LOOK).out

    try:
        run(name, "free:1" if how == "free" else "1", COUNT)
        wait_until(lambda: bool(look()))
        had = int(bus_id(1) in look())
        count = seen(look, had, 3)
        made = clients.run("docker", "checkpoint", "create", name, "one")
        if "experimental" in made.text:
            pytest.skip("needs a dockerd with --experimental")
        done(made)
        wait_until(lambda: clients.run("docker", "inspect", "--format", "{{.State.Status}}", name).out == "exited\n")
        if how == "free":
            run(other, str(had), "exec sleep 600")
        done(clients.run("docker", "start", "--checkpoint", "one", name))
        seen(look, 1 - had if how == "free" else had, count)
    finally:
        clients.run("docker", "rm", "--force", name, other)


@pytest.mark.parametrize("how", ["its own", "free", "annotation"])
def test_containerd(clients: ClientBed, how: str) -> None:
    """On its own GPU, and where that is taken meanwhile on another."""
    runtime = clients.runtimes["tested"].binary
    task, reference = f"t{secrets.token_hex(4)}", f"checkpoint/{secrets.token_hex(4)}:1"
    others = [f"t{secrets.token_hex(4)}" for _ in range(2)]
    archive = clients.directory / f"{task}.tar"

    def run(called: str, devices: str, script: str, *options: str) -> None:
        words = ("--detach", "--null-io", "--runc-binary", runtime, "--env", f"NVIDIA_VISIBLE_DEVICES={devices}", *options)
        done(clients.run("ctr", "run", *words, f"docker.io/{IMAGE}", called, "sh", "-c", script))

    def look() -> str:
        return clients.run("ctr", "tasks", "exec", "--exec-id", f"x{secrets.token_hex(4)}", task, "sh", "-c", LOOK).out

    def remove(called: str) -> None:
        clients.run("ctr", "tasks", "kill", "--signal", "KILL", called)
        clients.run("ctr", "tasks", "delete", "--force", called)
        clients.run("ctr", "containers", "delete", called)

    try:
        options = ("--annotation", "dev.gpurun.gpu.restore=free") if how == "annotation" else ()
        run(task, "free:1" if how == "free" else "1", COUNT, *options)
        wait_until(lambda: bool(look()))
        had = int(bus_id(1) in look())
        count = seen(look, had, 3)
        done(clients.run("ctr", "containers", "checkpoint", "--rw", "--image", "--task", task, reference))
        done(clients.run("ctr", "images", "export", "--skip-manifest-json", str(archive), reference))
        clients.run("ctr", "tasks", "kill", "--signal", "KILL", task)
        wait_until(lambda: clients.run("ctr", "tasks", "delete", "--force", task).rc == 0)
        done(clients.run("ctr", "containers", "delete", task))
        done(clients.run("ctr", "images", "remove", reference))
        done(clients.run("ctr", "images", "import", "--no-unpack", str(archive)))
        if how == "free":
            run(others[0], str(had), "exec sleep 600")
        elif how == "annotation":
            run(others[0], "0", "exec sleep 600")
            run(others[1], "free", "exec sleep 600")  # which is 1
            remove(others[0])
        done(clients.run("ctr", "containers", "restore", "--rw", "--live", task, reference))
        seen(look, had if how == "its own" else 1 - had, count)
    finally:
        for one in (task, *others):
            remove(one)
        archive.unlink(missing_ok=True)
