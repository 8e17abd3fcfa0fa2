"""GPUs that the device plugin shares by NVIDIA's MPS: its daemon outlives plugin and supervisor, and gives each its part."""

from __future__ import annotations

import os
import re
import signal
from pathlib import Path

import pytest

from gpurun.gpu.nvidia.mps.node_service import is_served
from gpurun.kubernetes.config import PluginConfig
from gpurun.record import replace
from tests.kubernetes.driver_container import DRIVER_ROOT, moved
from tests.kubernetes.mps import mps_programs
from tests.kubernetes.nodes import GPU, node, shared, stub_library
from tests.needs_nodes import needs_nodes
from tests.nvml import compile_stub
from tests.simdriver import uuid

pytestmark = needs_nodes

FIRST, SECOND = uuid(0), uuid(1)


@pytest.mark.parametrize("in_a_pod", [False, True])
def test_mps(in_a_pod: bool) -> None:
    """In a pod NVIDIA's programs are the host's, and run with its root; here that is this machine's root by another name."""
    with node() as made:
        root = made.directory / "root"
        root.symlink_to("/")
        compile_stub(stub_library(made.driver.path), events=made.directory / "events")
        programs, log = mps_programs(made.directory)
        made.config = replace(shared("mps", 4, fail=True), mps_root=str(made.directory / "mps"))
        made.start_plugin(programs=programs, root=str(root) if in_a_pod else "")
        made.kubelet.wait(lambda: made.kubelet.capacity(GPU) == 8)
        said = log.read_text()
        assert f"smi -i {FIRST} -c EXCLUSIVE_PROCESS" in said and f"CUDA_VISIBLE_DEVICES={FIRST},{SECOND}" in said
        assert (
            "set_default_device_pinned_mem_limit 0 20480M" in said and "set_default_device_pinned_mem_limit 1 20480M" in said
        )
        assert "set_default_active_thread_percentage 25" in said
        answer = made.kubelet.run_container("one", GPU)
        assert dict(answer.envs)["CUDA_MPS_PIPE_DIRECTORY"] == "/tmp/nvidia-mps"
        mounts = {mount.container_path: Path(mount.host_path) for mount in answer.mounts}
        assert (mounts["/tmp/nvidia-mps"] / "control").is_fifo() and (mounts["/dev/shm"] / "of-the-daemon").exists()
        pipes = os.open(mounts["/tmp/nvidia-mps"], os.O_PATH | os.O_DIRECTORY)  # what a running container has mounted

        def daemon() -> int:
            return int(Path(f"{log}.pid").read_text() or 0)

        def answers() -> bool:
            return "Unhealthy" not in str(made.kubelet.health()) and os.access("control", os.F_OK, dir_fd=pipes)

        try:
            pid = daemon()
            os.kill(pid, signal.SIGKILL)
            made.kubelet.wait(lambda: daemon() not in (0, pid) and answers())
            pid = daemon()
            # A rollout: the plugin ends, and another one comes.
            made.stop_plugin()
            assert Path(f"/proc/{pid}").exists() and os.access("control", os.F_OK, dir_fd=pipes)
            made.start_plugin(programs=programs, root=str(root) if in_a_pod else "")
            made.kubelet.wait(lambda: made.kubelet.capacity(GPU) == 8 and answers())
            assert daemon() == pid
            # Another configuration: another daemon, in the same place.
            made.config = replace(shared("mps", 2, fail=True), mps_root=str(made.directory / "mps"))
            made.kubelet.wait(lambda: made.kubelet.capacity(GPU) == 4 and answers())
            assert daemon() != pid and "set_default_active_thread_percentage 50" in log.read_text()
        finally:
            os.close(pipes)
        pid, made.config = daemon(), PluginConfig(mps_root=str(made.directory / "mps"))
        made.kubelet.wait(lambda: made.kubelet.capacity(GPU) == 2)
        assert not Path(f"/proc/{pid}").exists() and not (made.directory / "mps/nvidia.com-gpu").exists()
        assert f"smi -i {SECOND} -c DEFAULT" in log.read_text()


def test_the_supervisor_of_an_mps_daemon_is_killed() -> None:
    """Its daemon ends with it, and both are there again, where the containers have them mounted."""
    with node() as made:
        programs, log = mps_programs(made.directory)
        made.config = replace(shared("mps", 4), mps_root=str(made.directory / "mps"))
        made.start_plugin(programs=programs)
        made.kubelet.wait(lambda: made.kubelet.capacity(GPU) == 8)
        made.stop_plugin()  # nobody but the supervisor's own parent starts it again
        pid, directory = int(Path(f"{log}.pid").read_text()), made.directory / "mps/nvidia.com-gpu"
        (shm,) = [line for line in Path("/proc/mounts").read_text().splitlines() if f" {directory}/shm " in line]
        assert "size=1048576k" in shm
        supervisor = int(re.findall(r"PPid:\s+(\d+)", Path(f"/proc/{pid}/status").read_text())[0])
        os.kill(supervisor, signal.SIGKILL)
        made.kubelet.wait(lambda: int(Path(f"{log}.pid").read_text() or 0) not in (0, pid) and is_served(str(directory)))
    assert str(directory) not in Path("/proc/mounts").read_text()


@pytest.mark.parametrize("whole", [True, False])
@pytest.mark.parametrize("in_a_pod", [False, True])
def test_mps_with_the_driver_in_a_container(in_a_pod: bool, whole: bool) -> None:
    """NVIDIA's programs are in the driver's root only; they run with that root, or where it is none with its libraries."""
    with node() as made:
        root = made.directory / "root"
        root.symlink_to("/")
        said = moved(made.driver.path, whole)
        made.config = replace(shared("mps", 4), mps_root=str(made.directory / "mps"))
        made.start_plugin(root=str(root) if in_a_pod else "", driver_root=DRIVER_ROOT)
        made.kubelet.wait(lambda: made.kubelet.capacity(GPU) == 8 and "Unhealthy" not in str(made.kubelet.health()))
        answer = made.kubelet.run_container("one", GPU)
        mounts = {mount.container_path: Path(mount.host_path) for mount in answer.mounts}
        assert (mounts["/tmp/nvidia-mps"] / "control").is_fifo() and (mounts["/dev/shm"] / "of-the-daemon").exists()
        libraries = f"the node {made.driver.path}{DRIVER_ROOT}/usr/lib/"
        origin = "from " + ("the driver's root" if whole else libraries)
        for line in (f"smi -i {FIRST} -c EXCLUSIVE_PROCESS {origin}", f"daemon {origin}"):
            assert line in said.read_text()
        assert "set_default_active_thread_percentage 25" in said.read_text()
    assert str(made.directory) not in Path("/proc/mounts").read_text()


def test_mps_that_cannot_be_started() -> None:
    with node() as made:
        made.config = replace(shared("mps", 4), mps_root=str(made.directory / "mps"))
        made.start_plugin(programs=str(made.directory))
        made.kubelet.wait(lambda: made.kubelet.capacity(GPU) == 8)
        assert set(made.kubelet.health()[GPU].values()) == {"Unhealthy"}
