"""What NVIDIA's GPUs add to a container that asks for some, or has them of its engine: by the driver or by CDI files."""

from __future__ import annotations

from gpurun.errors import GpuError
from gpurun.gpu.request.injected import has_gpus
from gpurun.gpu.resolve import NO_LESSOR, GpuAnswer, both, has_hooks, has_settings
from gpurun.gpu.vendors import find_vendor, is_free, module
from gpurun.record import replace

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from gpurun.cdi.edits import ContainerEdits
    from gpurun.gpu.nvidia.request.records import GpuRequest
    from gpurun.gpu.nvidia.request.settings import Settings
    from gpurun.gpu.request.free import FreeRequest
    from gpurun.gpu.request.injected import Injected
    from gpurun.gpu.resolve import Inquiry

VENDOR = find_vendor("nvidia")
#: What NVIDIA's hook says where only its runtime can do what is asked.
WRONG_MODE = (
    "invoking the NVIDIA Container Runtime Hook directly (e.g. specifying the docker --gpus flag) is not supported. "
    "Please use the NVIDIA Container Runtime (e.g. specify the --runtime=nvidia flag) instead"
)


def edits_of(asked: Inquiry) -> ContainerEdits | None:
    """The edits of NVIDIA's part of a container, None for none.  Raises as :func:`gpurun.gpu.resolve.gpu_edits`."""
    injected = asked.injected
    taken = take_over(injected, asked.own_env) if injected is not None and has_hooks(VENDOR, injected) else None
    made = both(taken, _edits_of_request(asked))
    if made is not None and made.forward_compat is not None:
        made = _without_compat(made, taken, asked)
    if injected is not None and not asked.privileged and has_gpus(injected, VENDOR) and injected.mount_namespace:
        made = _with_filter(made, injected, asked)
    return made


def free_edits(asked: Inquiry, free: FreeRequest) -> ContainerEdits | None:
    """The edits of the GPUs that are leased for *free*, which another variable asks for.  Raises :class:`GpurunError`."""
    return edits_of(replace(asked, env=(*asked.env, f"{VENDOR.variable}={free.text}"), injected=None))


def take_over(injected: Injected, own_env: Mapping[str, str]) -> ContainerEdits | None:
    """The edits that are made in the place of hooks of CDI files, and of mounts that those are about."""
    from gpurun.gpu.nvidia.cdi import hook_work

    return hook_work.take_over(injected, own_env)


def with_limits(made: ContainerEdits | None, asked: Inquiry) -> ContainerEdits | None:
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


def _edits_of_request(asked: Inquiry) -> ContainerEdits | None:
    """What the container's own request brings."""
    asking = any(e.startswith(VENDOR.prefixes) for e in asked.env)
    if asked.settings is None and not asking and not has_settings(VENDOR, asked.own_env):
        return None
    if not asked.cache or asked.settings is not None or not asking or asked.own_env.get("GPURUN_GPU_CACHE") == "off":
        return _answer(asked).edits
    from gpurun.gpu.nvidia.discovery_cache import question, recall, remember

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
    from gpurun.gpu.nvidia.request.records import DEVICES

    request = read_request(asked.env, asked.annotations, asked.privileged, settings.policy, asked.mounts)
    if request is None or not request.devices or not is_free(request.devices[0]):
        return _with_warnings(_answer_request(asked, request, settings), settings)
    if asked.allocate is None:
        raise GpuError(NO_LESSOR)
    from gpurun.gpu.request.free import read_free_request

    free = read_free_request(request.devices[0], request.source, VENDOR.name)
    if free.vendor != VENDOR.name:
        return GpuAnswer(module(free.vendor, "resolve").free_edits(asked, free))
    names, warnings = asked.allocate(free)
    request = replace(request, devices=names, warnings=request.warnings + warnings)
    made = _answer_request(asked, request, settings).edits
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


def _answer_request(asked: Inquiry, request: GpuRequest | None, settings: Settings) -> GpuAnswer:
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

    is_set = any(e.startswith("CUDA_VISIBLE_DEVICES=") for e in asked.env)
    tell_cuda = settings.cuda_visible_devices and asked.privileged and not is_set and bool(request.devices)
    try:
        answer = ask_driver(request, settings, asked.own_env, asked.prepare, tell_cuda)
    except GpuError as e:
        return _without(e, settings, asked)
    pipes = [mount for mount in answer.edits.mounts if mount.reason == MPS_REASON]
    if pipes:
        from gpurun.gpu.nvidia.edits.mps import with_mps

        return GpuAnswer(with_mps(answer.edits, pipes[0], asked.env, asked.mounts))
    cacheable = answer.cacheable and settings.gpu_cache and not settings.policy.swarm_resource
    return GpuAnswer(answer.edits, cacheable)


def _without(error: GpuError, settings: Settings, asked: Inquiry) -> GpuAnswer:
    """No GPUs for a container that may be without them, where the host has none with a driver; else *error* is raised."""
    from gpurun.gpu.nvidia.host.gpus import read_gpus
    from gpurun.gpu.nvidia.request.settings import roots_of
    from gpurun.gpu.request.optional import may_be_without, without

    if not may_be_without(asked.env) or read_gpus(roots_of(asked.own_env, settings)):
        raise error
    return GpuAnswer(without(error))


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
