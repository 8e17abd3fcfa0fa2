"""The driver of this host as a CDI specification: what our own edits would bring, written down for other runtimes.

Each device is the edits of a request for it; what a container gets with any device, or without one, stands once in the
specification's own edits.  Links, the loader's cache and the masks of procfs become hooks: calls of gpurun itself under the
names of NVIDIA's hooks, which gpurun does without running them.  Nothing depends on time or order: twice the same bytes.
"""

from __future__ import annotations

import posix

from gpurun.cdi.document import CdiDevice, CdiEdits, CdiHook, CdiMount, CdiNode, CdiSpec, minimum_version
from gpurun.cdi.edits import directories
from gpurun.cdi.names import class_problem, vendor_problem
from gpurun.errors import GpuError, UsageError
from gpurun.gpu.nvidia.cdi.generated import Generated, union
from gpurun.gpu.nvidia.cdi.known_hooks import COMMANDS
from gpurun.gpu.nvidia.edits.driver import edits as nvidia_edits
from gpurun.gpu.nvidia.edits.features import COHERENT, FEATURES, HOOKS, NO_GIDS, without_features
from gpurun.gpu.nvidia.host.driver import read_driver
from gpurun.gpu.nvidia.host.file_names import CAPABILITIES, COMPAT_ROOT
from gpurun.gpu.nvidia.host.identity import ask
from gpurun.gpu.nvidia.host.roots import Roots, bus_order
from gpurun.gpu.nvidia.request.records import GpuRequest
from gpurun.gpu.nvidia.request.selection import find_gpu, find_mig, identify, is_mig
from gpurun.record import replace

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from gpurun.cdi.edits import CacheEntry, ContainerEdits, DeviceNode, ForwardCompat
    from gpurun.gpu.nvidia.cdi.generated import GenerateOptions
    from gpurun.gpu.nvidia.host.gpus import Gpu
    from gpurun.gpu.nvidia.host.identity import GpuIdentity
    from gpurun.gpu.nvidia.host.mig import MigDevice

STRATEGIES = ("index", "uuid", "type-index")


def check_options(options: GenerateOptions) -> None:
    """Raises :class:`UsageError` for names that no CDI file may have, and for what asks for every hook."""
    for word in options.strategies:
        if word not in STRATEGIES:
            raise UsageError(f'--device-name-strategy: "{word}" is not one of {", ".join(STRATEGIES)}')
    if "all" in options.enabled_hooks:
        raise UsageError("--enable-hook: all hooks together cannot be enabled, name each")
    for problem in (vendor_problem(options.vendor), class_problem(options.cls)):
        if problem:
            raise UsageError(problem)


def unused_options(options: GenerateOptions) -> tuple[str, ...]:
    """A sentence for each feature and hook that is asked for and changes nothing.

    What is not known is left out, as in NVIDIA's generator: a newer version may know it.
    """
    said = []
    for flag in dict.fromkeys(options.features):
        if flag not in FEATURES:
            said.append(f"--feature-flag {flag} is not known and left out: known are {', '.join(FEATURES)}")
        elif FEATURES[flag]:
            said.append(f"--feature-flag {flag} changes nothing: {FEATURES[flag]}")
    for option, hooks in (("disable-hook", options.disabled_hooks), ("enable-hook", options.enabled_hooks)):
        unknown = [hook for hook in dict.fromkeys(hooks) if hook not in (*HOOKS, "all")]
        said += [f"--{option} {hook} is not known and left out: known are {', '.join(HOOKS)}" for hook in unknown]
    return tuple(said)


