"""The one question the engine asks of this room: what do the GPUs add to this container?

A container that asks for nothing pays for one look at the names of its variables and one failed look for the site's
policy; nothing else of the room is imported.
"""

from __future__ import annotations

import posix

from gpurun.errors import GpuError
from gpurun.gpu.request.injected import has_gpus
from gpurun.oci.annotations import GPU_MEMORY, GPU_THREADS
from gpurun.record import Record, replace

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from gpurun.cdi.edits import ContainerEdits
    from gpurun.gpu.host.driver import Driver
    from gpurun.gpu.host.identity import GpuIdentity, Resolver
    from gpurun.gpu.host.roots import Roots
    from gpurun.gpu.request.injected import Injected
    from gpurun.gpu.request.records import GpuRequest
    from gpurun.gpu.request.settings import Settings
    from gpurun.gpu.request.share import Share

    #: Called with the edits as they are known so far, before the host is changed; raises when the container is refused.
    Check = Callable[[ContainerEdits], None]
    Lessor = Callable[[GpuRequest, Settings], GpuRequest]
    Sharer = Callable[[Share, ContainerEdits, Injected | None], ContainerEdits]

_REQUESTS = ("NVIDIA_VISIBLE_DEVICES=", "CUDA_VERSION=")
#: What NVIDIA's hook says where only its runtime can do what is asked.
WRONG_MODE = (
    "invoking the NVIDIA Container Runtime Hook directly (e.g. specifying the docker --gpus flag) is not supported. "
    "Please use the NVIDIA Container Runtime (e.g. specify the --runtime=nvidia flag) instead"
)
#: Where a Thor has its own GPU, which the driver of graphics cards serves as well; an Orin's is not in procfs.
_THOR_BUS_ID = "0000:01:00.0"
#: Who is asked for free GPUs without being the runtime.
NO_LESSOR = (
    "free GPUs are leased by gpurun as the container's runtime: name the devices here (a hook and CDI files know no "
    "container that a lease could end with)"
)
NO_SHARER = "a share of a GPU is given by gpurun as the container's runtime alone, not by a hook"
_SHARE_VARIABLES = ("GPURUN_GPU_MEMORY=", "GPURUN_GPU_THREADS=")
_SHARE_ANNOTATIONS = (GPU_MEMORY, GPU_THREADS)
_CDI_PROGRAMS = ("/nvidia-cdi-hook", "/nvidia-ctk", "/gpurun")
_SETTINGS = ("GPURUN_SYSROOT", "NVIDIA_CTK_CONFIG_FILE_PATH", "XDG_CONFIG_HOME", "GPURUN_MODE")


def may_ask(env: tuple[str, ...]) -> bool:
    """Whether a container with that ``process.env`` will most likely get edits: told before anything is looked at."""
    return any(e.startswith(_REQUESTS) for e in env)


def may_share(env: tuple[str, ...], annotations: Mapping[str, str]) -> bool:
    """Whether a container with that ``process.env`` may ask for a share of a GPU: told at once."""
    return any(e.startswith(_SHARE_VARIABLES) for e in env) or any(name in annotations for name in _SHARE_ANNOTATIONS)


class Inquiry(Record):
    """What :func:`gpu_edits` is asked: a container's own words, and what holds for them on this host.

    *env* is its ``process.env``; *privileged*: its bounding set has CAP_SYS_ADMIN.  *own_env* is the environment of gpurun
    itself (GPURUN_SYSROOT); *settings* are read from the site's configuration file unless given; *mounts* are the (source,
    destination) of the config's.  *injected* is what an engine may have put into the config for devices: known hooks of CDI
    files are done by gpurun, and for GPUs that are there in any way /proc/driver/nvidia is filtered.  Without *files* CDI
    devices are refused (from outside, not all that they may bring can be given).  With *prepare* and a host that lacks
    device nodes or modules, ``nvidia-modprobe`` is run where there is one (unless ``load-kmods`` says no); else nothing is
    changed.  *prepare* is called first, and what it raises leaves the host untouched (:func:`no_check` has no objection).
    *cache* is a directory for answers by the site's own settings (:mod:`gpurun.gpu.discovery_cache`), empty for none.
    *lessor* puts names in the place of ``free:N`` in a request (:mod:`gpurun.gpu.leases`), which is refused without one;
    so is a share of a GPU without *sharer*, which adds what it takes to the edits.
    """

    env: tuple[str, ...]
    annotations: Mapping[str, str]
    privileged: bool
    own_env: Mapping[str, str]
    settings: Settings | None = None
    mounts: tuple[tuple[str, str], ...] = ()
    injected: Injected | None = None
    files: bool = True
    prepare: Check | None = None
    cache: str = ""
    lessor: Lessor | None = None
    sharer: Sharer | None = None


