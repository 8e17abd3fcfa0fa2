"""Request x driver → edits: what a container that asks for GPUs gets, each thing with its reason.  Pure.

Everything is mounted in the container at the path it has below the driver root.  Links and the loader's cache
are data, not hooks; /proc/driver/nvidia shows the GPUs of the container and no others.
"""

from __future__ import annotations

from gpurun.errors import GpuError
from gpurun.hook.driver import library_capabilities
from gpurun.hook.driver_files import MPS_REASON
from gpurun.hook.edits import CacheEntry, ContainerEdits, DeviceNode, EditMount, FileEdit, ForwardCompat, Link, ProcTree
from gpurun.hook.host import bus_order
from gpurun.hook.ldconf import COMPAT_ROOT, conf_files
from gpurun.hook.selection import select

TYPE_CHECKING = False
if TYPE_CHECKING:
    from gpurun.hook.driver import Driver, Gpu, HostNode, ProcFile
    from gpurun.hook.identity import Resolver
    from gpurun.hook.libraries import HostFile, Library
    from gpurun.hook.request import GpuRequest
    from gpurun.hook.require import Properties
    from gpurun.hook.selection import Selected

FILE_OPTIONS = ("ro", "nosuid", "nodev", "rbind", "rprivate")
SOCKET_OPTIONS = ("nosuid", "nodev", "rbind", "rprivate", "noexec")
PROC_OPTIONS = ("ro", "nosuid", "nodev", "noexec", "rbind", "rprivate")

PROC_PATH = "/proc/driver/nvidia"
PROFILE_DIR = "/etc/nvidia/nvidia-application-profiles-rc.d"

#: GPUs that CUDA does not run on with newer libraries: cuInit would fail with 804 where the driver's own would serve.
_CONSUMER = ("GeForce", "TITAN")
#: Links beside a library that programs expect although no SONAME says so: library → (link, target or "" for the file).
_EXTRA_LINKS = {
    "libcuda": ("libcuda.so", "libcuda.so.1"),
    "libnvidia-opticalflow": ("libnvidia-opticalflow.so", "libnvidia-opticalflow.so.1"),
    "libGLX_nvidia": ("libGLX_indirect.so.0", ""),
    "libnvidia-vulkan-producer": ("libnvidia-vulkan-producer.so", ""),
    "libnvidia-allocator": ("gbm/nvidia-drm_gbm.so", "../libnvidia-allocator.so.1"),
}


def edits(request: GpuRequest, driver: Driver, resolver: Resolver | None = None) -> ContainerEdits:
    """What *request* brings into a container on a host with *driver* (read for at least the request's capabilities).

    *resolver* tells what only NVML knows, if the request cannot be answered without it.
    Raises :class:`GpuError` for a device the host does not have, :class:`ConfigError` for a requirement not met.
    """
    if request.denied:
        return ContainerEdits(warnings=(request.denied,))
    selected = select(request, driver.gpus, resolver)
    gpus = tuple([s.gpu for s in selected])
    if request.requirements:
        _check_requirements(request, driver, gpus, resolver)
    needed = library_capabilities(request.capabilities)
    libraries = [lib for lib in driver.libraries if _wanted(lib, needed, request.capabilities)]
    files = [f for f in driver.files if f.capability in needed or (f.kind == "firmware" and gpus)]
    graphics = "graphics" in needed
    display = "display" in request.capabilities
    nodes = [_control_node(n) for n in driver.nodes if _control_wanted(n, "compute" in needed, display)]
    nodes += [_gpu_node(s, request.source) for s in selected]
    nodes += _mig_nodes(selected)
    drm = [(s.gpu, n) for s in selected if _draws(s) for n in s.gpu.drm] if graphics else []
    nodes += [_device_node(n, f"DRM node of GPU {g.index}, capability graphics or display") for g, n in drm]
    links = [link for lib in libraries for link in library_links(lib)]
    links += [_drm_link(g, n) for g, n in drm]
    links += [_file_link(f) for f in files if f.link]
    trees = [proc_tree(driver.proc_files, driver.proc_path, selected)]
    if graphics:
        trees.append(application_profile(tuple([gpu.minor for gpu in gpus])))
    entries = tuple([entry for lib in libraries for entry in cache_entries(lib)])
    made = ContainerEdits(
        device_nodes=tuple(nodes),
        mounts=tuple([_library_mount(lib, needed) for lib in libraries] + [_file_mount(f) for f in files]),
        links=tuple({link.path: link for link in links}.values()),
        ldcache=entries,
        image_files=conf_files(entries),
        forward_compat=_forward_compat(request, driver, needed, gpus),
        proc_trees=tuple(trees),
        additional_gids=tuple(sorted({n.gid for _, n in drm if n.gid and n.mode & 0o006 != 0o006})),
        numa_nodes=tuple([gpu.numa_node for gpu in gpus]),
        warnings=request.warnings + tuple(_warnings(driver, selected, request.extras)),
    )
    if driver.extras:
        from gpurun.hook.extra_edits import add_extras

        return add_extras(made, driver.extras, PROC_PATH, driver.proc_path)
    return made


