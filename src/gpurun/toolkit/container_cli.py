"""``nvidia-container-cli``: what LXC, Incus, enroot, Apptainer and older containerd clients put GPUs into a container with.

The options say what NVIDIA's variables say (``--device`` is ``NVIDIA_VISIBLE_DEVICES`` and so on), so a request takes the
same road from here on.  Exit code 1 with ``nvidia-container-cli: <stage> error: <why>`` for everything that goes wrong.
"""

from __future__ import annotations

import argparse
import os
import sys

from gpurun import __version__
from gpurun.errors import ConfigError, GpuError, GpurunError, oserror_text
from gpurun.hook.driver import Driver, read_driver, roots_from_environment
from gpurun.hook.gpu import gpu_edits
from gpurun.hook.prestart import apply_here, apply_in, container_cgroup
from gpurun.hook.request import CAPABILITIES, Policy
from gpurun.hook.settings import COMPAT_MODES, NO_IMEX_NODES, Settings
from gpurun.record import replace
from gpurun.toolkit.inventory import INTERFACE_VERSION, NvmlAnswer, ask_nvml, cuda_version

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, NoReturn

    from gpurun.hook.edits import ContainerEdits

_COMMANDS = ("info", "list", "configure")
_CAPABILITY_FLAGS = (
    ("-c", "compute"), ("-u", "utility"), ("-v", "video"), ("-g", "graphics"), ("-D", "display"), ("", "ngx"),
    ("", "compat32"),
)  # fmt: skip


class StageError(GpurunError):
    """What went wrong, and in which stage NVIDIA's program would have said so."""

    def __init__(self, stage: str, text: str) -> None:
        known = text.startswith(f"{stage} error: ")
        super().__init__(text if known else f"{stage} error: {text}")


class _Parser(argparse.ArgumentParser):
    """Exits with 1 on a wrong command line, as programs that use argp do there; long options may be abbreviated."""

    def error(self, message: str) -> NoReturn:
        sys.stderr.write(f"{self.prog}: {message}\nTry `{self.prog} --help' for more information.\n")
        sys.exit(1)


def main(argv: list[str]) -> int:
    """*argv* is the command line without the program's name; returns the exit code."""
    try:
        return _run(argv)
    except OSError as e:
        text = oserror_text(e)
    except GpurunError as e:
        text = str(e)
    sys.stderr.write(f"nvidia-container-cli: {text}\n")
    return 1


def _run(argv: list[str]) -> int:
    split = next((i for i, word in enumerate(argv) if word in _COMMANDS), len(argv))
    options = _globals().parse_args(_optional_user(argv[:split]))
    if options.version:
        sys.stdout.write(version_text())
        return 0
    if split == len(argv):
        _globals().error("a command is missing: info, list or configure")
    command, words = argv[split], argv[split + 1 :]
    if command == "info":
        return _info(options, words)
    return _list(options, words) if command == "list" else _configure(options, words)


def version_text() -> str:
    """Scripts read the first two lines; they are the version of the interface."""
    return f"cli-version: {INTERFACE_VERSION}\nlib-version: {INTERFACE_VERSION}\nbuild: gpurun {__version__}\n"


def _optional_user(words: list[str]) -> list[str]:
    """``--user`` and ``-u`` have an optional value, which only ``=`` or the same word can give."""
    return [f"{w}=" if w in ("--user", "--use", "--us") else "--user=" if w == "-u" else w for w in words]


def _globals() -> argparse.ArgumentParser:
    parser = _Parser("nvidia-container-cli", usage="%(prog)s [OPTION...] info|list|configure [ARG...]")
    parser.add_argument("-k", "--load-kmods", action="store_true", help="have missing device nodes made")
    parser.add_argument("-n", "--no-pivot", action="store_true", help="ignored: no program of the container is run")
    parser.add_argument("-d", "--debug", metavar="FILE", help="ignored")
    parser.add_argument("-r", "--root", metavar="PATH", default="/", help="the driver root")
    parser.add_argument("-l", "--ldcache", metavar="FILE", help="read this loader's cache of the driver root")
    parser.add_argument("-u", "--user", metavar="UID[:GID]", help="ignored: nothing of the driver runs in this process")
    parser.add_argument("--no-create-imex-channels", action="store_true", help="make no nodes of channels")
    parser.add_argument("-V", "--version", action="store_true", help="print the version")
    return parser


