"""Devices asked for by mounts: empty ones of /dev/null below /var/run/nvidia-container-devices, whose names are the ids.

Who may give a pod volumes is for the cluster to decide, unlike who writes an image's environment; so hardened clusters
(``accept-nvidia-visible-devices-as-volume-mounts = true``) ask in this way only.
"""

from __future__ import annotations

from gpurun.errors import ConfigError, clean
from gpurun.gpu.nvidia.request.records import MAX_VALUE, VOLUME_MOUNTS, is_qualified
from gpurun.paths import clean_path


def read_volume_mounts(mounts: list[tuple[str, str]]) -> tuple[tuple[str, ...] | None, tuple[str, ...], tuple[str, ...]]:
    """(device ids, ids of IMEX channels, warnings) of *mounts*, each a source and a destination.

    ``cdi/<vendor>/<class>/<name>`` becomes the CDI device name ``<vendor>/<class>=<name>``, ``imex/<id>`` a channel; a
    destination whose last element is ``all`` asks for every GPU.  ``None`` instead of ids when no device is asked for.
    Raises :class:`ConfigError` for a destination that is too long to be read.
    """
    devices: dict[str, None] = {}
    channels: dict[str, None] = {}
    warnings = []
    for source, destination in mounts:
        if clean_path(source) != "/dev/null" or not source.startswith("/"):
            continue
        if len(destination) > MAX_VALUE:
            raise ConfigError("mounts", f"a destination is {len(destination)} characters long: {clean(destination, 80)}")
        name = destination[len(VOLUME_MOUNTS) :].strip("/")
        kind, _, rest = name.partition("/")
        if kind == "imex" and rest:
            channels[rest] = None
        elif kind == "cdi" and rest:
            qualified = _cdi_name(rest)
            if is_qualified(qualified):
                devices[qualified] = None
            else:
                warnings.append(f"mounts: {clean(destination)} is not the name of a CDI device: it is ignored")
        elif name:
            devices["all" if name.rpartition("/")[2] == "all" else name] = None
    return tuple(devices) or None, tuple(channels), tuple(warnings)


def _cdi_name(rest: str) -> str:
    if "=" in rest:
        return rest
    parts = rest.split("/", 2)
    return f"{parts[0]}/{parts[1]}={parts[2]}" if len(parts) == 3 else rest
