"""``nvidia-container-cli``: what LXC, Incus, enroot, Apptainer and older containerd clients put GPUs into a container with.

The options say what NVIDIA's variables say (``--device`` is ``NVIDIA_VISIBLE_DEVICES`` and so on), so a request takes the
same way from here on.  Exit code 1 with ``nvidia-container-cli: <stage> error: <why>`` for everything that goes wrong.
"""

from __future__ import annotations

import argparse
import os

from gpurun import __version__
from gpurun.errors import ConfigError, GpuError, GpurunError, oserror_text
from gpurun.gpu.nvidia.cdi.known_hooks import INTERFACE_VERSION
from gpurun.gpu.nvidia.request.records import Policy
from gpurun.gpu.nvidia.request.settings import COMPAT_MODES, NO_IMEX_NODES, Settings
from gpurun.gpu.resolve import Inquiry, gpu_edits, no_check
from gpurun.hook.prestart import apply_here, apply_in, container_cgroup
from gpurun.output import write_stderr, write_stdout
from gpurun.record import replace
from gpurun.toolkit.container_driver import (
    Parser,
    StageError,
    add_left_out,
    as_nvml,
    asks_for_all,
    device_ids,
    driver_of,
    is_left_out,
    own_environment,
    roots_of,
)
from gpurun.toolkit.inventory import NvmlAnswer, ask_nvml, cuda_version

TYPE_CHECKING = False
if TYPE_CHECKING:
    from gpurun.cdi.edits import ContainerEdits
    from gpurun.gpu.nvidia.host.driver import Driver

_COMMANDS = ("info", "list", "configure")
_CAPABILITY_FLAGS = (
    ("-c", "compute"), ("-u", "utility"), ("-v", "video"), ("-g", "graphics"), ("-D", "display"), ("-n", "ngx"),
    ("", "compat32"),
)  # fmt: skip
#: Stage of an error, and the words of ours that belong there.
_MIG_ADMIN = tuple([(stage, f"cannot enable {stage} with specific MIG devices") for stage in ("mig-config", "mig-monitor")])
#: Brands as NVML has them (in small letters, as in NVIDIA_REQUIRE_*) → as NVIDIA's program writes them.
_BRANDS = {
    brand.lower(): brand
    for brand in (
        "Quadro", "Tesla", "NVS", "GRID", "GeForce", "TITAN", "NvidiaVApps", "NvidiaVPC", "NvidiaVCS", "NvidiaVWS",
        "NvidiaCloudGaming", "QuadroRTX", "NvidiaRTX", "Nvidia", "GeForceRTX", "TitanRTX",
    )
}  # fmt: skip


def main(argv: list[str]) -> int:
    """*argv* is the command line without the program's name; returns the exit code."""
    try:
        return _run(argv)
    except OSError as e:
        text = oserror_text(e)
    except GpurunError as e:
        text = str(e)
    write_stderr(f"nvidia-container-cli: {text}")
    return 1


def _run(argv: list[str]) -> int:
    split = next((i for i, word in enumerate(argv) if word in _COMMANDS), len(argv))
    options = _globals().parse_args(_optional_user(argv[:split]))
    if options.version:
        write_stdout(version_text())
        return 0
    if split == len(argv):
        _globals().error("a command is missing: info, list or configure")
    command, words = argv[split], argv[split + 1 :]
    if command == "info":
        return _info(options, words)
    if command == "list":
        from gpurun.toolkit.container_list import list_command

        return list_command(options, words)
    return _configure(options, words)


def version_text() -> str:
    """Scripts read the first two lines; they are the version of the interface."""
    return f"cli-version: {INTERFACE_VERSION}\nlib-version: {INTERFACE_VERSION}\nbuild: gpurun {__version__}\n"


def _optional_user(words: list[str]) -> list[str]:
    """``--user`` and ``-u`` have an optional value, which only ``=`` or the same word can give."""
    return [f"{w}=" if w in ("--user", "--use", "--us") else "--user=" if w == "-u" else w for w in words]


def _globals() -> argparse.ArgumentParser:
    parser = Parser("nvidia-container-cli", usage="%(prog)s [OPTION...] info|list|configure [ARG...]")
    parser.add_argument("-k", "--load-kmods", action="store_true", help="have missing device nodes made")
    parser.add_argument("-n", "--no-pivot", action="store_true", help="ignored: no program of the container is run")
    parser.add_argument("-d", "--debug", metavar="FILE", help="ignored")
    parser.add_argument("-r", "--root", metavar="PATH", default="/", help="the driver root")
    parser.add_argument("-l", "--ldcache", metavar="FILE", help="read this loader's cache of the driver root")
    parser.add_argument("-u", "--user", metavar="UID[:GID]", help="ignored: nothing of the driver runs in this process")
    parser.add_argument("--no-create-imex-channels", action="store_true", help="make no nodes of channels")
    parser.add_argument("-V", "--version", action="store_true", help="print the version")
    return parser


def _info(options: argparse.Namespace, words: list[str]) -> int:
    chosen = _info_parser().parse_args(words)
    driver = driver_of(options)
    answer = ask_nvml(roots_of(options))
    if answer.problem:
        write_stderr(f"nvidia-container-cli: brand and architecture are not known: {answer.problem}")
    write_stdout(info_csv(driver, answer) if chosen.csv else info_text(driver, answer))
    return 0


