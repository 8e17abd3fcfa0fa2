"""The one question the engine asks of this room: what do the GPUs add to this container?

A container that asks for nothing pays for one look at the names of its variables and one failed look for the site's
policy; nothing else of the room is imported.
"""

from __future__ import annotations

import posix

from gpurun.errors import GpuError
from gpurun.record import Record, replace

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from gpurun.hook.edits import ContainerEdits, DeviceNode
    from gpurun.hook.host import Roots
    from gpurun.hook.identity import GpuIdentity, Resolver
    from gpurun.hook.request import GpuRequest
    from gpurun.hook.settings import Settings
    from gpurun.ns.steps import DeviceStep
    from gpurun.oci.config import Device, Mount, OciHook
    from gpurun.oci.resources import DeviceRule

#: Basenames of the hook that engines add for --gpus.
_REPLACED_HOOKS = ("nvidia-container-runtime-hook", "nvidia-container-toolkit")
_REQUESTS = ("NVIDIA_VISIBLE_DEVICES=", "CUDA_VERSION=")
#: What NVIDIA's hook says where only its runtime can do what is asked.
WRONG_MODE = (
    "invoking the NVIDIA Container Runtime Hook directly (e.g. specifying the docker --gpus flag) is not supported. "
    "Please use the NVIDIA Container Runtime (e.g. specify the --runtime=nvidia flag) instead"
)
#: The node of a GPU has the number 195:0 to 195:253, what follows are the driver's own.  LANANA has registered it.
NVIDIA_MAJOR, MAX_GPU_MINOR = 195, 253
_CDI_PROGRAMS = ("/nvidia-cdi-hook", "/nvidia-ctk", "/gpurun")
_SETTINGS = ("GPURUN_SYSROOT", "NVIDIA_CTK_CONFIG_FILE_PATH", "XDG_CONFIG_HOME", "GPURUN_MODE")


class Injected(Record):
    """What a config has that an engine may have put in for devices: createContainer hooks, mounts, nodes, their rules."""

    hooks: tuple[OciHook, ...] = ()
    mounts: tuple[Mount, ...] = ()
    devices: tuple[Device, ...] = ()
    rules: tuple[DeviceRule, ...] = ()
    mount_namespace: bool = True  # of the container's own


def is_replaced_hook(path: str) -> bool:
    """Whether the OCI prestart hook *path* does what gpurun does itself: run as well, it would do it a second time."""
    return path.rpartition("/")[2] in _REPLACED_HOOKS


def may_ask(env: tuple[str, ...]) -> bool:
    """Whether a container with that ``process.env`` will most likely get edits: told before anything is looked at."""
    return any(e.startswith(_REQUESTS) for e in env)


def has_gpus(injected: Injected) -> bool:
    """Whether the config has nodes of GPUs itself: made by number, or bound from the host."""
    if node_minors(injected.devices):
        return True
    # /dev/nvidia and a number; a driver root or a simulated one may stand before it
    return any("/dev/nvidia" in mount.source and mount.source[-1:].isdigit() for mount in injected.mounts)


def gpu_edits(
    env: tuple[str, ...],
    annotations: Mapping[str, str],
    privileged: bool,
    own_env: Mapping[str, str],
    settings: Settings | None = None,
    mounts: tuple[tuple[str, str], ...] = (),
    injected: Injected | None = None,
    files: bool = True,
    prepare: bool = False,
    cache: str = "",
) -> ContainerEdits | None:
    """The edits for a container with that ``process.env``, or ``None`` when it asks for no GPU.

    *privileged*: its bounding set has CAP_SYS_ADMIN.  *own_env* is the environment of gpurun itself (GPURUN_SYSROOT);
    *settings* are read from the site's configuration file unless given; *mounts* are the (source, destination) of the
    config's.  *injected* is what an engine may have put into the config for devices: known hooks of CDI files are done by
    gpurun, and for GPUs that are there in any way /proc/driver/nvidia is filtered.  Without *files* CDI devices are refused
    (from outside, not all that they may bring can be given).  With *prepare* and a host that lacks device
    nodes or modules, ``nvidia-modprobe`` is run where there is one (unless ``load-kmods`` says no); else nothing is changed.
    *cache* is a directory for answers by the site's own settings (:mod:`gpurun.hook.remembered`), empty for none.
    Raises :class:`ConfigError` for a bad request or configuration, :class:`GpuError` for a host that cannot serve it.
    """
    taken: ContainerEdits | None = None
    if injected is not None and any(hook.path.endswith(_CDI_PROGRAMS) for hook in injected.hooks):
        from gpurun.hook.cdi_known import take_over

        taken = take_over(injected.hooks, injected.mounts, tuple([d.path for d in injected.devices]), own_env)
    asked = _requested(Inquiry(env, annotations, privileged, own_env, settings, mounts, files, prepare), cache)
    made = asked or taken
    if taken is not None and asked is not None:
        from gpurun.hook.edits import combine

        made = combine(taken, asked)
    if made is not None and made.forward_compat is not None:
        made = _without_compat(made, taken, env, own_env, settings)
    if injected is not None and not privileged and has_gpus(injected) and injected.mount_namespace:
        made = _with_filter(made, injected, own_env, settings)
    return made


