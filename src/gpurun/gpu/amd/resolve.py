"""What AMD's GPUs add to a container that asks for some: their nodes with the host's modes, /dev/kfd, groups, udev's names.

The image brings the libraries.  The card nodes, which computing does not need, come as well, as with AMD's own runtime,
unless the container or the host says ``GPURUN_DRI_CARDS=0``.
"""

from __future__ import annotations

import posix

from gpurun.cdi.edits import ContainerEdits, combine
from gpurun.errors import GpuError, clean, oserror_text
from gpurun.gpu.amd.host import amd_gpus, kfd_node, kfd_nodes
from gpurun.gpu.amd.request import VARIABLE, passed_over, read_request, select, wants_all
from gpurun.gpu.host.access import NOT_OF_THE_JOB, closed_by_job, is_confined
from gpurun.gpu.host.drm_edits import drm_edits, groups, host_device, wants_cards
from gpurun.gpu.resolve import NO_LESSOR
from gpurun.gpu.vendors import AMD_UNKNOWN, IGNORE_UNKNOWN, find_vendor, is_free, module, place
from gpurun.record import replace

TYPE_CHECKING = False
if TYPE_CHECKING:
    from gpurun.gpu.amd.host import AmdGpu
    from gpurun.gpu.amd.request import AmdRequest
    from gpurun.gpu.request.free import FreeRequest
    from gpurun.gpu.resolve import Inquiry

#: More words that are passed over are not listed.
_MOST_LISTED = 8
NO_KFD = "AMD's GPUs compute by /dev/kfd: is the module amdgpu loaded, and was it built with CONFIG_HSA_AMD?"


def edits_of(asked: Inquiry) -> ContainerEdits | None:
    """The edits of AMD's part of a container, None for none.  Raises as :func:`gpurun.gpu.resolve.gpu_edits`."""
    sysroot = _sysroot(asked)
    gpus = amd_gpus(sysroot)
    ignore = asked.own_env.get(AMD_UNKNOWN) == IGNORE_UNKNOWN
    request = read_request(asked.env, gpus, ignore)
    if request is None:
        return None
    if is_free(request.value):
        from gpurun.gpu.request.free import read_free_request

        free = read_free_request(request.value, request.source, "amd")
        return module(free.vendor, "resolve").free_edits(asked, free)  # type: ignore[no-any-return]
    if not gpus and not (ignore and posix.access(f"{sysroot}{find_vendor('amd').probes[0]}", posix.F_OK)):
        error = GpuError(
            f"process.env {request.source}: this host has no AMD GPU that computes: "
            f"{sysroot}/sys/module/amdgpu and {sysroot}/sys/class/kfd are there while the driver is loaded"
        )
        from gpurun.gpu.request.optional import may_be_without, without

        if not may_be_without(asked.env):
            raise error
        return without(error)
    chosen = _of_the_job(select(request, gpus, ignore), request)
    warnings = _passed_over(request, gpus) if ignore else ()
    made = _edits(chosen, asked, request.source) if chosen else ContainerEdits()
    return replace(made, warnings=(*made.warnings, *warnings)) if chosen or warnings else None


def _of_the_job(chosen: tuple[AmdGpu, ...], request: AmdRequest) -> tuple[AmdGpu, ...]:
    """*chosen* without those that the caller's Slurm job is not to use.  Raises :class:`GpuError` where one is named."""
    closed = closed_by_job([gpu.drm.render.host_path for gpu in chosen if gpu.drm.render is not None])
    left = tuple([gpu for gpu in chosen if gpu.drm.render is None or gpu.drm.render.host_path not in closed])
    if len(left) < len(chosen) and not (left and wants_all(request)):
        lost = next(gpu for gpu in chosen if gpu not in left)
        what = f"{place(request.source)}: AMD GPU {lost.index} ({lost.key}): {NOT_OF_THE_JOB}"
        raise GpuError(what if wants_all(request) else f"{what}: ask for all, which are those of the job")
    return left


def _passed_over(request: AmdRequest, gpus: tuple[AmdGpu, ...]) -> tuple[str, ...]:
    words = passed_over(request, gpus)
    if not words:
        return ()
    listed = ", ".join([clean(word) for word in words[:_MOST_LISTED]]) + (", …" if len(words) > _MOST_LISTED else "")
    return (f"{place(request.source)}: none of this host's {len(gpus)} AMD GPUs is {listed}: ignored",)


def free_edits(asked: Inquiry, free: FreeRequest) -> ContainerEdits:
    """The edits of the GPUs that are leased for *free*.  Raises :class:`GpuError`."""
    if asked.allocate is None:
        raise GpuError(NO_LESSOR)
    names, warnings = asked.allocate(free)
    chosen = tuple([gpu for gpu in amd_gpus(_sysroot(asked)) if gpu.key in names])
    made = _edits(chosen, asked, free.source)
    return replace(made, env=(*made.env, f"{VARIABLE}={','.join(names)}"), warnings=made.warnings + warnings)


def _edits(gpus: tuple[AmdGpu, ...], asked: Inquiry, source: str) -> ContainerEdits:
    for gpu in gpus:
        if gpu.silent:  # its programs would wait for the driver as well, and could not be killed
            raise GpuError(f"{place(source)}: AMD GPU {gpu.index} ({gpu.key}): {gpu.silent}")
    made = device_edits(gpus, _sysroot(asked), source, wants_cards(asked.env, asked.own_env))
    return made if asked.running or not is_confined() else _with_topology(made, gpus, _sysroot(asked))


def _with_topology(edits: ContainerEdits, gpus: tuple[AmdGpu, ...], sysroot: str) -> ContainerEdits:
    """*edits* with a topology of *gpus* alone, where the host has others: without root nothing else hides those."""
    from gpurun.gpu.amd.topology import filter_topology, read_topology

    chosen = frozenset([gpu.kfd.number for gpu in gpus])
    if chosen >= {node.number for node in kfd_nodes(sysroot)}:
        return edits
    try:
        tree = filter_topology(read_topology(sysroot, chosen), chosen)
    except (GpuError, OSError) as e:
        why = oserror_text(e) if isinstance(e, OSError) else str(e)
        text = f"the container sees the GPUs of all in KFD's topology, and ROCm may fail: {why}"
        return replace(edits, warnings=(*edits.warnings, text))
    return replace(edits, proc_trees=(*edits.proc_trees, tree))


def device_edits(gpus: tuple[AmdGpu, ...], sysroot: str, source: str, cards: bool = True) -> ContainerEdits:
    """The edits of *gpus*, which *source* asked for, without card nodes if *cards* is false.  Raises :class:`GpuError`."""
    each = tuple({gpu.key: (f"AMD GPU {gpu.index} ({source})", f"amd:{gpu.key}", gpu.drm) for gpu in gpus}.values())
    made = drm_edits(each, cards)
    kfd = kfd_node(sysroot)
    if kfd is None or not kfd.exists:
        raise GpuError(f"{sysroot}/dev/kfd is not there: {NO_KFD}")
    node = host_device(kfd, "every container with an AMD GPU")
    gids = tuple(sorted({*made.additional_gids, *groups([node])}))
    return combine(replace(made, additional_gids=gids), replace(drm_edits(()), device_nodes=(node,)))


def _sysroot(asked: Inquiry) -> str:
    return asked.own_env.get("GPURUN_SYSROOT", "").rstrip("/")
