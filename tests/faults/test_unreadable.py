"""The state of a container that cannot be read for a moment, or not at all: what delete then does, and what it leaves."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest

from tests.conftest import MakeBundle
from tests.native.bed import Bed
from tests.native.inject import Injection
from tests.native.runtime import Runtime

pytestmark = [pytest.mark.native, pytest.mark.gpurun_only]

FOREVER = "echo up; while :; do sleep 0.01; done"


@pytest.mark.parametrize("error", ["EMFILE", "EIO", "ENOMEM", "EACCES"])
def test_delete_force_keeps_what_it_cannot_read(runtime: Runtime, bundle: MakeBundle, tmp_path: Path, error: str) -> None:
    """A state that cannot be read now is no damaged one: the container stays as it is, and can be deleted a moment later."""
    container = runtime.start(bundle().sh(FOREVER))
    container.wait_for("up")
    injection = Injection(tmp_path / "log", "openat", error, path=runtime.root / container.id / "state")
    with injection as tracer:
        done = runtime("delete", "--force", container.id, tracer=tracer)
    assert injection.injected
    assert done.rc == 1
    assert str(runtime.root / container.id / "state") in done.err and done.err.count("\n") == 1
    assert container.state()["status"] == "running"
    assert container.delete("--force") == (0, "", "")


def test_the_last_delete_of_run(runtime: Runtime, bundle: MakeBundle, bed: Bed, tmp_path: Path) -> None:
    """run knows its container without reading: an error then, or one before start, leaves nothing of it."""
    b = bundle().args("true")
    container_id = runtime.new_id()
    runtime.prepare(b, container_id)
    injection = Injection(tmp_path / "log", "openat", "EMFILE", path=runtime.root / container_id / "state")
    with injection as tracer:
        done = runtime("run", "--bundle", str(b.directory), container_id, tracer=tracer)
    assert injection.injected
    assert done.rc == 1 and "too many open files" in done.err
    assert not (runtime.root / container_id).exists()
    assert not bed.cgroup(f"{bed.subtree}/{container_id}").exists()


def test_start_reads_all_before_anything_runs(runtime: Runtime, bundle: MakeBundle, tmp_path: Path) -> None:
    """A start that says that it has failed has started nothing, and can be called again."""
    container = runtime.create(bundle().sh(FOREVER))
    injection = Injection(tmp_path / "log", "openat", "EMFILE", path=runtime.root / container.id / "config.json")
    with injection as tracer:
        done = runtime("start", container.id, tracer=tracer)
    assert injection.injected
    assert done.rc == 1 and "too many open files" in done.err
    assert container.state()["status"] == "created"
    assert container.start() == (0, "", "")
    container.wait_for("up")


@pytest.mark.parametrize("size", [1 << 20, 5 << 20])
def test_many_annotations(runtime: Runtime, bundle: MakeBundle, size: int) -> None:
    """What create writes, every other command can read: Podman copies the annotations of an image, however many."""
    b = bundle().sh(FOREVER)
    b.config["annotations"] = {"org.example": "x" * size}
    container = runtime.create(b)
    assert container.start() == (0, "", "")
    container.wait_for("up")
    assert len(container.state()["annotations"]["org.example"]) == size
    assert container.kill("KILL") == (0, "", "")
    container.wait()
    assert container.delete() == (0, "", "")


def test_too_many_annotations_are_refused(runtime: Runtime, bundle: MakeBundle) -> None:
    b = bundle()
    b.config["annotations"] = {"org.example": "x" * (17 << 20)}
    text = runtime.refused(b)
    assert "is larger than 16 MiB" in text and text.count("\n") == 1


@pytest.mark.sweep(3)
@pytest.mark.parametrize("damage", ["cut", "newer", "numbers"])
@pytest.mark.parametrize("frozen", [False, True])
def test_a_damaged_state_tells_its_cgroup(runtime: Runtime, bundle: MakeBundle, bed: Bed, damage: str, frozen: bool) -> None:
    """delete --force ends what is in the cgroup that a damaged state still names."""
    container = runtime.start(bundle().sh(FOREVER))
    container.wait_for("up")
    if frozen:
        assert runtime("pause", container.id).rc == 0
    file = runtime.root / container.id / "state"
    text = file.read_text()
    whole = {
        "cut": text[: text.index("private_pid=")],
        "newer": text.replace("private_pid=", "private_pids="),
        "numbers": text.replace("pid=", "pid=x"),
    }
    file.write_text(whole[damage])
    for command in ("state", "start", "kill", "delete"):
        done = runtime(command, container.id)
        assert done.rc == 1 and "damaged" in done.err and done.err.count("\n") == 1, (command, done)
    assert container.proc("stat").exists()
    done = container.delete("--force")
    assert done.rc == 0
    assert container.wait() == 128 + 9
    assert not (runtime.root / container.id).exists()
    assert not bed.cgroup(f"{bed.subtree}/{container.id}").exists()


@pytest.mark.parametrize(
    "line", ["cgroup=", "cgroup=/", "cgroup=relative", "cgroup=/sys/fs/cgroup", "cgroup=/sys/fs/cgroup/x/..", "cgroup=/tmp"]
)
def test_a_damaged_state_that_names_no_cgroup_of_a_container(
    runtime: Runtime, bundle: MakeBundle, bed: Bed, line: str
) -> None:
    """Nothing is killed that cannot be the container's; delete --force says what it could not look for, and fails."""
    container = runtime.start(bundle().sh(FOREVER))
    container.wait_for("up")
    file = runtime.root / container.id / "state"
    file.write_text(f"id={container.id}\n{line}\n")
    (file.parent / "config.json").write_text("{")
    done = container.delete("--force")
    assert done.rc == 1 and "damaged" in done.err and "cgroup" in done.err, done
    assert not (runtime.root / container.id).exists()
    assert os.path.exists(f"/proc/{container.pid}")
    os.kill(container.pid, 9)
    container.wait()
    bed.cgroup(f"{bed.subtree}/{container.id}").rmdir()


