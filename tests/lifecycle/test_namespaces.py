"""Namespaces: each kind made, left out, and joined by path."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tests.conftest import MakeBundle
from tests.native.bundle import Bundle
from tests.native.runtime import Container, Runtime

pytestmark = pytest.mark.native

FILES = {"network": "net", "mount": "mnt"} | {k: k for k in ("pid", "ipc", "uts", "cgroup", "user", "time")}


def link(container: Container, kind: str) -> str:
    return os.readlink(container.proc(f"ns/{FILES[kind]}"))


def own(kind: str) -> str:
    return os.readlink(f"/proc/self/ns/{FILES[kind]}")


@pytest.mark.not_on("runc 1.1", reason="has no time namespaces")
def test_time_namespace(runtime: Runtime, bundle: MakeBundle) -> None:
    b = bundle().namespace("time").sh("cat /proc/uptime; cat /proc/self/timens_offsets; readlink /proc/self/ns/time")
    b.linux["timeOffsets"] = {"boottime": {"secs": 7000000, "nanosecs": 5}, "monotonic": {"secs": 172800}}
    lines = runtime.output(b).splitlines()
    assert float(lines[0].split()[0]) > 7000000
    assert lines[1].split() == ["monotonic", "172800", "0"]
    assert lines[2].split() == ["boottime", "7000000", "5"]
    assert lines[3] != own("time")


def test_first_process_is_pid_1(runtime: Runtime, bundle: MakeBundle) -> None:
    out = runtime.output(bundle().sh("echo $$; ps -o pid,comm"))
    assert out.splitlines()[0] == "1"
    assert len(out.splitlines()) <= 4, f"more than the shell and ps in a new pid namespace: {out}"


def test_new_network_namespace_has_loopback_up(runtime: Runtime, bundle: MakeBundle) -> None:
    out = runtime.output(bundle().args("ip", "-o", "link"))
    assert len(out.splitlines()) == 1
    assert "LOOPBACK,UP" in out
    assert "127.0.0.1/8" in runtime.output(bundle().args("ip", "-o", "-4", "addr"))


def joiner(bundle: Bundle, kind: str, path: str) -> Bundle:
    if kind == "uts":
        del bundle.config["hostname"]
    return bundle.namespace(kind, path)


@pytest.mark.parametrize("kind", ["pid", "network", "ipc", "uts", "cgroup"])
def test_joined_by_path(runtime: Runtime, bundle: MakeBundle, kind: str) -> None:
    first = runtime.create(bundle())
    second = runtime.create(joiner(bundle(), kind, f"/proc/{first.pid}/ns/{FILES[kind]}"))
    assert link(second, kind) == link(first, kind) != own(kind)
    for other in {"pid", "network", "ipc", "uts", "mount"} - {kind}:
        assert link(second, other) != link(first, other)


@pytest.mark.not_on("runc 1.1", reason="has no time namespaces")
def test_joined_time_namespace(runtime: Runtime, bundle: MakeBundle) -> None:
    b = bundle().namespace("time")
    b.linux["timeOffsets"] = {"monotonic": {"secs": 1000}}
    first = runtime.create(b)
    second = runtime.create(bundle().namespace("time", f"/proc/{first.pid}/ns/time"))
    assert link(second, "time") == link(first, "time") != own("time")


def test_joined_by_a_bound_file(runtime: Runtime, bundle: MakeBundle) -> None:
    """CNI keeps network namespaces as bind mounts under /run/netns."""
    first = runtime.create(bundle())
    pinned = runtime.directory / "netns"
    pinned.touch()

    def call(*argv: str) -> None:
        subprocess.run(argv, check=True, preexec_fn=runtime.bed.enter())

    call("mount", "--bind", f"/proc/{first.pid}/ns/net", str(pinned))
    try:
        expected = link(first, "network")
        first.delete("--force")
        second = runtime.create(bundle().namespace("network", str(pinned)))
        assert link(second, "network") == expected
    finally:
        call("umount", str(pinned))


def test_a_joined_uts_namespace_shows_its_hostname(runtime: Runtime, bundle: MakeBundle) -> None:
    b = bundle()
    b.config["hostname"] = "the-first"
    first = runtime.create(b)
    second = joiner(bundle().args("hostname"), "uts", f"/proc/{first.pid}/ns/uts")
    assert runtime.output(second) == "the-first\n"


def test_process_in_a_joined_pid_namespace(runtime: Runtime, bundle: MakeBundle) -> None:
    first = runtime.start(bundle().sh("echo up; sleep 1000"))
    first.wait_for("up")
    second = bundle().namespace("pid", f"/proc/{first.pid}/ns/pid").sh("echo $$; ps -o args")
    lines = runtime.output(second).splitlines()
    assert int(lines[0]) > 1
    assert any("sleep 1000" in line for line in lines)
    first.kill("KILL")
    assert first.wait() == 137


@pytest.mark.not_on("runc 1.1", reason="leaves the cgroup behind")
def test_kill_of_a_container_in_a_joined_pid_namespace_kills_all_of_it(runtime: Runtime, bundle: MakeBundle) -> None:
    first = runtime.start(bundle().sh("echo up; sleep 1000"))
    second = runtime.start(bundle().namespace("pid", f"/proc/{first.pid}/ns/pid").sh("sleep 1000 & echo up; sleep 1000"))
    second.wait_for("up")
    inside = runtime.bed.cgroup(second.cgroup()) / "cgroup.procs"
    assert len(inside.read_text().split()) == 2
    assert second.kill("KILL").rc == 0
    assert second.wait() == 137
    assert second.delete().rc == 0
    assert first.state()["status"] == "running"


@pytest.mark.parametrize(
    ("kind", "path", "says"),
    [
        ("network", "/nonexistent/netns", "no such file or directory"),
        ("network", "/proc/1/ns/ipc", ""),
        ("network", "/etc/hostname", ""),
    ],
)
def test_paths_that_are_no_such_namespace(runtime: Runtime, bundle: MakeBundle, kind: str, path: str, says: str) -> None:
    assert says in runtime.refused(bundle().namespace(kind, path))


@pytest.mark.sweep(3)
@pytest.mark.parametrize(
    ("name", "left_out"),
    [("vm.swappiness", None), ("kernel.hostname", None), ("net.ipv4.ip_forward", "network"), ("kernel.shmmax", "ipc"),
     ("kernel.panic", None), ("net/../kernel/panic", None), ("fs.file-max", None)],
)  # fmt: skip
def test_sysctls_of_the_host_are_refused(runtime: Runtime, bundle: MakeBundle, name: str, left_out: str | None) -> None:
    b = bundle()
    b.linux["sysctl"] = {name: "1"}
    if left_out:
        b.without_namespace(left_out)
    before = Path("/proc/sys/kernel/panic").read_text()
    assert name in runtime.refused(b)
    assert Path("/proc/sys/kernel/panic").read_text() == before


@pytest.mark.parametrize("kind", ["uts", "mount"])
def test_settings_that_need_a_namespace(runtime: Runtime, bundle: MakeBundle, kind: str) -> None:
    """Without the namespace the host would be changed."""
    texts = {"uts": "unable to set hostname without a private UTS namespace", "mount": "without a private MNT namespace"}
    host = os.uname().nodename
    assert texts[kind] in runtime.refused(bundle().without_namespace(kind))
    assert os.uname().nodename == host


def test_the_same_namespace_twice(runtime: Runtime, bundle: MakeBundle) -> None:
    b = bundle()
    b.linux["namespaces"].append({"type": "ipc"})
    assert "duplicated ns" in runtime.refused(b)


def test_unknown_namespace(runtime: Runtime, bundle: MakeBundle) -> None:
    b = bundle()
    b.linux["namespaces"].append({"type": "colour"})
    assert "colour" in runtime.refused(b)
