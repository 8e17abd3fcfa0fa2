"""``nvidia-ctk system``: the driver's control nodes, and the links by which systemd finds nodes of the driver.

The driver makes no nodes; ``nvidia-modprobe`` does when a program first uses a GPU.  systemd looks a device of
``DeviceAllow`` up as ``/dev/char/<major>:<minor>``; the driver's nodes have no such links, because udev did not make them.
"""

from __future__ import annotations

import os
import posix
import stat
import subprocess
from pathlib import Path

from gpurun.decimals import decimal
from gpurun.errors import GpuError, GpurunError
from gpurun.gpu.host.reads import fields
from gpurun.gpu.nvidia.host.driver import MINOR_CTL, MINOR_MODESET
from gpurun.gpu.nvidia.host.gpus import nvidia_major, read_gpus
from gpurun.gpu.nvidia.host.mig import CAPS_DEVICE, read_minors
from gpurun.gpu.nvidia.host.nodes import read_majors
from gpurun.gpu.nvidia.host.roots import PROC, Roots
from gpurun.gpu.nvidia.mps.programs import call
from gpurun.record import Record

_MODULES = ("nvidia", "nvidia-uvm", "nvidia-modeset")
#: Nodes of the driver, below dev/: what gets a link.
_PATTERNS = (
    "nvidia[0-9]*", "nvidiactl", "nvidia-modeset", "nvidia-uvm", "nvidia-uvm-tools", "nvidia-nvlink", "nvidia-nvswitch*",
    "nvidia-caps/nvidia-cap[0-9]*", "nvidia-caps-imex-channels/channel[0-9]*",
)  # fmt: skip


class Node(Record):
    """A device node that is to be there: *name* is below dev/."""

    name: str
    major: int
    minor: int
    mode: int = 0o666
    uid: int = 0
    gid: int = 0


def load_modules(root: str, dry_run: bool) -> list[str]:
    """Load the driver's kernel modules (those of *root*); returns the commands.  Raises :class:`GpurunError`."""
    said = []
    for module in _MODULES:
        command = ["modprobe", module] if root == "/" else ["chroot", root, "modprobe", module]
        said.append(" ".join(command))
        if dry_run:
            continue
        try:
            done = call(command, 60.0)
        except FileNotFoundError:
            raise GpurunError(f"{command[0]}: not found: load the kernel modules another way") from None
        except subprocess.TimeoutExpired:
            raise GpurunError(f"`{said[-1]}` has not ended within 60 s: see dmesg") from None
        if done.returncode:
            raise GpurunError(f"`{said[-1]}` failed: {done.stderr.strip() or done.returncode}")
    return said


def control_nodes(roots: Roots) -> tuple[Node, ...]:
    """The control nodes that the loaded modules have.  Raises :class:`GpuError` when the driver is not loaded."""
    majors = read_majors(roots)
    how = fields(f"{roots.sysroot}{PROC}/params")
    if not how and "nvidia" not in majors and "nvidia-frontend" not in majors:
        raise GpuError(f"NVIDIA driver not loaded: {roots.sysroot}/proc/devices has no nvidia: `modprobe nvidia`")
    if how.get("ModifyDeviceFiles") == "0":
        raise GpuError("ModifyDeviceFiles is 0: only the administrator may make this host's device nodes")
    nvidia = nvidia_major(majors)
    found = [("nvidiactl", nvidia, MINOR_CTL)]
    if "nvidia-modeset" in majors:
        found.append(("nvidia-modeset", majors["nvidia-modeset"], MINOR_MODESET))
    if "nvidia-uvm" in majors:
        found += [("nvidia-uvm", majors["nvidia-uvm"], 0), ("nvidia-uvm-tools", majors["nvidia-uvm"], 1)]
    mode, uid, gid = [_number(how.get(f"DeviceFile{k}"), d) for k, d in (("Mode", 0o666), ("UID", 0), ("GID", 0))]
    return tuple([Node(name, major, minor, mode, uid, gid) for name, major, minor in found])


