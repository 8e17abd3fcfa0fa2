"""What NVIDIA driver and GPUs this host has, read from procfs, sysfs and the driver's own files.  Changes nothing.

NVML is not used: it needs the driver's library in this process, and half a second for every GPU without persistence mode.
Everything needed to start a container stands in ``/proc/driver/nvidia``, ``/proc/devices`` and ``/sys``.

**GPURUN_SYSROOT** in the environment of gpurun itself (never the container's) is a directory that stands for ``/`` in
everything read here: ``/proc``, ``/sys``, ``/dev`` and the files of the driver.  Tests point it at a simulated driver.
"""

from __future__ import annotations

import posix

from gpurun.errors import GpuError
from gpurun.gpu.host.reads import HostNode, read_bytes, read_text
from gpurun.gpu.nvidia.host.file_names import CAPABILITIES, library_capabilities
from gpurun.gpu.nvidia.host.files import find_binaries, find_configs, find_firmware, find_graphics
from gpurun.gpu.nvidia.host.gpus import Gpu, gpus_of, nvidia_major
from gpurun.gpu.nvidia.host.libraries import (
    DriverRoot,
    HostFile,
    Library,
    find_libraries,
    installed_versions,
    open_driver_root,
    resolve,
)
from gpurun.gpu.nvidia.host.nodes import find_node, read_majors
from gpurun.gpu.nvidia.host.roots import PROC, Roots, dev_root, driver_root_path
from gpurun.linux.files import Fd
from gpurun.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from gpurun.gpu.nvidia.host.extras import Extra

MINOR_CTL, MINOR_MODESET = 255, 254


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
    extras: tuple[Extra, ...] = ()
    proc_path: str = PROC  # on the host, with the sysroot


def read_driver(
    roots: Roots,
    capabilities: tuple[str, ...] = CAPABILITIES,
    env: Mapping[str, str] | None = None,
    extras: tuple[str, ...] = (),
    imex_channels: tuple[int, ...] = (),
    create_channels: bool = True,
) -> Driver:
    """Discover the driver, reading no more than *capabilities* need.

    *env* is gpurun's own environment, for ``CUDA_MPS_PIPE_DIRECTORY``; *extras*, *imex_channels* and *create_channels* are
    those of :func:`gpurun.gpu.nvidia.host.extras.read_extras`.  Raises :class:`GpuError` that says which half of
    the driver is missing: the kernel module, the libraries of the same version, or nvidia-uvm.
    """
    root = open_driver_root(driver_root_path(roots), posix.uname().machine, roots.ldcache, roots.library_dirs)
    with Fd(root.fd):
        version = _kernel_version(roots, root)
        wanted = library_capabilities(capabilities)
        libraries = find_libraries(root, version, wanted, compat32=False)
        _check_userspace(root, version, wanted, libraries)
        if "compat32" in capabilities:
            libraries += find_libraries(root, version, wanted, compat32=True)
        graphics = "graphics" in wanted
        majors = read_majors(roots)
        dev = dev_root(roots)
        gpus = gpus_of(roots, dev, majors, graphics)
        files = (
            find_binaries(root, wanted)
            + find_configs(root, version, wanted, roots.config_dirs)
            + _sockets(root, wanted, env or {})
        )
        if graphics:
            files += find_graphics(root, version)
        if gpus:
            files += find_firmware(root, version, _firmware_dirs(roots))
        nodes = _control_nodes(dev, majors, wanted, "display" in capabilities)
        more: tuple[Extra, ...] = ()
        if extras or imex_channels:
            from gpurun.gpu.nvidia.host.extras import read_extras

            more = read_extras(roots, root, dev, majors, extras, imex_channels, create_channels)
        return Driver(version, gpus, nodes, libraries, files, proc_files(roots), more, roots.sysroot + PROC)


def module_version(roots: Roots) -> str:
    """The version of the loaded kernel module, empty when it is not loaded."""
    text = read_text(f"{roots.sysroot}{PROC}/version")
    # "NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.163.01  <date>", or "... Open Kernel Module for x86_64  550..."
    after = text.partition("\n")[0].partition("Kernel Module")[2].split()
    for word in after:
        if "." in word and word.replace(".", "").isdigit():
            return word
    return read_text(f"{roots.sysroot}/sys/module/nvidia/version").strip()


