"""runtime.md: state, lifecycle, errors, operations."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import pytest

from tests.conformance.levels import must
from tests.conformance.refused import refused
from tests.conftest import MakeBundle
from tests.native.bed import Bed
from tests.native.leaks import Leaks
from tests.native.runtime import Container, Runtime

pytestmark = pytest.mark.native

SLEEP = "echo up; sleep 1000"
SEMVER = re.compile(r"(0|[1-9]\d*)\.(0|[1-9]\d*)\.(0|[1-9]\d*)(-[0-9A-Za-z.-]+)?(\+[0-9A-Za-z.-]+)?")
STATUSES = ["created", "running", "stopped"]


def in_status(status: str, runtime: Runtime, bundle: MakeBundle, annotations: dict[str, str] | None = None) -> Container:
    b = bundle().sh(SLEEP)
    if annotations is not None:
        b.config["annotations"] = annotations
    container = runtime.create(b)
    if status != "created":
        assert container.start().rc == 0
        container.wait_for("up")
    if status == "stopped":
        container.kill("KILL")
        container.wait()
    return container


@must("runtime.md: Scope of a Container")
def test_runtime_scope_the_creator_can_use_all_operations(runtime: Runtime, bundle: MakeBundle) -> None:
    """who creates a container MUST be able to use the operations on that same container"""
    container = runtime.create(bundle().sh(SLEEP))
    assert container.state()["id"] == container.id
    assert container.start().rc == 0
    assert container.kill("KILL").rc == 0
    container.wait()
    assert container.delete().rc == 0


@must("runtime.md: State")
@pytest.mark.parametrize("status", STATUSES)
def test_runtime_state_status(runtime: Runtime, bundle: MakeBundle, status: str) -> None:
    """`status` is created, running or stopped, as these are defined"""
    assert in_status(status, runtime, bundle).state()["status"] == status


@must("runtime.md: State")
@pytest.mark.parametrize("status", STATUSES)
def test_runtime_state_required_properties(runtime: Runtime, bundle: MakeBundle, status: str) -> None:
    """`ociVersion`, `id`, `status`, `bundle` are there in every status, of the schema's type"""
    state = in_status(status, runtime, bundle).state()
    assert all(isinstance(state[name], str) for name in ("ociVersion", "id", "status", "bundle"))


@must("runtime.md: State")
@pytest.mark.parametrize("status", ["created", "running"])
def test_runtime_state_pid(runtime: Runtime, bundle: MakeBundle, status: str) -> None:
    """`pid` is REQUIRED when created or running: the ID of the container process"""
    container = in_status(status, runtime, bundle)
    assert container.state()["pid"] == container.pid
    assert container.proc("status").exists()


@must("runtime.md: State")
def test_runtime_state_oci_version_is_a_version(runtime: Runtime, bundle: MakeBundle) -> None:
    """`ociVersion` is the version of the specification with which the state complies (SemVer)"""
    assert SEMVER.fullmatch(runtime.create(bundle()).state()["ociVersion"])


@must("runtime.md: State")
def test_runtime_state_bundle_is_absolute(runtime: Runtime, bundle: MakeBundle) -> None:
    """`bundle` is the absolute path to the bundle's directory, however it was given"""
    b = bundle()
    b.linux["cgroupsPath"] = f"{runtime.bed.subtree}/relative"
    b.write()
    container_id = runtime.new_id()
    made = runtime("create", "--bundle", "./", container_id, cwd=str(b.directory))
    assert made.rc == 0, made.text
    container = Container(runtime, container_id, b, made, b.directory)
    assert container.state()["bundle"].rstrip("/") == str(b.directory)


@must("runtime.md: State")
@pytest.mark.parametrize("status", STATUSES)
def test_runtime_state_annotations(runtime: Runtime, bundle: MakeBundle, status: str) -> None:
    """`annotations` contains the annotations of the container"""
    given = {"com.example.key": "value", "com.example.empty": "", "com.example.text": 'ü "\n'}
    assert in_status(status, runtime, bundle, given).state()["annotations"] == given


@must("runtime.md: State")
def test_runtime_state_without_annotations(runtime: Runtime, bundle: MakeBundle) -> None:
    """without annotations the property is absent or an empty map"""
    state = runtime.create(bundle()).state()
    assert state.get("annotations", {}) == {}


@must("runtime.md: Lifecycle, step 2")
def test_runtime_lifecycle_step_2_the_environment_is_created(runtime: Runtime, bundle: MakeBundle, bed: Bed) -> None:
    """the runtime environment MUST be created according to config.json"""
    container = runtime.create(bundle())
    assert os.readlink(container.proc("ns/mnt")) != os.readlink("/proc/self/ns/mnt")
    assert bed.cgroup(container.cgroup()).is_dir()


@must("runtime.md: Lifecycle, step 2")
def test_runtime_lifecycle_step_2_the_program_does_not_run(runtime: Runtime, bundle: MakeBundle, leaks: Leaks) -> None:
    """the user-specified program MUST NOT be run at this time"""
    container = runtime.create(bundle().sh("echo ran; echo ran >/etc/ran"))
    container.kill("KILL")
    container.wait()
    assert container.out == ""
    assert not (container.bundle.rootfs / "etc/ran").exists()


