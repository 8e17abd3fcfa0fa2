"""Simulated AMD and Intel hosts: trees that stand for ``/``, as the kernel's drivers lay them out; for GPURUN_SYSROOT.

The numbers are those of real hosts (PCI addresses, render minors, weights of links).  Device nodes are real ones of
drivers that are not there: opening one gives ENXIO where the device cgroup allows it and EPERM where it does not.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

#: Group ids of the nodes, not those of any image: groups differ between hosts and images.
VIDEO, RENDER = 44, 992
DRM_MAJOR, KFD_MAJOR, ACCEL_MAJOR = 226, 234, 261
GIB = 1 << 30


@dataclass(frozen=True)
class Card:
    """A PCI device with DRM nodes: *files* are those of its directory, *hwmon* those of its sensors; *root* is the bridge.

    *render* is -1 where it has no render node; *physfn* is the address of the GPU that it is a virtual function of.
    """

    pci: str
    driver: str
    vendor: int
    device: int
    card: int
    render: int
    numa: int = 0
    root: str = "pci0000:00/0000:00:01.0"
    files: Mapping[str, str] = field(default_factory=dict)
    hwmon: Mapping[str, str] = field(default_factory=dict)
    physfn: str = ""

    @property
    def path(self) -> str:
        return f"sys/devices/{self.root}/{self.pci}"


class Host:
    """A tree at *path*; *real_nodes* is false where mknod was not allowed (there are none then)."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.real_nodes = True
        self._hwmons = 0
        path.mkdir(parents=True, exist_ok=True)

    @property
    def env(self) -> dict[str, str]:
        return {"GPURUN_SYSROOT": str(self.path)}

    def write(self, name: str, content: str | bytes) -> None:
        """The file *name*, as sysfs has it: with a newline at its end."""
        file = self.path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content if isinstance(content, bytes) else f"{content}\n".encode())

    def link(self, name: str, target: str) -> None:
        """The symbolic link *name* to *target*, both below the tree, relative as in sysfs."""
        link = self.path / name
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(os.path.relpath(self.path / target, link.parent))

    def node(self, name: str, major: int, minor: int, gid: int, mode: int = 0o660) -> None:
        """The character device /dev/*name*."""
        path = self.path / "dev" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            os.mknod(path, stat.S_IFCHR | mode, os.makedev(major, minor))
            os.chown(path, 0, gid)
            path.chmod(mode)
        except PermissionError:
            self.real_nodes = False

    def drm(self, directory: str, by_path: str, card: int, render: int) -> None:
        """The DRM nodes of the device in *directory*, which udev calls *by_path*."""
        for name, minor, kind, gid in ((f"card{card}", card, "card", VIDEO), (f"renderD{render}", render, "render", RENDER)):
            if minor < 0:
                continue
            self.write(f"{directory}/drm/{name}/dev", f"{DRM_MAJOR}:{minor}")
            self.link(f"{directory}/drm/{name}/device", directory)
            self.link(f"sys/class/drm/{name}", f"{directory}/drm/{name}")
            self.node(f"dri/{name}", DRM_MAJOR, minor, gid)
            self.link(f"dev/dri/by-path/{by_path}-{kind}", f"dev/dri/{name}")

    def add(self, card: Card) -> None:
        """The directories, links and nodes of *card*."""
        facts = {"vendor": f"{card.vendor:#06x}", "device": f"{card.device:#06x}", "class": "0x030000"}
        for name, content in {**facts, "numa_node": str(card.numa), **card.files}.items():
            self.write(f"{card.path}/{name}", content)
        self.link(f"sys/bus/pci/devices/{card.pci}", card.path)
        drivers = f"sys/bus/pci/drivers/{card.driver}"
        self.link(f"{drivers}/{card.pci}", card.path)
        self.link(f"{card.path}/driver", drivers)
        module = f"sys/module/{card.driver}/drivers/pci:{card.driver}"
        if not (self.path / module).is_symlink():
            self.link(module, drivers)
        if card.physfn:
            parent = f"{card.path.rpartition('/')[0]}/{card.physfn}"
            self.link(f"{card.path}/physfn", parent)
            virtual = len(list((self.path / parent).glob("virtfn*")))
            self.link(f"{parent}/virtfn{virtual}", card.path)
            # Whoever reads it waits for the device's lock, maybe for good.
            self.write(f"{parent}/sriov_numvfs", "do not read")
        if card.hwmon:
            sensors = f"{card.path}/hwmon/hwmon{self._hwmons}"
            self._hwmons += 1
            for name, content in {"name": card.driver, **card.hwmon}.items():
                self.write(f"{sensors}/{name}", content)
        self.drm(card.path, f"pci-{card.pci}", card.card, card.render)

    def majors(self, **majors: int) -> None:
        """Add *majors* to /proc/devices."""
        file = self.path / "proc/devices"
        before = file.read_text() if file.exists() else "Character devices:\n  1 mem\n\nBlock devices:\n259 blkext\n"
        lines = "".join([f"{number:3d} {name}\n" for name, number in majors.items()])
        self.write("proc/devices", before.rstrip("\n").replace("\n\nBlock", f"\n{lines}\nBlock", 1))
