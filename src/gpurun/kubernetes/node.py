"""The node's GPUs as everything below needs them: what procfs, sysfs and NVML say, in one record.

Pure but for :func:`read_node`.  There is no second discovery: this puts the answers of
:mod:`gpurun.gpu.nvidia.host` together.
"""

from __future__ import annotations

import os
from typing import Any

from gpurun.errors import GpuError
from gpurun.gpu.host.reads import read_bytes, read_text
from gpurun.gpu.nvidia.host.driver import module_version
from gpurun.gpu.nvidia.host.gpus import Gpu, read_gpus
from gpurun.gpu.nvidia.host.nvml import DETAILS, find_nvml, query
from gpurun.gpu.nvidia.host.roots import Roots, bus_order
from gpurun.gpu.nvidia.host.vgpu import CONFIG_SPACE, hypervisor_driver
from gpurun.record import Record


class NodeMig(Record):
    """One MIG device: *index* is NVML's number on its GPU, *profile* such as ``1g.10gb``; *memory* in bytes, 0: unknown.

    *parts* counts what it has of the GPU, by NVML's names; *start* and *size* are its memory slices, *start* -1: unknown.
    """

    index: int
    gi: int
    ci: int
    uuid: str
    profile: str
    memory: int = 0
    parts: tuple[tuple[str, int], ...] = ()
    start: int = -1
    size: int = 0
    paths: tuple[str, ...] = ()
    present: bool = True


class NodeGpu(Record):
    """One GPU.  *memory* in bytes, 0: unknown; *compute* such as ``9.0``, *numa* -1: the host does not say.

    *peers* are the bus ids of other GPUs with how near they are (a greater number is nearer: :func:`nearness`); *present*
    is false when the device node is gone, *problem* what NVML says is wrong with the GPU, *recovery* what the driver says
    that it needs (``none``; empty: it does not say).  *pci_class* is sysfs's number.  *clique* is the NVLink domain over
    several nodes, as ``UUID.number`` (empty: none); *hypervisor* the version and branch of the driver that has made a
    virtual GPU, None for one that is no virtual one.
    """

    index: int
    minor: int
    uuid: str
    bus_id: str
    model: str
    numa: int = -1
    memory: int = 0
    compute: str = ""
    architecture: str = ""
    brand: str = ""
    pcie_root: str = ""
    pci_class: int = 0
    mig_enabled: bool = False
    mig_capable: bool = False
    migs: tuple[NodeMig, ...] = ()
    peers: tuple[tuple[str, int], ...] = ()
    paths: tuple[str, ...] = ()
    present: bool = True
    problem: str = ""
    recovery: str = ""
    clique: str = ""
    hypervisor: tuple[str, str] | None = None


class NodeGpus(Record):
    """The node: *driver* is the kernel module's version (empty: not loaded), *cuda* the newest CUDA that it runs.

    *nvml* says why NVML could not be asked; then what only it knows is missing.  *limits*: the driver can limit what
    a container has of a GPU's memory.
    """

    driver: str = ""
    cuda: str = ""
    gpus: tuple[NodeGpu, ...] = ()
    nvml: str = ""
    limits: bool = False


def read_node(roots: Roots) -> NodeGpus:
    """What there is now, but for GPUs that the site excludes.

    A driver that is not loaded or not well is an answer, not an error.
    """
    gpus = tuple([gpu for gpu in read_gpus(roots) if not gpu.apart])
    version = module_version(roots)
    if not gpus:
        return NodeGpus(version)
    try:
        answer, problem = query(find_nvml(roots), DETAILS), ""
    except GpuError as e:
        answer, problem = {"gpus": []}, str(e)
    return node_of(roots, version, gpus, answer, problem)


def has_hardware(roots: Roots) -> bool:
    """Whether a GPU of NVIDIA's is on the PCI bus, whatever drives it; true where sysfs does not say."""
    directory = f"{roots.sysroot}/sys/bus/pci/devices"
    try:
        names = os.listdir(directory)
    except OSError:
        return True
    return any(
        read_text(f"{directory}/{name}/vendor").strip() == "0x10de"
        and read_text(f"{directory}/{name}/class").strip()[:6] in ("0x0300", "0x0302")
        for name in names
    )


