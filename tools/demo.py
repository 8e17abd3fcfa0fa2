"""The gpu example, run by build/gpurun: on the machine's own GPUs, or on a simulated driver where there are none.

    tools/demo [nvidia|amd|intel]

Limits whose controller this host's cgroup v2 does not have are left out, and it says so.  Nothing is left behind.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from gpurun.gpu.vendors import NAMES, find_vendor
from tests.simcards import Host, amd, intel

REPOSITORY = Path(__file__).resolve().parent.parent
GPURUN = REPOSITORY / "build/gpurun"
CONTROLLERS = {"memory": "memory", "cpu": "cpu", "pids": "pids"}


def say(text: str = "") -> None:
    print(text, flush=True)


def cgroup2_controllers() -> frozenset[str]:
    """Controllers of the host's cgroup v2 tree, wherever it is mounted."""
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        fields = line.split()
        if fields[fields.index("-") + 1] == "cgroup2":
            return frozenset(Path(fields[4], "cgroup.controllers").read_text().split())
    sys.exit("tools/demo: no cgroup v2 on this machine: boot with systemd.unified_cgroup_hierarchy=1")


def prepare_bundle(directory: Path, maker: str) -> Path:
    """A copy of the example that asks for the GPUs of *maker*, with the limits that this host can enforce."""
    bundle = directory / "gpu"
    shutil.copytree(REPOSITORY / "examples/bundles/gpu", bundle, symlinks=True)
    for keep in bundle.rglob(".gitkeep"):
        keep.unlink()
    path = bundle / "config.json"
    config: dict[str, Any] = json.loads(path.read_text())
    if maker != "nvidia":
        env = [entry for entry in config["process"]["env"] if not entry.startswith("NVIDIA_")]
        config["process"]["env"] = [*env, f"{find_vendor(maker).variable}=all"]
        asked = f"{find_vendor(maker).title}'s: {find_vendor(maker).variable}=all"
        say(f"The example asks for NVIDIA's GPUs; this copy of it asks for {asked}.")
    resources = config["linux"]["resources"]
    missing = sorted(name for name, controller in CONTROLLERS.items() if controller not in cgroup2_controllers())
    for name in missing:
        resources.pop(name, None)
    if missing:
        say(f"This host's cgroup v2 has no {', '.join(missing)} controller: those limits are left out.")
    path.write_text(json.dumps(config, indent=2))
    return bundle


def driver(directory: Path) -> dict[str, str]:
    """The environment that shows gpurun a driver: nothing to add on a machine that has one."""
    version = Path("/proc/driver/nvidia/version")
    if version.exists():
        say(f"Driver of this machine: {version.read_text().splitlines()[0]}")
        return {}
    root = directory / "driver"
    subprocess.run(
        [sys.executable, "-m", "tests.simdriver", str(root), "--gpus", "2"],
        check=True,
        cwd=REPOSITORY,
        stdout=subprocess.DEVNULL,
    )
    say("No NVIDIA driver on this machine: a simulated one with two GPUs stands in (GPURUN_SYSROOT).")
    return {"GPURUN_SYSROOT": str(root)}


def cards(directory: Path, maker: str) -> dict[str, str]:
    """The same for the GPUs of another *maker*, which have DRM nodes."""
    probes = [probe for probe in find_vendor(maker).probes if Path(probe).exists()]
    if probes:
        say(f"{find_vendor(maker).title}'s driver is loaded on this machine ({probes[0]}).")
        return {}
    root = directory / "host"
    host: Host = amd.mi210(root, count=2) if maker == "amd" else intel.arc(root, functions=False)
    kind = "two AMD Instinct MI210" if maker == "amd" else "an Intel Arc A770 and an Arc B580"
    title = find_vendor(maker).title
    say(f"{title}'s driver is not loaded on this machine: a simulated host with {kind} stands in (GPURUN_SYSROOT).")
    return host.env


def listing(root: Path) -> list[str]:
    return sorted(str(path.relative_to(root)) for path in root.rglob("*"))


def main() -> int:
    maker = sys.argv[1] if len(sys.argv) > 1 else "nvidia"
    if maker not in NAMES:
        say(f"tools/demo: no maker {maker}: {', '.join(NAMES)} are known")
        return 1
    if os.geteuid() != 0:
        say("tools/demo: making containers needs root: sudo make demo")
        return 1
    if not GPURUN.exists():
        say("tools/demo: build/gpurun is missing: run make build")
        return 1
    directory = Path(tempfile.mkdtemp(prefix="gpurun-demo."))
    try:
        shown = driver(directory) if maker == "nvidia" else cards(directory, maker)
        environment = {"PATH": os.environ.get("PATH", "/usr/bin:/bin")} | shown
        bundle = prepare_bundle(directory, maker)
        before = listing(bundle)
        command = [str(GPURUN), "--root", str(directory / "state"), "run", "--bundle", str(bundle), f"demo-{os.getpid()}"]
        if maker != "nvidia":
            say("\n$ gpurun gpu list\n")
            done = subprocess.run(
                [str(GPURUN), "gpu", "list"], env=environment, stdout=subprocess.PIPE, text=True, check=False
            )
            root = shown.get("GPURUN_SYSROOT", "")  # which the paths begin with, and the column is that wide
            print(re.sub(rf"{re.escape(root)}(/\S+)|(NODE) {{{len(root)}}}", r"\1\2", done.stdout), end="", flush=True)
        say(f"\n$ gpurun run --bundle examples/bundles/gpu demo-{os.getpid()}\n")
        code = subprocess.run(command, env=environment, stdin=subprocess.DEVNULL, check=False).returncode
        left = sorted({*listing(bundle)} ^ {*before})
        say(f"\nExit code {code}. Left in the image: {', '.join(left) or 'nothing'}.")
        return code or bool(left)
    finally:
        shutil.rmtree(directory)


if __name__ == "__main__":
    sys.exit(main())
