"""A real GPU: what NVIDIA's own tools say of it, gpurun says too; CUDA works in containers; one GPU is one GPU."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gpurun.gpu.nvidia.host.driver import Driver, read_driver
from gpurun.gpu.nvidia.host.gpus import Gpu
from gpurun.gpu.nvidia.host.nvml import USAGE, find_nvml, query
from gpurun.gpu.nvidia.host.roots import Roots

from .place import Place, Unavailable, runtime

DRIVER = Path("/proc/driver/nvidia/version")
SMI = shutil.which("nvidia-smi")

pytestmark = [
    pytest.mark.native,
    pytest.mark.gpurun_only,
    pytest.mark.skipif(not DRIVER.exists(), reason=f"no NVIDIA driver here ({DRIVER} is not there)"),
]


@pytest.fixture(scope="module")
def driver() -> Driver:
    found = read_driver(Roots())
    if not found.gpus:
        pytest.skip("the NVIDIA driver is loaded and has no GPU")
    return found


@pytest.fixture(scope="module")
def gpus(driver: Driver) -> tuple[Gpu, ...]:
    """The GPUs that can be opened: a container may list more of them than it has nodes of."""
    usable = tuple([gpu for gpu in driver.gpus if gpu.node.exists])
    if not usable:
        pytest.skip(f"the driver lists {len(driver.gpus)} GPUs and none of their nodes is here")
    return usable


@pytest.fixture(scope="module")
def place() -> Iterator[Place]:
    with tempfile.TemporaryDirectory(dir="/var/tmp", prefix="gpurun-gpu.") as name:
        Path(name).chmod(0o755)
        programs = [SMI] if SMI else []
        try:
            made = Place(Path(name), programs, {"PATH": os.environ["PATH"]})
        except Unavailable as e:
            pytest.skip(str(e))
        print(f"containers are made {made.way}")
        yield made


def smi(*fields: str) -> list[list[str]]:
    """The *fields* of each GPU, as nvidia-smi tells them."""
    if SMI is None:
        pytest.skip("nvidia-smi is not on PATH")
    command = [SMI, f"--query-gpu={','.join(fields)}", "--format=csv,noheader,nounits"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    return [[cell.strip() for cell in line.split(",")] for line in done.stdout.splitlines()]


def program(*args: str) -> dict[str, Any]:
    """What the CUDA program says on the host."""
    command = [sys.executable, "-ISB", str(Path(__file__).with_name("vecadd.py")), *args]
    done = subprocess.run(command, capture_output=True, text=True, timeout=180, check=True)
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def same_bus(one: str, other: str) -> bool:
    return [int(n, 16) for n in re.split("[:.]", one)] == [int(n, 16) for n in re.split("[:.]", other)]


def test_cuda_works_on_this_machine() -> None:
    """If this fails, it is the machine and not gpurun."""
    answer = program()
    assert answer.get("init") == 0 and answer["sum"] == "right", answer


def test_procfs_agrees_with_nvidia_smi(driver: Driver, gpus: tuple[Gpu, ...]) -> None:
    rows = smi("index", "uuid", "pci.bus_id", "name", "driver_version")
    assert len(rows) == len(gpus)
    for row, gpu in zip(rows, gpus, strict=True):
        assert row[1] == gpu.uuid and same_bus(row[2], gpu.bus_id) and row[3] == gpu.model and row[4] == driver.version
    if len(gpus) == len(driver.gpus):
        assert [int(row[0]) for row in rows] == [gpu.index for gpu in gpus]


def test_nvml_agrees_with_nvidia_smi(gpus: tuple[Gpu, ...]) -> None:
    answer = query(find_nvml(Roots()), USAGE, 60)
    rows = smi("uuid", "compute_cap", "memory.total")
    assert [(g["uuid"], g["computeCapability"]) for g in answer["gpus"]] == [(row[0], row[1]) for row in rows]
    for told, row, gpu in zip(answer["gpus"], rows, gpus, strict=True):
        assert told["minor"] == gpu.minor and told["busId"].lower() == gpu.bus_id.lower()
        assert abs(told["memoryTotal"] / (1 << 20) - float(row[2])) < 1024
        assert told["brand"] and told["architecture"] and told["utilization"] is not None
    assert re.fullmatch(r"\d+\.\d+", str(answer["cudaVersion"]))


def call(directory: Path, *args: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([runtime(directory), *args], capture_output=True, text=True, timeout=120, check=False)


def test_every_file_that_a_container_would_get_is_there(tmp_path: Path, gpus: tuple[Gpu, ...]) -> None:
    words = (f"NVIDIA_VISIBLE_DEVICES={gpus[0].uuid}", "NVIDIA_DRIVER_CAPABILITIES=compute,utility")
    done = call(tmp_path, "gpu", "explain", "--json", *words)
    answer = json.loads(done.stdout)
    assert answer["error"] == "", done.stdout
    sources = [item["source"] for item in answer["items"] if item["kind"] == "file"]
    assert sources and not [source for source in sources if not os.path.exists(source)]
    assert any(item["path"] == "libcuda.so.1" for item in answer["items"])


def test_the_doctor_finds_the_driver_well(tmp_path: Path) -> None:
    findings = json.loads(call(tmp_path, "gpu", "doctor", "--format=json").stdout)
    of_the_driver = [f for f in findings if f["subject"] not in ("cgroup", "BPF", "configuration")]
    assert of_the_driver and not [f for f in of_the_driver if f["verdict"] == "fail"]


def test_who_uses_a_gpu(tmp_path: Path, gpus: tuple[Gpu, ...]) -> None:
    """A process with a CUDA context is found by what it has open."""
    command = [sys.executable, "-ISB", str(Path(__file__).with_name("vecadd.py")), "--hold"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        answer = json.loads(process.stdout.readline())
        done = call(tmp_path, "--root", str(tmp_path / "none"), "gpu", "list", "--processes", "--json")
        process.communicate("", timeout=60)
    assert answer.get("sum") == "right", answer
    listed = json.loads(done.stdout)
    assert process.pid in [p["pid"] for g in listed["gpus"] for p in g["processes"]], listed
    assert listed["nvml"] is None and all(g["memory"]["total"] for g in listed["gpus"])


def test_vector_addition_in_a_container(place: Place, gpus: tuple[Gpu, ...]) -> None:
    answer = place.program(f"NVIDIA_VISIBLE_DEVICES={gpus[0].uuid}", "NVIDIA_DRIVER_CAPABILITIES=compute,utility")
    assert answer.get("init") == 0 and answer["sum"] == "right", answer
    assert [device["uuid"] for device in answer["devices"]] == [gpus[0].uuid.removeprefix("GPU-")] or gpus[0].mig


def test_nvidia_smi_in_a_container(place: Place, gpus: tuple[Gpu, ...]) -> None:
    if SMI is None:
        pytest.skip("nvidia-smi is not on PATH")
    script = "import os; os.execvp('nvidia-smi', ['nvidia-smi', '-L'])"
    done = place.run(["-c", script], f"NVIDIA_VISIBLE_DEVICES={gpus[0].index}", "NVIDIA_DRIVER_CAPABILITIES=utility")
    assert done.returncode == 0, done.stderr + done.stdout
    assert [line for line in done.stdout.splitlines() if line.startswith("GPU ")] and gpus[0].uuid in done.stdout
    assert not [gpu.uuid for gpu in gpus[1:] if gpu.uuid in done.stdout]


def test_no_gpu_without_a_request(place: Place) -> None:
    look = "import os; print([n for n in os.listdir('/dev') if 'nvidia' in n], os.path.exists('/usr/bin/nvidia-smi'))"
    assert place.run(["-c", look]).stdout == "[] False\n"


def test_the_driver_without_a_gpu(place: Place, gpus: tuple[Gpu, ...]) -> None:
    """``none``: libcuda is there and finds no device."""
    answer = place.program("NVIDIA_VISIBLE_DEVICES=none")
    assert answer == {"init": 100}, answer


def test_a_gpu_that_was_not_asked_for_cannot_be_opened(place: Place, gpus: tuple[Gpu, ...]) -> None:
    """With a node made by hand, as root of the container: the device cgroup says no."""
    if not place.filters:
        pytest.skip(f"containers are made {place.way}: their devices are not filtered")
    minor = gpus[-1].minor
    script = (
        "import os, stat\n"
        "try:\n"
        f"    os.mknod('/root/other', stat.S_IFCHR | 0o666, os.makedev({gpus[-1].node.major}, {minor}))\n"
        "    os.open('/root/other', os.O_RDWR)\n"
        "    print('opened')\n"
        "except PermissionError as e:\n"
        "    print('refused', e.errno)\n"
        "finally:\n"
        "    os.path.exists('/root/other') and os.unlink('/root/other')\n"
    )
    asked = f"NVIDIA_VISIBLE_DEVICES={gpus[0].index}" if len(gpus) > 1 else "NVIDIA_VISIBLE_DEVICES=none"
    assert place.run(["-c", script], asked).stdout.startswith("refused")


def test_one_of_several(place: Place, gpus: tuple[Gpu, ...]) -> None:
    if len(gpus) < 2:
        pytest.skip("there is one GPU here; two are needed to leave one out")
    for gpu in gpus:
        answer = place.program(f"NVIDIA_VISIBLE_DEVICES={gpu.index}")
        assert answer.get("sum") == "right" and len(answer["devices"]) == 1, answer
        assert answer["devices"][0]["uuid"] == gpu.uuid.removeprefix("GPU-")


def test_mig_devices(place: Place) -> None:
    told = query(find_nvml(Roots()), "devices", 60)["gpus"]
    devices = [mig for gpu in told for mig in gpu.get("migDevices") or ()]
    if not devices:
        modes = ", ".join([f"GPU {g['index']}: {'on' if g.get('migMode') else 'off or not there'}" for g in told])
        pytest.skip(f"no MIG device here (MIG mode of {modes})")
    for mig in devices:
        answer = place.program(f"NVIDIA_VISIBLE_DEVICES={mig['uuid']}")
        assert answer.get("sum") == "right" and len(answer["devices"]) == 1, (mig, answer)
