"""events: a container's use of resources as JSON, a line each."""

from __future__ import annotations

from gpurun.engine.caller.events import follow, parse_duration, print_stats
from gpurun.output import write_stdout

TYPE_CHECKING = False
if TYPE_CHECKING:
    from gpurun.invocation import Invocation


def events(invocation: Invocation) -> int:
    """``events [--stats] [--interval 5s] ID``: one report, or reports until the container ends."""
    root, container_id = invocation.globals.root, invocation.args[0]
    interval = parse_duration(invocation.option("interval", "5s"))
    if invocation.flag("stats"):
        print_stats(root, container_id, write_stdout)
    else:
        follow(root, container_id, interval, write_stdout)
    return 0
