"""Containers in systemd's tree, and limits by their effect: what each test needs of the host is its mark `needs`.

`make test` runs what this machine has, `make test-systemd` what needs systemd, in a bed, `make test-vm` the rest in a guest.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.native.bed import Bed
from tests.native.bundle import Bundle
from tests.native.runtime import Container, Result, Runtime

SLICE = "gpuruntest.slice"
DEVICES = [{"allow": False, "access": "rwm"}]


class Driver:
    """Runs containers with one of the two cgroup drivers; the systemd one puts them into :data:`SLICE`."""

    def __init__(self, name: str, runtime: Runtime, bed: Bed) -> None:
        self.name, self.runtime, self.bed = name, runtime, bed
        self.options = ("--systemd-cgroup",) if name == "systemd" else ()

    def place(self, bundle: Bundle) -> str:
        """Give *bundle* its place in the tree; returns the id of the container to be."""
        container_id = self.runtime.new_id()
        if self.name == "systemd":
            bundle.linux["cgroupsPath"] = f"{SLICE}:t:{container_id}"
        return container_id

    def create(self, bundle: Bundle, **how: Any) -> Container:
        return self.runtime.create(bundle, container_id=self.place(bundle), globals_=self.options, **how)

    def start(self, bundle: Bundle, **how: Any) -> Container:
        container = self.create(bundle, **how)
        started = container.start()
        assert started.rc == 0, started.text
        return container

    def run(self, bundle: Bundle, *options: str, **how: Any) -> Result:
        return self.runtime.run(bundle, *options, container_id=self.place(bundle), globals_=self.options, **how)

    def cgroup(self, container: Container) -> Path:
        """The directory of the container's cgroup; it must be where this driver puts it."""
        expected = f"/{SLICE}/t-{container.id}.scope" if self.name == "systemd" else f"{self.bed.subtree}/{container.id}"
        assert container.cgroup() == expected
        return self.bed.cgroup(expected)


@pytest.fixture(params=["cgroupfs", pytest.param("systemd", marks=pytest.mark.needs("systemd"))])
def driver(request: pytest.FixtureRequest, runtime: Runtime, bed: Bed) -> Driver:
    return Driver(request.param, runtime, bed)
