"""The example bundles, run as they are in the repository: what a newcomer does first."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from gpurun.gpu.vendors import find_vendor
from tests.conftest import REPOSITORY, runtime_path
from tests.native.bed import Bed
from tests.native.bundle import Bundle
from tests.native.leaks import Leaks
from tests.native.listing import tree_listing
from tests.native.runtime import Runtime
from tests.simdriver import Options, make

pytestmark = pytest.mark.native

EXAMPLES = REPOSITORY / "examples/bundles"
CONTROLLERS = {"memory": "memory", "cpu": "cpu", "pids": "pids"}


def example(name: str, runtime: Runtime, bed: Bed) -> Bundle:
    """A copy of the example without the limits that this machine cannot set; the program and the rest are as they are."""
    directory = runtime.directory / name
    shutil.copytree(EXAMPLES / name, directory, symlinks=True)
    bundle = Bundle(directory, json.loads((directory / "config.json").read_text()))
    for limit, controller in CONTROLLERS.items():
        if controller not in bed.controllers:
            bundle.linux["resources"].pop(limit, None)
    return bundle


def test_hello(runtime: Runtime, bed: Bed, leaks: Leaks) -> None:
    out = runtime.output(example("hello", runtime, bed))
    assert "hostname  hello" in out
    assert "pid       1" in out


def test_limits(runtime: Runtime, bed: Bed, leaks: Leaks) -> None:
    out = runtime.output(example("limits", runtime, bed))
    lines = [line.strip() for line in out.splitlines()]
    limits = {"memory": f"memory       {512 << 20}", "cpu": "cpu          150000 100000", "pids": "processes    64"}
    for controller, line in limits.items():
        name = line.partition("  ")[0]
        shown = [found for found in lines if found.startswith(f"{name}  ")]
        assert shown == [line] if controller in bed.controllers else "lacks the controller" in shown[0], out


@pytest.mark.parametrize("name", ["hello", "limits", "gpu"])
def test_asks_for_nothing_unusual(name: str) -> None:
    """No path of a developer's machine, nothing that must be filled in first."""
    config = json.loads((EXAMPLES / name / "config.json").read_text())
    binds = [m["source"] for m in config["mounts"] if m["type"] == "bind"]
    assert binds == ["/usr"]
    assert config["process"]["terminal"] is False
    assert config["root"] == {"path": "rootfs", "readonly": True}


@pytest.mark.gpurun_only
def test_gpu(runtime: Runtime, bed: Bed, leaks: Leaks) -> None:
    driver = make(Path(tempfile.mkdtemp(dir=runtime.directory)), Options(gpus=2)).path
    bundle = example("gpu", runtime, bed)
    before = tree_listing(bundle.rootfs)
    result = runtime.run(bundle, env={"PATH": "/usr/bin:/bin", "GPURUN_SYSROOT": str(driver)})
    assert result.rc == 0, result.text
    for node in ("nvidia0", "nvidia1", "nvidiactl", "nvidia-uvm"):
        line = next(x for x in result.out.splitlines() if f"/dev/{node} " in x)
        assert "allowed" in line
    assert "denied" not in result.out
    assert "cuInit = 100" in result.out, "the library loads by its SONAME, and says that there is no hardware"
    assert "nvmlInit_v2 = 9" in result.out
    assert tree_listing(bundle.rootfs) == before, "nothing of the driver stays in the image"


@pytest.mark.gpurun_only
def test_gpu_without_a_driver(runtime: Runtime, bed: Bed, leaks: Leaks) -> None:
    empty = Path(tempfile.mkdtemp(dir=runtime.directory))
    bundle = example("gpu", runtime, bed)
    before = tree_listing(bundle.rootfs)
    result = runtime.run(bundle, env={"PATH": "/usr/bin:/bin", "GPURUN_SYSROOT": str(empty)})
    assert result.rc == 1
    assert result.err.count("\n") == 1
    assert "driver" in result.err
    assert tree_listing(bundle.rootfs) == before


#: Maker → what its demonstration shows of a simulated host.
DEMOS = {
    "nvidia": ("/dev/nvidia0", "libcuda.so.1"),
    "amd": (
        "amd:1   0000:63:00.0   0000:63:00.0   /dev/dri/renderD128   0      AMD Instinct MI210",
        "this copy of it asks for AMD's: AMD_VISIBLE_DEVICES=all.",
        "variable   AMD_VISIBLE_DEVICES=all",
        "/dev/dri/renderD129",
        "/dev/kfd",
        "groups     44 992",
    ),
    "intel": (
        "intel:1   0000:04:00.0   0000:04:00.0   /dev/dri/renderD129   1      Intel Arc B580",
        "this copy of it asks for Intel's: GPURUN_VISIBLE_DEVICES=all.",
        "variable   GPURUN_VISIBLE_DEVICES=0000:03:00.0,0000:04:00.0",
        "/dev/dri/renderD129",
        "/dev/dri/card1",
        "groups     44 992",
    ),
}


@pytest.mark.gpurun_only
@pytest.mark.parametrize("maker", DEMOS)
def test_demo(bed: Bed, maker: str) -> None:
    """What `make demo` shows; it runs outside the bed, on the machine as it is."""
    if runtime_path() != str(REPOSITORY / "build/gpurun"):
        pytest.skip("the demo shows build/gpurun")
    temporary = {p for p in Path(tempfile.gettempdir()).iterdir() if p.name.startswith("gpurun-demo.")}
    done = subprocess.run([REPOSITORY / "tools/demo", maker], capture_output=True, text=True, check=False, env=os.environ)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "hostname   gpu" in done.stdout
    assert "Exit code 0. Left in the image: nothing." in done.stdout
    simulated = not any(Path(probe).exists() for probe in find_vendor(maker).probes)
    assert ("(GPURUN_SYSROOT)" in done.stdout) is simulated, done.stdout
    if simulated:
        assert [text for text in DEMOS[maker] if text not in done.stdout] == []
        assert "allowed (no hardware behind it)" in done.stdout and "denied" not in done.stdout
    assert {p for p in Path(tempfile.gettempdir()).iterdir() if p.name.startswith("gpurun-demo.")} == temporary


def test_the_demo_needs_nothing_that_only_the_tests_install() -> None:
    """`make demo` is the first thing that a newcomer runs: here with the interpreter's own packages, and without pytest."""
    python = getattr(sys, "_base_executable", sys.executable)
    script = "import runpy, sys; sys.modules['pytest'] = None; sys.path[:0] = ['src', '.']; runpy.run_path('tools/demo.py')"
    done = subprocess.run([python, "-Ic", script], capture_output=True, text=True, cwd=REPOSITORY)
    assert (done.returncode, done.stderr) == (0, "")
