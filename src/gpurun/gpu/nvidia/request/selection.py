"""Which GPUs and MIG devices a request means.  Pure but for the resolver, which is asked for what only NVML knows."""

from __future__ import annotations

from gpurun.errors import GpuError, clean
from gpurun.gpu.nvidia.host.roots import bus_order
from gpurun.gpu.nvidia.request.records import VOLUME_MOUNTS, without_maker
from gpurun.gpu.vendors import place
from gpurun.record import Record, replace

TYPE_CHECKING = False
if TYPE_CHECKING:
    from gpurun.gpu.nvidia.host.gpus import Gpu
    from gpurun.gpu.nvidia.host.identity import GpuIdentity, Resolver
    from gpurun.gpu.nvidia.host.mig import MigDevice
    from gpurun.gpu.nvidia.request.records import GpuRequest


_MAX_HINTED = 256  # characters: longer names are not typing mistakes


class Selected(Record):
    """One GPU of a container: *whole* when it was asked for itself, else only as the parent of its *mig* devices."""

    gpu: Gpu
    whole: bool = True
    mig: tuple[MigDevice, ...] = ()


def select(request: GpuRequest, gpus: tuple[Gpu, ...], resolver: Resolver | None = None) -> tuple[Selected, ...]:
    """What *request* names, each GPU once, in the order of their index; ``all`` is every GPU with its MIG devices
    but those that the site or the caller's job sets apart.

    *resolver* tells what procfs does not (UUIDs of MIG devices and of GPUs that nothing has used since boot, NVML's numbers)
    and is called at most once, only when needed.
    Raises :class:`GpuError` for a device the host does not have.
    """
    if request.devices == ("all",):
        every = tuple([Selected(gpu, True, gpu.mig) for gpu in gpus if not gpu.apart])
        if gpus and not every:
            why = "; ".join([f"{gpu.bus_id}: {gpu.apart}" for gpu in gpus])
            raise GpuError(f"no GPU is left{_where(request.source)}: {why}")
        return every
    whole: set[int] = set()
    chosen: dict[int, dict[tuple[int, int], MigDevice]] = {}
    for device in request.devices:
        if is_mig(device):
            if resolver is not None and _needs_nvml(device, gpus):
                gpus, resolver = _identify_by_nvml(device, gpus, resolver), None
            gpu, mig = find_mig(device, gpus, request.source)
            chosen.setdefault(gpu.index, {})[(mig.gi, mig.ci)] = mig
        else:
            if resolver is not None and device[:4].upper() == "GPU-" and _nameless(device, gpus):
                gpus, resolver = _identify_by_nvml(device, gpus, resolver), None
            gpu = find_gpu(device, gpus, request.source)
            whole.add(gpu.index)
            chosen.setdefault(gpu.index, {})
    return tuple(
        [Selected(g, g.index in whole, tuple([chosen[g.index][k] for k in sorted(chosen[g.index])])) for g in gpus
         if g.index in chosen]
    )  # fmt: skip


def find_gpu(device: str, gpus: tuple[Gpu, ...], source: str = "") -> Gpu:
    """The GPU with that index (``1``, ``nvidia:1``), UUID (any case) or PCI bus id (domain of any width); the error names
    what there is.

    Raises :class:`GpuError` when there is none.
    """
    number = without_maker(device)
    is_index = _is_number(number)
    bus = bus_order(device) if ":" in device and not is_index else ()
    for gpu in gpus:
        if is_index:
            if gpu.index == int(number[:9]) and len(number) < 10:
                return gpu
        elif (gpu.uuid.lower() == device.lower() and "?" not in device) or (bus and bus == bus_order(gpu.bus_id)):
            return gpu
    from gpurun.gpu.nvidia.request.device_hints import hint as meant

    hint = meant(device, gpus) if len(device) < _MAX_HINTED else ""
    if device.startswith(VOLUME_MOUNTS):
        hint = "device lists given as mounts count where accept-nvidia-visible-devices-as-volume-mounts is true"
    elif not hint and not is_index and any("?" in g.uuid for g in gpus):
        hint = "a GPU shows no UUID until something has used it: run nvidia-smi once"
    by_uuid = device[:4].upper() == "GPU-"
    text = f"{clean(device)}: unknown device{_where(source)}: the GPUs of this host are {_gpu_list(gpus, by_uuid)}"
    raise GpuError(f"{text} ({hint})" if hint else text)


def _gpu_list(gpus: tuple[Gpu, ...], by_uuid: bool = False) -> str:
    from gpurun.gpu.host.naming import short_list

    return short_list([(g.index, g.uuid if by_uuid else g.bus_id, g.model) for g in gpus])


def is_mig(device: str) -> bool:
    """Whether *device* has the form of a MIG device: ``MIG-<uuid>``, ``MIG-GPU-<uuid>/<gi>/<ci>`` or ``G:M``."""
    gpu, colon, index = device.partition(":")
    return device[:4].upper() == "MIG-" or bool(colon and _is_number(gpu) and _is_number(index))


