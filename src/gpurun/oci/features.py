"""The features document (runtime-spec features.md): what this build does, whatever the host can; pure.

Readers are strict about few members: CRI-O needs both versions, containerd's CRI looks for ``rro`` among the mount
options and for ``linux.mountExtensions.idmap.enabled``.
"""

from __future__ import annotations

from gpurun import __version__
from gpurun.oci import SPEC_VERSION
from gpurun.oci.annotations import UNSAFE
from gpurun.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


class Built(Record):
    """What the rooms above know how to do; *seccomp* is the member of the document, None when there is no seccomp."""

    hooks: tuple[str, ...]
    mount_options: tuple[str, ...]
    namespaces: tuple[str, ...]
    capabilities: tuple[str, ...]
    seccomp: dict[str, Any] | None = None
    libseccomp: str = ""  # its version
    apparmor: bool = False
    selinux: bool = False
    intel_rdt: bool = False
    memory_policies: tuple[str, ...] = ()
    memory_policy_flags: tuple[str, ...] = ()
    idmap: bool = False
    net_devices: bool = False
    cgroup_systemd: bool = False
    checkpoint: bool = False


def features_document(built: Built) -> dict[str, Any]:
    """The document of ``gpurun features`` (features.md of the runtime specification), for what *built* says."""
    return {
        "ociVersionMin": "1.0.0",
        "ociVersionMax": SPEC_VERSION,
        "hooks": list(built.hooks),
        "mountOptions": sorted(built.mount_options),
        "linux": {
            "namespaces": sorted(built.namespaces),
            "capabilities": list(built.capabilities),
            "cgroup": {
                "v1": False,
                "v2": True,
                "systemd": built.cgroup_systemd,
                "systemdUser": built.cgroup_systemd,
                "rdma": True,
            },
            "seccomp": {"enabled": False} if built.seccomp is None else {"enabled": True, **built.seccomp},
            "apparmor": {"enabled": built.apparmor},
            "selinux": {"enabled": built.selinux},
            "intelRdt": {"enabled": built.intel_rdt, "schemata": built.intel_rdt, "monitoring": built.intel_rdt},
            "memoryPolicy": {"modes": sorted(built.memory_policies), "flags": sorted(built.memory_policy_flags)},
            "mountExtensions": {"idmap": {"enabled": built.idmap}},
            "netDevices": {"enabled": built.net_devices},
        },
        "annotations": {
            "io.github.gpurun.version": __version__,
            "io.github.gpurun.checkpoint.enabled": "true" if built.checkpoint else "false",
            # The name that clients look for.
            "org.opencontainers.runc.checkpoint.enabled": "true" if built.checkpoint else "false",
            **({"io.github.seccomp.libseccomp.version": built.libseccomp} if built.libseccomp else {}),
        },
        "potentiallyUnsafeConfigAnnotations": list(UNSAFE),
    }
