"""The work of NVIDIA's CDI hooks turned into edits, so that no program of the host runs in a container's namespaces.

The same is done for hooks that an engine has put into the config when it injected a device itself (``docker run --device
nvidia.com/gpu=0``): the mounts they speak of are then the config's.
"""

from __future__ import annotations

import posix
from _stat import S_ISREG

from gpurun.cdi.edits import CacheEntry, Chmod, ContainerEdits, EditMount, ForwardCompat, Hook, Link, ProcTree, conf_files
from gpurun.errors import Step, StepError
from gpurun.formats.elf import EM_386, EM_AARCH64, EM_ARM, EM_X86_64, read_elf
from gpurun.formats.ldcache import FLAGS_COMPAT32, FLAGS_NATIVE
from gpurun.gpu.nvidia.cdi.known_hooks import HookCall, as_known_call, library_names, links_of
from gpurun.gpu.nvidia.host.device_numbers import node_minors
from gpurun.gpu.nvidia.host.file_names import COMPAT_ROOT
from gpurun.gpu.nvidia.host.gpus import numa_nodes
from gpurun.gpu.nvidia.host.roots import roots_from_environment
from gpurun.linux.files import O_CLOEXEC, Fd
from gpurun.ns.path import UNUSABLE
from gpurun.paths import clean_path
from gpurun.record import Record, replace

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from gpurun.cdi.edits import DeviceNode
    from gpurun.gpu.request.injected import Injected
    from gpurun.oci.config import Device, Mount, OciHook

    Node = Device | DeviceNode

_FLAGS = {
    EM_X86_64: FLAGS_NATIVE["x86_64"],
    EM_386: FLAGS_COMPAT32["x86_64"],
    EM_AARCH64: FLAGS_NATIVE["aarch64"],
    EM_ARM: FLAGS_COMPAT32["aarch64"],
}
MAX_LIBRARIES = 4096


class ContainerLibrary(Record):
    """A library at *path* in the container: its SONAME, or else its file's name, and the *flags* of the loader's cache."""

    path: str
    soname: str
    flags: int


class _Bound(Record):
    """A file or directory of the host that the container gets at *path*."""

    host_path: str
    path: str


def do_known_hooks(edits: ContainerEdits, own_env: Mapping[str, str]) -> ContainerEdits:
    """*edits* with the work of their known hooks as data; the others are still hooks.

    *own_env* is the environment of gpurun itself (GPURUN_SYSROOT).
    """
    calls = [(hook, as_known_call(hook)) for hook in edits.hooks]
    if not any(call for _, call in calls):
        return edits
    bound = [_Bound(m.host_path, m.container_path) for m in edits.mounts]
    bound += [_Bound(m.source, m.destination) for m in edits.config_mounts if m.source.startswith("/")]
    done = _work([(hook, call) for hook, call in calls if call], bound, edits.device_nodes, own_env)
    return replace(
        edits,
        links=edits.links + done.links,
        ldcache=edits.ldcache + done.ldcache,
        proc_trees=edits.proc_trees + done.proc_trees,
        chmods=edits.chmods + done.chmods,
        image_files=edits.image_files + done.image_files,
        forward_compat=done.forward_compat or edits.forward_compat,
        hooks=tuple([hook for hook, call in calls if call is None]),
    )


def take_over(injected: Injected, own_env: Mapping[str, str]) -> ContainerEdits | None:
    """The edits that do the work of the known hooks among those *injected* into a config; ``None`` without any.

    Files that the hooks are about are bound by the edits instead, so
    that what they leave in the image is taken away again.
    """
    calls = []
    mounts, devices = injected.mounts, injected.devices
    staged = [("createContainer", hook) for hook in injected.hooks]
    for stage, one in staged + [("createRuntime", hook) for hook in injected.runtime_hooks]:
        hook = Hook(stage, one.path, one.args, one.env or (), one.timeout, "a CDI hook that the engine has put in")
        call = as_known_call(hook)
        if call is not None:
            calls.append((hook, call))
    if not calls:
        return None
    folders = {clean_path(f) for _, call in calls for f in call.values("folder")}
    folders |= {path.rpartition("/")[0] for _, call in calls for path, _ in links_of(call)}
    files = []
    bound = []
    for mount in mounts:
        if not mount.source.startswith("/") or not _is_bind(mount):
            continue
        bound.append(_Bound(mount.source, clean_path(mount.destination)))
        if clean_path(mount.destination).rpartition("/")[0] in folders:
            real = _real_file(mount.source)
            if real:
                reason = "bound by the engine, beside it links are to be made"
                files.append(EditMount(real, clean_path(mount.destination), mount.options, "file", reason))
    done = _work(calls, bound, devices, own_env)
    numa = numa_nodes(roots_from_environment(own_env), node_minors(devices))
    return replace(done, mounts=tuple(files), replaced_hooks=tuple([hook for hook, _ in calls]), numa_nodes=numa)


