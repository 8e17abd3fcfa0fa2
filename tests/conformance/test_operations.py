"""runtime.md: operations."""

from __future__ import annotations

from typing import Any

import pytest

from tests.conformance.levels import must
from tests.conformance.refused import refused
from tests.conformance.statuses import STATUSES, in_status
from tests.conftest import MakeBundle
from tests.native.bed import Bed
from tests.native.runtime import Runtime

pytestmark = pytest.mark.native


@must("runtime.md: Query State")
def test_runtime_query_state_without_an_id(runtime: Runtime) -> None:
    """MUST generate an error if it is not provided the ID of a container"""
    assert runtime("state").rc != 0


@must("runtime.md: Query State")
def test_runtime_query_state_of_no_container(runtime: Runtime) -> None:
    """querying a container that does not exist MUST generate an error"""
    result = runtime("state", "no-such-container")
    assert result.rc != 0
    assert result.out == ""


@must("runtime.md: Query State")
def test_runtime_query_state_of_a_deleted_container(runtime: Runtime, bundle: MakeBundle) -> None:
    """a deleted container does not exist"""
    container = in_status("stopped", runtime, bundle)
    container.delete()
    assert runtime("state", container.id).rc != 0


@must("runtime.md: Create")
def test_runtime_create_without_an_id(runtime: Runtime, bundle: MakeBundle) -> None:
    """MUST generate an error if it is not provided the container ID"""
    b = bundle()
    b.write()
    assert runtime("create", "--bundle", str(b.directory)).rc != 0


@must("runtime.md: Create")
@pytest.mark.parametrize("given", ["nothing", "a directory without config.json", "no directory"])
def test_runtime_create_without_a_bundle(runtime: Runtime, given: str) -> None:
    """MUST generate an error if it is not provided a path to the bundle"""
    path = {"nothing": (), "no directory": ("--bundle", "/nonexistent")}.get(given, ("--bundle", str(runtime.directory)))
    container_id = runtime.new_id()
    assert runtime("create", *path, container_id, cwd=str(runtime.directory)).rc != 0
    assert runtime("state", container_id).rc != 0


@must("runtime.md: Create")
@pytest.mark.parametrize("status", STATUSES)
def test_runtime_create_with_an_id_in_use(runtime: Runtime, bundle: MakeBundle, status: str) -> None:
    """an ID that is not unique MUST generate an error, and a new container MUST NOT be created"""
    first = in_status(status, runtime, bundle)
    second = bundle()
    second.linux["cgroupsPath"] = f"{runtime.bed.subtree}/second"
    second.write()
    before = first.state()
    assert runtime("create", "--bundle", str(second.directory), first.id).rc != 0
    assert first.state() == before


@must("runtime.md: Create")
@pytest.mark.parametrize("bad", ["", "..", ".", "a/b", "../up", "a b", "a\nb"])
def test_runtime_create_with_an_id_that_is_not_valid(runtime: Runtime, bundle: MakeBundle, bad: str) -> None:
    """an ID that is not valid in any other way MUST generate an error"""
    b = bundle()
    b.linux["cgroupsPath"] = f"{runtime.bed.subtree}/bad"
    b.write()
    assert runtime("create", "--bundle", str(b.directory), bad).rc != 0


@must("runtime.md: Create")
def test_runtime_create_makes_a_new_container(runtime: Runtime, bundle: MakeBundle) -> None:
    """MUST create a new container"""
    first, second = runtime.create(bundle()), runtime.create(bundle())
    assert first.state()["status"] == second.state()["status"] == "created"
    assert first.pid != second.pid


@must("runtime.md: Create")
def test_runtime_create_applies_what_is_not_the_process(runtime: Runtime, bundle: MakeBundle) -> None:
    """all properties except `process` MUST be applied (here: mounts, root)"""
    b = bundle().mount("/run", "tmpfs", "size=1m", kind="tmpfs")
    b.config["root"]["readonly"] = True
    container = runtime.create(b)
    mounts = {f[4]: f for f in (line.split() for line in container.proc("mountinfo").read_text().splitlines())}
    assert "/run" in mounts
    assert "ro" in mounts["/"][5].split(",")


@pytest.mark.not_on("crun", reason="takes it, or leaves the cgroup behind")
@must("runtime.md: Create")
@pytest.mark.parametrize(
    "fields",
    [
        {"sysctl": {"net.ipv4.no_such_thing": "1"}},
        {"devices": [{"path": "/dev/x", "type": "z", "major": 1, "minor": 3}]},
        {"namespaces": [{"type": "mount"}, {"type": "colour"}]},
        {"resources": {"unified": {"nosuchcontroller.max": "1"}}},
    ],
    ids=["sysctl", "device", "namespace", "unified"],
)
def test_runtime_create_cannot_apply_a_property(runtime: Runtime, bundle: MakeBundle, fields: dict[str, Any]) -> None:
    """a property that cannot be applied MUST generate an error, and a new container MUST NOT be created"""
    b = bundle()
    b.linux.update(fields)
    refused(runtime, b)


@must("runtime.md: Start")
def test_runtime_start_without_an_id(runtime: Runtime) -> None:
    """MUST generate an error if it is not provided the container ID"""
    assert runtime("start").rc != 0


@must("runtime.md: Start")
def test_runtime_start_of_no_container(runtime: Runtime) -> None:
    """a container that does not exist is not created: MUST generate an error"""
    assert runtime("start", "no-such-container").rc != 0


@must("runtime.md: Start")
@pytest.mark.parametrize("status", ["running", "stopped"])
def test_runtime_start_of_what_is_not_created(runtime: Runtime, bundle: MakeBundle, status: str) -> None:
    """starting a container that is not created MUST have no effect and MUST generate an error"""
    container = in_status(status, runtime, bundle)
    before = container.state()
    assert container.start().rc != 0
    assert container.state() == before
    assert container.out == "up\n"


