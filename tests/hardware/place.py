"""Containers on a machine that nobody prepared: a rootfs of the interpreter that runs the tests, and what is permitted."""

from __future__ import annotations

import json
import os
import secrets
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from tests.native.bundle import base_config

REPOSITORY = Path(__file__).resolve().parents[2]
#: Prints the files of the modules that the test program imports, and all that is mapped into its process.
_MODULES = """
import __future__, ctypes, json, sys, encodings.utf_8, encodings.ascii, encodings.latin_1
files = {m.__file__ for m in sys.modules.values() if getattr(m, "__file__", None)}
print(*files, *{line.split()[-1] for line in open("/proc/self/maps") if "/" in line}, sep="\\n")
"""
_SOURCE = "import sys;sys.path.insert(0,{!r});from gpurun.__main__ import main;sys.exit(main())"
PYTHON = os.path.realpath(sys.executable)
PROGRAM = "/vecadd.py"


class Unavailable(Exception):
    """No container can be made here; the text says what stood in the way."""


def runtime(directory: Path) -> str:
    """``build/gpurun`` when it runs here, else a program that runs the source tree."""
    built = REPOSITORY / "build/gpurun"
    try:
        if subprocess.run([built, "--version"], capture_output=True, check=False, timeout=60).returncode == 0:
            return str(built)
    except OSError:
        pass  # not built, or for another interpreter
    made = directory / "gpurun"
    made.write_text(f"#!{PYTHON} -IS\n{_SOURCE.format(str(REPOSITORY / 'src'))}\n")
    made.chmod(0o755)
    return str(made)


def files_of(command: Sequence[str]) -> list[str]:
    """The shared libraries that the program *command* is linked with, and its loader."""
    listed = subprocess.run(["ldd", *command], capture_output=True, text=True, check=False).stdout
    return [word for line in listed.splitlines() for word in line.split() if word.startswith("/")]


def make_rootfs(root: Path, programs: Sequence[str]) -> None:
    """A rootfs with the interpreter, the modules that the test program needs, and the libraries of *programs*.

    Nothing of the driver is in it: what a container finds of that, the runtime has brought.
    """
    for name in ("bin", "dev", "etc", "proc", "root", "run", "sys", "tmp", "usr", "var"):
        (root / name).mkdir(parents=True, exist_ok=True)
    environment = {"PATH": "/usr/bin:/bin"}
    listed = subprocess.run([PYTHON, "-ISc", _MODULES], capture_output=True, text=True, check=True, env=environment).stdout
    wanted = {PYTHON, *listed.split(), *files_of([PYTHON])}
    # The links by which the loader finds libraries are in no list of mapped files: ldd names those.
    for name in (*programs, *[name for name in wanted if ".so" in name]):
        wanted |= set(files_of([name]))
    for name in sorted(wanted):
        if os.path.isfile(name) and "nvidia" not in name and "libcuda" not in name:
            _copy(root, name)
    shutil.copy(Path(__file__).with_name("vecadd.py"), root / PROGRAM.lstrip("/"))


def _copy(root: Path, name: str) -> None:
    """Copy the file to the place that *name* leads to, and to *name* itself when a link in between leads elsewhere."""
    for place in {name, os.path.realpath(name)}:
        target = root / place.lstrip("/")
        target.parent.mkdir(parents=True, exist_ok=True)
        if not target.exists():
            shutil.copy2(os.path.realpath(name), target)


Way = tuple[str, list[str], dict[str, Any]]


def ways() -> Iterator[Way]:
    """Ways of making a container, the best first: a name, options of gpurun, what is different in the config."""
    bound = {"destination": "/proc", "type": "bind", "source": "/proc", "options": ["rbind", "nosuid", "nodev", "noexec"]}
    user = {"type": "user"}
    yield "with a cgroup", [], {}
    yield "without a cgroup", ["--cgroup-manager=disabled"], {}
    yield "without a cgroup, on the host's /proc", ["--cgroup-manager=disabled"], {"proc": bound}
    yield "in a user namespace", ["--cgroup-manager=disabled"], {"user": user}
    yield "in a user namespace, on the host's /proc", ["--cgroup-manager=disabled"], {"user": user, "proc": bound}


class Place:
    """The way that works here.  *filters* is whether the container's devices are filtered by its cgroup."""

    def __init__(
        self, directory: Path, programs: Sequence[str], environment: dict[str, str], among: Sequence[Way] = ()
    ) -> None:
        self.directory, self.environment = directory, environment
        self.runtime = runtime(directory)
        self.rootfs = directory / "rootfs"
        make_rootfs(self.rootfs, programs)
        reasons = []
        for name, options, changes in among or ways():
            self.way, self.options, self.changes = name, options, changes
            done = self.run(["-c", "print('works')"])
            if done.returncode == 0 and done.stdout == "works\n":
                self.filters = not options
                return
            reasons.append(f"{name}: {(done.stderr or done.stdout).strip()[-300:]}")
        raise Unavailable("gpurun can make no container here: " + "; ".join(reasons))

    def config(self, args: Sequence[str], env: Sequence[str]) -> dict[str, Any]:
        """The config.json of a container that runs the interpreter with *args*."""
        config = base_config()
        config["root"]["path"] = str(self.rootfs)
        config["process"]["args"] = [PYTHON, "-ISB", *args]
        config["process"]["env"] = ["PATH=/usr/bin:/bin", *env]
        config["mounts"] = [m for m in config["mounts"] if m["destination"] in ("/proc", "/dev", "/dev/shm")]
        sys_options = ["rbind", "ro", "nosuid", "nodev", "noexec"]
        config["mounts"].append({"destination": "/sys", "type": "bind", "source": "/sys", "options": sys_options})
        namespaces = [{"type": t} for t in ("mount", "uts", "ipc", *(() if "proc" in self.changes else ("pid",)))]
        if "proc" in self.changes:
            config["mounts"][0] = self.changes["proc"]
            config["linux"]["maskedPaths"] = config["linux"]["readonlyPaths"] = []
        if "user" in self.changes:
            namespaces.append(self.changes["user"])
            for name, own in (("uidMappings", os.geteuid()), ("gidMappings", os.getegid())):
                config["linux"][name] = [{"containerID": 0, "hostID": own, "size": 1}]
        config["linux"]["namespaces"] = namespaces
        if self.options:
            config["linux"]["resources"] = {}
        return config

    def run(self, args: Sequence[str], *env: str) -> subprocess.CompletedProcess[str]:
        """Run the interpreter with *args* in a container that has the variables *env*."""
        bundle = self.directory / f"bundle-{secrets.token_hex(4)}"
        bundle.mkdir()
        (bundle / "config.json").write_text(json.dumps(self.config(args, env)))
        command = [self.runtime, "--root", str(self.directory / "state"), *self.options, "run", "--bundle", str(bundle)]
        try:
            return subprocess.run(
                [*command, f"gpu-{secrets.token_hex(6)}"], capture_output=True, text=True, timeout=180, check=False,
                env=self.environment, stdin=subprocess.DEVNULL,
            )  # fmt: skip
        finally:
            shutil.rmtree(bundle)

    def program(self, *env: str, words: Sequence[str] = ()) -> dict[str, Any]:
        """What the CUDA program, called with *words*, says in a container that has the variables *env*."""
        done = self.run([PROGRAM, *words], *env)
        assert done.returncode == 0, f"{self.way}: {done.stderr}{done.stdout}"
        answer: dict[str, Any] = json.loads(done.stdout)
        return answer
