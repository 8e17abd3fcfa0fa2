"""What Intel's GPUs and accelerators add to a container that asks for some.

The value of GPURUN_VISIBLE_DEVICES has only Intel's GPUs by now, by PCI address (:mod:`gpurun.gpu.visible`).
"""

from __future__ import annotations

from gpurun.cdi.edits import ContainerEdits
from gpurun.errors import GpuError, clean
from gpurun.gpu.host.access import NOT_OF_THE_JOB, closed_by_job
from gpurun.gpu.host.drm_edits import drm_edits, wants_cards
from gpurun.gpu.intel.gaudi import VARIABLE as GAUDI
from gpurun.gpu.intel.host import intel_gpus
from gpurun.gpu.resolve import NO_LESSOR, both
from gpurun.gpu.vendors import EVERY_MAKER, find_vendor, is_free, place
from gpurun.record import replace

TYPE_CHECKING = False
if TYPE_CHECKING:
    from gpurun.gpu.request.free import FreeRequest
    from gpurun.gpu.resolve import Inquiry

VENDOR = find_vendor("intel")


def edits_of(asked: Inquiry) -> ContainerEdits | None:
    """The edits of Intel's part of a container, None for none.  Raises as :func:`gpurun.gpu.resolve.gpu_edits`."""
    values = dict([entry.partition("=")[::2] for entry in asked.env if entry.startswith((f"{EVERY_MAKER}=", f"{GAUDI}="))])
    return both(_gpus(asked, values.get(EVERY_MAKER, "")), _accelerators(asked, values.get(GAUDI, "")))


def free_edits(asked: Inquiry, free: FreeRequest) -> ContainerEdits:
    """The edits for GPUs that *free* gets; the container gets their ids.

    Raises :class:`GpuError` where there are no leases.
    """
    if asked.allocate is None:
        raise GpuError(NO_LESSOR)
    names, warnings = asked.allocate(free)
    made = named_edits(asked, names)
    return replace(made, env=(*made.env, f"{EVERY_MAKER}={','.join(names)}"), warnings=made.warnings + warnings)


def named_edits(asked: Inquiry, names: tuple[str, ...]) -> ContainerEdits:
    """The edits for the GPUs with these PCI addresses.  Raises :class:`GpuError` for one that this host does not have."""
    gpus = {gpu.key: gpu for gpu in intel_gpus(asked.own_env.get("GPURUN_SYSROOT", "").rstrip("/"))}
    lacking = [name for name in names if name not in gpus]
    if lacking:
        listed = ", ".join([gpu.label for gpu in gpus.values()]) or "none"
        raise GpuError(
            f"'{clean(lacking[0])}' ({place(EVERY_MAKER)}) is not one of Intel's GPUs on this host: there are {listed}"
        )
    chosen = [gpus[name] for name in dict.fromkeys(names)]
    closed = closed_by_job([gpu.drm.render.host_path for gpu in chosen if gpu.drm.render is not None])
    for gpu in chosen:
        if gpu.drm.render is not None and gpu.drm.render.host_path in closed:
            raise GpuError(f"{place(EVERY_MAKER)}: {gpu.label}: {NOT_OF_THE_JOB}: ask for all, which are those of the job")
    cards = wants_cards(asked.env, asked.own_env)
    return drm_edits(tuple([(gpu.label, gpu.qualified, gpu.drm) for gpu in chosen]), cards)


def _gpus(asked: Inquiry, value: str) -> ContainerEdits | None:
    if value in ("", "void", "none"):
        return None
    if not is_free(value):
        return named_edits(asked, tuple(value.split(",")))
    from gpurun.gpu.request.free import read_free_request

    return free_edits(asked, read_free_request(value, EVERY_MAKER, VENDOR.name))


def _accelerators(asked: Inquiry, value: str) -> ContainerEdits | None:
    if not value:
        return None
    from gpurun.gpu.intel.gaudi import accelerators, gaudi_edits, select

    chosen = select(value, accelerators(asked.own_env.get("GPURUN_SYSROOT", "").rstrip("/")))
    return gaudi_edits(chosen) if chosen else None
