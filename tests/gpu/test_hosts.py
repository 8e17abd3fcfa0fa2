"""Whole plans for every kind of host: number of GPUs, MIG, distributions, roots, WSL, Tegra; requests x capabilities."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from gpurun.errors import GpuError
from gpurun.gpu.nvidia.request.settings import Settings
from tests.gpu.planning import paths, plan
from tests.gpu.rendering import rendered, same_plan
from tests.simdriver import Options, SimulatedDriver, bus_id, make, make_tegra, make_thor, make_wsl, mig_uuid, uuid
from tests.simdriver.layouts import WSL_STORE

EIGHT_MIG = tuple((gpu, gi, 0) for gpu in (0, 7) for gi in (1, 2, 9))
DRIVER_ROOT = Settings(driver_root="/run/nvidia/driver")


@pytest.fixture(autouse=True)
def as_root() -> None:
    if os.geteuid() != 0:
        pytest.skip("the nodes of the simulated driver need root")


def split(path: Path) -> SimulatedDriver:
    """The driver's files in a root of their own, its devices on the host."""
    host = make(path, Options(gpus=2, no_userspace=True))
    make(path / "run/nvidia/driver", Options(gpus=0, layout="ubuntu", no_module=True))
    return host


def containerised(path: Path) -> SimulatedDriver:
    """The GPU operator's driver container: its root has the devices too, the host's /dev has none."""
    host = make(path, Options(gpus=2, no_userspace=True, nodes=False))
    make(path / "run/nvidia/driver", Options(gpus=2, layout="ubuntu"))
    return host


def cos(path: Path) -> SimulatedDriver:
    host = make(path, Options(gpus=2, no_userspace=True))
    make(path / "home/kubernetes/bin/nvidia", Options(gpus=0, layout="cos", no_module=True))
    return host


def of(**options: object) -> Callable[[Path], SimulatedDriver]:
    return lambda path: make(path, Options(**options))  # type: ignore[arg-type]


HOSTS: dict[str, tuple[Callable[[Path], SimulatedDriver], Settings]] = {
    "1-gpu": (of(gpus=1), Settings()),
    "4-gpus": (of(gpus=4), Settings()),
    "8-gpus": (of(gpus=8), Settings()),
    "8-gpus-mig": (of(gpus=8, mig=EIGHT_MIG), Settings()),
    "debian": (of(gpus=1, layout="debian", compat32=os.uname().machine == "x86_64"), Settings()),
    "ubuntu": (of(gpus=1, layout="ubuntu", mps=True), Settings()),
    "rhel": (of(gpus=1, layout="rhel"), Settings()),
    "arch": (of(gpus=1, layout="arch"), Settings()),
    "nixos": (of(gpus=1, layout="nixos"), Settings()),
    "cos": (cos, Settings(driver_root="/home/kubernetes/bin/nvidia")),
    "split-root": (split, DRIVER_ROOT),
    "containerised-driver": (containerised, DRIVER_ROOT),
    "wsl": (make_wsl, Settings()),
    "tegra": (make_tegra, Settings()),
    "thor": (make_thor, Settings()),
}
ASKED = {"1-gpu": "compute,utility", "4-gpus": "compute,utility", "8-gpus": "compute,utility", "8-gpus-mig": "utility"}


@pytest.mark.parametrize("name", HOSTS)
def test_the_plan_for_all_that_the_host_has(name: str, tmp_path: Path) -> None:
    """``all`` with all capabilities, or only some where many GPUs are what is looked at."""
    if name == "debian" and os.uname().machine != "x86_64":
        pytest.skip("32-bit libraries of x86")
    build, settings = HOSTS[name]
    host = build(tmp_path)
    made = plan(host, settings, "NVIDIA_VISIBLE_DEVICES=all", f"NVIDIA_DRIVER_CAPABILITIES={ASKED.get(name, 'all')}")
    same_plan(f"hosts/{name}", rendered(made, host))