def _info_parser() -> argparse.ArgumentParser:
    parser = Parser("nvidia-container-cli info", description="Report information about the driver and devices.")
    parser.add_argument("--csv", action="store_true", help="as comma-separated values")
    return parser


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
        details = nvml.gpus.get(gpu.bus_id.lower(), {})
        domain, _, rest = gpu.bus_id.partition(":")
        rows.append(
            [
                ("Device Index", str(gpu.index)),
                ("Device Minor", str(gpu.minor)),
                ("Model", gpu.model),
                ("Brand", _BRANDS.get(str(details.get("brand")), "Unknown")),
                ("GPU UUID", str(details.get("uuid") or gpu.uuid)),
                ("Bus Location", f"{domain:0>8}:{rest}"),  # as NVML writes it
                ("Architecture", str(details.get("computeCapability") or "unknown")),
            ]
        )
    return rows


def _edits(options: argparse.Namespace, variables: dict[str, str], compat: str) -> ContainerEdits:
    """The edits for a container whose environment had *variables*: whoever calls this program may ask for everything.

    Without NVIDIA_DRIVER_CAPABILITIES it gets nothing of the driver but the nodes, and what procfs shows.
    """
    env = tuple([f"{name}={value}" for name, value in variables.items()])
    settings = Settings(
        policy=Policy() if "NVIDIA_DRIVER_CAPABILITIES" in variables else Policy(supported_capabilities=()),
        driver_root=options.root,
        cuda_compat_mode=compat,
        ldcache=options.ldcache or "",
        features=(NO_IMEX_NODES,) if options.no_create_imex_channels else (),
    )
    try:
        edits = gpu_edits(
            Inquiry(env, {}, True, own_environment(), settings, prepare=no_check if options.load_kmods else None)
        )
    except GpuError as e:
        stage = "device" if "unknown device" in str(e) else "initialization"
        text = str(e).replace("process.env NVIDIA_VISIBLE_DEVICES", "--device")
        raise StageError(stage, text if stage == "device" else as_nvml(text)) from None
    except ConfigError as e:
        text = str(e)
        for stage, words in (("requirement", "requirement error: "), *_MIG_ADMIN):
            if words in text:
                raise StageError(stage, text[text.find(words) :]) from None
        raise StageError("input", text) from None
    if edits is None:
        raise AssertionError("a request without devices")
    return edits


def _configure(options: argparse.Namespace, words: list[str]) -> int:
    chosen = _configure_parser().parse_args(words)
    if not chosen.rootfs.startswith("/") or os.path.normpath(chosen.rootfs) == "/":
        raise StageError("input", f"invalid rootfs directory: {chosen.rootfs} must be an absolute path and not /")
    compat = "disabled" if chosen.no_cntlibs else chosen.cuda_compat_mode
    chosen.device = list(device_ids(chosen.device))
    for stage in ("mig-config", "mig-monitor"):
        name = stage.replace("-", "_")
        setattr(chosen, name, ["all"] if asks_for_all(stage, getattr(chosen, name)) else [])
    variables = request_variables(chosen)
    if "NVIDIA_DRIVER_CAPABILITIES" not in variables:
        driver_of(options, ("utility",))  # NVIDIA's loads NVML in any case, and says so where it cannot
    edits = _without(_edits(options, variables, compat), chosen)
    for warning in edits.warnings:
        write_stderr(f"nvidia-container-cli: {warning}")
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
        from gpurun.hook.device_program import allow_devices

        try:
            warning = allow_devices(container_cgroup(chosen.pid), edits.device_nodes)
        except GpurunError as e:
            raise StageError("mount", str(e)) from None
        if warning:
            write_stderr(f"nvidia-container-cli: {warning}")
    return 0


def _configure_parser() -> argparse.ArgumentParser:
    parser = Parser("nvidia-container-cli configure", description="Give a container that was made but not started GPUs.")
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
    add_left_out(parser)
    parser.add_argument("--no-cntlibs", action="store_true", help="ignore the image's own compatibility libraries")
    parser.add_argument("rootfs", metavar="ROOTFS")
    return parser


def request_variables(chosen: argparse.Namespace) -> dict[str, str]:
    """The variables that ask for what the options of ``configure`` ask for."""
    capabilities = [name for _, name in _CAPABILITY_FLAGS if getattr(chosen, name)]
    variables = {"NVIDIA_VISIBLE_DEVICES": ",".join(chosen.device) or "none"}
    if capabilities:
        variables["NVIDIA_DRIVER_CAPABILITIES"] = ",".join(capabilities)
    variables |= {f"NVIDIA_REQUIRE_{i}": expression for i, expression in enumerate(chosen.require)}
    several: dict[str, list[str]] = {
        "NVIDIA_MIG_CONFIG_DEVICES": chosen.mig_config,
        "NVIDIA_MIG_MONITOR_DEVICES": chosen.mig_monitor,
        "NVIDIA_IMEX_CHANNELS": chosen.imex_channel,
    }
    return variables | {name: ",".join(values) for name, values in several.items() if values}


def _without(edits: ContainerEdits, chosen: argparse.Namespace) -> ContainerEdits:
    kept = tuple([m for m in edits.mounts if not is_left_out(m.container_path, chosen)])
    return replace(
        edits,
        mounts=kept,
        device_nodes=() if chosen.no_devbind else edits.device_nodes,
        forward_compat=None if chosen.no_cntlibs or chosen.cuda_compat_mode == "disabled" else edits.forward_compat,
    )