def _without_compat(
    made: ContainerEdits,
    taken: ContainerEdits | None,
    env: tuple[str, ...],
    own_env: Mapping[str, str],
    settings: Settings | None,
) -> ContainerEdits:
    """*made* without newer CUDA libraries where the container wants none, or the site: also those of an engine's hook."""
    from gpurun.hook.request import wants_newer_libraries

    if settings is None and taken is not None:
        from gpurun.hook.settings import site_settings

        settings = site_settings(own_env)
    if wants_newer_libraries(env) and (settings is None or settings.forward_compat):
        return made
    return replace(made, forward_compat=None)


def _with_filter(
    made: ContainerEdits | None, injected: Injected, own_env: Mapping[str, str], settings: Settings | None
) -> ContainerEdits | None:
    """*made*, and /proc/driver/nvidia with the GPUs of *injected* (see :mod:`gpurun.hook.engine_gpus`)."""
    if settings is None:
        from gpurun.hook.settings import site_settings

        settings = site_settings(own_env)
    if not settings.filter_engine_devices:
        return made
    from gpurun.hook.engine_gpus import with_filter

    return with_filter(made, injected, roots_of(own_env, settings))


class Inquiry(Record):
    """The arguments of :func:`gpu_edits` that are about the container's own request."""

    env: tuple[str, ...]
    annotations: Mapping[str, str]
    privileged: bool
    own_env: Mapping[str, str]
    settings: Settings | None
    mounts: tuple[tuple[str, str], ...]
    files: bool
    prepare: bool


def _requested(asked: Inquiry, cache: str) -> ContainerEdits | None:
    """What the container's own request brings."""
    asking = may_ask(asked.env)
    if asked.settings is None and not asking and not _has_settings(asked.own_env):
        return None
    if not cache or asked.settings is not None or not asking or asked.own_env.get("GPURUN_GPU_CACHE") == "off":
        return _answer(asked)[0]
    from gpurun.hook.remembered import question, recall, remember

    name = question(asked.env, asked.privileged, asked.own_env, asked.mounts)
    made = recall(cache, name)
    if made is not None:
        return made
    from gpurun.hook import host
    from gpurun.hook.looked import Looked

    looked = host.listener = Looked()
    try:
        made, lasting = _answer(asked)
    finally:
        host.listener = None
    if made is not None and lasting:
        remember(cache, name, looked, made)
    return made


def _answer(asked: Inquiry) -> tuple[ContainerEdits | None, bool]:
    """What the request brings, and whether that depends on nothing but what :mod:`gpurun.hook.looked` is told of."""
    env, own_env, settings = asked.env, asked.own_env, asked.settings
    if settings is None:
        from gpurun.hook.settings import site_settings

        settings = site_settings(own_env)
    if settings.load_kmods and not asked.prepare:
        settings = replace(settings, load_kmods=False)
    from gpurun.hook.request import read_request

    request = read_request(env, asked.annotations, asked.privileged, settings.policy, asked.mounts)
    names: tuple[str, ...] = ()
    capabilities: tuple[str, ...] = ()
    if (settings.mode == "cdi" and asked.files) or (request is not None and request.qualified):
        if not asked.files:
            raise GpuError(WRONG_MODE)
        from gpurun.hook.cdi import route

        request, names = route(request, asked.annotations, settings, env, roots_of(own_env, settings))
        if names and names_capabilities(env):
            from gpurun.hook.request import read_needs

            capabilities = read_needs(env, settings.policy).capabilities
    if names:
        return _from_files(names, request, settings, own_env, capabilities), False
    if request is None:
        return None, False
    from gpurun.hook.edits import ContainerEdits

    if request.denied:
        return ContainerEdits(warnings=(request.denied,)), False
    from gpurun.hook.driver_files import MPS_REASON

    made, lasting = _from_driver(request, settings, own_env)
    pipes = [mount for mount in made.mounts if mount.reason == MPS_REASON]
    if pipes:
        from gpurun.hook.mps import with_mps

        return with_mps(made, pipes[0], env, asked.mounts), False
    return made, lasting and settings.gpu_cache and not settings.policy.swarm_resource


def names_capabilities(env: tuple[str, ...]) -> bool:
    """Whether ``process.env`` says which capabilities are needed; of duplicates the last one counts."""
    said = [entry.partition("=")[2] for entry in env if entry.startswith("NVIDIA_DRIVER_CAPABILITIES=")]
    return bool(said and said[-1])


