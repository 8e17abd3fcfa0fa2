"""``nvidia-ctk``: telling container engines of the runtime, the site's configuration, device nodes and links.

What it prints that others read (a configuration with ``--dry-run``, a CDI specification, a list of devices) goes to stdout,
and everything else to stderr.
"""

from __future__ import annotations

import os
import sys
from typing import Any

import click

from gpurun import log
from gpurun.clients.files import write
from gpurun.errors import GpurunError, oserror_text
from gpurun.gpu.nvidia.cdi.known_hooks import INTERFACE_VERSION
from gpurun.output import write_document, write_stderr
from gpurun.toolkit import config_file, devices, engines
from gpurun.toolkit.go_words import go_words

_SETTINGS: dict[str, Any] = {"help_option_names": ["-h", "--help"], "max_content_width": 120}
#: Switches that may be given as ``--name=true``, which click does not know.
_SWITCHES = frozenset(
    "debug quiet dry-run nvidia-set-as-default set-as-default cdi.enabled cdi.enable enable-cdi in-place create-all "
    "control-devices load-kernel-modules no-all-device watch create-device-nodes".split()
)


def main(argv: list[str]) -> int:
    """*argv* is the command line without the program's name; returns the exit code."""
    _prepare(program)
    command = _command(argv)
    if argv[command : command + 1] == ["hook"]:
        from gpurun.hook.cdi_hook_program import main as hook_main

        return hook_main(argv[command + 1 :])
    config = _value_of("config", argv[:command]) or os.environ.get("NVIDIA_CTK_CONFIG", "")
    _read_config_from(config)
    try:
        if argv[command : command + 1] == ["cdi"]:
            from gpurun.toolkit.ctk_cdi import main as cdi_main

            return cdi_main(argv[command + 1 :])
        code = program.main(go_words(argv, _SWITCHES), "nvidia-ctk", standalone_mode=False)
    except click.UsageError as e:
        write_stderr(f"nvidia-ctk: {e.format_message()}")
        return 1
    except click.Abort:
        return 130
    except GpurunError as e:
        log.error(str(e))
        return e.exit_code
    except OSError as e:
        log.error(oserror_text(e))
        return 1
    return code if isinstance(code, int) else 0


def _command(argv: list[str]) -> int:
    """Where the command stands in *argv*: behind the options that all commands have."""
    i = 0
    while i < len(argv) and argv[i].startswith("-"):
        i += 2 if argv[i].lstrip("-") == "config" else 1
    return min(i, len(argv))


def _read_config_from(path: str) -> None:
    """Make the file *path* the toolkit's config.toml for all that follows; nothing for an empty one."""
    if path:
        os.environ["NVIDIA_CTK_CONFIG_FILE_PATH"] = path


def _value_of(name: str, words: list[str]) -> str:
    """The value of the option *name*, the last of several; empty without one."""
    found = ""
    for i, word in enumerate(words):
        given, equals, value = word.lstrip("-").partition("=")
        if given == name:
            found = value if equals else "".join(words[i + 1 : i + 2])
    return found


#: Variables of the commands below ``system``.
_ROOT: dict[str, Any] = {"envvar": ["ROOT", "NVIDIA_DRIVER_ROOT", "DRIVER_ROOT"]}
_DEV_ROOT: dict[str, Any] = {"envvar": ["NVIDIA_DEV_ROOT", "DEV_ROOT"]}
_DRY_RUN: dict[str, Any] = {"envvar": "DRY_RUN"}


@click.group("nvidia-ctk", context_settings=_SETTINGS, epilog="Also: cdi generate|list|validate|transform, and hook NAME.")
@click.option("--debug", "-d", is_flag=True, envvar="NVIDIA_CTK_DEBUG", help="Say more.")
@click.option("--quiet", "-q", is_flag=True, envvar="NVIDIA_CTK_QUIET", help="Say nothing but errors.")
@click.option("--config", default="", help="The toolkit's config.toml.")
@click.version_option(
    INTERFACE_VERSION, "--version", "-v", message="NVIDIA Container Toolkit CLI version %(version)s (gpurun)"
)
@click.pass_context
def program(context: click.Context, debug: bool, quiet: bool, config: str) -> None:
    """gpurun in the place of NVIDIA's nvidia-ctk."""  # what --config says, main() has read already
    context.obj = quiet


