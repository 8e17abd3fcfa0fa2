"""What Intel's GPUs and accelerators need of the host: a driver, every node there, groups that let users open them."""

from __future__ import annotations

from gpurun.gpu.host.drm import devices_of_driver, hexadecimal, is_pci_address
from gpurun.gpu.host.finding import Finding
from gpurun.gpu.host.node_doctor import examine_groups, examine_nodes
from gpurun.gpu.host.reads import exists, link_text, names_in, read_attribute
from gpurun.gpu.intel.gaudi import DRIVER as HABANALABS
from gpurun.gpu.intel.gaudi import accelerators
from gpurun.gpu.intel.host import DRIVERS, INTEL, intel_gpus
from gpurun.gpu.intel.survey import off_the_bus
from gpurun.gpu.leases.limits_doctor import examine_limits

_GPUS, _NODES, _GROUPS = "Intel's GPUs", "Intel's device nodes", "groups of Intel's nodes"
_GAUDI, _GAUDI_NODES, _GAUDI_GROUPS = "Gaudi", "Gaudi's device nodes", "groups of Gaudi's nodes"
_CLOSED = "this user cannot open all"
_DISPLAY = ("0x0300", "0x0380")


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
        Finding(_GPUS, "fail", f"{gpu.index} ({gpu.key}) is unhealthy: {ill}") for gpu in gpus if (ill := off_the_bus(gpu))
    ]
    found += _unbound(sysroot) + _find_trouble(sysroot, loaded)
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
    groups = examine_groups(_GROUPS, computing, rule)
    return [*found, *nodes, groups, examine_limits(sysroot, [gpu.key for gpu in gpus])]


def _unbound(sysroot: str) -> list[Finding]:
    """Display controllers of Intel's that no driver has, though one is loaded: newer than the kernel, or not asked for."""
    base, found = f"{sysroot}/sys/bus/pci/devices", []
    for pci in [name for name in names_in(base) if is_pci_address(name)]:
        path = f"{base}/{pci}"
        if hexadecimal(read_attribute(f"{path}/vendor"), 0xFFFF) != INTEL or link_text(f"{path}/driver"):
            continue
        if read_attribute(f"{path}/class")[:6] not in _DISPLAY:
            continue
        device = hexadecimal(read_attribute(f"{path}/device"), 0xFFFF)
        text = (
            f"{pci} (device {device:04x}) has no driver: this kernel's xe and i915 do not take it by themselves; a newer "
            f"kernel may, or `xe.force_probe={device:04x}` on the kernel's command line"
        )
        found.append(Finding(_GPUS, "note", text))
    return found


def _find_trouble(sysroot: str, loaded: list[str]) -> list[Finding]:
    """What the drivers say of GPUs that do not work: in sysfs, as far as it is there.

    Reference: Documentation/gpu/xe/xe_pcode.rst ("Survivability Mode") and devcoredump; i915's ``error``.
    """
    found = []
    for driver in loaded:
        base = f"{sysroot}/sys/bus/pci/drivers/{driver}"
        for pci in [name for name in names_in(base) if is_pci_address(name)]:
            if exists(f"{base}/{pci}/survivability_mode"):
                text = "is in survivability mode: its firmware does not start, and it has no device nodes: `fwupdmgr update`"
                found.append(Finding(_GPUS, "fail", f"{pci} {text} writes it anew"))
            for card in [name for name in names_in(f"{base}/{pci}/drm") if name.startswith("card")]:
                path = f"{base}/{pci}/drm/{card}/error"
                error = read_attribute(path, 64)
                if error and not error.startswith("No error state"):
                    text = (
                        f"{pci} has hung since the driver was loaded: `cat {path}` says where, `echo 1 > {path}` forgets it"
                    )
                    found.append(Finding(_GPUS, "note", text))
    dumps = f"{sysroot}/sys/class/devcoredump"
    for name in [name for name in names_in(dumps) if name.startswith("devcd")]:
        pci = link_text(f"{dumps}/{name}/failing_device").rpartition("/")[2]
        if any(exists(f"{sysroot}/sys/bus/pci/drivers/{driver}/{pci}") for driver in loaded) and is_pci_address(pci):
            text = f"{pci} was reset within the last minutes: `cat {dumps}/{name}/data` says why"
            found.append(Finding(_GPUS, "note", text))
    return found


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
