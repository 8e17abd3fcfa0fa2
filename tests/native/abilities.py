"""What a test needs of the machine: ``@pytest.mark.needs("systemd", "memory")`` names it, a skip says what is missing."""

from __future__ import annotations

import os
from pathlib import Path

GUEST = "gpurun-vm"  # the emulated guest's host name


def controllers() -> frozenset[str]:
    """The controllers of the host's cgroup v2 tree, wherever that is mounted."""
    for line in Path("/proc/mounts").read_text().splitlines():
        _, mounted, kind, *_ = line.split()
        if kind == "cgroup2":
            return frozenset(Path(mounted, "cgroup.controllers").read_text().split())
    return frozenset()


def missing(need: str) -> str:
    """Why a test with this need cannot run here; empty if it can.

    ``systemd`` is one that runs this host, ``guest`` is the emulated guest; any other need is a cgroup v2 controller.
    """
    if need == "systemd":
        here = os.path.exists("/run/systemd/private")
        return "" if here else "systemd does not run this host: `make test-systemd` runs this under one"
    if need == "guest":
        return "" if os.uname().nodename == GUEST else "this is not the guest: `make test-vm-all` runs this there"
    return "" if need in controllers() else f"the {need} controller is not in this machine's cgroup v2: `make test-vm-all`"