def gpu_edits(asked: Inquiry) -> ContainerEdits | None:
    """The edits for a container that asks so, or ``None`` when it asks for no GPU.

    Raises :class:`ConfigError` for a bad request or configuration, :class:`GpuError` for a host that cannot serve it.
    """
    share = _share(asked)
    injected = asked.injected
    taken = taken_over(injected, asked.own_env) if injected is not None else None
    requested = _requested(asked)
    made = requested or taken
    if taken is not None and requested is not None:
        from gpurun.cdi.edits import combine

        made = combine(taken, requested)
    if made is not None and made.forward_compat is not None:
        made = _without_compat(made, taken, asked)
    if injected is not None and not asked.privileged and has_gpus(injected) and injected.mount_namespace:
        made = _with_filter(made, injected, asked)
    if share is not None and asked.sharer is not None:
        from gpurun.cdi.edits import ContainerEdits

        made = asked.sharer(share, made or ContainerEdits(), injected)
    return made


def taken_over(injected: Injected, own_env: Mapping[str, str]) -> ContainerEdits | None:
    """The edits that are made in the place of an engine's own CDI hooks, and of mounts that those are about, if any."""
    if not any(hook.path.endswith(_CDI_PROGRAMS) for hook in injected.hooks):
        return None
    from gpurun.gpu.cdi.hook_work import take_over

    return take_over(injected.hooks, injected.mounts, injected.devices, own_env)


def _share(asked: Inquiry) -> Share | None:
    """The share of a GPU that is asked for, if any; raises where nobody would give it."""
    if not may_share(asked.env, asked.annotations):
        return None
    from gpurun.gpu.request.share import read_share

    share = read_share(asked.env, asked.annotations)
    if share is not None and asked.sharer is None:
        raise GpuError(NO_SHARER)
    return share


def no_check(edits: ContainerEdits) -> None:
    """The *prepare* of callers that plan nothing which could be refused later."""


def _without_compat(made: ContainerEdits, taken: ContainerEdits | None, asked: Inquiry) -> ContainerEdits:
    """*made* without newer CUDA libraries where the container wants none, or the site: also those of an engine's hook."""
    from gpurun.gpu.request.environment import wants_newer_libraries

    settings = asked.settings
    if settings is None and taken is not None:
        from gpurun.gpu.request.settings import site_settings

        settings = site_settings(asked.own_env)
    if wants_newer_libraries(asked.env) and (settings is None or settings.forward_compat):
        return made
    return replace(made, forward_compat=None)


def _with_filter(made: ContainerEdits | None, injected: Injected, asked: Inquiry) -> ContainerEdits | None:
    """*made*, and /proc/driver/nvidia with the GPUs of *injected* (see :mod:`gpurun.gpu.edits.injected`)."""
    from gpurun.gpu.request.settings import roots_of

    settings = asked.settings
    if settings is None:
        from gpurun.gpu.request.settings import site_settings

        settings = site_settings(asked.own_env)
    if not settings.filter_engine_devices:
        return made
    from gpurun.gpu.edits.injected import with_filter

    return with_filter(made, injected, roots_of(asked.own_env, settings))


def _requested(asked: Inquiry) -> ContainerEdits | None:
    """What the container's own request brings."""
    asking = may_ask(asked.env)
    if asked.settings is None and not asking and not _has_settings(asked.own_env):
        return None
    if not asked.cache or asked.settings is not None or not asking or asked.own_env.get("GPURUN_GPU_CACHE") == "off":
        return _answer(asked)[0]
    from gpurun.gpu.discovery_cache import question, recall, remember

    name = question(asked.env, asked.privileged, asked.own_env, asked.mounts)
    made = recall(asked.cache, name)
    if made is not None:
        return made
    from gpurun.gpu.host import reads
    from gpurun.gpu.host.facts import Listener

    looked = reads.listener = Listener()
    try:
        made, lasting = _answer(asked)
    finally:
        reads.listener = None
    if made is not None and lasting:
        remember(asked.cache, name, looked, made)
    return made


