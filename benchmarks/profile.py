"""``python -m benchmarks.profile``: where the time of each command goes.

For each command: the milliseconds its imports take, the modules and KiB of bytecode that they are, the system calls
(strace -c -f, of gpurun and all that it starts), and the pages that were mapped in or copied, ours and the init's together
(ru_minflt; about half a microsecond each, and most of what starting an interpreter costs).
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

from benchmarks.bed import REPOSITORY, Runtime, become_subreaper, enter_private_namespace, memory_directory

LAUNCHER = REPOSITORY / "build/gpurun"
SECONDS = 20  # for a command under strace; only a hang takes them

#: The modules that a process of each kind needs, besides what they import.
IMPORTS = {
    "create": ("gpurun.__main__", "gpurun.commands.lifecycle", "gpurun.engine.caller.create"),
    "create: init": ("gpurun.engine.inside.init",),
    "start": ("gpurun.__main__", "gpurun.commands.lifecycle", "gpurun.engine.caller.lifecycle"),
    "state": ("gpurun.__main__", "gpurun.commands.inspect"),
    "kill": ("gpurun.__main__", "gpurun.commands.lifecycle", "gpurun.engine.caller.lifecycle"),
    "delete": ("gpurun.__main__", "gpurun.commands.lifecycle", "gpurun.engine.caller.delete"),
    "exec": ("gpurun.__main__", "gpurun.commands.exec", "gpurun.engine.caller.exec", "gpurun.engine.plan.exec"),
    "exec: process": ("gpurun.engine.inside.exec_init",),
}


def imports(names: tuple[str, ...], repeats: int = 9) -> tuple[float, int, int]:
    """(milliseconds, modules, bytes of bytecode) that the imports *names* take from the built launcher; the best of some."""
    script = (
        "import gc, marshal, posix, sys, time\n"
        f"sys.path.insert(0, {str(REPOSITORY / 'src')!r})\n"
        "from gpurun.launcher import boot\n"
        "[sys.modules.pop(n) for n in list(sys.modules) if n.startswith('gpurun')]\n"
        "gc.disable()\n"
        f"fd = posix.open({str(LAUNCHER)!r}, 0)\n"
        "bundle = boot.Bundle(fd, marshal.loads(posix.pread(fd, 1 << 20, 512))[1])\n"
        "begin = time.perf_counter_ns()\n"
        f"[n in sys.modules or bundle.load(n) for n in {names!r}]\n"
        "taken = time.perf_counter_ns() - begin\n"
        "made = [bundle.modules[n][1] for n in sys.modules if n in bundle.modules]\n"
        "print(taken / 1e6, len(made), sum(made))\n"
    )
    python = os.path.realpath(getattr(sys, "_base_executable", sys.executable))
    best: tuple[float, int, int] | None = None
    for _ in range(repeats):
        said = subprocess.run([python, "-ISBc", script], capture_output=True, text=True, check=True).stdout.split()
        found = (float(said[0]), int(said[1]), int(said[2]))
        best = found if best is None else min(best, found)
    assert best is not None
    return best


class Counted(Runtime):
    """A runtime whose commands are counted: under strace, or by what wait4(2) says."""

    def faults(self, *args: str) -> int:
        pid = self.spawn(*args)
        _, status, usage = os.wait4(pid, 0)
        if status:
            raise SystemExit(f"profile: {args[0]} failed: {self.log.read_text(errors='replace')}")
        return usage.ru_minflt

    def system_calls(self, *args: str, end: str = "") -> int:
        """The calls of *args* and all its children; the container *end* is killed for them to end."""
        summary = self.directory / "strace"
        ours = [self.path, "--root", str(self.directory / "state"), *args]
        command = ["strace", "-f", "-c", "-q", "-o", str(summary), *ours]
        with open(self.log, "ab") as log:
            traced = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
            try:
                if end:
                    self._kill_when_created(end)
                traced.wait(SECONDS)
            finally:
                traced.kill()
        total = re.search(r"^\s*100\.00\s+\S+\s+(?:\d+\s+)?(\d+)\s.*total$", summary.read_text(), re.M)
        if not total:
            raise SystemExit(f"profile: strace has not counted {args[0]}: {summary.read_text()[-300:]}")
        return int(total[1])

    def _kill_when_created(self, container: str) -> None:
        pid_file = self.bundle(container) / "pid"
        deadline = time.monotonic() + SECONDS
        while not pid_file.exists() and time.monotonic() < deadline:
            time.sleep(0.01)
        self.call("", "kill", container, "KILL")


def profile(runtime: Counted) -> list[tuple[str, int, int]]:
    """(command, system calls, page faults) of each."""
    counts: dict[str, list[int]] = {}
    for traced in (True, False):
        name = f"c{traced:d}"
        runtime.write_bundle(name, ["sleep", "1000"])
        bundle = runtime.bundle(name)
        create = ("create", "--bundle", str(bundle), "--pid-file", str(bundle / "pid"), name)
        if traced:  # strace keeps following the init: this container ends with it
            counts["create"] = [runtime.system_calls(*create, end=name)]
            runtime.spawn_quietly("delete", "--force", name)
            name = "c2"
            runtime.write_bundle(name, ["sleep", "1000"])
            runtime.create("", name)
        else:
            counts["create"].append(runtime.faults(*create))
        count = runtime.system_calls if traced else runtime.faults
        runtime.write_bundle(f"r{traced:d}", ["true"])
        for command in (
            ("start", name),
            ("state", name),
            ("exec", name, "/bin/true"),
            ("kill", name, "KILL"),
            ("delete", name),
            ("run", "--bundle", str(runtime.bundle(f"r{traced:d}")), f"r{traced:d}"),
        ):
            if command[0] == "delete":
                runtime.reap(name)
            counts.setdefault(command[0], []).append(count(*command))
    return [(command, found[0], found[1]) for command, found in counts.items()]


def main() -> int:
    if os.geteuid() != 0:
        raise SystemExit("profile: containers need root here")
    if not shutil.which("strace"):
        raise SystemExit("profile: strace is missing (apt-get install strace)")
    enter_private_namespace("benchmarks.profile")
    become_subreaper()
    print("| imports of | ms | modules | KiB |\n| --- | ---: | ---: | ---: |")
    for name, names in IMPORTS.items():
        milliseconds, modules, size = imports(names)
        print(f"| {name} | {milliseconds:.2f} | {modules} | {size / 1024:.0f} |")
    path = sys.argv[1] if len(sys.argv) > 1 else str(LAUNCHER)
    with memory_directory() as directory:
        runtime = Counted(path, Path(directory, "0"))
        try:
            found = profile(runtime)
        finally:
            runtime.remove()
    print("\n| command | system calls | page faults |\n| --- | ---: | ---: |")
    for command, calls, faults in found:
        print(f"| {command} | {calls} | {faults} |")
    return 0


if __name__ == "__main__":
    sys.exit(main())