def hook_work(
    call: HookCall,
    hooks: tuple[OciHook, ...],
    mounts: tuple[Mount, ...],
    devices: tuple[Device, ...],
    own_env: Mapping[str, str],
    libraries: tuple[ContainerLibrary, ...] = (),
) -> ContainerEdits:
    """The edits for one *call* of a hook in a container of another runtime, whose config has createContainer *hooks*,
    *mounts* and *devices*; *libraries* are there beside those that are mounted.

    The loader's cache is composed once, with all that has to be in it: an update-ldcache does what the create-symlinks and
    enable-cuda-compat beside it ask for as well, and the latter by itself does nothing.
    """
    calls = [call]
    if call.command in ("enable-cuda-compat", "update-ldcache"):
        every = [as_known_call(Hook("createContainer", hook.path, hook.args)) for hook in hooks]
        beside = [one for one in every if one is not None]
        if call.command == "enable-cuda-compat" and any(one.command == "update-ldcache" for one in beside):
            return ContainerEdits()
        if call.command == "update-ldcache":
            calls += [one for one in beside if one.command in ("create-symlinks", "enable-cuda-compat")]
    bound = [_Bound(m.source, clean_path(m.destination)) for m in mounts if m.source.startswith("/") and _is_bind(m)]
    reason = Hook("createContainer", "", reason="the container's CDI devices")
    return _work([(reason, one) for one in calls], bound, devices, own_env, libraries)


def _is_bind(mount: Mount) -> bool:
    return mount.type == "bind" or bool({"bind", "rbind"} & set(mount.options))


class _Work:
    """What calls of hooks come to, gathered one call at a time."""

    def __init__(self, nodes: tuple[Node, ...], own_env: Mapping[str, str]) -> None:
        self._nodes, self._own_env = nodes, own_env
        self._minors = node_minors(nodes)
        self.links: dict[str, Link] = {}
        self.chmods: list[Chmod] = []
        self.compat: ForwardCompat | None = None
        self.trees: dict[str, ProcTree] = {}

    def add(self, hook: Hook, call: HookCall) -> None:
        """Do *call*, but for the loader's cache, which is made once for all (:func:`_loader_cache`)."""
        reason = f"{call.command} of {hook.reason}"
        if call.command == "create-symlinks":
            for path, target in links_of(call):
                self.links[path] = Link(path, target, reason, optional=True)
        elif call.command == "chmod":
            self.chmods += [Chmod(path, int(call.value("mode"), 8), reason) for path in call.values("path")]
        elif call.command == "enable-cuda-compat":
            driver, cuda = call.value("host-driver-version"), call.value("host-cuda-version")
            if driver or cuda:
                directory = call.value("cuda-compat-container-root", COMPAT_ROOT)
                self.compat = ForwardCompat(directory, driver, reason, cuda)
        elif call.command == "disable-device-node-modification":
            # The hook would see the host as its own environment says.
            own = dict([e.split("=", 1) for e in hook.env if "=" in e])
            self._add_trees(*proc_filter(self._nodes, own if "GPURUN_SYSROOT" in own else self._own_env))
        elif call.command == "update-application-profile" and self._minors:
            from gpurun.gpu.nvidia.edits.proc_files import application_profile

            self._add_trees(application_profile(self._minors))

    def _add_trees(self, *trees: ProcTree) -> None:
        self.trees.update({tree.path: tree for tree in trees})


def _work(
    calls: list[tuple[Hook, HookCall]],
    bound: list[_Bound],
    nodes: tuple[Node, ...],
    own_env: Mapping[str, str],
    libraries: tuple[ContainerLibrary, ...] = (),
) -> ContainerEdits:
    """The work of *calls* in a container with the files *bound*, more *libraries*, and the device nodes *nodes*."""
    done = _Work(nodes, own_env)
    for hook, call in calls:
        done.add(hook, call)
    folders = tuple(dict.fromkeys([clean_path(f) for _, call in calls for f in call.values("folder")]))
    entries = _loader_cache(folders, (*_libraries(folders, bound), *libraries)[:MAX_LIBRARIES], done.links)
    return ContainerEdits(
        links=tuple(done.links.values()),
        ldcache=entries,
        proc_trees=tuple(done.trees.values()),
        chmods=tuple(done.chmods),
        image_files=conf_files(entries),
        forward_compat=done.compat,
    )


