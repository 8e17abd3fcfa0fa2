"""An image's configuration → config.json (image-spec conversion.md); pure but for the image's list of users."""

from __future__ import annotations

import os
from typing import Any

from gpurun.decimals import decimal
from gpurun.errors import ConfigError, clean
from gpurun.ns.path import open_file
from gpurun.oci.annotations import CDI_PREFIX, split_labels
from gpurun.oci.default_spec import default_spec
from gpurun.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

#: What engines give to a container of which nothing is said.
CAPABILITIES = [
    "CAP_AUDIT_WRITE", "CAP_CHOWN", "CAP_DAC_OVERRIDE", "CAP_FOWNER", "CAP_FSETID", "CAP_KILL", "CAP_MKNOD",
    "CAP_NET_BIND_SERVICE", "CAP_NET_RAW", "CAP_SETFCAP", "CAP_SETGID", "CAP_SETPCAP", "CAP_SETUID", "CAP_SYS_CHROOT",
]  # fmt: skip
_PATH = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
#: Member of the configuration → the annotation that it becomes.
_ANNOTATIONS = {
    "os": "org.opencontainers.image.os",
    "architecture": "org.opencontainers.image.architecture",
    "variant": "org.opencontainers.image.variant",
    "author": "org.opencontainers.image.author",
    "created": "org.opencontainers.image.created",
}


class SiteLabels(Record):
    """What this host has a use for: prefixes of annotations that name CDI devices, and labels that leases are counted by."""

    cdi_prefixes: tuple[str, ...] = (CDI_PREFIX,)
    counted: tuple[str, ...] = ()


NO_SITE = SiteLabels()


def container_config(
    image: dict[str, Any],
    root: str,
    command: Sequence[str] = (),
    rootless: bool = False,
    read: Callable[[str], str] = lambda path: "",
    site: SiteLabels = NO_SITE,
) -> tuple[dict[str, Any], tuple[str, ...]]:
    """(the config.json for a container of *image*, its configuration, whose root is the directory *root*; the labels of
    the image that are left out, because runtimes obey annotations of those names, or the *site* has a use for them).

    *command* stands in place of the image's ``Cmd``.  *read* gives the text of a file of the image, "" for none: the names
    of users and groups are looked up there.  Raises :class:`ConfigError`.  Returns (config, labels).
    """
    made = image.get("config") or {}
    if not isinstance(made, dict):
        raise ConfigError("config", "is not an object")
    spec = default_spec(rootless, os.geteuid(), os.getegid())
    process = spec["process"]
    args = [*_words(made, "Entrypoint"), *(command or _words(made, "Cmd"))]
    env = _words(made, "Env")
    names = {entry.partition("=")[0] for entry in env}
    process.update(
        terminal=False,
        args=args or ["sh"],
        env=[*([] if "PATH" in names else [_PATH]), *env],
        cwd=_text(made.get("WorkingDir"), "config.WorkingDir") or "/",
        user=user(_text(made.get("User"), "config.User"), read),
        noNewPrivileges=False,
    )
    process["capabilities"] = {name: list(CAPABILITIES) for name in ("bounding", "effective", "permitted")}
    process.pop("rlimits", None)
    spec["root"] = {"path": root, "readonly": False}
    annotations = {name: _text(image[key], key) for key, name in _ANNOTATIONS.items() if image.get(key)}
    labels, left_out = split_labels(_labels(made), site.cdi_prefixes, site.counted)
    annotations |= labels
    if made.get("StopSignal"):
        annotations["org.opencontainers.image.stopSignal"] = _text(made["StopSignal"], "config.StopSignal")
    ports = made.get("ExposedPorts") or {}
    if not isinstance(ports, dict):
        raise ConfigError("config.ExposedPorts", "is not an object")
    if ports:
        annotations["org.opencontainers.image.exposedPorts"] = ",".join(sorted(ports))
    if annotations:
        spec["annotations"] = annotations
    return spec, left_out


def _text(value: Any, where: str) -> str:
    """A string of the configuration, "" where it is missing."""
    if value is None:
        return ""
    if not isinstance(value, str) or "\0" in value:
        raise ConfigError(where, "is not a string without NUL bytes")
    return value


def _labels(made: dict[str, Any]) -> dict[str, str]:
    labels = made.get("Labels") or {}
    if not isinstance(labels, dict):
        raise ConfigError("config.Labels", "is not an object of strings")
    return {_text(key, "config.Labels"): _text(value, f"config.Labels.{clean(key)}") for key, value in labels.items()}


def _words(made: dict[str, Any], name: str) -> list[str]:
    value = made.get(name) or []
    if not isinstance(value, list):
        raise ConfigError(f"config.{name}", "is not a list of strings")
    return [_text(word if word is not None else 0, f"config.{name}[{i}]") for i, word in enumerate(value)]


def user(text: str, read: Callable[[str], str]) -> dict[str, Any]:
    """``process.user`` for *text*: ``user``, ``uid``, ``user:group`` and so on, by the image's passwd and group.

    Raises :class:`ConfigError` for a name that the image does not have.
    """
    name, _, group = text.partition(":")
    users = [line.split(":") for line in read("/etc/passwd").splitlines() if line.count(":") >= 3]
    groups = [line.split(":") for line in read("/etc/group").splitlines() if line.count(":") >= 3]
    uid = gid = 0
    if name:
        entry = next((one for one in users if name in (one[0], one[2])), None)
        if entry is None and _id(name) is None:
            raise ConfigError("config.User", f'the image has no user "{clean(name)}" in its /etc/passwd')
        found_uid = _id(name) if entry is None or _id(entry[2]) is None else _id(entry[2])
        if found_uid is None:
            raise ConfigError("config.User", f'the user "{clean(name)}" has no number in the image\'s /etc/passwd')
        uid, gid = found_uid, (_id(entry[3]) if entry is not None else None) or 0
        name = entry[0] if entry is not None else name
    if group:
        found = next((one for one in groups if group in (one[0], one[2])), None)
        if found is None and _id(group) is None:
            raise ConfigError("config.User", f'the image has no group "{clean(group)}" in its /etc/group')
        found_gid = _id(group) if found is None or _id(found[2]) is None else _id(found[2])
        if found_gid is None:
            raise ConfigError("config.User", f'the group "{clean(group)}" has no number in the image\'s /etc/group')
        gid = found_gid
    named = [_id(one[2]) for one in groups if not group and name and name in one[3].split(",")]
    more = [g for g in named if g is not None]
    return {"uid": uid, "gid": gid, **({"additionalGids": [g for g in more if g != gid]} if more else {})}


def _id(text: str) -> int | None:
    """The number of a user or group; None where *text* is none."""
    return decimal(text, (1 << 32) - 2)  # the last one is (uid_t)-1, which means none


def reader(root: str) -> Callable[[str], str]:
    """A function that gives the text of a file below *root*, whose links lead nowhere else; at most 1 MiB of it."""

    def read(path: str) -> str:
        root_fd = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            fd = open_file(root_fd, path)
            if fd < 0:
                return ""
            with open(fd, "rb") as data:
                return data.read(1 << 20).decode("utf-8", "replace")
        except OSError:
            return ""
        finally:
            os.close(root_fd)

    return read
