"""``linux.sysctl``: only what belongs to a namespace of the container's own may be set (sysctl(8), namespaces(7))."""

from __future__ import annotations

from gpurun.errors import ConfigError
from gpurun.linux.process import CLONE_NEWIPC, CLONE_NEWNET, CLONE_NEWUSER, CLONE_NEWUTS
from gpurun.ns.namespaces import NamespacePlan

_IPC = frozenset(
    [
        "kernel.msgmax",
        "kernel.msgmnb",
        "kernel.msgmni",
        "kernel.sem",
        "kernel.shmall",
        "kernel.shmmax",
        "kernel.shmmni",
        "kernel.shm_rmid_forced",
    ]
)


def sysctl_path(key: str) -> str:
    """The path below /proc/sys of *key*: where a ``/`` comes first it separates, and then ``.`` is part of a name."""
    slash, dot = key.find("/"), key.find(".")
    if slash >= 0 and (dot < 0 or slash < dot):
        return key
    return key.translate({ord("."): "/", ord("/"): "."})


def plan_sysctl(sysctl: dict[str, str], namespaces: NamespacePlan, own: int = 0) -> tuple[tuple[str, str], ...]:
    """(path below /proc/sys, value) of each key; refuses what is not in a separate namespace of the container.

    *own*: CLONE_NEW* flags of the namespaces to join that are the runtime's own, which are not separate.
    """
    return tuple([(_checked_path(key, namespaces, own), value) for key, value in sysctl.items()])


def _checked_path(key: str, namespaces: NamespacePlan, own: int) -> str:
    where = f"linux.sysctl.{key}"
    path = sysctl_path(key)
    name = path.translate({ord("/"): ".", ord("."): "/"})
    if any(part in ("", ".", "..") for part in path.split("/")):
        raise ConfigError(where, "is not the name of a sysctl")
    if name == "kernel.hostname":
        raise ConfigError(where, 'sysctl "kernel.hostname" is not allowed, use hostname')
    needed = 0
    if name in _IPC or name.startswith("fs.mqueue."):
        needed = CLONE_NEWIPC
    elif name == "kernel.domainname":
        needed = CLONE_NEWUTS
    elif name.startswith("net."):
        needed = CLONE_NEWNET
    elif name.startswith("user."):
        needed = CLONE_NEWUSER
    if not needed or own & needed or not namespaces.has(needed):
        raise ConfigError(where, f'sysctl "{key}" is not in a separate kernel namespace')
    return path
