"""Discovery and injection of the real NVIDIA libraries, on a machine without a GPU."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpurun.gpu.nvidia.host.driver import read_driver
from gpurun.gpu.nvidia.host.roots import roots_from_environment
from gpurun.gpu.resolve import Inquiry, gpu_edits
from tests.conftest import MakeBundle
from tests.gpu.nvidia.host.real_driver import PACKAGES, files_of_packages, host_with_real_userspace
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


#: Files of the driver's packages that no container gets, and why.
NOT_INJECTED = {
    r"/etc/init\.d/.*|/lib/systemd/.*|/usr/lib/systemd/.*": "services of the host",
    r"/etc/nvidia/current/nvidia-[a-z-]+\.conf": "what the host's modprobe reads, but for the X server's, which is claimed",
    r"/etc/nvidia/nvidia-[0-9.]+": "a mark of Debian's, empty",
    r"/usr/bin/nvidia-modprobe": "loads modules and makes nodes of all GPUs with the rights of root: not for containers",
    r"/usr/sbin/nvidia-powerd": "a service of the host (Dynamic Boost)",
    r".*/nvidia-bug-report\.sh": "collects logs of the host",
    r".*/nvidia\.ids|.*\.gz|.*-key-documentation": "documentation",
    r".*/wine/.*\.dll": "for Proton, which looks for it in its own prefix",
}


def injected(host: SimulatedDriver, capabilities: str) -> dict[str, str]:
    """Path on the host, without the sysroot → path in the container, of the files that *capabilities* bring."""
    env = ("NVIDIA_VISIBLE_DEVICES=all", f"NVIDIA_DRIVER_CAPABILITIES={capabilities}")
    made = gpu_edits(Inquiry(env, {}, False, host.env))
    assert made is not None
    return {m.host_path.removeprefix(str(host.path)): m.container_path for m in made.mounts if m.kind == "file"}


def test_every_file_of_the_driver_is_claimed_or_left_out_for_a_reason(host: SimulatedDriver) -> None:
    claimed = injected(host, "all")
    packaged = [file for files in files_of_packages().values() for file in files]
    assert len(packaged) > 50
    left_out = [f for f in packaged if f not in claimed]
    assert not [f for f in left_out if not any(re.fullmatch(p, f) for p in NOT_INJECTED)]
    assert not [f for f in left_out if re.search(r"\.so(\.|$)", f)]  # no library is left out at all
    assert set(claimed) <= set(packaged)


@pytest.mark.parametrize("capability", ["utility", "compute", "video", "graphics", "ngx"])
def test_each_capability_brings_the_files_of_its_packages(host: SimulatedDriver, capability: str) -> None:
    """Debian has the driver in packages by purpose: who wrote the tables of capabilities is held against who packaged it."""
    wanted = {capability, "compute"} if capability == "video" else {capability}
    files = files_of_packages()
    mine = [(name, f) for name, capabilities in PACKAGES.items() if wanted & {*capabilities} for f in files.get(name, ())]
    # One package has files of two purposes: a program, and what OpenGL reads.
    expected = {f for name, f in mine if name != "nvidia-driver-bin" or ("profiles" in f) is (capability == "graphics")}
    found = set(injected(host, capability))
    assert found <= expected
    assert not [f for f in expected - found if not any(re.fullmatch(p, f) for p in NOT_INJECTED)]


@pytest.mark.parametrize("capability", ["utility", "compute", "video", "graphics", "ngx", "display", "all"])
def test_what_the_libraries_need_of_the_driver_is_there_too(host: SimulatedDriver, capability: str) -> None:
    """DT_NEEDED of every library: those of the driver itself are in the container under that name."""
    if not shutil.which("readelf"):
        pytest.skip("readelf is needed (binutils)")
    env = ("NVIDIA_VISIBLE_DEVICES=all", f"NVIDIA_DRIVER_CAPABILITIES={capability}")
    made = gpu_edits(Inquiry(env, {}, False, host.env))
    assert made is not None
    sonames = {entry.soname for entry in made.ldcache}
    of_the_driver = {library.soname for library in read_driver(roots_from_environment(host.env)).libraries}
    paths = [f"{host.path}{path}" for path in injected(host, capability) if ".so" in path]
    shown = subprocess.run(["readelf", "-dW", *paths], capture_output=True, text=True, check=True).stdout
    needed = {name for name in re.findall(r"\(NEEDED\).*\[(.*)\]", shown) if name in of_the_driver}
    assert needed <= sonames
    assert needed or capability in ("utility", "compute", "ngx")


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
