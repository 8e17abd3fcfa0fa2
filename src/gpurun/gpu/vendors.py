"""The makers of GPUs that gpurun knows: one table, and what the requests of all of them have in common.

The room of a maker is ``gpurun.gpu.NAME``.  Its modules are imported when a container has one of its variables, or the
host one of its directories, and never before.  CONTRIBUTING.md says what such a room must have.
"""

from __future__ import annotations

import posix

from gpurun.decimals import decimal
from gpurun.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from typing import Any

    from gpurun.cdi.edits import DeviceNode
    from gpurun.ns.mount_plan import DeviceStep
    from gpurun.oci.config import Device


#: The variable that names GPUs of every maker (:mod:`gpurun.gpu.visible`), and the only one for Intel's.
EVERY_MAKER = "GPURUN_VISIBLE_DEVICES"
AMD_UNKNOWN = "GPURUN_AMD_UNKNOWN"
#: What a gpurun that knew one maker of GPUs has left out; one that knew several has written only MAJOR:MINOR.
_FIRST_MAJOR = "195"
#: What MAKER:KEY is made of: a maker's name, a PCI address, numbers of parts.
_KEY_CHARACTERS = frozenset("abcdefghijklmnopqrstuvwxyz0123456789_:./-")
#: The values of a switch that Go's strconv.ParseBool takes for true, as the makers' own tools read theirs.
GO_TRUE = ("1", "t", "T", "TRUE", "true", "True")
#: The values of such a variable: devices that the host does not have are an error, or are passed over with a warning.
REFUSE_UNKNOWN, IGNORE_UNKNOWN = "refuse", "ignore"


class Vendor(Record):
    """A row: *name* is that of its room, *title* how sentences write it; *variable* lists a container's GPUs; an entry of
    the environment that begins with one of *prefixes* asks for some.

    *probes* are paths one of which the host has while a driver of the maker's is loaded.  *kind* is that of its CDI
    devices, *resource* what its extended resources in Kubernetes begin with.  *nodes* are the (directory, prefix) of its
    device nodes below /dev, and *compute* the names in /dev that a container which computes has some of; *numbers* are the
    (major, first minor, last minor) of the nodes of GPUs.  *site_file* is a file of settings that may name more variables
    to ask with, and *site_variables* those of gpurun's own environment that lead to one.  *limits* are prefixes of
    variables that limit a GPU's memory.  *replaced_hooks* are basenames of prestart hooks that engines add and gpurun does
    itself, *cdi_programs* those of the programs that do the hooks of the maker's CDI files.  A room that is *examined* has a
    module doctor with the function ``examine(sysroot)``.  *driver* is the name of the maker's driver of dynamic resource
    allocation, under which a cluster knows its GPUs; a room with one has a module cluster (:mod:`gpurun.gpu.cluster`).
    *unknown* is the variable of gpurun's own environment that says
    ``ignore`` where devices that the host does not have are passed over; the site's own file says it as ``unknown`` in the
    table *name*.  *pci* is the maker's PCI vendor id, *modules* are the kernel modules one of which drives its GPUs.
    *accelerators* are of a maker that makes other things to compute on as well: (the variable that asks for them, a path
    that the host has while their driver is loaded); the room's survey has the functions ``accelerators(own_env)`` and
    ``accelerators_given(env, own_env)`` then.
    *part* is what a part of one of its GPUs is called, *link* what connects them, *library* what is asked for what sysfs
    does not tell of them.  *listing* is what lists the GPUs of a process once, when it opens a node that all of them share.
    *saved*: CRIU saves programs that use its GPUs, as gpurun calls it.  *channels* are the
    (directory, prefix) of nodes that come with its GPUs and open none.  *daemon* is how the kernel shortens the names of the
    maker's processes that compute for other ones, which share a GPU.
    A room with *readings* has the modules readings, with the function ``sources(sysroot)``
    (:class:`gpurun.gpu.device.ReadingSource`), and exporter (:class:`gpurun.gpu.device.Figure`).
    """

    name: str
    title: str
    pci: int
    modules: tuple[str, ...]
    variable: str
    prefixes: tuple[str, ...]
    probes: tuple[str, ...]
    kind: str
    resource: str
    nodes: tuple[tuple[str, str], ...]
    compute: tuple[str, ...]
    numbers: tuple[int, int, int]
    site_file: str = ""
    site_variables: tuple[str, ...] = ()
    limits: tuple[str, ...] = ()
    replaced_hooks: tuple[str, ...] = ()
    cdi_programs: tuple[str, ...] = ()
    examined: bool = False
    driver: str = ""
    unknown: str = ""
    accelerators: tuple[str, str] = ("", "")
    part: str = "part"
    link: str = "a link of their maker's"
    readings: bool = False
    library: str = ""
    listing: str = ""
    saved: bool = False
    channels: tuple[tuple[str, str], ...] = ()
    daemon: str = ""