def _environment() -> dict[str, str]:
    return dict(os.environ)


def _driver(options: argparse.Namespace) -> Driver:
    """The whole driver; the errors begin as those of NVIDIA's library do, for those who look for that."""
    env = _environment()
    roots = roots_from_environment(env, options.root)
    try:
        return read_driver(replace(roots, ldcache=options.ldcache or roots.ldcache), CAPABILITIES, env)
    except GpuError as e:
        raise StageError("initialization", _as_nvml(str(e))) from None


def _as_nvml(text: str) -> str:
    for words, said in (
        ("NVIDIA driver not loaded", "nvml error: driver not loaded: "),
        ("driver/library version mismatch", "nvml error: driver/library version mismatch: "),
        ("no NVIDIA driver", _NO_LIBRARY),
        ("NVIDIA libraries not found", _NO_LIBRARY),
    ):
        if words in text:
            return said + text
    return text


_NO_LIBRARY = "load library failed: libnvidia-ml.so.1: cannot open shared object file: no such file or directory: "


def _info(options: argparse.Namespace, words: list[str]) -> int:
    parser = _Parser("nvidia-container-cli info", description="Report information about the driver and devices.")
    parser.add_argument("--csv", action="store_true", help="as comma-separated values")
    chosen = parser.parse_args(words)
    driver = _driver(options)
    answer = ask_nvml(roots_from_environment(_environment(), options.root))
    if answer.problem:
        sys.stderr.write(f"nvidia-container-cli: brand and architecture are not known: {answer.problem}\n")
    sys.stdout.write(info_csv(driver, answer) if chosen.csv else info_text(driver, answer))
    return 0


def info_text(driver: Driver, nvml: NvmlAnswer) -> str:
    """What ``info`` prints: labels in a column of 15."""
    pairs = [("NVRM version", driver.version), ("CUDA version", cuda_version(driver.version, nvml))]
    text = "".join([f"{label + ':':15} {value}\n" for label, value in pairs])
    for row in _rows(driver, nvml):
        text += "\n" + "".join([f"{label + ':':15} {value}\n" for label, value in row])
    return text


def info_csv(driver: Driver, nvml: NvmlAnswer) -> str:
    """What ``info --csv`` prints: two tables."""
    text = f"NVRM version,CUDA version\n{driver.version},{cuda_version(driver.version, nvml)}\n"
    text += "\nDevice Index,Device Minor,Model,Brand,GPU UUID,Bus Location,Architecture\n"
    return text + "".join([",".join([value for _, value in row]) + "\n" for row in _rows(driver, nvml)])


def _rows(driver: Driver, nvml: NvmlAnswer) -> list[list[tuple[str, str]]]:
    rows = []
    for gpu in driver.gpus:
        told = nvml.gpus.get(gpu.bus_id.lower(), {})
        domain, _, rest = gpu.bus_id.partition(":")
        rows.append(
            [
                ("Device Index", str(gpu.index)),
                ("Device Minor", str(gpu.minor)),
                ("Model", gpu.model),
                ("Brand", str(told.get("brand") or "unknown")),
                ("GPU UUID", str(told.get("uuid") or gpu.uuid)),
                ("Bus Location", f"{domain:0>8}:{rest}"),  # as NVML writes it
                ("Architecture", str(told.get("computeCapability") or "unknown")),
            ]
        )
    return rows


