"""A node for the device plugin's tests: a simulated driver, the tests' kubelet, and the plugin between them."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import gpurun
from gpurun.gpu.nvidia.host.roots import Roots
from gpurun.gpu.nvidia.mps.node_service import NodeProgram, end_all
from gpurun.gpu.vendors import NAMES
from gpurun.kubernetes.config import PluginConfig, Replicated, Sharing
from gpurun.kubernetes.device_plugin.manager import Manager, Places
from gpurun.kubernetes.probes import Probes
from gpurun.kubernetes.specs import NodeHost
from tests.kubernetes.kubelet import Kubelet
from tests.native.waiting import wait_until
from tests.simdriver import MULTIARCH, VERSION, Options, SimulatedDriver, make, minor

GPU = "nvidia.com/gpu"
#: A host without anything of NVIDIA's.
NO_NVIDIA = Options(gpus=0, no_module=True, no_userspace=True, nodes=False)


def own_program(directory: Path) -> Path:
    """This tree's gpurun as the program of a node."""
    path = directory / "gpurun"
    path.write_text(f'#!/bin/sh\nPYTHONPATH="{Path(gpurun.__file__).parents[1]}" exec {sys.executable} -m gpurun "$@"\n')
    path.chmod(0o755)
    return path


class CountedProbes(Probes):
    """How often the part's loop has gone round."""

    rounds = 0

    def beat(self, rests_s: float = 0.0) -> None:
        super().beat(rests_s)
        self.rounds += 1


class Node:
    """What a test needs of it."""

    def __init__(self, directory: Path, driver: SimulatedDriver) -> None:
        self.directory, self.driver = directory, driver
        self.kubelet = Kubelet(directory / "kubelet")
        self.cdi_dir = directory / "cdi"
        self.config = PluginConfig()
        self.manager: Manager | None = None
        self.probes = CountedProbes()
        self.failure: BaseException | None = None
        self._thread: threading.Thread | None = None

    def start_plugin(
        self, interval_s: float = 0.1, env: dict[str, str] | None = None, programs: str = "", root: str = "",
        driver_root: str = "/", makers: tuple[str, ...] = NAMES,
    ) -> None:  # fmt: skip
        """*root* is where the host's root is mounted, when the plugin runs in a pod."""
        hook = (str(own_program(self.directory)), "hook") if root else NodeHost(Roots()).hook
        host = NodeHost(Roots(driver_root, str(self.driver.path)), root, hook)
        places = Places(str(self.directory / "kubelet"), str(self.cdi_dir), programs, interval_s)
        own = {} if root else self.driver.env  # in a pod nothing of it is in the environment
        manager = Manager(host, lambda: self.config, places, own | (env or {}), self.probes, makers)
        self.manager = manager

        def run() -> None:
            try:
                manager.run()
            except BaseException as e:  # the test asks for it
                self.failure = e

        self._thread = threading.Thread(target=run, daemon=True)
        self._thread.start()

    def wait_for_a_round(self) -> None:
        """Return when the plugin's loop has begun and ended after this call."""
        after = self.probes.rounds + 2
        wait_until(lambda: self.probes.rounds >= after)

    def stop_plugin(self) -> None:
        if self.manager is not None and self._thread is not None:
            self.manager.stop()
            self._thread.join(20)
            assert not self._thread.is_alive(), "the plugin does not end"
        self.manager = self._thread = None

    def device_node(self, index: int) -> Path:
        return self.driver.path / f"dev/nvidia{minor(index, self.driver.options.gpus)}"


@contextmanager
def node(options: Options | None = None, change: Callable[[Path], object] | None = None) -> Iterator[Node]:
    """A node with a kubelet that runs; *change* is done to the driver's tree first.

    For a host of another maker's the driver has no GPU and no module (:data:`NO_NVIDIA`), and *change* makes the rest.
    """
    # A Unix socket's path has at most 107 bytes, and pytest's directories take most of them.
    directory = Path(tempfile.mkdtemp(prefix="node-"))
    try:
        driver = make(directory / "host", options or Options(gpus=2))
        if change is not None:
            change(driver.path)
        made = Node(directory, driver)
        made.kubelet.start()
        try:
            yield made
        finally:
            made.stop_plugin()
            made.kubelet.stop()
            assert end_all(f"{directory}/mps", NodeProgram()) == []
    finally:
        shutil.rmtree(directory)


def replace_node(path: Path, number: int) -> None:
    """Make the device node *path* of GPU minor *number* again."""
    os.mknod(path, 0o20666, os.makedev(195, number))


def shared(strategy: str, replicas: int, fail: bool = False, rename: str = "") -> PluginConfig:
    return PluginConfig(sharing=Sharing(strategy, fail, (Replicated(GPU, replicas, rename),)))


def stub_library(root: Path) -> Path:
    library = next((root / "usr/lib" / MULTIARCH[os.uname().machine]).rglob(f"libnvidia-ml.so.{VERSION}"))
    library.unlink()
    return library
