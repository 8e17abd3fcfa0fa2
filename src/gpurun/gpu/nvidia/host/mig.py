"""MIG: GPUs divided into GPU instances (GI) and those into compute instances (CI), and the capabilities that open them.

A MIG device is a compute instance.  Which ones there are stands in ``/proc/driver/nvidia/capabilities``; a process may use
one when it can open the capability nodes ``/dev/nvidia-caps/nvidia-cap<minor>`` of both its GI and its CI.  procfs does not
tell the UUIDs, nor the numbers by which NVML counts a GPU's MIG devices: a resolver (NVML) is asked when, and only when, a
request uses one.
"""

from __future__ import annotations

from gpurun.decimals import decimal
from gpurun.gpu.host.reads import HostNode, fields, names_in, read_bytes
from gpurun.gpu.nvidia.host.nodes import MAX_MINOR, find_node
from gpurun.gpu.nvidia.host.roots import PROC, Roots
from gpurun.record import Record

MINORS_FILE = "/proc/driver/nvidia-caps/mig-minors"
CAPS_DEVICE = "nvidia-caps"  # in /proc/devices
CAPS_DIR = "/dev/nvidia-caps"


class MigDevice(Record):
    """One MIG device of a GPU, known to procfs by *gi* and *ci*; *uuid*, *index* and *profile* only once NVML was asked.

    *nodes* are the capability nodes of its GI and CI, *files* the two files below /proc/driver/nvidia that describe them.
    """

    gi: int
    ci: int
    nodes: tuple[HostNode, ...] = ()
    files: tuple[str, ...] = ()
    uuid: str = ""
    index: int = -1
    profile: str = ""


class MigMinors(Record):
    """The minors of the capability nodes: *of* maps ``gpu0/gi1/access`` (0 is a GPU's *minor*), ``config``, ``monitor``."""

    of: dict[str, int]
    major: int | None
    dev: str  # the directory with dev/


def read_minors(roots: Roots, dev: str, majors: dict[str, int]) -> MigMinors:
    """The table of capability minors of this driver; empty where the driver has no MIG."""
    # All combinations of 32 GPUs are listed, whether there are such GPUs or not: 100 KiB.
    text = (read_bytes(roots.sysroot + MINORS_FILE, 1 << 20) or b"").decode("ascii", "replace")
    pairs = [line.split() for line in text.splitlines()]
    of = {pair[0]: minor for pair in pairs if len(pair) == 2 and (minor := decimal(pair[1], MAX_MINOR)) is not None}
    return MigMinors(of, majors.get(CAPS_DEVICE), dev)


def read_mig(roots: Roots, minor: int, minors: MigMinors) -> tuple[MigDevice, ...]:
    """The MIG devices of the GPU with that device *minor*, by GI and CI."""
    base = f"capabilities/gpu{minor}/mig"
    found = []
    for gi in _numbers(names_in(f"{roots.sysroot}{PROC}/{base}"), "gi"):
        for ci in _numbers(names_in(f"{roots.sysroot}{PROC}/{base}/gi{gi}"), "ci"):
            files = (f"{base}/gi{gi}/access", f"{base}/gi{gi}/ci{ci}/access")
            keys = (f"gpu{minor}/gi{gi}/access", f"gpu{minor}/gi{gi}/ci{ci}/access")
            nodes = [_cap_node(roots, minors, key, file) for key, file in zip(keys, files, strict=True)]
            found.append(MigDevice(gi, ci, tuple([n for n in nodes if n is not None]), files))
    return tuple(found)


def admin_node(roots: Roots, minors: MigMinors, what: str) -> HostNode | None:
    """The capability node ``config`` or ``monitor``; ``None`` where the driver has none."""
    return _cap_node(roots, minors, what, f"capabilities/mig/{what}")


def _numbers(names: list[str], prefix: str) -> list[int]:
    found = [decimal(name[len(prefix) :]) for name in names if name.startswith(prefix)]
    return sorted([n for n in found if n is not None])


def _cap_node(roots: Roots, minors: MigMinors, key: str, file: str) -> HostNode | None:
    """The node of one capability: its minor from the table, or from the capability's own file."""
    described = fields(f"{roots.sysroot}{PROC}/{file}")
    minor = minors.of.get(key, decimal(described.get("DeviceFileMinor", ""), MAX_MINOR))
    if minor is None or minors.major is None:
        return None
    mode = decimal(described.get("DeviceFileMode", ""), 0o777)
    path = f"{CAPS_DIR}/nvidia-cap{minor}"
    return find_node(minors.dev, path, minors.major, minor, 0o444 if mode is None else mode)