def _list(options: argparse.Namespace, words: list[str]) -> int:
    parser = _Parser("nvidia-container-cli list", description="List the parts of the driver that containers get.")
    parser.add_argument("-d", "--device", metavar="ID", action="append", default=[], help="GPUs to list")
    parser.add_argument("-l", "--libraries", action="store_true", help="list libraries")
    parser.add_argument("-b", "--binaries", action="store_true", help="list programs")
    parser.add_argument("-i", "--ipcs", action="store_true", help="list sockets")
    parser.add_argument("--firmwares", action="store_true", help="list firmware")
    parser.add_argument("--compat32", action="store_true", help="list 32-bit libraries too")
    parser.add_argument("--mig-config", metavar="ID", action="append", default=[], help="list what MIG configuration needs")
    parser.add_argument("--mig-monitor", metavar="ID", action="append", default=[], help="list what MIG monitoring needs")
    parser.add_argument("--imex-channel", metavar="ID", action="append", default=[], help="IMEX channels to list")
    parser.add_argument("--no-persistenced", action="store_true", help="leave out the socket of nvidia-persistenced")
    parser.add_argument("--no-fabricmanager", action="store_true", help="leave out the socket of the fabric manager")
    chosen = parser.parse_args(words)
    if not words:
        chosen.device = ["all"]
        chosen.libraries = chosen.binaries = chosen.ipcs = chosen.firmwares = chosen.compat32 = True
    driver = _driver(options)
    paths = _device_paths(driver, options, chosen.device) if chosen.device else []
    if chosen.mig_config:
        paths.append("/proc/driver/nvidia/capabilities/mig/config")
    if chosen.mig_monitor:
        paths.append("/proc/driver/nvidia/capabilities/mig/monitor")
    if chosen.imex_channel:
        numbers = [n for value in chosen.imex_channel for n in value.split(",") if n.isdigit()]
        paths += [f"/dev/nvidia-caps-imex-channels/channel{n}" for n in numbers]
    files = [f for f in driver.files if not _left_out(f.path, chosen)]
    if chosen.binaries:
        paths += [f.path for f in files if f.kind == "binary"]
    if chosen.libraries:
        paths += [lib.path for lib in driver.libraries if not lib.compat32]
        paths += [lib.path for lib in driver.libraries if lib.compat32] if chosen.compat32 else []
    if chosen.ipcs:
        paths += [f.path for f in files if f.kind in ("socket", "mps")]
    if chosen.firmwares:
        paths += [f.path for f in files if f.kind == "firmware"]
    sys.stdout.write("".join([f"{path}\n" for path in paths]))
    return 0


def _left_out(path: str, chosen: argparse.Namespace) -> bool:
    return (chosen.no_persistenced and "nvidia-persistenced/" in path) or (
        chosen.no_fabricmanager and "nvidia-fabricmanager/" in path
    )


def _device_paths(driver: Driver, options: argparse.Namespace, devices: list[str]) -> list[str]:
    """The control nodes, the nodes of the GPUs, and the MIG capability files of *devices*."""
    edits = _edits(options, {"NVIDIA_VISIBLE_DEVICES": ",".join(devices), "NVIDIA_DRIVER_CAPABILITIES": "compute,utility"})
    control = {n.path for n in driver.nodes}
    nodes = [n.path for n in edits.device_nodes if "/nvidia-caps/" not in n.path]
    paths = [p for p in nodes if p in control] + [p for p in nodes if p not in control]
    for tree in edits.proc_trees:
        paths += [f.path for f in (*tree.files,) if f.path.endswith("/access")]
        paths += [b.container_path for b in tree.binds if b.container_path.endswith("/access")]
    return paths


def _edits(options: argparse.Namespace, variables: dict[str, str], compat: str = "ldconfig") -> ContainerEdits:
    """The edits for a container whose environment had *variables*: whoever calls this program may ask for everything."""
    env = tuple([f"{name}={value}" for name, value in variables.items()])
    settings = Settings(
        policy=Policy(),
        driver_root=options.root,
        cuda_compat_mode=compat,
        ldcache=options.ldcache or "",
        features=(NO_IMEX_NODES,) if options.no_create_imex_channels else (),
    )
    try:
        edits = gpu_edits(env, {}, True, _environment(), settings, prepare=options.load_kmods)
    except GpuError as e:
        stage = "device" if "unknown device" in str(e) else "initialization"
        text = str(e).replace("process.env NVIDIA_VISIBLE_DEVICES", "--device")
        raise StageError(stage, text if stage == "device" else _as_nvml(text)) from None
    except ConfigError as e:
        stage = "requirement" if "requirement error: " in str(e) else "input"
        text = str(e)
        raise StageError(stage, text[text.find("requirement error: ") :] if stage == "requirement" else text) from None
    if edits is None:
        raise StageError("input", "no device is asked for: --device=ID, or --device=none for the driver alone")
    return edits


