"""What Intel's GPUs do now, as far as sysfs and fdinfo say."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from gpurun.gpu.device import Reading
from gpurun.gpu.host.fdinfo import Clients, DrmClient, clients_at, open_nodes
from gpurun.gpu.intel.exporter import FIELDS
from gpurun.gpu.intel.host import intel_gpus
from gpurun.gpu.intel.readings import CardLook, reading, sources
from gpurun.record import replace
from tests.needs_nodes import require_nodes
from tests.simcards import GIB, Host, intel

FDINFO = "drm-driver:\txe\ndrm-client-id:\t{}\ndrm-pdev:\t0000:04:00.0\ndrm-resident-vram0:\t1024 KiB\n"


@pytest.fixture
def proc(tmp_path: Path) -> Path:
    """Two processes that have the B580 open, one of them twice."""
    require_nodes()
    node = tmp_path / "renderD129"
    os.mknod(node, 0o020600, os.makedev(226, 129))
    for pid, clients in ((7, (1, 2)), (9, (3,))):
        for client in clients:
            for kind in ("fd", "fdinfo"):
                (tmp_path / f"proc/{pid}/{kind}").mkdir(parents=True, exist_ok=True)
            (tmp_path / f"proc/{pid}/fd/{client}").symlink_to(node)
            (tmp_path / f"proc/{pid}/fdinfo/{client}").write_text(FDINFO.format(client))
    return tmp_path / "proc"


def readings(host: Host, proc: Path) -> tuple[Reading, ...]:
    """Of all GPUs, with the clients of *proc*."""

    def clients() -> Clients:
        found = open_nodes(str(proc))
        return Clients(clients_at(found.nodes, str(proc)), found.whole)

    return tuple([one for source in sources(str(host.path)) for one in source.read(clients, True)])


def test_a_reading_of_each_gpu(tmp_path: Path, proc: Path) -> None:
    host = intel.arc(tmp_path / "host")
    old, new, virtual = readings(host, proc)
    # The counter of energy stands still here.
    assert replace(old, labels=(), figures=()) == Reading(intel.A770, 0, 0, None, 60.0, 0.0, 190.0, 2400)
    assert (new.memory_used, new.memory_total, new.clock) == (3 << 20, 12 * GIB, 2450)
    assert new.processes == ((7, 2 << 20), (9, 1 << 20))
    assert replace(virtual, labels=(), figures=()) == Reading(intel.VF, 0, 0)


@pytest.mark.parametrize("text", ["-5", "1e9", "99999999999999999999", "x" * (1 << 20)])
def test_nonsense_is_not_known(tmp_path: Path, proc: Path, text: str) -> None:
    host = intel.arc(tmp_path / "host", functions=False)
    path = intel.CARDS[1].path
    for name in (
        "hwmon/hwmon1/temp2_input",
        "hwmon/hwmon1/temp3_input",
        "hwmon/hwmon1/power1_max",
        "tile0/gt0/freq0/act_freq",
    ):
        host.write(f"{path}/{name}", text)
    found = readings(host, proc)[1]
    assert (found.temperature, found.power_limit, found.clock) == (None, None, None)


def client(number: int, cycles: int, passed: int, pid: int = 7, memory: int = 1 << 20) -> DrmClient:
    return DrmClient(pid, intel.B580, number, memory, cycles=(("ccs", cycles, passed), ("bcs", cycles // 4, passed)))


def two_looks(tmp_path: Path, whole: bool = True) -> Reading:
    """Half a second apart: 30 J; of two clients the first works half of the time, and another process has it as well."""
    host = intel.arc(tmp_path / "host")
    gpu = intel_gpus(str(host.path))[1]
    before = CardLook({"card": 100.0, "pkg": 5.0}, (client(1, 1000, 4000), client(2, 50, 4000)), True, 10.0)
    after = (client(1, 2000, 6000), client(1, 2000, 6000, pid=9), client(2, 50, 6000), client(3, 900, 6000))
    return reading(gpu, before, CardLook({"card": 130.0, "pkg": 4.0}, after, whole, 10.5), figures=True)


def test_load_and_power_are_differences_of_two_looks(tmp_path: Path) -> None:
    found = two_looks(tmp_path)
    assert (found.load, found.power, found.memory_used) == (50, 60.0, 3 << 20)
    assert found.processes == ((7, 3 << 20), (9, 1 << 20))


def test_what_is_not_seen_whole_is_not_known(tmp_path: Path) -> None:
    found = two_looks(tmp_path, whole=False)
    assert (found.load, found.power, found.memory_used) == (None, 60.0, None) and found.processes
    assert not [one for one in found.figures if one.name in ("hw_gpu_utilization_ratio", "hw_memory_usage_bytes")]


def test_figures_of_the_makers_exporter(tmp_path: Path) -> None:
    found = two_looks(tmp_path)
    assert found.labels == (("hw_id", intel.B580), ("pci_bdf", intel.B580))
    made = {(one.name, label): one.value for one in found.figures for label in one.labels}

    def value(name: str, label: str, text: str) -> float | None:
        return made.get((name, (label, text)))

    assert value("hw_gpu_utilization_ratio", "hw_gpu_task", "all") == 0.5
    assert value("hw_gpu_utilization_ratio", "hw_gpu_task", "compute-all") == 0.5
    assert value("hw_gpu_utilization_ratio", "hw_gpu_task", "copy-all") == 0.125
    assert value("hw_memory_size_bytes", "hw_memory_location", "device") == 12 * GIB
    assert value("hw_memory_usage_bytes", "hw_memory_location", "device") == 3 << 20
    assert value("hw_energy_joules_total", "hw_sensor_location", "card") == 812.345678
    assert value("hw_power_watts", "hw_sensor_location", "card") == 60.0
    assert value("hw_power_watts", "hw_sensor_location", "package") is None  # it was set back
    assert value("hw_power_limit_watts", "hw_sensor_location", "card") == 190.0
    assert value("hw_frequency_hertz", "hw_frequency_domain", "gpu") == 2450e6
    assert value("hw_temperature_celsius", "hw_sensor_location", "gpu") == 52.0
    assert value("hw_temperature_celsius", "hw_sensor_location", "memory") == 60.0
    assert value("hw_gpu_info", "pci_device_id", "e20b") == 1.0
    assert {one.name for one in found.figures} == set(FIELDS)
