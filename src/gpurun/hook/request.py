"""What a container asks of the GPUs, read from its environment: pure, and done at once when nothing is asked.

The variables and their meaning are those of the NVIDIA container toolkit (``NVIDIA_VISIBLE_DEVICES``,
``NVIDIA_DRIVER_CAPABILITIES``, ``NVIDIA_REQUIRE_*``), so that images and engines work unchanged.  What the toolkit knows and
gpurun does not do yet is refused by name: a container that starts without the device it asked for fails later, and worse.

``cdi.k8s.io/*`` annotations are left alone on purpose: the engine that resolved them leaves them in place, so honouring
them here would inject everything twice.
"""

from __future__ import annotations

from gpurun.errors import ConfigError, UnsupportedError
from gpurun.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

#: All driver capabilities there are, in the order in which messages list them.
CAPABILITIES = ("compat32", "compute", "display", "graphics", "ngx", "utility", "video")
DEFAULT_CAPABILITIES = ("compute", "utility")

#: Longer values are refused unread: the image writes them, and no machine has that many devices.
MAX_VALUE = 64 * 1024

DEVICES = "NVIDIA_VISIBLE_DEVICES"
_VOLUME_MOUNT_MARKER = "/var/run/nvidia-container-devices"
_GO_TRUE = ("1", "t", "T", "TRUE", "true", "True")

#: Variables that ask for devices beside the GPUs; each acts only on the exact value ``enabled``.
_EXTRA_DEVICES = {
    "NVIDIA_GDS": "GPUDirect Storage",
    "NVIDIA_MOFED": "InfiniBand",
    "NVIDIA_GDRCOPY": "GDRCopy",
    "NVIDIA_NVSWITCH": "NVSwitch",
}
_MIG_ADMIN = {"NVIDIA_MIG_CONFIG_DEVICES": "MIG_CONFIG_DEVICES", "NVIDIA_MIG_MONITOR_DEVICES": "MIG_MONITOR_DEVICES"}


class Policy(Record):
    """What the administrator of the host allows, in the words of the toolkit's ``config.toml``."""

    accept_envvar_when_unprivileged: bool = True
    disable_require: bool = False
    supported_capabilities: tuple[str, ...] = CAPABILITIES
    swarm_resource: tuple[str, ...] = ()


class GpuRequest(Record):
    """GPUs asked for by one container.

    *devices* is ``("all",)``, a list of ids without duplicates, or empty for ``none`` (the driver without any GPU);
    *capabilities* and *requirements* (``NVIDIA_REQUIRE_*`` expressions, all of which must hold) are sorted.
    *source* says where the list was found, for messages and reasons.  *denied* is not empty when the site's policy says no:
    then nothing is to be done but telling so (the toolkit starts such a container as well).
    """

    devices: tuple[str, ...]
    capabilities: tuple[str, ...] = DEFAULT_CAPABILITIES
    requirements: tuple[str, ...] = ()
    source: str = DEVICES
    denied: str = ""


def shown(text: str, limit: int = 200) -> str:
    """*text* of an image for a message or a log: control characters escaped, cut at *limit* characters."""
    escaped = repr(text)[1:-1]
    return escaped if len(escaped) <= limit else escaped[:limit] + "..."


def read_request(
    env: tuple[str, ...], annotations: Mapping[str, str], privileged: bool, policy: Policy | None = None
) -> GpuRequest | None:
    """The GPU request of a container, or ``None`` when nothing is to be done for it.

    *env* is ``process.env`` of config.json (of duplicate names the last one counts), *privileged* whether its bounding
    set has CAP_SYS_ADMIN.  *annotations* are not looked at (see the module).  Raises :class:`ConfigError` for
    a value that cannot be right, :class:`UnsupportedError` for what gpurun does not do.
    """
    found = [e for e in env if e.startswith(("NVIDIA_", "CUDA_VERSION="))]
    if not found and not (policy and policy.swarm_resource):
        return None
    policy = policy or Policy()
    wanted = found if not policy.swarm_resource else env
    variables = {name: value for name, equals, value in [e.partition("=") for e in wanted] if equals}
    legacy = bool(variables.get("CUDA_VERSION")) and not variables.get("NVIDIA_REQUIRE_CUDA")
    source, value = _device_list(variables, legacy, policy)
    if value is None:
        return None
    devices = _device_ids(source, value)
    if devices is None:
        return None
    accepted = privileged or policy.accept_envvar_when_unprivileged
    # The volume-mount marker is refused also where images may not ask: such a site means the mounts to count.
    if not accepted and not any(device.startswith(_VOLUME_MOUNT_MARKER) for device in devices):
        # The toolkit's own words, and no failure: the site has decided that images may not ask.
        return GpuRequest(
            devices=(),
            capabilities=(),
            source=source,
            denied=f"Ignoring devices requested by environment variable(s) in unprivileged container: [{source}]",
        )
    if devices:
        _refuse_forms(f"process.env {source}", devices)
        _refuse_extras(variables, privileged)
    return GpuRequest(
        devices=devices,
        capabilities=_read_capabilities(variables.get("NVIDIA_DRIVER_CAPABILITIES", ""), legacy, policy),
        requirements=_read_requirements(variables, legacy, policy),
        source=source,
    )