def generate(roots: Roots, options: GenerateOptions, own_env: Mapping[str, str]) -> Generated:
    """The specification of the GPUs and MIG devices of this host.

    Raises :class:`UsageError` for bad options and :class:`GpuError` for a host without what is needed.
    """
    check_options(options)
    driver = without_features(read_driver(roots, CAPABILITIES, own_env), options.features)
    warnings = unused_options(options)
    identities: tuple[GpuIdentity, ...] = ()
    divided = any(gpu.mig for gpu in driver.gpus)
    if divided or COHERENT in options.features:
        try:
            identities = ask(roots)
        except GpuError as e:
            without = ["MIG devices are named as far as can be"] if divided else []
            without += ["no device says whether it is coherent"] if COHERENT in options.features else []
            warnings += (f"{e}: {' and '.join(without)} without it",)
        driver = replace(driver, gpus=identify(driver.gpus, identities))
    none = nvidia_edits(GpuRequest((), CAPABILITIES), driver)
    if next((device for device in options.devices if device in ("none", "all")), "") == "none":
        spec = assemble(none, ((("none",), none),), replace(options, all_device=False), own_env)
        # The driver without any GPU; a CDI device must have an edit.
        return Generated(replace(spec, devices=(CdiDevice("none", CdiEdits(env=("NVCT_EMPTY_DEVICE=",))),)), warnings)
    if not driver.gpus:
        raise GpuError("no GPU on this host: a CDI specification needs at least one device")
    wanted = _select_devices(options.devices, driver.gpus)
    made: list[tuple[tuple[str, ...], ContainerEdits]] = []
    for gpu, mig in wanted:
        names = device_names(gpu, mig, options.strategies)
        if not names:
            text = f"MIG device {gpu.index} GI {mig.gi} CI {mig.ci}" if mig else f"GPU {gpu.index}"
            warnings += (f"{text} is left out: the driver does not report its {' or '.join(options.strategies)}",)
            continue
        device = f"MIG-{gpu.uuid}/{mig.gi}/{mig.ci}" if mig else str(gpu.index)
        made.append((names, nvidia_edits(GpuRequest((device,), CAPABILITIES), driver)))
    if not made:
        raise GpuError("; ".join(["no device could be named", *warnings]))
    spec = assemble(none, tuple(made), options, own_env)
    if COHERENT in options.features:
        from gpurun.gpu.nvidia.cdi.coherent import annotate

        coherent = {bus_order(i.bus_id): i.coherent for i in identities}
        gpus = [gpu for gpu, mig in wanted if not mig]
        whole = [(device_names(gpu, None, options.strategies), coherent.get(bus_order(gpu.bus_id))) for gpu in gpus]
        spec = annotate(spec, {name: known for names, known in whole if known is not None for name in names})
    return Generated(spec, warnings)


def assemble(
    none: ContainerEdits,
    devices: tuple[tuple[tuple[str, ...], ContainerEdits], ...],
    options: GenerateOptions,
    own_env: Mapping[str, str],
) -> CdiSpec:
    """The specification of *devices* (their names and edits); *none* is what comes without any device."""
    # Files that every device brings (firmware) are the specification's; nodes are, if they come without any device.
    common_mounts = [m for m in devices[0][1].mounts if all(m in e.mounts for _, e in devices)]
    common = replace(none, mounts=tuple(common_mounts))
    # Where newer libraries of an image could not work on one of the GPUs (GeForce), they are not looked for.
    every_compat = [edits.forward_compat for _, edits in devices]
    compat = None if None in every_compat else every_compat[0]
    hooks = _common_hooks(common, compat, options, own_env)
    env = _libcuda_dir(common.ldcache)
    shared = CdiEdits(
        env=(*env, "NVIDIA_VISIBLE_DEVICES=void"),
        device_nodes=_nodes(common.device_nodes),
        hooks=hooks,
        mounts=_mounts(common),
    )
    made: dict[str, CdiEdits] = {}
    every: list[CdiEdits] = []
    for names, edits in devices:
        own = _device_edits(edits, common, options, own_env)
        every.append(own)
        for name in names:
            made.setdefault(name, own)
    if options.all_device and "all" not in made:
        made["all"] = union(every)
    found = tuple([CdiDevice(name, edits) for name, edits in made.items()])
    spec = CdiSpec("", f"{options.vendor}/{options.cls}", found, shared)
    return replace(spec, version=minimum_version(spec))


def _libcuda_dir(entries: tuple[CacheEntry, ...]) -> tuple[str, ...]:
    """The variable with all directories of the driver's libraries, libcuda's first; empty where there is no libcuda."""
    first = [entry for entry in entries if entry.soname == "libcuda.so.1"]
    return (f"NVIDIA_CTK_LIBCUDA_DIR={':'.join(directories((*first, *entries)))}",) if first else ()


def _select_devices(ids: tuple[str, ...], gpus: tuple[Gpu, ...]) -> list[tuple[Gpu, MigDevice | None]]:
    """The devices to describe: whole GPUs, and the MIG devices of those that are divided."""
    every: list[tuple[Gpu, MigDevice | None]] = []
    for gpu in gpus:
        if not gpu.apart:
            every += [(gpu, mig) for mig in gpu.mig] or [(gpu, None)]
    if "all" in ids:
        return every
    chosen: list[tuple[Gpu, MigDevice | None]] = []
    for device in ids:
        one: tuple[Gpu, MigDevice | None] = find_mig(device, gpus) if is_mig(device) else (find_gpu(device, gpus), None)
        if one not in chosen:
            chosen.append(one)
    return chosen


def device_names(gpu: Gpu, mig: MigDevice | None, strategies: tuple[str, ...]) -> tuple[str, ...]:
    """The names of a GPU, or of one of its MIG devices, as far as they are known."""
    names = []
    for strategy in strategies:
        uuid = mig.uuid if mig else gpu.uuid
        if strategy == "uuid":
            if uuid and "?" not in uuid:
                names.append(uuid)
            continue
        # NVML's number, which procfs does not tell; a single device can only be number 0.
        number = f":{mig.index if mig.index >= 0 else 0}" if mig else ""
        if mig and mig.index < 0 and len(gpu.mig) > 1:
            continue
        kind = "" if strategy == "index" else "mig" if mig else "gpu"
        names.append(f"{kind}{gpu.index}{number}")
    return tuple(dict.fromkeys(names))