def _number(text: str | None, default: int) -> int:
    number = decimal(text or "")
    return default if number is None else number


def create_control_nodes(root: str, dev_root: str, dry_run: bool) -> list[str]:
    """Make the control nodes that are not there; returns a line for each.  Raises :class:`GpurunError` and OSError."""
    base = own_sysroot()
    dev = Path(_join(base, dev_root or root)) / "dev"
    said = []
    for node in control_nodes(Roots(sysroot=base)):
        path = dev / node.name
        there = _numbers(path)
        if there == (node.major, node.minor):
            continue
        if path.exists() or path.is_symlink():
            raise GpuError(f"{path} is there and is not the character device {node.major}:{node.minor}: remove it")
        said.append(f"mknod -m {node.mode:o} {path} c {node.major} {node.minor}")
        if not dry_run:
            os.mknod(path, stat.S_IFCHR | node.mode, os.makedev(node.major, node.minor))
            os.chown(path, node.uid, node.gid)
            os.chmod(path, node.mode)  # the umask has taken some of it
    return said


def create_links(root: str, *, dev_root: str, dev_char_path: str, create_all: bool, dry_run: bool) -> list[str]:
    """Make the links that are not there; returns a line for each.  Raises :class:`GpurunError` and OSError."""
    base = own_sysroot()
    dev = Path(_join(base, dev_root or root)) / "dev"
    links = Path(_join(base, dev_char_path))
    nodes = {name: numbers for pattern in _PATTERNS for name, numbers in _existing(dev, pattern)}
    if create_all:
        nodes |= {node.name: (node.major, node.minor) for node in all_nodes(Roots(sysroot=base))}
    said = []
    for name, (major, minor) in sorted(nodes.items(), key=lambda item: item[1]):
        link = links / f"{major}:{minor}"
        target = f"../{name}" if links == dev / "char" else str(dev / name)
        if link.is_symlink() and os.readlink(link) == target:
            continue
        if link.exists() and not link.is_symlink():
            raise GpuError(f"{link} is there and is not a link: remove it")
        said.append(f"{link} -> {target}")
        if not dry_run:
            links.mkdir(parents=True, exist_ok=True)
            link.unlink(missing_ok=True)
            link.symlink_to(target)
    return said


def all_nodes(roots: Roots) -> tuple[Node, ...]:
    """Every node that GPUs of this host can have: control nodes, GPUs, and the MIG capabilities of these GPUs."""
    majors = read_majors(roots)
    gpus = [gpu.minor for gpu in read_gpus(roots)]
    found = [*control_nodes(roots), *[Node(f"nvidia{minor}", nvidia_major(majors), minor) for minor in gpus]]
    caps = majors.get(CAPS_DEVICE)
    if caps is not None:
        wanted = ("config", "monitor", *[f"gpu{minor}/" for minor in gpus])
        minors = read_minors(roots, "", majors).of
        found += [
            Node(f"nvidia-caps/nvidia-cap{minor}", caps, minor) for name, minor in minors.items() if name.startswith(wanted)
        ]
    return tuple(found)


def own_sysroot() -> str:
    """GPURUN_SYSROOT of this process."""
    return os.environ.get("GPURUN_SYSROOT", "").rstrip("/")


def _join(sysroot: str, path: str) -> str:
    return sysroot + ("" if path == "/" else path.rstrip("/")) or "/"


def _existing(dev: Path, pattern: str) -> list[tuple[str, tuple[int, int]]]:
    found = [(str(path.relative_to(dev)), _numbers(path)) for path in sorted(dev.glob(pattern))]
    return [(name, numbers) for name, numbers in found if numbers is not None]


def _numbers(path: Path) -> tuple[int, int] | None:
    """Major and minor of the character device *path* itself; None for anything else."""
    try:
        found = path.lstat()
    except OSError:
        return None
    return (posix.major(found.st_rdev), posix.minor(found.st_rdev)) if stat.S_ISCHR(found.st_mode) else None
