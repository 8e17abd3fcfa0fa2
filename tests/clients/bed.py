"""Real clients and daemons in a private bed (``tests/beds/native-run``), served to the tests one command at a time."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

from tests.native.runtime import Result

BEDS = Path(__file__).resolve().parent.parent / "beds"
IMAGE = "test/busybox:1"
NEEDED = ("containerd", "dockerd", "docker", "ctr", "podman", "busybox")
CONTROLLERS = frozenset(("cpu", "memory", "pids"))


class ClientBedUnavailable(Exception):
    """This machine cannot run the daemons; the text says why."""


class ClientBed:
    """containerd, dockerd and podman with *runtime* registered as ``test``.

    Clients call a wrapper: it gives the runtime the simulated driver (a shim passes no environment on) and, where the host's
    cgroup v2 lacks controllers, goes through ``native-adapt``.
    """

    def __init__(self, runtime: str, directory: Path, sysroot: Path | None) -> None:
        missing = [name for name in NEEDED if not shutil.which(name)]
        if os.geteuid() != 0 or missing:
            raise ClientBedUnavailable(f"needs root and {', '.join(missing) or 'nothing else'}")
        self.sysroot = sysroot
        self.wrapper = directory / "runtime"
        self._write_wrapper(runtime, sysroot)
        archive = directory / "image.tar"
        subprocess.run([sys.executable, str(BEDS / "mkimage"), shutil.which("busybox") or "", archive, IMAGE], check=True)
        self.logs = directory
        self._process = subprocess.Popen(
            [str(BEDS / "native-run"), "--", sys.executable, str(BEDS / "run-lines")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | {"NATIVE_RUNTIMES": f"test={self.wrapper}", "NATIVE_LOGS": str(directory)},
        )
        assert self._process.stdout is not None
        if "ready" not in self._process.stdout.readline():
            raise ClientBedUnavailable(f"the daemons did not start: {self.daemon_logs()}")
        for command in (["docker", "load", "-qi"], ["podman", "load", "-qi"], ["ctr", "images", "import"]):
            loaded = self.run(*command, str(archive))
            if loaded.rc:
                raise ClientBedUnavailable(f"{command[0]} cannot load an image: {loaded.text} {self.daemon_logs()}")

    def _write_wrapper(self, runtime: str, sysroot: Path | None) -> None:
        adapt = "" if controllers() >= CONTROLLERS else f"{sys.executable} {BEDS / 'native-adapt'} "
        environment = f"export GPURUN_SYSROOT={sysroot}\n" if sysroot else ""
        self.wrapper.write_text(f'#!/bin/sh\n{environment}exec {adapt}{runtime} "$@"\n')
        self.wrapper.chmod(0o755)

    def run(self, *argv: str, timeout: float = 60, **env: str) -> Result:
        """Run a client in the bed; 124 is the time limit."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(json.dumps({"argv": argv, "env": env, "timeout": timeout}) + "\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        if not answer:
            raise AssertionError(f"the bed has died: {self.daemon_logs()}")
        return Result(**json.loads(answer))

    def daemon_logs(self) -> str:
        texts = [path.read_text(errors="replace")[-2000:] for path in sorted(self.logs.glob("*.log"))]
        return "\n".join(texts)

    def close(self) -> None:
        self._process.communicate(timeout=60)


def controllers() -> frozenset[str]:
    """The controllers of the host's cgroup v2 tree."""
    for line in Path("/proc/mounts").read_text().splitlines():
        _, mounted, kind, *_ = line.split()
        if kind == "cgroup2":
            return frozenset(Path(mounted, "cgroup.controllers").read_text().split())
    return frozenset()