def _forward_compat(
    request: GpuRequest, driver: Driver, needed: tuple[str, ...], gpus: tuple[Gpu, ...]
) -> ForwardCompat | None:
    if "compute" not in needed or not request.forward_compat:
        return None
    return plan_compat(driver.version, [gpu.model for gpu in gpus])


def plan_compat(driver_version: str, models: list[str]) -> ForwardCompat | None:
    """What to look for in the image of a container with GPUs of those *models*; ``None`` when none of it could work."""
    if any(word in model for model in models for word in _CONSUMER):
        return None
    return ForwardCompat(COMPAT_ROOT, driver_version, "the image may bring newer CUDA libraries than the driver's")


def _check_requirements(request: GpuRequest, driver: Driver, gpus: tuple[Gpu, ...], resolver: Resolver | None) -> None:
    from gpurun.hook.require import check, learned, properties

    known = tuple([properties(driver.version, g.model) for g in gpus]) or (properties(driver.version),)

    def learn() -> tuple[Properties, ...]:
        try:
            found = {bus_order(i.bus_id): i for i in resolver()} if resolver is not None else {}
        except GpuError:
            return known  # an answer would have been better; without one nothing is held against the container
        told = [found.get(bus_order(gpu.bus_id)) for gpu in gpus]
        return tuple([p if i is None else learned(p, i.cuda, i.arch, i.brand) for p, i in zip(known, told, strict=True)])

    check(request.requirements, known, learn if gpus and resolver is not None else None)


def _warnings(driver: Driver, selected: tuple[Selected, ...], extras: tuple[str, ...]) -> list[str]:
    """What is right as it stands, but hardly what was meant."""
    found = []
    if not any(f.name == "params" for f in driver.proc_files):
        found.append(f"{driver.proc_path}/params cannot be read: programs may try to make device nodes")
    for s in selected:
        if s.gpu.mig and not s.mig and not any(e.startswith("mig-") for e in extras):
            devices = ", ".join([f"MIG-{s.gpu.uuid}/{m.gi}/{m.ci}" for m in s.gpu.mig])
            found.append(
                f"GPU {s.gpu.index} is divided into MIG devices and none of them was asked for, so CUDA programs find no "
                f"device: ask for all, or for some of {devices}"
            )
    return found


def _gpu_node(selected: Selected, source: str) -> DeviceNode:
    gpu = selected.gpu
    return _device_node(gpu.node, f"GPU {gpu.index} ({source})" if selected.whole else f"GPU {gpu.index} of a MIG device")