@pytest.mark.parametrize("left", ["", "i", "id=x\ncgroup=/tmp\n"])
def test_a_state_that_tells_nothing_has_a_config_beside_it(
    runtime: Runtime, bundle: MakeBundle, bed: Bed, left: str
) -> None:
    """It names the cgroup: what is in it is ended, and nothing stays."""
    container = runtime.start(bundle().sh(FOREVER))
    container.wait_for("up")
    (runtime.root / container.id / "state").write_text(left)
    done = container.delete("--force")
    assert done.rc == 0, done
    assert container.wait() == 128 + 9
    assert not (runtime.root / container.id).exists()
    assert not bed.cgroup(f"{bed.subtree}/{container.id}").exists()


def test_a_copy_of_a_state_directory(runtime: Runtime, bundle: MakeBundle) -> None:
    """Under the name of the copy nothing is done to the container that it was copied from."""
    container = runtime.start(bundle().sh(FOREVER))
    container.wait_for("up")
    copy = runtime.root / f"{container.id}-copy"
    shutil.copytree(runtime.root / container.id, copy)
    for command in ("state", "kill", "pause", "delete"):
        done = runtime(command, copy.name)
        assert done.rc == 1 and "is damaged" in done.err and done.err.count("\n") == 1, (command, done)
    runtime("delete", "--force", copy.name)
    assert not copy.exists()
    assert container.state()["status"] == "running"


def test_a_cgroup_that_another_container_has_is_not_killed(runtime: Runtime, bundle: MakeBundle) -> None:
    """A config.json that names it is not enough."""
    one, other = [runtime.start(bundle().sh(FOREVER)) for _ in range(2)]
    for container in (one, other):
        container.wait_for("up")
    directory = runtime.root / one.id
    config = json.loads((directory / "config.json").read_text())
    config["linux"]["cgroupsPath"] = other.cgroup()
    (directory / "config.json").write_text(json.dumps(config))
    (directory / "state").write_text("")
    done = one.delete("--force")
    assert done.rc == 1 and "its processes, if there are any, go on" in done.err, done
    assert os.path.exists(f"/proc/{other.pid}/ns/pid") and other.kill("KILL").rc == 0
    cgroup = runtime.bed.cgroup(one.cgroup())
    os.kill(one.pid, 9)
    assert one.wait() == 128 + 9 and other.wait() == 128 + 9
    cgroup.rmdir()


@pytest.mark.parametrize("part", [0, 0.1, 0.5, 0.9, 0.99])
def test_a_config_that_was_cut_off_has_lost_its_hooks(
    runtime: Runtime, bundle: MakeBundle, tmp_path: Path, part: float
) -> None:
    """delete refuses, delete --force removes the container and fails: the network that a hook gives back stays."""
    made = bundle().args("true")
    ran = tmp_path / "ran"
    made.config["hooks"] = {"poststop": [{"path": "/bin/sh", "args": ["sh", "-c", f"touch {ran}"]}]}
    container = runtime.start(made)
    container.wait()
    file = runtime.root / container.id / "config.json"
    data = file.read_bytes()
    file.write_bytes(data[: int(len(data) * part)])
    refused = container.delete()
    assert refused.rc == 1 and file.exists(), refused
    done = container.delete("--force")
    assert done.rc == 1 and "its saved config.json is damaged, no poststop hooks run" in done.err, done
    assert done.err.count("\n") == 1 and not file.parent.exists() and not ran.exists()


def test_braces_in_texts_are_no_damage(runtime: Runtime, bundle: MakeBundle) -> None:
    made = bundle().args("true")
    made.process["env"].append("X=}}{")
    assert runtime.run(made).rc == 0
