"""Real clients and daemons, served to the tests one command at a time: in a private bed here, or the guest's own."""

from __future__ import annotations

import functools
import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from tests.native.abilities import GUEST, controllers
from tests.native.runtime import Result

BEDS = Path(__file__).resolve().parent.parent / "beds"
IMAGE = "test/busybox:1"
NEEDED = ("containerd", "dockerd", "docker", "ctr", "podman", "busybox")
PODMAN_JSON = Path("/etc/containers/containers.conf.d/json.conf")  # in the guest
CONTROLLERS = frozenset(("cpu", "memory", "pids"))
#: A tree of other daemons and clients than this machine's (tests/beds/README.md); empty for this machine's own.
ROOT = os.environ.get("CLIENTS_ROOT", "").rstrip("/")


class ClientBedUnavailable(Exception):
    """This machine cannot run the daemons; the text says why."""


def program(name: str) -> str:
    """Where the bed has this program, as it is called there; empty where it has none."""
    directories = (os.environ.get("PATH") or os.defpath).split(os.pathsep)
    found = shutil.which(name, path=os.pathsep.join(ROOT + directory for directory in directories))
    return (found or "").removeprefix(ROOT)


def _shown() -> list[str]:
    """What a tree must see of this machine: this repository, its Python, where the tests keep what they make."""
    virtual = [os.path.realpath(sys.prefix)] if sys.prefix != sys.base_prefix else []
    python = [os.path.realpath(sys.executable), sysconfig.get_path("stdlib")]
    # The environment's own link to it leads by way of this one.
    python.append(f"{sys.base_prefix}/bin/python{sys.version_info.major}")
    return [str(BEDS.parents[1]), "/var/tmp", *virtual, *python]


class Registered(NamedTuple):
    """A runtime as the clients know it."""

    docker: str  # its name in daemon.json
    binary: str  # its path, for ctr and Podman
    path: str  # the runtime itself: the binary may be a wrapper


