"""``make bench``: what gpurun costs beside the other runtimes of this machine, in one interleaved run.

Each round goes through the runtimes in turn, beginning with another one each time, so that what else the machine does
falls on all alike.  Prints Markdown tables: medians in milliseconds, by the clock and of processors, ratios beside the
goals, and memory.

NVIDIA's own nvidia-cdi-hook, named as a peer, lying beside one, or on PATH, is what runc and crun run for a container with
GPUs; nvidia-container-runtime takes part where it is among the peers and the hook lies beside it, and the runc that it calls
is the one on PATH.

    python -m benchmarks [--rounds N | --short] [--only CASE] [--json FILE] [PEER ...]
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import statistics
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks.bed import REPOSITORY, Failed, Runtime, become_subreaper, enter_private_namespace, memory_directory
from benchmarks.cases import CASES, Case
from benchmarks.cdi import HOOK
from benchmarks.memory import memory_table
from benchmarks.report import Measured, goals_table, times_table

SHORT_ROUNDS = 3
WARM_UP = 2  # rounds that only fill caches


def chosen_runtimes(peers: Sequence[str], build: Path = REPOSITORY / "build") -> list[str]:
    """The compiled front and the pure launcher in *build*, as far as they are there, then the *peers* (but nvidia-cdi-hook,
    which is no runtime); where none are named, runc and crun from PATH.

    What is measured is gpurun: without one of its own the figures would be a peer's beside itself.  Raises SystemExit.
    """
    ours = [str(build / name) for name in ("gpurun-fast", "gpurun") if os.path.exists(build / name)]
    if not ours:
        raise SystemExit(f"benchmarks: there is no gpurun in {build}: `make build`")
    named = [path for path in peers if os.path.basename(path) != HOOK]
    found = named or [path for name in ("runc", "crun") if (path := shutil.which(name))]
    known = {os.path.realpath(path) for path in ours}
    return [*ours, *[path for path in found if os.path.realpath(path) not in known]]


def bare_python() -> float:
    """Milliseconds that ``python3 -IS -c pass`` takes, once."""
    python = os.path.realpath(getattr(sys, "_base_executable", sys.executable))
    begin = time.perf_counter_ns()
    os.waitpid(os.posix_spawn(python, [python, "-IS", "-c", "pass"], os.environ), 0)
    return (time.perf_counter_ns() - begin) / 1e6


def measure(case: Case, runtimes: list[Runtime], rounds: int, short: bool, floor: list[float]) -> None:
    """All rounds of *case*; a runtime that cannot do it is left out of it, with a line on stderr."""
    count = case.short_containers if short else case.containers
    kept = [(runtime.times, runtime.processor) for runtime in runtimes]
    taking_part = []
    for runtime in runtimes:
        runtime.times, runtime.processor = {}, {}
        if runtime.kind not in case.who:
            continue
        try:
            case.begin(runtime, count)
            case.once(runtime, count)
        except Failed as e:
            print(f"{case.name}: left out: {e}", file=sys.stderr)
        else:
            taking_part.append(runtime)
    for turn in range(min(rounds, case.rounds or rounds) + WARM_UP):
        if turn == WARM_UP:
            for runtime, (times, processor) in zip(runtimes, kept, strict=True):
                runtime.times, runtime.processor = times, processor
        floor.append(bare_python())
        at = turn % max(1, len(taking_part))
        for runtime in taking_part[at:] + taking_part[:at]:
            case.once(runtime, count)
    for runtime in taking_part:
        case.finish(runtime, count)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--short", action="store_true", help=f"{SHORT_ROUNDS} rounds, few containers: whether it runs")
    parser.add_argument("--only", action="append", choices=[*(c.name for c in CASES), "memory"], help="this case alone")
    parser.add_argument("--json", type=Path, help="write all times there")
    parser.add_argument("runtimes", nargs="*", help="peers, by their paths (default: runc and crun from PATH)")
    return parser.parse_args()


def main() -> int:
    options = parse()
    if os.geteuid() != 0:
        raise SystemExit("benchmarks: containers need root here")
    enter_private_namespace("benchmarks")
    become_subreaper()
    rounds = SHORT_ROUNDS if options.short else options.rounds
    floor: list[float] = []
    with memory_directory() as directory:
        paths = chosen_runtimes(options.runtimes)
        runtimes = [Runtime(path, Path(directory, str(i))) for i, path in enumerate(paths)]
        for runtime in runtimes:
            runtime.peers = options.runtimes
        try:
            for case in CASES:
                if not options.only or case.name in options.only:
                    measure(case, runtimes, rounds, options.short, floor)
            memory = memory_table(runtimes) if not options.only or "memory" in options.only else ""
        finally:
            for runtime in runtimes:
                runtime.remove()
    measured = [Measured(runtime.title, runtime.times, runtime.processor, runtime.memory) for runtime in runtimes]
    peers = {r.name: m for m, r in reversed(list(zip(measured, runtimes, strict=True))) if r.kind != "gpurun"}
    print(f"{rounds} rounds, {os.cpu_count()} CPUs, Linux {platform.release()}, Python {platform.python_version()}\n")
    if options.short:
        small = [f"{c.name}: {c.short_containers} containers" for c in CASES if c.short_containers != c.containers]
        print(f"The short form, which shows only that all of it runs ({', '.join(small)}).\n")
    print(times_table(measured))
    print(f"\n{times_table(measured, 'processor')}")
    if floor:
        launcher = next((m for m, runtime in zip(measured, runtimes, strict=True) if runtime.name == "gpurun"), None)
        print(f"\nbare python3 -IS -c pass: {statistics.median(floor):.1f} ms\n")
        print(goals_table(measured[0], peers, statistics.median(floor), launcher))
    print(f"\n{memory}" if memory else "")
    if options.json:
        options.json.write_text(json.dumps({m.version: m._asdict() for m in measured}, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
