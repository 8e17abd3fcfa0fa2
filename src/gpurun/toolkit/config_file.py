"""The site's configuration of the toolkit, ``config.toml``: the default, and changes by key."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from gpurun.errors import ConfigError, UsageError
from gpurun.formats.toml import parse
from gpurun.gpu.nvidia.request.settings import settings_path

#: What holds where the file says nothing; the keys are NVIDIA's.
DEFAULT = """\
accept-nvidia-visible-devices-as-volume-mounts = false
accept-nvidia-visible-devices-envvar-when-unprivileged = true
disable-require = false
supported-driver-capabilities = "compat32,compute,display,graphics,ngx,utility,video"
#swarm-resource = "DOCKER_RESOURCE_GPU"

[nvidia-container-cli]
environment = []
#debug = "/var/log/nvidia-container-toolkit.log"
#ldcache = "/etc/ld.so.cache"
ldconfig = "@/sbin/ldconfig"
load-kmods = true
#no-cgroups = false
#path = "/usr/bin/nvidia-container-cli"
#root = "/run/nvidia/driver"
#user = "root:video"

[nvidia-container-runtime]
#debug = "/var/log/nvidia-container-runtime.log"
log-level = "info"
mode = "auto"
runtimes = ["runc", "crun"]

[nvidia-container-runtime.modes.cdi]
annotation-prefixes = ["cdi.k8s.io/"]
default-kind = "nvidia.com/gpu"
spec-dirs = ["/etc/cdi", "/var/run/cdi"]

[nvidia-container-runtime.modes.csv]
mount-spec-path = "/etc/nvidia-container-runtime/host-files-for-container.d"

[nvidia-container-runtime.modes.legacy]
cuda-compat-mode = "ldconfig"

[nvidia-container-runtime-hook]
path = "nvidia-container-runtime-hook"
skip-mode-detection = false

[nvidia-ctk]
path = "nvidia-ctk"
"""

_BOOLEANS = frozenset(
    [
        "accept-nvidia-visible-devices-as-volume-mounts",
        "accept-nvidia-visible-devices-envvar-when-unprivileged",
        "disable-require",
        "nvidia-container-cli.load-kmods",
        "nvidia-container-cli.no-cgroups",
        "nvidia-container-cli.no-pivot",
        "nvidia-container-runtime-hook.skip-mode-detection",
        "features.allow-cuda-compat-libs-from-container",
        "features.allow-ldconfig-from-container",
        "features.allow-unknown-oci-spec-fields",
        "features.disable-cuda-compat-lib-hook",
        "features.disable-imex-channel-creation",
        "features.ignore-imex-channel-requests",
        "features.no-additional-gids-for-device-nodes",
    ]
)
_LISTS = frozenset(
    [
        "nvidia-container-cli.environment",
        "nvidia-container-runtime.runtimes",
        "nvidia-container-runtime.modes.cdi.annotation-prefixes",
        "nvidia-container-runtime.modes.cdi.spec-dirs",
        "nvidia-container-runtime.modes.jit-cdi.nvcdi-feature-flags",
        "nvidia-container-runtime.modes.jit-cdi.nvcdi-disable-hooks",
    ]
)
_TEXTS = frozenset(
    [
        "supported-driver-capabilities",
        "swarm-resource",
        "nvidia-container-cli.debug",
        "nvidia-container-cli.ldcache",
        "nvidia-container-cli.ldconfig",
        "nvidia-container-cli.path",
        "nvidia-container-cli.root",
        "nvidia-container-cli.user",
        "nvidia-container-runtime.debug",
        "nvidia-container-runtime.log-level",
        "nvidia-container-runtime.mode",
        "nvidia-container-runtime.modes.cdi.default-kind",
        "nvidia-container-runtime.modes.csv.mount-spec-path",
        "nvidia-container-runtime.modes.csv.compat-container-root",
        "nvidia-container-runtime.modes.legacy.cuda-compat-mode",
        "nvidia-container-runtime-hook.path",
        "nvidia-ctk.path",
    ]
)
_TRUE, _FALSE = ("true", "1", "t", "T", "True", "TRUE"), ("false", "0", "f", "F", "False", "FALSE")


def default_path() -> str:
    """Where gpurun looks for the file."""
    return settings_path(dict(os.environ))


def read(path: str) -> str:
    """The text of the file *path*; the default when there is none.  Raises :class:`ConfigError` for what is not UTF-8."""
    try:
        return Path(path).read_text(encoding="utf-8")
    except FileNotFoundError:
        return DEFAULT
    except UnicodeDecodeError:
        raise ConfigError(path, "is not UTF-8 text") from None


def set_values(text: str, sets: tuple[str, ...], separator: str, source: str) -> str:
    """*text* with each ``KEY=VALUE`` of *sets* in it, comments and order kept.

    Raises :class:`ConfigError` for a key that the toolkit does not have, a value of the wrong type, and a text that gpurun
    could not read again.
    """
    import tomlkit
    from tomlkit.exceptions import TOMLKitError

    if not separator:
        raise UsageError("--set-list-separator must not be empty")
    try:
        document: Any = tomlkit.parse(text)
    except TOMLKitError as e:
        raise ConfigError(source, f"is not TOML: {e}") from None
    for item in [one for text in sets for one in _items(text)]:
        key, equals, value = item.partition("=")
        *tables, name = key.split(".")
        wanted = _value(key, equals, value, separator)
        table = document
        for part in tables:
            if part not in table:
                table[part] = tomlkit.table()
            table = table[part]
            if not isinstance(table, dict):
                raise ConfigError(f"{source}: {part}", "is not a table")
        if wanted is None:
            table.pop(name, None)
        else:
            table[name] = wanted
    made = tomlkit.dumps(document)
    parse(made, source)
    return made


def _items(text: str) -> list[str]:
    """The settings in one ``--set``, divided by commas; text after a comma that is no setting belongs to the value before.

    ``supported-driver-capabilities=compute,utility`` is one, ``disable-require=true,nvidia-container-cli.no-cgroups`` two.
    """
    items: list[str] = []
    for piece in text.split(","):
        key, equals, _ = piece.partition("=")
        own = (
            key in _BOOLEANS
            or key in _LISTS
            or key in _TEXTS
            or (equals and key.replace("-", "").replace(".", "").islower())
        )
        if own or not items:
            items.append(piece)
        else:
            items[-1] += f",{piece}"
    return items


def _value(key: str, equals: str, value: str, separator: str) -> bool | str | list[str] | None:
    """The value of *key* in the file; None: it is to be without one, which ``nil`` says of a feature."""
    if key in _BOOLEANS:
        if not equals or value in _TRUE:
            return True
        if value in _FALSE:
            return False
        if value == "nil" and key.startswith("features."):
            return None
        raise ConfigError(f"--set {key}", f"'{value}' is neither true nor false")
    if key not in _LISTS and key not in _TEXTS:
        raise ConfigError(f"--set {key}", "is not a key of the toolkit (`nvidia-ctk config default` shows them)")
    if not equals:
        raise ConfigError(f"--set {key}", "needs a value: KEY=VALUE")
    if key in _TEXTS:
        return value
    divider = next((one for one in (separator, ",") if one in value), separator)
    return [part for part in value.split(divider) if part]
