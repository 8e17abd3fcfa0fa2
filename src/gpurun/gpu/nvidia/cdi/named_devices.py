"""Requests by CDI names: which ids are looked up in the CDI files of this host, and which are served without any file.

The mode of the site's ``config.toml`` decides, as under NVIDIA's runtime:

=========  ==================  =====================================  ============
mode       plain ids           ``nvidia.com/gpu=…``                   annotations
=========  ==================  =====================================  ============
auto       from the driver     from the files                         ignored
cdi        from the files      from the files, also with plain ids    honoured
jit-cdi    from the driver     from the driver, never stale           ignored
legacy     from the driver     refused                                ignored
=========  ==================  =====================================  ============

A plain id in the mode ``cdi``, in the environment as in annotations, is a device of the site's default kind.  In every
other mode plain ids and CDI names do not go together.  ``runtime.nvidia.com/gpu=…`` always means the driver,
and so does ``management.nvidia.com/gpu=…`` but for ``all``: the GPU Operator writes a file only for that one.

Annotations are ignored unless the site asks for them: an engine that injects CDI devices (containerd, CRI-O) leaves its
annotations in place, and has done all they ask for.
"""

from __future__ import annotations

import posix

from gpurun.cdi.files import DEFAULT_DIRS, read_registry
from gpurun.cdi.inject import inject
from gpurun.cdi.names import device_problem, parse_qualified
from gpurun.errors import ConfigError, GpurunError, clean
from gpurun.gpu.nvidia.cdi.capabilities import concerns, with_files_of, without_loose_ends
from gpurun.gpu.nvidia.cdi.hook_work import do_known_hooks, proc_filter
from gpurun.gpu.nvidia.cdi.stale import stale_files
from gpurun.gpu.nvidia.host.device_numbers import node_minors
from gpurun.gpu.nvidia.host.driver import module_version
from gpurun.gpu.nvidia.host.gpus import numa_nodes
from gpurun.gpu.nvidia.request.environment import names_capabilities, read_needs
from gpurun.gpu.nvidia.request.records import is_qualified
from gpurun.gpu.vendors import VENDORS, place, present
from gpurun.linux.procfs import in_user_namespace
from gpurun.record import replace

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from gpurun.cdi.edits import ContainerEdits
    from gpurun.cdi.files import Registry
    from gpurun.gpu.nvidia.host.roots import Roots
    from gpurun.gpu.nvidia.request.records import GpuRequest
    from gpurun.gpu.nvidia.request.settings import Settings

JIT_KIND = "runtime.nvidia.com/gpu"
_MANAGEMENT_KIND = "management.nvidia.com/gpu"
_MAX_ANNOTATION = 64 * 1024


def spec_dirs(settings: Settings, own_env: Mapping[str, str]) -> tuple[str, ...]:
    """Where CDI files are looked for, in ascending precedence: the site's directories, else the usual ones; then, for
    whoever is not the host's root, the user's own, ``$XDG_CONFIG_HOME/cdi``, as rootless Podman does.
    """
    sysroot = own_env.get("GPURUN_SYSROOT", "").rstrip("/")
    usual = tuple([sysroot + directory for directory in settings.spec_dirs or DEFAULT_DIRS])
    return usual + user_spec_dirs(own_env)


def user_spec_dirs(own_env: Mapping[str, str]) -> tuple[str, ...]:
    """The user's own directory of CDI files, if the caller is not the host's root."""
    home = own_env.get("HOME", "")
    config = own_env.get("XDG_CONFIG_HOME") or (f"{home}/.config" if home else "")
    if not config.startswith("/") or (posix.geteuid() == 0 and not in_user_namespace()):
        return ()
    return (f"{config.rstrip('/')}/cdi",)


