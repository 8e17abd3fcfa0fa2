"""/dev: the default nodes and links, nodes of the config, and what the device cgroup lets through."""

from __future__ import annotations

import os
import stat
from typing import Any

import pytest

from tests.conftest import MakeBundle
from tests.native.leaks import Leaks
from tests.native.runtime import Runtime

pytestmark = pytest.mark.native

DEFAULTS = {"null": (1, 3), "zero": (1, 5), "full": (1, 7), "random": (1, 8), "urandom": (1, 9), "tty": (5, 0)}

# What open(2) of a node without driver says once the device cgroup has let it through: there is no such hardware.
GRANTED = "No such device or address"
DENIED = "Operation not permitted"


def device(path: str, major: int, minor: int, **more: Any) -> dict[str, Any]:
    return {"path": path, "type": "c", "major": major, "minor": minor, **more}


def rule(
    allow: bool, major: int | None = None, minor: int | None = None, access: str = "rwm", **more: Any
) -> dict[str, Any]:
    numbers = {k: v for k, v in (("major", major), ("minor", minor)) if v is not None}
    return {"allow": allow, "type": "c", "access": access, **numbers, **more}


def test_default_nodes(runtime: Runtime, bundle: MakeBundle) -> None:
    b = bundle().args("stat", "-c", "%n %F %t:%T %a %u:%g", *[f"/dev/{name}" for name in DEFAULTS])
    expected = [f"/dev/{n} character special file {M:x}:{m:x} 666 0:0" for n, (M, m) in DEFAULTS.items()]
    assert runtime.output(b).splitlines() == expected


def test_default_nodes_work(runtime: Runtime, bundle: MakeBundle) -> None:
    b = bundle().sh(
        "for n in null zero full random urandom; do head -c 2 /dev/$n | wc -c; done;"
        "echo x >/dev/null && echo x >/dev/zero; echo x >/dev/full || echo full; ls -l /dev/pts/ptmx | cut -c1"
    )
    assert runtime.output(b).split() == ["0", "2", "2", "2", "2", "full", "c"]


@pytest.mark.parametrize(
    ("link", "target"),
    [("fd", "/proc/self/fd"), ("stdin", "/proc/self/fd/0"), ("stdout", "/proc/self/fd/1"), ("stderr", "/proc/self/fd/2"),
     ("ptmx", "pts/ptmx"), ("core", "/proc/kcore")],
)  # fmt: skip
def test_default_links(runtime: Runtime, bundle: MakeBundle, link: str, target: str) -> None:
    if not os.path.exists(target) and link == "core":
        pytest.skip("this kernel has no /proc/kcore")
    assert runtime.output(bundle().args("readlink", f"/dev/{link}")) == f"{target}\n"


def test_bound_dev_is_left_alone(runtime: Runtime, bundle: MakeBundle) -> None:
    given = runtime.directory / "dev"
    (given / "pts").mkdir(parents=True)
    (given / "shm").mkdir()
    (given / "mqueue").mkdir()
    os.mknod(given / "null", stat.S_IFCHR | 0o666, os.makedev(1, 3))
    b = bundle().args("ls", "/dev")
    b.config["mounts"] = [m for m in b.config["mounts"] if not m["destination"].startswith("/dev")]
    b.mount("/dev", str(given), "rbind")
    assert runtime.output(b).split() == ["mqueue", "null", "pts", "shm"]
    assert sorted(p.name for p in given.iterdir()) == ["mqueue", "null", "pts", "shm"]


def test_nodes_of_the_config(runtime: Runtime, bundle: MakeBundle) -> None:
    b = bundle().args(
        "stat", "-c", "%n %F %t:%T %a %u:%g", "/dev/some", "/dev/deep/er", "/dev/pipe", "/dev/blk", "/dev/null"
    )
    b.linux["devices"] = [
        device("/dev/some", 195, 3, fileMode=0o640, uid=1000, gid=1000),
        device("/dev/deep/er", 10, 200),
        {"path": "/dev/pipe", "type": "p"},
        {"path": "/dev/blk", "type": "b", "major": 7, "minor": 9, "fileMode": 0o600},
        device("/dev/null", 1, 3, fileMode=0o444),
    ]
    b.linux["resources"]["devices"].append(rule(True, 1, 3))  # a node that the config lists has the config's rules alone
    assert runtime.output(b).splitlines() == [
        "/dev/some character special file c3:3 640 1000:1000",
        "/dev/deep/er character special file a:c8 666 0:0",
        "/dev/pipe fifo 0:0 666 0:0",
        "/dev/blk block special file 7:9 600 0:0",
        "/dev/null character special file 1:3 444 0:0",
    ]


