"""What a container is given for the devices that the kubelet has chosen: CDI names, environment or mounts; pure."""

from __future__ import annotations

from collections.abc import Sequence

from gpurun.errors import GpurunError
from gpurun.kubernetes.config import PluginConfig
from gpurun.kubernetes.device_plugin.resources import Offer, Offered
from gpurun.record import Record

#: The kind of the CDI devices of this plugin: not nvidia.com/gpu, which an administrator's own file may have.
VENDOR, CLASS = "k8s.device-plugin.nvidia.com", "gpu"
#: What is mounted where the toolkit and gpurun look for device names given as mounts.
_NOTHING = "/dev/null"
CONTROL_NODES = ("/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools", "/dev/nvidia-modeset")


class Naming(Record):
    """How a container gets the devices of a maker.

    *kind* is that of its CDI devices, *variable* its variable, which takes only a number where *by_index*; *annotation* is
    the beginning of the name of annotations.  *volumes* is where names of devices are given as mounts, empty where nobody
    reads any; *features* are those of NVIDIA's configuration, which are not for the GPUs of others.
    """

    kind: str
    variable: str
    annotation: str
    by_index: bool = True
    volumes: str = ""
    features: bool = False


NVIDIA = Naming(
    f"{VENDOR}/{CLASS}", "NVIDIA_VISIBLE_DEVICES", "nvidia-device-plugin", True, "/var/run/nvidia-container-devices", True
)


class MpsPlace(Record):
    """Where the MPS daemon of a resource is, on the host and in a container."""

    pipes: str
    shm: str
    container_pipes: str = "/tmp/nvidia-mps"


class Allocation(Record):
    """The answer for one container: plain values of ``ContainerAllocateResponse``.

    *mounts* are (path on the host, path in the container), *devices* (path on the host, path in the container).
    """

    env: tuple[tuple[str, str], ...] = ()
    mounts: tuple[tuple[str, str], ...] = ()
    devices: tuple[tuple[str, str], ...] = ()
    annotations: tuple[tuple[str, str], ...] = ()
    cdi: tuple[str, ...] = ()


def allocation(
    offer: Offer,
    config: PluginConfig,
    ids: Sequence[str],
    nodes: Sequence[str] = (),
    mps: MpsPlace | None = None,
    dev: str = "",
    naming: Naming = NVIDIA,
) -> Allocation:
    """The answer for a container that gets the devices *ids* of *offer*, named as *naming* says.

    A strategy that the maker's GPUs do not know gives the device nodes themselves.  *nodes* are the control nodes that the
    host has, for ``passDeviceSpecs``; *dev* is the host's directory with ``dev/``.  Raises :class:`GpurunError` for ids that
    are not there, and for more replicas than the site allows.
    """
    devices = _chosen(offer, config, ids)
    index = config.id_strategy == "index"
    names = [device.index if index else device.uuid for device in devices]
    words = [device.index if index and naming.by_index else device.word or device.uuid for device in devices]
    cdi = tuple([f"{naming.kind}={name}" for name in names])
    by = config.list_strategies
    channels = config.imex_channels if naming.features else ()
    mounts = "volume-mounts" in by
    bare = config.pass_device_specs and not all(s.startswith("cdi-") for s in by)
    parts = [
        Allocation() if mps is None else _by_mps(mps),
        Allocation(env=tuple([(name, "enabled") for name, on in _features(config) if on and naming.features])),
        _by_environment(naming, words, channels) if "envvar" in by else Allocation(),
        _by_mounts(naming, words, channels, "envvar" in by) if mounts and naming.volumes else Allocation(),
        _by_annotation(f"{config.annotation_prefix}{naming.annotation}", ids, cdi)
        if "cdi-annotations" in by
        else Allocation(),
        Allocation(cdi=cdi) if "cdi-cri" in by else Allocation(),
        _by_nodes(devices, nodes, dev) if bare or (mounts and not naming.volumes) else Allocation(),
    ]
    return Allocation(
        env=tuple([pair for part in parts for pair in part.env]),
        mounts=tuple([mount for part in parts for mount in part.mounts]),
        devices=tuple([node for part in parts for node in part.devices]),
        annotations=tuple([pair for part in parts for pair in part.annotations]),
        cdi=tuple([name for part in parts for name in part.cdi]),
    )


