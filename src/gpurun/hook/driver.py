"""What NVIDIA driver and GPUs this host has, read from procfs, sysfs and the driver's own files.  Changes nothing.

NVML is not used: it needs the driver's library in this process, and half a second for every GPU without persistence mode.
Everything needed to start a container stands in ``/proc/driver/nvidia``, ``/proc/devices`` and ``/sys``.

**GPURUN_SYSROOT** in the environment of gpurun itself (never the container's) is a directory that stands for ``/`` in
everything read here: ``/proc``, ``/sys``, ``/dev`` and the files of the driver.  Tests point it at a simulated driver.
"""

from __future__ import annotations

import posix

from gpurun.errors import GpuError
from gpurun.hook.libraries import (
    DriverRoot,
    HostFile,
    Library,
    find_binaries,
    find_configs,
    find_firmware,
    find_libraries,
    installed_versions,
    open_driver_root,
    resolve,
)
from gpurun.hook.request import CAPABILITIES
from gpurun.linux.files import read_file
from gpurun.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

NVIDIA_MAJOR = 195  # registered with LANANA; also the fallback where /proc/devices has neither name
MINOR_CTL, MINOR_MODESET = 255, 254

_PROC = "/proc/driver/nvidia"
_UNKNOWN_UUID = "?"


class Roots(Record):
    """Where to look: *driver_root* as the administrator writes it, *sysroot* in front of every path (empty for ``/``)."""

    driver_root: str = "/"
    sysroot: str = ""


class HostNode(Record):
    """A device node of the host, *exists* or merely known by its numbers; *path* is where the container gets it."""

    path: str
    host_path: str
    major: int
    minor: int
    exists: bool
    mode: int = 0o666
    gid: int = 0


class Gpu(Record):
    """One GPU; *index* is its place in the order of PCI bus ids, as NVML counts."""

    index: int
    minor: int
    uuid: str
    bus_id: str  # as the kernel writes it: 0000:07:00.0
    model: str
    numa_node: int  # -1 when the machine has but one
    node: HostNode
    drm: tuple[HostNode, ...] = ()


class ProcFile(Record):
    """A small file of /proc/driver/nvidia with its content."""

    name: str
    content: bytes


class Driver(Record):
    """The driver, as far as the capabilities it was read for need it."""

    version: str
    gpus: tuple[Gpu, ...]
    nodes: tuple[HostNode, ...]  # control nodes: nvidiactl, nvidia-uvm, ...
    libraries: tuple[Library, ...] = ()
    files: tuple[HostFile, ...] = ()
    proc_files: tuple[ProcFile, ...] = ()
    proc_path: str = _PROC  # on the host, with the sysroot


def roots_from_environment(env: Mapping[str, str], driver_root: str = "/") -> Roots:
    """The roots that gpurun's own environment *env* asks for (GPURUN_SYSROOT)."""
    return Roots(driver_root or "/", env.get("GPURUN_SYSROOT", "").rstrip("/"))


def library_capabilities(capabilities: tuple[str, ...]) -> tuple[str, ...]:
    """The capabilities whose libraries *capabilities* need: video needs those of compute, display those of graphics."""
    needed = [c for c in ("utility", "compute", "video", "graphics", "ngx") if c in capabilities]
    if "video" in needed and "compute" not in needed:
        needed.insert(needed.index("video"), "compute")
    if "display" in capabilities and "graphics" not in needed:
        needed.append("graphics")
    return tuple(needed)


def read_driver(roots: Roots, capabilities: tuple[str, ...] = CAPABILITIES, env: Mapping[str, str] | None = None) -> Driver:
    """Discover the driver, reading no more than *capabilities* need.

    *env* is gpurun's own environment, for ``CUDA_MPS_PIPE_DIRECTORY``.  Raises :class:`GpuError` that says which half of
    the driver is missing: the kernel module, the libraries of the same version, or nvidia-uvm.
    """
    root = open_driver_root(driver_root_path(roots), posix.uname().machine)
    try:
        version = _kernel_version(roots, root)
        wanted = library_capabilities(capabilities)
        libraries = find_libraries(root, version, wanted, compat32=False)
        _check_userspace(root, version, wanted, libraries)
        if "compat32" in capabilities:
            libraries += find_libraries(root, version, wanted, compat32=True)
        graphics = "graphics" in wanted
        majors = _majors(roots)
        dev = _dev_root(roots)
        gpus = _read_gpus(roots, dev, majors, graphics)
        files = find_binaries(root, wanted) + find_configs(root, wanted) + _sockets(root, wanted, env or {})
        if gpus:
            files += find_firmware(root, version, _firmware_dirs(roots))
        nodes = _control_nodes(dev, majors, wanted, "display" in capabilities)
        return Driver(version, gpus, nodes, libraries, files, _proc_files(roots), roots.sysroot + _PROC)
    finally:
        posix.close(root.fd)


def read_gpus(roots: Roots) -> tuple[Gpu, ...]:
    """The GPUs alone; none when the kernel module is not loaded."""
    return _read_gpus(roots, _dev_root(roots), _majors(roots), graphics=True)


