"""Shares of a GPU: who gets how much of which, what is refused, and the life of the MPS daemon, which is a stand-in here."""

from __future__ import annotations

import errno
import json
import os
import random
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from gpurun.gpu.leases.queue import draw, leave
from gpurun.gpu.leases.store import directory
from gpurun.gpu.leases.turns import Want
from gpurun.linux.procfs import stat
from tests.conftest import MakeBundle
from tests.gpu.leases.asked import end, leases
from tests.gpu.leases.conftest import MakeHost
from tests.native.bundle import Bundle
from tests.native.runtime import ENVIRONMENT, Container, Runtime
from tests.native.waiting import wait_until
from tests.simdriver import SimulatedDriver, bus_id, uuid

pytestmark = [pytest.mark.native, pytest.mark.gpurun_only]

MEMORY, THREADS = "dev.gpurun.gpu.memory", "dev.gpurun.gpu.threads"
SHOW = "echo $NVIDIA_VISIBLE_DEVICES; env | grep ^CUDA_MPS | sort; ls /tmp/nvidia-mps /dev/shm; echo nvidia; exec sleep 600"
Start = Callable[..., Container]


@pytest.fixture
def host(make_host: MakeHost, runtime: Runtime) -> Iterator[SimulatedDriver]:
    """Two GPUs of 80 GiB each (the stub of NVML says so)."""
    made = make_host(2, nvml="well", mps_programs=True)
    yield made
    runtime.cleanup()
    wait_until(lambda: daemons(made) == 0)
    for one in mps_directories(made):
        assert sorted(os.listdir(one)) == ["lock"], "something of a daemon is left"


def mps_directories(host: SimulatedDriver) -> list[Path]:
    path = host.path / "run/gpurun-mps"
    return sorted(path.iterdir()) if path.exists() else []


def supervisor(ready: Path) -> int:
    """Who serves, of the file in which it says so; 0 while nobody does."""
    try:
        return int(ready.read_text().split()[0])
    except FileNotFoundError:
        return 0


