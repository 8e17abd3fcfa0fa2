"""What a host has beside GPUs: GPUDirect Storage, InfiniBand, GDRCopy, NVSwitch, IMEX channels, MIG administration.

Their nodes are named by patterns and have numbers that only the nodes themselves tell; the IMEX channels are numbered, and a
channel without a node is known by its numbers.
"""

from __future__ import annotations

from gpurun.errors import GpuError
from gpurun.gpu.host.reads import HostNode, exists, names_in, node_as_it_is
from gpurun.gpu.nvidia.host.libraries import DriverRoot, HostFile, resolve
from gpurun.gpu.nvidia.host.mig import CAPS_DIR, MINORS_FILE, MigMinors, admin_node, read_minors
from gpurun.gpu.nvidia.host.nodes import find_node
from gpurun.gpu.nvidia.host.roots import PROC, Roots
from gpurun.record import Record

#: Extra → what people call it, the directory of its nodes, how their names start (or are, after a "=").
EXTRAS = {
    "gds": ("GPUDirect Storage", "/dev", ("nvidia-fs",)),
    "mofed": ("InfiniBand", "/dev/infiniband", ("uverbs", "=rdma_cm")),
    "gdrcopy": ("GDRCopy", "/dev", ("=gdrdrv",)),
    "nvswitch": ("NVSwitch", "/dev", ("=nvidia-nvswitchctl", "nvidia-nvswitch")),
}
_VARIABLES = {
    "gds": "NVIDIA_GDS", "mofed": "NVIDIA_MOFED", "gdrcopy": "NVIDIA_GDRCOPY", "nvswitch": "NVIDIA_NVSWITCH",
    "mig-config": "NVIDIA_MIG_CONFIG_DEVICES", "mig-monitor": "NVIDIA_MIG_MONITOR_DEVICES", "imex": "NVIDIA_IMEX_CHANNELS",
}  # fmt: skip
_IMEX_DEVICE = "nvidia-caps-imex-channels"


class Extra(Record):
    """One thing beside the GPUs, as far as the host has it.

    *directories* are bound as they are, so that nodes made later are seen; *class_name* is the device class whose nodes in
    them the container may use, by major number.  *proc* are names below /proc/driver/nvidia.
    """

    name: str
    reason: str
    nodes: tuple[HostNode, ...] = ()
    files: tuple[HostFile, ...] = ()
    directories: tuple[HostFile, ...] = ()
    majors: tuple[int, ...] = ()
    proc: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()


def read_extras(
    roots: Roots,
    root: DriverRoot,
    dev: str,
    majors: dict[str, int],
    wanted: tuple[str, ...],
    imex_channels: tuple[int, ...] = (),
    create_channels: bool = True,
) -> tuple[Extra, ...]:
    """What of *wanted* this host has, and its IMEX channels; *dev* is the directory with ``dev/``.

    A feature that is not there is a warning, as in the toolkit.  Raises :class:`GpuError` for MIG administration of a
    driver without MIG, for IMEX channels that the driver does not have and, without *create_channels*, that have no node.
    """
    found = [_feature(root, dev, name) for name in wanted if name in EXTRAS]
    if "mig-config" in wanted or "mig-monitor" in wanted:
        minors = read_minors(roots, dev, majors)
        found += [_mig_admin(roots, minors, name) for name in wanted if name.startswith("mig-")]
    if imex_channels:
        found.append(_channels(dev, majors, imex_channels, create_channels))
    return tuple(found)


def _feature(root: DriverRoot, dev: str, name: str) -> Extra:
    subject, directory, patterns = EXTRAS[name]
    reason = f"{subject} ({_VARIABLES[name]})"
    nodes = []
    for entry in names_in(dev + directory):
        if any(entry == p[1:] if p.startswith("=") else _is_numbered(entry, p) for p in patterns):
            node = node_as_it_is(dev, f"{directory}/{entry}")
            if node is not None:
                nodes.append(node)
    if not nodes:
        shown = " and ".join(f"{directory}/{p[1:] if p.startswith('=') else p + '*'}" for p in patterns)
        return Extra(name, reason, warnings=(f"{reason}: this host has no {shown}: nothing is added",))
    return Extra(name, reason, tuple(nodes), _gds_files(root, dev) if name == "gds" else ())


def _is_numbered(entry: str, prefix: str) -> bool:
    return entry.startswith(prefix) and entry[len(prefix) :].isdigit()


def _gds_files(root: DriverRoot, dev: str) -> tuple[HostFile, ...]:
    """cuFile's configuration, and udev's database, by which it finds the disks behind a file."""
    files = []
    config = resolve(root, "/etc/cufile.json")
    if config is not None:
        files.append(HostFile("config", "gds", root.path + config, "/etc/cufile.json"))
    if exists(f"{dev}/run/udev"):
        files.append(HostFile("directory", "gds", f"{dev}/run/udev", "/run/udev"))
    return tuple(files)


def _mig_admin(roots: Roots, minors: MigMinors, name: str) -> Extra:
    """All MIG capabilities: who divides GPUs has to open instances that are not there yet."""
    what = name.removeprefix("mig-")
    node = admin_node(roots, minors, what)
    if node is None:
        raise GpuError(
            f"{_VARIABLES[name]}: this driver has no MIG: there is no {MINORS_FILE}, or no nvidia-caps in /proc/devices"
        )
    reason = f"MIG administration ({_VARIABLES[name]})"
    directory = minors.dev + CAPS_DIR
    bound = (HostFile("directory", name, directory, CAPS_DIR),) if node.exists else ()
    trees = [f"capabilities/{n}/mig" for n in names_in(f"{roots.sysroot}{PROC}/capabilities") if n.startswith("gpu")]
    present = [t for t in trees if exists(f"{roots.sysroot}{PROC}/{t}")]
    return Extra(
        name,
        reason,
        nodes=() if bound else (node,),
        directories=bound,
        majors=(node.major,),
        proc=(f"capabilities/mig/{what}", *present),
    )


def _channels(dev: str, majors: dict[str, int], numbers: tuple[int, ...], create: bool) -> Extra:
    major = majors.get(_IMEX_DEVICE)
    if major is None:
        raise GpuError(
            f"IMEX channel {numbers[0]}: this host has no IMEX channels: /proc/devices has no {_IMEX_DEVICE} (it comes "
            "with multi-node NVLink systems and driver 550 or newer)"
        )
    nodes = tuple([find_node(dev, f"/dev/{_IMEX_DEVICE}/channel{n}", major, n) for n in numbers])
    missing = [node.path for node in nodes if not node.exists]
    if missing and not create:
        raise GpuError(
            f"{missing[0]} is not there, and making it is switched off (features.disable-imex-channel-creation): "
            "`nvidia-modprobe -i N` makes it"
        )
    return Extra("imex", "IMEX channel", nodes)
