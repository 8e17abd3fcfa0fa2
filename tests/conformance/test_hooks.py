"""config.md "POSIX-platform Hooks" and the steps of runtime.md "Lifecycle" that call hooks."""

from __future__ import annotations

import os
from typing import Any

import pytest

from tests.conformance.hooks import AT_CREATE, IN_CONTAINER, IN_RUNTIME, KINDS, Recorder
from tests.conformance.levels import must
from tests.conformance.refused import refused
from tests.conftest import MakeBundle
from tests.native.runtime import Container, Runtime
from tests.native.waiting import wait_until

pytestmark = pytest.mark.native

MAIN = "echo main >>/tmp/order; sleep 1000"
SLEEP = "echo up; sleep 1000"
#: What a hook's script begins with to have the pid that the state tells.
PID = "pid=$(sed -n 's/.*\"pid\": *\\([0-9]*\\).*/\\1/p' $1/$2.state)"
NAMESPACES = "readlink /proc/self/ns/mnt >$1/mnt; readlink /proc/self/ns/net >$1/net; ls / >$1/root"


def whole_life(runtime: Runtime, container: Container, record: Recorder) -> list[str]:
    """start, kill, delete; the order in which all was called."""
    assert container.start().rc == 0
    wait_for_main(record)
    container.kill("KILL")
    container.wait()
    assert container.delete().rc == 0
    return record.order


def wait_for_main(record: Recorder) -> None:
    wait_until(lambda: "main" in record.order)


@must("runtime.md: Lifecycle, steps 3 to 13")
@pytest.mark.parametrize("kind", KINDS)
def test_runtime_lifecycle_hooks_are_invoked(runtime: Runtime, bundle: MakeBundle, record: Recorder, kind: str) -> None:
    """the hooks of each kind MUST be invoked by the runtime, once"""
    container = runtime.create(record.each(bundle().sh(MAIN), kind))
    assert whole_life(runtime, container, record).count(kind) == 1


@must("config.md: POSIX-platform Hooks")
@pytest.mark.parametrize("kind", KINDS)
def test_config_hooks_are_called_in_the_listed_order(
    runtime: Runtime, bundle: MakeBundle, record: Recorder, kind: str
) -> None:
    """hooks MUST be called in the listed order"""
    hooks = [(kind, record.hook(kind, f"{kind}{i}", "sleep 0.02" if i == 1 else "")) for i in (1, 2, 3)]
    container = runtime.create(record.install(bundle().sh(MAIN), *hooks))
    assert [word for word in whole_life(runtime, container, record) if word != "main"] == [f"{kind}{i}" for i in (1, 2, 3)]


@must("config.md: Prestart, CreateRuntime, CreateContainer Hooks")
def test_config_hooks_of_create_are_called_during_create_in_their_order(
    runtime: Runtime, bundle: MakeBundle, record: Recorder
) -> None:
    """prestart before createRuntime before createContainer, all as part of create"""
    hooks = [(kind, record.hook(kind)) for kind in reversed(KINDS)]
    runtime.create(record.install(bundle().sh(MAIN), *hooks))
    assert [kind for kind in record.order if kind != "poststart"] == AT_CREATE


@must("config.md: StartContainer Hooks")
def test_config_hooks_start_container_is_before_the_program(runtime: Runtime, bundle: MakeBundle, record: Recorder) -> None:
    """startContainer MUST be called before the user-specified process is executed, as part of start"""
    container = runtime.create(record.each(bundle().sh(MAIN), "startContainer"))
    assert record.order == []
    container.start()
    wait_for_main(record)
    assert record.order == ["startContainer", "main"]


@pytest.mark.not_on("runc 1.1", reason="calls it during create")
@pytest.mark.not_on("runc 1.3", reason="calls it during create")
@must("config.md: Poststart")
def test_config_hooks_poststart_is_after_the_program_was_executed(
    runtime: Runtime, bundle: MakeBundle, record: Recorder
) -> None:
    """poststart MUST be called after the user-specified process is executed"""
    b = record.each(bundle().args("sleep", "1000"), "poststart", script=f"{PID}; cat /proc/$pid/cmdline >$1/cmdline")
    container = runtime.create(b)
    assert record.order == []
    container.start()
    assert record.text("cmdline") == "sleep\x001000\x00"


@pytest.mark.not_on("runc 1.1", reason="calls it during create")
@pytest.mark.not_on("runc 1.3", reason="calls it during create")
@must("config.md: Poststart")
def test_config_hooks_poststart_is_before_start_returns(runtime: Runtime, bundle: MakeBundle, record: Recorder) -> None:
    """poststart MUST be called before the start operation returns"""
    b = record.each(bundle().sh(SLEEP), "poststart", script="sleep 0.1; echo done >$1/done")
    container = runtime.create(b)
    (record.directory / "done").unlink(missing_ok=True)
    before = record.order.count("poststart")
    container.start()
    assert record.order.count("poststart") == before + 1
    assert record.text("done") == "done\n"