def find_mig(device: str, gpus: tuple[Gpu, ...], source: str = "") -> tuple[Gpu, MigDevice]:
    """The MIG device of that name and its GPU; the error names what there is, in the form that needs no NVML.

    ``G:M`` (GPU index, NVML's number of the MIG device on it) and UUIDs need GPUs that are :func:`identify`.  Returns
    (GPU, MIG device).  Raises :class:`GpuError` when there is none.
    """
    if _named_by_instances(device):
        uuid, gi, ci = device[4:].split("/")
        gpu = find_gpu(uuid, gpus, source)
        wanted = [(gpu, m) for m in gpu.mig if (m.gi, m.ci) == (int(gi[:9]), int(ci[:9])) and len(gi) < 10 and len(ci) < 10]
    elif device[:4].upper() == "MIG-":
        wanted = [(g, m) for g in gpus for m in g.mig if m.uuid and m.uuid.lower() == device.lower()]
    else:
        index, _, number = device.partition(":")
        gpu = find_gpu(index, gpus, source)
        wanted = [(gpu, m) for m in gpu.mig if m.index >= 0 and str(m.index) == number]
        if not wanted and number == "0" and len(gpu.mig) == 1:
            wanted = [(gpu, gpu.mig[0])]  # nothing to mistake it for, whoever counts
    if wanted:
        return wanted[0]
    there = "; ".join([f"MIG-{g.uuid}/{m.gi}/{m.ci}" + (f" = {m.uuid}" if m.uuid else "") for g in gpus for m in g.mig])
    if not there:
        raise GpuError(
            f"{clean(device)}: unknown device{_where(source)}: this host has no MIG devices: its GPUs are {_gpu_list(gpus)} "
            "(`nvidia-smi -mig 1` turns MIG on, `nvidia-smi mig -cgi PROFILE -C` divides a GPU)"
        )
    hint = ""
    if not _named_by_instances(device) and not any(m.uuid for g in gpus for m in g.mig):
        hint = " (NVML was not there to tell MIG UUIDs and numbers: name the device by GPU, GI and CI, as written here)"
    text = f"{clean(device)}: unknown device{_where(source)}: the MIG devices of this host are {there}{hint}"
    raise GpuError(text)


def identify(gpus: tuple[Gpu, ...], identities: tuple[GpuIdentity, ...]) -> tuple[Gpu, ...]:
    """*gpus* with what NVML knows of them: UUIDs, and the numbers and profiles of their MIG devices."""
    known = {bus_order(identity.bus_id): identity for identity in identities}

    def name(gpu: Gpu) -> Gpu:
        identity = known.get(bus_order(gpu.bus_id))
        if identity is None:
            return gpu
        by_instances = {(m.gi, m.ci): m for m in identity.mig}
        mig = []
        for device in gpu.mig:
            found = by_instances.get((device.gi, device.ci))
            if found is not None:
                device = replace(device, uuid=found.uuid, index=found.index, profile=found.profile)
            mig.append(device)
        return replace(gpu, uuid=identity.uuid if "?" in gpu.uuid and identity.uuid else gpu.uuid, mig=tuple(mig))

    return tuple([name(gpu) for gpu in gpus])


def _needs_nvml(device: str, gpus: tuple[Gpu, ...]) -> bool:
    """Whether NVML has to say which MIG device *device* is (and there is any)."""
    if not any(gpu.mig for gpu in gpus):
        return False
    if _named_by_instances(device):
        return _nameless(device[4:].partition("/")[0], gpus)
    index, colon, number = device.partition(":")
    return not (colon and number == "0" and any(str(g.index) == index and len(g.mig) == 1 for g in gpus))


def _nameless(uuid: str, gpus: tuple[Gpu, ...]) -> bool:
    """Whether *uuid* may be that of a GPU that shows none."""
    return any("?" in g.uuid for g in gpus) and all(g.uuid.lower() != uuid.lower() for g in gpus)


def _identify_by_nvml(device: str, gpus: tuple[Gpu, ...], resolver: Resolver) -> tuple[Gpu, ...]:
    try:
        return identify(gpus, resolver())
    except GpuError as e:
        if not is_mig(device):
            return gpus  # the search says what there is
        hint = "MIG-<GPU UUID>/<gi>/<ci> needs none"
        raise GpuError(f"{clean(device)}: only NVML can say which device it is: {e} ({hint})") from None


def _named_by_instances(device: str) -> bool:
    """Whether *device* is ``MIG-GPU-<uuid>/<gi>/<ci>``."""
    parts = device.split("/")
    return device[:8].upper() == "MIG-GPU-" and len(parts) == 3 and _is_number(parts[1]) and _is_number(parts[2])


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit()


def _where(source: str) -> str:
    return f" ({place(source)})" if source else ""
