"""The field's own network plugins, called as the Container Network Interface says (cni.dev, SPEC.md 1.0.0).

A network is a list of plugins in a file of /etc/cni/net.d; each plugin is a program that reads its part of the list from
stdin, and what the one before has answered.
"""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

from gpurun.errors import GpurunError, clean
from gpurun.linux.files import read_regular
from gpurun.record import Record

CONFIGURATIONS = "/etc/cni/net.d"
PLUGINS = ("/opt/cni/bin", "/usr/lib/cni", "/usr/libexec/cni")
_MAX = 1 << 20
_TIMEOUT_S = 60


class Network(Record):
    """A list of plugins: *document* is the whole file (its member ``plugins`` has at least one)."""

    name: str
    file: str
    document: dict[str, Any]


class Attachment(Record):
    """What the plugins get of a container: *namespace* is the path of its network namespace."""

    id: str
    namespace: str
    interface: str = "eth0"


def networks(directory: str = CONFIGURATIONS) -> list[Network]:
    """The networks that are configured, in the order of the names of their files; files that are damaged raise.

    Raises :class:`GpurunError`.
    """
    found = []
    try:
        files = sorted(path for path in Path(directory).iterdir() if path.suffix in (".conflist", ".conf", ".json"))
    except FileNotFoundError:
        return []
    for path in files:
        try:
            document = json.loads(read_regular(str(path), _MAX))
        except (OSError, ValueError, RecursionError) as e:
            raise GpurunError(f"{path}: cannot be read as the configuration of a network: {_why(e)}") from None
        if isinstance(document, dict) and "plugins" not in document and "type" in document:
            more = {key: document[key] for key in ("name", "cniVersion") if key in document}
            document = {**more, "plugins": [document]}
        plugins = document.get("plugins") if isinstance(document, dict) else None
        if not isinstance(plugins, list) or not plugins or not all(isinstance(p, dict) and "type" in p for p in plugins):
            raise GpurunError(f"{path}: lists no plugins")
        found.append(Network(str(document.get("name", "")), str(path), document))
    return found


def _why(error: Exception) -> str:
    return (error.strerror or "").lower() if isinstance(error, OSError) else clean(str(error))


def has_plugins(directories: tuple[str, ...] = PLUGINS) -> bool:
    """Whether this machine has any plugin at all."""
    for directory in directories:
        try:
            if os.listdir(directory):
                return True
        except OSError:
            continue
    return False


def add(network: Network, attachment: Attachment, directories: tuple[str, ...] = PLUGINS) -> dict[str, Any]:
    """Attach; the answer of the last plugin.  Raises :class:`GpurunError`, and then what was made is taken back."""
    result: dict[str, Any] | None = None
    for plugin in network.document["plugins"]:
        try:
            result = _call("ADD", network, plugin, attachment, directories, result)
        except GpurunError:
            remove(network, attachment, directories, result)
            raise
    return result or {}


def remove(
    network: Network, attachment: Attachment, directories: tuple[str, ...] = PLUGINS, result: dict[str, Any] | None = None
) -> tuple[str, ...]:
    """Detach, the last plugin first; what a plugin says against it is a warning, and the others are called all the same."""
    warnings = []
    for plugin in reversed(network.document["plugins"]):
        try:
            _call("DEL", network, plugin, attachment, directories, result)
        except GpurunError as e:
            warnings.append(str(e))
    return tuple(warnings)


def _call(
    command: str,
    network: Network,
    plugin: dict[str, Any],
    attachment: Attachment,
    directories: tuple[str, ...],
    result: dict[str, Any] | None,
) -> dict[str, Any]:
    kind = str(plugin["type"])
    version = str(network.document.get("cniVersion", "1.0.0"))
    configuration = {**plugin, "name": network.name, "cniVersion": version}
    if result is not None:
        configuration["prevResult"] = result
    env = {
        "CNI_COMMAND": command,
        "CNI_CONTAINERID": attachment.id,
        "CNI_NETNS": attachment.namespace,
        "CNI_IFNAME": attachment.interface,
        "CNI_PATH": ":".join(directories),
        "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    }
    what = f"network {network.name}: the plugin {clean(kind)}"
    try:
        done = subprocess.run(
            [_program(kind, network, directories)], input=json.dumps(configuration).encode(), env=env, timeout=_TIMEOUT_S,
            capture_output=True, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        raise GpurunError(f"{what} has not answered {command} within {_TIMEOUT_S} s") from None
    except OSError as e:
        raise GpurunError(f"{what} cannot be run: {(e.strerror or '').lower()}") from None
    answer = _answer(done.stdout)
    if done.returncode:
        said = " ".join(str(answer.get(key, "")) for key in ("msg", "details")).strip() or done.stderr.decode(
            errors="replace"
        )
        raise GpurunError(f"{what} fails at {command}: {clean(said.strip(), 500) or f'status {done.returncode}'}")
    return answer


def _answer(data: bytes) -> dict[str, Any]:
    try:
        document = json.loads(data[:_MAX] or b"{}")
    except ValueError:
        return {}
    return document if isinstance(document, dict) else {}


def _program(kind: str, network: Network, directories: tuple[str, ...]) -> str:
    if not kind or "/" in kind or kind.startswith("."):
        raise GpurunError(f'{network.file}: "{clean(kind)}" is not the name of a plugin')
    for directory in directories:
        path = f"{directory}/{kind}"
        if os.access(path, os.X_OK):
            return path
    raise GpurunError(
        f"network {network.name}: the plugin {kind} is in none of {', '.join(directories)} "
        "(`apt-get install containernetworking-plugins`)"
    )
