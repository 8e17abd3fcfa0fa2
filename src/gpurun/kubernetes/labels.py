"""The labels of a node with GPUs, as NVIDIA's GPU feature discovery writes them; all but write_features is pure."""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping, Sequence
from typing import Any

from gpurun.errors import GpurunError, strerror_lower
from gpurun.gpu.cluster import is_label
from gpurun.gpu.host.reads import read_text
from gpurun.gpu.vendors import NAMES
from gpurun.kubernetes.config import MPS, NOT_SHARED, PREFIX, PluginConfig, resource_part
from gpurun.kubernetes.makers import NVIDIA, label_names, makers_of
from gpurun.kubernetes.node import NodeGpu, NodeGpus, NodeMig
from gpurun.linux.files import write_atomically
from gpurun.output import write_document

#: Where Node Feature Discovery looks for files of labels.
FEATURES_FILE = "/etc/kubernetes/node-feature-discovery/features.d/gfd"
#: Prefixes of NVIDIA's labels that are ours to take away when they are not true any more.
OWN = tuple([f"{PREFIX}/{word}" for word in ("gpu.", "cuda.", "mig.", "mig-", "gfd.", "mps.", "vgpu.")])
_NOT_OURS = (f"{PREFIX}/gpu.present", f"{PREFIX}/gpu.deploy.", f"{PREFIX}/mig.config")
#: Names of the parts of a MIG device (NVML's) → the label's last word.
_PARTS = {
    "multiprocessorCount": "multiprocessors",
    "gpuInstanceSliceCount": "slices.gi",
    "computeInstanceSliceCount": "slices.ci",
    "sharedCopyEngineCount": "engines.copy",
    "sharedDecoderCount": "engines.decoder",
    "sharedEncoderCount": "engines.encoder",
    "sharedJpegCount": "engines.jpeg",
    "sharedOfaCount": "engines.ofa",
}
_MIB = 1 << 20
_MAX_VALUE = 63


def labels_of(node: NodeGpus, config: PluginConfig, machine: str, timestamp: int | None = None) -> dict[str, str]:
    """Name → value.  *machine* is the product name of the machine, *timestamp* Unix time, None to leave it out.

    No labels at all for a node without GPUs: then none of them is true.
    """
    if not node.gpus:
        return {}
    found = {f"{PREFIX}/gpu.machine": value(machine or "unknown")}
    if timestamp is not None:
        found[f"{PREFIX}/gfd.timestamp"] = str(timestamp)
    found |= _versions(node)
    found[f"{PREFIX}/mig.capable"] = _flag(any(gpu.mig_capable for gpu in node.gpus))
    mps = config.sharing.strategy == MPS
    found[f"{PREFIX}/mps.capable"] = _flag(mps and not any(gpu.mig_enabled for gpu in node.gpus))
    found[f"{PREFIX}/gpu.mode"] = _mode(node)
    for gpu in sorted(node.gpus, key=lambda gpu: not gpu.mig_enabled):  # whole GPUs have the last word
        count = sum(1 for other in node.gpus if other.model == gpu.model)
        found |= _gpu(gpu, count, None if gpu.mig_enabled else config)
    cliques = {gpu.clique for gpu in node.gpus if gpu.clique}
    if len(cliques) == 1:  # a node whose GPUs are in several is in none
        found[f"{PREFIX}/gpu.clique"] = cliques.pop()
    found |= _vgpu(node)
    if config.mig_strategy != "none":
        found[f"{PREFIX}/mig.strategy"] = config.mig_strategy
        found |= _single(node, config) if config.mig_strategy == "single" else _mixed(node, config)
    return found