def _configure(options: argparse.Namespace, words: list[str]) -> int:
    chosen = _configure_parser().parse_args(words)
    if not chosen.rootfs.startswith("/") or os.path.normpath(chosen.rootfs) == "/":
        raise StageError("input", f"invalid rootfs directory: {chosen.rootfs} must be an absolute path and not /")
    compat = "disabled" if chosen.no_cntlibs else chosen.cuda_compat_mode
    edits = _without(_edits(options, request_variables(chosen), compat), chosen)
    for warning in edits.warnings:
        sys.stderr.write(f"nvidia-container-cli: {warning}\n")
    try:
        if chosen.pid:
            apply_in(chosen.pid, chosen.rootfs, edits)
        else:
            apply_here(chosen.rootfs, edits)
    except FileNotFoundError as e:
        raise StageError("container", oserror_text(e)) from None
    except GpurunError as e:
        raise StageError("mount", str(e)) from None
    if chosen.pid and not chosen.no_cgroups:
        from gpurun.hook.devcgroup import allow_devices

        try:
            warning = allow_devices(container_cgroup(chosen.pid), edits.device_nodes)
        except GpurunError as e:
            raise StageError("mount", str(e)) from None
        if warning:
            sys.stderr.write(f"nvidia-container-cli: {warning}\n")
    return 0


def _configure_parser() -> argparse.ArgumentParser:
    parser = _Parser("nvidia-container-cli configure", description="Give a container that was made but not started GPUs.")
    parser.add_argument(
        "-p", "--pid", type=int, default=0, help="a process of the container (without: the caller's namespaces)"
    )
    parser.add_argument(
        "-d", "--device", metavar="ID", action="append", default=[], help="GPUs by index, UUID or PCI bus id"
    )
    parser.add_argument("-r", "--require", metavar="EXPR", action="append", default=[], help="a requirement, cuda>=12.4")
    parser.add_argument("-l", "--ldconfig", metavar="PATH", help="ignored: gpurun writes the loader's cache itself")
    for short, name in _CAPABILITY_FLAGS:
        flags = [*([short] if short else []), f"--{name}"]
        parser.add_argument(*flags, action="store_true", help=f"capability {name}")
    parser.add_argument("--no-cgroups", action="store_true", help="do not allow the devices in the container's cgroup")
    parser.add_argument("--no-devbind", action="store_true", help="no device nodes")
    parser.add_argument("--mig-config", metavar="ID", action="append", default=[], help="allow the configuration of MIG")
    parser.add_argument("--mig-monitor", metavar="ID", action="append", default=[], help="allow the monitoring of MIG")
    parser.add_argument("--imex-channel", metavar="ID", action="append", default=[], help="IMEX channels")
    parser.add_argument(
        "--cuda-compat-mode",
        metavar="MODE",
        default="ldconfig",
        choices=COMPAT_MODES,
        help="how compatibility libraries get in",
    )
    parser.add_argument("--no-persistenced", action="store_true", help="leave out the socket of nvidia-persistenced")
    parser.add_argument("--no-fabricmanager", action="store_true", help="leave out the socket of the fabric manager")
    parser.add_argument("--no-cntlibs", action="store_true", help="ignore the image's own compatibility libraries")
    parser.add_argument("rootfs", metavar="ROOTFS")
    return parser


def request_variables(chosen: argparse.Namespace) -> dict[str, str]:
    """The variables that ask for what the options of ``configure`` ask for."""
    capabilities = [name for _, name in _CAPABILITY_FLAGS if getattr(chosen, name)]
    variables = {
        "NVIDIA_VISIBLE_DEVICES": ",".join(chosen.device) or "none",
        "NVIDIA_DRIVER_CAPABILITIES": ",".join(capabilities) or "utility",
    }
    variables |= {f"NVIDIA_REQUIRE_{i}": expression for i, expression in enumerate(chosen.require)}
    several: dict[str, list[Any]] = {
        "NVIDIA_MIG_CONFIG_DEVICES": chosen.mig_config,
        "NVIDIA_MIG_MONITOR_DEVICES": chosen.mig_monitor,
        "NVIDIA_IMEX_CHANNELS": chosen.imex_channel,
    }
    return variables | {name: ",".join(values) for name, values in several.items() if values}


def _without(edits: ContainerEdits, chosen: argparse.Namespace) -> ContainerEdits:
    kept = tuple([m for m in edits.mounts if not _left_out(m.container_path, chosen)])
    return replace(
        edits,
        mounts=kept,
        device_nodes=() if chosen.no_devbind else edits.device_nodes,
        forward_compat=None if chosen.no_cntlibs or chosen.cuda_compat_mode == "disabled" else edits.forward_compat,
    )
