"""Discovery and injection of the real NVIDIA libraries, on a machine without a GPU."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpurun.hook.driver import read_driver, roots_from_environment
from tests.conftest import MakeBundle
from tests.hook.real_driver import host_with_real_userspace
from tests.native.bundle import Bundle
from tests.native.runtime import ENVIRONMENT, Runtime
from tests.simdriver import SimulatedDriver

PYTHON = "/usr/bin/python3"
#: Without hardware the real libraries say: no device, and driver not loaded; the version needs no driver at all.
CUDA_ERROR_NO_DEVICE, NVML_ERROR_DRIVER_NOT_LOADED = 100, 9
PROGRAM = """
import ctypes
cuda, nvml, version = ctypes.CDLL("libcuda.so.1"), ctypes.CDLL("libnvidia-ml.so.1"), ctypes.c_int()
print(cuda.cuInit(0), nvml.nvmlInit_v2(), cuda.cuDriverGetVersion(ctypes.byref(version)), version.value)
"""


@pytest.fixture(scope="module")
def host(place: Path) -> Iterator[SimulatedDriver]:
    directory = Path(tempfile.mkdtemp(dir=place))
    directory.chmod(0o755)
    yield host_with_real_userspace(directory)
    shutil.rmtree(directory)


def test_discovery(host: SimulatedDriver) -> None:
    driver = read_driver(roots_from_environment(host.env), ("compute", "utility", "video"))
    found = {library.name: library.soname for library in driver.libraries}
    v = host.options.version
    assert driver.version == v
    for stem in ("libcuda", "libnvidia-ml", "libnvidia-cfg", "libnvidia-ptxjitcompiler", "libnvidia-encode", "libnvcuvid"):
        assert found[f"{stem}.so.{v}"] == f"{stem}.so.1"
    assert all("/nvidia/current/" in library.path for library in driver.libraries if library.name.startswith("libcuda"))
    smi = next(f for f in driver.files if f.path == "/usr/bin/nvidia-smi")
    assert smi.host_path == f"{host.path}/usr/lib/nvidia/current/nvidia-smi"


def add_python(bundle: Bundle, host: SimulatedDriver) -> None:
    """The host's Python and glibc in the rootfs; Python's library directory is bound, so that nothing large is copied."""
    probe = "import sys, _ctypes; print(sys.executable, _ctypes.__file__, 'python%d.%d' % sys.version_info[:2])"
    executable, extension, name = subprocess.run(
        [PYTHON, "-c", probe], capture_output=True, text=True, check=True
    ).stdout.split()
    libcuda = str(next(host.path.rglob("libcuda.so.*.*")))
    listing = "".join(
        subprocess.run(["ldd", os.path.realpath(p)], capture_output=True, text=True, check=True).stdout
        for p in (executable, extension, libcuda)
    )
    files = {word for line in listing.splitlines() for word in line.split() if word.startswith("/")} | {executable}
    for path in files:
        target = bundle.rootfs / path.lstrip("/")
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(os.path.realpath(path), target)
    (bundle.rootfs / "usr/lib" / name).mkdir(parents=True)
    bundle.mount(f"/usr/lib/{name}", f"/usr/lib/{name}", "rbind", "ro")


@pytest.mark.native
@pytest.mark.gpurun_only
def test_the_real_libraries_load_and_answer_in_a_container(
    runtime: Runtime, bundle: MakeBundle, host: SimulatedDriver
) -> None:
    if not os.access(PYTHON, os.X_OK):
        pytest.skip(f"{PYTHON} is what loads the libraries in the container")
    made = bundle()
    add_python(made, host)
    made.process["env"].append("NVIDIA_VISIBLE_DEVICES=all")
    out = runtime.output(made.args(PYTHON, "-c", PROGRAM), env=ENVIRONMENT | host.env)
    branch = {"470": 11040, "535": 12020, "550": 12040, "580": 13000}.get(host.options.version.partition(".")[0])
    answers = [int(word) for word in out.split()]
    assert answers[:3] == [CUDA_ERROR_NO_DEVICE, NVML_ERROR_DRIVER_NOT_LOADED, 0]
    assert branch is None or answers[3] == branch
