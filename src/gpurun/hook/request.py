"""What a container asks of the GPUs, read from its environment and mounts: pure, and done at once when nothing is asked.

The variables and their meaning are those of the NVIDIA container toolkit (``NVIDIA_VISIBLE_DEVICES``,
``NVIDIA_DRIVER_CAPABILITIES``, ``NVIDIA_REQUIRE_*``), so that images and engines work unchanged.

CDI device names (``vendor/class=name``) are handed on as they are to :mod:`gpurun.hook.cdi`, which also says when the
``cdi.k8s.io/*`` annotations count: they are not looked at here.
"""

from __future__ import annotations

from gpurun.errors import ConfigError
from gpurun.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

#: All driver capabilities there are, in the order in which messages list them.
CAPABILITIES = ("compat32", "compute", "display", "graphics", "ngx", "utility", "video")
DEFAULT_CAPABILITIES = ("compute", "utility")

#: Longer values are refused unread: the image writes them, and no machine has that many devices.
MAX_VALUE = 64 * 1024
#: Of all NVIDIA_REQUIRE_* together: an official image has some thousand, and each is looked at for each GPU.
MAX_REQUIREMENTS = 256 * 1024

DEVICES = "NVIDIA_VISIBLE_DEVICES"
#: Below it a mount of /dev/null stands for a device; as a value of NVIDIA_VISIBLE_DEVICES it says that the mounts count.
VOLUME_MOUNTS = "/var/run/nvidia-container-devices"
_GO_TRUE = ("1", "t", "T", "TRUE", "true", "True")

#: Variables that ask for more than GPUs; read by :mod:`gpurun.hook.request_extras`, imported when there is one.
EXTRA_VARIABLES = (
    "NVIDIA_GDS", "NVIDIA_MOFED", "NVIDIA_GDRCOPY", "NVIDIA_NVSWITCH", "NVIDIA_IMEX_CHANNELS",
    "NVIDIA_MIG_CONFIG_DEVICES", "NVIDIA_MIG_MONITOR_DEVICES",
)  # fmt: skip


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
    *qualified* has CDI device names instead; *capabilities* and *requirements* (``NVIDIA_REQUIRE_*`` expressions, all of
    which must hold) are sorted.  *source* says where the list was found, for messages and reasons.  *denied* is not empty
    when the site's policy says no: then nothing is to be done but telling so (the toolkit starts such a container as well).

    *extras* are the names in :data:`gpurun.hook.extras.EXTRAS` of what is asked beside the GPUs, *imex_channels* the ids
    of channels to other machines; *all_csv* that a Tegra container wants the files of all lists;
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


def shown(text: str, limit: int = 200) -> str:
    """*text* of an image for a message or a log: control characters escaped, cut at *limit* characters."""
    escaped = repr(text)[1:-1]
    return escaped if len(escaped) <= limit else escaped[:limit] + "..."


def place(source: str) -> str:
    """The *source* of a request as a place in config.json."""
    return source if source == "mounts" else f"process.env {source}"


def read_request(
    env: tuple[str, ...],
    annotations: Mapping[str, str],
    privileged: bool,
    policy: Policy | None = None,
    mounts: tuple[tuple[str, str], ...] = (),
) -> GpuRequest | None:
    """The GPU request of a container, or ``None`` when nothing is to be done for it.

    *env* is ``process.env`` of config.json (of duplicate names the last one counts), *privileged* whether its bounding
    set has CAP_SYS_ADMIN, *mounts* the (source, destination) of its mounts.  *annotations* are not looked at (see the
    module).  Raises :class:`ConfigError` for a value that cannot be right.
    """
    policy = policy or Policy()
    mounted = [m for m in mounts if m[1].startswith(VOLUME_MOUNTS)] if policy.accept_volume_mounts else []
    found = [e for e in env if e.startswith(("NVIDIA_", "CUDA_VERSION="))]
    if not found and not policy.swarm_resource and not mounted:
        return None
    wanted = found if not policy.swarm_resource else env
    variables = {name: value for name, equals, value in [e.partition("=") for e in wanted] if equals}
    legacy = bool(variables.get("CUDA_VERSION")) and not variables.get("NVIDIA_REQUIRE_CUDA")
    devices: tuple[str, ...] | None = None
    channels: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    source = "mounts"
    if mounted:
        from gpurun.hook.volume_mounts import read_volume_mounts

        devices, channels, warnings = read_volume_mounts(mounted)
    if not devices:
        source, value = _device_list(variables, legacy, policy)
        devices = None if value is None else _device_ids(source, value)
        if devices is None:
            return None
        if not privileged and not policy.accept_envvar_when_unprivileged:
            # The toolkit's own words, and no failure: the site has decided that images may not ask.
            text = f"Ignoring devices requested by environment variable(s) in unprivileged container: [{source}]"
            return GpuRequest(devices=(), capabilities=(), source=source, denied=text)
    qualified = _qualified(place(source), devices)
    request = GpuRequest(
        devices=() if qualified else _plain(devices),
        capabilities=_read_capabilities(variables.get("NVIDIA_DRIVER_CAPABILITIES", ""), legacy, policy),
        requirements=_read_requirements(variables, legacy, policy),
        source=source,
        qualified=qualified,
        all_csv="csv-mounts=all" in variables.get("NVIDIA_REQUIRE_JETPACK", "").split(","),
        forward_compat=variables.get("NVIDIA_DISABLE_CUDA_COMPAT") not in _GO_TRUE,
        warnings=warnings,
    )
    if channels or any(variables.get(name) for name in EXTRA_VARIABLES):
        from gpurun.hook.request_extras import with_extras

        return with_extras(request, variables, channels, privileged, policy)
    return request