def _answer(asked: Inquiry) -> tuple[ContainerEdits | None, bool]:
    """What the request brings, and whether that depends on nothing but what :mod:`gpurun.gpu.host.facts` is told of."""
    own_env, settings = asked.own_env, asked.settings
    if settings is None:
        from gpurun.gpu.request.settings import site_settings

        settings = site_settings(own_env)
    from gpurun.gpu.request.environment import read_request
    from gpurun.gpu.request.records import DEVICES, is_free

    request = read_request(asked.env, asked.annotations, asked.privileged, settings.policy, asked.mounts)
    if request is None or not request.devices or not is_free(request.devices[0]):
        found, lasting = _served(asked, request, settings)
        return _with_warnings(found, settings), lasting
    if asked.lessor is None:
        raise GpuError(NO_LESSOR)
    request = asked.lessor(request, settings)
    made = _served(asked, request, settings)[0]
    if made is None:
        return None, False
    made = replace(made, env=(*made.env, f"{DEVICES}={','.join(request.devices)}"))
    return _with_warnings(made, settings), False


def _with_warnings(made: ContainerEdits | None, settings: Settings) -> ContainerEdits | None:
    """*made* with what is wrong in the site's file: whoever starts a GPU container is to know of it."""
    return replace(made, warnings=made.warnings + settings.warnings) if made is not None and settings.warnings else made


def _served(asked: Inquiry, request: GpuRequest | None, settings: Settings) -> tuple[ContainerEdits | None, bool]:
    """As :func:`_answer`, the request being read."""
    from gpurun.gpu.request.environment import names_capabilities
    from gpurun.gpu.request.settings import roots_of

    env, own_env = asked.env, asked.own_env
    names: tuple[str, ...] = ()
    capabilities: tuple[str, ...] | None = None
    if (settings.mode == "cdi" and asked.files) or (request is not None and request.qualified):
        if not asked.files:
            raise GpuError(WRONG_MODE)
        from gpurun.gpu.cdi.named_devices import route

        request, names = route(request, asked.annotations, settings, env, roots_of(own_env, settings))
        if names and names_capabilities(env):
            from gpurun.gpu.request.environment import read_needs

            capabilities = read_needs(env, settings.policy).capabilities
    if names:
        return _from_files(names, request, settings, asked, capabilities), False
    if request is None:
        return None, False
    from gpurun.cdi.edits import ContainerEdits

    if request.denied:
        return ContainerEdits(warnings=(request.denied,)), False
    from gpurun.gpu.host.file_names import MPS_REASON

    made, lasting = _from_driver(request, settings, asked)
    pipes = [mount for mount in made.mounts if mount.reason == MPS_REASON]
    if pipes:
        from gpurun.gpu.edits.mps import with_mps

        return with_mps(made, pipes[0], env, asked.mounts), False
    return made, lasting and settings.gpu_cache and not settings.policy.swarm_resource


def _from_files(
    names: tuple[str, ...],
    request: GpuRequest | None,
    settings: Settings,
    asked: Inquiry,
    capabilities: tuple[str, ...] | None,
) -> ContainerEdits:
    """The edits of CDI devices, and of those that the driver is to serve beside them."""
    from gpurun.cdi.edits import combine
    from gpurun.gpu.cdi.named_devices import cdi_edits
    from gpurun.gpu.request.settings import roots_of

    own_env = asked.own_env
    found = cdi_edits(names, settings, own_env, roots_of(own_env, settings), capabilities)
    return found if request is None else combine(_from_driver(request, settings, asked)[0], found)


