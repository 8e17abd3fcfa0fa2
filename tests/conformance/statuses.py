"""Containers brought into each status that a test asks for."""

from __future__ import annotations

from tests.conftest import MakeBundle
from tests.native.runtime import Container, Runtime

SLEEP = "echo up; sleep 1000"
STATUSES = ["created", "running", "stopped"]


def in_status(status: str, runtime: Runtime, bundle: MakeBundle, annotations: dict[str, str] | None = None) -> Container:
    b = bundle().sh(SLEEP)
    if annotations is not None:
        b.config["annotations"] = annotations
    container = runtime.create(b)
    if status != "created":
        assert container.start().rc == 0
        container.wait_for("up")
    if status == "stopped":
        container.kill("KILL")
        container.wait()
    return container
