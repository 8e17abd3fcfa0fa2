"""A program that computes, through checkpoint and restore: the real CRIU, and stand-ins for CRIU's CUDA plugin, for NVIDIA's
``cuda-checkpoint`` and for the program.

What is proved is gpurun's part: that CRIU finds both, that the container is not frozen while a program is locked, that it is
when its GPU is emptied, and what is left when one of the steps fails.  A real GPU's test is in tests/hardware.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.compiled import compile_c
from tests.conftest import MakeBundle
from tests.native.bundle import Bundle
from tests.native.checkpoint import counted, restored, save, wait_count
from tests.native.leaks import Leaks
from tests.native.runtime import ENVIRONMENT, Container, Runtime
from tests.native.waiting import wait_until
from tests.simdriver import Options, SimulatedDriver, make


def criu_version() -> int:
    if shutil.which("criu") is None:
        return 0
    said = subprocess.run(["criu", "--version"], capture_output=True, text=True, check=False).stdout
    return int(found[1]) if (found := re.search(r"Version: (\d+)", said)) else 0


pytestmark = [
    pytest.mark.native,
    pytest.mark.gpurun_only,
    pytest.mark.skipif(criu_version() < 4, reason="CRIU 4 or newer is not on PATH: its plugins cannot lock programs before"),
]

#: It has a GPU open (for so long a node of that name is there which can be opened here), lets go of it when it is told so,
#: and counts on.
COMPUTES = (
    "take() { mv /dev/nvidiactl /dev/real; mknod /dev/nvidiactl c 1 3; exec 5<>/dev/nvidiactl; }; "
    "leave() { rm /dev/nvidiactl; mv /dev/real /dev/nvidiactl; exec 5<&-; }; "
    "exec </dev/null >/dev/null 2>&1; take; trap leave USR1; trap take USR2; "
    "i=0; while :; do i=$((i+1)); echo $i >>/tmp/count; sleep 0.01; done"
)
#: ``cuda-checkpoint``: notes each action with the state of the process at that moment; the file `fail` says which fails.
CUDA_CHECKPOINT = """#!/bin/sh
here={here}
grep -q '^NSpid:.*[[:space:]]1$' /proc/$4/status || exit 3
echo "$2 $(sed -n 's/^State:[[:space:]]*\\(.\\).*/\\1/p' /proc/$4/status)" >>$here/actions
[ "$(cat $here/fail 2>/dev/null)" != "$2" ] || exit 1
case $2 in
lock) kill -USR1 $4; n=0; while [ -e /proc/$4/fd/5 ]; do n=$((n+1)); [ $n -lt 500 ] || exit 1; sleep .01; done ;;
unlock) kill -USR2 $4 ;;
esac
"""


class Host:
    """A simulated driver, and the stand-ins in directories of their own."""

    def __init__(self, directory: Path, driver: SimulatedDriver) -> None:
        self.directory = directory
        (directory / "bin").mkdir()
        program = directory / "bin/cuda-checkpoint"
        program.write_text(CUDA_CHECKPOINT.format(here=directory))
        program.chmod(0o755)
        source = Path(__file__).resolve().parents[1] / "criu/cuda_plugin.c"
        compile_c(source, directory / "cuda_plugin.so", "-shared", "-fPIC", "-Wall", "-Werror")
        (directory / "criu.conf").write_text(f"libdir {directory}\n")
        self.env = ENVIRONMENT | driver.env | {"PATH": f"{directory}/bin:{os.environ['PATH']}"}

    def actions(self) -> list[str]:
        """What ``cuda-checkpoint`` has been asked since the last time."""
        file = self.directory / "actions"
        found = file.read_text().splitlines() if file.exists() else []
        file.unlink(missing_ok=True)
        return found

    def fails(self, action: str) -> None:
        (self.directory / "fail").write_text(action)


@pytest.fixture
def host(runtime: Runtime, leaks: Leaks, image: Path) -> Host:
    directory = runtime.directory / "host"
    directory.mkdir()
    (driver := runtime.directory / "driver").mkdir()
    return Host(directory, make(driver, Options()))


@pytest.fixture
def computing(runtime: Runtime, bundle: MakeBundle, host: Host) -> Container:
    b = bundle().sh(COMPUTES).capabilities("CAP_MKNOD", "CAP_DAC_OVERRIDE")
    b.process["env"] += ["NVIDIA_VISIBLE_DEVICES=0"]
    b.linux["resources"]["devices"] = [{"allow": True, "access": "rwm"}]
    b.config["annotations"] = {"org.criu.config": str(host.directory / "criu.conf")}
    container = runtime.start(b, env=host.env)
    wait_count(b, 3)
    return container


def goes_on(container: Container) -> None:
    """It counts, and has its GPU open again."""
    b: Bundle = container.bundle
    wait_count(b, counted(b)[-1] + 5)
    wait_until(lambda: os.path.exists(f"/proc/{container.pid}/fd/5"))
    assert os.readlink(f"/proc/{container.pid}/fd/5") == "/dev/nvidiactl"


def test_locked_before_the_freeze_emptied_in_it_filled_before_it_goes_on(
    computing: Container, host: Host, image: Path
) -> None:
    goes_on(computing)
    done = save(computing, image, env=host.env)
    assert done.rc == 0, done.text
    lock, checkpoint = host.actions()
    # Running or sleeping; then stopped, by CRIU or by the freezer.
    assert re.fullmatch("lock [RS]", lock) and re.fullmatch("checkpoint [tTD]", checkpoint)
    computing.wait()
    again = restored(computing, image, env=host.env)
    actions = host.actions()
    assert [action.split()[0] for action in actions] == ["restore", "unlock"], actions
    goes_on(again)


def test_a_paused_container_is_thawed_for_the_lock_and_paused_again(computing: Container, host: Host, image: Path) -> None:
    assert computing.runtime("pause", computing.id).rc == 0
    done = save(computing, image, "--leave-running", env=host.env)
    assert done.rc == 0, done.text
    assert [action.split()[0] for action in host.actions()][:2] == ["lock", "checkpoint"]
    assert computing.state()["status"] == "paused"


@pytest.mark.parametrize("action", ["lock", "checkpoint"])
def test_a_step_that_fails_leaves_the_container_running(computing: Container, host: Host, image: Path, action: str) -> None:
    host.fails(action)
    done = save(computing, image, env=host.env)
    assert done.rc == 1 and "criu failed" in done.text, done.text
    asked = [word.split()[0] for word in host.actions()]
    assert asked == (["lock"] if action == "lock" else ["lock", "checkpoint", "restore", "unlock"])
    assert computing.state()["status"] == "running"
    goes_on(computing)
