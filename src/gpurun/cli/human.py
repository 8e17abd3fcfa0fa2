"""The command line for people: help, completion and usage errors, with click, from the same table.

Commands themselves are always parsed by :mod:`gpurun.cli.parse`: what people and machines type means the same.
"""

from __future__ import annotations

import difflib
import os
from pathlib import Path
from typing import Any

import click
import click.shell_completion

from gpurun.cli import rows, table
from gpurun.cli.output import write_stdout
from gpurun.cli.parse import CommandUsageError, UnknownCommand, default_root
from gpurun.invocation import Invocation

SUMMARY = "An OCI container runtime with the GPU built in."
EPILOG = "containerd, Docker and Podman call gpurun as they call runc. `gpurun help COMMAND` says more about a command."


class _ContainerId(click.ParamType):  # type: ignore[type-arg] # generic from click 8.4 on
    """An argument that completes to the containers there are."""

    name = "id"

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[click.shell_completion.CompletionItem]:
        root = Path((ctx.parent.params.get("root") if ctx.parent else None) or default_root(_environ(), os.geteuid(), bool))
        try:
            names = sorted(p.name for p in root.iterdir() if p.is_dir())
        except OSError:  # no containers yet, or not ours to see: nothing to complete
            return []
        return [click.shell_completion.CompletionItem(name) for name in names if name.startswith(incomplete)]


class _Group(click.Group):
    """Lists commands in the table's order, which is the order of a container's life."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.commands)


def _environ() -> dict[bytes, bytes]:
    return dict(os.environb)


def _parameter(option: rows.Option) -> click.Option:
    identifier = option.name.replace("-", "_").replace(".", "_")  # click makes none of a name with a dot
    names = [identifier, f"--{option.name}", *([f"-{option.short}"] if option.short else [])]
    hidden = not option.visible
    if option.kind == "switch":
        return click.Option(names, is_flag=True, help=option.help, hidden=hidden)
    kinds: dict[str, tuple[Any, str]] = {
        "text": (click.STRING, "TEXT"),
        "texts": (click.STRING, "TEXT"),
        "number": (click.INT, "N"),
        "file": (click.Path(), "FILE"),
        "dir": (click.Path(file_okay=False), "DIR"),
    }
    kind, metavar = kinds[option.kind]
    return click.Option(names, type=kind, metavar=metavar, help=option.help, hidden=hidden, multiple=option.kind == "texts")


def build() -> click.Group:
    """The whole command line as a click group; nothing of it runs."""
    settings: dict[str, Any] = {"help_option_names": ["-h", "--help"], "max_content_width": 120}
    parameters = [_parameter(o) for o in rows.global_options() if o.name != "help"]
    group = _Group(
        "gpurun", params=list(parameters), help=SUMMARY, epilog=EPILOG, context_settings=settings, add_help_option=True
    )
    for name in table.COMMANDS:
        row = rows.command(name)
        parameters_of: list[click.Parameter] = [_parameter(o) for o in row.options]
        words = row.arguments.split()
        for i, word in enumerate(words):
            many = -1 if row.most < 0 and i == len(words) - 1 else 1
            kind = _ContainerId() if word == "ID" and name not in ("create", "run") else None
            parameters_of.append(click.Argument([f"argument{i}"], type=kind, metavar=word, required=False, nargs=many))
        text = row.help[:1].upper() + row.help[1:] + "."
        group.add_command(click.Command(name, params=parameters_of, help=text, short_help=row.help))
    return group


def help_text(command: str = "") -> str:
    """The help of *command*, or of the whole; raises :class:`UnknownCommand`."""
    group = build()
    context = click.Context(group, info_name="gpurun", **group.context_settings)
    if not command:
        return group.get_help(context) + "\n"
    found = group.commands.get(command)
    if found is None:
        raise UnknownCommand(command)
    return found.get_help(click.Context(found, info_name=command, parent=context)) + "\n"


def show_help(invocation: Invocation) -> int:
    write_stdout(help_text(invocation.args[0] if invocation.args else ""))
    return 0


def show_usage(error: CommandUsageError) -> None:
    """What runc prints on stdout before it reports a usage error: what is wrong, and the help."""
    write_stdout(f"Incorrect Usage: {error}\n\n{help_text(error.command)}")


def did_you_mean(name: str) -> str:
    """`` (did you mean "create"?)`` for a command that looks like *name*, else nothing."""
    close = difflib.get_close_matches(name, table.COMMANDS, 1)
    return f' (did you mean "{close[0]}"?)' if close else ""


def complete() -> int:
    """Answer the shell's completion script (``_GPURUN_COMPLETE=bash_source gpurun`` prints it)."""
    instruction = os.environ["_GPURUN_COMPLETE"]
    return click.shell_completion.shell_complete(build(), {}, "gpurun", "_GPURUN_COMPLETE", instruction)
