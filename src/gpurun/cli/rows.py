"""The rows of the command line's table as records, for help and tests; the machine path reads the rows themselves."""

from __future__ import annotations

from typing import Any

from gpurun.cli.table import COMMANDS, GLOBALS
from gpurun.record import Record


class Option(Record):
    """One option.  *kind*: ``switch`` (true or false), ``text``, ``texts`` (may be given again), ``number``, ``file``
    or ``dir``.

    *visible* is false for what is only accepted because callers send it; the help does not show it.
    """

    name: str
    short: str
    kind: str
    help: str
    visible: bool = True


class Command(Record):
    """One command.  *least* and *most* count its arguments (*most* -1: any number).

    *stop* ends option parsing at the first argument: what follows it is never an option.  *handler* is
    ``module:function``, imported when the command runs; the function takes an ``Invocation`` and returns the exit code.
    """

    name: str
    arguments: str
    least: int
    most: int
    stop: bool
    handler: str
    help: str
    options: tuple[Option, ...]


def global_options() -> tuple[Option, ...]:
    """:data:`GLOBALS` as records."""
    return tuple([_option(row) for row in GLOBALS])


def command(name: str) -> Command:
    """The row *name* of :data:`COMMANDS` as a record; raises KeyError when there is none."""
    arguments, least, most, stop, handler, text, options = COMMANDS[name]
    return Command(name, arguments, least, most, stop, handler, text, tuple([_option(row) for row in options]))


def _option(row: tuple[Any, ...]) -> Option:
    return Option(*row)
