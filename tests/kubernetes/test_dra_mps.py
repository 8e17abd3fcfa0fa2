"""Claims with time slices and MPS, by NVIDIA's programs of the node or of the driver's container."""

from __future__ import annotations

import os
import re
import signal
from pathlib import Path

import pytest

from gpurun.cdi.files import read_registry
from gpurun.gpu.nvidia.mps.node_service import is_served
from tests.kubernetes.cluster import FIRST, SECOND, cluster, own_server
from tests.kubernetes.dra.test_claim import config, opaque
from tests.kubernetes.driver_container import DRIVER_ROOT, moved
from tests.kubernetes.mps import mps_programs
from tests.needs_nodes import needs_nodes
from tests.simdriver import uuid

pytestmark = needs_nodes


@own_server
def test_time_slices_and_mps() -> None:
    with cluster() as made:
        programs, log = mps_programs(made.directory)
        made.start(programs=programs)
        made.until(lambda: len(made.published()) == 2)
        sliced = made.allocate(
            "sliced", FIRST, config=[opaque(config({"strategy": "TimeSlicing", "timeSlicingConfig": {"interval": "Long"}}))]
        )
        assert not made.prepare(sliced)[sliced.uid].error
        assert f"smi compute-policy -i {uuid(0)} --set-timeslice=3" in log.read_text()
        made.unprepare(sliced)
        assert f"smi compute-policy -i {uuid(0)} --set-timeslice=0" in log.read_text()
        mps_config = {"defaultActiveThreadPercentage": 40, "defaultPinnedDeviceMemoryLimit": "2Gi"}
        mps = made.allocate("mps", SECOND, config=[opaque(config({"strategy": "MPS", "mpsConfig": mps_config}))])
        assert not made.prepare(mps)[mps.uid].error
        assert "set_default_active_thread_percentage 40" in log.read_text()
        assert "set_default_device_pinned_mem_limit 0 2048M" in log.read_text()
        spec = read_registry((str(made.cdi_dir),)).files[0].spec
        assert "CUDA_MPS_PIPE_DIRECTORY=/tmp/nvidia-mps" in spec.edits.env
        pid = int(Path(f"{log}.pid").read_text())
        made.unprepare(mps)
        assert not Path(f"/proc/{pid}").exists() and not list((made.directory / "mps").iterdir())


@own_server
@pytest.mark.parametrize("whole", [True, False])
def test_the_driver_is_in_a_container(whole: bool) -> None:
    """NVIDIA's programs are in the driver's root only."""
    with cluster() as made:
        said = moved(made.driver.path, whole)
        made.start(driver_root=DRIVER_ROOT)
        made.until(lambda: len(made.published()) == 2)
        slices = {"strategy": "TimeSlicing", "timeSlicingConfig": {"interval": "Long"}}
        sliced = made.allocate("sliced", FIRST, config=[opaque(config(slices))])
        mps = made.allocate("mps", SECOND, config=[opaque(config({"strategy": "MPS"}))])
        answers = made.prepare(sliced, mps)
        assert [answer.error for answer in answers.values()] == ["", ""]
        origin = "from the driver's root" if whole else f"from the node {made.driver.path}{DRIVER_ROOT}/usr/lib/"
        for line in (f"smi compute-policy -i {uuid(0)} --set-timeslice=3 {origin}", f"daemon {origin}"):
            assert line in said.read_text()
        assert (made.directory / f"mps/claim-{mps.uid}/pipe/control").is_fifo()


@own_server
def test_an_mps_daemon_outlives_the_driver_and_is_started_again() -> None:
    with cluster() as made:
        programs, log = mps_programs(made.directory)

        def daemon() -> int:
            return int(Path(f"{log}.pid").read_text() or 0)

        made.start(programs=programs)
        made.until(lambda: len(made.published()) == 2)
        mps = made.allocate("mps", SECOND, config=[opaque(config({"strategy": "MPS"}))])
        answer = made.prepare(mps)[mps.uid]
        assert not answer.error
        directory = made.directory / f"mps/claim-{mps.uid}"
        pipes, pid = os.open(directory / "pipe", os.O_PATH | os.O_DIRECTORY), daemon()
        try:
            made.stop()
            made.start(programs=programs)  # a rollout
            assert made.prepare(mps)[mps.uid] == answer and daemon() == pid
            os.kill(pid, signal.SIGKILL)
            made.until(lambda: daemon() not in (0, pid) and is_served(str(directory)))
            assert os.access("control", os.F_OK, dir_fd=pipes)
            # Daemon and supervisor are gone, and its parent too: the driver has them started again.
            pid = daemon()
            made.stop()
            keeper = parent(parent(pid))
            for one in (keeper, parent(pid), pid):
                os.kill(one, signal.SIGKILL)
            made.until(lambda: not is_served(str(directory)))
            made.start(programs=programs)
            made.until(lambda: is_served(str(directory)))
            assert os.access("control", os.F_OK, dir_fd=pipes) and daemon() != pid
        finally:
            os.close(pipes)
        made.stop()
        made.server.remove("resourceclaims", "mps", "default")  # type: ignore[union-attr]
        pid = daemon()
        made.start(programs=programs)
        made.until(lambda: not directory.exists())
        assert not Path(f"/proc/{pid}").exists()


def parent(pid: int) -> int:
    (found,) = re.findall(r"PPid:\s+(\d+)", Path(f"/proc/{pid}/status").read_text())
    return int(found)