class ClientBed:
    """containerd, dockerd and Podman of our own (``tests/beds/native-run``), with *runtimes* registered by their names.

    Clients call a wrapper: it gives the runtime the simulated driver (a shim passes no environment on) and, where the host's
    cgroup v2 lacks controllers or its root a capability, goes through ``native-adapt``.
    """

    beds = BEDS
    timeout = 180.0  # seconds for a command: an operation waits for a third of it (`patience`), and then says for what
    calls_are_logged = True

    def __init__(self, runtimes: dict[str, str], directory: Path, sysroot: Path | None = None) -> None:
        self._process: subprocess.Popen[str] | None = None
        missing = [name for name in NEEDED if not program(name)]
        if os.geteuid() != 0 or missing:
            raise ClientBedUnavailable(f"needs root and {', '.join(missing) or 'nothing else'}")
        self.sysroot, self.directory = sysroot, directory
        self.controllers = controllers()
        self.runtimes = {name: self._wrapper(name, path, sysroot) for name, path in runtimes.items()}
        registered = " ".join(f"{r.docker}={r.binary}" for r in self.runtimes.values())
        env = {"NATIVE_RUNTIMES": registered, "NATIVE_LOGS": str(directory)}
        root = ("--root", ROOT) if ROOT else ()
        self._start([str(BEDS / "native-run"), *root, "--"], env | {"NATIVE_BIND": " ".join(_shown())} if ROOT else env)
        archive = self.archive()
        for command in (["docker", "load", "-qi"], ["podman", "load", "-qi"], ["ctr", "images", "import"]):
            loaded = self.run(*command, str(archive))
            if loaded.rc:
                raise ClientBedUnavailable(f"{command[0]} cannot load an image: {loaded.text} {self.daemon_logs()}")

    def _start(self, place: list[str], env: dict[str, str]) -> None:
        self._process = subprocess.Popen(
            [*place, sys.executable, str(BEDS / "run-lines")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | env,
        )
        assert self._process.stdout is not None
        if "ready" not in self._process.stdout.readline():
            raise ClientBedUnavailable(f"the daemons did not start: {self.daemon_logs()}")

    def archive(self) -> Path:
        """The image of the tests, made once."""
        made = self.directory / "image.tar"
        if not made.exists():
            busybox = ROOT + program("busybox")
            subprocess.run([sys.executable, str(BEDS / "mkimage"), busybox, made, IMAGE], check=True)
        return made

    def _wrapper(self, name: str, path: str, sysroot: Path | None) -> Registered:
        """Podman reads errors by the file's own name, so the wrapper has the runtime's; Docker keeps `runc` for itself."""
        # Only where there is something to adapt: a shim's directory may be gone, and Python would not start there.
        adapt = (
            ""
            if self.controllers >= CONTROLLERS and _has_every_capability()
            else f"{sys.executable} {BEDS / 'native-adapt'}"
        )
        run = f'case " $* " in *" create "* | *" run "*) exec {adapt} {path} "$@" ;; *) exec {path} "$@" ;; esac\n'
        environment = f"export GPURUN_SYSROOT={sysroot}\n" if sysroot else ""
        wrapper = self.directory / name / os.path.basename(path)
        wrapper.parent.mkdir()
        wrapper.write_text(f'#!/bin/sh\n{environment}echo "$*" >>{self.directory}/{name}/calls\n{run}')
        wrapper.chmod(0o755)
        return Registered(name, str(wrapper), path)

    @property
    def patience(self) -> float:
        """Seconds to wait for one thing to become so."""
        return self.timeout / 3

    def run(self, *argv: str, **env: str) -> Result:
        """Run a client in the bed; 124 is the time limit."""
        return Result(**self._ask({"argv": argv, "env": env, "timeout": self.timeout}))

    def run_together(self, commands: Sequence[tuple[tuple[str, ...], dict[str, str]]]) -> list[Result]:
        """Run several (argv, environment) at once."""
        asked = [{"argv": argv, "env": env, "timeout": self.timeout} for argv, env in commands]
        return [Result(**answer) for answer in self._ask(asked)]

    def _ask(self, request: object) -> Any:
        assert self._process is not None and self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        if not answer:
            raise AssertionError(f"the bed has died: {self.daemon_logs()}")
        return json.loads(answer)

    def calls(self, which: str) -> int:
        """How many bytes have been logged of the calls of this runtime; 0 where nothing stands between."""
        try:
            return (self.directory / which / "calls").stat().st_size
        except FileNotFoundError:
            return 0

    def daemon_logs(self) -> str:
        texts = [path.read_text(errors="replace")[-2000:] for path in sorted(self.directory.glob("*.log"))]
        return "\n".join(texts)

    def close(self) -> None:
        if self._process is not None:
            self._process.communicate(timeout=self.timeout)


class GuestBed(ClientBed):
    """The emulated guest's own daemons, under its systemd, where ``tests/beds/vm-setup`` has registered the runtimes."""

    timeout = 900.0  # the emulated guest of a host that has other things to do
    calls_are_logged = False

    def __init__(self, runtimes: dict[str, str], directory: Path) -> None:
        self.sysroot, self.directory, self.controllers = None, directory, controllers()
        self.runtimes = {}
        for name, path in runtimes.items():
            known = os.path.basename(path)
            binary = shutil.which("runc") if known == "runc" else f"/usr/local/bin/{known}"
            if known != "runc":
                shutil.copy(path, str(binary))
            self.runtimes[name] = Registered(known, str(binary), path)
        for kind, ids in (("uid", "daemon:100000:65536"), ("gid", "daemon:200000:65536")):  # as tests/beds/native-run has it
            with Path(f"/etc/sub{kind}").open("a") as file:
                print(ids, file=file)
        PODMAN_JSON.parent.mkdir(parents=True, exist_ok=True)
        PODMAN_JSON.write_text('[engine]\nruntime_supports_json = ["crun", "runc", "gpurun"]\n')
        self._start([], {})
        loaded = self.run("ctr", "images", "import", str(self.archive()))
        if loaded.rc:
            raise ClientBedUnavailable(f"ctr cannot load an image: {loaded.text}")


def make_bed(runtimes: dict[str, str], sysroot: Path | None = None) -> ClientBed:
    """The bed of this machine; its directory is for the caller to remove, after ``close``."""
    directory = Path(tempfile.mkdtemp(prefix="gpurun-clients.", dir="/var/tmp"))
    directory.chmod(0o711)
    try:
        return GuestBed(runtimes, directory) if os.uname().nodename == GUEST else ClientBed(runtimes, directory, sysroot)
    except BaseException:
        shutil.rmtree(directory)
        raise


@functools.cache
def abilities(bed: ClientBed) -> frozenset[str]:
    """What an operation may need, of what this machine has."""
    found = {"systemd"} if isinstance(bed, GuestBed) else set()
    if _has_every_capability():
        found.add("every-capability")
    if bed.run("criu", "check").rc == 0:
        found.add("criu")
    if Path(f"{ROOT}/usr/lib/cni/bridge").exists():
        found.add("cni")
    # From 1.7 on pods have user namespaces and CDI devices, from 2.0 on volumes with mapped owners; 2.1 broke some things.
    containerd = version(bed, "containerd", "--version")
    found |= {f"containerd-{x}.{y}" for x, y in ((1, 7), (2, 0), (2, 1)) if containerd >= (x, y)}
    if all(_maps_mounts(bed, runtime.binary) for runtime in bed.runtimes.values()):
        found.add("idmap")
    return bed.controllers | found


def _has_every_capability() -> bool:
    last = int(Path("/proc/sys/kernel/cap_last_cap").read_text())
    return f"CapEff:\t{(1 << last + 1) - 1:016x}" in Path("/proc/self/status").read_text()


def version(bed: ClientBed, *command: str) -> tuple[int, ...]:
    """The first version that *command* says, like ``(1, 6)``."""
    found = re.search(r"\b(\d+)\.(\d+)", bed.run(*command).out)
    return tuple(map(int, found.groups())) if found else ()


def _maps_mounts(bed: ClientBed, binary: str) -> bool:
    """Whether this runtime says that it does idmapped mounts: runc from 1.2 on."""
    said = bed.run(binary, "features").out
    return bool(said and json.loads(said)["linux"].get("mountExtensions", {}).get("idmap", {}).get("enabled"))


def versions(bed: ClientBed) -> dict[str, str]:
    """The versions of what takes part, by name."""
    asked: dict[str, Any] = {
        "docker": ("docker", "version", "-f", "{{.Client.Version}}, daemon {{.Server.Version}}"),
        "containerd": ("containerd", "--version"),
        "podman": ("podman", "--version"),
    }
    found = {name: bed.run(*argv).out.strip() for name, argv in asked.items()}
    found["containerd"] = found["containerd"].split()[2]
    found["podman"] = found["podman"].split()[-1]
    for name, runtime in bed.runtimes.items():
        if name in ("crun", "peer"):
            found["runc" if name == "peer" else name] = bed.run(runtime.binary, "--version").out.splitlines()[0].split()[-1]
    return found