def _kernel_version(roots: Roots, root: DriverRoot) -> str:
    version = module_version(roots)
    if version:
        return version
    installed = installed_versions(root)
    if installed:
        found, path = next(iter(installed.items()))
        raise GpuError(
            f"NVIDIA driver not loaded: the libraries are installed ({root.path}{path}, version {found}) but there is no "
            f"{roots.sysroot}{PROC}/version: load the kernel module with `modprobe nvidia`"
        )
    raise GpuError(
        f"no NVIDIA driver: neither the kernel module ({roots.sysroot}{PROC}/version) nor the libraries "
        f"(libnvidia-ml.so.1 under {root.path or '/'}) are there: install the driver on this host, "
        "and `gpurun gpu doctor` says what is missing"
    )


def _check_userspace(root: DriverRoot, version: str, wanted: tuple[str, ...], libraries: tuple[Library, ...]) -> None:
    names = {library.name for library in libraries}
    needed = [name for c, name in (("utility", "libnvidia-ml.so."), ("compute", "libcuda.so.")) if c in wanted]
    missing = [name + version for name in needed if name + version not in names]
    if not missing and wanted and not any(name.endswith("." + version) for name in names):
        # Graphics libraries may well be absent on a server, but then other files are asked for as well.
        missing = [f"any library *.so.{version} of capability {', '.join(wanted)}"]
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
        f"NVIDIA libraries not found: the kernel module {version} is loaded but {' and '.join(missing)} "
        f"{'is' if len(missing) == 1 else 'are'} not under {root.path or '/'} (not in its /etc/ld.so.cache, not in its "
        "library directories): install the driver's libraries"
    )


def _control_nodes(dev: str, majors: dict[str, int], wanted: tuple[str, ...], display: bool) -> tuple[HostNode, ...]:
    major = nvidia_major(majors)
    nodes = [find_node(dev, "/dev/nvidiactl", major, MINOR_CTL)]
    if display:
        modeset = majors.get("nvidia-modeset", major)
        found = find_node(dev, "/dev/nvidia-modeset", modeset, MINOR_MODESET)
        if found.exists or "nvidia-modeset" in majors:
            nodes.append(found)
    if "compute" in wanted:
        uvm = majors.get("nvidia-uvm")
        if uvm is None:
            raise GpuError(
                "nvidia-uvm not loaded: /proc/devices has no nvidia-uvm, and no CUDA program starts without it: load it "
                "with `modprobe nvidia-uvm` (capabilities compute and video need it, utility does not)"
            )
        nodes.append(find_node(dev, "/dev/nvidia-uvm", uvm, 0))
        nodes.append(find_node(dev, "/dev/nvidia-uvm-tools", uvm, 1))
    return tuple(nodes)


def _sockets(root: DriverRoot, wanted: tuple[str, ...], env: Mapping[str, str]) -> tuple[HostFile, ...]:
    paths = []
    if "utility" in wanted:
        paths += [("utility", "/run/nvidia-persistenced/socket"), ("utility", "/run/nvidia-fabricmanager/socket")]
    if "compute" in wanted:
        paths.append(("compute", env.get("CUDA_MPS_PIPE_DIRECTORY") or "/tmp/nvidia-mps"))
    found = [(capability, path, resolve(root, path)) for capability, path in paths]
    kinds = {"utility": "socket", "compute": "mps"}
    return tuple([HostFile(kinds[c], c, root.path + real, path) for c, path, real in found if real is not None])


def _firmware_dirs(roots: Roots) -> tuple[str, ...]:
    """Where the kernel looks for firmware, in its order (Documentation/driver-api/firmware/fw_search_path.rst)."""
    custom = read_text(f"{roots.sysroot}/sys/module/firmware_class/parameters/path").strip()
    release = posix.uname().release
    dirs = ["/lib/firmware/updates/" + release, "/lib/firmware/updates", "/lib/firmware/" + release, "/lib/firmware"]
    return tuple(([custom] if custom.startswith("/") else []) + dirs)


def proc_files(roots: Roots) -> tuple[ProcFile, ...]:
    """The small files of /proc/driver/nvidia that a container gets to see."""
    names = ("params", "version", "registry")
    contents = [(name, read_bytes(f"{roots.sysroot}{PROC}/{name}")) for name in names]
    return tuple([ProcFile(name, content) for name, content in contents if content is not None])
