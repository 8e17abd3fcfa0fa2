"""Commands that take a container by the name that its engine gives it, and what engines find unchanged."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpurun import __main__
from gpurun.commands import containers
from gpurun.invocation import Globals, Invocation
from tests.conftest import MakeBundle
from tests.native.bundle import Bundle
from tests.native.runtime import Container, Result, Runtime

pytestmark = [pytest.mark.native, pytest.mark.gpurun_only]


@pytest.fixture
def engine(runtime: Runtime, bundle: MakeBundle) -> Iterator[Runtime]:  # ended before the leaks of bundles are looked for
    """The runtime as Docker calls it: with a state directory where its are."""
    if os.geteuid() != 0:
        pytest.skip("/run/docker belongs to root")
    parent = Path(f"/run/docker/runtime-test-{os.getpid()}")
    there = parent.parent.exists()
    parent.mkdir(parents=True)
    made = Runtime(runtime.path, runtime.bed, parent)
    yield made
    made.cleanup()
    for container in made.containers:
        container.wait()
    shutil.rmtree(parent)
    if not there:
        parent.parent.rmdir()


def named(b: Bundle, name: str) -> Bundle:
    b.config["annotations"] = {"nerdctl/name": name}
    return b.args("sleep", "600")


class Person(Runtime):
    """The runtime as a person calls it, who names no state directory."""

    @property
    def argv(self) -> list[str]:
        return [self.path]


def call(one: Runtime, *words: str) -> Result:
    return Person(one.path, one.bed, one.directory)(*words)


@pytest.fixture
def web(engine: Runtime, bundle: MakeBundle) -> Container:
    return engine.start(named(bundle(), f"web-{os.getpid()}"))


def test_a_name_does_in_every_command(engine: Runtime, web: Container) -> None:
    name = f"web-{os.getpid()}"
    assert json.loads(call(engine, "state", name).out)["id"] == web.id
    assert call(engine, "exec", name, "echo", "hello").out == "hello\n"
    assert json.loads(call(engine, "ps", "--format", "json", name).out) == [web.pid]
    assert call(engine, "pause", name).rc == 0 and web.state()["status"] == "paused"
    assert call(engine, "resume", name).rc == 0 and web.state()["status"] == "running"
    assert call(engine, "update", name).rc == 0
    assert call(engine, "kill", name, "KILL").rc == 0
    web.wait()
    assert json.loads(call(engine, "state", name).out)["status"] == "stopped", "a stopped container is known by its name"
    assert "container not running" in call(engine, "gpu", "attach", name, "0").text
    assert call(engine, "delete", name).rc == 0
    assert not (engine.root / web.id).exists()
    assert "does not exist" in call(engine, "state", name).text


def test_delete_by_force_follows_no_name(engine: Runtime, web: Container) -> None:
    """A script removes so what may have gone already; a name may be that of somebody else's container."""
    done = call(engine, "delete", "--force", f"web-{os.getpid()}")
    assert done.rc == 0 and f"--root {engine.root} delete --force {web.id}" in done.text
    assert web.state()["status"] == "running"


def test_a_name_of_two(engine: Runtime, bundle: MakeBundle, web: Container) -> None:
    other = engine.start(named(bundle(), f"web-{os.getpid()}"))
    done = call(engine, "kill", f"web-{os.getpid()}", "KILL")
    assert done.rc == 1 and "is the name of 2 containers" in done.text and web.id in done.text and other.id in done.text


def test_an_engine_names_ids_alone(engine: Runtime, web: Container) -> None:
    done = engine("state", f"web-{os.getpid()}")
    assert done.rc == 1 and done.err.endswith('msg="container does not exist"\n')


def test_update_of_gpus_takes_a_name_in_the_root_that_is_given(engine: Runtime, web: Container) -> None:
    done = engine("update", "--gpus", "none", f"web-{os.getpid()}")
    assert done.rc == 0, done.text


def test_an_id_that_is_there_is_looked_up_nowhere(engine: Runtime, web: Container, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Invocation] = []

    def with_name(invocation: Invocation) -> Invocation:
        asked.append(invocation)
        return invocation

    monkeypatch.setattr(containers, "with_name", with_name)
    there = Invocation("state", (web.id,), {}, Globals(str(engine.root)))
    assert __main__._resolve_name(there) is there and not asked
    regex = Invocation("kill", ("web.*",), {"regex": True}, Globals(str(engine.root)))
    assert __main__._resolve_name(regex) is regex and not asked
    missing = Invocation("state", ("web",), {}, Globals(str(engine.root)))
    assert __main__._resolve_name(missing) is missing and asked == [missing]
