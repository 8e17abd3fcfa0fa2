"""``make bench``: the life of a container, timed side by side with the other runtimes on this machine.

Each command is one process, started with posix_spawn(3) and waited for, as a shim would; the rounds go through the
runtimes in turn, so that what else the machine does falls on all alike.  The container is a static busybox that runs
``true`` in the usual namespaces, in a private mount namespace with a cgroup2 tree at /sys/fs/cgroup.

    benchmarks/lifecycle.py [--rounds N] [--json FILE] [--no-device-rules] [RUNTIME ...]

Medians in milliseconds; the ratios are gpurun's time to the other's.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).resolve().parent.parent
COMMANDS = ("create", "start", "state", "kill", "delete")
LIFE = "create+...+delete"
PR_SET_CHILD_SUBREAPER = 36
INSIDE = "GPURUN_BENCH_INSIDE"

Times = dict[str, list[float]]


def config(cgroup: str, args: list[str], device_rules: bool) -> dict[str, Any]:
    """What ``runc spec`` writes, without a terminal."""
    sys.path.insert(0, str(REPOSITORY / "src"))
    from gpurun.oci.default_spec import default_spec

    spec = default_spec()
    spec["ociVersion"] = "1.0.2"  # crun 1.8 knows no newer one
    spec["process"]["terminal"] = False
    spec["process"]["args"] = args
    spec["linux"]["cgroupsPath"] = cgroup
    if not device_rules:
        del spec["linux"]["resources"]
    return spec


def make_rootfs(rootfs: Path) -> None:
    busybox = shutil.which("busybox")
    if not busybox:
        raise SystemExit("lifecycle.py: busybox is missing (Debian: apt-get install busybox-static)")
    (rootfs / "bin").mkdir(parents=True)
    shutil.copy(busybox, rootfs / "bin/busybox")
    for name in ("sh", "true", "sleep"):
        (rootfs / "bin" / name).symlink_to("busybox")
    for name in ("dev", "proc", "sys", "etc"):
        (rootfs / name).mkdir()


def enter_private_namespace() -> None:
    """Start this program again where /sys/fs/cgroup is cgroup2, unless it is; needs root."""
    if os.environ.get(INSIDE) or Path("/sys/fs/cgroup/cgroup.controllers").exists():
        return
    script = 'umount -R /sys/fs/cgroup && mount -t cgroup2 none /sys/fs/cgroup && exec "$@"'
    command = ["unshare", "--mount", "--propagation", "private", "sh", "-c", script, "sh", sys.executable, *sys.argv]
    os.execvpe("unshare", command, {**os.environ, INSIDE: "1"})


class Failed(Exception):
    """A runtime cannot do the work here; the text is what it said."""


class Bench:
    """One runtime's bundle and state, and the times of its commands."""

    def __init__(self, path: str, directory: Path, device_rules: bool) -> None:
        self.path = path
        self.device_rules = device_rules
        self.name = os.path.basename(path)
        version = subprocess.run([path, "--version"], capture_output=True, text=True, check=True).stdout
        self.version = version.partition("\n")[0].replace(" version", "")
        self.directory = directory
        self.times: Times = {}
        self.count = 0
        directory.mkdir()
        make_rootfs(directory / "rootfs")
        self.log = os.open(directory / "log", os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
        null = os.open("/dev/null", os.O_RDWR)
        self.actions = [
            (os.POSIX_SPAWN_DUP2, null, 0),
            (os.POSIX_SPAWN_DUP2, self.log, 1),
            (os.POSIX_SPAWN_DUP2, self.log, 2),
        ]

    def call(self, label: str, *args: str) -> float:
        """Run one command and keep its time in milliseconds."""
        command = [self.path, "--root", str(self.directory / "state"), *args]
        os.ftruncate(self.log, 0)
        begin = time.perf_counter_ns()
        pid = os.posix_spawn(self.path, command, os.environ, file_actions=self.actions)
        _, status = os.waitpid(pid, 0)
        taken = (time.perf_counter_ns() - begin) / 1e6
        if status:
            said = Path(self.directory / "log").read_text(errors="replace").strip()
            raise Failed(f"{self.version}: {args[0]} failed: {said[-400:]}")
        self.times.setdefault(label, []).append(taken)
        return taken

    def prepare(self, *args: str) -> str:
        """A new config.json with a cgroup of its own; the container's id."""
        self.count += 1
        container = f"bench-{os.getpid()}-{self.count}"
        text = json.dumps(config(f"/gpurun-bench-{self.name}/{container}", list(args), self.device_rules))
        (self.directory / "config.json").write_text(text)
        return container

    def one_life(self) -> None:
        container = self.prepare("sleep", "1000")
        bundle, pid_file = str(self.directory), str(self.directory / "pid")
        total = self.call("create", "create", "--bundle", bundle, "--pid-file", pid_file, container)
        init = int(Path(pid_file).read_text())
        total += self.call("start", "start", container)
        total += self.call("state", "state", container)
        total += self.call("kill", "kill", container, "KILL")
        os.waitpid(init, 0)  # as the shim does before it deletes
        total += self.call("delete", "delete", container)
        self.times.setdefault(LIFE, []).append(total)

    def one_run(self) -> None:
        self.call("run true", "run", "--bundle", str(self.directory), self.prepare("true"))

    def round(self) -> None:
        """Everything once; ``--version`` is the floor: a process that prints a line."""
        self.call("--version", "--version")
        self.one_life()
        self.one_run()


def table(benches: list[Bench]) -> str:
    """The medians as a Markdown table; ratios against the first runtime when it is gpurun."""
    first = benches[0]
    others = benches[1:] if first.name == "gpurun" else []
    head = ["median of ms", *(b.version for b in benches), *(f"to {b.name}" for b in others)]
    rows = [head, ["---", *["---:"] * (len(head) - 1)]]
    for label in ("--version", *COMMANDS, LIFE, "run true"):
        medians = [statistics.median(b.times[label]) for b in benches]
        ratios = [f"{medians[0] / m:.2f}" for m in medians[1 : 1 + len(others)]]
        rows.append([label, *(f"{m:.1f}" for m in medians), *ratios])
    return "\n".join("| " + " | ".join(row) + " |" for row in rows)


def remove_cgroups(benches: list[Bench]) -> None:
    for bench in benches:
        for path, _, _ in os.walk(f"/sys/fs/cgroup/gpurun-bench-{bench.name}", topdown=False):
            os.rmdir(path)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--json", type=Path, help="write all times there")
    parser.add_argument("--no-device-rules", action="store_true", help="for hosts where crun 1.8 may not load them")
    parser.add_argument("runtimes", nargs="*", help="paths (default: build/gpurun, and runc and crun from PATH)")
    options = parser.parse_args()
    if os.geteuid() != 0:
        raise SystemExit("lifecycle.py: containers need root here")
    enter_private_namespace()
    ours = REPOSITORY / "build/gpurun"
    paths = options.runtimes or [str(ours) if ours.exists() else None, shutil.which("runc"), shutil.which("crun")]
    # Containers lose their runtime and become ours, as a shim's do.
    if ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER)")
    with tempfile.TemporaryDirectory(prefix="gpurun-bench.", dir="/var/tmp") as directory:
        rules = not options.no_device_rules
        benches = [Bench(os.path.abspath(p), Path(directory, str(i)), rules) for i, p in enumerate(paths) if p]
        everyone = list(benches)
        try:
            for bench in everyone:
                try:
                    bench.round()
                except Failed as e:
                    print(f"left out: {e}\n", file=sys.stderr)
                    benches.remove(bench)
            if not benches:
                return 1
            for turn in range(options.rounds + 2):
                if turn == 2:  # the first two only warm the caches
                    for bench in benches:
                        bench.times.clear()
                # Each round begins with another runtime, so that none always follows the same one.
                for bench in benches[turn % len(benches) :] + benches[: turn % len(benches)]:
                    bench.round()
        finally:
            for bench in everyone:  # after a failure: what is still there goes with its cgroup
                for kill in Path(f"/sys/fs/cgroup/gpurun-bench-{bench.name}").glob("**/cgroup.kill"):
                    kill.write_text("1")
            remove_cgroups(everyone)
    print(f"{options.rounds} rounds, {os.cpu_count()} CPUs, Linux {os.uname().release}\n")
    print(table(benches))
    if options.json:
        options.json.write_text(json.dumps({b.version: b.times for b in benches}, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