def module_version(roots: Roots) -> str:
    """The version of the loaded kernel module, empty when it is not loaded."""
    text = _read_text(f"{roots.sysroot}{_PROC}/version")
    # "NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.163.01  <date>", or "... Open Kernel Module for x86_64  550..."
    after = text.partition("\n")[0].partition("Kernel Module")[2].split()
    for word in after:
        if "." in word and word.replace(".", "").isdigit():
            return word
    return _read_text(f"{roots.sysroot}/sys/module/nvidia/version").strip()


def driver_root_path(roots: Roots) -> str:
    path = roots.sysroot + ("" if roots.driver_root == "/" else roots.driver_root.rstrip("/"))
    if path and not _exists(path):
        raise GpuError(f"no NVIDIA driver: the driver root {path} does not exist")
    return path or "/"


def _kernel_version(roots: Roots, root: DriverRoot) -> str:
    version = module_version(roots)
    if version:
        return version
    installed = installed_versions(root)
    if installed:
        found, path = next(iter(installed.items()))
        raise GpuError(
            f"NVIDIA driver not loaded: the libraries are installed ({root.path}{path}, version {found}) but there is no "
            f"{roots.sysroot}{_PROC}/version: load the kernel module with `modprobe nvidia`"
        )
    raise GpuError(
        f"no NVIDIA driver: neither the kernel module ({roots.sysroot}{_PROC}/version) nor the libraries "
        f"(libnvidia-ml.so.1 under {root.path or '/'}) are there: install the driver on this host"
    )


def _check_userspace(root: DriverRoot, version: str, wanted: tuple[str, ...], libraries: tuple[Library, ...]) -> None:
    names = {library.name for library in libraries}
    needed = [name for c, name in (("utility", "libnvidia-ml.so."), ("compute", "libcuda.so.")) if c in wanted]
    missing = [name + version for name in needed if name + version not in names]
    if not missing:
        return
    installed = {v: p for v, p in installed_versions(root).items() if v != version}
    if installed:
        others = ", ".join(f"{v} ({root.path}{p})" for v, p in sorted(installed.items()))
        raise GpuError(
            f"NVIDIA driver/library version mismatch: the kernel module is {version}, the libraries are {others}: "
            "reboot, or reload the module (`rmmod nvidia_uvm nvidia_drm nvidia_modeset nvidia; modprobe nvidia`)"
        )
    raise GpuError(
        f"NVIDIA libraries not found: the kernel module {version} is loaded but {' and '.join(missing)} is not under "
        f"{root.path or '/'} (not in its /etc/ld.so.cache, not in its library directories): install the driver's libraries"
    )


def _majors(roots: Roots) -> dict[str, int]:
    """Name → major number of the character devices; of equal names the first one counts."""
    majors: dict[str, int] = {}
    for line in _read_text(f"{roots.sysroot}/proc/devices").partition("Block devices:")[0].splitlines():
        number, _, name = line.strip().partition(" ")
        if number.isdigit() and name:
            majors.setdefault(name.strip(), int(number))
    return majors


def _nvidia_major(majors: dict[str, int]) -> int:
    return majors.get("nvidia-frontend", majors.get("nvidia", NVIDIA_MAJOR))


def _dev_root(roots: Roots) -> str:
    """The directory with ``dev/``: the driver root when its /dev has the nodes (a containerised driver), else the host."""
    own = driver_root_path(roots).rstrip("/")
    return own if own != roots.sysroot and _exists(f"{own}/dev/nvidiactl") else roots.sysroot


def _node(dev_root: str, path: str, major: int, minor: int) -> HostNode:
    """The node at *path*; a file there that is not the device it should be is never handed to a container."""
    host_path = dev_root + path
    try:
        stat = posix.lstat(host_path)
    except FileNotFoundError:
        return HostNode(path, host_path, major, minor, False)
    numbers = (posix.major(stat.st_rdev), posix.minor(stat.st_rdev))
    if stat.st_mode & 0o170000 != 0o020000 or numbers != (major, minor):
        raise GpuError(
            f"invalid device node: {host_path} is not the character device {major}:{minor}: remove it and let "
            "`nvidia-modprobe` or the driver make it again"
        )
    return HostNode(path, host_path, major, minor, True, stat.st_mode & 0o777, stat.st_gid)


def _control_nodes(dev: str, majors: dict[str, int], wanted: tuple[str, ...], display: bool) -> tuple[HostNode, ...]:
    major = _nvidia_major(majors)
    nodes = [_node(dev, "/dev/nvidiactl", major, MINOR_CTL)]
    if display:
        modeset = majors.get("nvidia-modeset", major)
        node = _node(dev, "/dev/nvidia-modeset", modeset, MINOR_MODESET)
        if node.exists or "nvidia-modeset" in majors:
            nodes.append(node)
    if "compute" in wanted:
        uvm = majors.get("nvidia-uvm")
        if uvm is None:
            raise GpuError(
                "nvidia-uvm not loaded: /proc/devices has no nvidia-uvm, and no CUDA program starts without it: load it "
                "with `modprobe nvidia-uvm` (capabilities compute and video need it, utility does not)"
            )
        nodes.append(_node(dev, "/dev/nvidia-uvm", uvm, 0))
        nodes.append(_node(dev, "/dev/nvidia-uvm-tools", uvm, 1))
    return tuple(nodes)