def test_nodes_outside_dev(runtime: Runtime, bundle: MakeBundle) -> None:
    b = bundle().args("stat", "-c", "%t:%T", "/run/node").mount("/run", "tmpfs", "mode=755", kind="tmpfs")
    b.linux["devices"] = [device("/run/node", 195, 3)]
    assert runtime.output(b) == "c3:3\n"


@pytest.mark.parametrize("bad", [{"type": "x"}, {"type": ""}, {"type": "C"}])
def test_bad_nodes(runtime: Runtime, bundle: MakeBundle, bad: dict[str, Any]) -> None:
    b = bundle()
    b.linux["devices"] = [device("/dev/some", 195, 3) | bad]
    runtime.refused(b)


def open_node(b: Any, *rules: dict[str, Any], node: tuple[int, int] = (195, 7), how: str = "<>") -> Any:
    """*b* with *rules* and a node that its command opens."""
    b.linux["devices"] = [device("/dev/card", *node)]
    b.linux["resources"]["devices"] = [{"allow": False, "access": "rwm"}, *rules]
    return b.sh(f": {how} /dev/card")


@pytest.mark.sweep(6)
@pytest.mark.parametrize(
    ("rules", "how", "says"),
    [
        ([], "<>", DENIED),
        ([rule(True, 195, 7)], "<>", GRANTED),
        ([rule(True, 195, 8)], "<>", DENIED),
        ([rule(True, 195)], "<>", GRANTED),
        ([rule(True, 195, -1)], "<>", GRANTED),
        ([rule(True)], "<>", GRANTED),
        ([rule(True, 196)], "<>", DENIED),
        ([rule(True, 195, 7, "r")], "<", GRANTED),
        ([rule(True, 195, 7, "r")], "<>", DENIED),
        ([rule(True, 195, 7, "w")], "<", DENIED),
        ([rule(True, 195, 7, "r"), rule(True, 195, 7, "w")], "<>", GRANTED),
        ([rule(True, 195, 7), rule(False, 195, 7, "w")], "<>", DENIED),
        ([rule(True, 195, 7), rule(False, 195, 7, "w")], "<", GRANTED),
        ([rule(True, 195, 7, type="b")], "<>", DENIED),
        ([{"allow": True, "access": "rwm"}], "<>", GRANTED),
        ([{"allow": True, "access": "rwm"}, rule(False, 195, 7)], "<>", DENIED),
        ([rule(True, 195, 7), {"allow": False, "type": "a", "access": "rwm"}], "<>", DENIED),
    ],
)
def test_device_rules(runtime: Runtime, bundle: MakeBundle, rules: list[dict[str, Any]], how: str, says: str) -> None:
    result = runtime.run(open_node(bundle(), *rules, how=how))
    assert result.rc != 0
    assert says in result.err, result.err


def test_nothing_allowed_still_leaves_the_defaults(runtime: Runtime, bundle: MakeBundle) -> None:
    b = bundle().capabilities("CAP_MKNOD").sh("mknod /dev/x c 1 3 && echo y >/dev/x && mknod /dev/z c 195 1 && : </dev/z")
    result = runtime.run(b)
    assert DENIED in result.err, "making nodes is allowed, opening them is not"
    assert "/dev/z" in result.err


def test_rules_without_a_resources_list_deny_all_but_the_defaults(runtime: Runtime, bundle: MakeBundle) -> None:
    b = bundle().sh(": <>/dev/card")
    del b.linux["resources"]
    b.linux["devices"] = [device("/dev/card", 195, 7)]
    assert DENIED in runtime.run(b).err


@pytest.mark.parametrize(
    ("field", "value"),
    [("access", ""), ("type", "q")],
)
def test_bad_rules(runtime: Runtime, bundle: MakeBundle, field: str, value: str) -> None:
    b = bundle()
    b.linux["resources"]["devices"].append(rule(True, 195, 7) | {field: value})
    runtime.refused(b)


def test_the_hosts_own_devices_are_untouched(runtime: Runtime, bundle: MakeBundle) -> None:
    runtime.output(bundle().args("true"))
    with open("/dev/null", "w") as null, open("/dev/zero", "rb") as zero:
        null.write("x")
        assert zero.read(1) == b"\0"


def test_dev_in_the_image(runtime: Runtime, bundle: MakeBundle, leaks: Leaks) -> None:
    """No mount on /dev: the nodes are made in the image itself, as runc does."""
    leaks.allow_rootfs_changes()
    b = bundle().sh("echo x >/dev/null; stat -c %t:%T /dev/zero")
    b.config["mounts"] = [m for m in b.config["mounts"] if not m["destination"].startswith("/dev")]
    assert runtime.output(b) == "1:5\n"
