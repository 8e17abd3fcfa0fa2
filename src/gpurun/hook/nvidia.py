"""Request x driver → edits: what a container that asks for GPUs gets, each thing with its reason.  Pure.

Everything is mounted in the container at the path it has below the driver root.  Links and the loader's cache
are data, not hooks; /proc/driver/nvidia shows the GPUs of the container and no others.
"""

from __future__ import annotations

from gpurun.errors import GpuError
from gpurun.hook.driver import bus_order, library_capabilities
from gpurun.hook.edits import CacheEntry, ContainerEdits, DeviceNode, EditMount, FileEdit, Link, ProcTree
from gpurun.hook.request import shown
from gpurun.hook.require import check, properties

TYPE_CHECKING = False
if TYPE_CHECKING:
    from gpurun.hook.driver import Driver, Gpu, HostNode
    from gpurun.hook.libraries import HostFile, Library
    from gpurun.hook.request import GpuRequest

FILE_OPTIONS = ("ro", "nosuid", "nodev", "rbind", "rprivate")
SOCKET_OPTIONS = ("nosuid", "nodev", "rbind", "rprivate", "noexec")
_PROC_OPTIONS = ("ro", "nosuid", "nodev", "noexec", "rbind", "rprivate")

PROC_PATH = "/proc/driver/nvidia"
_PROFILE_DIR = "/etc/nvidia/nvidia-application-profiles-rc.d"

#: Links beside a library that programs expect although no SONAME says so: library → (link, target or "" for the file).
_EXTRA_LINKS = {
    "libcuda": ("libcuda.so", "libcuda.so.1"),
    "libnvidia-opticalflow": ("libnvidia-opticalflow.so", "libnvidia-opticalflow.so.1"),
    "libGLX_nvidia": ("libGLX_indirect.so.0", ""),
    "libnvidia-allocator": ("gbm/nvidia-drm_gbm.so", "../libnvidia-allocator.so.1"),
}


def edits(request: GpuRequest, driver: Driver) -> ContainerEdits:
    """What *request* brings into a container on a host with *driver* (read for at least the request's capabilities).

    Raises :class:`GpuError` for a device the host does not have, :class:`ConfigError` for a requirement not met.
    """
    if request.denied:
        return ContainerEdits(warnings=(request.denied,))
    gpus = select_gpus(request, driver.gpus)
    check(request.requirements, tuple([properties(driver.version, g.model) for g in gpus]) or (properties(driver.version),))
    needed = library_capabilities(request.capabilities)
    libraries = [lib for lib in driver.libraries if _wanted(lib, needed, request.capabilities)]
    files = [f for f in driver.files if f.capability in needed or (f.kind == "firmware" and gpus)]
    graphics = "graphics" in needed
    display = "display" in request.capabilities
    nodes = [_control_node(n) for n in driver.nodes if _control_wanted(n, "compute" in needed, display)]
    nodes += [_device_node(g.node, f"GPU {g.index} ({request.source})") for g in gpus]
    drm = [(g, n) for g in gpus for n in g.drm] if graphics else []
    nodes += [_device_node(n, f"DRM node of GPU {g.index}, capability graphics or display") for g, n in drm]
    links = [link for lib in libraries for link in _library_links(lib)]
    links += [_drm_link(g, n) for g, n in drm]
    trees = [_proc_tree(driver, gpus)]
    if graphics:
        trees.append(_application_profile(gpus))
    params = any(f.name == "params" for f in driver.proc_files)
    return ContainerEdits(
        device_nodes=tuple(nodes),
        mounts=tuple([_library_mount(lib, needed) for lib in libraries] + [_file_mount(f) for f in files]),
        links=tuple({link.path: link for link in links}.values()),
        ldcache=tuple([entry for lib in libraries for entry in _cache_entries(lib)]),
        proc_trees=tuple(trees),
        additional_gids=tuple(sorted({n.gid for _, n in drm if n.gid and n.mode & 0o006 != 0o006})),
        numa_nodes=tuple([gpu.numa_node for gpu in gpus]),
        warnings=() if params else (f"{driver.proc_path}/params cannot be read: programs may try to make device nodes",),
    )


def select_gpus(request: GpuRequest, gpus: tuple[Gpu, ...]) -> tuple[Gpu, ...]:
    """The GPUs that *request* names, each once, in the order of their index."""
    if request.devices == ("all",):
        return gpus
    chosen = {find_gpu(device, gpus, request.source).index for device in request.devices}
    return tuple([gpu for gpu in gpus if gpu.index in chosen])


def find_gpu(device: str, gpus: tuple[Gpu, ...], source: str = "") -> Gpu:
    """The GPU with that index, UUID (any case) or PCI bus id (domain of any width); the error names what there is."""
    is_index = device.isascii() and device.isdigit()
    bus = bus_order(device) if ":" in device else ()
    for gpu in gpus:
        if is_index:
            if gpu.index == int(device[:9]) and len(device) < 10:
                return gpu
        elif (gpu.uuid.lower() == device.lower() and "?" not in device) or (bus and bus == bus_order(gpu.bus_id)):
            return gpu
    there = "; ".join([f"{g.index} = {g.uuid} = {g.bus_id} ({g.model})" for g in gpus]) or "none"
    hint = ""
    if not is_index and any("?" in g.uuid for g in gpus):
        hint = " (a GPU shows no UUID until something has used it: run nvidia-smi once)"
    where = f" (process.env {source})" if source else ""
    raise GpuError(f"{shown(device)}: unknown device{where}: the GPUs of this host are {there}{hint}")