class GivenGpu(Record):
    """A device node of a GPU that a container was given: its numbers, and as MAKER:KEY which GPU that was.

    The numbers say what the container can open, the key which GPU it was given: drivers give numbers anew when a GPU is
    unbound from its driver and bound again.  *gpu* is empty for a node that the engine has put into the config, and where
    an older gpurun made the container.
    """

    major: int
    minor: int
    gpu: str = ""

    @property
    def number(self) -> tuple[int, int]:
        """(major, minor)."""
        return self.major, self.minor

    @property
    def text(self) -> str:
        """What :func:`read_given` reads: MAJOR:MINOR=MAKER:KEY, without the last part where that is not known."""
        return f"{self.major}:{self.minor}" + (f"={self.gpu}" if self.gpu else "")


VENDORS = (
    Vendor(
        "nvidia",
        "NVIDIA",
        0x10DE,
        ("nvidia",),
        "NVIDIA_VISIBLE_DEVICES",
        ("NVIDIA_VISIBLE_DEVICES=", "CUDA_VERSION="),
        ("/proc/driver/nvidia",),
        "nvidia.com/gpu",
        "nvidia.com/",
        (("/dev", "nvidia"), ("/dev/nvidia-caps", "nvidia-cap")),
        ("nvidia-uvm", "dri"),
        (195, 0, 253),  # registered with LANANA; what follows are the driver's own
        "/etc/nvidia-container-runtime/config.toml",
        ("GPURUN_SYSROOT", "NVIDIA_CTK_CONFIG_FILE_PATH", "XDG_CONFIG_HOME", "GPURUN_MODE"),
        ("NVIDIA_GPU_MEMORY_REQUEST", "NVIDIA_GPU_MEMORY_LIMIT"),  # and their plurals
        ("nvidia-container-runtime-hook", "nvidia-container-toolkit"),
        ("nvidia-cdi-hook", "nvidia-ctk", "gpurun", "gpurun-fast"),
        part="MIG device",
        link="NVLink",
        library="NVML",
        saved=True,
        channels=(("/dev/nvidia-caps-imex-channels", "channel"),),
        daemon="nvidia-cuda-mps",
    ),
    Vendor(
        "amd",
        "AMD",
        0x1002,
        ("amdgpu",),
        "AMD_VISIBLE_DEVICES",
        ("AMD_VISIBLE_DEVICES=", "DOCKER_RESOURCE_"),
        ("/sys/module/amdgpu/drivers",),
        "amd.com/gpu",
        "amd.com/",
        (("/dev/dri", "renderD"), ("/dev", "kfd")),
        ("kfd", "dri"),
        (226, 128, (1 << 20) - 1),
        examined=True,
        driver="gpu.amd.com",
        unknown=AMD_UNKNOWN,
        part="partition",
        link="XGMI",
        readings=True,
        listing="ROCm",
    ),
    Vendor(
        "intel",
        "Intel",
        0x8086,
        ("xe", "i915"),
        EVERY_MAKER,
        (f"{EVERY_MAKER}=", "HABANA_VISIBLE_DEVICES="),
        ("/sys/bus/pci/drivers/i915", "/sys/bus/pci/drivers/xe"),
        "intel.com/gpu",
        "gpu.intel.com/",
        (("/dev/dri", "renderD"),),
        ("dri",),
        (226, 128, (1 << 20) - 1),
        examined=True,
        driver="gpu.intel.com",
        part="virtual function",
        accelerators=("HABANA_VISIBLE_DEVICES", "/sys/bus/pci/drivers/habanalabs"),
        readings=True,
    ),
)
#: All prefixes of entries in an environment that may ask for GPUs.
ASKING = tuple([prefix for vendor in VENDORS for prefix in vendor.prefixes])
NAMES = tuple([vendor.name for vendor in VENDORS])


