"""The gpu example, run by build/gpurun: on the machine's own GPUs, or on a simulated driver where there are none.

Limits whose controller this host's cgroup v2 does not have are left out, and it says so.  Nothing is left behind.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

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


def prepare_bundle(directory: Path) -> Path:
    """A copy of the example with the limits that this host can enforce."""
    bundle = directory / "gpu"
    shutil.copytree(REPOSITORY / "examples/bundles/gpu", bundle, symlinks=True)
    for keep in bundle.rglob(".gitkeep"):
        keep.unlink()
    path = bundle / "config.json"
    config: dict[str, Any] = json.loads(path.read_text())
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


def listing(root: Path) -> list[str]:
    return sorted(str(path.relative_to(root)) for path in root.rglob("*"))


def main() -> int:
    if os.geteuid() != 0:
        say("tools/demo: making containers needs root: sudo make demo")
        return 1
    if not GPURUN.exists():
        say("tools/demo: build/gpurun is missing: run make build")
        return 1
    directory = Path(tempfile.mkdtemp(prefix="gpurun-demo."))
    try:
        environment = {"PATH": os.environ.get("PATH", "/usr/bin:/bin")} | driver(directory)
        bundle = prepare_bundle(directory)
        before = listing(bundle)
        command = [str(GPURUN), "--root", str(directory / "state"), "run", "--bundle", str(bundle), f"demo-{os.getpid()}"]
        say(f"\n$ gpurun run --bundle examples/bundles/gpu demo-{os.getpid()}\n")
        code = subprocess.run(command, env=environment, stdin=subprocess.DEVNULL, check=False).returncode
        left = sorted({*listing(bundle)} ^ {*before})
        say(f"\nExit code {code}. Left in the image: {', '.join(left) or 'nothing'}.")
        return code or bool(left)
    finally:
        shutil.rmtree(directory)


if __name__ == "__main__":
    sys.exit(main())
