"""The one question the engine asks of this room: what do the GPUs add to this container?

A container that asks for nothing pays for one look at the names of its variables and one failed look for the site's
policy; nothing else of the room is imported.
"""

from __future__ import annotations

import posix

from gpurun.errors import GpuError
from gpurun.gpu.nvidia.request.injected import CDI_PROGRAMS, has_gpus
from gpurun.oci.annotations import GPU_MEMORY, GPU_THREADS
from gpurun.record import Record, replace

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from gpurun.cdi.edits import ContainerEdits
    from gpurun.gpu.nvidia.driver_answer import Check
    from gpurun.gpu.nvidia.request.injected import Injected
    from gpurun.gpu.nvidia.request.records import GpuRequest
    from gpurun.gpu.nvidia.request.settings import Settings
    from gpurun.gpu.request.share import Share

    Allocate = Callable[[GpuRequest, Settings], GpuRequest]
    Sharer = Callable[[Share, ContainerEdits, Injected | None], ContainerEdits]

_REQUESTS = ("NVIDIA_VISIBLE_DEVICES=", "CUDA_VERSION=")
#: What NVIDIA's hook says where only its runtime can do what is asked.
WRONG_MODE = (
    "invoking the NVIDIA Container Runtime Hook directly (e.g. specifying the docker --gpus flag) is not supported. "
    "Please use the NVIDIA Container Runtime (e.g. specify the --runtime=nvidia flag) instead"
)
#: Who is asked for free GPUs without being the runtime.
NO_LESSOR = (
    "free GPUs are leased by gpurun as the container's runtime: name the devices here (a hook and CDI files know no "
    "container that a lease could end with)"
)
NO_SHARER = "a share of a GPU is given by gpurun as the container's runtime alone, not by a hook"
_SHARE_VARIABLES = ("GPURUN_GPU_MEMORY=", "GPURUN_GPU_THREADS=")
_LIMITS = ("NVIDIA_GPU_MEMORY_REQUEST", "NVIDIA_GPU_MEMORY_LIMIT")  # and their plurals
_SHARE_ANNOTATIONS = (GPU_MEMORY, GPU_THREADS)
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
    *allocate* puts names in the place of ``free:N`` in a request (:mod:`gpurun.gpu.leases`), which is refused without one;
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
    allocate: Allocate | None = None
    sharer: Sharer | None = None


class GpuAnswer(Record):
    """What a request brings, None for nothing; *cacheable*: it depends on nothing but what the discovery cache looks at
    (:mod:`gpurun.gpu.host.facts`)."""

    edits: ContainerEdits | None = None
    cacheable: bool = False


def gpu_edits(asked: Inquiry) -> ContainerEdits | None:
    """The edits for a container that asks so, or ``None`` when it asks for no GPU.

    Raises :class:`ConfigError` for a bad request or configuration, :class:`GpuError` for a host that cannot serve it.
    """
    share = _share(asked)
    injected = asked.injected
    taken = replace_engine_hooks(injected, asked.own_env) if injected is not None else None
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
    if asked.files and any(e.startswith(_LIMITS) for e in asked.env):
        made = _with_limits(made, asked)
    return made


def _with_limits(made: ContainerEdits | None, asked: Inquiry) -> ContainerEdits | None:
    """*made* with the limits of GPU memory that NVIDIA's variables ask for."""
    numbers = [(node.major, node.minor) for node in made.device_nodes] if made is not None else []
    numbers += [(node.major, node.minor) for node in asked.injected.devices] if asked.injected is not None else []
    if not numbers:
        return made
    from gpurun.cdi.edits import ContainerEdits
    from gpurun.gpu.nvidia.memory_limits import with_memory_limits
    from gpurun.gpu.nvidia.request.settings import roots_of, site_settings

    roots = roots_of(asked.own_env, asked.settings or site_settings(asked.own_env))
    return with_memory_limits(made or ContainerEdits(), frozenset(numbers), asked.env, roots)


def replace_engine_hooks(injected: Injected, own_env: Mapping[str, str]) -> ContainerEdits | None:
    """The edits that are made in the place of an engine's own CDI hooks, and of mounts that those are about, if any."""
    if not any(hook.path.rpartition("/")[2] in CDI_PROGRAMS for hook in (*injected.hooks, *injected.runtime_hooks)):
        return None
    from gpurun.gpu.nvidia.cdi.hook_work import take_over

    return take_over(injected, own_env)


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
    from gpurun.gpu.nvidia.request.environment import wants_newer_libraries

    settings = asked.settings
    if settings is None and taken is not None:
        from gpurun.gpu.nvidia.request.settings import site_settings

        settings = site_settings(asked.own_env)
    if wants_newer_libraries(asked.env) and (settings is None or settings.forward_compat):
        return made
    return replace(made, forward_compat=None)


def _with_filter(made: ContainerEdits | None, injected: Injected, asked: Inquiry) -> ContainerEdits | None:
    """*made*, and /proc/driver/nvidia with the GPUs of *injected* (see :mod:`gpurun.gpu.nvidia.edits.injected`)."""
    from gpurun.gpu.nvidia.request.settings import roots_of

    settings = asked.settings
    if settings is None:
        from gpurun.gpu.nvidia.request.settings import site_settings

        settings = site_settings(asked.own_env)
    if not settings.filter_engine_devices:
        return made
    from gpurun.gpu.nvidia.edits.injected import with_filter

    return with_filter(made, injected, roots_of(asked.own_env, settings))