@must("config.md: Poststop")
def test_config_hooks_poststop_is_after_the_deletion(runtime: Runtime, bundle: MakeBundle, record: Recorder) -> None:
    """poststop MUST be called after the container is deleted but before the delete operation returns"""
    container_id = runtime.new_id()
    group = runtime.bed.cgroup(f"{runtime.bed.subtree}/{container_id}")
    script = f"ls -d /sys/fs/cgroup{runtime.bed.subtree}/{container_id} >$1/left 2>/dev/null; sleep 0.05; echo done >$1/done"
    container = runtime.create(record.each(bundle().args("true"), "poststop", script=script), container_id=container_id)
    assert group.exists()
    container.start()
    container.wait()
    assert record.order == []
    assert container.delete().rc == 0
    assert record.text("done") == "done\n"
    assert record.text("left") == ""


@must("config.md: POSIX-platform Hooks")
@pytest.mark.parametrize("kind", IN_RUNTIME)
def test_config_hooks_in_the_runtime_namespace(runtime: Runtime, bundle: MakeBundle, record: Recorder, kind: str) -> None:
    """prestart, createRuntime, poststart, poststop MUST be executed, and their path resolved, in the runtime namespace"""
    container = runtime.start(record.each(bundle().sh(SLEEP), kind, script=NAMESPACES))
    container.wait_for("up")
    mnt, net = os.readlink(container.proc("ns/mnt")), os.readlink("/proc/self/ns/net")
    container.delete("--force")
    assert record.text("mnt").strip() != mnt
    assert record.text("net").strip() == net


@must("config.md: POSIX-platform Hooks")
@pytest.mark.parametrize("kind", IN_CONTAINER)
def test_config_hooks_in_the_container_namespace(runtime: Runtime, bundle: MakeBundle, record: Recorder, kind: str) -> None:
    """createContainer, startContainer MUST be executed in the container namespace"""
    container = runtime.start(record.each(bundle().sh(SLEEP), kind, script=NAMESPACES))
    container.wait_for("up")
    expected = {name: os.readlink(container.proc(f"ns/{name}")) for name in ("mnt", "net")}
    container.delete("--force")
    assert {name: record.text(name).strip() for name in expected} == expected


@must("config.md: CreateContainer Hooks")
def test_config_hooks_create_container_path_is_the_runtimes(runtime: Runtime, bundle: MakeBundle, record: Recorder) -> None:
    """the createContainer hooks' path MUST resolve in the runtime namespace"""
    runtime.create(record.each(bundle(), "createContainer", script=NAMESPACES))
    assert record.order == ["createContainer"], "the program is on the host only"


@must("config.md: StartContainer Hooks")
def test_config_hooks_start_container_path_is_the_containers(runtime: Runtime, bundle: MakeBundle, record: Recorder) -> None:
    """the startContainer hooks' path MUST resolve in the container namespace"""
    b = record.each(bundle().sh(MAIN), "startContainer", script=NAMESPACES)
    os.link(b.rootfs / "bin/busybox", b.rootfs / "bin/only-in-the-image")
    b.config["hooks"]["startContainer"][0]["path"] = "/bin/only-in-the-image"
    runtime.start(b)
    wait_for_main(record)
    assert sorted(record.text("root").split()) == sorted(path.name for path in b.rootfs.iterdir())


@must("config.md: Prestart, CreateRuntime, CreateContainer Hooks")
@pytest.mark.parametrize("kind", ["prestart", "createRuntime"])
def test_config_hooks_of_create_find_the_environment_made(
    runtime: Runtime, bundle: MakeBundle, record: Recorder, kind: str
) -> None:
    """called after the runtime environment has been created: the namespaces and mounts are there"""
    script = f"{PID}; cat /proc/$pid/mountinfo >$1/mountinfo"
    b = record.each(bundle(), kind, script=script).mount("/run", "tmpfs", kind="tmpfs")
    runtime.create(b)
    assert f"{b.rootfs}/run " in record.text("mountinfo")


@must("config.md: Prestart, CreateRuntime, CreateContainer Hooks")
@pytest.mark.parametrize("kind", AT_CREATE)
def test_config_hooks_of_create_are_before_pivot_root(
    runtime: Runtime, bundle: MakeBundle, record: Recorder, kind: str
) -> None:
    """called before the pivot_root: the host's root is still the container's"""
    if kind == "createContainer":
        script = "cat /proc/self/mountinfo >$1/mountinfo"
    else:
        script = f"{PID}; cat /proc/$pid/mountinfo >$1/mountinfo"
    b = record.each(bundle(), kind, script=script)
    runtime.create(b)
    assert str(b.rootfs) in record.text("mountinfo"), "the rootfs is not yet the root"