def _wanted(library: Library, needed: tuple[str, ...], capabilities: tuple[str, ...]) -> bool:
    return any(c in needed for c in library.capabilities) and (not library.compat32 or "compat32" in capabilities)


def _control_wanted(node: HostNode, compute: bool, display: bool) -> bool:
    if node.path.startswith("/dev/nvidia-uvm"):
        return compute
    return node.path != "/dev/nvidia-modeset" or display


def _control_node(node: HostNode) -> DeviceNode:
    reasons = {"/dev/nvidiactl": "every GPU container", "/dev/nvidia-modeset": "capability display"}
    return _device_node(node, reasons.get(node.path, "capability compute"), 0o666)


def _device_node(node: HostNode, reason: str, mode: int | None = None) -> DeviceNode:
    gid = node.gid if mode is None else 0
    file_mode = node.mode if mode is None else mode
    return DeviceNode(node.path, node.host_path, "c", node.major, node.minor, file_mode, 0, gid, "rw", reason)


def _library_mount(library: Library, needed: tuple[str, ...]) -> EditMount:
    bits = "32-bit " if library.compat32 else ""
    reason = f"{bits}library of capability {', '.join([c for c in library.capabilities if c in needed])}"
    return EditMount(library.host_path, library.path, FILE_OPTIONS, "file", reason)


def _file_mount(file: HostFile) -> EditMount:
    if file.kind == "firmware":
        return EditMount(file.host_path, file.path, FILE_OPTIONS, "file", "firmware of the driver")
    if file.kind == "socket":
        kind = "dir" if file.path.rpartition("/")[2] != "socket" else "file"
        return EditMount(file.host_path, file.path, SOCKET_OPTIONS, kind, f"service of capability {file.capability}")
    return EditMount(file.host_path, file.path, FILE_OPTIONS, "file", f"{file.kind} of capability {file.capability}")


def _library_links(library: Library) -> list[Link]:
    directory = library.path.rpartition("/")[0]
    stem = library.name[: library.name.find(".so")]
    links = []
    if library.soname != library.name:
        links.append(Link(f"{directory}/{library.soname}", library.name, f"SONAME of {library.name}"))
    if library.dev_link:
        links.append(Link(f"{directory}/{stem}.so", library.soname, f"link for linking with {library.name}"))
    if stem in _EXTRA_LINKS:
        name, target = _EXTRA_LINKS[stem]
        links.append(Link(f"{directory}/{name}", target or library.name, f"expected beside {library.name}"))
    return links


def _cache_entries(library: Library) -> list[CacheEntry]:
    """The loader's names for *library*: its SONAME and, as ldconfig has it, the link for linking."""
    directory = library.path.rpartition("/")[0]
    names = [library.soname]
    stem = library.name[: library.name.find(".so")]
    if library.dev_link or stem in ("libcuda", "libnvidia-opticalflow"):
        names.append(f"{stem}.so")
    return [CacheEntry(name, f"{directory}/{name}", library.flags) for name in dict.fromkeys(names)]


def _drm_link(gpu: Gpu, node: HostNode) -> Link:
    name = node.path.rpartition("/")[2]
    kind = "card" if name.startswith("card") else "render"
    return Link(f"/dev/dri/by-path/pci-{gpu.bus_id}-{kind}", f"../{name}", f"DRM node of GPU {gpu.index}")


def _proc_tree(driver: Driver, gpus: tuple[Gpu, ...]) -> ProcTree:
    """/proc/driver/nvidia with the GPUs of the container only, and the promise that nobody makes device nodes there.

    With ``ModifyDeviceFiles: 1`` the driver's libraries would make nodes of all GPUs in the container's /dev.
    """
    files = []
    for file in driver.proc_files:
        content, reason = file.content, "copied from the host"
        if file.name == "params":
            content = content.replace(b"ModifyDeviceFiles: 1", b"ModifyDeviceFiles: 0", 1)
            reason = "the driver's libraries must not make device nodes in the container"
        files.append(FileEdit(f"{PROC_PATH}/{file.name}", content, 0o444, reason))
    binds = []
    for gpu in gpus:
        name = f"gpus/{gpu.bus_id}"
        reason = f"GPU {gpu.index}"
        binds.append(EditMount(f"{driver.proc_path}/{name}", f"{PROC_PATH}/{name}", _PROC_OPTIONS, "dir", reason))
    return ProcTree(PROC_PATH, tuple(files), tuple(binds), "only the GPUs of the container are to be seen")


def _application_profile(gpus: tuple[Gpu, ...]) -> ProcTree:
    """The profile that makes EGL and Vulkan enumerate the container's GPUs only (a bit mask of device minors)."""
    mask = sum([1 << gpu.minor for gpu in gpus])
    content = (
        f'{{"profiles": [{{"name": "_container_", "settings": ["EGLVisibleDGPUDevices", {mask:#x}]}}],\n'
        ' "rules": [{"pattern": [], "profile": "_container_"}]}\n'
    )
    reason = "EGL and Vulkan are to enumerate the GPUs of the container only"
    file = FileEdit(f"{_PROFILE_DIR}/10-container.conf", content.encode("ascii"), 0o444, reason)
    return ProcTree(_PROFILE_DIR, (file,), (), reason)
