"""CVE-2022-29162: capabilities that exec adds are inheritable, so that programs of another user get them by their files."""

from __future__ import annotations

import json

import pytest

from tests.conftest import MakeBundle
from tests.native.runtime import Runtime

pytestmark = [
    pytest.mark.native,
    pytest.mark.attack("CVE-2022-29162", "a process's capabilities are inheritable though nobody asked for it"),
]

FOREVER = "while :; do sleep 0.02; done"
NET_RAW = 1 << 13


def sets(status: str) -> dict[str, int]:
    words = dict(line.split(":\t", 1) for line in status.splitlines() if line.startswith("Cap"))
    return {name: int(value, 16) for name, value in words.items()}


@pytest.mark.parametrize("how", ["--cap", "--process"])
def test_exec(runtime: Runtime, bundle: MakeBundle, how: str) -> None:
    container = runtime.start(bundle().sh(FOREVER))
    options = ["--cap", "CAP_NET_RAW"]
    if how == "--process":
        path = container.files / "process.json"
        given = {kind: ["CAP_NET_RAW"] for kind in ("bounding", "permitted", "effective")}
        process = {"cwd": "/", "env": ["PATH=/bin"], "args": ["cat", "/proc/self/status"], "user": {"uid": 0, "gid": 0}}
        path.write_text(json.dumps({**process, "capabilities": given}))
        options = ["--process", str(path)]
    command = () if how == "--process" else ("cat", "/proc/self/status")
    result = runtime("exec", *options, container.id, *command)
    assert result.rc == 0, result.text
    found = sets(result.out)
    assert found["CapPrm"] & NET_RAW, "the process has the capability: it could be inherited"
    assert found["CapInh"] == 0 and found["CapAmb"] == 0


def test_the_first_process(runtime: Runtime, bundle: MakeBundle) -> None:
    found = sets(runtime.output(bundle().args("cat", "/proc/self/status").capabilities("CAP_NET_RAW")))
    assert found["CapPrm"] & NET_RAW
    assert found["CapInh"] == 0 and found["CapAmb"] == 0