def node_of(roots: Roots, version: str, gpus: tuple[Gpu, ...], answer: dict[str, Any], problem: str) -> NodeGpus:
    """The record of *gpus*, with NVML's *answer* to ``details``, or the *problem* with it."""
    by_nvml = {bus_order(str(gpu["busId"])): gpu for gpu in answer["gpus"] if gpu.get("busId")}
    failed = {int(gpu["index"]): str(gpu["error"]) for gpu in answer["gpus"] if gpu.get("error")}
    made = [_gpu(roots, gpu, by_nvml.get(bus_order(gpu.bus_id), {}), failed.get(gpu.index, "")) for gpu in gpus]
    return NodeGpus(version, str(answer.get("cudaVersion") or ""), tuple(made), problem, bool(answer.get("memoryLimits")))


def _gpu(roots: Roots, gpu: Gpu, details: dict[str, Any], problem: str) -> NodeGpu:
    pci = f"{roots.sysroot}/sys/bus/pci/devices/{gpu.bus_id.lower()}"
    number = read_text(f"{pci}/class").strip()
    architecture = str(details.get("architecture") or "")
    return NodeGpu(
        index=gpu.index,
        minor=gpu.minor,
        uuid=gpu.uuid if "?" not in gpu.uuid else str(details.get("uuid") or gpu.uuid),
        bus_id=gpu.bus_id.lower(),
        model=str(details.get("name") or gpu.model),
        numa=gpu.numa_node,
        memory=int(details.get("memoryTotal") or 0),
        compute=str(details.get("computeCapability") or ""),
        architecture=architecture,
        brand=str(details.get("brand") or ""),
        pcie_root=_pcie_root(pci),
        pci_class=int(number, 16) if number.startswith("0x") else 0,
        mig_enabled=bool(details.get("migMode")) or bool(gpu.mig),
        mig_capable=details.get("migMode") is not None or bool(gpu.mig),
        migs=_migs(gpu, details),
        peers=_peers(details),
        paths=(gpu.node.path,),
        present=gpu.node.exists,
        problem=problem,
        recovery=str(details.get("recoveryAction") or ""),
        clique=str(details.get("clique") or ""),
        hypervisor=hypervisor_driver(read_bytes(f"{pci}/config", CONFIG_SPACE) or b""),
    )


def _migs(gpu: Gpu, details: dict[str, Any]) -> tuple[NodeMig, ...]:
    """The MIG devices that both the kernel and NVML have: one that NVML does not name cannot be asked for."""
    named = {(mig["gpuInstance"], mig["computeInstance"]): mig for mig in details.get("migDevices") or ()}
    made = []
    for mig in gpu.mig:
        known = named.get((mig.gi, mig.ci), {})
        uuid, profile = mig.uuid or known.get("uuid"), mig.profile or known.get("profile")
        if not uuid or not profile:
            continue
        place = known.get("placement") or {}
        made.append(
            NodeMig(
                index=int(known.get("index", mig.index)),
                gi=mig.gi,
                ci=mig.ci,
                uuid=str(uuid),
                profile=str(profile),
                memory=int(known.get("memoryTotal") or 0),
                parts=tuple(sorted((known.get("attributes") or {}).items())),
                start=int(place.get("start", -1)),
                size=int(place.get("size", 0)),
                paths=(gpu.node.path, *[node.path for node in mig.nodes]),
                present=all(node.exists for node in mig.nodes),
            )
        )
    return tuple(made)


#: How near PCI brings two GPUs, by the words of ``nvidia-smi topo``.
_PCI = {"internal": 60, "single": 50, "multiple": 40, "hostbridge": 30, "node": 20, "system": 10}


def nearness(links: int, topology: str) -> int:
    """How near two GPUs are to each other: any number of NVLinks is nearer than the best PCI can do."""
    return 100 * links + _PCI.get(topology, 0)


def _peers(details: dict[str, Any]) -> tuple[tuple[str, int], ...]:
    """NVLinks to a GPU count for it; those to NVSwitches reach every other GPU."""
    topology: dict[str, str] = details.get("topology") or {}
    links: dict[str, int] = details.get("links") or {}
    switched = sum(count for bus, count in links.items() if bus not in topology)
    return tuple(sorted((bus, nearness(links.get(bus, 0) or switched, how)) for bus, how in topology.items()))


def _pcie_root(pci: str) -> str:
    """The PCI root complex below which a device is, such as ``pci0000:00``; empty where sysfs does not say."""
    for part in os.path.realpath(pci).split("/"):
        if part.startswith("pci") and ":" in part:
            return part
    return ""
