"""What the doctor looks at beyond the driver itself: modules, cards bound to others, nodes and their links, MIG, BPF."""

from __future__ import annotations

import posix
from errno import EACCES, EPERM

from gpurun.errors import GpurunError
from gpurun.gpu.host.finding import Finding
from gpurun.gpu.host.reads import HostNode, link_text, read_text
from gpurun.gpu.nvidia.host.gpus import Gpu, read_gpus
from gpurun.gpu.nvidia.host.nodes import read_majors
from gpurun.gpu.nvidia.host.roots import Roots, bus_order, dev_root
from gpurun.gpu.offers import cards
from gpurun.gpu.vendors import VENDORS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping


def modules(roots: Roots) -> list[Finding]:
    """Which modules of the driver are loaded, and whether nouveau is in their way."""
    majors = read_majors(roots)
    found = []
    if "nvidia-modeset" not in majors:
        text = "nvidia-modeset is not loaded: the capability display needs it: `modprobe nvidia-modeset`"
        found.append(Finding("kernel modules", "note", text))
    loaded = {line.split(" ", 1)[0] for line in read_text(f"{roots.sysroot}/proc/modules").splitlines()}
    if "nouveau" in loaded:
        text = "nouveau is loaded: it takes the GPUs; blacklist it (`echo blacklist nouveau > /etc/modprobe.d/nouveau.conf`)"
        found.append(Finding("kernel modules", "note", text))
    if found:
        return found
    shown = ", ".join([f"{name} = {number}" for name, number in sorted(majors.items()) if name.startswith("nvidia")])
    return [Finding("kernel modules", "ok", f"majors: {shown}")]


def other_cards(roots: Roots) -> list[Finding]:
    """NVIDIA's display controllers that another driver has."""
    found = []
    for card in cards(roots.sysroot, VENDORS[:1]):
        if card.driver not in ("", *card.vendor.modules):
            text = f"the card {card.pci} is bound to {card.driver}: containers cannot have it"
            found.append(Finding("GPUs", "note", text))
    return found


def lost_cards(roots: Roots) -> list[Finding]:
    """NVIDIA's display controllers that its driver has not, or has no more, and no other driver has."""
    known = {bus_order(gpu.bus_id) for gpu in read_gpus(roots)}
    found = []
    for card in cards(roots.sysroot, VENDORS[:1]):
        ours = card.driver in ("", *card.vendor.modules)
        virtual = link_text(f"{roots.sysroot}/sys/bus/pci/devices/{card.pci}/physfn")  # a part of a GPU, for a machine
        if known and ours and not virtual and bus_order(card.pci) not in known:
            text = f"the card {card.pci} is on the PCI bus, and the driver does not have it: `dmesg` says why (NVRM, Xid)"
            found.append(Finding("GPUs", "fail" if card.driver else "note", text))
    return found


def nodes(roots: Roots, control: tuple[HostNode, ...]) -> list[Finding]:
    """Whether the nodes are there and are what they should be, and whether systemd can find them."""
    try:
        gpus = read_gpus(roots)
    except GpurunError as e:
        return [Finding("device nodes", "fail", str(e))]
    every = (*control, *[g.node for g in gpus])
    missing = [n.path for n in every if not n.exists]
    if missing:
        text = (
            f"the host lacks {', '.join(missing)}: containers get them all the same, but not those with a user namespace: "
            "`nvidia-modprobe -c 0 -u` makes them"
        )
        return [Finding("device nodes", "note", text)]
    return [Finding("device nodes", "ok", "all there"), *_links(roots, every)]


def _links(roots: Roots, every: tuple[HostNode, ...]) -> list[Finding]:
    """systemd looks a device up as /dev/char/MAJOR:MINOR when it applies DeviceAllow anew."""
    char = f"{dev_root(roots)}/dev/char"
    lacking = [n.path for n in every if not _leads_to(f"{char}/{n.major}:{n.minor}", n)]
    if not lacking:
        return [Finding("/dev/char", "ok", "every node has its link")]
    text = (
        f"no link to {', '.join(lacking)}: runtimes that name nodes to systemd by path lose them at a daemon-reload (gpurun "
        "names numbers): `nvidia-ctk system create-dev-char-symlinks` makes the links"
    )
    return [Finding("/dev/char", "note", text)]


def _leads_to(path: str, node: HostNode) -> bool:
    try:
        found = posix.stat(path)
    except OSError:
        return False
    return found.st_rdev == posix.makedev(node.major, node.minor)


def mig(roots: Roots) -> list[Finding]:
    """Whether the MIG devices of this host can be given to containers."""
    try:
        divided = [gpu for gpu in read_gpus(roots) if gpu.mig]
    except GpurunError:
        return []  # said of the nodes
    return [_mig_of(gpu) for gpu in divided]


def _mig_of(gpu: Gpu) -> Finding:
    listed = ", ".join([f"{device.gi}/{device.ci}" for device in gpu.mig])
    lacking = [f"{d.gi}/{d.ci}" for d in gpu.mig if len(d.nodes) < 2]
    if lacking:
        text = f"GPU {gpu.index}: no capability nodes are known for {', '.join(lacking)}: `nvidia-modprobe -m`"
        return Finding("MIG", "fail", text)
    absent = [n.path for d in gpu.mig for n in d.nodes if not n.exists]
    if absent:
        text = f"GPU {gpu.index}: the host lacks {', '.join(dict.fromkeys(absent))}: `nvidia-modprobe -f` makes them"
        return Finding("MIG", "note", text)
    return Finding("MIG", "ok", f"GPU {gpu.index} is divided into {listed}")


def cdi_files(env: Mapping[str, str]) -> list[Finding]:
    """The CDI files of this host: those that no runtime can read, and those of another driver than the loaded one."""
    from gpurun.cdi.files import read_registry
    from gpurun.gpu.nvidia.cdi.named_devices import spec_dirs
    from gpurun.gpu.nvidia.cdi.stale import stale_files
    from gpurun.gpu.nvidia.request.settings import roots_of, site_settings

    try:
        settings = site_settings(env)
        registry = read_registry(spec_dirs(settings, env))
        stale = stale_files(registry, roots_of(env, settings))
    except GpurunError as e:
        return [Finding("CDI", "note", str(e))]
    found = [Finding("CDI", "note", text) for text in stale]
    found += [Finding("CDI", "note", text) for _, text in registry.errors]
    if registry.files and not found:
        return [Finding("CDI", "ok", f"{len(registry.files)} files, {len(registry.devices)} devices")]
    return found


def device_program() -> Finding:
    """Whether a device program can be loaded here: what gpurun attaches to every container's cgroup."""
    from gpurun.cgroup.devices import device_program as compiled
    from gpurun.linux.bpf import prog_load

    try:
        fd = prog_load(compiled(()))
    except OSError as e:
        if e.errno in (EPERM, EACCES):
            if posix.geteuid():
                return Finding("BPF", "note", "not root: a container made like this cannot have its devices filtered")
            text = "may not load a device program: CAP_BPF and CAP_SYS_ADMIN are missing, or seccomp forbids bpf(2)"
            return Finding("BPF", "fail", text)
        return Finding(
            "BPF", "fail", f"a device program cannot be loaded: {e.strerror}: is CONFIG_CGROUP_BPF in this kernel?"
        )
    posix.close(fd)
    return Finding("BPF", "ok", "a device program can be loaded")