def _requested(asked: Inquiry) -> ContainerEdits | None:
    """What the container's own request brings."""
    asking = may_ask(asked.env)
    if asked.settings is None and not asking and not _has_settings(asked.own_env):
        return None
    if not asked.cache or asked.settings is not None or not asking or asked.own_env.get("GPURUN_GPU_CACHE") == "off":
        return _answer(asked).edits
    from gpurun.gpu.discovery_cache import question, recall, remember

    name = question(asked.env, asked.privileged, asked.own_env, asked.mounts)
    made = recall(asked.cache, name)
    if made is not None:
        return made
    from gpurun.gpu.host import reads
    from gpurun.gpu.host.facts import Listener

    looked = reads.listener = Listener()
    try:
        answer = _answer(asked)
    finally:
        reads.listener = None
    if answer.edits is not None and answer.cacheable:
        remember(asked.cache, name, looked, answer.edits)
    return answer.edits


def _answer(asked: Inquiry) -> GpuAnswer:
    """What the container's own request brings, the site's settings being read."""
    own_env, settings = asked.own_env, asked.settings
    if settings is None:
        from gpurun.gpu.nvidia.request.settings import site_settings

        settings = site_settings(own_env)
    from gpurun.gpu.nvidia.request.environment import read_request
    from gpurun.gpu.nvidia.request.records import DEVICES, is_free

    request = read_request(asked.env, asked.annotations, asked.privileged, settings.policy, asked.mounts)
    if request is None or not request.devices or not is_free(request.devices[0]):
        return _with_warnings(_served(asked, request, settings), settings)
    if asked.allocate is None:
        raise GpuError(NO_LESSOR)
    request = asked.allocate(request, settings)
    made = _served(asked, request, settings).edits
    if made is None:
        return GpuAnswer()
    made = replace(made, env=(*made.env, f"{DEVICES}={','.join(request.devices)}"))
    return _with_warnings(GpuAnswer(made), settings)


def _with_warnings(answer: GpuAnswer, settings: Settings) -> GpuAnswer:
    """*answer* with what is wrong in the site's file: whoever starts a GPU container is to know of it."""
    made = answer.edits
    if made is None or not settings.warnings:
        return answer
    return replace(answer, edits=replace(made, warnings=made.warnings + settings.warnings))


def _served(asked: Inquiry, request: GpuRequest | None, settings: Settings) -> GpuAnswer:
    """As :func:`_answer`, the request being read: by CDI files, by the driver, or by both."""
    from gpurun.gpu.nvidia.request.environment import names_capabilities
    from gpurun.gpu.nvidia.request.settings import roots_of

    env, own_env = asked.env, asked.own_env
    names: tuple[str, ...] = ()
    capabilities: tuple[str, ...] | None = None
    if (settings.mode == "cdi" and asked.files) or (request is not None and request.qualified):
        if not asked.files:
            raise GpuError(WRONG_MODE)
        from gpurun.gpu.nvidia.cdi.named_devices import route

        request, names = route(request, asked.annotations, settings, env, roots_of(own_env, settings))
        if names and names_capabilities(env):
            from gpurun.gpu.nvidia.request.environment import read_needs

            capabilities = read_needs(env, settings.policy).capabilities
    if names:
        return GpuAnswer(_from_files(names, request, settings, asked, capabilities))
    if request is None:
        return GpuAnswer()
    if request.denied:
        from gpurun.cdi.edits import ContainerEdits

        return GpuAnswer(ContainerEdits(warnings=(request.denied,)))
    return _from_driver(request, settings, asked)


def _from_driver(request: GpuRequest, settings: Settings, asked: Inquiry) -> GpuAnswer:
    from gpurun.gpu.nvidia.driver_answer import ask_driver
    from gpurun.gpu.nvidia.host.file_names import MPS_REASON

    named = any(e.startswith("CUDA_VISIBLE_DEVICES=") for e in asked.env)
    tell_cuda = settings.cuda_visible_devices and asked.privileged and not named and bool(request.devices)
    answer = ask_driver(request, settings, asked.own_env, asked.prepare, tell_cuda)
    pipes = [mount for mount in answer.edits.mounts if mount.reason == MPS_REASON]
    if pipes:
        from gpurun.gpu.nvidia.edits.mps import with_mps

        return GpuAnswer(with_mps(answer.edits, pipes[0], asked.env, asked.mounts))
    cacheable = answer.cacheable and settings.gpu_cache and not settings.policy.swarm_resource
    return GpuAnswer(answer.edits, cacheable)


def _from_files(
    names: tuple[str, ...],
    request: GpuRequest | None,
    settings: Settings,
    asked: Inquiry,
    capabilities: tuple[str, ...] | None,
) -> ContainerEdits:
    """The edits of CDI devices, and of those that the driver is to serve beside them."""
    from gpurun.cdi.edits import combine
    from gpurun.gpu.nvidia.cdi.named_devices import cdi_edits
    from gpurun.gpu.nvidia.request.settings import roots_of

    own_env = asked.own_env
    found = cdi_edits(names, settings, own_env, roots_of(own_env, settings), capabilities)
    if request is None:
        return found
    from gpurun.gpu.nvidia.driver_answer import ask_driver

    return combine(ask_driver(request, settings, own_env, asked.prepare).edits, found)


def _has_settings(own_env: Mapping[str, str]) -> bool:
    """Whether there may be a configuration file: it can name other variables to ask with (``swarm-resource``)."""
    if any(own_env.get(name) for name in _SETTINGS):
        return True
    try:
        posix.stat("/etc/nvidia-container-runtime/config.toml")
    except OSError:
        return False
    return True
