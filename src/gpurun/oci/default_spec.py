"""The config.json that ``gpurun spec`` writes: a shell in a private, unprivileged container; pure."""

from __future__ import annotations

from gpurun.oci import SPEC_VERSION

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_CAPABILITIES = ["CAP_AUDIT_WRITE", "CAP_KILL", "CAP_NET_BIND_SERVICE"]
_SAFE = ["nosuid", "noexec", "nodev"]
_MASKED = [
    "/proc/acpi",
    "/proc/asound",
    "/proc/kcore",
    "/proc/keys",
    "/proc/latency_stats",
    "/proc/timer_list",
    "/proc/timer_stats",
    "/proc/sched_debug",
    "/proc/scsi",
    "/sys/firmware",
    "/sys/devices/virtual/powercap",
]
_READONLY = ["/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"]


def default_spec(rootless: bool = False, uid: int = 0, gid: int = 0) -> dict[str, Any]:
    """The document; *rootless* for a caller without root, whose *uid* and *gid* become root inside.

    Without root there is no network of one's own, no sysfs mount for want of it, no second group (gid 5 of devpts) and
    no limits.
    """
    return {
        "ociVersion": SPEC_VERSION,
        "process": {
            "terminal": True,
            "user": {"uid": 0, "gid": 0},
            "args": ["sh"],
            "env": ["PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "TERM=xterm"],
            "cwd": "/",
            "capabilities": {name: list(_CAPABILITIES) for name in ("bounding", "effective", "permitted")},
            "rlimits": [{"type": "RLIMIT_NOFILE", "hard": 1024, "soft": 1024}],
            "noNewPrivileges": True,
        },
        "root": {"path": "rootfs", "readonly": True},
        "hostname": "gpurun",
        "mounts": _mounts(rootless),
        "linux": _linux(rootless, uid, gid),
    }


def _mount(destination: str, kind: str, source: str, *options: str) -> dict[str, Any]:
    mount: dict[str, Any] = {"destination": destination, "type": kind, "source": source}
    return {**mount, "options": list(options)} if options else mount


def _mounts(rootless: bool) -> list[dict[str, Any]]:
    pts = ("nosuid", "noexec", "newinstance", "ptmxmode=0666", "mode=0620")
    return [
        _mount("/proc", "proc", "proc"),
        _mount("/dev", "tmpfs", "tmpfs", "nosuid", "strictatime", "mode=755", "size=65536k"),
        _mount("/dev/pts", "devpts", "devpts", *pts, *([] if rootless else ["gid=5"])),
        _mount("/dev/shm", "tmpfs", "shm", *_SAFE, "mode=1777", "size=65536k"),
        _mount("/dev/mqueue", "mqueue", "mqueue", *_SAFE),
        _mount("/sys", "none", "/sys", "rbind", *_SAFE, "ro")
        if rootless
        else _mount("/sys", "sysfs", "sysfs", *_SAFE, "ro"),
        _mount("/sys/fs/cgroup", "cgroup", "cgroup", *_SAFE, "relatime", "ro"),
    ]


def _linux(rootless: bool, uid: int, gid: int) -> dict[str, Any]:
    kinds = ["pid", "ipc", "uts", "mount", "cgroup", "user" if rootless else "network"]
    linux: dict[str, Any] = {}
    if rootless:
        linux["uidMappings"] = [{"containerID": 0, "hostID": uid, "size": 1}]
        linux["gidMappings"] = [{"containerID": 0, "hostID": gid, "size": 1}]
    else:
        linux["resources"] = {"devices": [{"allow": False, "access": "rwm"}]}
    linux["namespaces"] = [{"type": kind} for kind in kinds]
    linux["maskedPaths"] = list(_MASKED)
    linux["readonlyPaths"] = list(_READONLY)
    return linux
