"""What gpu, cdi and kubernetes share: the options of a command below them are its own."""

from __future__ import annotations

from gpurun.cli.rows import command
from gpurun.errors import UsageError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from gpurun.invocation import Invocation


def check_options(invocation: Invocation) -> None:
    """Raise :class:`UsageError` when an option is for another command of the group than the first argument."""
    group, what = invocation.command, invocation.args[0]
    for option in command(group).options:
        if option.name in invocation.options and what not in option.takers:
            takers = " and ".join(option.takers)
            raise UsageError(f"{group} {what}: takes no option --{option.name}, which is for {group} {takers}")