def _mig_nodes(selected: tuple[Selected, ...]) -> list[DeviceNode]:
    """The capability nodes of the MIG devices, those of a GPU instance that several share once."""
    made: dict[str, DeviceNode] = {}
    for s in selected:
        for mig in s.mig:
            if len(mig.nodes) < 2:
                raise GpuError(
                    f"the MIG device MIG-{s.gpu.uuid}/{mig.gi}/{mig.ci} has no capability nodes: /proc/devices has no "
                    "nvidia-caps, or /proc/driver/nvidia-caps/mig-minors does not list it: run `nvidia-modprobe -m`"
                )
            for what, node in zip((f"GPU instance {mig.gi}", f"compute instance {mig.ci}"), mig.nodes, strict=True):
                made.setdefault(node.path, _device_node(node, f"MIG capability of {what} of GPU {s.gpu.index}", node.mode))
    return list(made.values())


def _draws(selected: Selected) -> bool:
    """Whether the DRM nodes of the GPU belong in the container: a MIG device cannot draw, unless its profile says so."""
    return not selected.mig or any(mig.profile.endswith("gfx") for mig in selected.mig)


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
    if file.kind == "mps":
        return EditMount(file.host_path, file.path, SOCKET_OPTIONS, "dir", MPS_REASON)
    if file.kind == "socket":
        return EditMount(file.host_path, file.path, SOCKET_OPTIONS, "file", f"service of capability {file.capability}")
    return EditMount(file.host_path, file.path, FILE_OPTIONS, "file", f"{file.kind} of capability {file.capability}")


def _file_link(file: HostFile) -> Link:
    directory, _, name = file.path.rpartition("/")
    return Link(f"{directory}/{file.link}", name, f"expected beside {name}")


def library_links(library: Library) -> list[Link]:
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


def cache_entries(library: Library) -> list[CacheEntry]:
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


def proc_tree(proc_files: tuple[ProcFile, ...], proc_path: str, selected: tuple[Selected, ...]) -> ProcTree:
    """/proc/driver/nvidia with the GPUs of the container only, and the promise that nobody makes device nodes there.

    With ``ModifyDeviceFiles: 1`` the driver's libraries would make nodes of all GPUs in the container's /dev.
    """
    files = []
    for file in proc_files:
        content, reason = file.content, "copied from the host"
        if file.name == "params":
            content = content.replace(b"ModifyDeviceFiles: 1", b"ModifyDeviceFiles: 0", 1)
            reason = "the driver's libraries must not make device nodes in the container"
        files.append(FileEdit(f"{PROC_PATH}/{file.name}", content, 0o444, reason))
    binds = []
    for s in selected:
        binds.append(_proc_bind(proc_path, f"gpus/{s.gpu.bus_id}", "dir", f"GPU {s.gpu.index}"))
        names = dict.fromkeys([name for mig in s.mig for name in mig.files])
        binds += [_proc_bind(proc_path, name, "file", f"MIG device of GPU {s.gpu.index}") for name in names]
    return ProcTree(PROC_PATH, tuple(files), tuple(binds), "only the GPUs of the container are to be seen")


def _proc_bind(proc_path: str, name: str, kind: str, reason: str) -> EditMount:
    return EditMount(f"{proc_path}/{name}", f"{PROC_PATH}/{name}", PROC_OPTIONS, kind, reason)


def application_profile(minors: tuple[int, ...]) -> ProcTree:
    """The profile that makes EGL and Vulkan enumerate the container's GPUs only (a bit mask of device minors)."""
    mask = sum([1 << minor for minor in dict.fromkeys(minors)])
    content = (
        f'{{"profiles": [{{"name": "_container_", "settings": ["EGLVisibleDGPUDevices", {mask:#x}]}}],\n'
        ' "rules": [{"pattern": [], "profile": "_container_"}]}\n'
    )
    reason = "EGL and Vulkan are to enumerate the GPUs of the container only"
    file = FileEdit(f"{PROFILE_DIR}/10-container.conf", content.encode("ascii"), 0o444, reason)
    return ProcTree(PROFILE_DIR, (file,), (), reason)
