"""pause and resume: the cgroup freezer."""

from __future__ import annotations

import pytest

from tests.conftest import MakeBundle
from tests.native.bed import Bed
from tests.native.runtime import Container, Runtime

pytestmark = pytest.mark.native

COUNT = "i=0; while :; do i=$((i+1)); echo $i; sleep 0.01; done"


def lines(container: Container) -> int:
    return len(container.out.splitlines())


def test_nothing_runs_between_pause_and_resume(runtime: Runtime, bundle: MakeBundle, bed: Bed) -> None:
    container = runtime.start(bundle().sh(COUNT))
    container.wait_for("3")
    assert runtime("pause", container.id) == (0, "", "")
    assert container.state()["status"] == "paused"
    assert container.state()["pid"] == container.pid
    assert "frozen 1" in (bed.cgroup(container.cgroup()) / "cgroup.events").read_text().splitlines(), "no process runs"
    before = lines(container)
    assert runtime("resume", container.id) == (0, "", "")
    assert container.state()["status"] == "running"
    container.wait_for(str(before + 3))


def test_pause_before_start(runtime: Runtime, bundle: MakeBundle) -> None:
    container = runtime.create(bundle().sh("exit 5"))
    assert runtime("pause", container.id).rc == 0
    assert container.state()["status"] == "paused"
    assert "paused" in container.start().text
    assert runtime("resume", container.id).rc == 0
    assert container.state()["status"] == "created"
    container.start()
    assert container.wait() == 5


def test_pause_twice(runtime: Runtime, bundle: MakeBundle) -> None:
    container = runtime.start(bundle().sh(COUNT))
    runtime("pause", container.id)
    result = runtime("pause", container.id)
    assert result.rc == 1
    assert "not running" in result.text


def test_resume_of_what_runs(runtime: Runtime, bundle: MakeBundle) -> None:
    container = runtime.start(bundle().sh(COUNT))
    result = runtime("resume", container.id)
    assert result.rc == 1
    assert "container not paused" in result.text


@pytest.mark.parametrize("command", ["pause", "resume"])
def test_stopped(runtime: Runtime, bundle: MakeBundle, command: str) -> None:
    container = runtime.start(bundle().args("true"))
    container.wait()
    assert runtime(command, container.id).rc == 1


@pytest.mark.parametrize("command", ["pause", "resume"])
def test_unknown_container(runtime: Runtime, command: str) -> None:
    result = runtime(command, "nosuchcontainer")
    assert result.rc == 1
    assert "does not exist" in result.text


def test_kill_and_delete_of_a_paused_container(runtime: Runtime, bundle: MakeBundle, bed: Bed) -> None:
    container = runtime.start(bundle().sh(COUNT))
    runtime("pause", container.id)
    assert container.kill("KILL").rc == 0
    assert container.wait() == 137
    other = runtime.start(bundle().sh(COUNT))
    runtime("pause", other.id)
    path = bed.cgroup(other.cgroup())
    assert other.delete("--force").rc == 0
    assert not path.exists()


def test_cgroups_below_are_paused_too(runtime: Runtime, bundle: MakeBundle, bed: Bed) -> None:
    container = runtime.start(bundle().sh(COUNT))
    sub = bed.cgroup(container.cgroup()) / "sub"
    sub.mkdir()
    (sub / "cgroup.procs").write_text(str(container.pid))
    assert runtime("pause", container.id).rc == 0
    assert "frozen 1" in (sub / "cgroup.events").read_text()
    assert runtime("resume", container.id).rc == 0
    assert "frozen 0" in (sub / "cgroup.events").read_text()