def find_vendor(name: str) -> Vendor:
    """The row of *name*; raises ValueError for one that is not there."""
    return VENDORS[NAMES.index(name)]


def present(own_env: Mapping[str, str]) -> tuple[Vendor, ...]:
    """Those whose driver this host has; *own_env* is gpurun's environment (GPURUN_SYSROOT)."""
    base = own_env.get("GPURUN_SYSROOT", "").rstrip("/")
    return tuple([vendor for vendor in VENDORS if any(posix.access(base + probe, posix.F_OK) for probe in vendor.probes)])


def module(vendor: str, name: str) -> Any:
    """The module *name* of the maker's room, imported now."""
    path = f"gpurun.gpu.{vendor}.{name}"
    return __import__(path, fromlist=[name])


def given_gpus(nodes: Iterable[Device | DeviceNode | DeviceStep]) -> tuple[GivenGpu, ...]:
    """The GPUs among device *nodes*: of each that is known the node that computes, and every other node with the numbers of
    a GPU's, for a node may have any path."""
    bounds = {vendor.numbers for vendor in VENDORS}
    known: dict[str, GivenGpu] = {}
    others: dict[tuple[int, int], GivenGpu] = {}
    cards: set[str] = set()
    for n in nodes:
        if n.type not in ("c", "u"):
            continue
        gpu: str = getattr(n, "gpu", "")
        if gpu and (gpu not in known or gpu in cards):
            known[gpu] = GivenGpu(n.major, n.minor, gpu)
            cards = (cards - {gpu}) | ({gpu} if n.path.startswith("/dev/dri/card") else set())
        elif not gpu and any(n.major == major and first <= n.minor <= last for major, first, last in bounds):
            others[n.major, n.minor] = GivenGpu(n.major, n.minor)
    numbers = {one.number for one in known.values()}
    return (*known.values(), *[one for number, one in others.items() if number not in numbers])


def read_given(word: str) -> GivenGpu:
    """The record whose text is *word*, also as older gpuruns wrote it; raises ValueError for one that none has written."""
    number, _, gpu = word.partition("=")
    major, _, minor = number.rpartition(":")
    pair = [decimal(digits) for digits in (major or _FIRST_MAJOR, minor)]
    if pair[0] is None or pair[1] is None or not _KEY_CHARACTERS.issuperset(gpu):
        raise ValueError(word)
    return GivenGpu(pair[0], pair[1], gpu)


def place(source: str) -> str:
    """The *source* of a request as a place in config.json."""
    return source if source in ("mounts", "annotations") else f"process.env {source}"


def is_free(device: str) -> bool:
    """Whether *device* asks for GPUs that are free, whichever they are (:mod:`gpurun.gpu.request.free`)."""
    return device == "free" or device.startswith(("free:", "free;"))


def not_known(vendor: str) -> str:
    """That something of a GPU of *vendor* is not known, and who would know it."""
    return (
        f"not known without {asked}" if (asked := find_vendor(vendor).library) else "not known: its driver does not tell it"
    )
