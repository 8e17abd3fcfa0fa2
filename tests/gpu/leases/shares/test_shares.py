"""Shares of a GPU: who gets how much of which, and what is refused."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from gpurun.gpu.leases.queue import draw, leave
from gpurun.gpu.leases.store import directory
from gpurun.gpu.leases.turns import Want
from gpurun.linux.procfs import stat
from tests.conftest import MakeBundle
from tests.gpu.leases.asked import end, leases
from tests.gpu.leases.conftest import MakeHost
from tests.gpu.leases.shares.sharing import (
    MEMORY,
    THREADS,
    Start,
    asking,
    daemons,
    mps_directories,
    refused,
    said,
)
from tests.native.runtime import ENVIRONMENT, Runtime
from tests.native.waiting import wait_until
from tests.simdriver import SimulatedDriver, bus_id, uuid

pytestmark = [pytest.mark.native, pytest.mark.gpurun_only]


def test_a_container_with_a_share(runtime: Runtime, start: Start, host: SimulatedDriver) -> None:
    one = start("1", memory="8GiB", threads="50%")
    lines = one.out.splitlines()
    assert lines[:4] == [
        "1",
        "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=50",
        "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=0=8192M",
        "CUDA_MPS_PIPE_DIRECTORY=/tmp/nvidia-mps",
    ]
    assert "control" in lines and "of-the-daemon" in lines, "pipes and shared memory are the daemon's"
    assert said(host) == [f"begins CUDA_VISIBLE_DEVICES={uuid(1)}"]
    inside = runtime("exec", one.id, "sh", "-c", "env | grep ^CUDA_MPS | sort; df -k /dev/shm | tail -n 1")
    assert inside.out.splitlines()[:3] == lines[1:4] and " 1048576 " in inside.out, "as large as the site says, for all"
    (lease,) = leases(runtime, host)
    assert (lease["kind"], lease["memory"], lease["threads"]) == ("share", 8 << 30, 50)
    listed = runtime("gpu", "leases", env=ENVIRONMENT | host.env).out
    assert "share: 8 GiB, 50 %" in listed
    assert f"8 GiB, 50 % of it for {one.id}" in runtime("gpu", "list", env=ENVIRONMENT | host.env).out.replace("\n", " ")


def test_several_share_a_gpu_and_one_daemon(
    runtime: Runtime, bundle: MakeBundle, start: Start, host: SimulatedDriver
) -> None:
    one, two = start("0", memory="48GiB", threads="60"), start("0", memory="16GiB", threads="40%")
    assert len(said(host)) == 1
    text = refused(runtime, bundle(), host, "0", memory="17GiB")
    assert f"annotations.{MEMORY}: GPU 0 has no room for a share of 17 GiB: 16 of 80 GiB left: {one.id} since" in text
    assert f"has 48 GiB, 60 %, {two.id} since" in text
    assert "0 % of its threads left" in refused(runtime, bundle(), host, "0", threads="1%")
    end(two)
    three = start("0", memory="32GiB", threads="40%")
    assert len(said(host)) == 1, "the daemon has had a user all the time"
    end(one)
    end(three)
    wait_until(lambda: said(host)[-1] == "ends")
    assert leases(runtime, host) == []
    start("0", threads="100%")
    assert [line.split()[0] for line in said(host)] == ["begins", "ends", "begins"]


def test_what_is_not_named_does_not_count(start: Start) -> None:
    only_memory = start("0", memory="80GiB")
    assert "THREAD_PERCENTAGE" not in only_memory.out
    only_threads = start("0", threads="100%")
    assert "MEM_LIMIT" not in only_threads.out


def test_free_is_any_gpu_with_room(runtime: Runtime, bundle: MakeBundle, start: Start, host: SimulatedDriver) -> None:
    got = [start("free", memory="30GiB").out.splitlines()[0] for _ in range(3)]
    assert got[0] == got[1] != got[2], "one GPU is filled before another one is begun"
    text = refused(runtime, bundle(), host, "free", memory="60GiB")
    assert "'free': no GPU has room for a share of 60 GiB: GPU 0: " in text and "of 80 GiB left: " in text
    assert "1 GPU wanted, 0 of 2 free" in refused(runtime, bundle(), host, "free"), "and none of them is wholly free"
    assert "a share is a part of a single GPU: ask for free:1" in refused(runtime, bundle(), host, "free:2", memory="1GiB")
    text = refused(runtime, bundle(), host, "free;product=B200", memory="1GiB")
    assert "GPU 0: it is a " in text


def test_a_leased_gpu_is_not_shared(runtime: Runtime, bundle: MakeBundle, start: Start, host: SimulatedDriver) -> None:
    env = ENVIRONMENT | host.env
    b = bundle()
    b.process["env"] += ["NVIDIA_VISIBLE_DEVICES=free"]
    leased = runtime.start(b.sh("echo $NVIDIA_VISIBLE_DEVICES; exec sleep 600"), env=env)
    leased.wait_for("GPU-")
    index = "0" if uuid(0) in leased.out else "1"
    text = refused(runtime, bundle(), host, index, memory="1GiB")
    assert f"GPU {index} has no room for a share of 1 GiB: leased by {leased.id} since" in text
    assert start("free", memory="1GiB").out.splitlines()[0] != leased.out.strip()


def test_a_share_overtakes_nobody_who_waits(
    runtime: Runtime, bundle: MakeBundle, start: Start, host: SimulatedDriver
) -> None:
    shared = start("0", memory="8GiB")
    found, place = stat(os.getpid()), directory(host.env)
    assert found is not None
    ticket = draw(place, os.getpid(), found[1], Want(frozenset([bus_id(0).lower(), bus_id(1).lower()])))
    assert start("free", memory="1GiB").out.splitlines()[0] == uuid(0), "that one is nobody's turn"
    text = refused(runtime, bundle(), host, "free", memory="79GiB")
    assert f"GPU 1: kept for process {os.getpid()}, which waits for free GPUs" in text
    assert start("1", memory="1GiB").out.splitlines()[0] == "1", "it was named"
    leave(place, ticket)
    end(shared)


def test_a_gpu_that_somebody_has_by_name(runtime: Runtime, bundle: MakeBundle, make_host: MakeHost, tmp_path: Path) -> None:
    host = make_host(40, major=195, nvml="well", mps_programs=True)  # with minors that no other test's containers have
    env = ENVIRONMENT | host.env
    b = bundle()
    b.process["env"] += ["NVIDIA_VISIBLE_DEVICES=30"]
    named = runtime.start(b.sh("echo ready; exec sleep 600"), env=env)
    named.wait_for("ready")
    result = runtime.run(asking(bundle(), "30", "true", memory="1GiB"), env=env)
    assert f"container {named.id} has it" in result.err and "without a share: nothing limits that" in result.err
    site = tmp_path / "site.toml"
    site.write_text('[leases]\nshared = "refuse"\n')
    text = refused(runtime, bundle(), host, "30", site=str(site), memory="1GiB")
    assert "and this site does not share a GPU that is in use" in text
    one = runtime.start(asking(bundle(), "31", "echo ready; exec sleep 600", memory="1GiB"), env=env)
    one.wait_for("ready")
    text = refused(runtime, bundle(), host, "31", site=str(site))
    assert f"GPU 31: shared by {one.id} since" in text
    end(one)
    wait_until(lambda: daemons(host) == 0)


@pytest.mark.sweep(4)
@pytest.mark.parametrize(
    ("share", "text"),
    [
        ({"memory": "lots"}, f"annotations.{MEMORY}: 'lots' must be an amount of the GPU's memory from 64MiB to 16TiB"),
        ({"memory": "-1GiB"}, "must be an amount"),
        ({"memory": "1MiB"}, "must be an amount"),
        ({"memory": "9999999999999999TiB"}, "must be an amount"),
        ({"threads": "0"}, f"annotations.{THREADS}: '0' must be a part of the GPU's threads from 1% to 100%"),
        ({"threads": "101%"}, "from 1% to 100%"),
        ({"threads": "50%%"}, "from 1% to 100%"),
        ({"threads": "\u0665"}, "from 1% to 100%"),
        ({"GPURUN_GPU_MEMORY": "1GiB\x1b[2J,1=80G"}, "process.env GPURUN_GPU_MEMORY: "),
        ({"GPURUN_GPU_THREADS": "50 CUDA_MPS=1"}, "process.env GPURUN_GPU_THREADS: "),
        ({"memory": "81GiB"}, "GPU 0 has no room for a share of 81 GiB: 80 of 80 GiB left"),
    ],
)
def test_bad_values(runtime: Runtime, bundle: MakeBundle, host: SimulatedDriver, share: dict[str, str], text: str) -> None:
    said_of_it = refused(runtime, bundle(), host, "0", **share)
    assert text in said_of_it and "\x1b" not in said_of_it
    assert said(host) == [] and leases(runtime, host) == [] and mps_directories(host) == []


def test_not_of_one_gpu(runtime: Runtime, bundle: MakeBundle, host: SimulatedDriver) -> None:
    assert "2 GPUs are asked for: name one, or ask for free" in refused(runtime, bundle(), host, "all", memory="1GiB")
    assert "no GPU is asked for" in refused(runtime, bundle(), host, "void", memory="1GiB")
    assert said(host) == []


def test_variables_and_what_the_site_says(
    runtime: Runtime, bundle: MakeBundle, start: Start, host: SimulatedDriver, tmp_path: Path
) -> None:
    assert "=1024M" in start("0", GPURUN_GPU_MEMORY="1GiB").out
    both = start("0", memory="2GiB", GPURUN_GPU_MEMORY="9GiB", GPURUN_GPU_THREADS="").out
    assert "=2048M" in both and "THREAD" not in both, "an annotation goes before the image's variable"
    site = tmp_path / "site.toml"
    site.write_text('[shares]\nallow = "annotations"\nshm = "64MiB"\n')
    text = refused(runtime, bundle(), host, "0", site=str(site), GPURUN_GPU_MEMORY="1GiB")
    assert "process.env GPURUN_GPU_MEMORY: this site does not allow shares of a GPU to variables: ask by annotation" in text
    shm = os.statvfs(f"/proc/{start('1', site=str(site), memory='1GiB').pid}/root/dev/shm")
    assert shm.f_blocks * shm.f_frsize == 64 << 20
    site.write_text('[shares]\nallow = "none"\n')
    assert "this site does not allow shares of a GPU (" in refused(
        runtime, bundle(), host, "0", site=str(site), memory="1GiB"
    )
    site.write_text('[shares]\nallow = "some"\n')
    assert "shares.allow: must be one of all, annotations, none" in refused(
        runtime, bundle(), host, "0", site=str(site), memory="1GiB"
    )


def test_explain_tells_and_does_nothing(runtime: Runtime, bundle: MakeBundle, start: Start, host: SimulatedDriver) -> None:
    env = ENVIRONMENT | host.env
    words = ("gpu", "explain", "NVIDIA_VISIBLE_DEVICES=free", "GPURUN_GPU_MEMORY=8GiB")
    told = " ".join(runtime(*words, env=env).out.split())
    assert "a share of 8 GiB would be of GPU " in told and "which has no other shares" in told
    assert "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=0=8192M" in told
    assert said(host) == [] and mps_directories(host) == [] and leases(runtime, host) == []
    one = start("0", memory="79GiB")
    b = asking(bundle(), "0", memory="8GiB")
    runtime.prepare(b, "explained")
    told = " ".join(runtime("explain", str(b.directory), env=env).text.split())
    assert f"1 of 80 GiB left: {one.id} since" in told


def test_without_nvml_memory_is_not_known(runtime: Runtime, bundle: MakeBundle, make_host: MakeHost) -> None:
    host = make_host(1, mps_programs=True)
    text = refused(runtime, bundle(), host, "0", memory="1GiB")
    assert "its memory is not known without NVML" in text
    b = asking(bundle(), "0", "env | grep ^CUDA_MPS", threads="50%")
    assert "PERCENTAGE=50" in runtime.output(b, env=ENVIRONMENT | host.env)
    wait_until(lambda: daemons(host) == 0)


def test_a_mig_device(runtime: Runtime, bundle: MakeBundle, make_host: MakeHost) -> None:
    host = make_host(2, nvml="well", mig=((0, 1, 0), (0, 2, 0)), mps_programs=True)
    b = asking(bundle(), "free;profile=1g.10gb", "env | grep ^CUDA_MPS", threads="50%")
    assert "PERCENTAGE=50" in runtime.output(b, env=ENVIRONMENT | host.env)
    wait_until(lambda: daemons(host) == 0)
    assert "begins CUDA_VISIBLE_DEVICES=MIG-" in said(host)[0]