def _nodes(nodes: tuple[DeviceNode, ...]) -> tuple[CdiNode, ...]:
    """Nodes by path, so that a reader takes the numbers of the moment; with their numbers where the host lacks them."""
    made = []
    for node in sorted(nodes, key=lambda n: n.path):
        host = node.host_path if node.host_path != node.path else ""
        gid = node.gid or None
        permissions = node.permissions or "none"
        try:
            posix.lstat(node.host_path or node.path)
        except OSError:
            made.append(CdiNode(node.path, host, node.type, node.major, node.minor, node.file_mode, permissions, gid=gid))
        else:
            made.append(CdiNode(node.path, host, permissions=permissions, gid=gid))
    return tuple(made)


def _mounts(edits: ContainerEdits) -> tuple[CdiMount, ...]:
    made = [CdiMount(m.host_path, m.container_path, m.options) for m in edits.mounts]
    return tuple(sorted(made, key=lambda m: (m.container_path, m.host_path)))


def _device_edits(
    edits: ContainerEdits, common: ContainerEdits, options: GenerateOptions, own_env: Mapping[str, str]
) -> CdiEdits:
    own = replace(
        edits,
        device_nodes=tuple([node for node in edits.device_nodes if node not in common.device_nodes]),
        mounts=tuple([mount for mount in edits.mounts if mount not in common.mounts]),
        links=tuple([link for link in edits.links if link not in common.links]),
    )
    hooks = []
    if own.links and _is_enabled("create-symlinks", options):
        words = [word for link in own.links for word in ("--link", f"{link.target}::{link.path}")]
        hooks.append(_hook("create-symlinks", words, options, own_env))
    folders = sorted({n.path.rpartition("/")[0] for n in own.device_nodes if n.path.count("/") > 2})
    if folders and _is_enabled("chmod", options):
        words = ["--mode", "755", *[word for folder in folders for word in ("--path", folder)]]
        hooks.append(_hook("chmod", words, options, own_env))
    gids = () if NO_GIDS in options.features else edits.additional_gids
    return CdiEdits(device_nodes=_nodes(own.device_nodes), hooks=tuple(hooks), mounts=_mounts(own), additional_gids=gids)


def _common_hooks(
    common: ContainerEdits, compat: ForwardCompat | None, options: GenerateOptions, own_env: Mapping[str, str]
) -> tuple[CdiHook, ...]:
    links = [
        word for link in sorted(common.links, key=lambda x: x.path) for word in ("--link", f"{link.target}::{link.path}")
    ]
    folders = sorted({entry.path.rpartition("/")[0] for entry in common.ldcache})
    ldcache = ["--ldconfig-path", options.ldconfig_path] if options.ldconfig_path else []
    ldcache += [word for folder in folders for word in ("--folder", folder)]
    words: dict[str, list[str] | None] = {
        "create-symlinks": links or None,
        "enable-cuda-compat": None if compat is None else _compat_words(compat),
        "update-ldcache": ldcache if folders else None,
        "disable-device-node-modification": [],
        "update-application-profile": [],
    }
    return tuple(
        [
            _hook(name, more, options, own_env)
            for name, more in words.items()
            if more is not None and _is_enabled(name, options) and name in COMMANDS
        ]
    )


def _compat_words(compat: ForwardCompat) -> list[str]:
    words = [f"--host-driver-version={compat.driver_version}"] if compat.driver_version else []
    words += [f"--host-cuda-version={compat.cuda_version}"] if compat.cuda_version else []
    return words + ([f"--cuda-compat-container-root={compat.directory}"] if compat.directory != COMPAT_ROOT else [])


def _is_enabled(name: str, options: GenerateOptions) -> bool:
    if name in options.enabled_hooks:
        return True
    return name != "chmod" and name not in options.disabled_hooks and "all" not in options.disabled_hooks


def _hook(name: str, words: list[str], options: GenerateOptions, own_env: Mapping[str, str]) -> CdiHook:
    program = options.hook[0]
    # A hook without an environment inherits one in some runtimes, that of the container even (CVE-2025-23266).
    env = ["NVIDIA_CTK_DEBUG=false"]
    if own_env.get("GPURUN_SYSROOT"):
        env.append(f"GPURUN_SYSROOT={own_env['GPURUN_SYSROOT']}")
    return CdiHook("createContainer", program, (program.rpartition("/")[2], *options.hook[1:], name, *words), tuple(env))
