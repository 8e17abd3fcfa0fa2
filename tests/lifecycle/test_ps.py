"""ps: the processes of a container, for shims (JSON) and for people (a table)."""

from __future__ import annotations

import json

import pytest

from tests.conftest import MakeBundle
from tests.native.bed import Bed
from tests.native.runtime import Runtime

pytestmark = pytest.mark.native

THREE = "sleep 1111 & sleep 2222 & echo up; wait"


def test_json_is_all_pids_and_nothing_else(runtime: Runtime, bundle: MakeBundle, bed: Bed) -> None:
    container = runtime.start(bundle().sh(THREE))
    container.wait_for("up")
    result = runtime("ps", "--format", "json", container.id)
    assert (result.rc, result.err) == (0, "")
    expected = (bed.cgroup(container.cgroup()) / "cgroup.procs").read_text().split()
    assert sorted(json.loads(result.out)) == sorted(int(pid) for pid in expected)
    assert container.pid in json.loads(result.out)


def test_processes_in_cgroups_below_count(runtime: Runtime, bundle: MakeBundle, bed: Bed) -> None:
    container = runtime.start(bundle().sh(THREE))
    container.wait_for("up")
    sub = bed.cgroup(container.cgroup()) / "sub"
    sub.mkdir()
    pids = json.loads(runtime("ps", "--format", "json", container.id).out)
    (sub / "cgroup.procs").write_text(str(max(pids)))
    assert sorted(json.loads(runtime("ps", "-f", "json", container.id).out)) == sorted(pids)


def test_table(runtime: Runtime, bundle: MakeBundle) -> None:
    container = runtime.start(bundle().sh(THREE))
    container.wait_for("up")
    header, *lines = runtime("ps", container.id).out.splitlines()
    assert header.split()[:3] == ["UID", "PID", "PPID"]
    assert sorted(line.split()[1] for line in lines) == sorted(
        str(pid) for pid in json.loads(runtime("ps", "-f", "json", container.id).out)
    )


def test_arguments_are_for_ps(runtime: Runtime, bundle: MakeBundle) -> None:
    container = runtime.start(bundle().sh(THREE))
    container.wait_for("up")
    header, *lines = runtime("ps", container.id, "-e", "-o", "args,pid").out.splitlines()
    if runtime.name == "runc":
        return  # finds the wrong column when an earlier one has blanks
    assert header.split() == ["COMMAND", "PID"]
    assert lines == [], "the column is looked for by its words, of which a command has several"
    header, *lines = runtime("ps", container.id, "-e", "-o", "pid,args").out.splitlines()
    assert any("sleep 2222" in line for line in lines)


def test_arguments_without_a_pid_column(runtime: Runtime, bundle: MakeBundle) -> None:
    container = runtime.start(bundle().sh(THREE))
    result = runtime("ps", container.id, "-e", "-o", "comm")
    assert result.rc == 1
    assert "couldn't find PID field in ps output" in result.text


def test_created_and_stopped(runtime: Runtime, bundle: MakeBundle) -> None:
    container = runtime.create(bundle().args("true"))
    assert json.loads(runtime("ps", "-f", "json", container.id).out) == [container.pid]
    container.start()
    container.wait()
    result = runtime("ps", "-f", "json", container.id)
    assert result.rc == 0
    assert not json.loads(result.out)


def test_bad_format(runtime: Runtime, bundle: MakeBundle) -> None:
    container = runtime.create(bundle())
    assert runtime("ps", "--format", "yaml", container.id).rc == 1


def test_unknown_container(runtime: Runtime) -> None:
    result = runtime("ps", "nosuchcontainer")
    assert result.rc == 1
    assert "does not exist" in result.text