def read_needs(env: tuple[str, ...], policy: Policy) -> GpuRequest:
    """What ``process.env`` says a container needs, whoever names its devices: capabilities and requirements.

    Raises :class:`ConfigError`.
    """
    found = [e.partition("=") for e in env if e.startswith(("NVIDIA_", "CUDA_VERSION="))]
    variables = {name: value for name, equals, value in found if equals}
    legacy = bool(variables.get("CUDA_VERSION")) and not variables.get("NVIDIA_REQUIRE_CUDA")
    return GpuRequest(
        devices=(),
        capabilities=_read_capabilities(variables.get("NVIDIA_DRIVER_CAPABILITIES", ""), legacy, policy),
        requirements=_read_requirements(variables, legacy, policy),
    )


def wants_newer_libraries(env: tuple[str, ...]) -> bool:
    """Whether ``process.env`` lets newer CUDA libraries of the image be used; of duplicates the last one counts."""
    said = [entry.partition("=")[2] for entry in env if entry.startswith("NVIDIA_DISABLE_CUDA_COMPAT=")]
    return not said or said[-1] not in _GO_TRUE


def _device_list(variables: dict[str, str], legacy: bool, policy: Policy) -> tuple[str, str | None]:
    present = [name for name in policy.swarm_resource if name in variables]
    if present:
        return ", ".join(present), ",".join([variables[name] for name in present])
    return DEVICES, variables.get(DEVICES, "all" if legacy else None)


def _device_ids(source: str, value: str) -> tuple[str, ...] | None:
    """The ids in *value*: ``None`` for nothing at all."""
    if len(value) > MAX_VALUE:
        raise ConfigError(place(source), f"is {len(value)} characters long, more than {MAX_VALUE} are not read")
    ids = [stripped for part in value.split(",") if (stripped := part.strip())]
    return None if not ids or "void" in ids else tuple(ids)


def _plain(ids: tuple[str, ...]) -> tuple[str, ...]:
    """The *ids* each once; ``none`` is an empty list, and whichever of it and ``all`` comes first counts."""
    for device in ids:
        if device == "none":
            return ()
        if device == "all":
            return ("all",)
    return tuple(dict.fromkeys(ids))


def _qualified(where: str, devices: tuple[str, ...]) -> tuple[str, ...]:
    """*devices* each once, when they are CDI device names."""
    names = [is_qualified(device) for device in devices]
    if any(names) and not all(names):
        listed = shown(",".join(devices))
        raise ConfigError(where, f"mixes CDI device names with other device ids in '{listed}': use one form for all")
    return tuple(dict.fromkeys(devices)) if any(names) else ()


def is_qualified(device: str) -> bool:
    """Whether *device* has the form of a CDI device name ``vendor/class=name``."""
    kind, equals, name = device.partition("=")
    vendor, slash, cls = kind.partition("/")
    return bool(vendor and slash and cls and equals and name)


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
    length = sum([len(value) for value in found])
    if length > MAX_REQUIREMENTS:
        text = (
            f"are {length} characters long, more than {MAX_REQUIREMENTS} are not read (NVIDIA_DISABLE_REQUIRE=1 skips them)"
        )
        raise ConfigError("process.env NVIDIA_REQUIRE_*", text)
    if legacy:
        found.append(_implicit_requirement(variables["CUDA_VERSION"]))
    return tuple(sorted(found))


def _implicit_requirement(version: str) -> str:
    """``cuda>=MAJOR.MINOR`` of the ``CUDA_VERSION`` of an image older than ``NVIDIA_REQUIRE_CUDA``."""
    parts = version.strip().split(".")
    numbers = parts[:2] if len(parts) > 1 else [*parts, "0"]
    if not all(n.isascii() and n.isdigit() and len(n) < 10 for n in numbers):
        raise ConfigError("process.env CUDA_VERSION", f"'{shown(version)}' is not a version such as 12.4.1")
    return f"cuda>={int(numbers[0])}.{int(numbers[1])}"
