"""gpurun's parts on a real cluster's node: device plugin and DRA driver beside two simulated GPUs, claims for them."""

from __future__ import annotations

import os
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.kubernetes.mps import mps_programs
from tests.kubernetes.nodes import stub_library
from tests.kubernetes.real import NODE, Program, account, get, until
from tests.nvml import compile_stub
from tests.simdriver import Options, SimulatedDriver, make, minor

GPU = "nvidia.com/gpu"
#: Minors run against the order of the bus ids.
FIRST, SECOND = "nvidia1", "nvidia0"


def driver(directory: Path, mig: tuple[tuple[int, int, int], ...] = ()) -> SimulatedDriver:
    """Two GPUs that answer NVML."""
    made = make(directory / "host", Options(gpus=2, mig=mig))
    compile_stub(stub_library(made.path), mig=bool(mig), events=directory / "events")
    return made


class Plugin:
    """The device plugin with its driver."""

    def __init__(self, directory: Path) -> None:
        self.driver = driver(directory)
        self.config = directory / "config.yaml"
        self.config.write_text("version: v1\n")
        words = ("--config-file", str(self.config), "--interval", "0.5")
        self.program = Program(directory, "kubernetes", "device-plugin", *words, env=self.driver.env)

    def node(self, index: int) -> Path:
        return self.driver.path / f"dev/nvidia{minor(index, 2)}"


def metrics(directory: Path, made: SimulatedDriver) -> Iterator[str]:
    program = Program(directory, "metrics", "--listen", "127.0.0.1:19400", env=made.env)
    program.start()
    try:
        for _ in range(100):
            try:
                with urllib.request.urlopen("http://127.0.0.1:19400/metrics", timeout=30) as answer:
                    yield answer.read().decode()
            except OSError:
                yield ""
    finally:
        program.stop()


def owner(directory: Path, made: SimulatedDriver, name: str) -> str:
    """The line of the GPU that the pod *name* has."""
    scrapes = metrics(directory, made)

    def line() -> str:
        lines = next(scrapes).splitlines()
        return next((one for one in lines if one.startswith("DCGM_FI_DEV_POWER_USAGE{") and f'pod="{name}"' in one), "")

    try:
        return str(until(line))
    finally:
        scrapes.close()  # type: ignore[attr-defined]


def template(name: str, *requests: dict[str, Any], configs: list[dict[str, Any]] | None = None) -> dict[str, Any]:
    devices = {"requests": [{"name": f"r{i}", "exactly": one} for i, one in enumerate(requests)], "config": configs or []}
    return {
        "apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaimTemplate", "metadata": {"name": name},
        "spec": {"spec": {"devices": devices}},
    }  # fmt: skip


def gpu(expression: str = "", **more: Any) -> dict[str, Any]:
    selectors = [{"cel": {"expression": expression}}] if expression else []
    return {"deviceClassName": "gpu.nvidia.com", "selectors": selectors} | more


def configured(name: str, parameters: object) -> dict[str, Any]:
    return template(name, gpu(), configs=[{"opaque": {"driver": "gpu.nvidia.com", "parameters": parameters}}])


class Dra:
    """The DRA driver with its GPUs."""

    def __init__(
        self, directory: Path, mig: tuple[tuple[int, int, int], ...] = (), words: tuple[str, ...] = ()
    ) -> None:  # fmt: skip
        self.driver = driver(directory, mig)
        programs, self.log = mps_programs(directory)
        words = ("--kubeconfig", str(account(directory, "gpurun-dra-driver")), "--interval", "0.5", *words)
        env = self.driver.env | {"PATH": f"{programs}:{os.environ['PATH']}"}
        self.program = Program(directory, "kubernetes", "dra-driver", *words, env=env)

    def slices(self) -> list[dict[str, Any]]:
        specs = [one["spec"] for one in get("resourceslices")["items"]]
        return [spec for spec in specs if spec["driver"] == "gpu.nvidia.com" and spec.get("nodeName") == NODE]

    def devices(self) -> dict[str, dict[str, Any]]:
        """Those that claims get: without taints."""
        found = [device for spec in self.slices() for device in spec.get("devices") or ()]
        return {device["name"]: device for device in found if not device.get("taints")}

    def claims(self) -> list[Path]:
        return list(Path("/var/run/cdi").glob("k8s.gpu.nvidia.com-claim_*.json"))
