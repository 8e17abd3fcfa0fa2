"""Request x driver → edits: what a container that asks for GPUs gets, each thing with its reason.  Pure.

Everything is mounted in the container at the path it has below the driver root.  Links and the loader's cache
are data, not hooks; /proc/driver/nvidia shows the GPUs of the container and no others.
"""

from __future__ import annotations

from gpurun.cdi.edits import (
    ContainerEdits,
    DeviceNode,
    ForwardCompat,
    Link,
    conf_files,
)
from gpurun.errors import GpuError
from gpurun.gpu.nvidia.edits.files import cache_entries, file_link, file_mount, library_links, library_mount
from gpurun.gpu.nvidia.edits.proc_files import PROC_PATH, application_profile, proc_tree
from gpurun.gpu.nvidia.host.file_names import COMPAT_ROOT, library_capabilities
from gpurun.gpu.nvidia.host.roots import bus_order
from gpurun.gpu.nvidia.request.selection import select

TYPE_CHECKING = False
if TYPE_CHECKING:
    from gpurun.gpu.host.reads import HostNode
    from gpurun.gpu.nvidia.host.driver import Driver
    from gpurun.gpu.nvidia.host.gpus import Gpu
    from gpurun.gpu.nvidia.host.identity import Resolver
    from gpurun.gpu.nvidia.host.libraries import HostFile, Library
    from gpurun.gpu.nvidia.request.records import GpuRequest
    from gpurun.gpu.nvidia.request.require import Properties
    from gpurun.gpu.nvidia.request.selection import Selected


#: Bits of the mask of a profile: a GPU beyond them cannot be in it.
_MASK_BITS = 64
#: GPUs that CUDA does not run on with newer libraries: cuInit would fail with 804 where the driver's own would serve.
_CONSUMER = ("GeForce", "TITAN")


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
    graphics = "graphics" in needed
    libraries = _library_edits([lib for lib in driver.libraries if _is_wanted(lib, needed, request.capabilities)], needed)
    drm = _drm_edits(selected) if graphics else ContainerEdits()
    files = _file_edits([f for f in driver.files if f.capability in needed or (f.kind == "firmware" and gpus)])
    nodes = [
        _control_node(n) for n in driver.nodes if _needs_control(n, "compute" in needed, "display" in request.capabilities)
    ]
    nodes += [_gpu_node(s, request.source) for s in selected]
    nodes += _mig_nodes(selected)
    trees = [proc_tree(driver.proc_files, driver.proc_path, selected)]
    if graphics:
        trees.append(application_profile(tuple([gpu.minor for gpu in gpus])))
    made = ContainerEdits(
        device_nodes=(*nodes, *drm.device_nodes),
        mounts=(*libraries.mounts, *files.mounts),
        links=tuple({link.path: link for link in (*libraries.links, *drm.links, *files.links)}.values()),
        ldcache=libraries.ldcache,
        image_files=conf_files(libraries.ldcache),
        forward_compat=_forward_compat(request, driver, needed, gpus),
        proc_trees=tuple(trees),
        additional_gids=drm.additional_gids,
        numa_nodes=tuple([gpu.numa_node for gpu in gpus]),
        warnings=request.warnings + tuple(_warnings(driver, selected, request.extras)),
    )
    if driver.extras:
        from gpurun.gpu.nvidia.edits.extras import add_extras

        return add_extras(made, driver.extras, PROC_PATH, driver.proc_path)
    return made


def _library_edits(libraries: list[Library], needed: tuple[str, ...]) -> ContainerEdits:
    """The libraries at the paths where the loader finds them, with their links and lines of its cache."""
    return ContainerEdits(
        mounts=tuple([library_mount(lib, needed) for lib in libraries]),
        links=tuple([link for lib in libraries for link in library_links(lib)]),
        ldcache=tuple([entry for lib in libraries for entry in cache_entries(lib)]),
    )


def _file_edits(files: list[HostFile]) -> ContainerEdits:
    """The driver's programs, firmware, configuration and sockets."""
    return ContainerEdits(mounts=tuple([file_mount(f) for f in files]), links=tuple([file_link(f) for f in files if f.link]))


