"""Containers that ask for free GPUs: how they ask, what they got, what `gpu leases` says, and their end."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.conftest import MakeBundle
from tests.native.bundle import Bundle
from tests.native.runtime import ENVIRONMENT, Container, Runtime
from tests.simdriver import SimulatedDriver

SLEEP = "echo $NVIDIA_VISIBLE_DEVICES; ls /dev | grep nvidia[0-9]; exec sleep 600"
Start = Callable[..., Container]


def leases(runtime: Runtime, host: SimulatedDriver) -> list[dict[str, Any]]:
    result = runtime("gpu", "leases", "--json", env=ENVIRONMENT | host.env)
    assert result.rc == 0, result
    return json.loads(result.out)["leases"]  # type: ignore[no-any-return]


def end(container: Container) -> None:
    container.kill("KILL")
    container.wait()


def starter(runtime: Runtime, bundle: MakeBundle, host: SimulatedDriver) -> Start:
    """``start("free:2", NAME="value")``: a container that runs and has said what it got."""

    def run(devices: str, *, on: SimulatedDriver = host, script: str = SLEEP, config: Any = None, **env: str) -> Container:
        b = asking(bundle(), devices, script)
        if config:
            config(b)
        container = runtime.start(b, env=ENVIRONMENT | on.env | env)
        container.wait_for("nvidia")
        return container

    return run


def asking(bundle: Bundle, devices: str, script: str = SLEEP) -> Bundle:
    bundle.process["env"] += [f"NVIDIA_VISIBLE_DEVICES={devices}"]
    return bundle.sh(script)


def got(container: Container) -> list[str]:
    return container.out.splitlines()[0].split(",")


def refused(runtime: Runtime, bundle: Bundle, host: SimulatedDriver, devices: str, **env: str) -> str:
    return runtime.refused(asking(bundle, devices), env=ENVIRONMENT | host.env | env)


def site(tmp_path: Path, text: str) -> dict[str, str]:
    (tmp_path / "site.toml").write_text(f"[leases]\n{text}\n")
    return {"GPURUN_CONFIG": str(tmp_path / "site.toml")}
