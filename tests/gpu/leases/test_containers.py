"""Containers that ask for free GPUs: who gets which, until when, and what is said to those who get none."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpurun.gpu.nvidia.host.nvml import TIMEOUT_S
from tests.conftest import MakeBundle
from tests.gpu.leases.asked import Start, asking, end, got, leases, refused
from tests.gpu.leases.conftest import MakeHost
from tests.native.bundle import Bundle
from tests.native.leaks import Leaks
from tests.native.runtime import ENVIRONMENT, Runtime
from tests.simdriver import SimulatedDriver, minor, uuid

pytestmark = [pytest.mark.native, pytest.mark.gpurun_only]


def test_each_gets_its_own_until_none_is_left(
    runtime: Runtime, bundle: MakeBundle, start: Start, host: SimulatedDriver
) -> None:
    one, two, three = start("free"), start("free:2"), start("free:1;product=GeForce*")
    assert got(one) == [uuid(0)] and got(two) == [uuid(1), uuid(3)] and got(three) == [uuid(2)]
    assert one.out.splitlines()[1:] == ["nvidia3"]
    text = refused(runtime, bundle(), host, "free")
    assert "NVIDIA_VISIBLE_DEVICES 'free': 1 GPU wanted, 0 of 4 free" in text
    assert f"GPU 0: leased by {one.id} since 20" in text and f"GPU 2: leased by {three.id} since" in text
    end(two)  # not deleted: its end is enough
    four = start("free:2")
    assert got(four) == [uuid(1), uuid(3)]
    assert [lease["id"] for lease in leases(runtime, host)] == [one.id, three.id, four.id]


def test_exec_is_told_the_same(runtime: Runtime, start: Start) -> None:
    container = start("free:2")
    said = runtime("exec", container.id, "sh", "-c", "echo $NVIDIA_VISIBLE_DEVICES")
    assert said.out.strip().split(",") == got(container) == [uuid(0), uuid(2)]


def test_who_rested_longest_is_next(start: Start) -> None:
    order = []
    for _ in range(5):
        container = start("free")
        order += got(container)
        end(container)
    assert order == [uuid(0), uuid(1), uuid(2), uuid(3), uuid(0)]


def test_gpus_that_others_have_are_not_free(
    runtime: Runtime, bundle: MakeBundle, start: Start, host: SimulatedDriver
) -> None:
    named = start("1")
    rest = start("free:3")
    assert got(named) == ["1"] and got(rest) == [uuid(0), uuid(2), uuid(3)]
    text = refused(runtime, bundle(), host, "free")
    assert f"GPU 1: container {named.id} has it (process {named.pid})" in text
    assert got(start(uuid(0))) == [uuid(0)], "a leased GPU is shared with who names it, as long as the site says nothing"


def test_a_node_of_another_name_counts(runtime: Runtime, bundle: MakeBundle, start: Start, host: SimulatedDriver) -> None:
    """``--device /dev/nvidia2:/dev/card``: what counts is the number."""

    def renamed(b: Bundle) -> None:
        for number, name in ((minor(2, 4), "card"), (254, "nvidia-uvm")):
            node = {"path": f"/dev/{name}", "type": "c", "major": host.options.major, "minor": number, "fileMode": 0o666}
            b.linux.setdefault("devices", []).append(node)

    one = start("", config=renamed, script="echo nvidia; exec sleep 600")
    text = refused(runtime, bundle(), host, "free:4")
    assert f"3 of 4 free: GPU 2: container {one.id} has it" in text


def test_who_can_only_look_does_not_count(start: Start) -> None:
    start("all", config=lambda b: b.process["env"].append("NVIDIA_DRIVER_CAPABILITIES=utility"))
    assert len(got(start("free:4"))) == 4


def test_a_release_by_the_administrator(runtime: Runtime, start: Start, host: SimulatedDriver) -> None:
    first = start("free:4")
    env = ENVIRONMENT | host.env
    wrong = runtime("gpu", "lease", "--release", "nobody", env=env)
    assert wrong.rc == 1 and "nobody: no container with this id or name has a lease" in wrong.text
    assert runtime("gpu", "lease", first.id, env=env).rc != 0
    assert runtime("gpu", "lease", "--release", first.id, env=env).rc == 0
    second = start("free:2")
    assert got(second) == [uuid(0), uuid(2)]
    assert [lease["kind"] for lease in leases(runtime, host)] == ["released", "lease"]
    listed = json.loads(runtime("gpu", "list", "--json", env=env).out)["gpus"]
    assert [[lease["id"] for lease in gpu["leases"]] for gpu in listed] == [[first.id, second.id], [first.id]] * 2


def test_other_processes_of_the_container_hold_it(
    runtime: Runtime, bundle: MakeBundle, host: SimulatedDriver, tmp_path: Path
) -> None:
    """Without a pid namespace of its own, the end of the first process is not that of the container."""
    b = asking(bundle(), "free:4", "(sleep 600; :) & echo nvidia")
    b.without_namespace("pid")
    container = runtime.start(b, env=ENVIRONMENT | host.env)
    container.wait()
    assert "leased by" in refused(runtime, bundle(), host, "free")
    assert container.delete().rc == 0
    assert runtime.run(asking(bundle(), "free:4", "true"), env=ENVIRONMENT | host.env).rc == 0


def test_nothing_is_left_of_a_refused_create(runtime: Runtime, bundle: MakeBundle, host: SimulatedDriver) -> None:
    b = asking(bundle(), "free:4").args("no-such-program")
    assert "no-such-program" in runtime.refused(b, env=ENVIRONMENT | host.env)
    assert leases(runtime, host) == []
    assert runtime.run(asking(bundle(), "free:4", "true"), env=ENVIRONMENT | host.env).rc == 0


def test_by_mounts_and_not_where_images_may_not_ask(
    runtime: Runtime, bundle: MakeBundle, leaks: Leaks, host: SimulatedDriver, tmp_path: Path
) -> None:
    leaks.allow_rootfs_changes()  # what a mount needs stays, as with every runtime
    config = tmp_path / "config.toml"
    config.write_text(
        "accept-nvidia-visible-devices-envvar-when-unprivileged = false\n"
        "accept-nvidia-visible-devices-as-volume-mounts = true\n"
    )
    env = ENVIRONMENT | host.env | {"NVIDIA_CTK_CONFIG_FILE_PATH": str(config)}
    b = asking(bundle(), "free:2", "echo $NVIDIA_VISIBLE_DEVICES")
    assert runtime.output(b, env=env) == "free:2\n", "refused by the site, as any device in a variable"
    b = bundle().sh("echo $NVIDIA_VISIBLE_DEVICES").mount("/var/run/nvidia-container-devices/free:2", "/dev/null", "bind")
    assert runtime.output(b, env=env) == f"{uuid(0)},{uuid(2)}\n"


def test_nvml_says_who_computes(
    runtime: Runtime, bundle: MakeBundle, start: Start, make_host: MakeHost, some_pid: int
) -> None:
    """The stub's first GPU has a process; NVLink connects 1 with 2, and 3 with 4."""
    host = make_host(6, nvml="well", pid=some_pid)
    text = refused(runtime, bundle(), host, "free:6")
    assert f"GPU 0: process {some_pid} (sleep) of the host computes on it" in text
    assert got(start("free", on=host)) == [uuid(5)], "rather one that is alone than half a pair"
    assert got(start("free:2;nvlink", on=host)) == [uuid(1), uuid(2)]
    text = refused(runtime, bundle(), host, "free:2;memory>80GiB")
    assert "2 GPUs wanted, 0 of 6 free" in text and "GPU 0, 1, 2, 3, 4, 5: it has 80 GiB of memory" in text
    text = refused(runtime, bundle(), host, "free:3;memory>=80GiB")
    assert text.count("leased by") == 2 and "GPU 1, 2: leased by" in text
    assert "GPU 5: leased by" in text and "3 of 80 GiB in use, load 42 %" in text


