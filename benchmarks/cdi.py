"""NVIDIA's GPUs as Podman and Docker give them to any runtime: the edits of a CDI file, written into config.json, and
NVIDIA's own nvidia-cdi-hook as the hooks that the runtime runs."""

from __future__ import annotations

import json
import os
import shutil
import stat
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.bed import REPOSITORY, Failed, Runtime, plain_config

HOOK = "nvidia-cdi-hook"


def find_hook(named: Sequence[str]) -> str:
    """NVIDIA's program: one of the paths *named*, beside one of them, or on PATH.  gpurun under that name is none.

    Raises :class:`Failed`.
    """
    beside = [path if os.path.basename(path) == HOOK else os.path.join(os.path.dirname(path), HOOK) for path in named]
    for path in [*beside, shutil.which(HOOK) or ""]:
        if path and os.access(path, os.X_OK):
            said = subprocess.run([path, "--version"], capture_output=True, text=True, check=False).stdout
            if "gpurun" not in said:
                return os.path.abspath(path)
    raise Failed(f"NVIDIA's {HOOK} is neither among the peers nor on PATH")


def generate(runtime: Runtime, hook: str, into: Path) -> None:
    """Write the CDI file *into* of the driver that *runtime* sees, with *hook* as the program of its hooks."""
    command = [str(REPOSITORY / "build/gpurun"), "cdi", "generate", "--nvidia-cdi-hook-path", hook, "--output", str(into)]
    subprocess.run(command, env=runtime.environment, check=True, capture_output=True)


def config_with(cdi_file: Path) -> dict[str, Any]:
    """A plain config with the edits of the device ``all`` of *cdi_file* (JSON), as an engine applies them."""
    document = json.loads(cdi_file.read_text())
    config = plain_config()
    device = next(device for device in document["devices"] if device["name"] == "all")
    for edits in (device["containerEdits"], document["containerEdits"]):
        _apply(config, edits)
    return config


def _apply(config: dict[str, Any], edits: dict[str, Any]) -> None:
    config["process"]["env"] += edits.get("env", [])
    config["process"]["user"].setdefault("additionalGids", []).extend(edits.get("additionalGids", []))
    linux = config["linux"]
    for node in edits.get("deviceNodes", []):
        found = os.stat(node.get("hostPath", node["path"]))
        numbers = {"major": os.major(found.st_rdev), "minor": os.minor(found.st_rdev)}
        kind = "b" if stat.S_ISBLK(found.st_mode) else "c"
        made = {"path": node["path"], "type": kind, **numbers, "fileMode": stat.S_IMODE(found.st_mode)}
        linux.setdefault("devices", []).append({**made, "uid": found.st_uid, "gid": node.get("gid", found.st_gid)})
        rule = {"allow": True, "type": kind, **numbers, "access": node.get("permissions", "rwm")}
        linux["resources"].setdefault("devices", []).append(rule)
    for mount in edits.get("mounts", []):
        one = {"destination": mount["containerPath"], "source": mount["hostPath"], "type": mount.get("type", "bind")}
        config["mounts"].append({**one, "options": mount["options"]})
    for hook in edits.get("hooks", []):
        one = {key: hook[key] for key in ("path", "args", "env") if key in hook}
        config.setdefault("hooks", {}).setdefault(hook["hookName"], []).append(one)
