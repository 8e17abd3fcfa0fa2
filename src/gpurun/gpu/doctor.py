"""Is this host fit for GPU containers?  Looks at everything a container would need and says what is wrong and what to do."""

from __future__ import annotations

import posix

from gpurun.errors import GpurunError
from gpurun.gpu.doctor_host import cdi_files, device_program, lost_cards, mig, modules, nodes, other_cards
from gpurun.gpu.doctor_platform import platform
from gpurun.gpu.host.finding import Finding
from gpurun.gpu.host.reads import exists
from gpurun.gpu.nvidia.host.driver import Driver, module_version, read_driver
from gpurun.gpu.nvidia.host.gpus import read_gpus
from gpurun.gpu.nvidia.host.health import unwell
from gpurun.gpu.nvidia.host.libraries import installed_versions, open_driver_root
from gpurun.gpu.nvidia.host.nvml import USAGE, find_nvml, query
from gpurun.gpu.nvidia.host.roots import Roots, driver_root_path
from gpurun.gpu.nvidia.platforms.platform import detect
from gpurun.gpu.nvidia.request.settings import read_settings, settings_path
from gpurun.gpu.offers import cards, idle_cards, no_card
from gpurun.gpu.vendors import VENDORS, module, present
from gpurun.linux.files import Fd

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from gpurun.gpu.nvidia.host.gpus import Gpu
    from gpurun.gpu.vendors import Vendor

#: What errors of the driver end with, and need not say here.
_HINTS = (": `gpurun gpu doctor` says more", ", and `gpurun gpu doctor` says what is missing")


def examine(env: Mapping[str, str]) -> tuple[Finding, ...]:
    """All findings for this host; *env* is gpurun's own environment (GPURUN_SYSROOT).  Changes nothing, raises nothing."""
    found, roots = _settings(env)
    others = [vendor.name for vendor in VENDORS if vendor.examined and _drives_some(vendor, env)]
    concerned = _concerns_nvidia(roots)
    if concerned:
        found += platform(roots, env) or _nvidia(roots)
    for name in others:
        found += module(name, "doctor").examine(roots.sysroot)
    idle = [Finding("GPUs", "note" if concerned or others else "fail", text) for text in _idle(env, concerned)]
    found += idle or ([] if concerned or others else [_nothing(roots)])
    found += cdi_files(env) + [_device_cgroup(), device_program()]
    return tuple(found)


def _drives_some(vendor: Vendor, env: Mapping[str, str]) -> bool:
    """Whether a driver of *vendor*'s is loaded, one of its GPUs or of its accelerators."""
    path = vendor.accelerators[1]
    return vendor in present(env) or bool(path and exists(env.get("GPURUN_SYSROOT", "").rstrip("/") + path))


def _concerns_nvidia(roots: Roots) -> bool:
    """Whether this host has anything of NVIDIA's: a card, a driver or part of one, or a root for one in its settings."""
    if module_version(roots) or cards(roots.sysroot, VENDORS[:1]) or detect(roots) or roots.driver_root != "/":
        return True
    try:
        root = open_driver_root(driver_root_path(roots), posix.uname().machine, roots.ldcache, roots.library_dirs)
    except GpurunError:
        return True  # what is wrong is reported there
    with Fd(root.fd):
        return bool(installed_versions(root))


def _idle(env: Mapping[str, str], nvidia_told: bool) -> list[str]:
    """Sentences about cards that no driver of their maker's has; those of NVIDIA's are reported with its driver."""
    return list(idle_cards(env, VENDORS[1:] if nvidia_told else VENDORS))


def _nothing(roots: Roots) -> Finding:
    return Finding("GPUs", "fail", f"{no_card(roots.sysroot)}, and no driver of theirs is loaded or installed")


def _nvidia(roots: Roots) -> list[Finding]:
    version = module_version(roots)
    found = [
        Finding("kernel module", "ok", f"version {version}")
        if version
        else Finding("kernel module", "fail", f"not loaded ({roots.sysroot}/proc/driver/nvidia/version): `modprobe nvidia`")
    ]
    utility = _read(roots, ("utility",))
    found.append(_libraries(utility))
    compute = _read(roots, ("compute",))
    if isinstance(utility, Driver):
        found += _gpus(roots) + other_cards(roots) + lost_cards(roots) + modules(roots) + [_compute(compute)]
        found += nodes(roots, compute.nodes if isinstance(compute, Driver) else utility.nodes) + mig(roots)
        found += _params(utility) + _persistence(utility) + [_checkpoint(version)]
    return found


def node_paths(env: Mapping[str, str]) -> tuple[str, ...]:
    """Where the device nodes are that containers get, as far as the driver can be read."""
    roots = _settings(env)[1]
    found = [_read(roots, (capability,)) for capability in ("compute", "utility")]
    control = next((one.nodes for one in found if isinstance(one, Driver)), ())
    try:
        gpus = read_gpus(roots)
    except GpurunError:
        gpus = ()
    return tuple([node.host_path for node in (*control, *[gpu.node for gpu in gpus])])


