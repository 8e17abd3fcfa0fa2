"""CDI specifications without GPUs: management, GPUDirect Storage, InfiniBand, GDRCopy, NVSwitch, IMEX channels.

Each is a list of device nodes of the host and a few files; which nodes there are, the host's /dev says.
"""

from __future__ import annotations

import posix
from _stat import S_ISCHR

from gpurun.cdi.document import CdiDevice, CdiEdits, CdiMount, CdiNode, CdiSpec, minimum_version
from gpurun.errors import GpuError
from gpurun.gpu.host.reads import exists
from gpurun.gpu.nvidia.cdi.generate import check_options, unused_options
from gpurun.gpu.nvidia.cdi.generated import Generated, GenerateOptions, union
from gpurun.record import Record, replace

_FILE = ("ro", "nosuid", "nodev", "rbind", "rprivate")
_DIRECTORY = ("nosuid", "nodev", "rbind", "rprivate", "noexec")


class _Mode(Record):
    """*prefixes* of node paths (a name is the prefix and a number, or nothing), *files* to mount where they exist."""

    subject: str
    prefixes: tuple[str, ...]
    files: tuple[tuple[str, tuple[str, ...]], ...] = ()
    each: bool = False  # a device for each node, named by its number


MODES = {
    "gds": _Mode("GPUDirect Storage", ("/dev/nvidia-fs",), (("/run/udev", _DIRECTORY), ("/etc/cufile.json", _FILE))),
    "mofed": _Mode("InfiniBand", ("/dev/infiniband/uverbs", "/dev/infiniband/rdma_cm")),
    "gdrcopy": _Mode("GDRCopy", ("/dev/gdrdrv",)),
    "nvswitch": _Mode("NVSwitch", ("/dev/nvidia-nvswitchctl", "/dev/nvidia-nvswitch")),
    "imex": _Mode("IMEX channel", ("/dev/nvidia-caps-imex-channels/channel",), each=True),
    "management": _Mode(
        "NVIDIA",
        (
            "/dev/nvidia",
            "/dev/nvidiactl",
            "/dev/nvidia-modeset",
            "/dev/nvidia-uvm",
            "/dev/nvidia-uvm-tools",
            "/dev/nvidia-caps/nvidia-cap",
            "/dev/nvidia-caps-imex-channels/channel",
        ),
    ),
}


def generate_mode(mode: str, dev_root: str, options: GenerateOptions, common: CdiSpec | None = None) -> Generated:
    """The specification of *mode*; *dev_root* stands before ``/dev``.  *common* (management) brings the driver's files.

    The kind is that of the options, as in NVIDIA's generator: without --class and --vendor that of GPUs.
    Raises :class:`UsageError` for bad options and :class:`GpuError` when the host has no such device.
    """
    check_options(options)
    what = MODES[mode]
    nodes = [node for prefix in what.prefixes for node in _nodes(dev_root, prefix)]
    nodes = sorted({node.path: node for node in nodes}.values(), key=lambda node: node.path)
    if not nodes:
        raise GpuError(f"no {what.subject} device on this host: there is no {' and no '.join(what.prefixes)}")
    if what.each:
        numbered = {node.path[len(what.prefixes[0]) :]: CdiEdits(device_nodes=(node,)) for node in nodes}
        devices = [CdiDevice(number, numbered[number]) for number in _numbers(options.devices, tuple(numbered))]
        if options.all_device:
            devices.append(CdiDevice("all", union([device.edits for device in devices])))
    else:
        mounts = [CdiMount(dev_root + path, path, options) for path, options in what.files if exists(dev_root + path)]
        devices = [CdiDevice("all", CdiEdits(device_nodes=tuple(nodes), mounts=tuple(mounts)))]
    shared = CdiEdits(env=("NVIDIA_VISIBLE_DEVICES=void",))
    if common is not None:
        kept = tuple([h for h in common.edits.hooks if "disable-device-node-modification" not in h.args])
        shared = replace(common.edits, device_nodes=(), hooks=kept)
    spec = CdiSpec("", f"{options.vendor}/{options.cls}", tuple(devices), shared)
    return Generated(replace(spec, version=minimum_version(spec)), unused_options(options))


def _numbers(ids: tuple[str, ...], there: tuple[str, ...]) -> tuple[str, ...]:
    """The numbers of the channels *ids* (``all``, a number, ``channel`` and a number) among those that are *there*.

    Raises :class:`GpuError`.
    """
    if "all" in ids:
        return tuple(sorted(there, key=int))
    chosen = tuple(dict.fromkeys([device.removeprefix("channel") for device in ids]))
    for number in chosen:
        if number not in there:
            known = ", ".join(sorted(there, key=int))
            raise GpuError(f"IMEX channel {number}: this host has no device node for it, only for {known}")
    return chosen


def _nodes(dev_root: str, prefix: str) -> list[CdiNode]:
    directory, _, stem = prefix.rpartition("/")
    try:
        names = posix.listdir(dev_root + directory)
    except OSError:
        return []
    found = []
    for name in names:
        number = name.removeprefix(stem)
        if name.startswith(stem) and (not number or number.isdigit()):
            path = f"{directory}/{name}"
            if S_ISCHR(posix.lstat(dev_root + path).st_mode):
                found.append(CdiNode(path, dev_root + path if dev_root else "", permissions="rw"))
    return found
