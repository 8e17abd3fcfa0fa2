"""A simulated NVIDIA driver: a tree that stands for ``/`` of a host with GPUs; point GPURUN_SYSROOT at it.

Nothing of it is NVIDIA's: the libraries are a few hundred bytes of our own, with the right names, SONAMEs and symbols, so
that dlopen works and ``cuInit`` says 100 (no device), as the real one does on a machine without a GPU.  The device
nodes are real: opening one gives ENXIO where the device cgroup allows it and EPERM where it does not.
"""

from __future__ import annotations

import os
import socket
import stat
from dataclasses import dataclass, field
from pathlib import Path

from gpurun.cdi.edits import CacheEntry
from gpurun.formats.ldcache import FLAGS_COMPAT32, FLAGS_NATIVE, compose

from . import tables
from .elf import shared_library
from .layouts import LAYOUTS, TEGRA_LISTS, WSL_FILES, WSL_STORE

VERSION = "999.88.77"
MULTIARCH = {"x86_64": "x86_64-linux-gnu", "aarch64": "aarch64-linux-gnu"}
MAJORS = {"nvidia": 195, "nvidia-modeset": 195, "drm": 226, "nvidia-caps": 235, "nvidia-uvm": 510}
#: Nodes beside the GPUs: GPUDirect Storage, InfiniBand, GDRCopy, NVSwitch, IMEX (channels 0 and 7 have nodes).
EXTRA_NODES = {
    "nvidia-fs0": (237, 0), "nvidia-fs1": (237, 1), "infiniband/uverbs0": (231, 192), "infiniband/rdma_cm": (10, 121),
    "gdrdrv": (236, 0), "nvidia-nvswitchctl": (239, 255), "nvidia-nvswitch0": (239, 0), "nvidia-nvlink": (240, 0),
    "nvidia-caps-imex-channels/channel0": (238, 0), "nvidia-caps-imex-channels/channel7": (238, 7),
}  # fmt: skip


@dataclass(frozen=True)
class Options:
    """What kind of driver: *layout* is a name of LAYOUTS; each ``no_*`` leaves one half out."""

    gpus: int = 2
    version: str = VERSION
    layout: str = "debian"
    machine: str = field(default_factory=lambda: os.uname().machine)
    ldcache: bool = True
    nodes: bool = True
    drm: bool = True
    mps: bool = False
    mps_programs: bool = False  # a stand-in for nvidia-cuda-mps-control that runs (mps.sh), in the place of a text
    compat32: bool = False  # 32-bit libraries as well (x86_64 only)
    no_userspace: bool = False
    no_module: bool = False
    no_uvm: bool = False
    major: int = MAJORS["nvidia"]  # another one keeps tests apart that look at all containers of this machine
    extras: bool = False  # the devices beside the GPUs
    mig: tuple[tuple[int, int, int], ...] = ()  # (GPU index, GPU instance, compute instance)
    version_mismatch: bool = False  # the libraries are of another version than the kernel module

    @property
    def library_version(self) -> str:
        return "888.66.55" if self.version_mismatch else self.version


@dataclass(frozen=True)
class SimulatedDriver:
    """The tree made: *path* for GPURUN_SYSROOT; *real_nodes* is false where mknod was not allowed (plain files then)."""

    path: Path
    options: Options
    real_nodes: bool

    @property
    def env(self) -> dict[str, str]:
        return {"GPURUN_SYSROOT": str(self.path)}


def uuid(index: int) -> str:
    """The UUID of the simulated GPU *index*."""
    return f"GPU-{index:08x}-5197-4a6f-8c59-0a1b2c3d4e5f"


def bus_id(index: int) -> str:
    """The PCI bus id of the simulated GPU *index*, in ascending order."""
    return f"0000:{7 + 16 * index:02x}:00.0"


def minor(index: int, count: int) -> int:
    """Minors run against the order of the bus ids, as they do on some real machines: no code may take one for the other."""
    return count - 1 - index


def mig_minor(gpu_minor: int, gi: int, ci: int | None = None) -> int:
    """The minor of the capability node of a GPU instance, or of a compute instance in it: as the real driver counts."""
    return 3 + 135 * gpu_minor + 9 * gi + (0 if ci is None else 1 + ci)