@pytest.mark.parametrize("name", HOSTS)
def test_every_source_and_every_link_is_there(name: str, tmp_path: Path) -> None:
    """Whatever the layout: what is mounted exists and is what it is said to be, and links lead to what is mounted."""
    build, settings = HOSTS[name]
    made = plan(build(tmp_path), settings, "NVIDIA_VISIBLE_DEVICES=all", "NVIDIA_DRIVER_CAPABILITIES=all")
    for mount in made.mounts:
        source = Path(mount.host_path)
        assert source.is_dir() if mount.kind == "dir" else source.exists() and not source.is_dir()
        assert not source.is_symlink() and source.is_relative_to(tmp_path)
    targets = [m.container_path for m in made.mounts]
    assert len(set(targets)) == len(targets)
    assert not {link.path for link in made.links} & {*targets}
    there = {*targets, *[link.path for link in made.links], *[n.path for n in made.device_nodes]}
    for link in made.links:
        assert os.path.normpath(os.path.join(os.path.dirname(link.path), link.target)) in there
    assert {entry.path for entry in made.ldcache} <= there
    assert made.device_nodes and made.ldcache


#: Request → the environment's word for it, on a host with three GPUs of which the first is divided.
REQUESTS = {
    "none": "none",
    "all": "all",
    "index": "1",
    "uuid": uuid(1),
    "pci": bus_id(1),
    "two": "1,2",
    "divided": "0",
    "mig": f"MIG-{uuid(0)}/1/0",
    "mig-number": "2:0",
    "mig-and-gpu": f"MIG-{uuid(0)}/1/0,1",
}
CAPABILITIES = ("utility", "compute", "video", "graphics", "display", "ngx", "compat32,compute", "all")


def test_requests_by_capabilities(tmp_path: Path) -> None:
    """One line for each pair: device nodes, how many libraries, programs, other files, 32-bit ones, and what /proc shows."""
    host = make(tmp_path, Options(gpus=3, mig=((0, 1, 0), (0, 2, 0), (2, 0, 0)), compat32=True))
    lines = []
    for request, value in REQUESTS.items():
        for capabilities in CAPABILITIES:
            made = plan(host, Settings(), f"NVIDIA_VISIBLE_DEVICES={value}", f"NVIDIA_DRIVER_CAPABILITIES={capabilities}")
            nodes = " ".join([n.path.removeprefix("/dev/") for n in made.device_nodes])
            kinds = [m.reason.partition(" of ")[0] for m in made.mounts]
            counts = {k: kinds.count(k) for k in ("library", "32-bit library", "binary", "config", "module", "firmware")}
            shown = " ".join([b.container_path.removeprefix("/proc/driver/nvidia/") for b in made.proc_trees[0].binds])
            counted = " ".join([f"{n} {k}" for k, n in counts.items() if n])
            lines.append(f"{request} | {capabilities} | {nodes} | {counted} | {shown} | {len(made.warnings)}\n")
    head = "request | capabilities | nodes | files | /proc/driver/nvidia | warnings\n"
    same_plan("requests-by-capabilities", head + "".join(lines))


def test_a_mig_uuid_and_the_old_name_are_the_same_device(tmp_path: Path) -> None:
    """(UUIDs themselves need NVML: test_mig.py.)"""
    host = make(tmp_path, Options(gpus=1, mig=((0, 1, 0),)))
    by_number, by_instances = [
        plan(host, Settings(), f"NVIDIA_VISIBLE_DEVICES={v}", "NVIDIA_DRIVER_CAPABILITIES=utility")
        for v in ("0:0", f"MIG-{uuid(0)}/1/0")
    ]
    assert by_number == by_instances
    with pytest.raises(GpuError, match="only NVML can say"):
        plan(host, Settings(), f"NVIDIA_VISIBLE_DEVICES={mig_uuid(0, 1, 0)}", "NVIDIA_DRIVER_CAPABILITIES=utility")