def _advice(kind: str, dirs: tuple[str, ...], own_env: Mapping[str, str]) -> str:
    """What writes a file of devices of *kind* into one of *dirs*; empty for a kind that is not a known maker's GPUs."""
    for vendor in VENDORS:
        if vendor.kind == kind:
            from gpurun.gpu.offers import generate_advice

            if vendor is not VENDORS[0] and vendor not in present(own_env):
                return f"this host has no GPU of {vendor.title}'s"
            return generate_advice(dirs, vendor)
    return ""


def annotated_devices(annotations: Mapping[str, str], prefixes: tuple[str, ...], kind: str) -> tuple[str, ...]:
    """The device names in the annotations with one of *prefixes*, in the order of their keys, each once.

    A name without a kind is one of *kind*.  Raises :class:`ConfigError` for a text that is not the name of a device.
    """
    names: list[str] = []
    for key in sorted(annotations):
        if not key.startswith(prefixes):
            continue
        value = annotations[key]
        where = f"annotations.{key}"
        if len(value) > _MAX_ANNOTATION:
            raise ConfigError(where, f"is {len(value)} characters long, more than {_MAX_ANNOTATION} are not read")
        for name in [part.strip() for part in value.split(",")]:
            qualified = name if "=" in name else f"{kind}={name}"
            if parse_qualified(qualified) is None:
                raise ConfigError(where, f'"{clean(name)}" is neither a CDI device name vendor/class=device nor a device')
            names.append(qualified)
    return tuple(dict.fromkeys(names))


def route(
    request: GpuRequest | None, annotations: Mapping[str, str], settings: Settings, env: tuple[str, ...], roots: Roots
) -> tuple[GpuRequest | None, tuple[str, ...]]:
    """What is left of *request* for the driver, and the names that the CDI files are to serve.

    *env* is ``process.env``: who names CDI devices gets all of the driver, as from a file, unless it says what is needed.
    Raises :class:`ConfigError`, also for NVIDIA_REQUIRE_* that the driver of *roots* does not meet.  Returns (request or
    None, names).
    """
    names: tuple[str, ...] = ()
    if settings.mode == "cdi":
        names = annotated_devices(annotations, settings.annotation_prefixes, settings.default_kind)
    if names:
        ids, found = split_devices(names, settings, "annotations")
        if any(name.startswith(f"{JIT_KIND}=") for name in names):
            raise ConfigError("annotations", f"{JIT_KIND} cannot be named in annotations: use process.env")
        needs = read_needs(env, settings.policy)
        _check_requirements(needs, found, roots)
        return (_of_driver(needs, ids, settings, env, "annotations") if ids else None), found
    if request is None or request.denied or not (request.devices or request.qualified):
        return request, ()
    ids, found = split_devices(request.qualified or request.devices, settings, place(request.source))
    if not ids:
        _check_requirements(request, found, roots)
        return None, found
    if request.qualified:
        return _of_driver(request, ids, settings, env, request.source), found
    return replace(request, devices=ids), found


def _of_driver(
    request: GpuRequest, ids: tuple[str, ...], settings: Settings, env: tuple[str, ...], source: str
) -> GpuRequest:
    """*request* for the devices *ids* of the driver, with all capabilities unless *env* says which."""
    capabilities = request.capabilities
    if not names_capabilities(env):
        capabilities = tuple(sorted(settings.policy.supported_capabilities))
    return replace(request, devices=ids, qualified=(), capabilities=capabilities, source=source)