def words_of(pid: int | str) -> bytes:
    """The command line of a process, empty once it has ended."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def daemons(host: SimulatedDriver) -> int:
    """How many supervisors and MPS daemons of *host* there are."""
    count = 0
    for pid in [name for name in os.listdir("/proc") if name.isdigit()]:
        words = words_of(pid)
        count += str(host.path).encode() in words and (b"nvidia-cuda-mps-control" in words or b"mps.supervisor" in words)
    return count


def said(host: SimulatedDriver) -> list[str]:
    """What the daemons have written: each its beginning, and its end."""
    log = host.path / "mps.log"
    return log.read_text().splitlines() if log.exists() else []


def asking(b: Bundle, devices: str, script: str = SHOW, **share: str) -> Bundle:
    names = {"memory": MEMORY, "threads": THREADS}
    b.config.setdefault("annotations", {}).update({names[name]: value for name, value in share.items() if name in names})
    b.process["env"] += [f"NVIDIA_VISIBLE_DEVICES={devices}"]
    b.process["env"] += [f"{name}={value}" for name, value in share.items() if name not in names]
    return b.sh(script)


@pytest.fixture
def start(runtime: Runtime, bundle: MakeBundle, host: SimulatedDriver) -> Start:
    def run(devices: str, *, site: str = "", **share: str) -> Container:
        env = ENVIRONMENT | host.env | ({"GPURUN_CONFIG": site} if site else {})
        container = runtime.start(asking(bundle(), devices, **share), env=env)
        container.wait_for("nvidia\n")
        return container

    return run


def refused(runtime: Runtime, bundle: Bundle, host: SimulatedDriver, devices: str, site: str = "", **share: str) -> str:
    env = ENVIRONMENT | host.env | ({"GPURUN_CONFIG": site} if site else {})
    return runtime.refused(asking(bundle, devices, **share), env=env)


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
    assert "a share of 8 GiB would be of GPU " in told and "which nobody has a share of yet" in told
    assert "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=0=8192M" in told
    assert said(host) == [] and mps_directories(host) == [] and leases(runtime, host) == []
    one = start("0", memory="79GiB")
    b = asking(bundle(), "0", memory="8GiB")
    runtime.prepare(b, "explained")
    told = " ".join(runtime("explain", str(b.directory), env=env).text.split())
    assert f"1 of 80 GiB left: {one.id} since" in told


def test_a_daemon_that_does_not_start(runtime: Runtime, bundle: MakeBundle, host: SimulatedDriver) -> None:
    Path(f"{host.path}/mps.log.broken").touch()
    text = refused(runtime, bundle(), host, "0", memory="1GiB")
    assert "MPS: nvidia-cuda-mps-control ended with exit code 3 as it started" in text
    assert leases(runtime, host) == []


def test_a_daemon_that_dies_is_started_again(start: Start, host: SimulatedDriver) -> None:
    one = start("0", memory="1GiB")
    pid = int(Path(f"{host.path}/mps.log.pid").read_text())
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: len(said(host)) == 2, meanwhile=lambda: None if daemons(host) else f"nobody watches: {said(host)}")
    wait_until(lambda: Path(f"{host.path}/mps.log.pid").read_text().strip() not in ("", str(pid)))
    assert "control" in runtime_ls(one), "in the directory that the container has"


def test_shares_that_cannot_be_seen_for_a_while(start: Start, host: SimulatedDriver) -> None:
    """Whoever watches looks again, and does not leave the container without a daemon."""
    start("0", memory="1GiB")
    store = Path(directory(host.env))
    away = store.rename(f"{store}.away")
    store.mkdir()
    store.chmod(0o777)  # in which nobody would believe a lease
    os.kill(int(Path(f"{host.path}/mps.log.pid").read_text()), signal.SIGKILL)
    watcher = Path(f"/proc/{supervisor(mps_directories(host)[0] / 'ready')}/wchan")
    wait_until(lambda: watcher.read_text() == "hrtimer_nanosleep")  # it has looked and seen none, and rests
    away.rename(store)  # over the empty one at once: who looks in between would make it anew
    wait_until(lambda: len(said(host)) == 2, meanwhile=lambda: None if daemons(host) else f"nobody watches: {said(host)}")


def runtime_ls(container: Container) -> list[str]:
    return os.listdir(f"/proc/{container.pid}/root/tmp/nvidia-mps")


def test_a_supervisor_that_is_killed(start: Start, host: SimulatedDriver) -> None:
    """Without systemd its parent starts it again, and the next share where the parent was killed as well."""
    one = start("0", memory="1GiB")
    ready = mps_directories(host)[0] / "ready"
    pid = supervisor(ready)
    parent = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: supervisor(ready) not in (0, pid))
    assert len(said(host)) == 2 and "control" in runtime_ls(one)
    for last in (parent, supervisor(ready)):
        os.kill(last, signal.SIGKILL)
    daemon = int(Path(f"{host.path}/mps.log.pid").read_text())
    wait_until(lambda: not words_of(daemon))
    before = len(said(host))
    start("0", memory="1GiB")
    assert len(said(host)) > before and "control" in runtime_ls(one)
    wait_until(lambda: daemons(host) == 3)  # who watches, its parent, and who serves, however often one was started


def test_attach_and_checkpoint_say_no(runtime: Runtime, start: Start, host: SimulatedDriver, tmp_path: Path) -> None:
    one = start("0", memory="1GiB")
    result = runtime("gpu", "attach", one.id, "1", env=ENVIRONMENT | host.env)
    assert result.rc == 1 and "has a share of a GPU: its programs see only the GPU of their MPS daemon" in result.text
    criu = tmp_path / "criu"
    criu.write_text("#!/bin/sh\n")
    criu.chmod(0o755)
    env = ENVIRONMENT | host.env | {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    result = runtime("checkpoint", "--image-path", str(tmp_path / "images"), one.id, env=env)
    assert result.rc == 1 and "a container with a share of a GPU (1 GiB) cannot be checkpointed" in result.text


def test_the_daemon_of_the_host(runtime: Runtime, bundle: MakeBundle, make_host: MakeHost) -> None:
    host = make_host(2, nvml="well", mps=True, mps_programs=True)
    text = refused(runtime, bundle(), host, "0", memory="1GiB")
    assert "would serve the share, but the container has its own /dev/shm: use the host's" in text
    b = asking(bundle(), "0", "env | grep ^CUDA_MPS | sort; ls /tmp/nvidia-mps", memory="1GiB")
    b.mount("/dev/shm", "/dev/shm", "bind")
    out = runtime.output(b, env=ENVIRONMENT | host.env)
    assert out.splitlines()[-1] == "control" and "LIMIT=0=1024M" in out and said(host) == []
    (host.path / "tmp/nvidia-mps/nvidia-cuda-mps-control.pid").write_text("999999999\n")
    result = runtime.run(asking(bundle(), "0", "true", memory="1GiB"), env=ENVIRONMENT | host.env)
    assert result.rc == 0 and result.err == "" and len(said(host)) > 0, "one that has ended is none"
    wait_until(lambda: daemons(host) == 0)


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


@pytest.mark.parametrize("count", [16, pytest.param(100, marks=pytest.mark.slow)])
def test_many_at_once_and_killed_at_any_step(
    runtime: Runtime, bundle: MakeBundle, host: SimulatedDriver, count: int
) -> None:
    """8 at a time ask for a quarter of one of two GPUs; creates and containers are killed at any moment."""
    moments = random.Random(17)
    jobs = [(n, moments.choice(("", "create", "init")), moments.random()) for n in range(count)]
    bundles = [bundle() for _ in range(8)]
    env = ENVIRONMENT | host.env
    most = 0
    killed: list[str] = []

    def job(kill: str, moment: float) -> None:
        nonlocal most
        b = bundles.pop()
        try:
            for _ in range(2000):
                container_id = runtime.new_id()
                b.process["env"] = [e for e in b.process["env"] if not e.startswith("NVIDIA_")]
                asking(b, "free", "exec sleep 600", memory="20GiB", threads="25%").linux.pop("cgroupsPath", None)
                runtime.prepare(b, container_id)
                files = runtime.new_files()
                process = runtime.popen("create", "--bundle", str(b.directory), container_id, files=files, env=env)
                if kill == "create":
                    try:
                        process.wait(moment)
                    except subprocess.TimeoutExpired:
                        process.kill()
                        process.wait()
                        killed.append(container_id)
                        return
                if not process.wait():
                    break
                assert "no GPU has room for a share of" in (files / "err").read_text()
                time.sleep(0.05)
            now = leases(runtime, host)
            for gpu in {one["gpus"][0]["uuid"] for one in now}:
                of_it = [one for one in now if one["gpus"][0]["uuid"] == gpu]
                assert sum(one["memory"] for one in of_it) <= 80 << 30 and sum(one["threads"] for one in of_it) <= 100
                most = max(most, len(of_it))
            if kill == "init" and moment < 0.5:
                runtime("kill", container_id, "KILL")
            else:
                runtime("delete", "--force", container_id)
        finally:
            bundles.append(b)

    with ThreadPoolExecutor(8) as pool:
        for done in [pool.submit(job, kill, moment) for _, kill, moment in jobs]:
            done.result()
    assert most > 1

    def none_is_left() -> bool:
        for container_id in killed:  # again and again: one may be on its way to where it waits
            end_one_that_waits(runtime, container_id)
        return leases(runtime, host) == []

    wait_until(none_is_left)


def end_one_that_waits(runtime: Runtime, container_id: str) -> None:
    """A create that was killed when all was done but for its own end has made a container, which waits for start.

    It is started at its FIFO, as ``start`` does, which shows that it waits there; what was killed earlier ends by itself.
    """
    try:
        fifo = os.open(runtime.root / container_id / "exec.fifo", os.O_WRONLY | os.O_NONBLOCK)
    except OSError as e:
        assert e.errno in (errno.ENOENT, errno.ENXIO)  # killed before there was one, or nobody waits
        return
    os.write(fifo, b"0")
    os.close(fifo)
    state = runtime("state", container_id)
    if state.rc == 0:
        wait_until(lambda: words_of(json.loads(state.out)["pid"]) in (b"", b"sleep\0600\0"))
        assert runtime("delete", "--force", container_id).rc == 0