@must("runtime.md: Lifecycle, step 2")
def test_runtime_lifecycle_step_2_an_environment_that_cannot_be_made(runtime: Runtime, bundle: MakeBundle) -> None:
    """a runtime that is unable to create the environment MUST generate an error"""
    refused(runtime, bundle().mount("/tmp", "/nonexistent/source", "bind"))


@must("runtime.md: Lifecycle, step 2")
@pytest.mark.parametrize("change", ["replaced", "broken", "removed"])
def test_runtime_lifecycle_step_2_later_updates_of_the_config(runtime: Runtime, bundle: MakeBundle, change: str) -> None:
    """updates to config.json after this step MUST NOT affect the container"""
    container = runtime.create(bundle().args("echo", "as created"))
    path = container.bundle.directory / "config.json"
    if change == "replaced":
        path.write_text(path.read_text().replace("as created", "changed"))
    elif change == "broken":
        path.write_text("no JSON")
    else:
        path.unlink()
    assert container.start().rc == 0
    assert container.wait() == 0
    assert container.out == "as created\n"
    assert container.delete().rc == 0


@must("runtime.md: Lifecycle, step 8")
def test_runtime_lifecycle_step_8_the_program_runs(runtime: Runtime, bundle: MakeBundle) -> None:
    """the runtime MUST run the user-specified program"""
    container = runtime.start(bundle().sh("echo ran; exit 3"))
    assert container.wait() == 3
    assert container.out == "ran\n"


@must("runtime.md: Lifecycle, step 12")
def test_runtime_lifecycle_step_12_what_create_made_is_undone(runtime: Runtime, bundle: MakeBundle, bed: Bed) -> None:
    """the container MUST be destroyed by undoing the steps of the create phase"""
    container = in_status("stopped", runtime, bundle)
    group = bed.cgroup(f"{bed.subtree}/{container.id}")
    assert group.exists()
    assert container.delete().rc == 0
    assert not group.exists()
    assert not (runtime.root / container.id).exists()


@pytest.mark.not_on("crun", reason="takes what is wrong")
@must("runtime.md: Errors")
@pytest.mark.parametrize(
    "change",
    [
        {"linux": {"rootfsPropagation": "everywhere"}},
        {"linux": {"sysctl": {"kernel.nosuchthing": "1"}}},
        {"process": {"args": ["/nonexistent/program"]}},
        {"process": {"cwd": "/etc/passwd"}},
        {"linux": {"maskedPaths": None, "devices": [{"path": "/dev/x", "type": "x", "major": 1, "minor": 1}]}},
    ],
    ids=["propagation", "sysctl", "program", "cwd", "device"],
)
def test_runtime_errors_leave_the_environment_as_it_was(
    runtime: Runtime, bundle: MakeBundle, change: dict[str, dict[str, Any]]
) -> None:
    """an error MUST leave the environment as if the operation were never attempted"""
    b = bundle()
    for part, fields in change.items():
        b.config[part].update(fields)
    refused(runtime, b)  # the fixture `leaks` looks for what is left


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
    """MUST generate an error if `process` was not set (create may do so before)"""
    b = bundle()
    del b.config["process"]
    container = runtime.create(b, check=False)
    assert container.result.rc != 0 or container.start().rc != 0


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


@must("runtime-linux.md: File descriptors")
def test_runtime_linux_file_descriptors(runtime: Runtime, bundle: MakeBundle) -> None:
    """by default only stdin, stdout and stderr are kept open for the application"""
    host = os.open("/", os.O_RDONLY)
    try:
        out = runtime.output(bundle().sh("cd /proc/self/fd; for f in *; do readlink $f; done; ls"), pass_fds=[host])
    finally:
        os.close(host)
    found = {word for word in out.split() if word.isdigit()}
    assert {"0", "1", "2"} <= found
    assert not [word for word in out.split() if word == "/" or word.startswith("/run")], out


@must("runtime-linux.md: Dev symbolic links")
@pytest.mark.parametrize(
    ("link", "target"),
    [
        ("/dev/fd", "/proc/self/fd"),
        ("/dev/stdin", "/proc/self/fd/0"),
        ("/dev/stdout", "/proc/self/fd/1"),
        ("/dev/stderr", "/proc/self/fd/2"),
    ],
)
def test_runtime_linux_dev_symbolic_links(runtime: Runtime, bundle: MakeBundle, link: str, target: str) -> None:
    """MUST create /dev/fd, /dev/stdin, /dev/stdout, /dev/stderr"""
    assert runtime.output(bundle().args("readlink", link)) == f"{target}\n"


@must("bundle.md: Container Format")
@pytest.mark.parametrize("name", ["Config.json", "config.JSON", "sub/config.json"])
def test_bundle_config_is_in_the_root_of_the_bundle(runtime: Runtime, bundle: MakeBundle, name: str) -> None:
    """config.json MUST reside in the root of the bundle and MUST be named so"""
    b = bundle()
    b.write()
    moved = Path(b.directory, name)
    moved.parent.mkdir(exist_ok=True)
    (b.directory / "config.json").rename(moved)
    assert runtime("create", "--bundle", str(b.directory), runtime.new_id()).rc != 0