def split_devices(devices: tuple[str, ...], settings: Settings, source: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """(ids for the driver, names for the CDI files) of a request.  Raises :class:`ConfigError`; see the module."""
    ids: list[str] = []
    names: list[str] = []
    jit = False
    if settings.mode != "cdi" and len({is_qualified(device) for device in devices}) == 2:
        listed = clean(",".join(devices))
        text = f"mixes CDI device names with other device ids in '{listed}': use one form for all, or the mode \"cdi\""
        raise ConfigError(source, text)
    for device in devices:
        qualified = parse_qualified(device) if "=" in device else None
        if qualified is None:
            if "=" in device or (settings.mode == "cdi" and device_problem(device)):
                problem = device_problem(device) if "=" not in device else "it is not of the form vendor/class=device"
                raise ConfigError(source, f"{clean(device)} is not a CDI device name: {problem}")
            if settings.mode == "cdi" and not _is_of_driver(settings, settings.default_kind, device):
                names.append(f"{settings.default_kind}={device}")
            else:
                ids.append(device)
        elif qualified.kind == JIT_KIND:
            jit = True
            ids.append(qualified.device)
        elif settings.mode == "legacy":
            raise ConfigError(
                source, f'{clean(device)}: the mode "legacy" of config.toml does not support CDI devices: use auto or cdi'
            )
        elif _is_of_driver(settings, qualified.kind, qualified.device):
            ids.append(qualified.device)
        else:
            names.append(device)
    if jit and names:
        text = "requesting a CDI device with vendor 'runtime.nvidia.com' is not supported when requesting other CDI devices"
        raise ConfigError(source, text)
    return tuple(dict.fromkeys(["all"] if "all" in ids else ids)), tuple(dict.fromkeys(names))


def _is_of_driver(settings: Settings, kind: str, device: str) -> bool:
    """Whether the driver serves *device*, whatever file there is for its *kind*."""
    if settings.mode == "jit-cdi" and kind == settings.default_kind:
        return True
    return kind == _MANAGEMENT_KIND and device != "all"


def _check_requirements(request: GpuRequest, names: tuple[str, ...], roots: Roots) -> None:
    """NVIDIA_REQUIRE_* of an image holds for its devices wherever they come from, as far as the driver's files say."""
    if not request.requirements or not any(name.startswith("nvidia.com/") for name in names):
        return
    version = module_version(roots)
    if version:
        from gpurun.gpu.nvidia.request.require import check, properties

        check(request.requirements, (properties(version),))


def cdi_edits(
    names: tuple[str, ...],
    settings: Settings,
    own_env: Mapping[str, str],
    roots: Roots,
    capabilities: tuple[str, ...] | None = None,
) -> ContainerEdits:
    """The edits of the CDI devices *names*, their known hooks done as data; warnings tell of stale files.

    *capabilities* are those that the container names itself: of NVIDIA's GPUs it gets no more; all where it names none.
    Raises :class:`GpurunError`.
    """
    registry = read_registry(spec_dirs(settings, own_env))
    stale = stale_files(_only_files_of(names, registry), roots)
    try:
        whole = inject(names, registry, lambda kind: _advice(kind, registry.dirs, own_env))
        if capabilities is not None and concerns(names):
            edits = do_known_hooks(with_files_of(whole, capabilities), own_env)
            edits = without_loose_ends(edits, whole, capabilities)
        else:
            edits = do_known_hooks(whole, own_env)
        if concerns(names):
            edits = _with_proc_filter(edits, own_env)
    except ConfigError as e:
        if stale:  # the likely reason comes with it
            raise GpurunError(f"{e} ({'; '.join(stale)})") from None
        raise
    compat = edits.forward_compat if settings.forward_compat else None
    numa = numa_nodes(roots, node_minors(edits.device_nodes))
    return replace(edits, warnings=edits.warnings + stale, forward_compat=compat, numa_nodes=numa)


def _with_proc_filter(edits: ContainerEdits, own_env: Mapping[str, str]) -> ContainerEdits:
    """*edits* with the filtered /proc/driver/nvidia, which a file written without its hook would leave as the host's."""
    from gpurun.gpu.nvidia.edits.proc_files import PROC_PATH

    if any(tree.path == PROC_PATH for tree in edits.proc_trees):
        return edits
    return replace(edits, proc_trees=edits.proc_trees + tuple(proc_filter(edits.device_nodes, own_env)))


def _only_files_of(names: tuple[str, ...], registry: Registry) -> Registry:
    paths = {registry.devices[name].file.path for name in names if name in registry.devices}
    return replace(registry, files=tuple([file for file in registry.files if file.path in paths]))
