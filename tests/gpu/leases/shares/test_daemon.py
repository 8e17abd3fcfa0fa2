"""The life of the MPS daemon that serves shares of a GPU, which is a stand-in here."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from gpurun.gpu.leases.store import directory
from tests.conftest import MakeBundle
from tests.gpu.leases.asked import leases
from tests.gpu.leases.conftest import MakeHost
from tests.gpu.leases.shares.sharing import (
    Start,
    asking,
    daemons,
    mps_directories,
    refused,
    said,
    supervisor,
    words_of,
)
from tests.native.runtime import ENVIRONMENT, Container, Runtime
from tests.native.waiting import wait_until
from tests.simdriver import SimulatedDriver

pytestmark = [pytest.mark.native, pytest.mark.gpurun_only]


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
