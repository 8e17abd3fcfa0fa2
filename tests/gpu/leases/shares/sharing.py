"""Containers with shares of a GPU, and the MPS daemon that serves them, which is a stand-in here."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

from tests.conftest import MakeBundle
from tests.gpu.leases.conftest import MakeHost
from tests.native.bundle import Bundle
from tests.native.runtime import ENVIRONMENT, Container, Runtime
from tests.native.waiting import wait_until
from tests.simdriver import SimulatedDriver

MEMORY, THREADS = "dev.gpurun.gpu.memory", "dev.gpurun.gpu.threads"
SHOW = "echo $NVIDIA_VISIBLE_DEVICES; env | grep ^CUDA_MPS | sort; ls /tmp/nvidia-mps /dev/shm; echo nvidia; exec sleep 600"
Start = Callable[..., Container]


def two_gpus(make_host: MakeHost, runtime: Runtime) -> Iterator[SimulatedDriver]:
    """Two GPUs of 80 GiB each (the stub of NVML says so); fails where something of a daemon is left in the end."""
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


def starter(runtime: Runtime, bundle: MakeBundle, host: SimulatedDriver) -> Start:
    """``start("0", memory="8GiB")``: a container that runs and has said what it got."""

    def run(devices: str, *, site: str = "", **share: str) -> Container:
        env = ENVIRONMENT | host.env | ({"GPURUN_CONFIG": site} if site else {})
        container = runtime.start(asking(bundle(), devices, **share), env=env)
        container.wait_for("nvidia\n")
        return container

    return run


def refused(runtime: Runtime, bundle: Bundle, host: SimulatedDriver, devices: str, site: str = "", **share: str) -> str:
    env = ENVIRONMENT | host.env | ({"GPURUN_CONFIG": site} if site else {})
    return runtime.refused(asking(bundle, devices, **share), env=env)
