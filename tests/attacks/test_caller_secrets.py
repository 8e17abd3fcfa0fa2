"""What whoever called gpurun has in the environment (tokens, passwords) is in no process of the container: not even in the
memory of one that waits, which a neighbour with CAP_SYS_PTRACE could read."""

from __future__ import annotations

import secrets
from pathlib import Path

import pytest

from tests.conftest import MakeBundle
from tests.lifecycle.test_descriptors import waiting_exec
from tests.native.runtime import ENVIRONMENT, Runtime

pytestmark = [
    pytest.mark.native,
    pytest.mark.attack("the caller's environment", "the memory and the environment of a process that waits"),
    pytest.mark.falls("crun", reason="its init is a copy of the caller, with the caller's environment"),
]


def memory(pid: int) -> bytes:
    """All that *pid* has in its memory and can be read there."""
    found = []
    with open(f"/proc/{pid}/mem", "rb", buffering=0) as file:
        for line in Path(f"/proc/{pid}/maps").read_text().splitlines():
            place, mode = line.split()[:2]
            begin, end = [int(address, 16) for address in place.split("-")]
            if "r" not in mode or "[v" in line:  # vsyscall and its like are the kernel's
                continue
            file.seek(begin)
            found.append(file.read(end - begin))
    return b"".join(found)


@pytest.fixture
def token() -> str:
    return secrets.token_hex(16)


def test_of_an_init_that_waits_for_start(runtime: Runtime, bundle: MakeBundle, token: str) -> None:
    b = bundle().args("/bin/true")
    b.process["env"] = [f"MARK={token[::-1]}"]
    container = runtime.create(b, env={**ENVIRONMENT, "TOKEN": token})
    held = memory(container.pid)
    assert token[::-1].encode() in held, "what the process is to have is there"
    assert token.encode() not in held
    assert token.encode() not in container.proc("environ").read_bytes()


def test_of_exec_s_process_before_execve(
    runtime: Runtime, bundle: MakeBundle, token: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    container = runtime.start(bundle().sh("sleep 1000"))
    monkeypatch.setitem(ENVIRONMENT, "TOKEN", token)
    with waiting_exec(container, "--env", f"MARK={token[::-1]}") as pid:
        held = memory(pid)
    assert token[::-1].encode() in held, "what the process is to have is there"
    assert token.encode() not in held


def test_hooks_of_the_host_have_it(runtime: Runtime, bundle: MakeBundle, token: str, tmp_path: Path) -> None:
    """As under runc: a hook without an environment of its own gets the caller's."""
    said = tmp_path / "said"
    b = bundle().args("/bin/true")
    hook = {"path": "/bin/sh", "args": ["sh", "-c", f'echo "$TOKEN" >>{said}']}
    b.config["hooks"] = {stage: [hook] for stage in ("createRuntime", "poststart", "poststop")}
    assert runtime.run(b, env={**ENVIRONMENT, "TOKEN": token}).rc == 0
    assert said.read_text().split() == [token] * 3
