"""What a container is given for the devices that the kubelet has chosen: CDI names, environment or mounts; pure."""

from __future__ import annotations

from collections.abc import Sequence

from gpurun.errors import GpurunError
from gpurun.kubernetes.config import PluginConfig
from gpurun.kubernetes.device_plugin.resources import Offer, Offered
from gpurun.record import Record

#: The kind of the CDI devices of this plugin: not nvidia.com/gpu, which an administrator's own file may have.
VENDOR, CLASS = "k8s.device-plugin.nvidia.com", "gpu"
#: Where the toolkit and gpurun look for device names given as mounts, and what is mounted there.
_VOLUME_ROOT, _NOTHING = "/var/run/nvidia-container-devices", "/dev/null"
CONTROL_NODES = ("/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools", "/dev/nvidia-modeset")


class MpsPlace(Record):
    """Where the MPS daemon of a resource is, on the host and in a container."""

    pipes: str
    shm: str
    container_pipes: str = "/tmp/nvidia-mps"


class Granted(Record):
    """The answer for one container: plain values of ``ContainerAllocateResponse``.

    *mounts* are (path on the host, path in the container), *devices* (path on the host, path in the container).
    """

    env: tuple[tuple[str, str], ...] = ()
    mounts: tuple[tuple[str, str], ...] = ()
    devices: tuple[tuple[str, str], ...] = ()
    annotations: tuple[tuple[str, str], ...] = ()
    cdi: tuple[str, ...] = ()


def granted(
    offer: Offer,
    config: PluginConfig,
    ids: Sequence[str],
    nodes: Sequence[str] = (),
    mps: MpsPlace | None = None,
    dev: str = "",
) -> Granted:
    """The answer for a container that gets the devices *ids* of *offer*.

    *nodes* are the control nodes that the host has, for ``passDeviceSpecs``; *dev* is the host's directory with ``dev/``.
    Raises :class:`GpurunError` for ids that are not there, and for more replicas than the site allows.
    """
    devices = _chosen(offer, config, ids)
    names = [device.index if config.id_strategy == "index" else device.uuid for device in devices]
    cdi = tuple([f"{VENDOR}/{CLASS}={name}" for name in names])
    by = config.list_strategies
    parts = [
        Granted() if mps is None else _by_mps(mps),
        Granted(env=tuple([(name, "enabled") for name, on in _features(config) if on])),
        _by_environment(config, names) if "envvar" in by else Granted(),
        _by_mounts(config, names) if "volume-mounts" in by else Granted(),
        _by_annotation(config, ids, cdi) if "cdi-annotations" in by else Granted(),
        Granted(cdi=cdi) if "cdi-cri" in by else Granted(),
        _by_nodes(devices, nodes, dev)
        if config.pass_device_specs and not all(s.startswith("cdi-") for s in by)
        else Granted(),
    ]
    return Granted(
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


def _by_mps(mps: MpsPlace) -> Granted:
    """A client of the daemon at *mps*."""
    return Granted(
        env=(("CUDA_MPS_PIPE_DIRECTORY", mps.container_pipes),),
        mounts=((mps.pipes, mps.container_pipes), (mps.shm, "/dev/shm")),
    )


def _by_environment(config: PluginConfig, names: Sequence[str]) -> Granted:
    """The strategy ``envvar``."""
    channels = (("NVIDIA_IMEX_CHANNELS", ",".join(map(str, config.imex_channels))),) if config.imex_channels else ()
    return Granted(env=(("NVIDIA_VISIBLE_DEVICES", ",".join(names)), *channels))


def _by_mounts(config: PluginConfig, names: Sequence[str]) -> Granted:
    """The strategy ``volume-mounts``; a variable that names the devices themselves goes before it."""
    wanted = [*names, *[f"imex/{channel}" for channel in config.imex_channels]]
    env = () if "envvar" in config.list_strategies else (("NVIDIA_VISIBLE_DEVICES", _VOLUME_ROOT),)
    return Granted(env=env, mounts=tuple([(_NOTHING, f"{_VOLUME_ROOT}/{name}") for name in wanted]))


def _by_annotation(config: PluginConfig, ids: Sequence[str], cdi: Sequence[str]) -> Granted:
    """The strategy ``cdi-annotations``."""
    return Granted(annotations=((annotation_key(config.annotation_prefix, ids), ",".join(cdi)),))


def _by_nodes(devices: Sequence[Offered], nodes: Sequence[str], dev: str) -> Granted:
    """``passDeviceSpecs``: the device nodes themselves, so that the kubelet's device cgroups know of them."""
    paths = dict.fromkeys([path for device in devices for path in device.paths])
    return Granted(devices=tuple([(dev + path, path) for path in (*[p for p in CONTROL_NODES if p in nodes], *paths)]))


def annotation_key(prefix: str, ids: Sequence[str]) -> str:
    """The annotation that names a container's CDI devices.

    Containers of a pod share its annotations, so each has its own key; the same devices have the same key again.
    """
    from hashlib import blake2b

    return f"{prefix}nvidia-device-plugin_{blake2b(','.join(sorted(ids)).encode(), digest_size=8).hexdigest()}"


def _features(config: PluginConfig) -> tuple[tuple[str, bool], ...]:
    return ("NVIDIA_GDRCOPY", config.gdrcopy), ("NVIDIA_GDS", config.gds), ("NVIDIA_MOFED", config.mofed)
