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
    devices: dict[str, Offered] = {known[identity].uuid: known[identity] for identity in ids}
    names = [device.index if config.id_strategy == "index" else device.uuid for device in devices.values()]
    env: list[tuple[str, str]] = []
    mounts: list[tuple[str, str]] = []
    annotations: list[tuple[str, str]] = []
    specs: list[tuple[str, str]] = []
    cdi = [f"{VENDOR}/{CLASS}={name}" for name in names]
    if "cdi-annotations" in config.list_strategies:
        annotations.append((annotation_key(config.annotation_prefix, ids), ",".join(cdi)))
    if mps is not None:
        env.append(("CUDA_MPS_PIPE_DIRECTORY", mps.container_pipes))
        mounts += [(mps.pipes, mps.container_pipes), (mps.shm, "/dev/shm")]
    env += [(name, "enabled") for name, on in _features(config) if on]
    if "envvar" in config.list_strategies:
        env.append(("NVIDIA_VISIBLE_DEVICES", ",".join(names)))
        if config.imex_channels:
            env.append(("NVIDIA_IMEX_CHANNELS", ",".join(map(str, config.imex_channels))))
    if "volume-mounts" in config.list_strategies:
        if "envvar" not in config.list_strategies:
            env.append(("NVIDIA_VISIBLE_DEVICES", _VOLUME_ROOT))
        mounts += [(_NOTHING, f"{_VOLUME_ROOT}/{name}") for name in names]
        mounts += [(_NOTHING, f"{_VOLUME_ROOT}/imex/{channel}") for channel in config.imex_channels]
    if config.pass_device_specs and not all(one.startswith("cdi-") for one in config.list_strategies):
        paths = dict.fromkeys([path for device in devices.values() for path in device.paths])
        specs = [(dev + path, path) for path in (*[p for p in CONTROL_NODES if p in nodes], *paths)]
    return Granted(
        tuple(env),
        tuple(mounts),
        tuple(specs),
        tuple(annotations),
        tuple(cdi) if "cdi-cri" in config.list_strategies else (),
    )


def annotation_key(prefix: str, ids: Sequence[str]) -> str:
    """The annotation that names a container's CDI devices.

    Containers of a pod share its annotations, so each has its own key; the same devices have the same key again.
    """
    from hashlib import blake2b

    return f"{prefix}nvidia-device-plugin_{blake2b(','.join(sorted(ids)).encode(), digest_size=8).hexdigest()}"


def _features(config: PluginConfig) -> tuple[tuple[str, bool], ...]:
    return ("NVIDIA_GDRCOPY", config.gdrcopy), ("NVIDIA_GDS", config.gds), ("NVIDIA_MOFED", config.mofed)
