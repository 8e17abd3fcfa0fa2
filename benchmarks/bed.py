"""Where the containers of the benchmarks run, and how a command is timed.

Each command is one process, started with posix_spawn(3) and waited for, as a shim would.  The container is a static
busybox in the usual namespaces, in memory, in a private mount namespace with a cgroup2 tree at /sys/fs/cgroup.
"""

from __future__ import annotations

import ctypes
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from gpurun.oci.default_spec import default_spec

REPOSITORY = Path(__file__).resolve().parent.parent
PR_SET_CHILD_SUBREAPER = 36
INSIDE = "GPURUN_BENCH_INSIDE"

#: Milliseconds by label.
Times = dict[str, list[float]]


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


class Runtime:
    """One runtime's bundle, state and cgroups, and the times of its commands."""

    def __init__(self, path: str, directory: Path, environment: dict[str, str] | None = None) -> None:
        self.path = os.path.abspath(path)
        self.name = os.path.basename(path)
        said = subprocess.run([self.path, "--version"], capture_output=True, text=True, check=True).stdout
        self.version = said.partition("\n")[0].replace(" version", "")
        self.directory = directory
        self.environment = {**os.environ, **(environment or {})}
        self.times: Times = {}
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

    def wait(self, pid: int, *args: str) -> None:
        """Wait for the command *args*; raises :class:`Failed` with what it said."""
        if os.waitpid(pid, 0)[1]:
            said = self.log.read_text(errors="replace").strip()
            raise Failed(f"{self.version}: {' '.join(args[:1])} failed: {said[-400:]}")

    def call(self, label: str, *args: str) -> float:
        """Run one command and keep its time, in milliseconds, under *label* (unless that is empty)."""
        os.truncate(self.log, 0)
        begin = time.perf_counter_ns()
        pid = self.spawn(*args)
        self.wait(pid, *args)
        taken = (time.perf_counter_ns() - begin) / 1e6
        if label:
            self.keep(label, taken)
        return taken

    def spawn_quietly(self, *args: str) -> None:
        """Run one command, whatever becomes of it."""
        os.waitpid(self.spawn(*args), 0)

    def keep(self, label: str, milliseconds: float) -> None:
        self.times.setdefault(label, []).append(milliseconds)

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

    def create(self, label: str, container: str) -> float:
        """``create`` under *label*; :meth:`end` is to follow."""
        bundle = self.bundle(container)
        return self.call(label, "create", "--bundle", str(bundle), "--pid-file", str(bundle / "pid"), container)

    def reap(self, container: str) -> None:
        """Wait for the container's first process, as the shim does before it deletes."""
        os.waitpid(int((self.bundle(container) / "pid").read_text()), 0)

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
