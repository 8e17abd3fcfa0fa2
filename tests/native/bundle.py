"""Bundles for tests: a complete config.json (as ``runc spec`` gives, but no terminal) and a rootfs of static busybox."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

from tests.native.listing import tree_listing

Config = dict[str, Any]

DIRECTORIES = ("bin", "dev", "etc", "proc", "root", "run", "sys", "tmp", "usr", "var")
APPLETS = """
    [ awk basename cat chmod chown cmp cp cut date dd df dirname echo env expr false find grep head hostname id ip kill ln ls
    md5sum mkdir mknod mount mv nc nohup printf ps pwd readlink rm rmdir sed seq sh sleep sort stat sync tail test timeout
    touch tr true truncate umount uname unshare wc which xargs yes
"""
CAPABILITIES = ["CAP_AUDIT_WRITE", "CAP_KILL", "CAP_NET_BIND_SERVICE"]

BASE: Config = {
    "ociVersion": "1.0.2",
    "process": {
        "terminal": False,
        "user": {"uid": 0, "gid": 0},
        "args": ["true"],
        "env": ["PATH=/usr/sbin:/usr/bin:/sbin:/bin", "TERM=xterm"],
        "cwd": "/",
        "capabilities": {"bounding": CAPABILITIES, "effective": CAPABILITIES, "permitted": CAPABILITIES},
        "rlimits": [{"type": "RLIMIT_NOFILE", "hard": 1024, "soft": 1024}],
        "noNewPrivileges": True,
    },
    "root": {"path": "rootfs", "readonly": False},
    "hostname": "test",
    "mounts": [
        {"destination": "/proc", "type": "proc", "source": "proc"},
        {
            "destination": "/dev",
            "type": "tmpfs",
            "source": "tmpfs",
            "options": ["nosuid", "strictatime", "mode=755", "size=65536k"],
        },
        {
            "destination": "/dev/pts",
            "type": "devpts",
            "source": "devpts",
            "options": ["nosuid", "noexec", "newinstance", "ptmxmode=0666", "mode=0620", "gid=5"],
        },
        {
            "destination": "/dev/shm",
            "type": "tmpfs",
            "source": "shm",
            "options": ["nosuid", "noexec", "nodev", "mode=1777", "size=65536k"],
        },
        {"destination": "/dev/mqueue", "type": "mqueue", "source": "mqueue", "options": ["nosuid", "noexec", "nodev"]},
        {"destination": "/sys", "type": "sysfs", "source": "sysfs", "options": ["nosuid", "noexec", "nodev", "ro"]},
    ],
    "linux": {
        "resources": {"devices": [{"allow": False, "access": "rwm"}]},
        "namespaces": [{"type": t} for t in ("pid", "network", "ipc", "uts", "mount", "cgroup")],
        "maskedPaths": ["/proc/kcore", "/proc/keys", "/proc/timer_list", "/sys/firmware", "/proc/scsi"],
        "readonlyPaths": ["/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"],
    },
}


def base_config() -> Config:
    # Not deepcopy: it would keep the sharing of lists within the document, and a change of one would change another.
    copy: Config = json.loads(json.dumps(BASE))
    return copy


def make_rootfs(directory: Path, busybox: Path) -> None:
    """A rootfs at *directory*; *busybox* (static, on the same file system) is linked, not copied."""
    for name in DIRECTORIES:
        (directory / name).mkdir(parents=True)
    (directory / "tmp").chmod(0o1777)
    os.link(busybox, directory / "bin/busybox")
    for applet in APPLETS.split():
        (directory / "bin" / applet).symlink_to("busybox")
    (directory / "etc/passwd").write_text(
        "root:x:0:0:root:/root:/bin/sh\nalice:x:1000:1000::/home/alice:/bin/sh\nnobody:x:65534:65534::/:/bin/sh\n"
    )
    (directory / "etc/group").write_text("root:x:0:\nalice:x:1000:\nnogroup:x:65534:\n")


class Bundle:
    """A bundle directory.  *config* may be changed until :meth:`write`, which a runtime call does by itself."""

    def __init__(self, directory: Path, config: Config) -> None:
        self.directory = directory
        self.config = config
        self.rootfs_before: dict[str, tuple[object, ...]] = {}  # what the rootfs was when first used
        self.raw: bytes | None = None  # when set, this is config.json, whatever *config* says

    @property
    def rootfs(self) -> Path:
        return self.directory / "rootfs"

    @property
    def process(self) -> Config:
        return self.config["process"]  # type: ignore[no-any-return]

    @property
    def linux(self) -> Config:
        return self.config["linux"]  # type: ignore[no-any-return]

    def args(self, *args: str) -> Bundle:
        self.process["args"] = list(args)
        return self

    def sh(self, script: str) -> Bundle:
        """The container runs *script* in busybox' shell."""
        return self.args("sh", "-c", script)

    def mount(self, destination: str, source: str, *options: str, kind: str = "bind") -> Bundle:
        self.config["mounts"].append({"destination": destination, "type": kind, "source": source, "options": list(options)})
        return self

    def namespace(self, kind: str, path: str | None = None) -> Bundle:
        """Join (with *path*) or make the namespace *kind*, whether or not it is in the list already."""
        self.without_namespace(kind)
        self.linux["namespaces"].append({"type": kind, **({"path": path} if path else {})})
        return self

    def without_namespace(self, kind: str) -> Bundle:
        self.linux["namespaces"] = [n for n in self.linux["namespaces"] if n["type"] != kind]
        return self

    def capabilities(self, *names: str) -> Bundle:
        self.process["capabilities"] = {k: list(names) for k in ("bounding", "effective", "permitted")}
        return self

    def user_namespace(self, host: int = 100000, size: int = 65536) -> Bundle:
        """A user namespace mapping 0.. to *host*..; the rootfs is given to the mapped ids."""
        self.namespace("user")
        mapping = [{"containerID": 0, "hostID": host, "size": size}]
        self.linux["uidMappings"] = self.linux["gidMappings"] = mapping
        for root, directories, files in os.walk(self.rootfs):
            for name in (".", *directories, *files):
                if name != "busybox":  # linked by all rootfs; it is readable by everybody
                    os.lchown(os.path.join(root, name), host, host)
        return self

    def write(self) -> None:
        self.rootfs_before = self.rootfs_before or tree_listing(self.rootfs)
        text = json.dumps(self.config, indent=1).encode() if self.raw is None else self.raw
        (self.directory / "config.json").write_bytes(text)

    def remove(self) -> None:
        shutil.rmtree(self.directory)
