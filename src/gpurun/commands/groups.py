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
    takers: dict[str, tuple[str, ...]] = {}
    for option in command(group).options:  # an option that means another thing for others has a row for each meaning
        takers[option.name] = (*takers.get(option.name, ()), *option.takers)
    for name in invocation.options:
        if what not in takers[name]:
            *others, last = takers[name]
            listed = f"{', '.join(others)} and {last}" if others else last
            raise UsageError(f"{group} {what}: takes no option --{name}, which is for {group} {listed}")
