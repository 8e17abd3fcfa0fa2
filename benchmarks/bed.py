"""Where the containers of the benchmarks run, and how a command is timed.

Each command is one process, started with posix_spawn(3) and waited for, as a shim would.  The container is a static
busybox in the usual namespaces, in memory, in a private mount namespace with a cgroup2 tree at /sys/fs/cgroup.
"""

from __future__ import annotations

import ctypes
import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from gpurun.oci.default_spec import default_spec

REPOSITORY = Path(__file__).resolve().parent.parent
PR_SET_CHILD_SUBREAPER = 36
INSIDE = "GPURUN_BENCH_INSIDE"

#: Milliseconds by label.
Times = dict[str, list[float]]


class Spent(NamedTuple):
    """What work has taken, in milliseconds: by the clock, and of processors (user and system, of all that it waited for)."""

    wall: float = 0.0
    processor: float = 0.0

    def and_then(self, more: Spent) -> Spent:
        """Both, one after the other."""
        return Spent(self.wall + more.wall, self.processor + more.processor)


class Failed(Exception):
    """A runtime cannot do the work here; the text is what it said."""


def enter_private_namespace(module: str) -> None:
    """Start ``python -m module`` again in a mount namespace of its own where /sys/fs/cgroup is cgroup2; needs root."""
    if os.environ.get(INSIDE):
        return
    script = 'exec "$@"'
    if not Path("/sys/fs/cgroup/cgroup.controllers").exists():
        script = f"umount -R /sys/fs/cgroup && mount -t cgroup2 none /sys/fs/cgroup && {script}"
    python = [sys.executable, "-m", module, *sys.argv[1:]]
    command = ["unshare", "--mount", "--propagation", "private", "sh", "-c", script, "sh", *python]
    os.execvpe("unshare", command, {**os.environ, INSIDE: "1"})


@contextmanager
def memory_directory() -> Iterator[str]:
    """A directory in memory: making a file takes up to a millisecond on some disks, which is no runtime's doing."""
    with tempfile.TemporaryDirectory(prefix="gpurun-bench.", dir="/var/tmp") as directory:
        subprocess.run(["mount", "-t", "tmpfs", "gpurun-bench", directory], check=True)
        try:
            yield directory
        finally:
            subprocess.run(["umount", "--lazy", directory], check=True)


def become_subreaper() -> None:
    """Containers lose their runtime and become ours, as a shim's do."""
    if ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER)")


def make_rootfs(rootfs: Path) -> None:
    busybox = shutil.which("busybox")
    if not busybox:
        raise SystemExit("benchmarks: busybox is missing (Debian: apt-get install busybox-static)")
    (rootfs / "bin").mkdir(parents=True)
    shutil.copy(busybox, rootfs / "bin/busybox")
    for name in ("sh", "true", "sleep"):
        (rootfs / "bin" / name).symlink_to("busybox")
    for name in ("dev", "proc", "sys", "etc"):
        (rootfs / name).mkdir()


def plain_config() -> dict[str, Any]:
    """What ``runc spec`` writes, without a terminal."""
    spec = default_spec()
    spec["ociVersion"] = "1.0.2"  # crun 1.8 knows no newer one
    spec["process"]["terminal"] = False
    return spec


def processor_ms(usage: resource.struct_rusage) -> float:
    """User and system time of *usage* in milliseconds."""
    return (usage.ru_utime + usage.ru_stime) * 1e3


