"""delete of a container that memory has ended: whoever has to tell that gets to read it before the cgroup goes.

The directory is no cgroup, but the watches are the kernel's; removing it takes its files along, as with a cgroup.
tests/systemd/test_limits.py does the same with cgroups.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.launcher.front import Store
from tests.native.stopped_shim import StoppedShim
from tests.native.waiting import wait_until

SOURCES = Path(__file__).resolve().parents[3] / "src"
DELETE = """
import posix, shutil, sys
cgroup, root, seconds = sys.argv[1:]
rmdir = posix.rmdir
posix.rmdir = lambda path, **how: shutil.rmtree(path) if path == cgroup else rmdir(path, **how)
from gpurun.__main__ import main
from gpurun.cgroup import oom_watch
oom_watch._READ_TIMEOUT = float(seconds)
sys.exit(main(["gpurun", "--root", root, "delete", "c"]))
"""


@pytest.fixture
def store() -> Iterator[Store]:
    """A container whose only process has been killed for want of memory."""
    with (
        tempfile.TemporaryDirectory(dir="/dev/shm") as directory,  # its device number is told by stat(2) as it is
        subprocess.Popen(["sleep", "1000"]) as process,
    ):
        made = Store(Path(directory), process.pid)
        os.kill(process.pid, signal.SIGKILL)
        wait_until(made.has_ended)
        (made.cgroup / "memory.events").write_text("max 9\noom 1\noom_kill 1\noom_group_kill 0\n")
        (made.cgroup / "cgroup.events").write_text("populated 0\nfrozen 0\n")
        for name in ("cgroup.freeze", "cgroup.kill"):
            (made.cgroup / name).write_text("0")
        yield made


def stopped_shim(store: Store, told: Path, seconds: float) -> Iterator[StoppedShim]:
    delete = (sys.executable, "-c", DELETE, store.cgroup, store.root, str(seconds))
    made = StoppedShim(store.cgroup, store.cgroup / "cgroup.freeze", told, delete, {"PYTHONPATH": str(SOURCES)})
    yield made
    made.close()


@pytest.fixture
def patient(store: Store, tmp_path: Path) -> Iterator[StoppedShim]:
    """delete waits for longer than the test takes."""
    yield from stopped_shim(store, tmp_path / "told", 60)


@pytest.fixture
def impatient(store: Store, tmp_path: Path) -> Iterator[StoppedShim]:
    yield from stopped_shim(store, tmp_path / "told", 0.3)


def test_a_shim_that_reads_late_has_not_lost_the_kill(store: Store, patient: StoppedShim) -> None:
    assert patient.is_waited_for()
    assert store.cgroup.exists() and store.container.exists()
    code, said, told = patient.go_on()
    assert code == 0 and "out of memory: 1 process was killed" in said
    assert told == ["oom_kill 1"]
    assert not store.cgroup.exists() and not store.container.exists()


def test_a_shim_that_never_reads_does_not_keep_the_container(store: Store, impatient: StoppedShim) -> None:
    impatient.is_waited_for()  # until it has given up, which on a slow machine it has by now
    wait_until(lambda: not impatient.runs_command())
    assert not store.cgroup.exists() and not store.container.exists()
    code, _, told = impatient.go_on()
    assert code == 0 and told == ["lost"]


def test_nobody_is_waited_for_where_nothing_was_killed(store: Store, patient: StoppedShim) -> None:
    (store.cgroup / "memory.events").write_text("max 9\noom 1\noom_kill 0\noom_group_kill 0\n")
    assert not patient.is_waited_for()
    assert not store.cgroup.exists()
    assert patient.go_on()[0] == 0
