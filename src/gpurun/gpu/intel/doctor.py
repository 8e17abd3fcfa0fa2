"""What Intel's GPUs and accelerators need of the host: every node there, and groups that let users open them."""

from __future__ import annotations

from gpurun.gpu.host.drm import devices_of_driver
from gpurun.gpu.host.finding import Finding
from gpurun.gpu.host.node_doctor import examine_groups, examine_nodes
from gpurun.gpu.host.reads import exists
from gpurun.gpu.intel.gaudi import DRIVER as HABANALABS
from gpurun.gpu.intel.gaudi import accelerators
from gpurun.gpu.intel.host import DRIVERS, INTEL, intel_gpus

_GPUS, _NODES, _GROUPS = "Intel's GPUs", "Intel's device nodes", "groups of Intel's nodes"
_GAUDI, _GAUDI_NODES, _GAUDI_GROUPS = "Gaudi", "Gaudi's device nodes", "groups of Gaudi's nodes"
_CLOSED = "this user cannot open all"


def examine(sysroot: str) -> list[Finding]:
    """The findings for the host below *sysroot*, which has i915, xe or habanalabs, and the user who calls.

    Changes nothing.
    """
    loaded = [name for name in DRIVERS if exists(f"{sysroot}/sys/bus/pci/drivers/{name}")]
    found = _examine_gpus(sysroot, loaded) if loaded else []
    return found + (_examine_gaudi(sysroot) if exists(f"{sysroot}/sys/bus/pci/drivers/{HABANALABS}") else [])


def _examine_gpus(sysroot: str, loaded: list[str]) -> list[Finding]:
    found = [Finding("Intel's drivers", "ok", f"{' and '.join(loaded)} loaded")]
    gpus = intel_gpus(sysroot)
    if gpus:
        text = ", ".join([f"{gpu.index} = {gpu.model} ({gpu.key})" for gpu in gpus])
        found.append(Finding(_GPUS, "ok", f"{len(gpus)}: {text}"))
    else:
        text = "none has device nodes: is one in the machine (`lspci -d 8086::0300`, `::0380`), and what does `dmesg` say?"
        found.append(Finding(_GPUS, "fail", text))
    found += [
        Finding(_GPUS, "note", f"{one.name} is divided: containers get its virtual functions ({one.functions}), not itself")
        for driver in loaded
        for one in devices_of_driver(sysroot, driver)
        if one.vendor == INTEL and one.functions
    ]
    if not gpus:
        return found
    cards = [gpu.drm.card for gpu in gpus if gpu.drm.card is not None]
    computing = [gpu.drm.render for gpu in gpus if gpu.drm.render is not None]
    trigger, rule = _udev("drm", "renderD*")
    nodes = examine_nodes(_NODES, computing, cards, trigger, rule, _CLOSED)
    return [*found, *nodes, examine_groups(_GROUPS, computing, rule)]


def _examine_gaudi(sysroot: str) -> list[Finding]:
    known = accelerators(sysroot)
    if not known:
        text = f"{HABANALABS} is loaded and has no accelerator with device nodes: `dmesg` may say why"
        return [Finding(_GAUDI, "fail", text)]
    text = ", ".join([f"{gaudi.index} = {gaudi.pci}" for gaudi in known])
    nodes = [node for gaudi in known for node in gaudi.nodes]
    trigger, rule = _udev("accel", "accel*")
    found = [Finding(_GAUDI, "ok", f"{len(known)}: {text}")]
    return [
        *found,
        *examine_nodes(_GAUDI_NODES, nodes, (), trigger, rule, _CLOSED),
        examine_groups(_GAUDI_GROUPS, nodes, rule),
    ]


def _udev(subsystem: str, kernel: str) -> tuple[str, str]:
    """(what has udev make the nodes, what gives them to a group)."""
    trigger = f"`udevadm trigger --subsystem-match={subsystem}`"
    rule = f'SUBSYSTEM=="{subsystem}", KERNEL=="{kernel}", GROUP="render", MODE="0660"'
    return trigger, f"`echo '{rule}' > /etc/udev/rules.d/70-{subsystem}.rules` and {trigger}"