class Runtime:
    """One runtime's bundle, state and cgroups, and what its commands have taken."""

    def __init__(self, path: str, directory: Path, environment: dict[str, str] | None = None) -> None:
        self.path = os.path.abspath(path)
        self.name = os.path.basename(path)
        said = subprocess.run([self.path, "--version"], capture_output=True, text=True, check=True).stdout
        self.version = said.partition("\n")[0].replace(" version", "")
        self.directory = directory
        self.environment = {**os.environ, **(environment or {})}
        self.times: Times = {}
        self.processor: Times = {}
        self.memory: Times = {}  # KiB, by label
        self.peers: Sequence[str] = ()  # the paths that the bench was given
        self.count = 0
        self.cgroup = f"/gpurun-bench-{os.getpid()}-{directory.name}"
        directory.mkdir()
        make_rootfs(directory / "rootfs")
        self.log = directory / "log"
        log = os.open(self.log, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
        null = os.open("/dev/null", os.O_RDWR)
        self.actions = [(os.POSIX_SPAWN_DUP2, fd, number) for number, fd in enumerate((null, log, log))]

    @property
    def title(self) -> str:
        """The version, and for gpurun which of its two files it is."""
        return self.version + (" with the compiled front" if self.name == "gpurun-fast" else "")

    @property
    def kind(self) -> str:
        """Whose it is: ``gpurun``; ``nvidia`` for nvidia-container-runtime, which calls a runc; ``peer`` for any other."""
        ours, nvidias = self.name.startswith("gpurun"), self.name.startswith("nvidia-container-runtime")
        return "gpurun" if ours else "nvidia" if nvidias else "peer"

    def spawn(self, *args: str) -> int:
        """Start one command; its pid."""
        command = [self.path, "--root", str(self.directory / "state"), *args]
        return os.posix_spawn(self.path, command, self.environment, file_actions=self.actions)

    def call(self, label: str, *args: str) -> Spent:
        """Run one command and keep what it takes under *label* (unless that is empty); raises :class:`Failed` with what it
        said.  Its processor time is that of all that it has waited for: what outlives it is counted when it is reaped."""
        os.truncate(self.log, 0)
        begin = time.perf_counter_ns()
        _, status, usage = os.wait4(self.spawn(*args), 0)
        spent = Spent((time.perf_counter_ns() - begin) / 1e6, processor_ms(usage))
        if status:
            said = self.log.read_text(errors="replace").strip()
            raise Failed(f"{self.version}: {' '.join(args[:1])} failed: {said[-400:]}")
        if label:
            self.keep(label, spent)
        return spent

    def spawn_quietly(self, *args: str) -> None:
        """Run one command, whatever becomes of it."""
        os.waitpid(self.spawn(*args), 0)

    def keep(self, label: str, spent: Spent) -> None:
        self.times.setdefault(label, []).append(spent.wall)
        self.processor.setdefault(label, []).append(spent.processor)

    def new_id(self) -> str:
        self.count += 1
        return f"b{self.count}"

    def bundle(self, container: str) -> Path:
        return self.directory / "bundles" / container

    def write_bundle(self, container: str, args: list[str], config: dict[str, Any] | None = None) -> None:
        """A bundle for *container*: *config* (or a plain one) with *args*, the shared rootfs and a cgroup of its own."""
        made = plain_config() if config is None else config
        made["process"]["args"] = args
        made["root"]["path"] = str(self.directory / "rootfs")
        made["linux"]["cgroupsPath"] = f"{self.cgroup}/{container}"
        self.bundle(container).mkdir(parents=True, exist_ok=True)
        (self.bundle(container) / "config.json").write_text(json.dumps(made))

    def create(self, label: str, container: str) -> Spent:
        """``create`` under *label*, with the processor time of its init until that waits for ``start``; :meth:`end` is to
        follow.  (:meth:`reap` counts all of the init's, so what is returned is without it.)"""
        bundle = self.bundle(container)
        spent = self.call("", "create", "--bundle", str(bundle), "--pid-file", str(bundle / "pid"), container)
        if label:
            running = int(Path(f"/proc/{self.init(container)}/schedstat").read_text().split()[0]) / 1e6
            self.keep(label, Spent(spent.wall, spent.processor + running))
        return spent

    def init(self, container: str) -> int:
        """The pid of the container's first process."""
        return int((self.bundle(container) / "pid").read_text())

    def reap(self, container: str) -> Spent:
        """Wait for the container's first process, as the shim does before it deletes: what it and all that it has waited
        for have taken, which is no time by the clock."""
        return Spent(0.0, processor_ms(os.wait4(self.init(container), 0)[2]))

    def end(self, container: str) -> None:
        """Kill and delete *container*, untimed."""
        self.call("", "kill", container, "KILL")
        self.reap(container)
        self.call("", "delete", container)

    def remove(self) -> None:
        """End what a failure has left, and remove the cgroups."""
        top = Path("/sys/fs/cgroup" + self.cgroup)
        for kill in top.glob("cgroup.kill"):
            kill.write_text("1")
        deadline = time.monotonic() + 5
        for path, _, _ in os.walk(top, topdown=False):
            while True:
                try:
                    os.rmdir(path)
                    break
                except OSError:  # the dead have not all left yet
                    if time.monotonic() > deadline:
                        raise
                    time.sleep(0.01)
