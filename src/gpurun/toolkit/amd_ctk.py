"""``amd-ctk``: the runtime registered with Docker, AMD's CDI file, AMD's GPUs; with AMD's command line and output.

All that it says goes to stdout, errors too, and an error's exit code is 1: so does AMD's (container-toolkit 1.3).
"""

from __future__ import annotations

import os
from typing import Any

import click

from gpurun import __version__
from gpurun.errors import GpurunError, oserror_text
from gpurun.gpu.amd.host import AmdGpu, amd_gpus
from gpurun.gpu.nvidia.host.roots import roots_from_environment
from gpurun.gpu.vendors import find_vendor
from gpurun.output import write_stdout
from gpurun.toolkit import amd_docker
from gpurun.toolkit.go_words import go_words

#: The version of AMD's toolkit whose command line this is.
INTERFACE_VERSION = "1.3.0"
_SETTINGS: dict[str, Any] = {"help_option_names": ["-h", "--help"], "max_content_width": 120}
_SWITCHES = frozenset("debug remove amd-set-as-default set-as-default unset-amd-as-default unset-as-default".split())
_CDI_FILE = "/etc/cdi/amd.json"
#: AMD's tracker of the containers that have each GPU is off by default; gpurun has leases instead.
_TRACKER_OFF = "GPU Tracker is disabled"
_LEASES = (
    "gpurun uses leases instead of the GPU tracker: a container with AMD_VISIBLE_DEVICES=free gets a GPU for itself, "
    "and `gpurun gpu leases` shows who has which"
)


def main(argv: list[str]) -> int:
    """*argv* is the command line without the program's name; returns the exit code."""
    _prepare(program)
    try:
        code = program.main(go_words(argv, _SWITCHES), "amd-ctk", standalone_mode=False)
    except click.UsageError as e:
        write_stdout(f"{e.format_message()}\n")
        return 1
    except click.Abort:
        return 130
    except GpurunError as e:
        write_stdout(f"{e}\n")
        return e.exit_code
    except OSError as e:
        write_stdout(f"{oserror_text(e)}\n")
        return 1
    return code if isinstance(code, int) else 0


@click.group("amd-ctk", context_settings=_SETTINGS, invoke_without_command=True)
@click.option("--debug", "-d", is_flag=True, help="Taken for AMD's program; there is nothing more to say.")
@click.pass_context
def program(context: click.Context, debug: bool) -> None:
    """gpurun in the place of AMD's amd-ctk."""
    _help_alone(context)


@program.command("version")
def version() -> None:
    """Show the version."""
    write_stdout(f"Version: {INTERFACE_VERSION}\nBuild Date: unknown\nGitCommit: gpurun {__version__}\n")


@program.group("runtime", context_settings=_SETTINGS, invoke_without_command=True)
@click.pass_context
def runtime(context: click.Context) -> None:
    """Container engines and this runtime."""
    _help_alone(context)


@runtime.command("configure")
@click.option("--runtime", "engine", default="docker", help="The engine: docker (gpurun install knows others).")
@click.option("--remove", is_flag=True, help="Take the runtime out again.")
@click.option("--config-path", "path", default="/etc/docker/daemon.json", help="Docker's configuration; empty: to stdout.")
@click.option("--amd-set-as-default", "--set-as-default", "default", is_flag=True, help="Make it the default runtime.")
@click.option("--unset-amd-as-default", "--unset-as-default", "unset", is_flag=True, help="Make it that no more.")
def configure(engine: str, remove: bool, path: str, default: bool, unset: bool) -> None:
    """Tell Docker of the runtime amd, and turn CDI on; or take that back."""
    if engine != "docker":
        raise click.UsageError(f"unsupported runtime engine: {engine}")
    if default and unset:
        raise click.UsageError("both set and unset as default cannot be used at the same time")
    if remove and (default or unset):
        raise click.UsageError("remove flag cannot be used along with set-as-default flag")
    for line in amd_docker.configure(path, remove, default, unset):
        write_stdout(f"{line}\n")


@program.group("cdi", context_settings=_SETTINGS, invoke_without_command=True)
@click.pass_context
def cdi(context: click.Context) -> None:
    """AMD's GPUs as CDI devices."""
    _help_alone(context)


@cdi.command("generate")
@click.option("--output", default=_CDI_FILE, help="The file that is written.")
def generate(output: str) -> None:
    """Write the CDI file of this host's GPUs, as AMD's program does."""
    from gpurun.commands.cdi_generate import write_text
    from gpurun.gpu.amd.cdi import amd_ctk_text

    text = amd_ctk_text(_sysroot())
    write_text(text, output or _CDI_FILE)
    write_stdout(f"Generated CDI spec: {output or _CDI_FILE}\n")


