"""The command line's table as records, for help, the manual and tests; the machine path reads the table itself."""

from __future__ import annotations

from gpurun.cli.table import COMMANDS, GLOBALS, GROUPS
from gpurun.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from gpurun.cli.container_commands import OptionRow


class Option(Record):
    """One option.  *kind*: ``switch`` (true or false), ``text``, ``texts`` (may be given again), ``number``, ``file``
    or ``dir``.

    *takers* are the commands that it is for where the command is a group, else empty.  An option without *help* is
    accepted, because callers send it, and not shown.
    """

    name: str
    short: str
    kind: str
    help: str
    takers: tuple[str, ...] = ()

    @property
    def visible(self) -> bool:
        """Whether the help shows it."""
        return bool(self.help)


class Command(Record):
    """One command.  *least* and *most* count its arguments (*most* -1: any number).

    *stop* says behind how many arguments option parsing ends (0: never): what follows them is never an option.  *handler*
    is ``module:function``, imported when the command runs; the function takes an ``Invocation`` and returns the exit code.
    """

    name: str
    arguments: str
    least: int
    most: int
    stop: int
    handler: str
    help: str
    options: tuple[Option, ...]


def global_options() -> tuple[Option, ...]:
    """:data:`GLOBALS` as records."""
    return tuple([Option(*row) for row in GLOBALS])


def command(name: str) -> Command:
    """The row *name* of :data:`COMMANDS` as a record; raises KeyError when there is none."""
    row, below = COMMANDS[name], GROUPS.get(name, ())
    options = tuple([_option(option, below) for option in row.get("options", ())])
    return Command(name, row["arguments"], *row["count"], row.get("stop", 0), row["handler"], row["help"], options)


def _option(row: OptionRow, below: tuple[str, ...]) -> Option:
    """The option *row* of a group with the commands *below*: those that its help names before a colon, else all of them."""
    name, short, kind, text = row
    named, _, rest = text.partition(": ")
    takers = tuple(named.split(", "))
    return Option(name, short, kind, rest, takers) if set(takers) <= set(below) else Option(*row, below)
