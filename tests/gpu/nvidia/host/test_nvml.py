"""NVML behind a process: what a library that is well says, and what becomes of one that hangs, crashes or is not there."""

from __future__ import annotations

import ctypes
import errno
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from gpurun.errors import ConfigError, GpuError
from gpurun.gpu.nvidia.host import nvml_counters, nvml_details, nvml_events, nvml_library, nvml_mig
from gpurun.gpu.nvidia.host.nvml import find_nvml, query
from gpurun.gpu.nvidia.host.nvml_watch import EventWatch, XidEvent
from gpurun.gpu.nvidia.host.roots import Roots
from gpurun.gpu.resolve import Inquiry, gpu_edits
from gpurun.linux import landlock
from tests.native.waiting import wait_until
from tests.nvml import compile_stub
from tests.simdriver import VERSION, Options, SimulatedDriver, bus_id, make, minor, uuid
from tests.source_tree import PACKAGE

#: What Landlock answers (EACCES); the rest is the filter's (EPERM), or what only a capability allows.
BY_LANDLOCK = {"write", "create", "mkdir", "unlink", "symlink", "sysctl"}


def children() -> set[str]:
    """The processes that this one has started and that are still there, zombies too."""
    return set(Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children").read_text().split())


def test_devices(tmp_path: Path) -> None:
    answer = query(str(compile_stub(tmp_path / "nvml.so", gpus=3)), "devices")
    assert {k: answer[k] for k in answer if k != "gpus"} == {
        "driverVersion": "999.88.77", "nvmlVersion": "13.999.88.77", "cudaVersion": "13.1", "memoryLimits": False,
    }  # fmt: skip
    assert [(g["index"], g["uuid"], g["busId"], g["minor"]) for g in answer["gpus"]] == [
        (i, uuid(i), bus_id(i), minor(i, 3)) for i in range(3)
    ]
    gpu = answer["gpus"][1]
    assert (gpu["brand"], gpu["architecture"], gpu["computeCapability"]) == ("nvidia", "Hopper", "9.0")
    assert gpu["migMode"] is None and answer["gpus"][0]["migMode"] is False
    assert [g["coherent"] for g in answer["gpus"]] == [False, True, None]
    assert "processes" not in gpu and "memoryUsed" not in gpu


def test_mig_devices(tmp_path: Path) -> None:
    gpu = query(str(compile_stub(tmp_path / "nvml.so", mig=True)), "usage")["gpus"][0]
    assert gpu["migMode"] is True and gpu["utilization"] is None
    fields = ("index", "gpuInstance", "computeInstance", "profile")
    assert [(*(m[f] for f in fields), m["uuid"][:12]) for m in gpu["migDevices"]] == [
        (0, 1, 0, "1g.10gb", "MIG-00000065"),
        (2, 2, 0, "1c.2g.20gb", "MIG-00000066"),
    ]
    assert gpu["processes"][1] == {
        "pid": 1001, "kind": "compute", "memory": 1 << 20, "gpuInstance": 1, "computeInstance": 0,
    }  # fmt: skip


def test_usage(tmp_path: Path) -> None:
    gpus = query(str(compile_stub(tmp_path / "nvml.so")), "usage")["gpus"]
    assert (gpus[0]["memoryTotal"], gpus[0]["memoryUsed"]) == (80 << 30, 3 << 30)
    assert gpus[1]["utilization"] == {"gpu": 42, "memory": 7} and gpus[1]["processes"] == []
    assert [p["pid"] for p in gpus[0]["processes"]] == list(range(1000, 1100))
    assert gpus[0]["processes"][0]["memory"] is None and gpus[0]["processes"][0]["gpuInstance"] is None


def test_an_old_library_knows_less(tmp_path: Path) -> None:
    answer = query(str(compile_stub(tmp_path / "nvml.so", mode="old")), "usage")
    gpu = answer["gpus"][0]
    assert answer["driverVersion"] is None and gpu["uuid"] == uuid(0) and gpu["name"] is None
    assert gpu["migMode"] is None and gpu["processes"] == [] and gpu["memoryTotal"] is None


def test_one_lost_gpu_does_not_hide_the_others(tmp_path: Path) -> None:
    gpus = query(str(compile_stub(tmp_path / "nvml.so", gpus=3, mode="lost")))["gpus"]
    assert [g.get("uuid") for g in gpus] == [uuid(0), None, uuid(2)]
    assert gpus[1] == {"index": 1, "error": "GPU is lost (nvmlDeviceGetHandleByIndex_v2: 15)"}


@pytest.mark.parametrize(
    ("mode", "words"),
    [
        ("hang", "gave no answer within 0.5 s"),
        ("crash", "crashed with signal 11"),
        ("unloaded", "Driver Not Loaded (nvmlInit_v2: 9)"),
    ],
)
def test_a_library_that_is_not_well(tmp_path: Path, mode: str, words: str) -> None:
    library = compile_stub(tmp_path / "nvml.so", mode=mode)
    before = children()
    with pytest.raises(GpuError) as caught:
        query(str(library), "devices", 0.5 if mode == "hang" else 60)
    assert words in str(caught.value) and str(library) in str(caught.value) and "\n" not in str(caught.value)
    assert children() == before
    assert not list(tmp_path.glob("core*"))


def test_no_library(tmp_path: Path) -> None:
    with pytest.raises(GpuError, match="cannot load the library"):
        query(str(tmp_path / "none.so"))
    (tmp_path / "text.so").write_text("no ELF")
    with pytest.raises(GpuError, match="cannot load the library"):
        query(str(tmp_path / "text.so"))


def test_nothing_of_the_library_reaches_the_answer_or_stays(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """It prints on stdout, and starts a process that would go on: the answer is whole, and the process is gone."""
    library = compile_stub(tmp_path / "nvml.so", mode="noisy")
    assert query(str(library))["gpus"][0]["uuid"] == uuid(0)
    assert capfd.readouterr() == ("", "")
    wait_until(lambda: not stays_behind())


def stays_behind() -> bool:
    """Whether the process that the stub starts is still there."""
    listed = subprocess.run(["ps", "-eo", "stat,comm"], capture_output=True, text=True, check=True).stdout
    return any(line.endswith("nvml-stub-stays") and not line.startswith("Z") for line in listed.splitlines())


@pytest.mark.skipif(
    landlock.interface() < 6 or os.geteuid() != 0, reason="needs root and a kernel with Landlock, interface 6"
)
def test_the_library_can_ask_the_driver_and_change_nothing(tmp_path: Path) -> None:
    (tmp_path / "there").write_text("as it was")
    (tmp_path / "there").chmod(0o644)
    with pytest.raises(GpuError) as caught:
        query(str(compile_stub(tmp_path / "nvml.so", mode="hostile")))
    tried = dict(word.split("=") for word in str(caught.value).split() if "=" in word)
    may = {what for what, error in tried.items() if error == "0"}
    assert may == {"read", "null", "unix"}
    assert {what: error for what, error in tried.items() if what not in may} == {
        what: str(errno.EPERM if what not in BY_LANDLOCK else errno.EACCES) for what in tried if what not in may
    }
    assert len(tried) == 21 and sorted(p.name for p in tmp_path.iterdir()) == ["nvml.so", "there"]
    assert (tmp_path / "there").read_text() == "as it was" and (tmp_path / "there").stat().st_mode & 0o777 == 0o644


def test_the_callers_environment_stays_outside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """LD_PRELOAD of whoever calls gpurun must not end in a process of root's that opens devices."""
    monkeypatch.setenv("LD_PRELOAD", str(compile_stub(tmp_path / "preloaded.so", mode="hang")))
    assert query(str(compile_stub(tmp_path / "nvml.so")), "devices", 60)["gpus"]


def with_library(driver: SimulatedDriver, **how: object) -> Roots:
    """The roots of *driver* with the stub in place of its libnvidia-ml."""
    made = next(driver.path.rglob(f"libnvidia-ml.so.{VERSION}"))
    made.unlink()
    compile_stub(made, gpus=driver.options.gpus, **how)  # type: ignore[arg-type]
    return Roots(sysroot=str(driver.path))


def test_the_library_is_found_in_the_driver_root(tmp_path: Path) -> None:
    roots = with_library(make(tmp_path / "host", Options(nodes=False)), mig=True)
    assert find_nvml(roots).startswith(str(tmp_path)) and find_nvml(roots).endswith(f"libnvidia-ml.so.{VERSION}")
    assert [(g["busId"], len(g["migDevices"])) for g in query(find_nvml(roots))["gpus"]] == [(bus_id(0), 2), (bus_id(1), 0)]


@pytest.mark.parametrize(("requirement", "met"), [("brand=nvidia", True), ("brand=tesla", False), ("arch>=10", False)])
def test_requirements_that_procfs_cannot_decide(tmp_path: Path, requirement: str, met: bool) -> None:
    driver = make(tmp_path / "host", Options(nodes=False))
    with_library(driver)
    env = ("NVIDIA_VISIBLE_DEVICES=0", f"NVIDIA_REQUIRE_CUDA={requirement}")
    if met:
        assert gpu_edits(Inquiry(env, {}, False, driver.env))
    else:
        with pytest.raises(ConfigError, match="requirement error: unsatisfied condition"):
            gpu_edits(Inquiry(env, {}, False, driver.env))


def test_a_requirement_is_not_held_against_a_gpu_when_nvml_is_not_well(tmp_path: Path) -> None:
    driver = make(tmp_path / "host", Options(nodes=False))
    with_library(driver, mode="crash")
    assert gpu_edits(Inquiry(("NVIDIA_VISIBLE_DEVICES=0", "NVIDIA_REQUIRE_CUDA=brand=tesla"), {}, False, driver.env))


@pytest.mark.parametrize("options", [Options(no_userspace=True, nodes=False), Options(no_module=True)])
def test_no_driver(tmp_path: Path, options: Options) -> None:
    with pytest.raises(GpuError, match="NVML cannot be asked"):
        find_nvml(Roots(sysroot=str(make(tmp_path / "host", options).path)))


def test_from_the_launcher(tmp_path: Path) -> None:
    """The one-file program starts its helper as well as the source tree does, also with descriptors closed."""
    program = Path(__file__).resolve().parents[4] / "build/gpurun"
    if not program.exists():
        pytest.fail("build/gpurun is missing: run `make build` first")
    driver = make(tmp_path / "host", Options(nodes=False))
    with_library(driver)
    done = subprocess.run(
        ["/bin/sh", "-c", f"exec {program} gpu list --processes --format json <&-"],
        env=driver.env, capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    assert json.loads(done.stdout)["gpus"][0]["memory"]["used"] == 3 << 30


def test_structures_are_those_of_nvidias_own_bindings() -> None:
    """nvidia-ml-py is the field's library; gpurun does not ship its 8000 lines, but must agree with them."""
    pynvml = pytest.importorskip("pynvml", reason="nvidia-ml-py is not installed")
    for ours, theirs in (
        (nvml_library.PciInfo, pynvml.nvmlPciInfo_t),
        (nvml_library.Memory, pynvml.c_nvmlMemory_t),
        (nvml_library.Utilization, pynvml.c_nvmlUtilization_t),
        (nvml_library.ProcessInfo, pynvml.c_nvmlProcessInfo_v3_t),
        (nvml_library.DeviceAttributes, pynvml.c_nvmlDeviceAttributes),
        (nvml_library.AddressingMode, pynvml.c_nvmlDeviceAddressingMode_t),
        (nvml_details.GpuInstanceInfo, pynvml.c_nvmlGpuInstanceInfo_t),
        (nvml_details.FieldValue, pynvml.c_nvmlFieldValue_t),
        (nvml_details.FabricInfo, pynvml.c_nvmlGpuFabricInfo_t),
        (nvml_events.EventData, pynvml.c_nvmlEventData_t),
        (nvml_mig.GpuInstanceProfileInfo, pynvml.c_nvmlGpuInstanceProfileInfo_t),
        (nvml_mig.ComputeInstanceProfileInfo, pynvml.c_nvmlComputeInstanceProfileInfo_t),
        (nvml_mig.ComputeInstanceInfo, pynvml.c_nvmlComputeInstanceInfo_t),
        (nvml_counters.MemoryV2, pynvml.c_nvmlMemory_v2_t),
        (nvml_counters.ViolationTime, pynvml.c_nvmlViolationTime_t),
        (nvml_counters.GpmSupport, pynvml.c_nvmlGpmSupport_t),
        (nvml_counters.GpmMetric, pynvml.c_nvmlGpmMetric_t),
    ):
        assert ctypes.sizeof(ours) == ctypes.sizeof(theirs)
        mine = [(name, getattr(ours, name).offset) for name, _ in ours._fields_]  # type: ignore[misc]
        assert mine == [(name, getattr(theirs, name).offset) for name, _ in theirs._fields_]
    assert pynvml.nvmlDeviceAddressingMode_v1 == ctypes.sizeof(nvml_library.AddressingMode) | 1 << 24
    assert pynvml.NVML_DEVICE_ADDRESSING_MODE_ATS == nvml_library.ADDRESSING_ATS
    brands = {v for k, v in vars(pynvml).items() if k.startswith("NVML_BRAND_") and k != "NVML_BRAND_COUNT"}
    assert set(nvml_library.BRANDS) == brands
    for number, name in nvml_library.ARCHITECTURES.items():
        assert getattr(pynvml, f"NVML_DEVICE_ARCH_{name.upper()}") == number


def test_numbers_are_those_of_nvidias_own_bindings() -> None:
    pynvml = pytest.importorskip("pynvml", reason="nvidia-ml-py is not installed")
    assert {
        "nvlinkFlitErrors": pynvml.NVML_FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL,
        "nvlinkDataErrors": pynvml.NVML_FI_DEV_NVLINK_CRC_DATA_ERROR_COUNT_TOTAL,
        "nvlinkReplays": pynvml.NVML_FI_DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL,
        "nvlinkRecoveries": pynvml.NVML_FI_DEV_NVLINK_RECOVERY_ERROR_COUNT_TOTAL,
        "nvlinkSentKib": pynvml.NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX,
        "nvlinkReceivedKib": pynvml.NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_RX,
    } == nvml_counters.FIELDS
    policies = ("POWER", "THERMAL", "SYNC_BOOST", "BOARD_LIMIT", "LOW_UTILIZATION", "RELIABILITY")
    assert [getattr(pynvml, f"NVML_PERF_POLICY_{name}") for name in policies] == list(nvml_counters.POLICIES.values())
    metrics = (
        "GRAPHICS_UTIL SM_UTIL SM_OCCUPANCY INTEGER_UTIL ANY_TENSOR_UTIL DFMA_TENSOR_UTIL HMMA_TENSOR_UTIL IMMA_TENSOR_UTIL "
        "DRAM_BW_UTIL FP64_UTIL FP32_UTIL FP16_UTIL PCIE_TX_PER_SEC PCIE_RX_PER_SEC NVLINK_TOTAL_RX_PER_SEC "
        "NVLINK_TOTAL_TX_PER_SEC"
    ).split()
    numbers = [number for number, _ in nvml_counters.GPM_METRICS.values()]
    assert [getattr(pynvml, f"NVML_GPM_METRIC_{name}") for name in metrics] == numbers
    assert pynvml.nvmlMemory_v2 == 2 << 24 | ctypes.sizeof(nvml_counters.MemoryV2)


def test_counters_of_the_metrics(tmp_path: Path) -> None:
    library = str(compile_stub(tmp_path / "nvml.so", events=tmp_path / "events"))
    answer = query(library, "metrics")
    first, second = (gpu["sensors"] for gpu in answer["gpus"])
    assert (first["powerViolation"], first["thermalViolation"]) == (3, 7000000000) and "boardLimitViolation" not in first
    assert (first["nvlinkFlitErrors"], first["nvlinkRecoveries"]) == (38, 59)  # 32 bits of a value with rubbish beside
    assert (first["nvlinkSentKib"], first["nvlinkReceivedKib"]) == ((1 << 33) + 138, (1 << 33) + 139)
    assert [first[f"ecc{name}"] for name in ("SbeVolatile", "DbeVolatile", "SbeAggregate", "DbeAggregate")] == [0, 10, 1, 11]
    assert first["memoryReserved"] == 512 << 20 and "pcieTx" not in first and "smActive" not in first
    assert answer["gpus"][1]["serial"] == "165002" and answer["nvmlVersion"] == "13.999.88.77"
    first, second = (gpu["sensors"] for gpu in query(library, "metrics", 10, ("pcie", "gpm"))["gpus"])
    assert (first["pcieTx"], second["pcieRx"]) == (1000, 1001)
    assert first["smActive"] == 0.02 and first["pcieRxBytes"] == 21 << 20 and "smActive" not in second
    assert "fp64Active" not in first and "fp32Active" not in first  # one is refused, the other is not a number
    assert "memoryReserved" not in query(str(compile_stub(tmp_path / "old.so", mode="old")), "metrics")["gpus"][0]["sensors"]


def test_details_are_the_links_and_places_of_the_gpus(tmp_path: Path) -> None:
    (tmp_path / "recovery").write_text("1")
    library = compile_stub(tmp_path / "nvml.so", gpus=4, mig=True, events=tmp_path / "events")
    first, second, third, _ = query(str(library), "details")["gpus"]
    assert first["memoryTotal"] == 80 << 30 and first["recoveryAction"] == "reset" and second["recoveryAction"] is None
    assert first["links"] == {"0000:17:00.0": 2} and third["links"] == {"0000:37:00.0": 2}
    assert first["topology"] == dict.fromkeys(("0000:17:00.0", "0000:27:00.0", "0000:37:00.0"), "node")
    mig = first["migDevices"][1]
    assert mig["placement"] == {"start": 4, "size": 2} and mig["attributes"]["gpuInstanceSliceCount"] == 2


def test_metrics_have_the_sensors_that_a_card_has(tmp_path: Path) -> None:
    library = compile_stub(tmp_path / "nvml.so", events=tmp_path / "events")
    gpu = query(str(library), "metrics")["gpus"][1]
    assert gpu["sensors"] == {
        "smClock": 1410, "memoryClock": 1593, "temperature": 33, "memoryTemperature": 44, "power": 71.5,
        "energy": 5000000000, "pcieReplays": 3, "encoder": 5, "correctableRows": 1, "uncorrectableRows": 2,
        "rowRemapFailure": 0, "memoryReserved": 512 << 20, "powerViolation": 3, "thermalViolation": 7000000000,
        "eccSbeVolatile": 0, "eccDbeVolatile": 10, "eccSbeAggregate": 1, "eccDbeAggregate": 11, "nvlinkFlitErrors": 38,
        "nvlinkDataErrors": 45, "nvlinkReplays": 52, "nvlinkRecoveries": 59, "nvlinkSentKib": (1 << 33) + 138,
        "nvlinkReceivedKib": (1 << 33) + 139,
    }  # fmt: skip
    assert gpu["utilization"] == {"gpu": 42, "memory": 7}
    assert query(str(compile_stub(tmp_path / "old.so")), "metrics")["gpus"][1]["sensors"] == {}


def test_events_come_as_they_happen(tmp_path: Path) -> None:
    events = tmp_path / "events"
    watch = EventWatch(str(compile_stub(tmp_path / "nvml.so", mig=True, events=events)))
    try:
        wait_until(lambda: list(watch.wait(0.2)) or watch.watching)
        assert watch.watching == (uuid(0), uuid(1))
        events.write_text("1 79 -1 -1\n0 13 1 0\n")
        found: list[XidEvent] = []

        def both_came() -> bool:
            found.extend(watch.wait(0.2))
            return len(found) > 1

        wait_until(both_came)
        assert found == [XidEvent(uuid(1), 79), XidEvent(uuid(0), 13, 1, 0)]
        with open(events, "a") as file:
            file.write("99 0 0 0\n")
        with pytest.raises(GpuError, match="GPU is lost"):
            list(watch.wait(20))
    finally:
        watch.close()


def test_no_events_are_told_as_an_error(tmp_path: Path) -> None:
    watch = EventWatch(str(compile_stub(tmp_path / "nvml.so", mode="unloaded")))
    try:
        with pytest.raises(GpuError, match=r"NVML error: Driver Not Loaded \(nvmlInit_v2: 9\)"):
            list(watch.wait(20))
    finally:
        watch.close()
    crashing = EventWatch(str(compile_stub(tmp_path / "crash.so", mode="crash")))
    try:
        with pytest.raises(GpuError, match="has ended"):
            list(crashing.wait(20))
    finally:
        crashing.close()


def test_the_helper_is_quick_to_start() -> None:
    """A create for free GPUs waits for it: nothing that it imports, imports ``re``, as ``json`` and ``typing`` do."""
    script = (
        f"import sys; sys.path.insert(0, {str(PACKAGE.parent)!r}); import gpurun.gpu.nvidia.host.nvml_process, "
        "gpurun.gpu.nvidia.host.nvml_details, gpurun.gpu.nvidia.host.nvml_events; print(*sorted(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-ISBc", script], capture_output=True, text=True, check=True)
    assert "ctypes" in done.stdout.split()
    assert not {"re", "json", "typing", "enum"} & set(done.stdout.split())
