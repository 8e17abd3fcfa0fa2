"""GPU containers made by gpurun itself, on a simulated driver: what the container sees and may open, and what is left."""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import MakeBundle
from tests.native.bundle import Bundle
from tests.native.runtime import ENVIRONMENT, Runtime
from tests.simdriver import MULTIARCH, SimulatedDriver, bus_id, minor, uuid
from tests.simdriver.elf import shared_library

pytestmark = [pytest.mark.native, pytest.mark.gpurun_only]

LIB = f"usr/lib/{MULTIARCH[os.uname().machine]}/nvidia/current"
LOADERS = ("/lib64/ld-linux-x86-64.so.2", "/lib/ld-linux-aarch64.so.1")
OFF = {"GPURUN_GPU_CACHE": "off"}
OPEN = "for n in /dev/nvidia* $OTHER; do (: <>$n) 2>&1 && echo $n opened; done; rm -f $OTHER"
NO_DRIVER, DENIED = "No such device or address", "Operation not permitted"


@pytest.fixture
def run(runtime: Runtime, host: SimulatedDriver) -> Callable[..., str]:
    def call(bundle: Bundle) -> str:
        return runtime.output(bundle, env=ENVIRONMENT | host.env)

    return call


@pytest.fixture
def gpu(bundle: MakeBundle) -> Callable[..., Bundle]:
    def build(devices: str, *env: str) -> Bundle:
        made = bundle()
        made.process["env"] += [f"NVIDIA_VISIBLE_DEVICES={devices}", *env]
        return made.capabilities("CAP_MKNOD", "CAP_DAC_OVERRIDE")

    return build


def verdicts(out: str) -> dict[str, str]:
    return {
        line.split("create ")[1].partition(":")[0]: line.rpartition(": ")[2]
        for line in out.splitlines()
        if "create " in line
    }


@pytest.mark.parametrize("index", [0, 1])
def test_one_gpu_of_two(run: Callable[..., str], gpu: Callable[..., Bundle], index: int) -> None:
    out = run(
        gpu(str(index)).sh(
            f"ls /proc/driver/nvidia/gpus; nvidia-smi -L; OTHER=/root/x; mknod $OTHER c 195 {minor(1 - index, 2)}; {OPEN}"
        )
    )
    lines = out.splitlines()
    assert lines[0] == bus_id(index) and lines[1].startswith("GPU 0: ") and uuid(index) in lines[1]
    assert verdicts(out) == {
        f"/dev/nvidia{minor(index, 2)}": NO_DRIVER,
        "/dev/nvidiactl": NO_DRIVER,
        "/dev/nvidia-uvm": NO_DRIVER,
        "/dev/nvidia-uvm-tools": NO_DRIVER,
        "/root/x": DENIED,
    }


def test_the_discovery_is_remembered_once_the_driver_is_seconds_old(
    runtime: Runtime, host: SimulatedDriver, gpu: Callable[..., Bundle]
) -> None:
    """The containers are the same, whoever answers, and a GPU that goes is gone in the next one."""
    bundle = gpu("all").sh("nvidia-smi -L; cat /proc/mounts | cut -d' ' -f2-; ls /dev /dev/dri; cat /etc/ld.so.cache")
    first = runtime.run(bundle, env=ENVIRONMENT | host.env, globals_=["--debug"])
    assert first.rc == 0 and "answered by" not in first.err
    deadline = time.monotonic() + 60
    while True:
        now = runtime.run(bundle, env=ENVIRONMENT | host.env, globals_=["--debug"])
        assert (now.rc, now.out) == (0, first.out)
        if "GPU discovery: answered by" in now.err:
            break
        assert time.monotonic() < deadline, now.err
        time.sleep(0.2)
    assert "answered by" not in runtime.run(bundle, env=ENVIRONMENT | host.env | OFF, globals_=["--debug"]).err
    shutil.rmtree(host.path / "proc/driver/nvidia/gpus" / bus_id(1))
    left = runtime.run(bundle, env=ENVIRONMENT | host.env, globals_=["--debug"])
    assert left.rc == 0 and "answered by" not in left.err
    assert "GPU 1:" in first.out and "GPU 1:" not in left.out


def test_none_and_void(run: Callable[..., str], gpu: Callable[..., Bundle]) -> None:
    out = run(gpu("none").sh(f"nvidia-smi -L; ls /dev | grep nvidia; readlink /{LIB}/libcuda.so.1"))
    assert out.splitlines() == ["No devices found.", "nvidia-uvm", "nvidia-uvm-tools", "nvidiactl", "libcuda.so.999.88.77"]
    assert "nvidia" not in run(gpu("void").sh("ls /dev /usr; cat /proc/mounts"))


def test_nothing_of_the_mounts_can_be_written(run: Callable[..., str], gpu: Callable[..., Bundle]) -> None:
    files = f"/{LIB}/libcuda.so.1 /usr/bin/nvidia-smi /proc/driver/nvidia/params"
    out = run(gpu("all").sh(f"for f in {files}; do (: >>$f) 2>&1; done; grep -c . /proc/driver/nvidia/params; true"))
    assert out.count("Read-only file system") == 3


def test_user_namespace(run: Callable[..., str], gpu: Callable[..., Bundle]) -> None:
    out = run(gpu("all").user_namespace().sh(f"nvidia-smi -L; {OPEN}"))
    assert [line[:6] for line in out.splitlines()[:2]] == ["GPU 0:", "GPU 1:"]
    assert verdicts(out)["/dev/nvidia0"] == NO_DRIVER == verdicts(out)["/dev/nvidia-uvm"]


def test_read_only_rootfs(run: Callable[..., str], gpu: Callable[..., Bundle]) -> None:
    bundle = gpu("all")
    bundle.config["root"]["readonly"] = True
    assert "GPU 1:" in run(bundle.sh("nvidia-smi -L"))