def _settings(env: Mapping[str, str]) -> tuple[list[Finding], Roots]:
    path = settings_path(env)
    mistakes: list[str] = []
    try:
        settings = read_settings(path, mistakes)
    except GpurunError as e:  # not TOML, or not to be read
        mistakes.append(str(e))
    if mistakes:
        return [Finding("configuration", "fail", text) for text in mistakes], Roots(sysroot=env.get("GPURUN_SYSROOT", ""))
    roots = Roots(settings.driver_root, env.get("GPURUN_SYSROOT", "").rstrip("/"))
    found = [Finding("configuration", "note", text) for text in settings.warnings]
    if not settings.policy.accept_envvar_when_unprivileged:
        text = f"{path}: unprivileged containers get no GPU, whatever their environment asks"
        found.append(Finding("configuration", "note", text))
    found = found or [Finding("configuration", "ok", f"driver root {roots.sysroot}{roots.driver_root}")]
    return found, roots


def _read(roots: Roots, capabilities: tuple[str, ...]) -> Driver | str:
    try:
        return read_driver(roots, capabilities)
    except GpurunError as e:
        text = str(e)
        for hint in _HINTS:
            text = text.removesuffix(hint)
        return text


def _libraries(driver: Driver | str) -> Finding:
    if isinstance(driver, str):
        return Finding("libraries", "fail", driver)
    library = driver.libraries[0].host_path if driver.libraries else ""
    return Finding("libraries", "ok", f"version {driver.version}, {library.rpartition('/')[0]}")


def _gpus(roots: Roots) -> list[Finding]:
    gpus = read_gpus(roots)
    if not gpus:
        text = "the driver has no GPU: is one in the machine (lspci -d 10de:), and is it bound to vfio-pci or nouveau?"
        return [Finding("GPUs", "fail", text)]
    found = [Finding("GPUs", "ok", f"{len(gpus)}: " + ", ".join([f"{g.index} = {g.model}" for g in gpus]))]
    found += [Finding("GPUs", "fail", f"GPU {g.index} is unhealthy: {ill}") for g, ill in _unwell(roots, gpus)]
    nameless = [str(g.index) for g in gpus if "?" in g.uuid]
    if nameless:
        text = f"GPU {', '.join(nameless)} has no UUID yet: run nvidia-smi once, or nvidia-persistenced always"
        found.append(Finding("GPUs", "note", text))
    return found


def _unwell(roots: Roots, gpus: tuple[Gpu, ...]) -> list[tuple[Gpu, str]]:
    answer = None
    try:
        answer = query(find_nvml(roots), USAGE)
    except GpurunError:
        pass  # then the bus and the kernel's log say what they know
    ill = unwell(roots, gpus, answer, silent=answer is None)
    what = "`dmesg` says more (NVRM, Xid); reset it (`nvidia-smi -r -i {}`) or reboot"
    known = [(gpu, ill.get(gpu.bus_id.lower(), "")) for gpu in gpus]
    return [(gpu, f"{why}: {what.format(gpu.bus_id)}") for gpu, why in known if why]


def _compute(driver: Driver | str) -> Finding:
    if isinstance(driver, str):
        return Finding("CUDA", "fail", driver)
    return Finding("CUDA", "ok", "libcuda and nvidia-uvm are there")


def _params(driver: Driver) -> list[Finding]:
    if any(f.name == "params" for f in driver.proc_files):
        return []
    return [
        Finding("/proc/driver/nvidia/params", "note", "cannot be read: programs in containers may try to make device nodes")
    ]


def _persistence(driver: Driver) -> list[Finding]:
    if any("nvidia-persistenced" in file.path and file.kind == "socket" for file in driver.files):
        return []
    text = "nvidia-persistenced does not run: an idle GPU is initialised anew by each first program, up to seconds"
    return [Finding("persistence", "note", text)]


def _checkpoint(version: str) -> Finding:
    from gpurun.gpu.nvidia.cuda_checkpoint import missing

    lacks = missing(version)
    if not lacks:
        return Finding("checkpoint", "ok", "cuda-checkpoint and CRIU's CUDA plugin are there")
    return Finding("checkpoint", "note", f"programs that compute cannot be checkpointed: missing {', '.join(lacks)}")


def _device_cgroup() -> Finding:
    from gpurun.cgroup.tree import UNIFIED_MOUNTPOINT, find_tree

    try:
        tree = find_tree()
    except GpurunError as e:
        return Finding("cgroup", "fail", str(e))
    if tree.root != UNIFIED_MOUNTPOINT:
        text = f"version 2 is at {tree.root}: other runtimes filter devices by version 1, which the hook cannot extend"
        return Finding("cgroup", "note", text)
    return Finding("cgroup", "ok", "version 2 at /sys/fs/cgroup")
