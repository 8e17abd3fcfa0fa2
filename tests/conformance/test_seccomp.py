"""config-linux.md "Seccomp"."""

from __future__ import annotations

from typing import Any

import pytest

from tests.conformance.levels import must
from tests.conformance.refused import refused
from tests.conftest import MakeBundle
from tests.native.bundle import Bundle
from tests.native.runtime import Runtime

pytestmark = pytest.mark.native

MKDIR = ["mkdir", "mkdirat"]


def rule(action: str, **more: Any) -> dict[str, Any]:
    return {"names": MKDIR, "action": f"SCMP_ACT_{action}", **more}


def under(b: Bundle, *rules: dict[str, Any], default: str = "SCMP_ACT_ALLOW", **more: Any) -> Bundle:
    b.linux["seccomp"] = {"defaultAction": default, "syscalls": list(rules), **more}
    return b.args("mkdir", "/tmp/made")


@must("config-linux.md: Seccomp")
@pytest.mark.parametrize(
    ("given", "code", "said"),
    [
        (rule("ERRNO"), 1, "Operation not permitted"),
        (rule("ERRNO", errnoRet=28), 1, "No space left on device"),
        (rule("KILL"), 159, ""),
        (rule("KILL_PROCESS"), 159, ""),
        (rule("KILL_THREAD"), 159, ""),
        (rule("TRAP"), 159, ""),
    ],
    ids=["ERRNO", "ERRNO 28", "KILL", "KILL_PROCESS", "KILL_THREAD", "TRAP"],
)
def test_config_linux_seccomp_actions(
    runtime: Runtime, bundle: MakeBundle, given: dict[str, Any], code: int, said: str
) -> None:
    """`action` is what happens; an `errnoRet` that is not given is EPERM"""
    result = runtime.run(under(bundle(), given))
    assert result.rc == code
    assert said in result.err


@must("config-linux.md: Seccomp")
@pytest.mark.parametrize("action", ["ALLOW", "LOG"])
def test_config_linux_seccomp_actions_that_let_through(runtime: Runtime, bundle: MakeBundle, action: str) -> None:
    """SCMP_ACT_ALLOW and SCMP_ACT_LOG let the call through"""
    b = under(bundle(), rule(action)).args("mkdir", "/dev/shm/made")
    assert runtime.run(b).rc == 0


@pytest.mark.not_on("gpurun", reason="ignores the errno, as runc does")
@pytest.mark.not_on("runc", reason="ignores the errno")
@must("config-linux.md: Seccomp")
@pytest.mark.parametrize("action", ["ALLOW", "KILL", "TRAP", "LOG"])
def test_config_linux_seccomp_errno_of_an_action_without(runtime: Runtime, bundle: MakeBundle, action: str) -> None:
    """when the action does not support an errno, MUST print an error and fail"""
    refused(runtime, under(bundle(), rule(action, errnoRet=1)))


@pytest.mark.not_on("gpurun", reason="ignores the errno, as runc does")
@pytest.mark.not_on("runc", reason="ignores the errno")
@must("config-linux.md: Seccomp")
def test_config_linux_seccomp_default_errno_of_an_action_without(runtime: Runtime, bundle: MakeBundle) -> None:
    """... also for `defaultErrnoRet`"""
    refused(runtime, under(bundle(), defaultErrnoRet=1))


@pytest.mark.not_on("crun", reason="takes it")
@pytest.mark.not_on("runc", reason="takes it")
@must("config-linux.md: Seccomp")
def test_config_linux_seccomp_names_at_least_one(runtime: Runtime, bundle: MakeBundle) -> None:
    """`names` MUST contain at least one entry"""
    refused(runtime, under(bundle(), {"names": [], "action": "SCMP_ACT_ERRNO"}))


@pytest.mark.not_on("crun", reason="ignores it")
@pytest.mark.not_on("gpurun", reason="ignores it, as runc does")
@pytest.mark.not_on("runc", reason="ignores it")
@must("config-linux.md: Seccomp")
def test_config_linux_seccomp_metadata_without_a_listener(runtime: Runtime, bundle: MakeBundle) -> None:
    """`listenerMetadata` MUST NOT be set if `listenerPath` is not set"""
    refused(runtime, under(bundle(), rule("ERRNO"), listenerMetadata="x"))


@must("config-linux.md: Seccomp")
@pytest.mark.parametrize("path", ["/nonexistent/agent.sock", "/etc/hostname"])
def test_config_linux_seccomp_listener_cannot_be_reached(runtime: Runtime, bundle: MakeBundle, path: str) -> None:
    """if sending to the socket of `listenerPath` fails, MUST generate an error"""
    refused(runtime, under(bundle(), rule("NOTIFY"), listenerPath=path))


BAD: dict[str, dict[str, Any]] = {
    "defaultAction": {"defaultAction": "SCMP_ACT_PERHAPS"},
    "action": {"syscalls": [{"names": MKDIR, "action": "SCMP_ACT_PERHAPS"}]},
    "architectures": {"architectures": ["SCMP_ARCH_ABACUS"]},
    "flags": {"flags": ["SECCOMP_FILTER_FLAG_PERHAPS"]},
    "op": {"syscalls": [rule("ERRNO", args=[{"index": 0, "value": 1, "op": "SCMP_CMP_PERHAPS"}])]},
    "index": {"syscalls": [rule("ERRNO", args=[{"index": 6, "value": 1, "op": "SCMP_CMP_EQ"}])]},
}


@pytest.mark.not_on("crun", reason="ignores unknown flags")
@must("config-linux.md: Seccomp")
@pytest.mark.parametrize("field", BAD)
def test_config_linux_seccomp_invalid_values(runtime: Runtime, bundle: MakeBundle, field: str) -> None:
    """values that do not exist are an error"""
    b = under(bundle(), rule("ERRNO"))
    b.linux["seccomp"].update(BAD[field])
    refused(runtime, b)


@must("config-linux.md: Seccomp")
@pytest.mark.parametrize(
    ("op", "value", "two", "denied"),
    [("NE", 0o777, 0, False), ("EQ", 0o777, 0, True), ("GT", 0o700, 0, True), ("LT", 0o700, 0, False),
     ("GE", 0o777, 0, True), ("LE", 0o776, 0, False), ("MASKED_EQ", 0o7, 0o7, True)],
)  # fmt: skip
def test_config_linux_seccomp_args(
    runtime: Runtime, bundle: MakeBundle, op: str, value: int, two: int, denied: bool
) -> None:
    """`args` compare an argument of the call (here: the mode of mkdir)"""
    compare = {"index": 1, "value": value, "valueTwo": two, "op": f"SCMP_CMP_{op}"}
    b = under(bundle(), {"names": ["mkdir"], "action": "SCMP_ACT_ERRNO", "args": [compare]})
    b.args("mkdir", "/dev/shm/made")
    assert (runtime.run(b).rc != 0) == denied
