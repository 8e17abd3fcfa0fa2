"""What `gpu leases` says, and the end of a container that has some."""

from __future__ import annotations

import json
from typing import Any

from tests.native.runtime import ENVIRONMENT, Container, Runtime
from tests.simdriver import SimulatedDriver


def leases(runtime: Runtime, host: SimulatedDriver) -> list[dict[str, Any]]:
    result = runtime("gpu", "leases", "--json", env=ENVIRONMENT | host.env)
    assert result.rc == 0, result
    return json.loads(result.out)["leases"]  # type: ignore[no-any-return]


def end(container: Container) -> None:
    container.kill("KILL")
    container.wait()