def _from_driver(request: GpuRequest, settings: Settings, asked: Inquiry) -> tuple[ContainerEdits, bool]:
    """The edits of *request*, and whether they last: nothing is missing, and neither NVML nor other files were asked."""
    from gpurun.gpu.host.gpus import has_cards_alone
    from gpurun.gpu.request.settings import roots_of

    roots = roots_of(asked.own_env, settings)
    if not settings.forward_compat:
        request = replace(request, forward_compat=False)
    if settings.mode == "csv" or not has_cards_alone(roots):
        from gpurun.gpu.platforms.platform import platform_edits, site_lists

        made = platform_edits(request, roots, settings.mode, site_lists(settings))
        if made is not None:
            if settings.mode in ("auto", "jit-cdi", "csv") and settings.jit_disabled_hooks:
                from gpurun.gpu.edits.features import without_hooks

                made = without_hooks(made, settings.jit_disabled_hooks, f"{roots.sysroot}/proc/driver/nvidia")
            return made, False
    from gpurun.gpu.host.driver import read_driver

    where = (
        roots,
        request.capabilities,
        settings.environment(asked.own_env),
        request.extras,
        request.imex_channels,
        settings.creates_imex_channels,
    )
    driver: Driver | None = None
    failure: GpuError | None = None
    try:
        driver = read_driver(*where)
        whole = all(node.exists for node in (*driver.nodes, *[gpu.node for gpu in driver.gpus]))
    except GpuError as e:
        failure, whole = e, False
    if not whole and settings.load_kmods and asked.prepare is not None:
        from gpurun.gpu.host.modprobe import can_make_present, make_present

        if can_make_present(roots):
            _check_first(asked.prepare, request, driver, settings)
            if make_present(roots, request.capabilities):
                driver, failure = read_driver(*where), None
    if driver is None:
        raise failure or AssertionError("a driver or why there is none")
    resolved: list[Roots] = []
    made = _driver_edits(request, driver, settings, _resolver(roots, resolved))
    return made, whole and not resolved and not request.extras and not request.imex_channels


def _driver_edits(request: GpuRequest, driver: Driver, settings: Settings, resolver: Resolver) -> ContainerEdits:
    """The edits of *request* on a host with *driver*, without what the site leaves out of all of them."""
    from gpurun.gpu.edits.driver import edits

    if settings.mode in ("auto", "jit-cdi") and (settings.jit_feature_flags or settings.jit_disabled_hooks):
        from gpurun.gpu.edits.features import without_features, without_hooks

        made = edits(request, without_features(driver, settings.jit_feature_flags), resolver)
        made = without_hooks(made, settings.jit_disabled_hooks, driver.proc_path)
    else:
        made = edits(request, driver, resolver)
    if made.additional_gids and not settings.additional_gids:
        made = replace(made, additional_gids=())
    return made


class _OnlyNvmlKnows(Exception):
    """Raised where NVML would have to be asked, which may need what the host still lacks."""


def _check_first(check: Check, request: GpuRequest, driver: Driver | None, settings: Settings) -> None:
    """Have the container refused, if it is to be, before the host is changed for it.

    What its GPUs bring is known but for the driver's missing part: of a *driver* that cannot be read, that there will be a
    device node; of a request that only NVML can answer the same.
    """
    from gpurun.cdi.edits import ContainerEdits, DeviceNode
    from gpurun.gpu.host.device_numbers import NVIDIA_MAJOR

    def unknown() -> tuple[GpuIdentity, ...]:
        raise _OnlyNvmlKnows

    made = ContainerEdits(device_nodes=(DeviceNode("/dev/nvidiactl", "/dev/nvidiactl", "c", NVIDIA_MAJOR, 255),))
    if driver is not None:
        try:
            made = _driver_edits(request, driver, settings, unknown)
        except _OnlyNvmlKnows:
            pass
    check(made)


def _resolver(roots: Roots, asked: list[Roots]) -> Resolver:
    """What asks NVML, at most once, and notes in *asked* that it did; nothing of that is imported before."""
    answers: list[tuple[GpuIdentity, ...]] = []

    def resolve() -> tuple[GpuIdentity, ...]:
        if not answers:
            from gpurun.gpu.host.identity import ask

            asked.append(roots)
            answers.append(ask(roots))
        return answers[0]

    return resolve


def _has_settings(own_env: Mapping[str, str]) -> bool:
    """Whether there may be a configuration file: it can name other variables to ask with (``swarm-resource``)."""
    if any(own_env.get(name) for name in _SETTINGS):
        return True
    try:
        posix.stat("/etc/nvidia-container-runtime/config.toml")
    except OSError:
        return False
    return True