def _drm_edits(selected: tuple[Selected, ...]) -> ContainerEdits:
    """The DRM nodes of the GPUs that draw, their names by path, and the groups that may open them."""
    drm = [(s.gpu, n) for s in selected if _draws(s) for n in s.gpu.drm]
    return ContainerEdits(
        device_nodes=tuple(
            [_device_node(n, f"DRM node of GPU {g.index}, capability graphics or display", gpu=_key(g)) for g, n in drm]
        ),
        links=tuple([_drm_link(g, n) for g, n in drm]),
        additional_gids=tuple(sorted({n.gid for _, n in drm if n.gid and n.mode & 0o006 != 0o006})),
    )


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
    from gpurun.gpu.nvidia.request.require import check, properties, with_nvml_properties

    known = tuple([properties(driver.version, g.model) for g in gpus]) or (properties(driver.version),)

    def learn() -> tuple[Properties, ...]:
        try:
            found = {bus_order(i.bus_id): i for i in resolver()} if resolver is not None else {}
        except GpuError:
            return known  # an answer would have been better; without one nothing is held against the container
        asked = [found.get(bus_order(gpu.bus_id)) for gpu in gpus]
        return tuple(
            [p if i is None else with_nvml_properties(p, i.cuda, i.arch, i.brand) for p, i in zip(known, asked, strict=True)]
        )

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
    reason = f"GPU {gpu.index} ({source})" if selected.whole else f"GPU {gpu.index} of a MIG device"
    return _device_node(gpu.node, reason, gpu=_key(gpu))


def _key(gpu: Gpu) -> str:
    return f"nvidia:{gpu.bus_id.lower()}"


def _mig_nodes(selected: tuple[Selected, ...]) -> list[DeviceNode]:
    """The capability nodes of the MIG devices, those of a GPU instance that several share once: they are of no device."""
    made: dict[str, DeviceNode] = {}
    for s in selected:
        for mig in s.mig:
            if len(mig.nodes) < 2:
                raise GpuError(
                    f"the MIG device MIG-{s.gpu.uuid}/{mig.gi}/{mig.ci} has no capability nodes: /proc/devices has no "
                    "nvidia-caps, or /proc/driver/nvidia-caps/mig-minors does not list it: run `nvidia-modprobe -m`"
                )
            of_gi = (f"GPU instance {mig.gi}", "")
            of_ci = (f"compute instance {mig.ci}", f"{_key(s.gpu)}/{mig.gi}/{mig.ci}")
            for (what, key), node in zip((of_gi, of_ci), mig.nodes, strict=True):
                reason = f"MIG capability of {what} of GPU {s.gpu.index}"
                made.setdefault(node.path, _device_node(node, reason, node.mode, key))
    return list(made.values())


def _draws(selected: Selected) -> bool:
    """Whether the DRM nodes of the GPU belong in the container: a MIG device cannot draw, unless its profile says so."""
    return not selected.mig or any(mig.profile.endswith("gfx") for mig in selected.mig)


def _is_wanted(library: Library, needed: tuple[str, ...], capabilities: tuple[str, ...]) -> bool:
    return any(c in needed for c in library.capabilities) and (not library.compat32 or "compat32" in capabilities)


def _needs_control(node: HostNode, compute: bool, display: bool) -> bool:
    if node.path.startswith("/dev/nvidia-uvm"):
        return compute
    return node.path != "/dev/nvidia-modeset" or display


def _control_node(node: HostNode) -> DeviceNode:
    reasons = {"/dev/nvidiactl": "every GPU container", "/dev/nvidia-modeset": "capability display"}
    return _device_node(node, reasons.get(node.path, "capability compute"), 0o666)


def _device_node(node: HostNode, reason: str, mode: int | None = None, gpu: str = "") -> DeviceNode:
    gid = node.gid if mode is None else 0
    file_mode = node.mode if mode is None else mode
    return DeviceNode(node.path, node.host_path, "c", node.major, node.minor, file_mode, 0, gid, "rw", reason, gpu)


def _drm_link(gpu: Gpu, node: HostNode) -> Link:
    name = node.path.rpartition("/")[2]
    kind = "card" if name.startswith("card") else "render"
    return Link(f"/dev/dri/by-path/pci-{gpu.bus_id}-{kind}", f"../{name}", f"DRM node of GPU {gpu.index}")