def _device_list(variables: dict[str, str], legacy: bool, policy: Policy) -> tuple[str, str | None]:
    present = [name for name in policy.swarm_resource if name in variables]
    if present:
        return ", ".join(present), ",".join([variables[name] for name in present])
    return DEVICES, variables.get(DEVICES, "all" if legacy else None)


def _device_ids(source: str, value: str) -> tuple[str, ...] | None:
    """The ids in *value*: ``None`` for nothing at all, empty for ``none``."""
    where = f"process.env {source}"
    if len(value) > MAX_VALUE:
        raise ConfigError(where, f"is {len(value)} characters long, more than {MAX_VALUE} are not read")
    ids = [stripped for part in value.split(",") if (stripped := part.strip())]
    if not ids or "void" in ids:
        return None
    for device in ids:
        if device == "none":
            return ()
        if device == "all":
            return ("all",)
    return tuple(dict.fromkeys(ids))


def _refuse_forms(where: str, devices: tuple[str, ...]) -> None:
    qualified = [_is_qualified(device) for device in devices]
    if any(qualified) and not all(qualified):
        listed = shown(",".join(devices))
        raise ConfigError(where, f"mixes CDI device names with other device ids in '{listed}': use one form for all")
    for device in devices:
        _refuse_form(where, device)


def _is_qualified(device: str) -> bool:
    """Whether *device* is a CDI device name ``vendor/class=name``."""
    kind, equals, name = device.partition("=")
    vendor, slash, cls = kind.partition("/")
    return bool(vendor and slash and cls and equals and name)


def _refuse_form(where: str, device: str) -> None:
    name = shown(device)
    if device.startswith(_VOLUME_MOUNT_MARKER):
        raise UnsupportedError(
            where,
            f"{name}: device lists given as volume mounts are not supported: let the device plugin use the strategy envvar",
        )
    if _is_qualified(device):
        raise UnsupportedError(
            where, f"{name}: CDI device names are not supported here: let the engine inject them (--device {name})"
        )


def _refuse_extras(variables: dict[str, str], privileged: bool) -> None:
    """Refuse what is asked beside the GPUs and is not done; what the toolkit itself ignores is ignored here too."""
    for name, subject in _EXTRA_DEVICES.items():
        if variables.get(name) == "enabled":
            raise UnsupportedError(f"process.env {name}", f"{subject} devices are not supported: unset it")
    for name, text in _MIG_ADMIN.items():
        if variables.get(name):
            if not privileged:
                raise ConfigError(f"process.env {name}", f"cannot set {text} in non privileged container")
            raise UnsupportedError(f"process.env {name}", "MIG administration from a container is not supported: unset it")
    channels = variables.get("NVIDIA_IMEX_CHANNELS", "").strip()
    if channels not in ("", "all"):  # "all" from the environment means none, in the toolkit as well
        raise UnsupportedError("process.env NVIDIA_IMEX_CHANNELS", "IMEX channels are not supported: unset it")


def _read_capabilities(value: str, legacy: bool, policy: Policy) -> tuple[str, ...]:
    supported = policy.supported_capabilities
    names = [stripped for part in value.split(",") if (stripped := part.strip())]
    if not names:
        if legacy and not value:
            return tuple(sorted(supported))
        return tuple([name for name in DEFAULT_CAPABILITIES if name in supported])
    if "all" in names:
        return tuple(sorted(supported))
    if any(name not in supported for name in names):
        raise ConfigError(
            "process.env NVIDIA_DRIVER_CAPABILITIES",
            f"unsupported capabilities found in '{shown(value)}' (allowed '{','.join(sorted(supported))}')",
        )
    return tuple(sorted(set(names)))


def _read_requirements(variables: dict[str, str], legacy: bool, policy: Policy) -> tuple[str, ...]:
    if policy.disable_require or variables.get("NVIDIA_DISABLE_REQUIRE") in _GO_TRUE:
        return ()
    found = [
        value
        for name, value in variables.items()
        if value and name.startswith("NVIDIA_REQUIRE_") and not name.startswith("NVIDIA_REQUIRE_JETPACK")
    ]
    if legacy:
        found.append(_implicit_requirement(variables["CUDA_VERSION"]))
    return tuple(sorted(found))


def _implicit_requirement(version: str) -> str:
    """``cuda>=MAJOR.MINOR`` of the ``CUDA_VERSION`` of an image older than ``NVIDIA_REQUIRE_CUDA``."""
    parts = version.strip().split(".")
    numbers = parts[:2] if len(parts) > 1 else [*parts, "0"]
    if not all(n.isascii() and n.isdigit() for n in numbers):
        raise ConfigError("process.env CUDA_VERSION", f"'{shown(version)}' is not a version such as 12.4.1")
    return f"cuda>={int(numbers[0])}.{int(numbers[1])}"
