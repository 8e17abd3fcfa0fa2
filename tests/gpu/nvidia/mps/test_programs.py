"""NVIDIA's programs in a driver's root: found inside it, run with its root or libraries, not if others may write them."""

from __future__ import annotations

import os
import select
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from gpurun.errors import GpurunError
from gpurun.gpu.nvidia.mps.programs import Program, call, find_driver_program, mount_place
from gpurun.linux.files import Fd
from tests.deadline import within
from tests.gpu.nvidia.mps.held_program import held_program

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="files of root")
NAME = "nvidia-smi"


@pytest.fixture
def driver(tmp_path: Path) -> Path:
    root = tmp_path / "driver"
    (root / "usr/bin").mkdir(parents=True)
    (root / "bin").symlink_to("usr/bin")
    program = root / "usr/bin" / NAME
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    return root


def test_a_whole_root_becomes_the_programs_own(driver: Path) -> None:
    (driver / "usr/bin/sh").touch()
    assert find_driver_program(NAME, str(driver)) == Program(("chroot", str(driver), f"/usr/bin/{NAME}"), str(driver))


def test_what_is_no_root_lends_its_libraries(driver: Path) -> None:
    libraries = driver / "usr/lib64"
    libraries.mkdir()
    (libraries / "libnvidia-ml.so.1").touch()
    words = ("env", f"LD_LIBRARY_PATH={libraries}", f"{driver}/usr/bin/{NAME}")
    assert find_driver_program(NAME, str(driver)) == Program(words)


def test_a_program_that_needs_no_loader(driver: Path) -> None:
    (driver / "usr/bin" / NAME).write_bytes(Path("/usr/bin/busybox").read_bytes())
    assert find_driver_program(NAME, str(driver)) == Program(("chroot", str(driver), f"/usr/bin/{NAME}"), str(driver))
    # One that is linked as most are needs a loader, which is not there.
    (driver / "usr/bin" / NAME).write_bytes(Path("/usr/bin/env").read_bytes())
    found = find_driver_program(NAME, str(driver))
    assert found is not None and found.words[0] == "env"


def test_in_a_pod_the_nodes_root_is_elsewhere(driver: Path, tmp_path: Path) -> None:
    root = tmp_path / "host"
    (root / "srv").mkdir(parents=True)
    driver.rename(root / "srv/driver")
    found = find_driver_program(NAME, "/srv/driver", root=str(root))
    assert found == Program(("chroot", str(root), "env", "LD_LIBRARY_PATH=", f"/srv/driver/usr/bin/{NAME}"))
    (root / "srv/driver/usr/bin/sh").touch()
    whole = f"{root}/srv/driver"
    assert find_driver_program(NAME, "/srv/driver", root=str(root)) == Program(("chroot", whole, f"/usr/bin/{NAME}"), whole)


def test_a_link_does_not_lead_out(driver: Path, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.write_text("#!/bin/sh\n")
    outside.chmod(0o755)
    program = driver / "usr/bin" / NAME
    program.unlink()
    program.symlink_to(outside)
    assert find_driver_program(NAME, str(driver)) is None


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda root: os.chown(root / "usr/bin" / NAME, 1000, 0), "can be written by users other than root"),
        (lambda root: (root / "usr/bin" / NAME).chmod(0o757), "can be written by users other than root"),
        (lambda root: (root / "usr/bin").chmod(0o777), "usr/bin can be written by users other than root"),
        (lambda root: (root / "usr/bin" / NAME).chmod(0o644), "is not executable"),
    ],
)
def test_what_others_may_write_root_does_not_execute(driver: Path, change: Callable[[Path], object], said: str) -> None:
    change(driver)
    with pytest.raises(GpurunError, match=said):
        find_driver_program(NAME, str(driver))


def test_what_is_not_there(driver: Path, tmp_path: Path) -> None:
    assert find_driver_program("nvidia-other", str(driver)) is None
    assert find_driver_program(NAME, str(tmp_path / "nothing")) is None
    assert find_driver_program("nvidia-other", "", str(tmp_path)) is None


def test_a_place_for_a_mount_is_no_link(driver: Path) -> None:
    (driver / "mnt").symlink_to("/etc")
    with pytest.raises(GpurunError, match="has no directory /mnt"):
        mount_place(str(driver), ("/mnt",))
    (driver / "tmp").mkdir()
    assert mount_place(str(driver), ("/mnt", "/tmp")) == "/tmp"


def begins(monkeypatch: pytest.MonkeyPatch, ready: Callable[[], object]) -> None:
    """The time of what :func:`call` calls begins when *ready* says so, and is over a moment later."""

    class Begun(subprocess.Popen[str]):
        def communicate(self, input: str | None = None, timeout: float | None = None) -> tuple[str, str]:
            if input is not None:
                while not ready():
                    time.sleep(0.01)
                timeout = 0.1
            return super().communicate(input, timeout)

    monkeypatch.setattr(subprocess, "Popen", Begun)


def test_a_program_that_the_driver_holds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is not waited for when it has been killed, and no other joins it."""
    with held_program(tmp_path / NAME) as pids, within(60):
        with monkeypatch.context() as patched, pytest.raises(subprocess.TimeoutExpired):
            begins(patched, lambda: pids.exists() and pids.read_text())
            call([str(tmp_path / NAME)], 600.0)
        held = pids.read_text().split()[0]
        text = f"the NVIDIA driver still holds process {held}, which was called before"
        with pytest.raises(subprocess.SubprocessError, match=text):
            call(["true"], 60.0)
    os.waitid(os.P_PID, int(held), os.WEXITED | os.WNOWAIT)
    assert call(["cat"], 60.0, "said").stdout == "said"


def test_what_a_program_has_started_ends_with_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    os.mkfifo(tmp_path / "fifo")
    with Fd(os.open(tmp_path / "fifo", os.O_RDONLY | os.O_NONBLOCK)) as fifo, within(60):
        with monkeypatch.context() as patched, pytest.raises(subprocess.TimeoutExpired):
            begins(patched, lambda: select.select([fifo], [], [], 60)[0])
            call(["sh", "-c", f"exec 3>{tmp_path}/fifo; sleep 600 & echo >&3"], 600.0)
        os.set_blocking(fifo, True)
        assert os.read(fifo, 10) == b"\n" and os.read(fifo, 10) == b""  # nobody has it open any more