def _loader_cache(
    folders: tuple[str, ...], libraries: tuple[ContainerLibrary, ...], links: dict[str, Link]
) -> tuple[CacheEntry, ...]:
    """The loader's cache for *libraries* in *folders*; *links* gets those that their SONAMEs need."""
    cache: list[CacheEntry] = []
    for library in libraries:
        directory, _, name = library.path.rpartition("/")
        link = f"{directory}/{library.soname}"
        if library.soname != name:
            links.setdefault(link, Link(link, name, f"SONAME of {name}", optional=True))
        cache.append(CacheEntry(library.soname, link, library.flags))
    flags_of = {entry.path: entry.flags for entry in cache}
    for path, made in links.items():
        directory, _, name = path.rpartition("/")
        target = clean_path(made.target if made.target.startswith("/") else f"{directory}/{made.target}")
        if directory in folders and name.startswith("lib") and name.endswith(".so") and target in flags_of:
            cache.append(CacheEntry(name, path, flags_of[target]))  # ldconfig has the names for linking as well
    return tuple(dict.fromkeys(cache))


def _libraries(folders: tuple[str, ...], bound: list[_Bound]) -> tuple[ContainerLibrary, ...]:
    """The libraries bound in *folders*.

    They are read on the host, where the mounts come from: the image has no say in it.
    """
    found = []
    for one in bound:
        directory, _, name = one.path.rpartition("/")
        if directory in folders and name.startswith("lib") and ".so" in name:
            found.append(_library(one.host_path, one.path))
        inside = [f for f in folders if f == one.path or f.startswith(f"{one.path.rstrip('/')}/")]
        for folder in inside:
            host = one.host_path + folder[len(one.path.rstrip("/")) :]
            found += [_library(f"{host}/{name}", f"{folder}/{name}") for name in _names(host)]
    return tuple([library for library in found if library is not None])


def _names(directory: str) -> list[str]:
    """Raises :class:`StepError`."""
    try:
        fd = posix.open(directory, posix.O_RDONLY | posix.O_DIRECTORY | O_CLOEXEC)
    except OSError as e:
        if e.errno in UNUSABLE:
            return []  # a file, or a folder that the mount does not have
        raise StepError("look for libraries in", directory, e.errno) from None
    with Fd(fd):
        return library_names(fd)


def _library(host_path: str, path: str) -> ContainerLibrary | None:
    """The library of the host that the container gets at *path*, if it is one.  Raises :class:`StepError`."""
    try:
        fd = posix.open(host_path, posix.O_RDONLY | posix.O_NONBLOCK | O_CLOEXEC)
    except OSError as e:
        if e.errno in UNUSABLE:
            return None
        raise StepError("open the library", host_path, e.errno) from None
    with Fd(fd):
        return library_of(fd, path) if S_ISREG(posix.fstat(fd).st_mode) else None


def library_of(fd: int, path: str) -> ContainerLibrary | None:
    """The library *fd*, a regular file, that the container has at *path*; None where it is for no machine that the cache
    knows.  Raises :class:`StepError` where it cannot be read."""
    with Step("read the library", path):
        elf = read_elf(fd)
    if elf is None or elf.machine not in _FLAGS:
        return None
    return ContainerLibrary(path, elf.soname or path.rpartition("/")[2], _FLAGS[elf.machine])


def _real_file(path: str) -> str:
    """The real path of a regular file, empty for anything else.  Raises :class:`StepError`."""
    try:
        fd = posix.open(path, posix.O_RDONLY | posix.O_NONBLOCK | O_CLOEXEC)
    except OSError as e:
        if e.errno in UNUSABLE:
            return ""
        raise StepError("open the file that the engine binds,", path, e.errno) from None
    with Fd(fd):
        return posix.readlink(f"/proc/self/fd/{fd}") if S_ISREG(posix.fstat(fd).st_mode) else ""


def proc_filter(nodes: tuple[Node, ...], own_env: Mapping[str, str]) -> list[ProcTree]:
    """/proc/driver/nvidia with the GPUs of a container with the device *nodes* only; none on a host without the driver."""
    from gpurun.gpu.nvidia.edits.proc_files import proc_tree
    from gpurun.gpu.nvidia.host.driver import proc_files
    from gpurun.gpu.nvidia.host.gpus import read_gpus
    from gpurun.gpu.nvidia.request.selection import Selected

    roots = roots_from_environment(own_env)
    files = proc_files(roots)
    if not files:
        return []
    minors = node_minors(nodes)
    numbers = {(node.major, node.minor) for node in nodes}
    selected = []
    for gpu in read_gpus(roots):
        if gpu.minor in minors:
            mig = tuple([m for m in gpu.mig if m.nodes and all((n.major, n.minor) in numbers for n in m.nodes)])
            selected.append(Selected(gpu, not mig, mig))
    return [proc_tree(files, f"{roots.sysroot}/proc/driver/nvidia", tuple(selected))]
