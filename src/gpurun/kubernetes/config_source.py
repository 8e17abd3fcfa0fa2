"""Where the configuration comes from: a file, read again when it changes, or one of several that a node label names."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping
from errno import EINVAL
from typing import Any

from gpurun import log
from gpurun.errors import ConfigError, GpurunError, strerror_lower
from gpurun.kubernetes.config import DEFAULT, PluginConfig
from gpurun.kubernetes.config_file import checked, from_environment, parse
from gpurun.linux.files import read_regular
from gpurun.record import replace

_LIMIT = 1 << 20  # bytes: a config map has no more
#: The label of a node that names its configuration, as NVIDIA's config-manager has it.
LABEL = "nvidia.com/device-plugin.config"


class ConfigSource:
    """Call it for the configuration of now.

    *path* is the file (empty: none), or with *label* the directory in which the label's value is the name of one; *default*
    is the name where the node has no label.  *changes* are fields that the command line sets, *base* is what neither it nor
    the file nor a variable does.  A file that has become wrong is said, and what was good before goes on.
    """

    def __init__(
        self, path: str, env: Mapping[str, str], changes: Mapping[str, object], label: Callable[[], str] | None = None,
        default: str = "", base: PluginConfig = DEFAULT,
    ) -> None:  # fmt: skip
        self._path, self._env, self._changes, self._label, self._default = path, env, changes, label, default
        self._base = base
        self._good: PluginConfig | None = None
        self._read: tuple[str, bytes] | None = None

    def __call__(self) -> PluginConfig:
        """Raises :class:`GpurunError` while none has been good."""
        try:
            path = self._chosen()
            text = b""
            if path:
                text = _content(path)
            if self._good is None or self._read != (path, text):
                self._read = path, text
                self._good = self._made(path, text)
        except OSError as e:
            self._on_error(GpurunError(f"{e.filename}: {strerror_lower(e.errno or 0)}"))
        except GpurunError as e:
            self._on_error(e)
        assert self._good is not None
        return self._good

    def _on_error(self, error: GpurunError) -> None:
        if self._good is None:
            raise error
        log.warning(f"{error}; the configuration stays as it was")

    def _chosen(self) -> str:
        if self._label is None:
            return self._path
        name = self._label() or self._default
        if not name:
            return ""
        if "/" in name or name in (".", ".."):
            raise ConfigError(LABEL, f"{name!r} is not the name of a configuration")
        return os.path.join(self._path, name)

    def _made(self, path: str, text: bytes) -> PluginConfig:
        try:
            made = parse(text.decode(), path, self._base) if path else self._base
        except UnicodeDecodeError:
            raise ConfigError(path, "is not UTF-8 text") from None
        made = from_environment(made, self._env)
        return checked(replace(made, **self._changes), "command line")


def _content(path: str) -> bytes:
    """The content of *path*, which is read again and again: it never waits for a FIFO's writer or a device's end."""
    try:
        text = read_regular(path, _LIMIT + 1)
    except OSError as e:
        if e.errno == EINVAL:
            raise ConfigError(path, "is not a regular file") from None
        raise
    if len(text) > _LIMIT:
        raise ConfigError(path, f"is larger than {_LIMIT >> 20} MiB")
    return text


class NodeLabel:
    """The value of a label of this node, read *once*, or watched by a thread, which calls *changed* after each change."""

    def __init__(self, api: object, node: str, label: str, changed: Callable[[], None], once: bool = False) -> None:
        from gpurun.kubernetes.api import Api
        from gpurun.kubernetes.follow import follow

        assert isinstance(api, Api)
        self._node, self._label, self._changed = node, label, changed
        self._stop = threading.Event()
        self.value = ""
        self._set(api.node(node))
        if once:  # a thread that hears of a change while the process ends can abort it
            return
        arguments = (api, "nodes", f"metadata.name={node}", self._stop, self._begun, self._on_change, self._on_error)
        threading.Thread(target=follow, args=arguments, name="node-label", daemon=True).start()

    def stop(self) -> None:
        """End the watch of the label; returns at once."""
        self._stop.set()

    def _set(self, node: Mapping[str, Any]) -> None:
        value = str((node["metadata"].get("labels") or {}).get(self._label, ""))
        if value != self.value:
            self.value = value
            self._changed()

    def _begun(self, nodes: list[dict[str, Any]]) -> None:
        for node in nodes:
            self._set(node)

    def _on_change(self, kind: str, node: dict[str, Any]) -> None:
        if kind != "DELETED":
            self._set(node)

    def _on_error(self, error: GpurunError) -> None:
        from gpurun.kubernetes.api import ApiError

        if isinstance(error, ApiError) and error.status in (0, 410):
            return  # a server that restarts breaks watches, and has forgotten old versions
        log.warning(f"the label {self._label} of node {self._node} cannot be watched: {error}")
