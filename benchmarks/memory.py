"""What a container costs in memory before its program runs: its init, which waits for ``start``.

``private`` are the pages that it has written and shares with nobody (Private_Dirty of smaps_rollup, proc_pid_smaps(5)).
Those of its program's file, which it may be the only one to map at the moment, are page cache.  Where cgroup2 has the memory
controller also what its cgroup is charged with, and the smallest limit with which a container starts; elsewhere these two
are not measured.
"""

from __future__ import annotations

from pathlib import Path
from statistics import median

from benchmarks.bed import Failed, Runtime, plain_config

LIMITS = (2, 3, 4, 5, 6, 8, 10, 12, 14, 16, 20, 24, 32, 48)  # MiB
ROUNDS = 5
PRIVATE = "private memory of one that waits for start, KiB"
CHARGED = "charged to its cgroup before its program, KiB"


def _private(pid: int) -> int:
    """KiB that the process has written and has for itself alone."""
    lines = [line.split() for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()]
    return sum([int(words[1]) for words in lines if words[0] == "Private_Dirty:"])


def _created(runtime: Runtime) -> None:
    """Keep the memory of a container that waits for ``start``."""
    container = runtime.new_id()
    runtime.write_bundle(container, ["sleep", "1000"])
    runtime.create("", container)
    runtime.memory.setdefault(PRIVATE, []).append(_private(runtime.init(container)))
    peak = Path(f"/sys/fs/cgroup{runtime.cgroup}/{container}/memory.peak")
    if peak.exists():
        runtime.memory.setdefault(CHARGED, []).append(int(peak.read_text()) / 1024)
    runtime.end(container)


def _starts_with(runtime: Runtime, limit: int) -> bool:
    """Whether a container with *limit* MiB and no swap comes to run its program."""
    container = runtime.new_id()
    config = plain_config()
    config["linux"]["resources"]["memory"] = {"limit": limit << 20, "swap": limit << 20}
    runtime.write_bundle(container, ["true"], config)
    try:
        runtime.call("", "run", "--bundle", str(runtime.bundle(container)), container)
    except Failed:
        runtime.spawn_quietly("delete", "--force", container)
        return False
    return True


def memory_table(runtimes: list[Runtime]) -> str:
    """A Markdown table with a line for each runtime."""
    controllers = Path("/sys/fs/cgroup/cgroup.controllers").read_text().split()
    limited = "memory" in controllers
    lines = [f"| memory, median | {PRIVATE} | {CHARGED} | smallest limit that starts, MiB |"]
    lines.append("| --- | ---: | ---: | ---: |")
    for runtime in runtimes:
        try:
            for _ in range(ROUNDS):
                _created(runtime)
        except Failed as e:
            lines.append(f"| {runtime.title} | {e} | | |")
            continue
        smallest = "not measured"
        if limited:
            smallest = next((str(limit) for limit in LIMITS if _starts_with(runtime, limit)), "none")
        charged = f"{median(runtime.memory[CHARGED]):.0f}" if CHARGED in runtime.memory else "not measured"
        lines.append(f"| {runtime.title} | {median(runtime.memory[PRIVATE]):.0f} | {charged} | {smallest} |")
    if not limited:
        lines.append("\nThe memory controller is not in this machine's cgroup2: nothing is charged or limited.")
    return "\n".join(lines)
