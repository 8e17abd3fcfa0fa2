"""runtime.md: state, lifecycle, errors; what runtime-linux.md and bundle.md say beside."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import pytest

from tests.conformance.levels import must
from tests.conformance.refused import refused
from tests.conformance.statuses import SLEEP, STATUSES, in_status
from tests.conftest import MakeBundle
from tests.native.bed import Bed
from tests.native.leaks import Leaks
from tests.native.runtime import Container, Runtime

pytestmark = pytest.mark.native
SEMVER = re.compile(r"(0|[1-9]\d*)\.(0|[1-9]\d*)\.(0|[1-9]\d*)(-[0-9A-Za-z.-]+)?(\+[0-9A-Za-z.-]+)?")


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
