"""exec's plan: what the caller says, completed by what the container was made with.  Nothing is touched here."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gpurun.engine.caller.exec import read_process_file
from gpurun.engine.plan.exec import ExecHost, ExecOptions, SavedConfig, plan_exec, read_saved_config
from gpurun.engine.plan.records import ExecPlan, ProcessPlan
from gpurun.errors import ConfigError, GpurunError
from gpurun.linux.process import CLONE_NEWNS, CLONE_NEWPID, CLONE_NEWUSER
from gpurun.record import from_wire, replace, to_wire
from gpurun.security.capabilities import NAMES

HOST = ExecHost(last_cap=40)
PROCESS = {
    "args": ["init"],
    "cwd": "/srv",
    "env": ["PATH=/bin", "A=1"],
    "user": {"uid": 10, "gid": 20, "additionalGids": [30], "umask": 0o027},
    "capabilities": {"bounding": ["CAP_KILL"], "effective": ["CAP_KILL"], "permitted": ["CAP_KILL"]},
    "rlimits": [{"type": "RLIMIT_NOFILE", "soft": 1, "hard": 2}],
    "noNewPrivileges": True,
    "oomScoreAdj": 7,
}
NO_EDITS: tuple[tuple[str, ...], tuple[int, ...]] = ((), ())


def saved(process: dict[str, Any] | None = None, **linux: Any) -> SavedConfig:
    config = {
        "process": {**PROCESS, **(process or {})},
        "linux": {"namespaces": [{"type": "mount"}, {"type": "pid"}], **linux},
    }
    return read_saved_config(json.dumps(config).encode(), "config.json")


def options(**given: Any) -> ExecOptions:
    return ExecOptions(**{"id": "c1", "root": "/run/gpurun", "args": ("ls", "-l"), **given})


def plan(
    given: ExecOptions, config: SavedConfig | None = None, edits: tuple[tuple[str, ...], tuple[int, ...]] = NO_EDITS
) -> ProcessPlan:
    return plan_exec(given, config or saved(), edits, HOST, "/rootfs", "_ses.c1")[0].process


def of_file(**process: Any) -> ExecOptions:
    given = {"args": ["ls"], "cwd": "/", **process}
    return options(args=(), process=read_process_file(json.dumps(given).encode(), "process.json"))


def bit(name: str) -> int:
    return 1 << NAMES.index(name)


def test_options_change_the_containers_process() -> None:
    found = plan(options())
    assert found.args == ("ls", "-l")
    assert (found.cwd, found.uid, found.gid, found.groups, found.umask) == ("/srv", 10, 20, (30,), 0o027)
    assert found.env == (("PATH", "/bin"), ("A", "1"))
    assert found.no_new_privileges
    assert found.oom_score_adj == 7
    assert found.rlimits == ((7, 1, 2),)
    changed = plan(
        options(cwd="/x", env=("A=2", "B=3"), user="5:6", additional_gids=("40", "41"), no_new_privileges=False, tty=True)
    )
    assert (changed.cwd, changed.uid, changed.gid, changed.groups) == ("/x", 5, 6, (30, 40, 41))
    assert changed.env == (("PATH", "/bin"), ("A", "2"), ("B", "3"))
    assert not changed.no_new_privileges
    assert changed.terminal


def test_user_without_group_keeps_the_group() -> None:
    found = plan(options(user="5"))
    assert (found.uid, found.gid) == (5, 20)


def test_terminal_of_the_container_is_not_the_terminal_of_exec() -> None:
    assert not plan(options(), saved({"terminal": True})).terminal


@pytest.mark.parametrize("user", ["root", "-1", "+1", " 1", "1 ", "1_0", "٣", "0x1", "4294967295", "", "1:", "1:x", "1:2:3"])
def test_users_are_plain_numbers(user: str) -> None:
    """A lax reading gives another user than the one that was meant (CVE-2026-30892)."""
    if not user:
        assert plan(options(user=user)).uid == 10, "not given"
        return
    with pytest.raises(GpurunError, match=r"bad [ug]id"):
        plan(options(user=user))


@pytest.mark.parametrize("gid", ["-1", "wheel", "", "5,6"])
def test_groups_are_plain_numbers(gid: str) -> None:
    with pytest.raises(GpurunError, match="bad additional gid"):
        plan(options(additional_gids=(gid,)))


def test_added_capabilities_are_never_inheritable() -> None:
    masks = plan(options(capabilities=("CAP_NET_RAW",))).capabilities
    assert masks is not None
    added = bit("CAP_KILL") | bit("CAP_NET_RAW")
    assert (masks.bounding, masks.effective, masks.permitted) == (added, added, added)
    assert (masks.inheritable, masks.ambient) == (0, 0)


def test_added_capabilities_are_ambient_where_the_container_has_inheritable_ones() -> None:
    both = ["CAP_KILL", "CAP_NET_RAW"]
    sets = {**PROCESS["capabilities"], "inheritable": both, "ambient": ["CAP_KILL"]}  # type: ignore[dict-item]
    masks = plan(options(capabilities=("CAP_NET_RAW",)), saved({"capabilities": sets})).capabilities
    assert masks is not None
    assert masks.inheritable == masks.ambient == bit("CAP_KILL") | bit("CAP_NET_RAW")


def test_added_capabilities_that_cannot_be_ambient_are_warnings() -> None:
    sets = {**PROCESS["capabilities"], "inheritable": ["CAP_KILL"], "ambient": ["CAP_KILL"]}  # type: ignore[dict-item]
    config = saved({"capabilities": sets})
    found, warnings = plan_exec(options(capabilities=("CAP_NET_RAW",)), config, NO_EDITS, HOST, "/rootfs", "_ses.c1")
    assert found.process.capabilities is not None and found.process.capabilities.ambient == bit("CAP_KILL")
    assert warnings == ("can't raise ambient capability CAP_NET_RAW: operation not permitted",)


def test_command_is_needed() -> None:
    with pytest.raises(GpurunError, match="exec args cannot be empty"):
        plan(options(args=()))


def test_file_stands_for_itself() -> None:
    found = plan(of_file(env=["X=1"], user={"uid": 1}, noNewPrivileges=False))
    assert found.args == ("ls",)
    assert found.env == (("X", "1"),)
    assert (found.cwd, found.uid, found.gid, found.groups) == ("/", 1, 0, ())
    assert not found.no_new_privileges


def test_file_is_completed_by_the_container() -> None:
    found = plan(of_file())
    masks = found.capabilities
    assert masks is not None
    assert masks.bounding == bit("CAP_KILL")
    assert (found.rlimits, found.oom_score_adj, found.umask) == ((), 7, 0o027), "the limits are the caller's, as under runc"
    own = plan(
        of_file(
            capabilities={"bounding": []},
            rlimits=[{"type": "RLIMIT_CPU", "soft": 3, "hard": 4}],
            oomScoreAdj=0,
            user={"umask": 0},
        )
    )
    assert own.capabilities is not None
    assert own.capabilities.bounding == 0, "given, and none"
    assert (own.rlimits, own.oom_score_adj, own.umask) == (((0, 3, 4),), 0, 0)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("null", "process.json: process property must not be empty"),
        ('"ls"', "process.json: must be an object"),
        ('{"args": "ls"}', "process.args: must be an array"),
    ],
)
def test_bad_file(text: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        plan(options(args=(), process=read_process_file(text.encode(), "process.json")))


def test_devices_bring_variables_and_groups_to_every_process() -> None:
    edits = (("A=device", "GPU=0"), (44,))
    assert plan(of_file(env=["A=image"]), edits=edits).env == (("A", "device"), ("GPU", "0"))
    found = plan(options(env=("GPU=mine",)), edits=edits)
    assert dict(found.env) == {"PATH": "/bin", "A": "device", "GPU": "mine"}, "what a person says last, counts"
    assert found.groups == (30, 44)


def test_namespaces_and_root() -> None:
    found = plan_exec(options(), saved(), NO_EDITS, HOST, "/rootfs", "")[0]
    assert found.namespaces == CLONE_NEWNS | CLONE_NEWPID
    assert found.rootfs == ""
    assert not found.session_keyring
    bare = saved(namespaces=[{"type": "user", "path": "/proc/1/ns/user"}])
    assert plan_exec(options(), bare, NO_EDITS, HOST, "/rootfs", "_ses.c1")[0].rootfs == "/rootfs"
    assert bare.namespaces == CLONE_NEWUSER


def test_unknown_capabilities_are_warnings() -> None:
    _, warnings = plan_exec(options(capabilities=("CAP_TELEPATHY",)), saved(), NO_EDITS, HOST, "/rootfs", "_ses.c1")
    assert "CAP_TELEPATHY" in warnings[0]


def test_affinity() -> None:
    config = saved({"execCPUAffinity": {"initial": "0-1", "final": "3"}})
    found = plan_exec(options(), config, NO_EDITS, HOST, "/rootfs", "_ses.c1")[0]
    assert found.affinity == (b"\x03", b"\x08")
    own = plan_exec(of_file(execCPUAffinity={"final": "0"}), config, NO_EDITS, HOST, "/rootfs", "_ses.c1")[0]
    assert own.affinity == (b"", b"\x01")


def test_plan_can_be_sent() -> None:
    found = plan_exec(options(preserved=(3, 5)), saved(), NO_EDITS, HOST, "/rootfs", "_ses.c1", (b"\1" * 8, 3))[0]
    assert found.process.seccomp == (b"\1" * 8, 3)
    received: ExecPlan = from_wire(to_wire(found))
    assert received == found
    assert replace(received, preserved=()) != found


def test_groups_of_the_caller_are_kept_by_exec_too() -> None:
    """Else a process of exec could not open a GPU's nodes that belong to the group video."""
    config = {"process": {"cwd": "/", "args": ["true"], "user": {"additionalGids": [5]}}}
    for value, groups in (("1", None), ("0", (5,))):
        document = config | {"annotations": {"run.oci.keep_original_groups": value}}
        given = read_saved_config(json.dumps(document).encode(), "config.json")
        assert plan_exec(options(), given, NO_EDITS, HOST, "/rootfs", "_ses.c1")[0].process.groups == groups
