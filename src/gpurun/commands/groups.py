"""What gpu, cdi and kubernetes share: the command below each of them, and the options that are for it."""

from __future__ import annotations

from gpurun.cli.table import COMMANDS
from gpurun.errors import UsageError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from gpurun.invocation import Invocation


def takers(help_text: str, below: tuple[str, ...]) -> tuple[str, ...]:
    """Which of the commands *below* an option is for: those that its help names before a colon, or all of them."""
    named = tuple(help_text.partition(":")[0].split(", "))
    return named if set(named) <= set(below) else below


def check_options(invocation: Invocation, below: tuple[str, ...]) -> None:
    """Raise :class:`UsageError` when an option is for another of the commands *below* than the first argument."""
    what = invocation.args[0]
    for row in COMMANDS[invocation.command][-1]:
        taking = takers(row[3], below)
        if row[0] in invocation.options and what not in taking:
            group = invocation.command
            raise UsageError(f"{group} {what}: takes no option --{row[0]}, which is for {group} {' and '.join(taking)}")