@cdi.command("validate")
@click.option("--path", default=_CDI_FILE, help="The file that is looked at.")
def validate(path: str) -> None:
    """Say whether the CDI file is as it would be written now, by this program or by `gpurun cdi generate --mode amd`."""
    import json

    from gpurun.cdi.document import read_document
    from gpurun.cdi.files import read_spec_file
    from gpurun.gpu.amd.cdi import amd_ctk_text
    from gpurun.gpu.amd.cdi import generate as gpuruns

    path = path or _CDI_FILE
    write_stdout(f"Validating CDI spec: {path}\n")
    found = read_spec_file(path)
    as_amds = read_document(json.loads(amd_ctk_text(_sysroot())), path)
    if found in (as_amds, gpuruns(_sysroot())):
        write_stdout("CDI spec is valid\n")
    else:
        write_stdout("CDI spec is invalid\nPlease regenerate CDI spec\n")


@cdi.command("list")
def list_devices() -> None:
    """List the names of AMD's GPUs as CDI devices."""
    gpus = _gpus()
    lines = [_count(gpus)]
    if gpus:
        lines.append("amd.com/gpu=all")
    for gpu in gpus:
        lines += [f"amd.com/gpu={gpu.index}", *[f"  {node}" for node in _render_nodes(gpu)]]
    write_stdout("".join([f"{line}\n" for line in lines]))


@program.group("gpu", context_settings=_SETTINGS, invoke_without_command=True)
@click.pass_context
def gpu(context: click.Context) -> None:
    """AMD's GPUs."""
    _help_alone(context)


@gpu.command("list")
def list_gpus() -> None:
    """List AMD's GPUs with their unique ids."""
    gpus = _gpus()
    line = "-" * 75
    rows = [("GPU Id", "UUID", "DRM Devices")]
    rows += [(str(one.index), _unique_id(one), ", ".join(_render_nodes(one))) for one in gpus]
    texts = [f"{index:<10}{uuid:<25}{nodes:<40}" for index, uuid, nodes in rows]
    write_stdout("\n".join([_count(gpus), line, texts[0], line, *texts[1:]]) + "\n")


@program.command("gpu-tracker")
@click.argument("words", nargs=-1)
def gpu_tracker(words: tuple[str, ...]) -> None:
    """Say that AMD's tracker is off; gpurun's leases are in its place.

    status, disable, reset, and GPUS exclusive|shared say so and change nothing; enable is refused.
    """
    if os.geteuid() != 0:
        raise GpurunError("Permission denied: Not running as root")
    what = words[0] if words else ""
    if what == "enable":
        raise GpurunError(f"failed to enable GPU Tracker: {_LEASES}")
    if what in ("init", "release"):  # hooks of containers that AMD's runtime has made call it
        return
    if what == "disable":
        write_stdout("GPU Tracker is already disabled\n")
        return
    if what not in ("", "status", "reset"):
        if len(words) < 2:
            raise click.UsageError("Error: Missing arguments. Usage: gpu-tracker <gpu_ids> <operation>")
        if words[1] not in ("exclusive", "shared"):
            raise click.UsageError("Error: Invalid operation. Must be 'exclusive' or 'shared'")
    write_stdout(f"{_TRACKER_OFF}\n{_LEASES}\n")


def _sysroot() -> str:
    return roots_from_environment(dict(os.environ)).sysroot


def _gpus() -> tuple[AmdGpu, ...]:
    """The GPUs of this host.  Raises :class:`GpurunError` where the driver is not loaded."""
    probe = _sysroot() + find_vendor("amd").probes[0]
    if not os.path.isdir(probe):
        raise GpurunError(f"failed to list AMD devices: amdgpu driver unavailable: {probe}: no such file or directory")
    return amd_gpus(_sysroot())


def _count(gpus: tuple[AmdGpu, ...]) -> str:
    return f"Found {len(gpus)} AMD GPU {'device' if len(gpus) == 1 else 'devices'}"


def _render_nodes(one: AmdGpu) -> list[str]:
    return [node.path for node in one.drm.nodes if not node.path.startswith("/dev/dri/card")]


def _unique_id(one: AmdGpu) -> str:
    """As AMD prints it: KFD's number in hexadecimal, upper case and without zeros at its head."""
    number = one.kfd.value("unique_id")
    return f"0x{number:X}" if number else "N/A"


def _help_alone(context: click.Context) -> None:
    """The help where no command is named: no error, as with AMD's program."""
    if context.invoked_subcommand is None:
        write_stdout(context.get_help() + "\n")


def _prepare(command: click.Command) -> None:
    """Help as gpurun's own has it, lines broken only between words."""
    from gpurun.cli.human import Context

    command.context_class = Context
    for below in command.commands.values() if isinstance(command, click.Group) else ():
        _prepare(below)
