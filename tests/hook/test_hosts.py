"""Whole plans for every kind of host: number of GPUs, MIG, distributions, roots, WSL, Tegra; requests x capabilities."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from gpurun.commands.cdi import generate_spec
from gpurun.errors import ConfigError, GpuError
from gpurun.hook.cdi_generate import GenerateOptions
from gpurun.hook.cdi_write import to_text
from gpurun.hook.edits import ContainerEdits
from gpurun.hook.gpu import gpu_edits
from gpurun.hook.host import Roots
from gpurun.hook.settings import Settings
from tests.hook.rendering import rendered, same_as_golden
from tests.simdriver import Options, SimulatedDriver, bus_id, make, make_tegra, make_wsl, mig_uuid, uuid
from tests.simdriver.layouts import WSL_STORE

EIGHT_MIG = tuple((gpu, gi, 0) for gpu in (0, 7) for gi in (1, 2, 9))
DRIVER_ROOT = Settings(driver_root="/run/nvidia/driver")


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
}
ASKED = {"1-gpu": "compute,utility", "4-gpus": "compute,utility", "8-gpus": "compute,utility", "8-gpus-mig": "utility"}


def plan(host: SimulatedDriver, settings: Settings, *env: str) -> ContainerEdits:
    made = gpu_edits(env, {}, False, host.env, settings)
    assert made is not None
    return made


@pytest.fixture(autouse=True)
def as_root() -> None:
    if os.geteuid() != 0:
        pytest.skip("the nodes of the simulated driver need root")


@pytest.mark.parametrize("name", HOSTS)
def test_the_plan_for_all_that_the_host_has(name: str, tmp_path: Path) -> None:
    """``all`` with all capabilities, or only some where many GPUs are what is looked at."""
    if name == "debian" and os.uname().machine != "x86_64":
        pytest.skip("32-bit libraries of x86")
    build, settings = HOSTS[name]
    host = build(tmp_path)
    made = plan(host, settings, "NVIDIA_VISIBLE_DEVICES=all", f"NVIDIA_DRIVER_CAPABILITIES={ASKED.get(name, 'all')}")
    same_as_golden(f"hosts/{name}", rendered(made, host))


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
    same_as_golden("requests-by-capabilities", head + "".join(lines))


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


def paths(made: ContainerEdits) -> set[str]:
    return {m.container_path.rpartition("/")[2] for m in made.mounts}


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


def test_tegra(tmp_path: Path) -> None:
    host = make_tegra(tmp_path)
    made = plan(host, Settings(), "NVIDIA_VISIBLE_DEVICES=0")
    assert made == plan(host, Settings(mode="csv"), "NVIDIA_VISIBLE_DEVICES=0")
    assert made.additional_gids == (44,) and "nvidia_icd.json" not in paths(made)
    every = plan(host, Settings(), "NVIDIA_VISIBLE_DEVICES=all", "NVIDIA_REQUIRE_JETPACK=csv-mounts=all")
    assert "nvidia_icd.json" in paths(every)
    assert plan(host, Settings(), "NVIDIA_VISIBLE_DEVICES=none").device_nodes == ()
    with pytest.raises(GpuError, match=r"^1: unknown device .*: the GPU of this Tegra is 0"):
        plan(host, Settings(), "NVIDIA_VISIBLE_DEVICES=1")


def test_tegra_without_lists(tmp_path: Path) -> None:
    host = make_tegra(tmp_path)
    with pytest.raises(GpuError, match=r"told by devices\.csv, .*/nowhere has none of them"):
        plan(host, Settings(csv_dir="/nowhere"), "NVIDIA_VISIBLE_DEVICES=0")
    (tmp_path / "etc/nv_tegra_release").unlink()
    assert plan(host, Settings(), "NVIDIA_VISIBLE_DEVICES=0")  # /sys tells it as well


@pytest.mark.parametrize("line", ["lib", "lib /x", "bin, /x", "lib, x", "lib, /a/../b", "lib,"])
def test_lines_that_are_none_of_a_list(tmp_path: Path, line: str) -> None:
    host = make_tegra(tmp_path)
    (tmp_path / "etc/nvidia-container-runtime/host-files-for-container.d/l4t.csv").write_text(f"# x\n{line}\n")
    with pytest.raises(ConfigError, match=r"l4t\.csv: line 2: is not one of dev, dir, lib, sym"):
        plan(host, Settings(), "NVIDIA_VISIBLE_DEVICES=0")


def test_patterns_in_the_lists_of_a_tegra(tmp_path: Path) -> None:
    host = make_tegra(tmp_path)
    plain = plan(host, Settings(), "NVIDIA_VISIBLE_DEVICES=0")
    lists = tmp_path / "etc/nvidia-container-runtime/host-files-for-container.d"
    (lists / "devices.csv").write_text("dev, /dev/nv*\n")
    directory = next((tmp_path / "usr/lib").glob("*-linux-gnu"))
    shown = f"/{directory.relative_to(tmp_path)}"
    (lists / "drivers.csv").write_text(f"lib, {shown}/tegra/lib*.so*\nsym, {shown}/te[g]ra/libcuda.so.?\n")
    (lists / "l4t.csv").write_text("lib, /nowhere/*.so\n")
    made = plan(host, Settings(), "NVIDIA_VISIBLE_DEVICES=0")
    assert [n.path for n in made.device_nodes] == ["/dev/nvhost-ctrl", "/dev/nvmap"]
    assert {"libcuda.so.1.1", "libnvrm_gpu.so"} <= paths(made)
    assert [link.path for link in made.links] == [f"{shown}/tegra/libcuda.so.1"]
    assert {n.path for n in made.device_nodes} == {n.path for n in plain.device_nodes}


@pytest.mark.parametrize(
    ("build", "devices", "path"), [(make_wsl, ["all"], "/dev/dxg"), (make_tegra, ["0", "all"], "/dev/nvmap")]
)
@pytest.mark.parametrize("mode", ["auto", "own"])
def test_cdi_files_of_other_platforms(
    tmp_path: Path, build: Callable[[Path], SimulatedDriver], devices: list[str], path: str, mode: str
) -> None:
    """What the file says is what a request gets, and gpurun reads its own file back."""
    host = build(tmp_path)
    own = "wsl" if build is make_wsl else "csv"
    asked = own if mode == "own" else mode
    spec = generate_spec(asked, Roots(sysroot=str(tmp_path)), GenerateOptions(), host.env).spec
    assert spec == generate_spec(asked, Roots(sysroot=str(tmp_path)), GenerateOptions(), host.env).spec
    assert [device.name for device in spec.devices] == devices
    assert [hook.args[1] for hook in spec.edits.hooks] == ["create-symlinks", "update-ldcache"]
    file = tmp_path / "etc/cdi/x.yaml"
    file.parent.mkdir(parents=True)
    file.write_text(to_text(spec, "yaml"))
    direct = plan(host, Settings(), "NVIDIA_VISIBLE_DEVICES=all", "NVIDIA_DRIVER_CAPABILITIES=all")
    read = plan(host, Settings(), f"NVIDIA_VISIBLE_DEVICES=nvidia.com/gpu={devices[0]}")
    assert path in [n.path for n in read.device_nodes] and paths(read) | {"tegra-egl"} >= paths(direct)
    assert {(n.path, n.major, n.minor) for n in read.device_nodes} == {
        (n.path, n.major, n.minor) for n in direct.device_nodes
    }
    assert {link.path for link in read.links} >= {link.path for link in direct.links}
    assert {entry.soname for entry in read.ldcache} >= {entry.soname for entry in direct.ldcache}


def test_lists_named_and_paths_left_out(tmp_path: Path) -> None:
    host = make_tegra(tmp_path)
    (tmp_path / "mine.csv").write_text("dev, /dev/nvmap\ndev, /dev/nvhost-ctrl\nlib, /etc/nv_tegra_release\n")
    options = GenerateOptions(csv_files=(f"{tmp_path}/mine.csv",), csv_ignored=("/dev/nvhost-*",))
    spec = generate_spec("csv", Roots(sysroot=str(tmp_path)), options, host.env).spec
    assert [n.path for n in spec.devices[0].edits.device_nodes] == ["/dev/nvmap"]
    assert [m.container_path for m in spec.edits.mounts] == ["/etc/nv_tegra_release"]
    with pytest.raises(ConfigError, match=r"nowhere\.csv: is not there"):
        generate_spec("csv", Roots(sysroot=str(tmp_path)), GenerateOptions(csv_files=("/nowhere.csv",)), host.env)
    options = GenerateOptions(csv_files=(f"{tmp_path}/mine.csv",), csv_ignored=("/dev/*",))
    with pytest.raises(GpuError, match="has none of the device nodes"):
        generate_spec("csv", Roots(sysroot=str(tmp_path)), options, host.env)
    with pytest.raises(GpuError, match="7: unknown device: the only device of this platform is 0"):
        generate_spec("csv", Roots(sysroot=str(tmp_path)), GenerateOptions(devices=("7",)), host.env)