def _from_files(
    names: tuple[str, ...],
    request: GpuRequest | None,
    settings: Settings,
    own_env: Mapping[str, str],
    capabilities: tuple[str, ...],
) -> ContainerEdits:
    """The edits of CDI devices, and of those that the driver is to serve beside them."""
    from gpurun.hook.cdi import cdi_edits
    from gpurun.hook.edits import combine

    found = cdi_edits(names, settings, own_env, roots_of(own_env, settings), capabilities)
    return found if request is None else combine(_from_driver(request, settings, own_env)[0], found)


def _from_driver(request: GpuRequest, settings: Settings, own_env: Mapping[str, str]) -> tuple[ContainerEdits, bool]:
    """The edits of *request*, and whether they last: nothing is missing, and neither NVML nor other files were asked."""
    roots = roots_of(own_env, settings)
    if settings.mode == "csv" or not _has_gpus(roots):
        from gpurun.hook.platforms import platform_edits

        made = platform_edits(request, roots, settings.mode, settings.csv_dir)
        if made is not None:
            return made, False
    from gpurun.hook.driver import read_driver
    from gpurun.hook.nvidia import edits

    where = (
        roots,
        request.capabilities,
        settings.environment(own_env),
        request.extras,
        request.imex_channels,
        settings.creates_imex_channels,
    )
    failure: GpuError | None = None
    try:
        driver = read_driver(*where)
        whole = all(node.exists for node in (*driver.nodes, *[gpu.node for gpu in driver.gpus]))
    except GpuError as e:
        failure, whole = e, False
    if not whole and settings.load_kmods:
        from gpurun.hook.modprobe import make_present

        if make_present(roots, request.capabilities):
            driver, failure = read_driver(*where), None
    if failure is not None:
        raise failure
    if not settings.forward_compat:
        request = replace(request, forward_compat=False)
    asked: list[Roots] = []
    if settings.mode in ("auto", "jit-cdi") and (settings.jit_feature_flags or settings.jit_disabled_hooks):
        from gpurun.hook.features import without_features, without_hooks

        made = edits(request, without_features(driver, settings.jit_feature_flags), _resolver(roots, asked))
        made = without_hooks(made, settings.jit_disabled_hooks, driver.proc_path)
    else:
        made = edits(request, driver, _resolver(roots, asked))
    if made.additional_gids and not settings.additional_gids:
        made = replace(made, additional_gids=())
    return made, whole and not asked and not request.extras and not request.imex_channels


def _resolver(roots: Roots, asked: list[Roots]) -> Resolver:
    """What asks NVML, at most once, and notes in *asked* that it did; nothing of that is imported before."""
    answers: list[tuple[GpuIdentity, ...]] = []

    def resolve() -> tuple[GpuIdentity, ...]:
        if not answers:
            from gpurun.hook.identity import ask

            asked.append(roots)
            answers.append(ask(roots))
        return answers[0]

    return resolve


def _has_gpus(roots: Roots) -> bool:
    """Whether the driver of graphics cards has one; the platforms that have none are another module's subject."""
    from gpurun.hook.host import names_in

    try:
        return bool(names_in(f"{roots.sysroot}/proc/driver/nvidia/gpus"))
    except OSError:
        return False


def roots_of(own_env: Mapping[str, str], settings: Settings) -> Roots:
    """Where to look for the driver, as the environment of gpurun itself and the site's settings say."""
    from gpurun.hook.host import Roots

    sysroot = own_env.get("GPURUN_SYSROOT", "").rstrip("/")
    return Roots(
        settings.driver_root, sysroot, settings.dev_root, settings.ldcache or Roots().ldcache, settings.library_dirs
    )


def node_minors(nodes: Iterable[Device | DeviceNode | DeviceStep]) -> tuple[int, ...]:
    """The minors of the GPUs among device *nodes*, each once: by their numbers, for they may have any path."""
    found = [n.minor for n in nodes if n.major == NVIDIA_MAJOR and n.minor <= MAX_GPU_MINOR and n.type in ("c", "u")]
    return tuple(dict.fromkeys(found))


def gpu_minors(paths: Iterable[str]) -> tuple[int, ...]:
    """The minors of the GPUs' own device nodes (``/dev/nvidia0``) among *paths*, each once."""
    numbers = [path[11:] for path in paths if path.startswith("/dev/nvidia")]
    return tuple(dict.fromkeys([int(n) for n in numbers if n.isascii() and n.isdigit() and len(n) < 5]))


def _has_settings(own_env: Mapping[str, str]) -> bool:
    """Whether there may be a configuration file: it can name other variables to ask with (``swarm-resource``)."""
    if any(own_env.get(name) for name in _SETTINGS):
        return True
    try:
        posix.stat("/etc/nvidia-container-runtime/config.toml")
    except OSError:
        return False
    return True
