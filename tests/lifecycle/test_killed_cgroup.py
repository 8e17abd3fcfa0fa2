"""Callers and containers in cgroups that cgroup.kill was once written to.

The kernel counts those writes for each cgroup.  Since 6.14 (and 6.1.129, 6.6.78, 6.12.14) a fork compares the count at its
begin with that at its end, to miss none; with CLONE_INTO_CGROUP it takes the first from the caller's cgroup and the second
from the child's, and kills the child at birth where they differ.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.conftest import MakeBundle
from tests.native.bed import Bed, remove_cgroup
from tests.native.inject import Injection
from tests.native.runtime import Container, Runtime

pytestmark = pytest.mark.native

FOREVER = "echo up; while :; do sleep 0.01; done"


@pytest.fixture
def killed(bed: Bed) -> Iterator[Callable[[], None]]:
    """For a command's child: go into a cgroup that has been killed before."""
    path = bed.cgroup(f"{bed.subtree}/killed")
    path.mkdir()
    (path / "cgroup.kill").write_text("1")
    inside = f"/sys/fs/cgroup{bed.subtree}/killed/cgroup.procs"

    def enter() -> None:
        with open(inside, "w") as f:
            f.write("0")

    yield enter
    remove_cgroup(path)


def cgroup_of(container: Container, path: Path) -> bool:
    """Whether all processes of the container, and no other, are in *path*."""
    return str(container.pid) in (path / "cgroup.procs").read_text().split()


@pytest.mark.parametrize("kind", ["plain", "user", "time", "joined pid", "no cgroup namespace"])
def test_create_and_exec(runtime: Runtime, bundle: MakeBundle, bed: Bed, killed: Callable[[], None], kind: str) -> None:
    b = bundle().sh(FOREVER)
    b.mount("/cg", "cgroup", "ro", kind="cgroup")
    (b.rootfs / "cg").mkdir()
    first = runtime.start(bundle().sh(FOREVER)) if kind == "joined pid" else None
    if kind == "user":
        b.user_namespace()
    elif kind == "time":
        b.namespace("time")
    elif kind == "no cgroup namespace":
        b.without_namespace("cgroup")
    elif first is not None:
        b.namespace("pid", f"/proc/{first.pid}/ns/pid")
    container = runtime.create(b, preexec=killed)
    path = bed.cgroup(b.linux["cgroupsPath"])
    assert (path / "cgroup.procs").read_text().split() == [str(container.pid)]
    assert not bed.cgroup(f"{bed.subtree}/killed/cgroup.procs").read_text()
    assert runtime("start", container.id, preexec=killed) == (0, "", "")
    container.wait_for("up")
    seen = b.linux["cgroupsPath"] if kind == "no cgroup namespace" else "/"
    for enter in (killed, None):
        done = runtime("exec", container.id, "sh", "-c", "cat /proc/self/cgroup; ls -di /cg", preexec=enter)
        assert done.rc == 0, done
        lines = done.out.splitlines()
        assert f"0::{seen}" in lines
        assert (int(lines[-1].split()[0]) == path.stat().st_ino) is (kind != "no cgroup namespace")
    pid_file = str(runtime.directory / "pid")
    detached = runtime("exec", "--detach", "--pid-file", pid_file, container.id, "sleep", "1000", preexec=killed)
    assert detached.rc == 0, detached
    pid = int(Path(pid_file).read_text())
    assert str(pid) in (path / "cgroup.procs").read_text().split()
    assert not bed.cgroup(f"{bed.subtree}/killed/cgroup.procs").read_text()
    os.kill(pid, 9)
    os.waitpid(pid, 0)
    assert container.delete("--force").rc == 0


def test_run(runtime: Runtime, bundle: MakeBundle, killed: Callable[[], None]) -> None:
    assert runtime.output(bundle().args("cat", "/proc/self/cgroup"), preexec=killed).splitlines()[-1] == "0::/"


def test_exec_into_a_container_that_was_killed_once(runtime: Runtime, bundle: MakeBundle, bed: Bed) -> None:
    """The other way round: the container's cgroup is the one that has been killed before."""
    b = bundle().sh(FOREVER)
    b.linux["cgroupsPath"] = f"{bed.subtree}/once"
    path = bed.cgroup(b.linux["cgroupsPath"])
    path.mkdir()
    (path / "cgroup.kill").write_text("1")
    container = runtime.start(b)
    container.wait_for("up")
    assert cgroup_of(container, path)
    assert runtime("exec", container.id, "cat", "/proc/self/cgroup").out.splitlines()[-1] == "0::/"


@pytest.mark.gpurun_only
def test_a_cgroup_that_cannot_be_entered(
    runtime: Runtime, bundle: MakeBundle, bed: Bed, killed: Callable[[], None], tmp_path: Path
) -> None:
    """An error of the second way is told as such, and nothing is left."""
    b = bundle().sh(FOREVER)
    b.linux["cgroupsPath"] = f"{bed.subtree}/entered"
    path = f"/sys/fs/cgroup{b.linux['cgroupsPath']}"
    injection = Injection(tmp_path / "log", "write", "EBUSY", path=f"{path}/cgroup.procs")
    with injection as tracer:
        text = runtime.refused(b, preexec=killed, tracer=tracer)
    assert injection.injected
    assert "into the cgroup" in text and "device or resource busy" in text and text.count("\n") == 1
    assert not bed.cgroup(b.linux["cgroupsPath"]).exists()
    container = runtime.start(b)
    with injection as tracer:
        done = runtime("exec", container.id, "true", preexec=killed, tracer=tracer)
    assert injection.injected
    assert done.rc != 0 and "into the cgroup" in done.err and done.err.count("\n") == 1