@pytest.fixture
def some_pid() -> Iterator[int]:
    with subprocess.Popen(["sleep", "600"]) as living:
        yield living.pid
        living.kill()


@pytest.mark.parametrize("mode", ["hang", "crash"])
def test_without_an_answer_of_nvml(start: Start, make_host: MakeHost, mode: str) -> None:
    begin = time.monotonic()
    container = start("free:2", on=make_host(2, nvml=mode))
    assert len(got(container)) == 2 and time.monotonic() - begin < 30
    assert "without knowing which processes of the host compute: NVML" in container.err


def test_a_gpu_that_is_lost_is_not_leased(runtime: Runtime, bundle: MakeBundle, start: Start, make_host: MakeHost) -> None:
    """The stub's second GPU has fallen off the bus."""
    host = make_host(3, nvml="lost")
    assert got(start("free:2", on=host)) == [uuid(0), uuid(2)]
    assert "GPU 1: not well: NVML cannot use it: GPU is lost" in refused(runtime, bundle(), host, "free")
    env = ENVIRONMENT | host.env
    listed = json.loads(runtime("gpu", "list", "--processes", "--json", env=env).out)["gpus"]
    assert [(gpu["problem"] or "")[:15] for gpu in listed] == ["", "NVML cannot use", ""]
    assert "not well: NVML cannot use it: GPU is lost" in runtime("gpu", "list", "--processes", env=env).out
    assert "GPU 1 is unhealthy: NVML cannot use it" in runtime("gpu", "doctor", env=env).text


def test_on_a_gpu_that_hangs_a_container_ends_all_the_same(start: Start, make_host: MakeHost) -> None:
    """Whoever asks NVML of such a host waits for ever; kill and delete do not ask."""
    host = make_host(2, nvml="hang")
    container = start("1", on=host)
    begin = time.monotonic()
    assert container.kill("KILL").rc == 0
    container.wait()
    assert container.delete().rc == 0
    assert time.monotonic() - begin < TIMEOUT_S, "NVML's time to answer"


def test_mig_devices(runtime: Runtime, bundle: MakeBundle, start: Start, make_host: MakeHost) -> None:
    host = make_host(2, nvml="well", mig=((0, 1, 0), (0, 2, 0)))
    device = start("free;profile=1g.10gb", on=host)
    assert got(device)[0].startswith("MIG-")
    assert "leased by" in refused(runtime, bundle(), host, "free;profile=1g.10gb")
    assert got(start("free", on=host)) == [uuid(1)]
    assert "divided into MIG devices" in refused(runtime, bundle(), host, "free")
