#!/usr/bin/env python3
"""Twenty containers of one bundle at once, their statistics, and how each of them ended.

    sudo PYTHONPATH=src python3 examples/library/twenty.py BUNDLE [ROOT]

BUNDLE is a bundle of which several containers may run; ROOT is the state directory (/run/gpurun).
"""

from __future__ import annotations

import copy
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path

import gpurun

SCRIPT = "i=0; while [ $i -lt 2000 ]; do i=$((i+1)); done; sleep 1; exit $((NUMBER % 3))"


def bundles(source: gpurun.Bundle, directory: Path, count: int) -> list[gpurun.Bundle]:
    """*count* bundles like *source*, which share its root file system; each has its NUMBER in the environment."""
    made = []
    for number in range(count):
        config = copy.deepcopy(source.config)
        config["root"] = {"path": str(Path(source.path, source.config["root"]["path"])), "readonly": True}
        config["process"] |= {"terminal": False, "args": ["sh", "-c", SCRIPT]}
        config["process"]["env"] = [*config["process"].get("env", []), f"NUMBER={number}"]
        config["linux"].pop("cgroupsPath", None)  # each gets a cgroup by its own name
        path = directory / str(number)
        path.mkdir()
        bundle = gpurun.Bundle(path, config)
        bundle.save()
        made.append(bundle)
    return made


def main(source: str, root: str = "/run/gpurun") -> int:
    with tempfile.TemporaryDirectory() as directory, ExitStack() as stack:
        containers = []
        for bundle in bundles(gpurun.Bundle.load(source), Path(directory), 20):
            container = stack.enter_context(gpurun.Container(bundle, root=root))
            container.create()
            containers.append(container)
        for container in containers:
            container.start()
        print("container              cpu (ms)  memory (KiB)  processes")
        for container in containers:
            used = container.stats()
            print(f"{container.id}  {used.cpu_seconds * 1000:8.1f}  {used.memory_bytes >> 10:12}  {used.pids:9}")
        codes = [container.wait(timeout=60) for container in containers]
    print("ended with", " ".join(map(str, codes)))
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