def _read_gpus(roots: Roots, dev: str, majors: dict[str, int], graphics: bool) -> tuple[Gpu, ...]:
    directory = f"{roots.sysroot}{_PROC}/gpus"
    try:
        names = posix.listdir(directory)
    except FileNotFoundError:
        return ()
    major = _nvidia_major(majors)
    gpus: list[Gpu] = []
    for bus_id in sorted(names, key=bus_order):
        info = _information(f"{directory}/{bus_id}/information")
        minor = info.get("Device Minor", "")
        if info.get("GPU Excluded") == "Yes" or not minor.isdigit():
            continue
        pci = f"{roots.sysroot}/sys/bus/pci/devices/{_sysfs_bus_id(bus_id)}"
        numa = _read_text(f"{pci}/numa_node").strip()
        gpus.append(
            Gpu(
                index=len(gpus),
                minor=int(minor),
                uuid=info.get("GPU UUID", _UNKNOWN_UUID),
                bus_id=bus_id,
                model=info.get("Model", "unknown model"),
                numa_node=int(numa) if numa.isdigit() else -1,
                node=_node(dev, f"/dev/nvidia{minor}", major, int(minor)),
                drm=_drm_nodes(pci, dev) if graphics else (),
            )
        )
    return tuple(gpus)


def bus_order(bus_id: str) -> tuple[int, ...]:
    """*bus_id* (``domain:bus:device.function``, hexadecimal) as numbers: for sorting and comparing; -1 for what is none."""
    numbers = bus_id.replace(".", ":").split(":")
    try:
        return tuple([int(n, 16) for n in numbers])
    except ValueError:
        return (-1,)


def _sysfs_bus_id(bus_id: str) -> str:
    domain, _, rest = bus_id.partition(":")
    return f"{domain.lstrip('0'):0>4}:{rest}".lower()


def _information(path: str) -> dict[str, str]:
    pairs = [line.partition(":") for line in _read_text(path).splitlines()]
    return {name.strip(): value.strip() for name, colon, value in pairs if colon}


def _drm_nodes(pci: str, dev: str) -> tuple[HostNode, ...]:
    """The card and render nodes of one PCI device (sysfs names them, and has their numbers)."""
    try:
        names = posix.listdir(f"{pci}/drm")
    except FileNotFoundError:
        return ()  # without nvidia-drm, or a card without display engine
    nodes = []
    for name in sorted(names):
        major, _, minor = _read_text(f"{pci}/drm/{name}/dev").strip().partition(":")
        if name.startswith(("card", "renderD")) and major.isdigit() and minor.isdigit():
            nodes.append(_node(dev, f"/dev/dri/{name}", int(major), int(minor)))
    return tuple([node for node in nodes if node.exists])


def _sockets(root: DriverRoot, wanted: tuple[str, ...], env: Mapping[str, str]) -> tuple[HostFile, ...]:
    paths = []
    if "utility" in wanted:
        paths += [("utility", "/run/nvidia-persistenced/socket"), ("utility", "/run/nvidia-fabricmanager/socket")]
    if "compute" in wanted:
        paths.append(("compute", env.get("CUDA_MPS_PIPE_DIRECTORY") or "/tmp/nvidia-mps"))
    found = [(capability, path, resolve(root, path)) for capability, path in paths]
    return tuple([HostFile("socket", c, root.path + real, path) for c, path, real in found if real is not None])


def _firmware_dirs(roots: Roots) -> tuple[str, ...]:
    """Where the kernel looks for firmware, in its order (Documentation/driver-api/firmware/fw_search_path.rst)."""
    custom = _read_text(f"{roots.sysroot}/sys/module/firmware_class/parameters/path").strip()
    release = posix.uname().release
    dirs = ["/lib/firmware/updates/" + release, "/lib/firmware/updates", "/lib/firmware/" + release, "/lib/firmware"]
    return tuple(([custom] if custom.startswith("/") else []) + dirs)


def _proc_files(roots: Roots) -> tuple[ProcFile, ...]:
    names = ("params", "version", "registry")
    contents = [(name, _read_bytes(f"{roots.sysroot}{_PROC}/{name}")) for name in names]
    return tuple([ProcFile(name, content) for name, content in contents if content is not None])


def _exists(path: str) -> bool:
    try:
        posix.stat(path)
    except OSError:
        return False
    return True


def _read_bytes(path: str) -> bytes | None:
    try:
        return read_file(path, 1 << 16)
    except (FileNotFoundError, NotADirectoryError):
        return None


def _read_text(path: str) -> str:
    return (_read_bytes(path) or b"").decode("utf-8", "replace")
