"""Discovery on simulated drivers: whole ones, and each kind of half-installed one."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from gpurun.errors import GpuError
from gpurun.gpu.nvidia.host.driver import Driver, module_version, read_driver
from gpurun.gpu.nvidia.host.gpus import read_gpus
from gpurun.gpu.nvidia.host.roots import Roots, roots_from_environment
from tests.simdriver import VERSION, Options, SimulatedDriver, bus_id, make, minor, uuid

MakeSim = Callable[[Options], SimulatedDriver]


def roots(sim: SimulatedDriver) -> Roots:
    return roots_from_environment(sim.env)


def read(sim: SimulatedDriver, *capabilities: str) -> Driver:
    return read_driver(roots(sim), capabilities or ("compute", "utility"))


def names(driver: Driver) -> set[str]:
    return {library.name.partition(".so")[0] for library in driver.libraries}


def test_gpus(sim: SimulatedDriver) -> None:
    gpus = read(sim).gpus
    assert [(g.index, g.minor, g.uuid, g.bus_id, g.numa_node) for g in gpus] == [
        (i, minor(i, 2), uuid(i), bus_id(i), i % 2) for i in range(2)
    ]
    assert gpus[0].model == "NVIDIA A100-SXM4-40GB"
    assert [g.uuid for g in read_gpus(roots(sim))] == [g.uuid for g in gpus]


def test_index_is_pci_order_of_the_gpus_in_use(make_sim: MakeSim) -> None:
    sim = make_sim(Options(gpus=4))
    info = sim.path / "proc/driver/nvidia/gpus" / bus_id(1) / "information"
    info.write_text(info.read_text().replace("GPU Excluded:\t No", "GPU Excluded:\t Yes"))
    assert [(g.index, g.bus_id) for g in read(sim).gpus] == [(0, bus_id(0)), (1, bus_id(2)), (2, bus_id(3))]


def test_bus_ids_are_ordered_as_numbers(make_sim: MakeSim) -> None:
    sim = make_sim(Options(gpus=1))
    gpus = sim.path / "proc/driver/nvidia/gpus"
    os.rename(gpus / bus_id(0), gpus / "10000:01:00.0")
    (gpus / "0002:01:00.0").mkdir()
    (gpus / "0002:01:00.0/information").write_text("Device Minor: \t 5\nModel: \t\t X: a model\n")
    found = read_gpus(roots(sim))
    assert [g.bus_id for g in found] == ["0002:01:00.0", "10000:01:00.0"]
    assert (found[0].minor, found[0].model, found[0].uuid) == (5, "X: a model", "?")


@pytest.mark.parametrize("layout", ["debian", "rhel"])
@pytest.mark.parametrize("ldcache", [True, False])
def test_libraries_by_cache_and_by_directory(make_sim: MakeSim, layout: str, ldcache: bool) -> None:
    sim = make_sim(Options(layout=layout, ldcache=ldcache))
    driver = read(sim, "compute", "utility", "video", "graphics", "ngx")
    assert len(driver.libraries) == 22
    by_name = {library.name: library for library in driver.libraries}
    assert by_name[f"libnvidia-nvvm.so.{VERSION}"].soname == "libnvidia-nvvm.so.4"
    assert by_name[f"libGLX_nvidia.so.{VERSION}"].soname == "libGLX_nvidia.so.0"
    assert by_name["libnvidia-egl-gbm.so.1.1.2"].soname == "libnvidia-egl-gbm.so.1"
    for library in driver.libraries:
        assert library.host_path == str(sim.path) + library.path and Path(library.host_path).is_file()
        assert not Path(library.host_path).is_symlink()
    where = "/usr/lib64/" if layout == "rhel" else "/nvidia/current/"
    assert where in by_name[f"libcuda.so.{VERSION}"].path


def test_only_what_the_capabilities_need_is_read(sim: SimulatedDriver) -> None:
    utility = read(sim, "utility")
    assert names(utility) == {"libnvidia-ml", "libnvidia-cfg"}
    assert [n.path for n in utility.nodes] == ["/dev/nvidiactl"]
    assert {f.path for f in utility.files if f.kind == "binary"} == {
        "/usr/bin/nvidia-smi", "/usr/bin/nvidia-debugdump", "/usr/bin/nvidia-persistenced",
    }  # fmt: skip
    assert "libcuda" in names(read(sim, "video"))
    assert "libGLX_nvidia" in names(read(sim, "display"))
    assert read(sim, "display").gpus[0].drm and not read(sim, "compute").gpus[0].drm


@pytest.mark.skipif(os.uname().machine != "x86_64", reason="32-bit libraries of x86")
@pytest.mark.parametrize("ldcache", [True, False])
def test_32_bit_libraries(make_sim: MakeSim, ldcache: bool) -> None:
    sim = make_sim(Options(compat32=True, ldcache=ldcache))
    driver = read(sim, "compute", "compat32")
    found = [(x.path, x.soname, x.flags) for x in driver.libraries if x.compat32]
    assert found == [(f"/usr/lib/i386-linux-gnu/libcuda.so.{VERSION}", "libcuda.so.1", 0x0003)]
    assert not any(x.compat32 for x in read(sim, "compute").libraries)
    wide = next(x for x in driver.libraries if x.name.startswith("libcuda.so") and not x.compat32)
    assert wide.flags == 0x0303 and "i386" not in wide.path


def test_the_public_name_of_a_binary_behind_alternatives(sim: SimulatedDriver) -> None:
    smi = next(f for f in read(sim).files if f.path.endswith("nvidia-smi"))
    assert (smi.path, smi.host_path) == ("/usr/bin/nvidia-smi", f"{sim.path}/usr/lib/nvidia/current/nvidia-smi")


def test_services_and_firmware(make_sim: MakeSim) -> None:
    sim = make_sim(Options(mps=True))
    files = {f.path: f.kind for f in read(sim).files}
    assert files["/run/nvidia-persistenced/socket"] == "socket" and files["/tmp/nvidia-mps"] == "mps"
    assert files[f"/lib/firmware/nvidia/{VERSION}/gsp_ga10x.bin"] == "firmware"
    moved = read_driver(roots(sim), ("compute",), {"CUDA_MPS_PIPE_DIRECTORY": "/run/nvidia-persistenced"})
    assert "/run/nvidia-persistenced" in {f.path for f in moved.files}


def test_missing_nodes_are_known_by_their_numbers(make_sim: MakeSim) -> None:
    sim = make_sim(Options(nodes=False))
    driver = read(sim)
    uvm = next(n for n in driver.nodes if n.path == "/dev/nvidia-uvm")
    assert (uvm.major, uvm.minor, uvm.exists) == (510, 0, False)


def test_majors_of_older_drivers(make_sim: MakeSim) -> None:
    sim = make_sim(Options(nodes=False))
    devices = sim.path / "proc/devices"
    devices.write_text("Character devices:\n188 nvidia-frontend\n 77 nvidia-uvm\n\nBlock devices:\n195 nvidia\n")
    assert [(n.major, n.minor) for n in read(sim).nodes] == [(188, 255), (77, 0), (77, 1)]
    devices.write_text("Character devices:\n 77 nvidia-uvm\n\nBlock devices:\n")
    assert read(sim).nodes[0].major == 195


def test_a_node_that_is_another_device_is_refused(make_sim: MakeSim) -> None:
    sim = make_sim(Options(nodes=False))
    (sim.path / "dev").mkdir()
    (sim.path / "dev/nvidiactl").write_text("")
    with pytest.raises(GpuError, match=r"invalid device node: .*/dev/nvidiactl is not the character device 195:255"):
        read(sim)


def test_open_kernel_module(make_sim: MakeSim) -> None:
    sim = make_sim(Options())
    version = sim.path / "proc/driver/nvidia/version"
    version.write_text("NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.95.05  Release Build  (x)\n")
    assert module_version(roots(sim)) == "580.95.05"
    version.write_text("something else\n")
    assert module_version(roots(sim)) == VERSION  # from sysfs


@pytest.mark.parametrize(
    ("options", "capability", "message"),
    [
        (
            Options(no_module=True),
            "utility",
            r"driver not loaded: the libraries are installed \(.*version 999\.88\.77\).*modprobe nvidia",
        ),
        (
            Options(no_userspace=True),
            "utility",
            r"libraries not found: the kernel module 999\.88\.77 is loaded but libnvidia-ml\.so\.999",
        ),
        (Options(no_userspace=True), "compute", r"libcuda\.so\.999\.88\.77 is not under"),
        (Options(no_module=True, no_userspace=True), "utility", r"no NVIDIA driver: neither the kernel module"),
        (Options(no_uvm=True), "compute", r"nvidia-uvm not loaded: .*modprobe nvidia-uvm"),
        (
            Options(version_mismatch=True),
            "utility",
            r"version mismatch: the kernel module is 999\.88\.77, the libraries are 888\.66\.55",
        ),
    ],
)
def test_half_installed(make_sim: MakeSim, options: Options, capability: str, message: str) -> None:
    with pytest.raises(GpuError, match=message):
        read(make_sim(options), capability)


@pytest.mark.parametrize("capability", ["utility", "compute", "video", "graphics", "display", "ngx"])
def test_a_version_mismatch_is_found_for_every_capability(make_sim: MakeSim, capability: str) -> None:
    with pytest.raises(GpuError, match=r"the kernel module is 999\.88\.77, the libraries are 888\.66\.55"):
        read(make_sim(Options(version_mismatch=True)), capability)


def test_a_server_without_graphics_libraries(make_sim: MakeSim) -> None:
    sim = make_sim(Options(ldcache=False))
    for name in ("eglcore", "glcore", "glsi", "tls", "gpucomp", "allocator", "GLX_nvidia", "EGL_nvidia"):
        for file in [*sim.path.rglob(f"lib*{name}.so.{VERSION}")]:
            file.unlink()
    assert "libcuda" in names(read(sim, "compute", "graphics"))
    with pytest.raises(GpuError, match=r"any library \*\.so\.999\.88\.77 of capability graphics is not under"):
        read(sim, "graphics")


def test_utility_needs_no_uvm(make_sim: MakeSim) -> None:
    assert read(make_sim(Options(no_uvm=True)), "utility").gpus


def test_links_out_of_the_driver_root_lead_nowhere(make_sim: MakeSim, tmp_path: Path) -> None:
    sim = make_sim(Options(ldcache=False))
    outside = tmp_path / "outside.so"
    library = next(sim.path.rglob("libcuda.so.999.88.77"))
    os.rename(library, outside)
    library.symlink_to(f"../../../../../../../../../..{outside}")
    with pytest.raises(GpuError, match="libcuda"):
        read(sim)


@pytest.mark.parametrize("change", ["writable", "garbage", "machine"])
def test_a_library_that_cannot_be_the_drivers_is_left_out(make_sim: MakeSim, change: str) -> None:
    sim = make_sim(Options())
    library = next(sim.path.rglob("libcudadebugger.so.999.88.77"))
    if change == "writable":
        library.chmod(0o777)
    elif change == "garbage":
        library.write_bytes(b"")
    else:
        data = bytearray(library.read_bytes())
        data[18] ^= 1
        library.write_bytes(data)
    assert "libcudadebugger" not in names(read(sim)) and "libcuda" in names(read(sim))


def test_a_containerised_driver_has_its_own_dev(tmp_path: Path) -> None:
    host = make(tmp_path / "host", Options(no_userspace=True))
    inner = make(tmp_path / "host/run/nvidia/driver", Options(no_module=True, ldcache=False))
    driver = read_driver(Roots("/run/nvidia/driver", str(host.path)), ("utility",))
    assert driver.libraries[0].path.startswith("/usr/lib/")
    assert driver.libraries[0].host_path.startswith(str(inner.path))
    assert driver.nodes[0].host_path == f"{host.path}/dev/nvidiactl"
    (inner.path / "dev").mkdir()
    os.link(host.path / "dev/nvidiactl", inner.path / "dev/nvidiactl")
    assert (
        read_driver(Roots("/run/nvidia/driver", str(host.path)), ("utility",)).nodes[0].host_path.startswith(str(inner.path))
    )


def test_a_driver_root_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(GpuError, match="driver root /nowhere does not exist"):
        read_driver(Roots("/nowhere"), ("utility",))


def test_sysroot_is_taken_from_our_own_environment_only() -> None:
    assert roots_from_environment({}) == Roots("/", "")
    assert roots_from_environment({"GPURUN_SYSROOT": "/sim/"}, "/run/driver") == Roots("/run/driver", "/sim")