def test_refused_before_anything_is_made(runtime: Runtime, host: SimulatedDriver, gpu: Callable[..., Bundle]) -> None:
    for devices, words in (("7", "7: unknown device"), ("MIG-1", "this host has no MIG devices")):
        assert words in runtime.refused(gpu(devices), env=ENVIRONMENT | host.env)


def test_no_driver_on_the_host(runtime: Runtime, gpu: Callable[..., Bundle], tmp_path: Path) -> None:
    text = runtime.refused(gpu("all"), env=ENVIRONMENT | {"GPURUN_SYSROOT": str(tmp_path)})
    assert "no NVIDIA driver" in text
    assert runtime.run(gpu("void"), env=ENVIRONMENT | {"GPURUN_SYSROOT": str(tmp_path)}).rc == 0


def test_a_container_that_may_be_without_gpus(
    runtime: Runtime, run: Callable[..., str], gpu: Callable[..., Bundle], host: SimulatedDriver, tmp_path: Path
) -> None:
    """It starts on a host that has none; where there are some it gets them, and what is wrong with them is told."""
    look = f"{OPEN}; echo end"
    assert "/dev/nvidia0" in verdicts(run(gpu("all", "GPURUN_GPU_OPTIONAL=true").sh(look)))
    nowhere = ENVIRONMENT | {"GPURUN_SYSROOT": str(tmp_path)}
    for value in ("true", "1"):
        container = runtime.run(gpu("all", f"GPURUN_GPU_OPTIONAL={value}").sh("ls /dev; echo end"), env=nowhere)
        assert container.rc == 0 and "end" in container.out and "nvidia" not in container.out
    for value in ("false", "", "maybe"):
        assert "no NVIDIA driver" in runtime.refused(gpu("all", f"GPURUN_GPU_OPTIONAL={value}"), env=nowhere)
    asked = gpu("all", "GPURUN_GPU_OPTIONAL=true", "NVIDIA_REQUIRE_DRIVER=driver>=1000")
    assert "driver>=1000" in runtime.refused(asked, env=ENVIRONMENT | host.env)
    for path in host.path.rglob("libnvidia-ml.so.*"):
        path.unlink()
    asked = gpu("all", "GPURUN_GPU_OPTIONAL=true", "NVIDIA_DRIVER_CAPABILITIES=utility")
    assert "libnvidia-ml.so" in runtime.refused(asked, env=ENVIRONMENT | host.env | OFF)


def test_the_containers_environment_does_not_choose_the_host(
    runtime: Runtime, gpu: Callable[..., Bundle], host: SimulatedDriver
) -> None:
    bundle = gpu("all", f"GPURUN_SYSROOT={host.path}")
    container = runtime.create(bundle, check=False)
    assert container.result.rc == 1 and str(host.path) not in container.result.text


def test_nvidias_own_hook_is_replaced(runtime: Runtime, run: Callable[..., str], gpu: Callable[..., Bundle]) -> None:
    """What dockerd adds for --gpus: run as well, it would do all a second time (here it would fail)."""
    fake = runtime.directory / "nvidia-container-runtime-hook"
    fake.write_text("#!/bin/sh\nexit 3\n")
    fake.chmod(0o755)
    bundle = gpu("all")
    bundle.config["hooks"] = {"prestart": [{"path": str(fake), "args": [fake.name, "prestart"], "env": []}]}
    assert "GPU 1:" in run(bundle.sh("nvidia-smi -L"))


def test_the_loader_finds_the_libraries_by_soname(run: Callable[..., str], gpu: Callable[..., Bundle]) -> None:
    """glibc's own loader, in the container, asked where it finds what a program needs: only the composed cache knows."""
    loader = next((p for p in LOADERS if os.path.exists(p)), None)
    if loader is None:
        pytest.skip("this host has no glibc")
    bundle = gpu("all")
    shutil.copy(loader, bundle.rootfs / "bin/ld.so")
    needed = ("libcuda.so.1", "libnvidia-ml.so.1", "libnvidia-nvvm.so.4")
    (bundle.rootfs / "probe.so").write_bytes(shared_library("probe.so", (), os.uname().machine, needed))
    out = run(bundle.sh("ld.so --list /probe.so"))
    found = dict(line.split()[0:3:2] for line in out.splitlines() if "=>" in line)
    assert found == {name: f"/{LIB}/{name}" for name in needed}


def test_explain_tells_every_edit_and_its_reason(
    runtime: Runtime, gpu: Callable[..., Bundle], host: SimulatedDriver
) -> None:
    bundle = gpu("0")
    bundle.write()
    result = runtime("explain", "--json", "--bundle", str(bundle.directory), env=ENVIRONMENT | host.env)
    assert result.rc == 0, result.text
    text = json.dumps(json.loads(result.out))
    assert "library of capability compute" in text and "/dev/nvidia1" in text


def failing_hook(bundle: Bundle) -> None:
    bundle.config["hooks"] = {"createContainer": [{"path": "/bin/false", "args": ["false"]}]}


@pytest.mark.parametrize(
    "break_it",
    [
        lambda bundle: bundle.args("/not/there"),
        failing_hook,
        lambda bundle: (bundle.rootfs / "etc/ld.so.cache").mkdir(),
    ],
    ids=["executable", "hook", "the edits themselves"],
)
def test_a_create_that_fails_later_leaves_the_image_as_it_was(
    runtime: Runtime, host: SimulatedDriver, gpu: Callable[..., Bundle], break_it: Callable[[Bundle], None]
) -> None:
    bundle = gpu("all")
    break_it(bundle)
    runtime.refused(bundle, env=ENVIRONMENT | host.env)
