"""How memory ended a container, by what its cgroup, systemd or the kernel's log still knows; without a C library."""

from __future__ import annotations

from gpurun.cgroup.control import exists
from gpurun.cgroup.oom import logged_oom_facts, oom_facts
from gpurun.linux.procfs import oom_kills

TYPE_CHECKING = False
if TYPE_CHECKING:
    from gpurun.engine.state import State


def how_memory_ended(state: State) -> dict[str, int]:
    """What is known of the container's processes that were killed because memory was short; empty for none.

    ``kills``, and in bytes ``limit`` and ``peak``; 0 kills are "all": so says systemd, whose scope is gone by then.
    """
    facts = oom_facts(state.cgroup)
    if facts or not state.unit or exists(state.cgroup):
        return facts
    if 0 <= oom_kills() == state.oom_kills:
        return {}  # nothing on this host has been killed so since the container was made
    from gpurun.cgroup import systemd

    return systemd.oom_facts(state.unit, state.manager) or logged_oom_facts(state.unit, state.pid)
