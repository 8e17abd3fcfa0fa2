"""A request for GPUs and the site's policy, as records."""

from __future__ import annotations

from gpurun.gpu.nvidia.host.file_names import CAPABILITIES
from gpurun.record import Record

DEFAULT_CAPABILITIES = ("compute", "utility")
#: Longer values are refused unread: the image writes them, and no machine has that many devices.
MAX_VALUE = 64 * 1024
DEVICES = "NVIDIA_VISIBLE_DEVICES"
DRIVER_CAPABILITIES = "NVIDIA_DRIVER_CAPABILITIES"
#: Below it a mount of /dev/null stands for a device; as a value of NVIDIA_VISIBLE_DEVICES it says that the mounts count.
VOLUME_MOUNTS = "/var/run/nvidia-container-devices"


class Policy(Record):
    """What the administrator of the host allows, in the words of the toolkit's ``config.toml``."""

    accept_envvar_when_unprivileged: bool = True
    disable_require: bool = False
    supported_capabilities: tuple[str, ...] = CAPABILITIES
    swarm_resource: tuple[str, ...] = ()
    accept_volume_mounts: bool = False
    ignore_imex_channels: bool = False


class GpuRequest(Record):
    """GPUs asked for by one container.

    *devices* is ``("all",)``, a list of ids without duplicates, or empty for ``none`` (the driver without any GPU) and when
    *qualified* has CDI device names instead, perhaps with plain ids among them, which only the mode ``cdi`` takes
    (:func:`gpurun.gpu.nvidia.cdi.named_devices.split_devices`); *capabilities* and *requirements* (``NVIDIA_REQUIRE_*``
    expressions, all of which must hold) are sorted.  *source* says where the list was found, for messages and reasons.
    *denied* is not empty when the site's policy says no: then nothing is to be done but telling so (the toolkit starts such
    a container as well).

    *extras* are the names in :data:`gpurun.gpu.nvidia.host.extras.EXTRAS` of what is asked beside the GPUs, *imex_channels*
    the ids of channels to other machines; *all_csv* that a Tegra container wants the files of all lists;
    *forward_compat* that newer CUDA libraries of the image may be used (not so with ``NVIDIA_DISABLE_CUDA_COMPAT``).
    """

    devices: tuple[str, ...]
    capabilities: tuple[str, ...] = DEFAULT_CAPABILITIES
    requirements: tuple[str, ...] = ()
    source: str = DEVICES
    denied: str = ""
    qualified: tuple[str, ...] = ()
    extras: tuple[str, ...] = ()
    imex_channels: tuple[int, ...] = ()
    all_csv: bool = False
    forward_compat: bool = True
    warnings: tuple[str, ...] = ()


def without_maker(device: str) -> str:
    """*device*, of ``nvidia:1`` the index: so it is called where GPUs of several makers are named."""
    number = device[7:] if device[:7].lower() == "nvidia:" else ""
    return number if number.isascii() and number.isdigit() else device


def is_qualified(device: str) -> bool:
    """Whether *device* has the form of a CDI device name ``vendor/class=name``."""
    kind, equals, name = device.partition("=")
    vendor, slash, cls = kind.partition("/")
    return bool(vendor and slash and cls and equals and name)
