"""What a runtime's own init costs a container in memory, before the container's program runs.

Where cgroup2 has the memory controller: the peak that the cgroup was charged with, and the smallest limit with which a
container starts.  Elsewhere only what /proc says of the init that waits for ``start``, which is an upper bound for gpurun's:
pages that it has from its starter are charged to the caller's cgroup, and only what it has written since to its own.
"""

from __future__ import annotations

from pathlib import Path

from benchmarks.bed import Failed, Runtime, plain_config

MIB = 1 << 20
LIMITS = (2, 3, 4, 5, 6, 8, 10, 12, 14, 16, 20, 24, 32, 48)


def _anonymous(pid: int) -> int:
    """KiB of the process' own anonymous memory (proc_pid_smaps(5)): what its cgroup pays for in any case."""
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        if line.startswith("Anonymous:"):
            return int(line.split()[1])
    raise Failed(f"no Anonymous in /proc/{pid}/smaps_rollup")


def _created(runtime: Runtime) -> tuple[int, float | None]:
    """(anonymous KiB of the init, peak MiB of the cgroup or None) of a container that waits for ``start``."""
    container = runtime.new_id()
    runtime.write_bundle(container, ["sleep", "1000"])
    runtime.create("", container)
    pid = int((runtime.bundle(container) / "pid").read_text())
    peak = Path(f"/sys/fs/cgroup{runtime.cgroup}/{container}/memory.peak")
    found = _anonymous(pid), (int(peak.read_text()) / MIB if peak.exists() else None)
    runtime.end(container)
    return found


def _starts_with(runtime: Runtime, limit: int) -> bool:
    """Whether a container with *limit* MiB and no swap comes to run its program."""
    container = runtime.new_id()
    config = plain_config()
    config["linux"]["resources"]["memory"] = {"limit": limit * MIB, "swap": limit * MIB}
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
    lines = ["| memory | init's own anonymous KiB | peak of the cgroup, MiB | smallest limit that starts, MiB |"]
    lines.append("| --- | ---: | ---: | ---: |")
    for runtime in runtimes:
        try:
            anonymous, peak = _created(runtime)
        except Failed as e:
            lines.append(f"| {runtime.version} | {e} | | |")
            continue
        smallest = next((str(limit) for limit in LIMITS if _starts_with(runtime, limit)), "none") if limited else ""
        lines.append(f"| {runtime.version} | {anonymous} | {'' if peak is None else f'{peak:.1f}'} | {smallest} |")
    if not limited:
        lines.append("\nThe memory controller is not in this machine's cgroup2: no peak and no limits.")
    return "\n".join(lines)
