"""GPUs divided: the calls and their order, what fails, what is killed, and who else is there."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from gpurun.errors import GpuError, GpurunError
from gpurun.gpu.leases.lease import Leased
from gpurun.gpu.leases.policy import LeasePolicy
from gpurun.gpu.leases.store import Store, new_lease
from gpurun.gpu.nvidia.mig.apply import MigHost, MigPending, apply_config
from gpurun.gpu.nvidia.mig.busy import hold_gpus
from gpurun.gpu.nvidia.mig.config import MigEntry
from gpurun.gpu.nvidia.mig.plan import MigChange
from gpurun.gpu.nvidia.mps.programs import Program
from tests.gpu.nvidia.mig.hosts import MigHost as SimulatedHost
from tests.gpu.nvidia.mig.hosts import entries
from tests.simdriver import bus_id
from tests.source_tree import PACKAGE

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root divides GPUs")

OFF = "{devices: all, mig-enabled: false}"
BALANCED = "{devices: all, mig-enabled: true, mig-devices: {3g.20gb: 1, 2g.10gb: 1, 1g.5gb: 2}}"
SEVEN = "{devices: all, mig-enabled: true, mig-devices: {1g.5gb: 7}}"


class Divided:
    """A host, and gpurun that divides its GPUs."""

    def __init__(self, tmp_path: Path, gpus: int = 1, unable: int = 0) -> None:
        self.sim = SimulatedHost(tmp_path, gpus, unable)
        self.place = tmp_path / "mig"
        self.smi = tmp_path / "nvidia-smi"
        self.host = MigHost(self.sim.library, str(self.place))

    def apply(self, *texts: str, **more: bool) -> tuple[int, ...]:
        return tuple([change.index for change in apply_config(self.host, "it", entries(*texts), **more)])

    @property
    def record(self) -> Path:
        return self.place / "change.json"

    def with_smi(self, text: str) -> MigHost:
        self.smi.write_text(f"#!/bin/sh\n{text}\n")
        self.smi.chmod(0o755)
        self.host = MigHost(self.sim.library, str(self.place), Program((str(self.smi),)))
        return self.host


@pytest.fixture
def divided(tmp_path: Path) -> Divided:
    return Divided(tmp_path)


def test_from_nothing_and_again(divided: Divided) -> None:
    assert divided.apply(BALANCED) == (0,)
    log = divided.sim.log()
    assert log[0] == "mode 0 1" and [line.split()[0] for line in log[1:]] == ["create", "compute"] * 4
    assert divided.sim.devices() == {"3g.20gb": 1, "2g.10gb": 1, "1g.5gb": 2}
    assert divided.apply(BALANCED) == () and divided.sim.log() == []
    assert not divided.record.exists()


def test_from_one_to_another_and_off(divided: Divided) -> None:
    divided.apply(BALANCED)
    divided.sim.log()
    assert divided.apply(SEVEN) == (0,)
    words = [line.split()[0] for line in divided.sim.log()]
    assert words == ["uncompute", "destroy"] * 4 + ["create", "compute"] * 7
    assert divided.apply(OFF) == (0,)
    words = [line.split()[0] for line in divided.sim.log()]
    assert words == ["uncompute", "destroy"] * 7 + ["mode"]
    gpu = divided.sim.gpus()[0]
    assert gpu.mode is gpu.pending is False


def test_only_the_mode(divided: Divided) -> None:
    assert divided.apply(BALANCED, mode_only=True) == (0,) and divided.sim.devices() == {}
    assert divided.sim.log() == ["mode 0 1"] and divided.apply(BALANCED, mode_only=True) == ()


def test_some_of_several(tmp_path: Path) -> None:
    host = Divided(tmp_path, gpus=3, unable=1)
    assert host.apply(BALANCED, "{devices: [1], mig-enabled: true, mig-devices: {7g.40gb: 1}}") == (0, 1)
    assert host.sim.devices(1) == {"7g.40gb": 1} and host.sim.devices(2) == {} and len(host.sim.devices(0)) == 3


def test_what_cannot_be_is_refused_before_anything_is_done(divided: Divided) -> None:
    divided.apply(BALANCED)
    divided.sim.log()
    for text in ("{1g.5gb: 8}", "{4g.20gb: 2}", "{1g.10gb: 1, 7g.40gb: 1}", "{1g.12gb: 1}"):
        with pytest.raises(GpuError):
            divided.apply(f"{{devices: all, mig-enabled: true, mig-devices: {text}}}")
    assert divided.sim.log() == [] and not divided.record.exists()


def test_profiles_that_are_told_only_when_mig_is_on(divided: Divided) -> None:
    """As with an A100: a profile that it does not have is found after the mode has changed, and the mode goes back."""
    divided.sim.control("silent")
    with pytest.raises(GpuError, match=r"has no MIG profile 1g\.12gb.*; the GPUs are divided as they were before"):
        divided.apply("{devices: all, mig-enabled: true, mig-devices: {1g.12gb: 1}}")
    assert divided.sim.log() == ["mode 0 1", "mode 0 0"] and not divided.record.exists()
    assert divided.apply(SEVEN) == (0,)


@pytest.mark.parametrize(
    ("fault", "text"),
    [
        ("DeviceSetMigMode 1 4", "setting the MIG mode has failed: Insufficient Permissions .*: it takes root"),
        ("DeviceCreateGpuInstanceWithPlacement 2 23", "making MIG devices has failed: Insufficient Resources"),
        ("GpuInstanceCreateComputeInstance 3 23", "making MIG devices has failed: Insufficient Resources"),
        ("GpuInstanceDestroy 2 19", "removing MIG devices has failed: In use by another client .*: a program has it open"),
        ("ComputeInstanceDestroy 1 19", "removing MIG devices has failed: In use by another client"),
    ],
)  # fmt: skip
def test_a_call_that_fails_is_taken_back(divided: Divided, fault: str, text: str) -> None:
    """The count of calls begins anew with each process, so going back meets the fault only if it makes as many calls."""
    if "Destroy" in fault:
        divided.sim.divide("2g.10gb", "1g.5gb", "1c.3g.20gb", "1c.3g.20gb")
    before = divided.sim.gpus()[0]
    divided.sim.control(f"fail {fault}")
    with pytest.raises(GpuError, match=f"GPU 0: {text}"):
        divided.apply(SEVEN)
    if divided.record.exists():  # the same fault hit the way back
        divided.sim.control()
        assert divided.apply(SEVEN) == (0,) and divided.sim.devices() == {"1g.5gb": 7}
    else:
        now = divided.sim.gpus()[0]
        assert (now.mode, [(i.profile, i.start, i.compute) for i in now.instances]) == (
            before.mode, [(i.profile, i.start, i.compute) for i in before.instances]
        )  # fmt: skip
    assert not divided.record.exists()


def test_what_was_there_is_there_again_at_its_place(divided: Divided) -> None:
    divided.sim.divide("2g.10gb", "1g.5gb", "1c.3g.20gb", "1c.3g.20gb")
    before = [(i.profile, i.start, i.size, i.compute) for i in divided.sim.gpus()[0].instances]
    divided.sim.control("fail DeviceCreateGpuInstanceWithPlacement 5 23")  # three are made on the way back
    with pytest.raises(GpuError, match="the GPUs are divided as they were before"):
        divided.apply(SEVEN)
    assert [(i.profile, i.start, i.size, i.compute) for i in divided.sim.gpus()[0].instances] == before
    assert not divided.record.exists()


def test_going_back_fails_as_well(divided: Divided) -> None:
    divided.sim.divide("2g.10gb", "1g.5gb")
    divided.sim.control("fail DeviceCreateGpuInstanceWithPlacement 2 23")
    with pytest.raises(GpuError, match="and going back has failed as well: GPU 0: making MIG devices has failed"):
        divided.apply(SEVEN)
    record = json.loads(divided.record.read_text())
    assert record["config"] == "it" and len(record["before"][0]["instances"]) == 2
    divided.sim.control()
    with pytest.raises(GpuError, match="no room"):  # what is refused leaves the record
        divided.apply("{devices: all, mig-enabled: true, mig-devices: {4g.20gb: 2}}")
    assert divided.record.exists()
    assert divided.apply(SEVEN) == (0,) and not divided.record.exists()


def test_a_mode_that_waits_for_a_reset(divided: Divided, tmp_path: Path) -> None:
    divided.sim.control("sticky 0")
    state = tmp_path / "nvml/state"
    divided.with_smi(f'echo "$*" > {tmp_path}/asked; sed -i "s/^mode 0 . \\(.\\)/mode 0 \\1 \\1/" {state}')
    assert divided.apply(BALANCED) == (0,) and len(divided.sim.devices()) == 3
    assert (tmp_path / "asked").read_text() == f"--gpu-reset -i {bus_id(0)}\n"


@pytest.mark.parametrize("how", ["no program", "it fails", "it does nothing", "not wanted"])
def test_a_mode_that_waits_for_a_reboot(divided: Divided, tmp_path: Path, how: str) -> None:
    divided.sim.control("sticky 0")
    why = {"no program": "there is no nvidia-smi", "it fails": "GPU 0 is in use", "it does nothing": "", "not wanted": ""}[
        how
    ]
    if how != "no program":
        divided.with_smi(f"touch {tmp_path}/asked; {'echo GPU 0 is in use; exit 3' if how == 'it fails' else 'exit 0'}")
    with pytest.raises(MigPending, match=f"is set and waits for a reset.*{why}.*it goes on from there"):
        divided.apply(BALANCED, reset=how != "not wanted")
    assert (tmp_path / "asked").exists() == (how in ("it fails", "it does nothing"))
    assert divided.record.exists() and divided.sim.gpus()[0].pending
    state = tmp_path / "nvml/state"
    state.write_text(state.read_text().replace("mode 0 0 1", "mode 0 1 1"))  # the reboot
    assert divided.apply(BALANCED) == (0,) and not divided.record.exists()


def test_a_mode_that_was_to_change_and_is_not_any_more(divided: Divided) -> None:
    divided.sim.control("sticky 0")
    with pytest.raises(MigPending):
        divided.apply(BALANCED)
    divided.sim.log()
    assert divided.apply(OFF) == (0,) and divided.sim.log() == ["mode 0 0"]
    assert divided.sim.gpus()[0].pending is False and not divided.record.exists()


def test_two_at_once(divided: Divided) -> None:
    divided.apply(BALANCED)
    with open(divided.place / "lock") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(GpurunError, match="another gpurun is dividing the GPUs of this host now"):
            divided.apply(SEVEN)
    assert divided.apply(SEVEN) == (0,)


def test_a_place_that_others_can_write(divided: Divided) -> None:
    divided.apply(OFF)
    os.chown(divided.place, 1000, 0)
    with pytest.raises(GpurunError, match="others can write here, so no GPU is divided"):
        divided.apply(BALANCED)
    os.chown(divided.place, 0, 0)
    (divided.place / "lock").unlink()
    (divided.place / "lock").symlink_to("/etc/passwd")
    with pytest.raises(GpurunError, match="open the record of MIG changes"):
        divided.apply(BALANCED)


@pytest.mark.parametrize("text", ["", "{", "[]", '{"version": 2}', '{"version": 1, "config": "x", "before": [{}]}'])
def test_a_record_that_is_damaged(divided: Divided, text: str) -> None:
    divided.apply(OFF)
    divided.record.write_text(text)
    assert divided.apply(BALANCED) == (0,) and not divided.record.exists()


def test_a_record_that_is_a_link(divided: Divided, tmp_path: Path) -> None:
    divided.apply(OFF)
    (tmp_path / "else").write_text("kept")
    divided.record.symlink_to(tmp_path / "else")
    with pytest.raises(GpurunError, match="read "):
        divided.apply(BALANCED)
    assert (tmp_path / "else").read_text() == "kept"


def test_the_disk_is_full_before_anything_is_done(divided: Divided, monkeypatch: pytest.MonkeyPatch) -> None:
    from gpurun.gpu.nvidia.mig import change_record

    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(change_record, "write_atomically", full)
    with pytest.raises(GpurunError, match="no space left"):
        divided.apply(BALANCED)
    assert divided.sim.log() == []


def test_a_lost_gpu(tmp_path: Path) -> None:
    host = Divided(tmp_path, gpus=2)
    host.sim.control("lost 1")
    with pytest.raises(GpuError, match="GPU 1 cannot be asked"):
        host.apply(BALANCED)
    assert host.sim.log() == []
    assert host.apply("{devices: [0], mig-enabled: true, mig-devices: {7g.40gb: 1}}") == (0,)


APPLY = """
import sys
from gpurun.gpu.nvidia.mig.apply import MigHost, apply_config
from gpurun.gpu.nvidia.mig.config import load
apply_config(MigHost(sys.argv[1], sys.argv[2]), "it", load(sys.argv[3])["it"])
"""


@pytest.mark.parametrize("when", ["before", "after"])
def test_killed_at_each_call(tmp_path: Path, when: str, request: pytest.FixtureRequest) -> None:
    """From a mode that is off, and from other devices: whatever call it was, the next gpurun makes it what it should be."""
    config = tmp_path / "config.yaml"
    config.write_text(f"version: v1\nmig-configs:\n  it:\n  - {BALANCED}\n")
    host = Divided(tmp_path)
    for at in range(1, 14) if request.config.getoption("--long") else (1, 3, 11):  # each takes seven seconds
        host.sim.control()
        host.apply("{devices: all, mig-enabled: true, mig-devices: {4g.20gb: 1}}" if at > 9 else OFF)
        host.sim.log()
        host.sim.control(f"kill {when} {at}")
        words = (sys.executable, "-c", APPLY, host.sim.library, str(host.place), str(config))
        done = subprocess.run(words, env={"PYTHONPATH": str(PACKAGE.parent)}, capture_output=True, timeout=120, check=False)
        calls = len(host.sim.log())
        if done.returncode == 0:  # it was over before that call
            assert calls < at and host.sim.devices() == {"3g.20gb": 1, "2g.10gb": 1, "1g.5gb": 2}
            continue
        assert done.returncode == -signal.SIGKILL and calls == at, (at, done)
        assert host.record.exists()
        host.sim.control()
        host.apply(BALANCED)
        assert host.sim.devices() == {"3g.20gb": 1, "2g.10gb": 1, "1g.5gb": 2} and not host.record.exists()


def test_a_killed_change_that_then_fails_goes_back_to_what_was_before_both(tmp_path: Path) -> None:
    config = tmp_path / "config.yaml"
    config.write_text(f"version: v1\nmig-configs:\n  it:\n  - {SEVEN}\n")
    host = Divided(tmp_path)
    host.apply("{devices: all, mig-enabled: true, mig-devices: {4g.20gb: 1}}")
    host.sim.log()
    host.sim.control("kill after 6")
    words = (sys.executable, "-c", APPLY, host.sim.library, str(host.place), str(config))
    done = subprocess.run(words, env={"PYTHONPATH": str(PACKAGE.parent)}, capture_output=True, timeout=120, check=False)
    assert done.returncode == -signal.SIGKILL and host.sim.devices() == {"1g.5gb": 2}
    host.sim.control("fail DeviceCreateGpuInstanceWithPlacement 3 23")
    with pytest.raises(GpuError, match="the GPUs are divided as they were before"):
        host.apply(SEVEN)
    assert host.sim.devices() == {"4g.20gb": 1} and not host.record.exists()


# Who else is there.


@contextmanager
def holding(host: Divided, changes: tuple[MigChange, ...]) -> Iterator[Store]:
    env = host.sim.driver.env
    store = Store(f"{host.sim.driver.path}/run/gpurun-leases")
    with hold_gpus(changes, env, LeasePolicy(), store):
        yield store


def change_of(host: Divided, text: str = BALANCED) -> tuple[MigChange, ...]:
    from gpurun.gpu.nvidia.mig.plan import plan_config

    wanted: tuple[MigEntry, ...] = entries(text)
    return plan_config(host.sim.gpus(), wanted)


def test_a_process_computes(divided: Divided) -> None:
    divided.sim.control(f"busy 0 {os.getpid()}")
    with (
        pytest.raises(GpuError, match=f"GPU 0 is in use, so it is not divided anew: process {os.getpid()} "),
        holding(divided, change_of(divided)),
    ):
        pytest.fail("it has it")
    divided.sim.control(f"busy 0 {1 << 22}")  # of a pid namespace that is not ours to see
    with pytest.raises(GpuError, match=f"process {1 << 22} computes on it"), holding(divided, change_of(divided)):
        pytest.fail("it has it")


def test_processes_of_a_gpu_that_stays_do_not_matter(tmp_path: Path) -> None:
    host = Divided(tmp_path, gpus=2)
    host.sim.control(f"busy 1 {os.getpid()}")
    changes = change_of(host, "{devices: [0], mig-enabled: true, mig-devices: {}}")
    with holding(host, changes):
        pass


def test_a_container_has_a_lease(divided: Divided) -> None:
    store = Store(f"{divided.sim.driver.path}/run/gpurun-leases")
    lease = new_lease("train-1", "/root", (Leased(bus_id(0), "GPU-x", 0, 0),))
    with store:
        store.save(lease)
    with (
        pytest.raises(GpuError, match="GPU 0 is in use, so it is not divided anew: leased by train-1 since "),
        holding(divided, change_of(divided)),
    ):
        pytest.fail("it has it")
    store.remove(lease)
    with holding(divided, change_of(divided)) as own:
        (mine,) = own.leases()  # and meanwhile nobody else leases it
        assert mine.units[0].key == bus_id(0) and mine.name == "gpurun gpu mig apply"
    assert own.leases() == ()


def test_what_is_not_known_is_not_divided(divided: Divided) -> None:
    changes = change_of(divided)
    Path(divided.sim.library).write_bytes(b"")
    with (
        pytest.raises(GpuError, match="whether processes use the GPUs is not known, so they are not divided: "),
        holding(divided, changes),
    ):
        pytest.fail("it has it")
