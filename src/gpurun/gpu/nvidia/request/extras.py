"""What is asked for beside GPUs: GPUDirect Storage, InfiniBand, GDRCopy, NVSwitch, IMEX channels, administering MIG."""

from __future__ import annotations

from gpurun.decimals import decimal
from gpurun.errors import ConfigError, clean
from gpurun.gpu.vendors import place
from gpurun.record import replace

TYPE_CHECKING = False
if TYPE_CHECKING:
    from gpurun.gpu.nvidia.request.records import GpuRequest, Policy

#: Variable → name in GpuRequest.extras; each acts only on the exact value ``enabled``.
FEATURES = {"NVIDIA_GDS": "gds", "NVIDIA_MOFED": "mofed", "NVIDIA_GDRCOPY": "gdrcopy", "NVIDIA_NVSWITCH": "nvswitch"}
#: Variable → its name in the toolkit's messages and in GpuRequest.extras; ``all`` is the only value.
MIG_ADMIN = {
    "NVIDIA_MIG_CONFIG_DEVICES": ("MIG_CONFIG_DEVICES", "mig-config"),
    "NVIDIA_MIG_MONITOR_DEVICES": ("MIG_MONITOR_DEVICES", "mig-monitor"),
}
_CHANNELS = "NVIDIA_IMEX_CHANNELS"
#: The driver has no more channels (NVreg_ImexChannelCount), and the minor of a node is 20 bits.
MAX_CHANNEL = (1 << 20) - 1
MAX_CHANNELS = 2048


def with_extras(
    request: GpuRequest, variables: dict[str, str], mounted: tuple[str, ...], privileged: bool, policy: Policy
) -> GpuRequest:
    """*request* with what *variables* and the channels of volume mounts (*mounted*) ask for beside its GPUs.

    Raises :class:`ConfigError` in the toolkit's words for MIG administration that is not allowed.
    """
    extras = []
    if request.devices or request.qualified:  # as in the toolkit: with at least one device only
        extras = [extra for name, extra in FEATURES.items() if variables.get(name) == "enabled"]
    for name, (text, extra) in MIG_ADMIN.items():
        value = variables.get(name, "")
        if not value:
            continue
        if not privileged:
            raise ConfigError(f"process.env {name}", f"cannot set {text} in non privileged container")
        if value != "all":
            raise ConfigError(f"process.env {name}", f"'{clean(value)}': only 'all' can be asked for")
        if any(device[:4].upper() == "MIG-" or _is_pair(device) for device in request.devices):
            raise ConfigError(f"process.env {name}", f"cannot enable {extra} with specific MIG devices selected")
        extras.append(extra)
    channels, warnings = _channels(variables.get(_CHANNELS, ""), mounted, privileged, policy)
    return replace(
        request, extras=tuple(extras), imex_channels=channels, warnings=request.warnings + warnings
    )  # fmt: skip


def _is_pair(device: str) -> bool:
    gpu, colon, index = device.partition(":")
    return bool(colon) and gpu.isdigit() and index.isdigit()


def _channels(
    value: str, mounted: tuple[str, ...], privileged: bool, policy: Policy
) -> tuple[tuple[int, ...], tuple[str, ...]]:
    """The ids of the IMEX channels, sorted, and warnings; those of volume mounts come before those of the environment."""
    ids = [stripped for part in value.split(",") if (stripped := part.strip())]
    if policy.ignore_imex_channels:
        return (), ()
    if mounted:
        return _numbers("mounts", mounted), ()
    if not ids or ids == ["all"]:  # in the environment "all" means none, in the toolkit as well
        return (), ()
    if not privileged and not policy.accept_envvar_when_unprivileged:
        text = f"Ignoring devices requested by environment variable(s) in unprivileged container: [{_CHANNELS}]"
        return (), (text,)
    return _numbers(_CHANNELS, tuple(ids)), ()


def _numbers(source: str, ids: tuple[str, ...]) -> tuple[int, ...]:
    if len(ids) > MAX_CHANNELS:
        raise ConfigError(place(source), f"asks for {len(ids)} IMEX channels, more than {MAX_CHANNELS} are never there")
    numbers = set()
    for channel in ids:
        number = decimal(channel.removeprefix("channel"), MAX_CHANNEL)
        if number is None:
            text = f"'{clean(channel)}' is not an IMEX channel: write a number from 0 to {MAX_CHANNEL}"
            raise ConfigError(place(source), text)
        numbers.add(number)
    return tuple(sorted(numbers))
