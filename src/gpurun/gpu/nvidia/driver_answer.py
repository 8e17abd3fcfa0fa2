"""What the driver of this host answers to a request: read, made present where it is not all there, and asked of NVML.

Imported where the driver is asked, so for a container with GPUs that the discovery cache does not know.
"""

from __future__ import annotations

from gpurun.cdi.edits import ContainerEdits
from gpurun.errors import GpuError
from gpurun.gpu.host.access import NOT_OF_THE_JOB, nvidia_closed_by_job
from gpurun.gpu.nvidia.host.device_numbers import node_minors
from gpurun.gpu.nvidia.host.roots import dev_root
from gpurun.gpu.nvidia.request.selection import identify, select
from gpurun.gpu.nvidia.request.settings import roots_of
from gpurun.gpu.vendors import place
from gpurun.record import Record, replace

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from gpurun.gpu.nvidia.host.driver import Driver
    from gpurun.gpu.nvidia.host.identity import GpuIdentity, Resolver
    from gpurun.gpu.nvidia.host.roots import Roots
    from gpurun.gpu.nvidia.request.records import GpuRequest
    from gpurun.gpu.nvidia.request.settings import Settings

    #: Called with the edits as they are known so far, before the host is changed; raises when the container is refused.
    Check = Callable[[ContainerEdits], None]


class DriverAnswer(Record):
    """What a request brings from the driver.

    *cacheable*: nothing was missing, and neither NVML nor files that :mod:`gpurun.gpu.host.facts` does not see were asked.
    """

    edits: ContainerEdits
    cacheable: bool = False


def ask_driver(
    request: GpuRequest, settings: Settings, own_env: Mapping[str, str], prepare: Check | None, tell_cuda: bool = False
) -> DriverAnswer:
    """The answer to *request*; *own_env* is gpurun's environment; with *tell_cuda* CUDA_VISIBLE_DEVICES says which GPUs.

    With *prepare*, which is called before, device nodes and modules that are missing are made present by
    ``nvidia-modprobe``.  Raises :class:`GpuError` for a host that cannot serve it, and what *prepare* raises.
    """
    roots = roots_of(own_env, settings)
    if not settings.forward_compat:
        request = replace(request, forward_compat=False)
    made = _of_platform(request, settings, roots)
    if made is not None:
        return DriverAnswer(made)
    driver, whole = _read(request, settings, own_env, roots, prepare)
    closed = nvidia_closed_by_job(f"{dev_root(roots).rstrip('/')}/dev")
    if closed:
        gpus = [replace(gpu, apart=NOT_OF_THE_JOB) if gpu.minor in closed else gpu for gpu in driver.gpus]
        driver = replace(driver, gpus=tuple(gpus))
    resolver = NvmlOnce(roots)
    made = _driver_edits(request, driver, settings, resolver)
    if tell_cuda:
        made = replace(made, env=(*made.env, f"CUDA_VISIBLE_DEVICES={_cuda_names(request, driver, resolver)}"))
    taken = closed & frozenset(node_minors(made.device_nodes)) if closed else ()
    if taken:
        text = f"{place(request.source)}: GPU with the node /dev/nvidia{min(taken)}: {NOT_OF_THE_JOB}"
        raise GpuError(f"{text}: ask for all, which are those of the job")
    return DriverAnswer(made, whole and not resolver.asked and not request.extras and not request.imex_channels)


def _cuda_names(request: GpuRequest, driver: Driver, resolver: Resolver) -> str:
    """The UUIDs of the GPUs and MIG devices of *request*, as CUDA takes them."""
    gpus = driver.gpus
    if any("?" in gpu.uuid or gpu.mig for gpu in gpus):
        gpus = identify(gpus, resolver())
    names: list[str] = []
    for one in select(request, gpus):
        names += [mig.uuid or f"MIG-{one.gpu.uuid}/{mig.gi}/{mig.ci}" for mig in one.mig] or [one.gpu.uuid]
    return ",".join(names)


def _of_platform(request: GpuRequest, settings: Settings, roots: Roots) -> ContainerEdits | None:
    """The edits of a host whose GPU is no PCI card under NVIDIA's driver for Linux; None where it has such cards."""
    from gpurun.gpu.nvidia.host.gpus import has_cards_alone

    if settings.mode != "csv" and has_cards_alone(roots):
        return None
    from gpurun.gpu.nvidia.platforms.platform import platform_edits, site_lists

    made = platform_edits(request, roots, settings.mode, site_lists(settings))
    if made is not None and settings.mode in ("auto", "jit-cdi", "csv") and settings.jit_disabled_hooks:
        from gpurun.gpu.nvidia.edits.features import without_hooks

        return without_hooks(made, settings.jit_disabled_hooks, f"{roots.sysroot}/proc/driver/nvidia")
    return made


def _read(
    request: GpuRequest, settings: Settings, own_env: Mapping[str, str], roots: Roots, prepare: Check | None
) -> tuple[Driver, bool]:
    """(the driver, whether all of its device nodes were there at once)."""
    from gpurun.gpu.nvidia.host.driver import read_driver

    arguments = (
        roots,
        request.capabilities,
        settings.environment(own_env),
        request.extras,
        request.imex_channels,
        settings.creates_imex_channels,
    )
    driver: Driver | None = None
    failure: GpuError | None = None
    try:
        driver = read_driver(*arguments)
        whole = all(node.exists for node in (*driver.nodes, *[gpu.node for gpu in driver.gpus]))
    except GpuError as e:
        failure, whole = e, False
    if not whole and settings.load_kmods and prepare is not None:
        from gpurun.gpu.nvidia.host.modprobe import can_make_present, make_present

        if can_make_present(roots):
            _check_first(prepare, request, driver, settings)
            if make_present(roots, request.capabilities):
                return read_driver(*arguments), whole
    if driver is None:
        raise failure or AssertionError("a driver or why there is none")
    return driver, whole


def _driver_edits(request: GpuRequest, driver: Driver, settings: Settings, resolver: Resolver) -> ContainerEdits:
    """The edits of *request* on a host with *driver*, without what the site leaves out of all of them."""
    from gpurun.gpu.nvidia.edits.driver import edits

    if settings.mode in ("auto", "jit-cdi") and (settings.jit_feature_flags or settings.jit_disabled_hooks):
        from gpurun.gpu.nvidia.edits.features import without_features, without_hooks

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
    from gpurun.cdi.edits import DeviceNode
    from gpurun.gpu.nvidia.host.device_numbers import NVIDIA_MAJOR

    def unknown() -> tuple[GpuIdentity, ...]:
        raise _OnlyNvmlKnows

    made = ContainerEdits(device_nodes=(DeviceNode("/dev/nvidiactl", "/dev/nvidiactl", "c", NVIDIA_MAJOR, 255),))
    if driver is not None:
        try:
            made = _driver_edits(request, driver, settings, unknown)
        except _OnlyNvmlKnows:
            pass
    check(made)


class NvmlOnce:
    """A resolver that asks NVML, at most once, and knows whether it did; nothing of that is imported before."""

    def __init__(self, roots: Roots) -> None:
        self._roots = roots
        self._answer: tuple[GpuIdentity, ...] | None = None
        self.asked = False

    def __call__(self) -> tuple[GpuIdentity, ...]:
        """What NVML says of each GPU.  Raises :class:`GpuError`."""
        if self._answer is None:
            from gpurun.gpu.nvidia.host.identity import ask

            self.asked = True
            self._answer = ask(self._roots)
        return self._answer
