"""What a container asks of the GPUs, read from its environment and mounts: pure, and done at once when nothing is asked.

The variables and their meaning are those of the NVIDIA container toolkit (``NVIDIA_VISIBLE_DEVICES``,
``NVIDIA_DRIVER_CAPABILITIES``, ``NVIDIA_REQUIRE_*``), so that images and engines work unchanged.

CDI device names (``vendor/class=name``) are handed on as they are to :mod:`gpurun.gpu.nvidia.cdi.named_devices`, which also
says when the ``cdi.k8s.io/*`` annotations count: they are not looked at here.
"""

from __future__ import annotations

from gpurun.errors import ConfigError, clean
from gpurun.gpu.nvidia.request.records import (
    DEFAULT_CAPABILITIES,
    DEVICES,
    MAX_VALUE,
    VOLUME_MOUNTS,
    GpuRequest,
    Policy,
    is_qualified,
    without_maker,
)
from gpurun.gpu.vendors import GO_TRUE, is_free, place

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping


#: Of all NVIDIA_REQUIRE_* together: an official image has some thousand, and each is looked at for each GPU.
MAX_REQUIREMENTS = 256 * 1024

#: Variables that ask for more than GPUs; read by :mod:`gpurun.gpu.nvidia.request.extras`, imported when there is one.
EXTRA_VARIABLES = (
    "NVIDIA_GDS", "NVIDIA_MOFED", "NVIDIA_GDRCOPY", "NVIDIA_NVSWITCH", "NVIDIA_IMEX_CHANNELS",
    "NVIDIA_MIG_CONFIG_DEVICES", "NVIDIA_MIG_MONITOR_DEVICES",
)  # fmt: skip


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
        from gpurun.gpu.nvidia.request.volume_mounts import read_volume_mounts

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
    if len(devices) > 1 and any(is_free(device) for device in devices):
        listed = clean(",".join(devices))
        raise ConfigError(place(source), f"'{listed}' names free GPUs and other devices: free:N must stand alone")
    qualified = () if is_free(devices[0]) else _qualified_names(devices)
    request = GpuRequest(
        devices=() if qualified else _plain(devices),
        capabilities=_read_capabilities(variables.get("NVIDIA_DRIVER_CAPABILITIES"), legacy, policy),
        requirements=_read_requirements(variables, legacy, policy),
        source=source,
        qualified=qualified,
        all_csv="csv-mounts=all" in variables.get("NVIDIA_REQUIRE_JETPACK", "").split(","),
        forward_compat=variables.get("NVIDIA_DISABLE_CUDA_COMPAT") not in GO_TRUE,
        warnings=warnings,
    )
    if channels or any(variables.get(name) for name in EXTRA_VARIABLES):
        from gpurun.gpu.nvidia.request.extras import with_extras

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
        capabilities=_read_capabilities(variables.get("NVIDIA_DRIVER_CAPABILITIES"), legacy, policy),
        requirements=_read_requirements(variables, legacy, policy),
    )


def wants_newer_libraries(env: tuple[str, ...]) -> bool:
    """Whether ``process.env`` lets newer CUDA libraries of the image be used; of duplicates the last one counts."""
    said = [entry.partition("=")[2] for entry in env if entry.startswith("NVIDIA_DISABLE_CUDA_COMPAT=")]
    return not said or said[-1] not in GO_TRUE


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
    return tuple(dict.fromkeys([without_maker(device) for device in ids]))


def _qualified_names(devices: tuple[str, ...]) -> tuple[str, ...]:
    """*devices* each once, when one of them is a CDI device name; empty when none is."""
    return tuple(dict.fromkeys(devices)) if True in [is_qualified(device) for device in devices] else ()


def _read_capabilities(value: str | None, legacy: bool, policy: Policy) -> tuple[str, ...]:
    """The capabilities that *value* (``None``: there is none) asks for: none at all where it has words but no name."""
    supported = policy.supported_capabilities
    if value is None and legacy:
        return tuple(sorted(supported))
    if not value:
        return tuple([name for name in DEFAULT_CAPABILITIES if name in supported])
    names = [stripped for part in value.split(",") if (stripped := part.strip())]
    if "all" in names:
        return tuple(sorted(supported))
    if any(name not in supported for name in names):
        raise ConfigError(
            "process.env NVIDIA_DRIVER_CAPABILITIES",
            f"unsupported capabilities found in '{clean(value)}' (allowed '{','.join(sorted(supported))}')",
        )
    return tuple(sorted(set(names)))


def _read_requirements(variables: dict[str, str], legacy: bool, policy: Policy) -> tuple[str, ...]:
    if policy.disable_require or variables.get("NVIDIA_DISABLE_REQUIRE") in GO_TRUE:
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
    release = version.strip().removeprefix("v").partition("+")[0].partition("-")[0]
    numbers = [*release.split("."), "0"]
    if not all(n.isascii() and n.isdigit() and len(n) < 10 for n in numbers):
        raise ConfigError("process.env CUDA_VERSION", f"'{clean(version)}' is not a version such as 12.4.1")
    return f"cuda>={int(numbers[0])}.{int(numbers[1])}"


def names_capabilities(env: tuple[str, ...]) -> bool:
    """Whether ``process.env`` says which capabilities are needed; of duplicates the last one counts."""
    said = [entry.partition("=")[2] for entry in env if entry.startswith("NVIDIA_DRIVER_CAPABILITIES=")]
    return bool(said and said[-1])