def _chosen(offer: Offer, config: PluginConfig, ids: Sequence[str]) -> list[Offered]:
    """The devices *ids* of *offer*, each once, however many replicas of it are asked for.  Raises :class:`GpurunError`."""
    known = {device.id: device for device in offer.devices}
    unknown = [identity for identity in ids if identity not in known]
    if unknown:
        raise GpurunError(f"{offer.name}: there is no device {', '.join(unknown)}")
    if not ids:
        raise GpurunError(f"{offer.name}: no device is asked for")
    if offer.replicas > 1 and config.sharing.fail_more_than_one and len(ids) > 1:
        raise GpurunError(
            f"{offer.name}: {len(ids)} replicas are asked for, and failRequestsGreaterThanOne is set: more replicas would "
            "not be more of a GPU"
        )
    return list({known[identity].uuid: known[identity] for identity in ids}.values())


def _by_mps(mps: MpsPlace) -> Allocation:
    """A client of the daemon at *mps*."""
    return Allocation(
        env=(("CUDA_MPS_PIPE_DIRECTORY", mps.container_pipes),),
        mounts=((mps.pipes, mps.container_pipes), (mps.shm, "/dev/shm")),
    )


def _by_environment(naming: Naming, names: Sequence[str], channels: Sequence[int]) -> Allocation:
    """The strategy ``envvar``."""
    more = (("NVIDIA_IMEX_CHANNELS", ",".join(map(str, channels))),) if channels else ()
    return Allocation(env=((naming.variable, ",".join(names)), *more))


def _by_mounts(naming: Naming, names: Sequence[str], channels: Sequence[int], named: bool) -> Allocation:
    """The strategy ``volume-mounts``; a variable that has *named* the devices itself goes before it."""
    wanted = [*names, *[f"imex/{channel}" for channel in channels]]
    env = () if named else ((naming.variable, naming.volumes),)
    return Allocation(env=env, mounts=tuple([(_NOTHING, f"{naming.volumes}/{name}") for name in wanted]))


def _by_annotation(beginning: str, ids: Sequence[str], cdi: Sequence[str]) -> Allocation:
    """The strategy ``cdi-annotations``."""
    return Allocation(annotations=((annotation_key(beginning, ids), ",".join(cdi)),))


def _by_nodes(devices: Sequence[Offered], nodes: Sequence[str], dev: str) -> Allocation:
    """``passDeviceSpecs``: the device nodes themselves, so that the kubelet's device cgroups know of them; udev's names of
    them are mounts."""
    paths = dict.fromkeys([path for device in devices for path in device.paths])
    links = dict.fromkeys([link for device in devices for link in device.links])
    return Allocation(
        mounts=tuple([(dev + path, link) for path, link in links]),
        devices=tuple([(dev + path, path) for path in (*[p for p in CONTROL_NODES if p in nodes], *paths)]),
    )


def annotation_key(beginning: str, ids: Sequence[str]) -> str:
    """The annotation that names a container's CDI devices, with the *beginning* of its name.

    Containers of a pod share its annotations, so each has its own key; the same devices have the same key again.
    """
    from hashlib import blake2b

    return f"{beginning}_{blake2b(','.join(sorted(ids)).encode(), digest_size=8).hexdigest()}"


def _features(config: PluginConfig) -> tuple[tuple[str, bool], ...]:
    return ("NVIDIA_GDRCOPY", config.gdrcopy), ("NVIDIA_GDS", config.gds), ("NVIDIA_MOFED", config.mofed)