@must("runtime.md: Start")
def test_runtime_start_runs_the_program_with_its_arguments(runtime: Runtime, bundle: MakeBundle) -> None:
    """MUST run the user-specified program as specified by `process`"""
    container = runtime.start(bundle().args("echo", "one", "two words", ""))
    assert container.wait() == 0
    assert container.out == "one two words \n"


@pytest.mark.not_on("crun", reason="starts nothing without an error")
@must("runtime.md: Start")
def test_runtime_start_without_a_process(runtime: Runtime, bundle: MakeBundle) -> None:
    """MUST generate an error if `process` was not set: gpurun and runc refuse to create such a container"""
    b = bundle()
    del b.config["process"]
    refused(runtime, b)


@must("runtime.md: Kill")
def test_runtime_kill_without_an_id(runtime: Runtime) -> None:
    """MUST generate an error if it is not provided the container ID"""
    assert runtime("kill").rc != 0


@must("runtime.md: Kill")
def test_runtime_kill_of_no_container(runtime: Runtime) -> None:
    """a container that does not exist is neither created nor running: MUST generate an error"""
    assert runtime("kill", "no-such-container", "KILL").rc != 0


@must("runtime.md: Kill")
def test_runtime_kill_of_a_stopped_container(runtime: Runtime, bundle: MakeBundle) -> None:
    """a signal to a container neither created nor running MUST have no effect and MUST generate an error"""
    container = in_status("stopped", runtime, bundle)
    before = container.state()
    assert container.kill("KILL").rc != 0
    assert container.state() == before


@must("runtime.md: Kill")
@pytest.mark.parametrize("signal", ["TERM", "USR1", "HUP", "10", "SIGUSR2"])
def test_runtime_kill_sends_the_signal(runtime: Runtime, bundle: MakeBundle, signal: str) -> None:
    """MUST send the specified signal to the container process"""
    word = {"10": "USR1"}.get(signal, signal).removeprefix("SIG")
    traps = "".join(f"trap 'echo {name}; exit 0' {name};" for name in ("TERM", "USR1", "HUP", "USR2"))
    container = runtime.start(bundle().sh(f"{traps} echo up; while :; do sleep 0.01; done"))
    container.wait_for("up")
    assert container.kill(signal).rc == 0
    assert container.wait() == 0
    assert container.out == f"up\n{word}\n"


@must("runtime.md: Kill")
def test_runtime_kill_of_a_created_container(runtime: Runtime, bundle: MakeBundle) -> None:
    """a created container can be sent a signal"""
    container = runtime.create(bundle())
    assert container.kill("KILL").rc == 0
    assert container.wait() == 137


@must("runtime.md: Delete")
def test_runtime_delete_without_an_id(runtime: Runtime) -> None:
    """MUST generate an error if it is not provided the container ID"""
    assert runtime("delete").rc != 0


@must("runtime.md: Delete")
def test_runtime_delete_of_no_container(runtime: Runtime) -> None:
    """a container that does not exist is not stopped: MUST generate an error"""
    assert runtime("delete", "no-such-container").rc != 0


@must("runtime.md: Delete")
def test_runtime_delete_of_a_running_container(runtime: Runtime, bundle: MakeBundle) -> None:
    """deleting a running container MUST have no effect and MUST generate an error"""
    container = in_status("running", runtime, bundle)
    assert container.delete().rc != 0
    assert container.state()["status"] == "running"


@pytest.mark.not_on("crun", reason="ends the container and deletes it")
@pytest.mark.not_on("gpurun", reason="ends the container and deletes it, as runc does: engines rely on it")
@pytest.mark.not_on("runc", reason="ends the container and deletes it")
@must("runtime.md: Delete")
def test_runtime_delete_of_a_created_container(runtime: Runtime, bundle: MakeBundle) -> None:
    """deleting a created container MUST have no effect and MUST generate an error"""
    container = runtime.create(bundle())
    assert container.delete().rc != 0
    assert container.state()["status"] == "created"


@must("runtime.md: Delete")
def test_runtime_delete_of_a_stopped_container(runtime: Runtime, bundle: MakeBundle) -> None:
    """MUST delete the resources that were created during the create step"""
    container = in_status("stopped", runtime, bundle)
    assert container.delete().rc == 0  # the fixture `leaks` looks for what is left


@must("runtime.md: Delete")
def test_runtime_delete_keeps_what_the_container_did_not_make(runtime: Runtime, bundle: MakeBundle, bed: Bed) -> None:
    """resources not created by this container MUST NOT be deleted"""
    source = runtime.directory / "source"
    source.mkdir()
    (source / "file").write_text("kept")
    first = runtime.create(bundle())
    b = bundle().mount("/tmp", str(source), "bind").namespace("ipc", f"/proc/{first.pid}/ns/ipc")
    second = runtime.start(b)
    second.wait()
    assert second.delete().rc == 0
    assert (source / "file").read_text() == "kept"
    assert b.rootfs.is_dir() and (b.directory / "config.json").exists()
    assert first.state()["status"] == "created"
    assert bed.cgroup(bed.subtree).is_dir()


@must("runtime.md: Delete")
def test_runtime_delete_frees_the_id(runtime: Runtime, bundle: MakeBundle) -> None:
    """once deleted, the ID may be used by a subsequent container"""
    container = in_status("stopped", runtime, bundle)
    container.delete()
    again = runtime.create(bundle(), container_id=container.id)
    assert again.state()["status"] == "created"