def test_dev_root_and_library_directories_of_the_site(tmp_path: Path) -> None:
    host = make(tmp_path, Options(gpus=1, nodes=False, no_userspace=True))
    make(tmp_path / "driver", Options(gpus=1, layout="rhel", ldcache=False))
    os.rename(tmp_path / "driver/usr/lib64", tmp_path / "driver/opt")
    asked = ("NVIDIA_VISIBLE_DEVICES=0", "NVIDIA_DRIVER_CAPABILITIES=compute,utility")
    with pytest.raises(GpuError, match="libraries not found"):
        plan(host, Settings(driver_root="/driver"), *asked)
    made = plan(host, Settings(driver_root="/driver", library_dirs=("/opt",), dev_root="/elsewhere"), *asked)
    assert "/opt/libcuda.so.999.88.77" in [m.container_path for m in made.mounts]
    assert made.device_nodes[0].host_path == f"{tmp_path}/elsewhere/dev/nvidiactl"
    assert plan(host, Settings(driver_root="/driver", library_dirs=("/opt",)), *asked).device_nodes[0].host_path == (
        f"{tmp_path}/driver/dev/nvidiactl"
    )


def test_wsl_gives_the_libraries_of_the_capabilities(tmp_path: Path) -> None:
    host = make_wsl(tmp_path)
    utility = plan(host, Settings(), "NVIDIA_VISIBLE_DEVICES=all", "NVIDIA_DRIVER_CAPABILITIES=utility")
    assert {"libnvidia-ml.so.1", "libnvidia-ml_loader.so", "nvidia-smi", "libdxcore.so"} <= paths(utility)
    assert not {"libcuda.so.1.1", "libcuda_loader.so", "libnvidia-encode.so.1", "nvidia-readme.txt"} & paths(utility)
    compute = plan(host, Settings(), "NVIDIA_VISIBLE_DEVICES=all", "NVIDIA_DRIVER_CAPABILITIES=compute")
    assert "libcuda.so.1.1" in paths(compute) and not {"nvidia-smi", "libnvidia-ml.so.1"} & paths(compute)
    assert "libnvidia-encode.so.1" in paths(
        plan(host, Settings(), "NVIDIA_VISIBLE_DEVICES=all", "NVIDIA_DRIVER_CAPABILITIES=video")
    )
    assert [n.path for n in compute.device_nodes] == ["/dev/dxg"] and not compute.proc_trees
    assert plan(host, Settings(), "NVIDIA_VISIBLE_DEVICES=none").device_nodes == ()


def test_wsl_devices(tmp_path: Path) -> None:
    host = make_wsl(tmp_path)
    for device in ("0", uuid(0)):
        made = plan(host, Settings(), f"NVIDIA_VISIBLE_DEVICES={device}", "NVIDIA_GDS=enabled")
        assert [n.path for n in made.device_nodes] == ["/dev/dxg"]
        assert "under WSL all GPUs are one device" in made.warnings[0] and "gds" in made.warnings[1]
    for device in ("0:0", bus_id(0), f"MIG-{uuid(0)}/1/0"):
        with pytest.raises(GpuError, match=r"unknown device .*WSL"):
            plan(host, Settings(), f"NVIDIA_VISIBLE_DEVICES={device}")
    with pytest.raises(GpuError, match="WSL has no IMEX channels"):
        plan(host, Settings(), "NVIDIA_VISIBLE_DEVICES=all", "NVIDIA_IMEX_CHANNELS=0")


def test_wsl_after_an_update_of_the_driver_has_both_stores(tmp_path: Path) -> None:
    host = make_wsl(tmp_path, (WSL_STORE, WSL_STORE.replace("0123", "4567")))
    made = plan(host, Settings(), "NVIDIA_VISIBLE_DEVICES=all")
    assert len([m for m in made.mounts if m.container_path.endswith("libcuda.so.1.1")]) == 2


def test_wsl_without_the_driver_of_windows(tmp_path: Path) -> None:
    host = make_wsl(tmp_path, ())
    with pytest.raises(GpuError, match=r"no NVIDIA driver under WSL: there is no /usr/lib/wsl/drivers/\*/libcuda"):
        plan(host, Settings(), "NVIDIA_VISIBLE_DEVICES=all")