@program.command("info")
def info() -> int:
    """Show the driver and the GPUs of this host."""
    from gpurun.toolkit.container_cli import main as container_cli

    return container_cli(["info"])


@program.group("runtime", context_settings=_SETTINGS)
def runtime() -> None:
    """Container engines and this runtime."""


@runtime.command("configure")
@click.option("--runtime", "engine", default="docker", help="docker, containerd or crio.")
@click.option("--dry-run", is_flag=True, help="Print the configuration, write nothing.")
@click.option("--config", "path", default="", help="The engine's configuration file.")
@click.option("--drop-in-config", "drop_in", default=None, help="Write what is new to this file (containerd and CRI-O).")
@click.option("--config-source", default="file", help="Where the configuration is read from: file or command.")
@click.option("--executable-path", default="", help="The engine's program, for --config-source=command.")
@click.option("--config-mode", default="config-file", help="config-file, or oci-hook for a file in hooks.d.")
@click.option("--oci-hook-path", "--hook-path", "hook_file", default="", help="The file that oci-hook writes (else stdout).")
@click.option("--nvidia-runtime-name", "--runtime-name", "name", default="nvidia", help="The runtime's name.")
@click.option("--nvidia-runtime-path", "--runtime-path", "binary", default="", help="The runtime's program.")
@click.option("--nvidia-runtime-hook-path", "hook", default="", help="The hook's program.")
@click.option("--nvidia-set-as-default", "--set-as-default", "default", is_flag=True, help="Make it the default runtime.")
@click.option("--cdi.enabled", "--cdi.enable", "--enable-cdi", "cdi", is_flag=True, help="Turn CDI on in the engine.")
@click.pass_context
def configure(context: click.Context, /, **options: Any) -> None:
    """Tell a container engine of the runtime."""
    request = engines.Request(**options)
    made = engines.changes(request)
    for text in engines.unused_options(request):
        _warn(context, text)
    for change in made:
        if request.dry_run or not change.path:
            if change.path:
                _say(context, f"{change.path} would be:")
            write_document(change.text or "")
            continue
        write(change.path, change.text or "")
        _say(context, f"wrote {change.path}")
    if not request.dry_run and request.config_mode not in ("oci-hook", "hook"):
        _say(context, f"{request.engine} reads it when it is restarted")


@program.group("config", invoke_without_command=True, context_settings=_SETTINGS)
@click.option("--config-file", "--config", "-c", "path", default="", help="The toolkit's config.toml.")
@click.option("--set", "sets", multiple=True, help="KEY=VALUE; a key without a value is true. May be given again.")
@click.option("--set-list-separator", "separator", default=":", help="Between the items of a list.")
@click.option("--in-place", "-i", is_flag=True, help="Write the file that was read.")
@click.option("--output", "-o", default="", help="Write this file (else stdout).")
@click.pass_context
def config(context: click.Context, path: str, sets: tuple[str, ...], separator: str, in_place: bool, output: str) -> None:
    """Show or change the site's configuration of the toolkit, which gpurun reads too."""
    if context.invoked_subcommand:
        return
    path = path or config_file.default_path()
    if in_place and output:
        raise click.UsageError("--in-place and --output exclude each other")
    text = config_file.set_values(config_file.read(path), sets, separator, path)
    _deliver(context, text, path if in_place else output)


@config.command("default")
@click.option("--output", "-o", default="", help="Write this file (else stdout).")
@click.option("--set", "sets", multiple=True, help="KEY=VALUE; a key without a value is true. May be given again.")
@click.option("--set-list-separator", "separator", default=":", help="Between the items of a list.")
@click.pass_context
def default_config(context: click.Context, output: str, sets: tuple[str, ...], separator: str) -> None:
    """Show what holds where the file says nothing."""
    _deliver(context, config_file.set_values(config_file.DEFAULT, sets, separator, "the default"), output)


config.add_command(default_config, "create-default")
config.add_command(default_config, "generate-default")


@program.group("system", context_settings=_SETTINGS)
def system() -> None:
    """Device nodes and links of this host."""