@pytest.mark.not_on("crun", reason="tells startContainer another bundle")
@must("config.md: POSIX-platform Hooks")
@pytest.mark.parametrize("kind", KINDS)
def test_config_hooks_are_given_the_state(runtime: Runtime, bundle: MakeBundle, record: Recorder, kind: str) -> None:
    """the state MUST be passed to hooks over stdin"""
    b = record.each(bundle().sh(MAIN), kind)
    b.config["annotations"] = {"com.example.a": "b"}
    container = runtime.create(b)
    whole_life(runtime, container, record)
    told = record.state(kind)
    assert (told["id"], told["bundle"]) == (container.id, str(b.directory))
    assert told["annotations"] == {"com.example.a": "b"}
    assert told["ociVersion"]


STATUS = {
    "prestart": ["creating"],
    "createRuntime": ["creating"],
    "createContainer": ["creating"],
    "startContainer": ["created"],
    "poststart": ["running"],
    "poststop": ["stopped"],
}


@pytest.mark.not_on("crun", reason="tells created during create, and starting")
@pytest.mark.not_on("runc 1.1", reason="poststart is called during create")
@pytest.mark.not_on("runc 1.3", reason="poststart is called during create")
@must("runtime.md: State")
@pytest.mark.parametrize("kind", KINDS)
def test_runtime_state_status_that_hooks_are_given(
    runtime: Runtime, bundle: MakeBundle, record: Recorder, kind: str
) -> None:
    """`status` in hooks: creating during create, created before the program, running after, stopped at the end"""
    whole_life(runtime, runtime.create(record.each(bundle().sh(MAIN), kind)), record)
    assert record.state(kind)["status"] in STATUS[kind]


@pytest.mark.not_on("crun", reason="tells pid 0 in the container")
@must("runtime.md: State")
@pytest.mark.parametrize("kind", KINDS[:-1])
def test_runtime_state_pid_that_hooks_are_given(runtime: Runtime, bundle: MakeBundle, record: Recorder, kind: str) -> None:
    """`pid` in hooks: as seen by the runtime in the runtime namespace, by the container in the container's"""
    container = runtime.create(record.each(bundle().sh(MAIN), kind))
    pid = container.pid
    whole_life(runtime, container, record)
    assert record.state(kind)["pid"] == (1 if kind in IN_CONTAINER else pid)


@must("config.md: POSIX-platform Hooks")
@pytest.mark.parametrize("kind", KINDS)
def test_config_hooks_arguments_and_environment(runtime: Runtime, bundle: MakeBundle, record: Recorder, kind: str) -> None:
    """`args` as in execv, `env` as in environ"""
    b = record.each(bundle().sh(MAIN), kind, script="env >$1/env; echo $# >$1/count")
    b.config["hooks"][kind][0]["env"] = ["PATH=/bin:/usr/bin", "KEY=two words"]
    whole_life(runtime, runtime.create(b), record)
    assert "KEY=two words" in record.text("env").splitlines()
    assert record.text("count") == "2\n"


@pytest.mark.not_on("crun", reason="finds a mistake only when the hook is called")
@pytest.mark.not_on("runc", reason="finds a mistake only when the hook is called")
@must("config.md: POSIX-platform Hooks")
@pytest.mark.parametrize("kind", KINDS)
def test_config_hooks_path_must_be_absolute(runtime: Runtime, bundle: MakeBundle, kind: str) -> None:
    """`path` MUST be absolute"""
    b = bundle()
    b.config["hooks"] = {kind: [{"path": "bin/true"}]}
    refused(runtime, b)


@pytest.mark.sweep(4)
@pytest.mark.not_on("crun", reason="takes it")
@pytest.mark.not_on("runc", reason="finds a mistake only when the hook is called")
@must("config.md: POSIX-platform Hooks")
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("timeout", [0, -1])
def test_config_hooks_timeout_must_be_positive(runtime: Runtime, bundle: MakeBundle, kind: str, timeout: int) -> None:
    """`timeout`, if set, MUST be greater than zero"""
    b = bundle()
    b.config["hooks"] = {kind: [{"path": "/bin/true", "timeout": timeout}]}
    refused(runtime, b)


@must("config.md: POSIX-platform Hooks")
def test_config_hooks_timeout_aborts_the_hook(runtime: Runtime, bundle: MakeBundle, record: Recorder) -> None:
    """`timeout` is the number of seconds before aborting the hook"""
    hook = record.hook("createRuntime", script="exec sleep 1000", timeout=1)
    refused(runtime, record.install(bundle(), ("createRuntime", hook)))