def mig_uuid(index: int, gi: int, ci: int) -> str:
    """The UUID of a simulated MIG device, which only NVML tells."""
    return f"MIG-{index:08x}-{gi:04x}-{ci:04x}-8c59-0a1b2c3d4e5f"


def make(path: Path, options: Options | None = None) -> SimulatedDriver:
    """Make the tree at *path*, which must not exist or be empty."""
    o = options or Options()
    path.mkdir(parents=True, exist_ok=True)
    real_nodes = o.nodes
    if not o.no_userspace:
        _userspace(path, o)
    if not o.no_module:
        _procfs(path, o)
        if o.nodes:
            real_nodes = _nodes(path, o)
    _sysfs(path, o)
    return SimulatedDriver(path, o, real_nodes)


def _write(path: Path, content: str | bytes, mode: int = 0o644) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    path.chmod(mode)


def _link(path: Path, target: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.symlink_to(target)


def _userspace(root: Path, o: Options) -> None:
    v = o.library_version
    layout = LAYOUTS[o.layout]

    def place(path: str) -> str:
        return path.replace("MA", MULTIARCH[o.machine]).replace("V", v)

    for link, target in layout.links:
        if target.startswith("usr/"):
            (root / target).mkdir(parents=True, exist_ok=True)
        _link(root / link, place(target))
    plain, current = place(layout.plain), place(layout.libs)
    entries = []
    for name, template in tables.SONAMES.items():
        soname = template.replace("V", v)
        directory = plain if name.removeprefix("libnvidia-") in tables.DEBIAN_PLAIN else current
        if name == "libvdpau_nvidia" and layout.vdpau:
            directory += f"/{layout.vdpau}"
        file = f"{name}.so.{v}"
        data = shared_library(soname, tables.functions(name, v), o.machine, tables.NEEDED.get(name, ()))
        _write(root / directory / file, data)
        if soname != file:
            _link(root / directory / soname, file)
        entries.append(CacheEntry(soname, f"/{directory}/{soname}", FLAGS_NATIVE[o.machine]))
        if name in tables.DEV_LINKS:
            _link(root / directory / f"{name}.so", soname)
            entries.append(CacheEntry(f"{name}.so", f"/{directory}/{name}.so", FLAGS_NATIVE[o.machine]))
        if name == "libcuda" and layout.alternatives:
            # update-alternatives: an absolute link out of the public directory
            _link(root / plain / soname, f"/etc/alternatives/glx--{soname}")
            _link(root / "etc/alternatives" / f"glx--{soname}", f"/{current}/{soname}")
    for file, soname in tables.UNVERSIONED.items():
        _write(root / plain / file, shared_library(soname, (), o.machine))
        if file != soname:
            _link(root / plain / soname, file)
        entries.append(CacheEntry(soname, f"/{plain}/{soname}", FLAGS_NATIVE[o.machine]))
    if o.compat32:
        entries += _compat32(root, v, layout.libs32)
    if o.ldcache and layout.ldcache:
        _write(root / "etc/ld.so.cache", compose(None, tuple(entries)))
    bins = place(layout.bins)
    for name in tables.BIN:
        text = tables.NVIDIA_SMI if name == "nvidia-smi" else f"#!/bin/sh\necho {name} {v}\n"
        if o.mps_programs and name == "nvidia-cuda-mps-control":
            text = Path(__file__).with_name("mps.sh").read_text(encoding="utf-8").replace("@LOG@", f"{root}/mps.log")
        if layout.alternatives and name == "nvidia-smi":
            _write(root / "usr/lib/nvidia/current/nvidia-smi", text, 0o755)
            _link(root / "usr/bin/nvidia-smi", "/etc/alternatives/nvidia--nvidia-smi")
            _link(root / "etc/alternatives/nvidia--nvidia-smi", "/usr/lib/nvidia/current/nvidia-smi")
        else:
            _write(root / f"{bins}/{name}", text, 0o755)
    for name in ("gsp_ga10x.bin", "gsp_tu10x.bin"):
        _write(root / f"{'lib' if o.layout == 'cos' else 'usr/lib'}/firmware/nvidia/{v}/{name}", b"simulated firmware\n")
    share, etc = place(layout.share), place(layout.etc)
    _write(root / place(layout.vulkan), '{"ICD": {"library_path": "libGLX_nvidia.so.0"}}\n')
    _write(root / f"{share}/glvnd/egl_vendor.d/10_nvidia.json", '{"ICD": {"library_path": "libEGL_nvidia.so.0"}}\n')
    _write(root / f"{share}/egl/egl_external_platform.d/15_nvidia_gbm.json", "{}\n")
    _write(root / f"{share}/X11/xorg.conf.d/10-nvidia.conf", "Section\n")
    _write(root / f"{etc}/OpenCL/vendors/nvidia.icd", "libnvidia-opencl.so.1\n")
    _write(root / f"{place(layout.optix)}/nvoptix.bin", b"weights")
    drivers, extensions = [place(m) for m in layout.modules]
    _write(root / drivers / "nvidia_drv.so", shared_library("", (), o.machine))
    _write(root / extensions / f"libglxserver_nvidia.so.{v}", shared_library("", (), o.machine))
    _socket(root / "run/nvidia-persistenced/socket")
    _link(root / "var/run", "../run")
    if o.mps:
        (root / "tmp/nvidia-mps").mkdir(parents=True)
        _write(root / "tmp/nvidia-mps/control", b"")


def _compat32(root: Path, version: str, directory: str) -> list[CacheEntry]:
    """The 32-bit libcuda, as a multilib host has it."""
    for name in ("libcuda", "libnvidia-ml"):
        soname = tables.SONAMES[name]
        _write(root / directory / f"{name}.so.{version}", shared_library(soname, tables.functions(name, version), "i386"))
        _link(root / directory / soname, f"{name}.so.{version}")
    return [CacheEntry(s, f"/{directory}/{s}", FLAGS_COMPAT32["x86_64"]) for s in ("libcuda.so.1", "libnvidia-ml.so.1")]


def make_wsl(path: Path, stores: tuple[str, ...] = (WSL_STORE,)) -> SimulatedDriver:
    """A WSL 2 system at *path*: /dev/dxg and the driver *stores*."""
    machine = os.uname().machine
    for store in stores:
        for name, soname in WSL_FILES.items():
            stem = name.partition(".so")[0]
            data = shared_library(soname, tables.functions(stem, VERSION), machine) if soname else b"#!/bin/sh\necho wsl\n"
            _write(path / store / name, data, 0o755)
    _write(path / "usr/lib/wsl/drivers/of_another_vendor.inf_amd64_1/libd3d.so", shared_library("libd3d.so", (), machine))
    _write(path / "usr/lib/wsl/lib/libdxcore.so", shared_library("libdxcore.so", (), machine))
    _write(path / "proc/devices", "Character devices:\n 10 misc\n\nBlock devices:\n")
    return SimulatedDriver(path, Options(gpus=0), _mknod(path / "dev/dxg", 10, 125))


def make_tegra(path: Path) -> SimulatedDriver:
    """A Jetson at *path*: lists of files, and the files."""
    machine = os.uname().machine
    for name, text in TEGRA_LISTS.items():
        file = path / "etc/nvidia-container-runtime/host-files-for-container.d" / name
        _write(file, text.replace("MA", MULTIARCH[machine]))
    libs = path / "usr/lib" / MULTIARCH[machine]
    _write(libs / "tegra/libcuda.so.1.1", shared_library("libcuda.so.1", tables.functions("libcuda", VERSION), machine))
    _write(libs / "tegra/libnvrm_gpu.so", shared_library("libnvrm_gpu.so", (), machine))
    _link(libs / "tegra/libcuda.so.1", "libcuda.so.1.1")
    _link(libs / "libcuda.so", "tegra/libcuda.so.1")
    _write(libs / "tegra-egl/ld.so.conf", "")
    _link(libs / "tegra-egl/link", "ld.so.conf")
    _write(path / "etc/nv_tegra_release", "# R36 (release), REVISION: 4.0\n")
    _write(path / "etc/vulkan/icd.d/nvidia_icd.json", "{}\n")
    _write(path / "sys/devices/soc0/family", "Tegra\n")
    _write(path / "proc/devices", "Character devices:\n\nBlock devices:\n")
    real = _mknod(path / "dev/nvhost-ctrl", 508, 0) and _mknod(path / "dev/nvmap", 10, 55)
    if real:
        os.chown(path / "dev/nvmap", 0, 44)
        (path / "dev/nvmap").chmod(0o660)
    return SimulatedDriver(path, Options(gpus=0), real)


THOR_MODELS = ("NVIDIA Thor", "NVIDIA RTX PRO 6000 Blackwell")


def make_thor(path: Path, cards: int = 1) -> SimulatedDriver:
    """A Thor at *path*, whose own GPU the driver of graphics cards serves as well, with *cards* of them beside it."""
    host = make_tegra(path)
    options = Options(gpus=1 + cards, version="580.00")
    lists = path / "etc/nvidia-container-runtime/host-files-for-container.d"
    shared = "".join(f"dev, /dev/{name}\n" for name in ("nvidia0", "nvidia1", "nvidiactl", "nvidia-uvm", "nvmap"))
    _write(lists / "devices.csv", shared)
    gpus = path / "proc/driver/nvidia/gpus"
    _write(path / "proc/driver/nvidia/version", "NVRM version: NVIDIA UNIX Open Kernel Module for aarch64  580.00  x\n")
    _write(path / "proc/driver/nvidia/params", tables.PARAMS)
    for i in range(1 + cards):
        bus = f"0000:{1 + 2 * i:02x}:00.0"
        text = information(i, options).replace(tables.MODELS[i % len(tables.MODELS)], THOR_MODELS[min(i, 1)])
        text = text.replace(f"Device Minor: \t {minor(i, options.gpus)}", f"Device Minor: \t {i}").replace(bus_id(i), bus)
        _write(gpus / bus / "information", text)
    majors = "195 nvidia\n195 nvidiactl\n510 nvidia-uvm"
    _write(path / "proc/devices", f"Character devices:\n{majors}\n\nBlock devices:\n")
    made = [_mknod(path / f"dev/nvidia{n}", 195, n) for n in range(3)]
    numbers = {"nvidiactl": (195, 255), "nvidia-uvm": (510, 0), "nvidia-uvm-tools": (510, 1)}
    made += [_mknod(path / "dev" / name, *number) for name, number in numbers.items()]
    return SimulatedDriver(path, options, host.real_nodes and all(made))


def _mknod(path: Path, major: int, number: int) -> bool:
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        os.mknod(path, stat.S_IFCHR | 0o666, os.makedev(major, number))
    except PermissionError:
        return False
    path.chmod(0o666)
    return True


def _socket(path: Path) -> None:
    """A bound socket; the address goes through a descriptor, because sun_path holds 108 bytes and pytest's paths more."""
    path.parent.mkdir(parents=True)
    directory = os.open(path.parent, os.O_PATH)
    try:
        with socket.socket(socket.AF_UNIX) as s:
            s.bind(f"/proc/self/fd/{directory}/{path.name}")
    finally:
        os.close(directory)


def _procfs(root: Path, o: Options) -> None:
    nvidia = root / "proc/driver/nvidia"
    _write(
        nvidia / "version",
        f"NVRM version: NVIDIA UNIX {o.machine} Kernel Module  {o.version}  Thu Jan  1 00:00:00 UTC 2026\n"
        "GCC version:  gcc version 12.2.0\n",
    )
    _write(nvidia / "params", tables.PARAMS)
    _write(nvidia / "registry", 'Binary: ""\n')
    (nvidia / "gpus").mkdir()
    for i in range(o.gpus):
        _write(nvidia / "gpus" / bus_id(i) / "information", information(i, o))
    registered = (
        MAJORS
        | {"nvidia": o.major, "nvidia-modeset": o.major}
        | ({"nvidia-caps-imex-channels": 238, "nvidia-nvswitch": 239} if o.extras else {})
    )
    lines = [f"{number:3d} {name}" for name, number in registered.items() if not (o.no_uvm and name == "nvidia-uvm")]
    if o.mig:
        _mig(root, o)
    _write(root / "proc/devices", "Character devices:\n  1 mem\n" + "\n".join(lines) + "\n\nBlock devices:\n259 blkext\n")


def _mig(root: Path, o: Options) -> None:
    """The capability files, and the table of minors, which lists all there could be of these GPUs."""
    lines = ["config 1", "monitor 2"]
    for n in range(o.gpus):
        for gi in range(15):
            lines.append(f"gpu{n}/gi{gi}/access {mig_minor(n, gi)}")
            lines += [f"gpu{n}/gi{gi}/ci{ci}/access {mig_minor(n, gi, ci)}" for ci in range(8)]
    _write(root / "proc/driver/nvidia-caps/mig-minors", "\n".join(lines) + "\n")
    capabilities = root / "proc/driver/nvidia/capabilities"
    files = {"mig/config": (1, 0o400), "mig/monitor": (2, 0o444)}
    for index, gi, ci in o.mig:
        n = minor(index, o.gpus)
        files[f"gpu{n}/mig/gi{gi}/access"] = (mig_minor(n, gi), 0o444)
        files[f"gpu{n}/mig/gi{gi}/ci{ci}/access"] = (mig_minor(n, gi, ci), 0o444)
    for name, (number, mode) in files.items():
        _write(capabilities / name, f"DeviceFileMinor: {number}\nDeviceFileMode: {mode}\nDeviceFileModify: 1\n", 0o444)


def information(index: int, o: Options) -> str:
    """``/proc/driver/nvidia/gpus/*/information`` as the kernel module writes it."""
    return (
        f"Model: \t\t {tables.MODELS[index % len(tables.MODELS)]}\n"
        f"IRQ:   \t\t {150 + index}\n"
        f"GPU UUID: \t {uuid(index)}\n"
        "Video BIOS: \t 92.00.45.00.03\n"
        "Bus Type: \t PCIe\n"
        "DMA Size: \t 47 bits\n"
        "DMA Mask: \t 0x7fffffffffff\n"
        f"Bus Location: \t {bus_id(index)}\n"
        f"Device Minor: \t {minor(index, o.gpus)}\n"
        f"GPU Firmware: \t {o.version}\n"
        "GPU Excluded:\t No\n"
    )


def _nodes(root: Path, o: Options) -> bool:
    wanted = {"nvidiactl": (o.major, 255), "nvidia-modeset": (o.major, 254)}
    if not o.no_uvm:
        wanted |= {"nvidia-uvm": (510, 0), "nvidia-uvm-tools": (510, 1)}
    wanted |= {f"nvidia{minor(i, o.gpus)}": (o.major, minor(i, o.gpus)) for i in range(o.gpus)}
    if o.drm:
        for i in range(o.gpus):
            wanted |= {f"dri/card{i}": (226, i), f"dri/renderD{128 + i}": (226, 128 + i)}
    if o.mig:
        caps = {1, 2} | {mig_minor(minor(i, o.gpus), gi) for i, gi, _ in o.mig}
        caps |= {mig_minor(minor(i, o.gpus), gi, ci) for i, gi, ci in o.mig}
        wanted |= {f"nvidia-caps/nvidia-cap{number}": (235, number) for number in sorted(caps)}
        (root / "dev/nvidia-caps").mkdir(parents=True)
    if o.extras:
        wanted |= EXTRA_NODES
        for directory in ("dev/infiniband", "dev/nvidia-caps-imex-channels", "run/udev/data"):
            (root / directory).mkdir(parents=True)
        _write(root / "etc/cufile.json", "{}\n")
    (root / "dev/dri").mkdir(parents=True)
    for name, (major, number) in wanted.items():
        node = root / "dev" / name
        mode = 0o660 if name.startswith("dri/") else 0o666
        if name.startswith("nvidia-caps/"):
            mode = 0o400 if number == 1 else 0o444
        try:
            os.mknod(node, stat.S_IFCHR | mode, os.makedev(major, number))
        except PermissionError:
            return False
        node.chmod(mode)
        if name.startswith("dri/"):
            os.chown(node, 0, 44 if "card" in name else 105)
    return True


def _sysfs(root: Path, o: Options) -> None:
    for i in range(o.gpus):
        pci = root / "sys/bus/pci/devices" / bus_id(i)
        for name, value in (("vendor", "0x10de"), ("device", "0x20b0"), ("class", "0x030200"), ("numa_node", str(i % 2))):
            _write(pci / name, value + "\n")
        if o.drm:
            _write(pci / f"drm/card{i}/dev", f"226:{i}\n")
            _write(pci / f"drm/renderD{128 + i}/dev", f"226:{128 + i}\n")
    if not o.no_module:
        _write(root / "sys/module/nvidia/version", o.version + "\n")
