"""The command line for people: help, completion and usage errors, with click, from the same table.

Commands themselves are always parsed by :mod:`gpurun.cli.parse`: what people and machines type means the same.
"""

from __future__ import annotations

import difflib
import os
import re
import textwrap
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import click
import click.shell_completion

from gpurun.cli import rows, table
from gpurun.cli.parse import CommandUsageError, UnknownCommand, default_root
from gpurun.cli.topics import BELOW, EXAMPLES, SECTIONS
from gpurun.errors import GpurunError
from gpurun.invocation import Invocation
from gpurun.output import write_stdout

SUMMARY = "An OCI container runtime with the GPU built in."
SIGNALS = ("TERM", "KILL", "INT", "HUP", "QUIT", "USR1", "USR2", "STOP", "CONT", "WINCH")  # those that people send
EPILOG = "containerd, Docker and Podman call gpurun as they call runc. `gpurun help COMMAND` says more about a command."


class _ContainerId(click.ParamType):  # type: ignore[type-arg] # generic from click 8.4 on
    """An argument that completes to the containers there are."""

    name = "id"

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[click.shell_completion.CompletionItem]:
        root = Path(ctx.find_root().params.get("root") or default_root(_environ(), os.geteuid(), bool))
        try:
            names = sorted(p.name for p in root.iterdir() if p.is_dir() and not p.name.startswith("."))  # caches have a dot
        except OSError:  # no containers yet, or not ours to see: nothing to complete
            return []
        return [click.shell_completion.CompletionItem(name) for name in names if name.startswith(incomplete)]


class _Words(click.ParamType):  # type: ignore[type-arg] # generic from click 8.4 on
    """Any text, which completes to *words*."""

    name = "text"

    def __init__(self, words: Iterable[str]) -> None:
        self.words = tuple(words)

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[click.shell_completion.CompletionItem]:
        return [click.shell_completion.CompletionItem(word) for word in self.words if word.startswith(incomplete)]


class _Gpus(click.ParamType):  # type: ignore[type-arg] # generic from click 8.4 on
    """GPUs, with commas: completes to the indexes and UUIDs of this host's GPUs and MIG devices, and to what is free."""

    name = "gpus"

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[click.shell_completion.CompletionItem]:
        before, comma, begun = incomplete.rpartition(",")
        return [
            click.shell_completion.CompletionItem(f"{before}{comma}{word}", help=said)
            for word, said in _gpu_words()
            if word.startswith(begun)
        ]


def _gpu_words() -> list[tuple[str, str]]:
    """(what a GPU of this host is called, which one that is)."""
    from gpurun.gpu.nvidia.host.gpus import read_gpus
    from gpurun.gpu.nvidia.request.settings import roots_of, site_settings

    try:
        gpus = read_gpus(roots_of(os.environ, site_settings(os.environ)))
    except (GpurunError, OSError):  # `gpurun gpu doctor` says what is wrong
        return []
    words = [(str(gpu.index), gpu.model) for gpu in gpus] + [(gpu.uuid, gpu.model) for gpu in gpus if gpu.uuid]
    words += [(mig.uuid, f"{mig.profile} of GPU {gpu.index}".strip()) for gpu in gpus for mig in gpu.mig if mig.uuid]
    return [*words, ("free", "any free GPU")] if words else []


def _values(option: rows.Option) -> tuple[str, ...]:
    """The words that the help of *option* lists as all there are: "table or json", "soft, full, strict or ignore"."""
    listed = option.help.rpartition(": ")[2].partition(" (")[0]
    found = re.fullmatch(r"((?:\w+, )*)(\w+) or (\w+)", listed)
    return (*[word for word in found[1].split(", ") if word], found[2], found[3]) if found else ()


class Formatter(click.HelpFormatter):
    """Breaks lines only between words: an option or a path is not torn apart at its hyphens."""

    def write_text(self, text: str) -> None:
        """Write the paragraphs of *text*, wrapped; one that begins with ``\\b`` stays as it is."""
        indent = " " * self.current_indent
        for number, paragraph in enumerate(re.split(r"\n\s*\n", text)):
            self.write("\n" if number else "")
            if paragraph.startswith("\b"):  # as it is
                self.write(textwrap.indent(paragraph[1:].strip("\n"), indent) + "\n")
            else:
                self.write("".join([f"{indent}{line}\n" for line in _wrap(paragraph, self.width - self.current_indent)]))

    def write_dl(self, rows: Iterable[tuple[str, str]], col_max: int = 30, col_spacing: int = 2) -> None:
        """Write *rows* of (term, description) in two columns; widths are in characters."""
        rows, indent = list(rows), self.current_indent
        column = min(max(len(first) for first, _ in rows), col_max) + col_spacing + indent
        for first, second in rows:
            line = " " * indent + first
            wrapped = _wrap(second, max(self.width - column, 10)) or [""]
            if len(line) > column - col_spacing:
                self.write(f"{line}\n")
                line = ""
            self.write(f"{line.ljust(column)}{wrapped[0]}".rstrip() + "\n")
            self.write("".join([" " * column + more + "\n" for more in wrapped[1:]]))


def _wrap(text: str, width: int) -> list[str]:
    return textwrap.wrap(" ".join(text.split()), width, break_long_words=False, break_on_hyphens=False)


class Context(click.Context):
    """A context of click's whose help is written by :class:`Formatter`."""

    formatter_class = Formatter


