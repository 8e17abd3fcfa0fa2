"""The node's GPUs as devices of ResourceSlices: attributes, capacities, counters; pure.

The names are those of NVIDIA's driver (gpu.nvidia.com), so that claims and device classes written for it mean the same.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from gpurun.kubernetes.node import NodeGpu, NodeGpus, NodeMig
from gpurun.record import Record

DRIVER = "gpu.nvidia.com"
#: The API's limits for one slice: devices, devices that consume counters, and sets of counters.
MAX_DEVICES, MAX_COUNTING, MAX_SETS = 128, 64, 8
#: The key of the taint of a device after an Xid, whose number is the value.
TAINT_XID = f"{DRIVER}/xid"
#: The key of the taint of a GPU that has fallen off the bus, and what NVML says then (NVML_ERROR_GPU_IS_LOST).
TAINT_LOST, _LOST = f"{DRIVER}/gpu-lost", "GPU is lost"
#: The least memory of a share, as the API writes it, and in bytes.
LEAST_SHARE, _LEAST_BYTES = "64Mi", 64 << 20
_PARTS = {
    "multiprocessorCount": "multiprocessors",
    "sharedCopyEngineCount": "copyEngines",
    "sharedDecoderCount": "decoders",
    "sharedEncoderCount": "encoders",
    "sharedJpegCount": "jpegEngines",
    "sharedOfaCount": "ofaEngines",
}

Object = dict[str, Any]


class Allocatable(Record):
    """One device that a claim can be given: its *name* in the pool, and what it is here (*uuid*: a MIG device or GPU).

    *memory* is in bytes, 0: unknown.
    """

    name: str
    uuid: str
    gpu_uuid: str
    index: int
    mig: bool = False
    memory: int = 0


class Pool(Protocol):
    """The devices of one driver on a node, as they are published."""

    @property
    def ill(self) -> Mapping[str, str]:
        """Why a device is not well, by a name of it."""

    @property
    def counts(self) -> bool:
        """Whether devices consume counters, if the server has any."""

    @property
    def shares(self) -> bool:
        """Whether a device may be given to several claims, if the server allows that."""

    def slices(self, name: str, server_minor: int, counting: bool, tainting: bool, sharing: bool) -> list[Object]:
        """The ``spec`` of each slice of the pool *name*, without the generation, for a server as :func:`slices` has it."""


class NodePool(Record):
    """The :class:`Pool` of NVIDIA's GPUs on *node*; *ill* is by UUID, *shared*: several claims may share a GPU's memory."""

    node: NodeGpus
    ill: Mapping[str, str]
    shared: bool = False

    @property
    def counts(self) -> bool:
        """Whether there are MIG devices."""
        return bool(counter_sets(self.node))

    @property
    def shares(self) -> bool:
        """Whether the site wants shares, and the driver can limit them."""
        return self.shared and self.node.limits

    def slices(self, name: str, server_minor: int, counting: bool, tainting: bool, sharing: bool) -> list[Object]:
        """See :func:`slices`."""
        return slices(self.node, name, self.ill, server_minor, counting, tainting, sharing)


def unhealthy(driver: str) -> Object:
    """The taint of a device of *driver* that is not well, for another reason than an Xid."""
    return {"key": f"{driver}/unhealthy", "effect": "NoSchedule"}


def allocatable(node: NodeGpus) -> dict[str, Allocatable]:
    """Name → device: each GPU that is not divided, and each MIG device of those that are."""
    found = {}
    for gpu in node.gpus:
        for mig in gpu.migs:
            name = mig_name(gpu, mig)
            found[name] = Allocatable(name, mig.uuid, gpu.uuid, gpu.index, True)
        if not gpu.mig_enabled:
            name = f"gpu-{gpu.minor}"
            found[name] = Allocatable(name, gpu.uuid, gpu.uuid, gpu.index, memory=gpu.memory)
    return found


def mig_name(gpu: NodeGpu, mig: NodeMig) -> str:
    """The name of a MIG device: a DNS label that no other MIG device of the node has."""
    profile = "".join([c if c.isalnum() else "-" for c in mig.profile.lower()]).replace("--", "-")
    return f"gpu-{gpu.minor}-mig-{profile}-{mig.gi}-{mig.ci}"


def devices(node: NodeGpus, ill: Mapping[str, str], counters: bool, tainting: bool, sharing: bool = False) -> list[Object]:
    """The devices of the pool; with *counters* they say what they consume of their GPU, with *sharing* GPUs may have shares.

    One whose UUID is *ill* (why, by UUID) has a taint, or is left out when the server knows none.
    """
    made = []
    for gpu in node.gpus:
        if not gpu.mig_enabled and (tainting or gpu.uuid not in ill):
            whole = {"name": f"gpu-{gpu.minor}", "attributes": _gpu_attributes(node, gpu), **_capacity(gpu.memory)}
            made.append(whole | _taints(ill.get(gpu.uuid, "")) | (_in_shares(gpu) if sharing else {}))
        for mig in gpu.migs:
            why = ill.get(mig.uuid) or ill.get(gpu.uuid, "")
            if why and not tainting:
                continue
            device: Object = {"name": mig_name(gpu, mig), "attributes": _mig_attributes(node, gpu, mig)}
            device |= _capacity(mig.memory, mig) | _taints(why)
            if counters and mig.start >= 0:
                taken = {f"memory-slice-{i}": {"value": "1"} for i in range(mig.start, mig.start + mig.size)}
                device["consumesCounters"] = [{"counterSet": _counter_set(gpu), "counters": taken}]
            made.append(device)
    return made


def counter_sets(node: NodeGpus) -> list[Object]:
    """What the MIG devices of each GPU share: its memory slices, one counter for each."""
    made = []
    for gpu in node.gpus:
        slices = max([mig.start + mig.size for mig in gpu.migs if mig.start >= 0], default=0)
        if slices:
            counters = {f"memory-slice-{i}": {"value": "1"} for i in range(slices)}
            made.append({"name": _counter_set(gpu), "counters": counters})
    return made


def slices(
    node: NodeGpus, name: str, ill: Mapping[str, str], server_minor: int, counting: bool = True, tainting: bool = True,
    sharing: bool = False,
) -> list[Object]:  # fmt: skip
    """The ``spec`` of each slice of the pool *name* (the node's), without the generation.

    A server before 1.35 wants counters in the slice of those who consume them, later ones in a slice of their own;
    *counting* and *tainting* are false for a server that has no counters or taints of devices; with *sharing* it may give a
    GPU's memory to several claims.
    """
    sets = counter_sets(node) if counting else []
    return make_slices(DRIVER, name, devices(node, ill, bool(sets), tainting, sharing), sets, server_minor)


def make_slices(driver: str, name: str, made: list[Object], sets: list[Object], server_minor: int) -> list[Object]:
    """The devices *made* and the *sets* of counters that they consume, in as few slices of *driver* as may be."""
    specs: list[Object] = []
    if sets and server_minor >= 35:
        specs += [{"sharedCounters": sets[at : at + MAX_SETS]} for at in range(0, len(sets), MAX_SETS)]
        sets = []
    most = MAX_COUNTING if any("consumesCounters" in one or "taints" in one for one in made) else MAX_DEVICES
    for at in range(0, len(made), most) or (0,):
        specs.append({"devices": made[at : at + most]} | ({"sharedCounters": sets} if sets else {}))
    common = {"driver": driver, "nodeName": name}
    pool = {"name": name, "resourceSliceCount": len(specs)}
    return [common | {"pool": dict(pool)} | spec for spec in specs]


def semantic_version(text: str) -> str:
    """*text*, some numbers with dots, as a semantic version: three numbers without leading zeros."""
    numbers = [str(int(part)) if part.isdigit() else "0" for part in text.split(".")]
    return ".".join([*numbers, "0", "0"][:3])


def _gpu_attributes(node: NodeGpus, gpu: NodeGpu) -> Object:
    return {"type": _text("gpu"), "uuid": _text(gpu.uuid)} | _common(node, gpu)


def _mig_attributes(node: NodeGpus, gpu: NodeGpu, mig: NodeMig) -> Object:
    own = {"type": "mig", "uuid": mig.uuid, "profile": mig.profile, "parentUUID": gpu.uuid}
    return {name: _text(value) for name, value in own.items()} | _common(node, gpu)


def _common(node: NodeGpus, gpu: NodeGpu) -> Object:
    found: Object = {"index": {"int": gpu.index}, "minor": {"int": gpu.minor}}
    for name, value in (("productName", gpu.model), ("brand", gpu.brand), ("architecture", gpu.architecture)):
        if value:
            found[name] = _text(value)
    for name, value in (
        ("cudaComputeCapability", gpu.compute), ("driverVersion", node.driver), ("cudaDriverVersion", node.cuda),
    ):  # fmt: skip
        if value:
            found[name] = {"version": semantic_version(value)}
    if gpu.numa >= 0:
        found["numaNode"] = {"int": gpu.numa}
    found["resource.kubernetes.io/pciBusID"] = _text(gpu.bus_id)
    if gpu.pcie_root:
        found["resource.kubernetes.io/pcieRoot"] = _text(gpu.pcie_root)
    return found


def _taints(why: str) -> Object:
    """The taint of a device that is not well; no claim gets it that does not tolerate that, and pods that have it stay."""
    if not why:
        return {}
    word, _, number = why.partition(" ")
    if word == "Xid":
        return {"taints": [{"key": TAINT_XID, "value": number, "effect": "NoSchedule"}]}
    return {"taints": [{"key": TAINT_LOST, "effect": "NoSchedule"} if why == _LOST else unhealthy(DRIVER)]}


def _text(value: str) -> Object:
    return {"string": value[:64]}


def _capacity(memory: int, mig: NodeMig | None = None) -> Object:
    found: Object = {"memory": {"value": quantity(memory)}} if memory else {}
    for part, count in mig.parts if mig else ():
        if part in _PARTS:
            found[_PARTS[part]] = {"value": str(count)}
    for number in range(mig.start, mig.start + mig.size) if mig and mig.start >= 0 else ():
        found[f"memorySlice{number}"] = {"value": "1"}
    return {"capacity": found} if found else {}


def _in_shares(gpu: NodeGpu) -> Object:
    """What allows several claims to have the GPU: each consumes memory, and all of it where it does not say how much."""
    if gpu.memory < _LEAST_BYTES:
        return {}
    size = quantity(gpu.memory)
    memory = {"value": size, "requestPolicy": {"default": size, "validRange": {"min": LEAST_SHARE}}}
    return {"allowMultipleAllocations": True, "capacity": {"memory": memory}}


def _counter_set(gpu: NodeGpu) -> str:
    return f"gpu-{gpu.minor}-counter-set"


def quantity(size: int) -> str:
    """*size* in bytes as the API server writes it back: with the greatest unit that leaves no rest."""
    for exponent, unit in ((4, "Ti"), (3, "Gi"), (2, "Mi"), (1, "Ki")):
        if size and size % 1024**exponent == 0:
            return f"{size // 1024**exponent}{unit}"
    return str(size)