@system.command("create-device-nodes")
@click.option("--control-devices", is_flag=True, help="Make nvidiactl, nvidia-modeset, nvidia-uvm and nvidia-uvm-tools.")
@click.option("--load-kernel-modules", is_flag=True, help="Load the driver's modules first.")
@click.option("--root", "--driver-root", "root", default="/", help="The driver root.", **_ROOT)
@click.option("--dev-root", default="", help="The directory with dev/ (default: the driver root).", **_DEV_ROOT)
@click.option("--dry-run", is_flag=True, help="Say what would be done.", **_DRY_RUN)
@click.pass_context
def create_device_nodes(
    context: click.Context, control_devices: bool, load_kernel_modules: bool, root: str, dev_root: str, dry_run: bool
) -> None:
    """Make the control nodes that this host lacks."""
    if load_kernel_modules:
        for command in devices.load_modules(root, dry_run):
            _say(context, command)
    if control_devices:
        for line in devices.create_control_nodes(root, dev_root, dry_run):
            _say(context, line)


@system.command("create-dev-char-symlinks")
@click.option("--create-all", is_flag=True, envvar="CREATE_ALL", help="Of all GPUs and MIG capabilities, nodes or not.")
@click.option("--load-kernel-modules", "modules", is_flag=True, envvar="LOAD_KERNEL_MODULES", help="With --create-all.")
@click.option("--create-device-nodes", "nodes", is_flag=True, envvar="CREATE_DEVICE_NODES", help="With --create-all.")
@click.option("--root", "--driver-root", "root", default="/", help="The driver root.", **_ROOT)
@click.option("--dev-root", default="", help="The directory with dev/ (default: the driver root).", **_DEV_ROOT)
@click.option("--dev-char-path", default="/dev/char", envvar="DEV_CHAR_PATH", help="Where the links go.")
@click.option("--watch", is_flag=True, hidden=True)
@click.option("--dry-run", is_flag=True, help="Say what would be done.", **_DRY_RUN)
@click.pass_context
def create_dev_char_symlinks(
    context: click.Context, /, watch: bool, modules: bool, nodes: bool, root: str, **how: Any
) -> None:
    """Make the links by which systemd finds the driver's nodes: /dev/char/195:0 and so on."""
    if watch:
        raise click.UsageError("--watch is not supported: a udev rule or a systemd path unit can call this again")
    for name, wanted in (("load-kernel-modules", modules), ("create-device-nodes", nodes)):
        if wanted and not how["create_all"]:
            _say(context, f"--{name} is for --create-all, and does nothing here")
    if modules and how["create_all"]:
        for command in devices.load_modules(root, how["dry_run"]):
            _say(context, command)
    if nodes and how["create_all"]:
        for line in devices.create_control_nodes(root, how["dev_root"], how["dry_run"]):
            _say(context, line)
    for line in devices.create_links(root, **how):
        _say(context, line)


def _deliver(context: click.Context, text: str, path: str) -> None:
    if not path:
        write_document(text)
        return
    write(path, text)
    _say(context, f"wrote {path}")


def _say(context: click.Context, text: str) -> None:
    if not context.find_root().obj:
        sys.stderr.write(log.record("info", text))


def _warn(context: click.Context, text: str) -> None:
    if not context.find_root().obj:
        sys.stderr.write(log.record("warning", text))


def _prepare(command: click.Command) -> None:
    """Help as gpurun's own has it, lines broken only between words; and the global options also behind each command."""
    from gpurun.cli.human import Context

    command.context_class = Context
    own = {name for param in command.params for name in param.opts}
    command.params += [option for option in _global_options() if not own & set(option.opts[:1])]
    for below in command.commands.values() if isinstance(command, click.Group) else ():
        _prepare(below)


def _global_options() -> list[click.Option]:
    """--debug, --quiet and --config, which NVIDIA's program takes behind commands too that have no such option."""

    def quiet(context: click.Context, _: click.Parameter, value: bool) -> None:
        context.find_root().obj = value or context.find_root().obj

    def config(_: click.Context, __: click.Parameter, value: str) -> None:
        _read_config_from(value)

    hidden: dict[str, Any] = {"expose_value": False, "hidden": True}
    return [
        click.Option(["--debug", "-d"], is_flag=True, **hidden),
        click.Option(["--quiet", "-q"], is_flag=True, callback=quiet, **hidden),
        click.Option(["--config"], default="", callback=config, **hidden),
    ]