class _Command(click.Command):
    context_class = Context

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The examples, as they are."""
        if self.epilog:
            with formatter.section("Examples"):
                formatter.write_text("\b\n" + self.epilog)


class _Group(click.Group):
    """Lists commands in their own order; those of gpurun itself in sections, in the order of a container's life."""

    context_class = Context

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.commands)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        sections = SECTIONS if ctx.parent is None else {"Commands": tuple(self.commands)}
        width = max(len(name) for name in self.commands)
        for title, names in sections.items():
            with formatter.section(title):
                formatter.write_dl([(name.ljust(width), self.commands[name].short_help or "") for name in names])

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        if ctx.parent is None:
            super().format_epilog(ctx, formatter)
        else:
            _Command.format_epilog(self, ctx, formatter)  # type: ignore[arg-type] # only reads the epilog


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
    if option.name == "gpus":
        kind = _Gpus()
    elif option.kind == "text" and (words := _values(option)):
        kind = _Words(words)
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
        if name in BELOW:
            group.add_command(_below(row))
        else:
            completes = name not in ("create", "run")
            group.add_command(_command(name, row.arguments, row.help, row.options, row.most < 0, completes))
    return group


def _below(row: rows.Command) -> click.Group:
    """A command that has commands below it; each has the options that are for it, or for all."""
    group = _Group(row.name, help=_sentence(row.help), short_help=row.help, epilog=_examples(row.name))
    for name, (arguments, text) in BELOW[row.name].items():
        options = tuple([option for option in row.options if name in option.takers])
        many = arguments.endswith(("...", "...]"))
        group.add_command(_command(name, arguments, text, options, many, False, f"{row.name} {name}"))
    return group


def _command(
    name: str, arguments: str, text: str, options: tuple[rows.Option, ...], many: bool, completes: bool, path: str = ""
) -> click.Command:
    """A command whose last argument may be given again where *many*; an ID *completes* to the containers there are."""
    parameters: list[click.Parameter] = [_parameter(option) for option in options]
    words = arguments.split()
    for i, word in enumerate(words):
        kind = _argument_kind(word, completes)
        count = -1 if many and i == len(words) - 1 else 1
        parameters.append(click.Argument([f"argument{i}"], type=kind, metavar=word, required=False, nargs=count))
    epilog = _examples(path or name)
    return _Command(name, params=parameters, help=_sentence(text), short_help=text, epilog=epilog)


def _argument_kind(word: str, completes: bool) -> _ContainerId | _Gpus | _Words | None:
    """What the argument that help calls *word* completes to; None for nothing."""
    if (word == "ID" and completes) or word == "CONTAINER":
        return _ContainerId()
    if word == "DEVICE...":
        return _Gpus()
    if word == "[SIGNAL]":
        return _Words(SIGNALS)
    return _Words(word.split("|")) if "|" in word and "[" not in word else None


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:] + "."


def _examples(path: str) -> str:
    return "\n".join(EXAMPLES[path])


def help_text(*topic: str, program: str = "gpurun") -> str:
    """The help of the command *topic* (its name, and that of one below it), or of the whole.

    Raises :class:`UnknownCommand`.
    """
    command: click.Command = build()
    context = Context(command, info_name=program, **command.context_settings)
    for name in topic:
        found = command.commands.get(name) if isinstance(command, click.Group) else None
        if found is None and context.parent is None:
            raise UnknownCommand(name)
        if found is None:  # below a command that has nothing of that name: its own help says what there is
            break
        command, context = found, Context(found, info_name=name, parent=context)
    text = command.get_help(context)
    return re.sub(r"^  gpurun ", f"  {program} ", text, flags=re.MULTILINE) + "\n"  # in examples


def show_help(invocation: Invocation, program: str = "gpurun") -> int:
    """The help that the command line asks for, of *program*: gpurun, or a program of NVIDIA's that has the same command."""
    write_stdout(help_text(*invocation.args, program=program))
    return 0


def show_usage(error: CommandUsageError) -> None:
    """What runc prints on stdout before it reports a usage error: what is wrong, and the help.

    Where the option that is likely meant can be said, that takes the place of the help.
    """
    words = [error.command] if error.command else []
    meant = option_meant(error)
    more = f"`{' '.join(['gpurun', *words, '--help'])}` lists the options.\n" if meant else help_text(*words)
    write_stdout(f"Incorrect Usage: {error}{meant}\n\n{more}")


def option_meant(error: CommandUsageError) -> str:
    """`` (did you mean "--detach"?)`` where the *error* is an option that looks like one that there is, else nothing."""
    said, _, word = str(error).partition(": -")
    if said != "flag provided but not defined":
        return ""
    options = rows.command(error.command).options if error.command else rows.global_options()
    close = difflib.get_close_matches(word, [*[option.name for option in options], "help"], 1, 0.7)
    return f' (did you mean "--{close[0]}"?)' if close else ""


def did_you_mean(name: str) -> str:
    """`` (did you mean "create"?)`` for a command that looks like *name*, else nothing."""
    close = difflib.get_close_matches(name, table.COMMANDS, 1)
    return f' (did you mean "{close[0]}"?)' if close else ""


def completion_script(shell: str) -> str:
    """The script of *shell* (bash, zsh or fish) that asks gpurun itself.  Raises ValueError for another shell."""
    found = click.shell_completion.get_completion_class(shell)
    if found is None:
        raise ValueError(f"click has no completion for {shell}")
    source: str = found(build(), {}, "gpurun", "_GPURUN_COMPLETE").source()
    # click's own line cuts what is completed at its second comma: 0,1 would be 0.
    return source.replace('string split ","', 'string split --max 1 ","').strip("\n") + "\n"


def complete() -> int:
    """Answer the shell's completion script (``_GPURUN_COMPLETE=bash_source gpurun`` prints it)."""
    instruction = os.environ["_GPURUN_COMPLETE"]
    if instruction == "fish_source":
        write_stdout(completion_script("fish"))
        return 0
    return click.shell_completion.shell_complete(build(), {}, "gpurun", "_GPURUN_COMPLETE", instruction)
