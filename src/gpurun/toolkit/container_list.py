"""``nvidia-container-cli list``: the paths of what a container with a GPU needs, one a line, in NVIDIA's order."""

from __future__ import annotations

import argparse

from gpurun.decimals import decimal
from gpurun.gpu.host.reads import exists
from gpurun.gpu.nvidia.host.mig import CAPS_DIR, admin_node, read_minors
from gpurun.gpu.nvidia.host.nodes import read_majors
from gpurun.gpu.nvidia.host.roots import PROC, Roots, dev_root
from gpurun.gpu.nvidia.request.extras import MAX_CHANNEL
from gpurun.output import write_document
from gpurun.toolkit.container_driver import (
    Parser,
    StageError,
    add_left_out,
    asks_for_all,
    check_mig_admin,
    device_ids,
    driver_of,
    is_left_out,
    roots_of,
    select_devices,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from gpurun.gpu.nvidia.host.driver import Driver
    from gpurun.gpu.nvidia.request.selection import Selected

_CONTROL = ("/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools", "/dev/nvidia-modeset")
_CHANNEL = "/dev/nvidia-caps-imex-channels/channel"


def list_command(options: argparse.Namespace, words: list[str]) -> int:
    """``list`` with the *options* before it and the *words* after it; returns the exit code."""
    chosen = list_parser().parse_args(words)
    what = (chosen.device, chosen.mig_config, chosen.mig_monitor, chosen.libraries, chosen.binaries, chosen.ipcs)
    if not words or (chosen.imex_channel and not any((*what, chosen.firmwares, chosen.compat32))):
        chosen.device = ["all"]
        chosen.libraries = chosen.binaries = chosen.ipcs = chosen.firmwares = chosen.compat32 = True
    ids, channels = device_ids(chosen.device), _channels(chosen.imex_channel)
    admin = [name for name in ("config", "monitor") if asks_for_all(f"mig-{name}", getattr(chosen, f"mig_{name}"))]
    driver = driver_of(options)
    found = select_devices(driver, options, ids)
    for name in admin:
        check_mig_admin(f"mig-{name}", ids, found)
    roots = roots_of(options)
    divisible = [one for one in found if exists(f"{roots.sysroot}{PROC}/capabilities/gpu{one.gpu.minor}/mig")]
    paths = _device_paths(driver, found, whole=bool(admin and divisible)) if chosen.device else []
    paths += [f"{_CHANNEL}{number}" for number in channels]
    for name in admin if divisible else ():
        paths += _admin_paths(name, divisible, roots)
    write_document("".join([f"{path}\n" for path in paths + _file_paths(driver, chosen)]))
    return 0


def list_parser() -> argparse.ArgumentParser:
    """The options of ``list``."""
    parser = Parser("nvidia-container-cli list", description="List the parts of the driver that containers get.")
    parser.add_argument("-d", "--device", metavar="ID", action="append", default=[], help="GPUs to list")
    parser.add_argument("-l", "--libraries", action="store_true", help="list libraries")
    parser.add_argument("-b", "--binaries", action="store_true", help="list programs")
    parser.add_argument("-i", "--ipcs", action="store_true", help="list sockets")
    parser.add_argument("-f", "--firmwares", action="store_true", help="list firmware")
    parser.add_argument("--compat32", action="store_true", help="list 32-bit libraries too")
    parser.add_argument("--mig-config", metavar="ID", action="append", default=[], help="list what MIG configuration needs")
    parser.add_argument("--mig-monitor", metavar="ID", action="append", default=[], help="list what MIG monitoring needs")
    parser.add_argument("--imex-channel", metavar="ID", action="append", default=[], help="IMEX channels to list")
    add_left_out(parser)
    return parser


def _channels(given: list[str]) -> list[int]:
    numbers = []
    for item in [item for value in given for item in value.split(",") if item]:
        number = decimal(item, MAX_CHANNEL)
        if number is None:
            raise StageError("input", f"--imex-channel={item}: it must be a number from 0 to {MAX_CHANNEL}")
        numbers.append(number)
    return numbers


def _device_paths(driver: Driver, found: tuple[Selected, ...], whole: bool) -> list[str]:
    """The control nodes and those of the GPUs; of MIG devices the capabilities, unless MIG is administered as a *whole*."""
    there = {node.path for node in driver.nodes}
    paths = [path for path in _CONTROL if path in there] + [one.gpu.node.path for one in found]
    for mig in [mig for one in found for mig in one.mig if not whole]:
        paths += [f"{PROC}/{file}" for file in mig.files] + [node.path for node in mig.nodes]
    return paths


def _admin_paths(name: str, divisible: list[Selected], roots: Roots) -> list[str]:
    """What administering (*name* config) or watching (monitor) the MIG devices of GPUs takes."""
    minors = read_minors(roots, dev_root(roots), read_majors(roots))
    node = admin_node(roots, minors, name)
    paths = [f"{PROC}/capabilities/mig/{name}", *([node.path] if node else [])]
    for one in divisible:
        prefix = f"gpu{one.gpu.minor}/"
        paths.append(f"{PROC}/capabilities/{prefix}mig")
        if node is not None:
            numbers = [minor for key, minor in minors.of.items() if key.startswith(prefix)]
            paths += [CAPS_DIR, *[f"{CAPS_DIR}/nvidia-cap{number}" for number in numbers]]
    return paths


def _file_paths(driver: Driver, chosen: argparse.Namespace) -> list[str]:
    files = [file for file in driver.files if not is_left_out(file.path, chosen)]
    paths = [file.path for file in files if file.kind == "binary"] if chosen.binaries else []
    if chosen.libraries:
        paths += [library.path for library in driver.libraries if not library.compat32]
        paths += [library.path for library in driver.libraries if library.compat32] if chosen.compat32 else []
    paths += [file.path for file in files if file.kind in ("socket", "mps")] if chosen.ipcs else []
    return paths + ([file.path for file in files if file.kind == "firmware"] if chosen.firmwares else [])