def _versions(node: NodeGpus) -> dict[str, str]:
    found: dict[str, str] = {}
    parts = [*node.driver.split("."), "", ""]
    if node.driver:
        for old, new, text in (("major", "major", parts[0]), ("minor", "minor", parts[1]), ("rev", "revision", parts[2])):
            found[f"{PREFIX}/cuda.driver.{old}"] = text
            found[f"{PREFIX}/cuda.driver-version.{new}"] = text
        found[f"{PREFIX}/cuda.driver-version.full"] = node.driver
    major, _, minor = node.cuda.partition(".")
    if node.cuda:
        for name, text in (("major", major), ("minor", minor)):
            found[f"{PREFIX}/cuda.runtime.{name}"] = text
            found[f"{PREFIX}/cuda.runtime-version.{name}"] = text
        found[f"{PREFIX}/cuda.runtime-version.full"] = node.cuda
    return found


def _vgpu(node: NodeGpus) -> dict[str, str]:
    """That GPUs are virtual ones, and the driver of the hypervisor that has made them."""
    virtual = [gpu.hypervisor for gpu in node.gpus if gpu.hypervisor is not None]
    if not virtual:
        return {}
    version, branch = virtual[-1]
    vgpu = {"host-driver-version": version, "host-driver-branch": branch}
    return {f"{PREFIX}/vgpu.present": "true"} | {f"{PREFIX}/vgpu.{name}": value(text) for name, text in vgpu.items() if text}