@must("runtime.md: Lifecycle, steps 3 to 5")
@pytest.mark.parametrize("kind", AT_CREATE)
def test_runtime_lifecycle_a_failing_hook_of_create(
    runtime: Runtime, bundle: MakeBundle, record: Recorder, kind: str
) -> None:
    """if a prestart, createRuntime or createContainer hook fails, MUST generate an error and stop the container"""
    refused(runtime, record.each(bundle().sh(MAIN), kind, script="exit 7"))
    assert record.order == [kind]


@pytest.mark.not_on("crun", reason="does not call poststop")
@must("runtime.md: Lifecycle, steps 3 to 5")
@pytest.mark.parametrize("kind", AT_CREATE)
def test_runtime_lifecycle_a_failing_hook_of_create_continues_at_step_12(
    runtime: Runtime, bundle: MakeBundle, record: Recorder, kind: str
) -> None:
    """... and continue at step 12: the container is destroyed, and the poststop hooks are invoked"""
    hooks = [(kind, record.hook(kind, script="exit 7")), ("poststop", record.hook("poststop"))]
    refused(runtime, record.install(bundle(), *hooks))
    assert record.order == [kind, "poststop"]


@must("runtime.md: Lifecycle, step 7")
def test_runtime_lifecycle_step_7_a_failing_start_container_hook(
    runtime: Runtime, bundle: MakeBundle, record: Recorder
) -> None:
    """if a startContainer hook fails, MUST generate an error and stop the container"""
    container = runtime.create(record.each(bundle().sh(MAIN), "startContainer", script="exit 7"))
    started = container.start()
    assert container.wait() != 0
    assert "main" not in record.order
    assert started.text + container.err, "nobody was told"
    assert container.state()["status"] == "stopped"


@must("runtime.md: Lifecycle, step 7")
def test_runtime_lifecycle_step_7_continues_at_step_12(runtime: Runtime, bundle: MakeBundle, record: Recorder) -> None:
    """... and continue at step 12: after delete the poststop hooks were invoked"""
    hooks = [("startContainer", record.hook("startContainer", script="exit 7")), ("poststop", record.hook("poststop"))]
    container = runtime.create(record.install(bundle().sh(MAIN), *hooks))
    container.start()
    container.wait()
    container.delete("--force")
    assert record.order == ["startContainer", "poststop"]


def two(record: Recorder, kind: str) -> list[tuple[str, dict[str, Any]]]:
    return [(kind, record.hook(kind, script="exit 7")), (kind, record.hook(kind, "second"))]


@pytest.mark.not_on("crun 1.8", reason="ignores the failure")
@pytest.mark.not_on("crun 1.21", reason="ignores the failure")
@must("runtime.md: Lifecycle, step 9")
def test_runtime_lifecycle_step_9_a_failing_poststart_hook(runtime: Runtime, bundle: MakeBundle, record: Recorder) -> None:
    """if any poststart hook fails, the runtime MUST generate an error and stop the container"""
    container = runtime.create(record.install(bundle().sh(SLEEP), *two(record, "poststart")), check=False)
    result = container.start() if container.result.rc == 0 else container.result
    assert result.rc != 0
    assert result.text, "nobody was told why"
    assert (container.result.rc == 0) is not runtime.name.startswith("runc"), "runc runs these hooks at the end of create"
    if container.result.rc == 0:
        assert container.wait() != 0
    state = runtime("state", container.id)
    if runtime.name.startswith("crun") and state.rc == 0:
        assert container.state()["status"] == "stopped"
    else:
        assert state.rc == 1, "gpurun and runc destroy it at once"
    assert record.order == ["poststart"]


@pytest.mark.not_on("crun 1.8", reason="ignores the failure")
@pytest.mark.not_on("crun 1.21", reason="ignores the failure")
@pytest.mark.not_on("runc 1", reason="leaves it to delete")
@must("runtime.md: Lifecycle, step 9")
def test_runtime_lifecycle_step_9_continues_at_step_12(runtime: Runtime, bundle: MakeBundle, record: Recorder) -> None:
    """... and continue the lifecycle at step 12: the container is destroyed, and the poststop hooks are invoked"""
    hooks = [("poststart", record.hook("poststart", script="exit 7")), ("poststop", record.hook("poststop"))]
    container = runtime.create(record.install(bundle().sh(SLEEP), *hooks), check=False)
    container.start()
    assert record.order == ["poststart", "poststop"]
    assert runtime("state", container.id).rc != 0


@pytest.mark.not_on("runc", reason="stops at the first failure")
@must("runtime.md: Lifecycle, step 13")
def test_runtime_lifecycle_step_13_a_failing_poststop_hook(runtime: Runtime, bundle: MakeBundle, record: Recorder) -> None:
    """if a poststop hook fails, MUST log a warning, but the remaining hooks and lifecycle continue"""
    container = runtime.start(record.install(bundle().args("true"), *two(record, "poststop")))
    container.wait()
    container.delete()
    assert record.order == ["poststop", "second"]
    assert runtime("state", container.id).rc != 0
