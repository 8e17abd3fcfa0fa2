"""GPUs that come and go in a scope that systemd reloads, and an MPS daemon that systemd supervises."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

import pytest

from gpurun.gpu.nvidia.mps.node_service import NodeProgram, NodeService, end_all, ensure, is_served
from tests.conftest import MakeBundle, runtime_path
from tests.gpu.leases.conftest import MakeHost, make_host  # noqa: F401
from tests.kubernetes.mps import mps_programs
from tests.native.bed import Bed
from tests.native.bundle import Bundle
from tests.native.runtime import ENVIRONMENT, Runtime
from tests.native.waiting import wait_until
from tests.needs_nodes import require_nodes
from tests.simcards import GIB, amd
from tests.simcards.dmem import Dmem
from tests.simdriver import uuid
from tests.systemd.conftest import Driver

pytestmark = [pytest.mark.native, pytest.mark.gpurun_only, pytest.mark.needs("systemd")]

NO_DRIVER, DENIED = "No such device or address", "Operation not permitted"


@pytest.fixture
def scopes(runtime: Runtime, bed: Bed) -> Driver:
    return Driver("systemd", runtime, bed)


def systemctl(*args: str) -> str:
    return subprocess.run(["systemctl", *args], check=True, capture_output=True, text=True).stdout


@pytest.mark.short
def test_attach_and_detach_outlive_a_reload(scopes: Driver, bundle: MakeBundle, make_host: MakeHost) -> None:  # noqa: F811
    host = make_host(2, major=195)
    env = ENVIRONMENT | host.env
    made = bundle().args("sleep", "1000").capabilities("CAP_MKNOD", "CAP_DAC_OVERRIDE")
    container = scopes.start(made, env=env)
    unit = f"t-{container.id}.scope"
    number = os.minor((host.path / "dev/nvidia1").stat().st_rdev) if (host.path / "dev/nvidia1").exists() else 1

    def opens() -> str:
        script = f"mknod /tmp/gpu c 195 {number}; (: <>/tmp/gpu) 2>&1; rm /tmp/gpu"
        done = scopes.runtime("exec", container.id, "sh", "-c", script, env=env)
        return (done.out + done.err).strip().rpartition(": ")[2]

    def gpu(*words: str) -> None:
        done = scopes.runtime("gpu", words[0], container.id, *words[1:], env=env)
        assert done.rc == 0, done.text

    assert opens() == DENIED
    for _ in range(2):
        gpu("attach", "all")
        assert f"/dev/char/195:{number} rw" in systemctl("show", unit, "-p", "DeviceAllow")
        assert opens() == NO_DRIVER
        systemctl("daemon-reload")
        assert opens() == NO_DRIVER, "systemd writes its own program again, which has the GPU too"
        systemctl("set-property", "--runtime", unit, "TasksMax=77")
        assert opens() == NO_DRIVER
        gpu("detach", uuid(0), uuid(1))
        assert opens() == DENIED
        systemctl("daemon-reload")
        assert opens() == DENIED


@pytest.mark.short
def test_a_limit_of_the_kernels_is_set_in_the_scope(
    scopes: Driver, bundle: MakeBundle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """systemd has no property for the dmem controller, here a simulated one: gpurun writes the limit when the scope is
    there, and a share that does not fit beside it leaves no scope."""
    host = amd.mi210(tmp_path / "host", count=1)
    require_nodes(host.real_nodes)
    region = f"drm/{amd.MI210[0][0]}/vram"
    host.write("sys/fs/cgroup/dmem.capacity", f"{region} {64 * GIB}")
    dmem = Dmem(tmp_path)
    monkeypatch.setattr(scopes.runtime, "path", str(dmem.program))

    def asking(memory: str) -> Bundle:
        made = bundle().args("sleep", "1000")
        made.process["env"] += ["AMD_VISIBLE_DEVICES=0", f"GPURUN_GPU_MEMORY={memory}"]
        return made

    env = ENVIRONMENT | host.env
    container = scopes.create(asking("40GiB"), env=env)
    assert dmem.limits(scopes.cgroup(container).name) == [f"{region} {40 * GIB}"]
    refused = scopes.run(asking("40GiB"), env=env)
    assert refused.rc == 1 and "has no room for a share of 40 GiB" in refused.err
    assert [path.name for path in dmem.place.glob("t-*")] == [f"t-{container.id}.scope"]
    assert container.delete("--force").rc == 0
    assert scopes.create(asking("40GiB"), env=env).result.rc == 0


@pytest.mark.short
def test_the_mps_daemon_is_a_service(scopes: Driver, bundle: MakeBundle, make_host: MakeHost) -> None:  # noqa: F811
    host = make_host(1, nvml="well", mps_programs=True)
    log, pid_file = host.path / "mps.log", Path(f"{host.path}/mps.log.pid")

    def units() -> list[str]:
        return systemctl("list-units", "--no-legend", "--plain", "--all", "gpurun-mps-*").splitlines()

    def daemon() -> int:
        return int(pid_file.read_text() or 0)

    made = bundle().sh("ls /tmp/nvidia-mps; echo up; exec sleep 600")
    made.process["env"] += ["NVIDIA_VISIBLE_DEVICES=0"]
    made.config["annotations"] = {"dev.gpurun.gpu.memory": "8GiB"}
    container = scopes.start(made, env=ENVIRONMENT | host.env)
    container.wait_for("up")
    assert "control" in container.out
    (line,) = units()
    unit, _, active, running, *description = line.split()
    assert (active, running) == ("active", "running") and "MPS daemon of GPU" in " ".join(description)
    first = daemon()
    assert f"/{unit}" in Path(f"/proc/{first}/cgroup").read_text(), "the daemon is in the service, and not in the container"
    main = int(systemctl("show", unit, "-p", "MainPID").strip().partition("=")[2])
    os.kill(main, signal.SIGKILL)
    wait_until(lambda: daemon() not in (0, first) and "begins" in log.read_text())
    wait_until(lambda: "active" in "".join(units()))
    assert container.delete("--force").rc == 0
    wait_until(lambda: log.read_text().splitlines()[-1] == "ends" and not units())


@pytest.mark.short
def test_the_mps_daemon_of_a_clusters_pods_is_a_service(scopes: Driver, tmp_path: Path) -> None:  # noqa: F811
    programs, log = mps_programs(tmp_path)
    directory = str(tmp_path / "mps/nvidia.com-gpu")

    def units() -> list[str]:
        return systemctl("list-units", "--no-legend", "--plain", "--all", "gpurun-mps-nvidia.com-gpu-*").splitlines()

    def daemon() -> int:
        return int(Path(f"{log}.pid").read_text() or 0)

    program = NodeProgram((runtime_path(),))  # compiled: in an emulated guest the sources alone take half a minute to import
    ensure(directory, NodeService(("GPU-1",), programs=programs), program)
    # Where a supervisor needs seconds to begin, a second one is started, which ends because the first is at work.
    wait_until(lambda: len(units()) == 1)
    (line,) = units()
    unit, first = line.split()[0], daemon()
    assert f"/{unit}" in Path(f"/proc/{first}/cgroup").read_text(), "it is in no pod and in no other service"
    os.kill(int(systemctl("show", unit, "-p", "MainPID").strip().partition("=")[2]), signal.SIGKILL)
    wait_until(lambda: daemon() not in (0, first) and is_served(directory))
    assert end_all(str(tmp_path / "mps"), program) == []
    wait_until(lambda: not units())
    assert not Path(directory).exists()
