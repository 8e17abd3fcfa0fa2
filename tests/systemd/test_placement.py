"""Placement policies, by what the kernel makes of them."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.conftest import MakeBundle
from tests.native.bed import Bed
from tests.native.bundle import Bundle
from tests.native.runtime import Runtime
from tests.systemd.conftest import Driver

pytestmark = [pytest.mark.native, pytest.mark.gpurun_only]


def placed(bundle: MakeBundle, **policies: str) -> Bundle:
    made = bundle().args("sleep", "1000")
    made.config["annotations"] = {f"dev.gpurun.{name.replace('_', '.')}": value for name, value in policies.items()}
    return made


@pytest.mark.short
@pytest.mark.needs("memory", "io")
def test_memory_and_io(driver: Driver, bundle: MakeBundle) -> None:
    made = placed(bundle, memory_high="0.5", memory_swap="off", memory_oom_group="true", io_weight="300")
    made.linux["resources"]["memory"] = {"limit": 64 << 20}
    path = driver.cgroup(driver.start(made))
    files = ("memory.high", "memory.swap.max", "memory.oom.group", "io.weight")
    assert [(path / f).read_text().split("\n")[0] for f in files] == [str(32 << 20), "0", "1", "default 300"]


@pytest.mark.short
@pytest.mark.needs("cpuset")
@pytest.mark.parametrize("systemd_driver", [False, pytest.param(True, marks=pytest.mark.needs("systemd"))])
def test_exclusive_cpus(runtime: Runtime, bundle: MakeBundle, bed: Bed, systemd_driver: bool) -> None:
    """While the container lives, nobody else gets its CPU; afterwards all do again."""
    made = placed(bundle, cpu_exclusive="true")
    made.linux["resources"]["cpu"] = {"cpus": "1"}
    container_id = runtime.new_id()
    name = f"gpuruntest-{container_id}"
    options: tuple[str, ...] = ()
    if systemd_driver:
        options = ("--systemd-cgroup",)
        made.linux["cgroupsPath"] = f"-.slice:gpuruntest:{container_id}"
        name += ".scope"
    else:
        made.linux["cgroupsPath"] = f"/{name}"
    everyone = bed.cgroup("cpuset.cpus.effective")
    before = everyone.read_text()
    container = runtime.start(made, container_id=container_id, globals_=options)
    path: Path = bed.cgroup(name)
    assert (path / "cpuset.cpus.partition").read_text().strip() == "root"
    assert (path / "cpuset.cpus.effective").read_text().strip() == "1" and everyone.read_text().strip() == "0"
    assert container.delete("--force").rc == 0
    assert everyone.read_text() == before


@pytest.mark.needs("cpuset")
def test_exclusive_cpus_deeper_down(driver: Driver, bundle: MakeBundle, bed: Bed) -> None:
    """All cgroups above leave the CPU to the container and delete takes it back from all of them."""
    made = placed(bundle, cpu_exclusive="isolated")
    made.linux["resources"]["cpu"] = {"cpus": "1"}
    everyone = bed.cgroup("cpuset.cpus.effective")
    before = everyone.read_text()
    container = driver.start(made)
    path = driver.cgroup(container)
    assert (path / "cpuset.cpus.partition").read_text().strip() == "isolated"
    assert (path / "cpuset.cpus.effective").read_text().strip() == "1" and everyone.read_text().strip() == "0"
    assert (path.parent / "cpuset.cpus.exclusive").read_text().strip() == "1"
    if driver.name == "systemd":
        subprocess.run(["systemctl", "daemon-reload"], check=True)
        assert (path / "cpuset.cpus.partition").read_text().strip() == "isolated"
    parent = path.parent

    def lent() -> str:
        """The CPUs that the parent keeps for its children alone: none where it went with its last child."""
        return (parent / "cpuset.cpus.exclusive").read_text().strip() if parent.exists() else ""

    assert container.delete("--force").rc == 0
    assert everyone.read_text() == before
    assert lent() == ""
    made.linux["resources"]["cpu"] = {"cpus": "0-1"}
    text = driver.create(made, check=False).result.text
    assert "dev.gpurun.cpu.exclusive" in text and everyone.read_text() == before
    assert lent() == ""


@pytest.mark.needs("cpuset")
def test_cpus_that_cannot_be_exclusive(runtime: Runtime, bundle: MakeBundle) -> None:
    """All CPUs of the machine: the kernel leaves none to the others, and says so only when it is asked again."""
    made = placed(bundle, cpu_exclusive="true")
    made.linux["resources"]["cpu"] = {"cpus": "0-1"}
    container_id = runtime.new_id()
    made.linux["cgroupsPath"] = f"/gpuruntest-{container_id}"
    text = runtime.refused(made, container_id=container_id)
    assert "dev.gpurun.cpu.exclusive: the kernel refuses to reserve the CPUs for this container: root invalid" in text
