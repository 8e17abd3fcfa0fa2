"""What the commands of ``nvidia-container-cli`` share: their options as argp takes them, the driver, the devices selected.

Facts of libnvidia-container 1.17: the stages of its errors, which devices it knows, how it words what it refuses.
"""

from __future__ import annotations

import argparse
import os
import sys

from gpurun.errors import GpuError, GpurunError
from gpurun.gpu.nvidia.host.driver import Driver, read_driver
from gpurun.gpu.nvidia.host.file_names import CAPABILITIES
from gpurun.gpu.nvidia.host.identity import ask
from gpurun.gpu.nvidia.host.modprobe import make_present
from gpurun.gpu.nvidia.host.roots import Roots, roots_from_environment
from gpurun.gpu.nvidia.request.records import GpuRequest
from gpurun.gpu.nvidia.request.selection import Selected, select
from gpurun.output import write_stderr
from gpurun.record import replace

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, NoReturn

_NO_LIBRARY = "load library failed: libnvidia-ml.so.1: cannot open shared object file: no such file or directory: "
#: Words of our errors → how NVIDIA's library begins its own, for those who look for that.
_NVML_ERRORS = (
    ("NVIDIA driver not loaded", "nvml error: driver not loaded: "),
    ("driver/library version mismatch", "nvml error: driver/library version mismatch: "),
    ("no NVIDIA driver", _NO_LIBRARY),
    ("NVIDIA libraries not found", _NO_LIBRARY),
)


class StageError(GpurunError):
    """What went wrong, and in which stage NVIDIA's program would have said so."""

    def __init__(self, stage: str, text: str) -> None:
        known = text.startswith(f"{stage} error: ")
        super().__init__(text if known else f"{stage} error: {text}")


class Parser(argparse.ArgumentParser):
    """Options as programs that use argp have them: ``--usage`` and ``-?``, 1 for a wrong command line, abbreviations."""

    def __init__(self, prog: str, **how: Any) -> None:
        super().__init__(prog, add_help=False, **how)
        self.add_argument("-?", "-h", "--help", action="help", help="give this help list")
        self.add_argument("--usage", action=_Usage, nargs=0, help="give a short usage message")

    def error(self, message: str) -> NoReturn:
        """Say *message* as argp(3) does, and exit with 1."""
        write_stderr(f"{self.prog}: {message}")
        write_stderr(f"Try `{self.prog} --help' or `{self.prog} --usage' for more information.")
        sys.exit(1)


class _Usage(argparse.Action):
    def __call__(self, parser: argparse.ArgumentParser, *_: Any, **__: Any) -> NoReturn:
        parser.print_usage()
        parser.exit()


def own_environment() -> dict[str, str]:
    """The environment of this program."""
    return dict(os.environ)


def roots_of(options: argparse.Namespace) -> Roots:
    """Where the driver is, by the options before the command."""
    roots = roots_from_environment(own_environment(), options.root)
    return replace(roots, ldcache=options.ldcache or roots.ldcache)


def driver_of(options: argparse.Namespace, capabilities: tuple[str, ...] = CAPABILITIES) -> Driver:
    """The driver, as far as *capabilities* need it; ``--load-kmods`` has missing modules and nodes made first.

    Raises :class:`StageError`.
    """
    roots = roots_of(options)
    if options.load_kmods:
        make_present(roots, capabilities)
    try:
        return read_driver(roots, capabilities, own_environment())
    except GpuError as e:
        raise StageError("initialization", as_nvml(str(e))) from None


def as_nvml(text: str) -> str:
    """The error *text*, beginning as NVML's would."""
    return next((said + text for words, said in _NVML_ERRORS if words in text), text)


def device_ids(given: list[str]) -> tuple[str, ...]:
    """The ids in the values of ``--device``; ``all`` in any case.  Raises :class:`StageError` for any other value.

    ``none``, ``void`` and CDI names mean something in a container's environment, and nothing to NVIDIA's program.
    """
    ids = [device for value in given for device in value.split(",") if device]
    for device in ids:
        if device in ("none", "void") or "=" in device:
            raise StageError("device", f"{device}: unknown device (without --device only the driver is added)")
    return ("all",) if any(device.lower() == "all" for device in ids) else tuple(ids)


def select_devices(driver: Driver, options: argparse.Namespace, ids: tuple[str, ...]) -> tuple[Selected, ...]:
    """The GPUs and MIG devices *ids*.  Raises :class:`StageError` for one that the host does not have."""
    try:
        return select(GpuRequest(ids, source="--device"), driver.gpus, lambda: ask(roots_of(options)))
    except GpuError as e:
        text = str(e)
        stage = "device" if "unknown device" in text else "initialization"
        raise StageError(stage, text.replace("process.env --device", "--device")) from None


def asks_for_all(stage: str, given: list[str]) -> bool:
    """Whether ``--mig-config`` or ``--mig-monitor`` (*stage* without the dashes) is given.

    Raises :class:`StageError` for other values than ``all``, in NVIDIA's words.
    """
    found = [item for value in given for item in value.split(",") if item]
    for item in found:
        if item.lower() != "all":
            raise StageError(stage, f"{item}: only 'all' devices are currently supported")
    return bool(found)


def check_mig_admin(stage: str, ids: tuple[str, ...], chosen: tuple[Selected, ...]) -> None:
    """MIG cannot be administered in a container that is to see single MIG devices.  Raises :class:`StageError`."""
    if ids != ("all",) and any(one.mig for one in chosen):
        raise StageError(stage, f"all: cannot enable {stage} with specific MIG devices selected")


def is_left_out(path: str, chosen: argparse.Namespace) -> bool:
    """Whether one of the options ``--no-...`` that ``list`` and ``configure`` share is about the file *path*."""
    return (
        (chosen.no_persistenced and "nvidia-persistenced/" in path)
        or (chosen.no_fabricmanager and "nvidia-fabricmanager/" in path)
        or (chosen.no_gsp_firmware and "/firmware/" in path)
    )


def add_left_out(parser: argparse.ArgumentParser) -> None:
    """The options of :func:`is_left_out`."""
    parser.add_argument("--no-persistenced", action="store_true", help="leave out the socket of nvidia-persistenced")
    parser.add_argument("--no-fabricmanager", action="store_true", help="leave out the socket of the fabric manager")
    parser.add_argument("--no-gsp-firmware", action="store_true", help="leave out the firmware of the GPUs")