def _gpu(gpu: NodeGpu, count: int, config: PluginConfig | None) -> dict[str, str]:
    """The labels of GPUs of one model; *config* None for those that are divided, which are not shared as a whole."""
    found = _resource(f"{PREFIX}/gpu", count, (gpu.model,), config)
    if gpu.memory:
        found[f"{PREFIX}/gpu.memory"] = str(gpu.memory // _MIB)
    if gpu.compute:
        major, _, minor = gpu.compute.partition(".")
        found[f"{PREFIX}/gpu.family"] = family(int(major), int(minor or 0))
        found[f"{PREFIX}/gpu.compute.major"], found[f"{PREFIX}/gpu.compute.minor"] = major, minor
    return found


def _resource(name: str, count: int, words: tuple[str, ...], config: PluginConfig | None) -> dict[str, str]:
    """Product, count, replicas and sharing strategy of the resource *name*, whose product is called by *words*."""
    shared = config.sharing.of(name) if config else None
    product = [value(word) for word in words]
    if shared is not None and not shared.rename:
        product.append("SHARED")
    return {
        f"{name}.product": value("-".join(product)),
        f"{name}.count": str(count),
        f"{name}.replicas": str(shared.replicas if shared else 1 if config else 0),
        f"{name}.sharing-strategy": config.sharing.strategy if config and shared else NOT_SHARED,
    }


def _single(node: NodeGpus, config: PluginConfig) -> dict[str, str]:
    divided = [gpu for gpu in node.gpus if gpu.mig_enabled]
    if not divided:
        return {}
    migs = [mig for gpu in divided for mig in gpu.migs]
    alike = len({mig.profile for mig in migs}) == 1 and all(gpu.migs for gpu in divided)
    if not alike or len(divided) != len(node.gpus):
        name = f"{PREFIX}/gpu"
        return {
            f"{name}.product": value(f"{value(divided[0].model)}-MIG-INVALID"),
            f"{name}.count": "0", f"{name}.replicas": "0", f"{name}.memory": "0", f"{name}.sharing-strategy": "",
        }  # fmt: skip
    return _mig(f"{PREFIX}/gpu", divided[0], migs, config)


def _mixed(node: NodeGpus, config: PluginConfig) -> dict[str, str]:
    found: dict[str, str] = {}
    for profile in sorted({mig.profile for gpu in node.gpus for mig in gpu.migs}):
        alike = [(gpu, mig) for gpu in node.gpus for mig in gpu.migs if mig.profile == profile]
        name = f"{PREFIX}/mig-{resource_part(profile)}"
        found |= _mig(name, alike[0][0], [mig for _, mig in alike], config)
    return found


def _mig(name: str, gpu: NodeGpu, migs: list[NodeMig], config: PluginConfig) -> dict[str, str]:
    found = _resource(name, len(migs), (gpu.model, "MIG", migs[0].profile), config)
    if migs[0].memory:
        found[f"{name}.memory"] = str(migs[0].memory // _MIB)
    parts = dict(migs[0].parts)
    return found | {f"{name}.{word}": str(parts[part]) for part, word in _PARTS.items() if part in parts}


def family(major: int, minor: int) -> str:
    """The name of the architecture of a compute capability, as GPU feature discovery has it."""
    if (major, minor) == (8, 9):
        return "ada-lovelace"
    if major == 7:
        return "volta" if minor < 5 else "turing"
    names = {1: "tesla", 2: "fermi", 3: "kepler", 5: "maxwell", 6: "pascal", 8: "ampere", 9: "hopper", 10: "blackwell"}
    return (names | {12: "blackwell", 13: "rubin"}).get(major, "undefined")


def _mode(node: NodeGpus) -> str:
    """``graphics`` or ``compute``: what the PCI class of the GPUs says, if they agree."""
    kinds = {gpu.pci_class >> 8 for gpu in node.gpus}
    return {0x0300: "graphics", 0x0302: "compute"}.get(kinds.pop() if len(kinds) == 1 else 0, "unknown")


def _flag(true: bool) -> str:
    return "true" if true else "false"


def value(text: str) -> str:
    """*text* as the value of a label: what may not stand there is left out, blanks become hyphens."""
    kept = "".join([c for c in text if c.isascii() and (c.isalnum() or c in "-_. ")])
    return "-".join(kept.split())[:_MAX_VALUE].strip("-_.")


def machine_type(path: str) -> str:
    """The product name in the file *path*; empty when there is none."""
    try:
        return read_text(path).strip()
    except OSError:
        return ""


def write_features(path: str, labels: Mapping[str, str]) -> None:
    """Write *labels* to the file *path* in one step; ``-`` is stdout.  Raises :class:`GpurunError`."""
    text = "".join([f"{name}={text}\n" for name, text in sorted(labels.items())])
    if path == "-":
        write_document(text)
        return
    try:
        if os.path.lexists(path) and not stat.S_ISREG(os.lstat(path).st_mode):
            raise GpurunError(f"{path} is not a regular file and is not replaced: name another, or - for stdout")
        os.makedirs(os.path.dirname(path), 0o755, exist_ok=True)
        # NFD reads every file of the directory whose name does not begin with a dot.
        write_atomically(path, text.encode(), 0o644, durable=True)
    except OSError as e:
        raise GpurunError(f"write {path}: {strerror_lower(e.errno or 0)}") from None


#: Where Node Feature Discovery notes which labels of a node are its own, by names with commas between them.
_NFDS = "nfd.node.kubernetes.io/feature-labels"


def labels_left(metadata: Mapping[str, Any]) -> dict[str, str | None]:
    """What takes our labels from the node with *metadata*; those that Node Feature Discovery has written stay its own."""
    now = metadata.get("labels") or {}
    told = {name: None for name in (f"{PREFIX}/mig.config.state", f"{PREFIX}/gpurun.paused") if name in now}
    return patch_of(now, {}, NAMES, others_of(metadata)) | told


def others_of(metadata: Mapping[str, Any]) -> frozenset[str]:
    """The names of the labels of the node with *metadata* that Node Feature Discovery has written."""
    return frozenset(str((metadata.get("annotations") or {}).get(_NFDS, "")).split(","))


def patch_of(
    now: Mapping[str, str], wanted: Mapping[str, str], makers: Sequence[str] = NAMES, others: frozenset[str] = frozenset()
) -> dict[str, str | None]:
    """What to change at a node with the labels *now*: those of ours that are not *wanted* go.

    Ours are those of *makers*, but for *others*, which another program maintains.
    """
    changes: dict[str, str | None] = {name: text for name, text in wanted.items() if now.get(name) != text}
    names = tuple([label for row in makers_of(makers) for label in label_names(row)])
    nvidias = NVIDIA in makers
    for name in now:
        if name in wanted or name in others:
            continue
        if is_label(name, names) or (nvidias and name.startswith(OWN) and not name.startswith(_NOT_OURS)):
            changes[name] = None
    return changes
