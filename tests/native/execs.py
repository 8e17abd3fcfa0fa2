"""exec in a container that runs until it is deleted: how the tests call it, and how they read what it says."""

from __future__ import annotations

import json
from typing import Any

from tests.native.runtime import Container, Result

FOREVER = "trap 'exit 0' TERM; echo up; while :; do sleep 0.02; done"
CAPS = {"CHOWN": 0, "KILL": 5, "NET_BIND_SERVICE": 10, "NET_RAW": 13, "SYS_ADMIN": 21, "AUDIT_WRITE": 29}


def execute(container: Container, *args: str, options: tuple[str, ...] = (), **how: Any) -> Result:
    return container.runtime("exec", *options, container.id, *args, **how)


def output(container: Container, *args: str, options: tuple[str, ...] = (), **how: Any) -> str:
    result = execute(container, *args, options=options, **how)
    assert result.rc == 0, result
    return result.out


def process_file(container: Container, **process: Any) -> tuple[str, str]:
    """The options that run a process of exactly these members."""
    path = container.files / "process.json"
    path.write_text(json.dumps({"cwd": "/", "env": ["PATH=/bin"], "args": ["true"], **process}))
    return "--process", str(path)


def status(text: str) -> dict[str, str]:
    return {k: v.strip() for k, _, v in (line.partition(":") for line in text.splitlines())}


def mask(*names: str) -> int:
    return sum(1 << CAPS[name] for name in names)
