"""Hooks: when each runs and where, what it is told, and what its failure does."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import MakeBundle
from tests.native.bundle import Bundle
from tests.native.runtime import Runtime

pytestmark = pytest.mark.native

UP = "echo up; sleep 1000"  # which says that the startContainer hooks have run: `start` does not wait for them
KINDS = ["prestart", "createRuntime", "createContainer", "startContainer", "poststart", "poststop"]
HOST = ["prestart", "createRuntime", "poststart", "poststop"]

# A hook writes down what it was given.  In the container's mounts before pivot_root the host's paths still exist;
# for startContainer the directory is bound at /tmp.
RECORD = (
    # /proc/self, opened by the shell itself: before pivot_root /proc is the host's, and $$ is a number of the container.
    'out=$1/$2; echo "$2" >>$1/order; cat >$out.state; exec 5</proc/self/environ 6</proc/self/cmdline;'
    "cat <&5 >$out.env; cat <&6 >$out.args;"
    "readlink /proc/self/ns/mnt >$out.mnt; readlink /proc/self/ns/net >$out.net; pwd >$out.cwd; ls / >$out.root"
)


@pytest.fixture
def record(runtime: Runtime) -> Path:
    directory = runtime.directory / "record"
    directory.mkdir(mode=0o777)
    return directory


def hook(
    kind: str, place: Path, directory: Path, name: str | None = None, script: str = RECORD, **more: Any
) -> dict[str, Any]:
    """A hook that runs *script* in a static shell, which startContainer takes from the image."""
    inside = kind == "startContainer"
    path = "/bin/busybox" if inside else str(place / "busybox")
    where = "/tmp" if inside else str(directory)
    return {"path": path, "args": ["busybox", "sh", "-c", script, "sh", where, name or kind], **more}


def with_hooks(b: Bundle, record: Path, hooks: dict[str, list[dict[str, Any]]]) -> Bundle:
    b.config["hooks"] = hooks
    return b.mount("/tmp", str(record), "bind")


def order(record: Path) -> list[str]:
    return (record / "order").read_text().split() if (record / "order").exists() else []


def state(record: Path, name: str) -> dict[str, Any]:
    return json.loads((record / f"{name}.state").read_text())  # type: ignore[no-any-return]


@pytest.mark.not_on("runc 1", reason="runs poststart during create")
def test_names_of_late_hooks_that_are_escaped(runtime: Runtime, bundle: MakeBundle, place: Path, record: Path) -> None:
    """JSON lets any letter be written as an escape, those of a member's name among them (RFC 8259)."""
    hooks = {kind: [hook(kind, place, record)] for kind in ("poststart", "poststop")}
    b = with_hooks(bundle().sh(UP), record, hooks)
    container_id = runtime.new_id()
    runtime.prepare(b, container_id)
    path = b.directory / "config.json"
    text = path.read_text()
    for name, escaped in (("poststart", "post\\u0073tart"), ("poststop", "\\u0070oststop"), ("hooks", "hoo\\u006bs")):
        assert text.count(f'"{name}":') == 1
        text = text.replace(f'"{name}":', f'"{escaped}":')
    path.write_text(text)
    files = runtime.new_files()
    made = runtime("create", "--bundle", str(b.directory), "--pid-file", str(files / "pid"), container_id, files=files)
    assert made.rc == 0, made
    assert runtime("start", container_id).rc == 0
    assert order(record) == ["poststart"]
    assert runtime("delete", "--force", container_id).rc == 0
    os.waitpid(int((files / "pid").read_text()), 0)
    assert order(record) == ["poststart", "poststop"]


def test_where_a_hook_runs(runtime: Runtime, bundle: MakeBundle, place: Path, record: Path, busybox: Path) -> None:
    b = with_hooks(bundle().sh(UP), record, {k: [hook(k, place, record)] for k in KINDS})
    container = runtime.start(b)
    container.wait_for("up")
    mnt, net = os.readlink(container.proc("ns/mnt")), os.readlink(container.proc("ns/net"))
    container.delete("--force")
    for kind in KINDS:
        inside = kind in ("createContainer", "startContainer")
        assert ((record / f"{kind}.mnt").read_text().strip() == mnt) == inside, kind
        assert ((record / f"{kind}.net").read_text().strip() == net) == inside, kind
    for kind in ("prestart", "createRuntime"):
        assert (record / f"{kind}.cwd").read_text().strip() == str(b.directory), kind
    # The specification leaves it open.  crun has the bundle here too; hooks name files of the image as in runc: ./lib/x
    assert (record / "createContainer.cwd").read_text().strip() == str(b.rootfs)
    assert "passwd" not in (record / "startContainer.root").read_text()
    assert sorted((record / "startContainer.root").read_text().split()) == sorted(p.name for p in b.rootfs.iterdir())


@pytest.mark.parametrize("kind", KINDS)
def test_environment_and_arguments_are_exact(
    runtime: Runtime, bundle: MakeBundle, place: Path, record: Path, busybox: Path, kind: str
) -> None:
    h = hook(kind, place, record, env=["X=1", "Y=two words"])
    b = with_hooks(bundle().sh(UP), record, {kind: [h]})
    container = runtime.start(b, env={"SECRET": "of the caller", "PATH": "/usr/bin:/bin"})
    container.wait_for("up")
    container.delete("--force")
    assert (record / f"{kind}.args").read_bytes().rstrip(b"\0").split(b"\0") == [a.encode() for a in h["args"]]
    assert (record / f"{kind}.env").read_bytes().rstrip(b"\0").split(b"\0") == [b"X=1", b"Y=two words"]


@pytest.mark.parametrize("kind", HOST)
def test_without_an_environment_it_is_the_runtimes(
    runtime: Runtime, bundle: MakeBundle, place: Path, record: Path, busybox: Path, kind: str
) -> None:
    """Podman's hooks.d are scripts that look for programs on PATH; nothing of the image's environment reaches them."""
    b = with_hooks(bundle().sh("sleep 1000"), record, {kind: [hook(kind, place, record)]})
    b.process["env"] += ["IMAGE=hostile"]
    environment = {"PATH": "/usr/bin:/bin", "HOME": "/nowhere", "OF_THE": "caller"}
    container = runtime.create(b, env=environment)
    assert runtime("start", container.id, env=environment).rc == 0
    assert runtime("delete", "--force", container.id, env=environment).rc == 0
    told = (record / f"{kind}.env").read_text().rstrip("\0").split("\0")
    assert {f"{k}={v}" for k, v in environment.items()} <= set(told)
    assert "IMAGE=hostile" not in told


@pytest.mark.sweep(2)
@pytest.mark.parametrize("kind", KINDS)
def test_an_empty_environment_is_empty(
    runtime: Runtime, bundle: MakeBundle, place: Path, record: Path, busybox: Path, kind: str
) -> None:
    b = with_hooks(bundle().sh(UP), record, {kind: [hook(kind, place, record, env=[])]})
    container = runtime.start(b)
    container.wait_for("up")
    container.delete("--force")
    assert (record / f"{kind}.env").read_bytes() == b""


def test_create_container_without_an_environment_has_none(
    runtime: Runtime, bundle: MakeBundle, place: Path, record: Path, busybox: Path
) -> None:
    """It runs in the container's namespaces: who shares one of them could read the caller's secrets."""
    b = with_hooks(bundle().sh("true"), record, {"createContainer": [hook("createContainer", place, record)]})
    runtime.output(b)
    assert (record / "createContainer.env").read_bytes() == b""


def test_start_container_without_an_environment_has_the_containers(
    runtime: Runtime, bundle: MakeBundle, place: Path, record: Path, busybox: Path
) -> None:
    b = with_hooks(bundle().sh("true"), record, {"startContainer": [hook("startContainer", place, record)]})
    b.process["env"] += ["MINE=here"]
    runtime.output(b)
    assert b"MINE=here" in (record / "startContainer.env").read_bytes().split(b"\0")


@pytest.mark.parametrize("kind", ["prestart", "createRuntime", "createContainer"])
def test_failure_during_create(
    runtime: Runtime, bundle: MakeBundle, place: Path, record: Path, busybox: Path, kind: str
) -> None:
    failing = hook(kind, place, record, script="echo complaint >&2; exit 7")
    b = with_hooks(
        bundle().sh("echo main >>/tmp/order"),
        record,
        {kind: [hook(kind, place, record, "first"), failing, hook(kind, place, record, "third")]},
    )
    text = runtime.refused(b)
    assert "hook #1" in text
    assert "exit status 7" in text
    assert "complaint" in text
    if runtime.name.startswith("gpurun"):
        assert f"exit status 7 ({failing['path']}), stdout: , stderr: complaint" in text
    assert order(record) == ["first"]


def test_a_hook_that_a_signal_ends(runtime: Runtime, bundle: MakeBundle, place: Path, record: Path, busybox: Path) -> None:
    """The words are those of Go's standard library, which runc's own tests look for."""
    failing = hook("createRuntime", place, record, script="kill -SYS $$")
    text = runtime.refused(with_hooks(bundle(), record, {"createRuntime": [failing]}))
    assert "error running createRuntime hook #0: signal: bad system call" in text


@pytest.mark.not_on("runc 1", reason="runs poststart during create, or leaves the deletion to delete")
@pytest.mark.parametrize("how", ["start", "run", "run --detach"])
def test_failure_of_poststart_ends_the_container(
    runtime: Runtime, bundle: MakeBundle, place: Path, record: Path, busybox: Path, how: str
) -> None:
    """runtime.md "Lifecycle", step 9: an error, the container is stopped, and step 12 follows."""
    failing = hook("poststart", place, record, script="echo complaint >&2; exit 7")
    hooks = {
        "poststart": [hook("poststart", place, record, "first"), failing, hook("poststart", place, record, "third")],
        "poststop": [hook("poststop", place, record)],
    }
    b = with_hooks(bundle().sh("trap '' TERM; sleep 1000"), record, hooks)
    containers = []
    if how == "run":
        result = runtime.run(b)
    else:
        container = runtime.create(b, detach=how != "start", check=False)
        result = container.start() if how == "start" else container.result
        assert container.wait() == 128 + 9
        containers.append(container)
    assert result.rc == 1
    assert "error running poststart hook #1: exit status 7" in result.text
    assert "complaint" in result.text
    assert order(record) == ["first", "poststop"]
    assert state(record, "first")["status"] == "running"
    assert (state(record, "poststop")["status"], state(record, "poststop").get("pid", 0)) == ("stopped", 0)
    for container in containers:
        assert not (runtime.root / container.id).exists()
        assert "does not exist" in runtime("state", container.id).text


@pytest.mark.gpurun_only
def test_failure_of_poststart_and_of_poststop_are_both_told(
    runtime: Runtime, bundle: MakeBundle, place: Path, record: Path, busybox: Path
) -> None:
    """The error is that of poststart; what goes wrong as the container is taken away is a warning."""
    hooks = {name: [hook(name, place, record, script=f"exit {code}")] for name, code in (("poststart", 7), ("poststop", 8))}
    container = runtime.create(with_hooks(bundle().sh("sleep 1000"), record, hooks))
    result = container.start()
    assert result.rc == 1
    assert [line.partition("level=")[2].split(" ")[0] for line in result.err.splitlines()] == ["warning", "error"]
    assert "error running poststop hook #0: exit status 8" in result.err.splitlines()[0]
    assert "error running poststart hook #0: exit status 7" in result.err.splitlines()[1]


def test_timeout(runtime: Runtime, bundle: MakeBundle, place: Path, record: Path, busybox: Path) -> None:
    slow = hook("createRuntime", place, record, script="exec sleep 1000", timeout=1)
    text = runtime.refused(with_hooks(bundle(), record, {"createRuntime": [slow]}))
    assert "hook ran past specified timeout of 1" in text


def test_a_hook_that_does_not_read_is_no_error(
    runtime: Runtime, bundle: MakeBundle, place: Path, record: Path, busybox: Path
) -> None:
    b = with_hooks(
        bundle().args("echo", "hi"), record, {"createRuntime": [hook("createRuntime", place, record, script=":")]}
    )
    b.config["annotations"] = {f"key{i}": "x" * 1000 for i in range(200)}
    assert runtime.output(b) == "hi\n"


def test_missing_program(runtime: Runtime, bundle: MakeBundle) -> None:
    b = bundle()
    b.config["hooks"] = {"createRuntime": [{"path": "/nonexistent/hook"}]}
    text = runtime.refused(b)
    assert "/nonexistent/hook" in text
    assert "no such file or directory" in text


def test_a_failed_create_runs_poststop_for_what_it_made(
    runtime: Runtime, bundle: MakeBundle, place: Path, record: Path, busybox: Path
) -> None:
    """Networks that createRuntime hooks have set up are torn down by poststop."""
    b = with_hooks(
        bundle().args("nosuchcommand"),
        record,
        {"createRuntime": [hook("createRuntime", place, record)], "poststop": [hook("poststop", place, record)]},
    )
    runtime.refused(b)
    assert order(record) == (["createRuntime"] if runtime.name.startswith("crun") else ["createRuntime", "poststop"])


def test_a_background_process_of_a_hook_does_not_hold_create(
    runtime: Runtime, bundle: MakeBundle, place: Path, record: Path, busybox: Path
) -> None:
    script = "sleep 3 >/dev/null 2>&1 </dev/null & echo $! >$1/pid"
    b = with_hooks(
        bundle().args("echo", "hi"), record, {"createRuntime": [hook("createRuntime", place, record, script=script)]}
    )
    assert runtime.output(b) == "hi\n"
    os.kill(int((record / "pid").read_text()), 9)


@pytest.mark.not_on("runc", reason="an extension of crun's")
def test_output_goes_where_annotations_say(
    runtime: Runtime, bundle: MakeBundle, place: Path, record: Path, busybox: Path, tmp_path: Path
) -> None:
    """Appended, as crun does, by the hooks of every stage; who writes nothing else is told with the error."""
    script = 'cat >/dev/null; echo "out $2"; echo "err $2" >&2'
    b = with_hooks(bundle().sh(UP), record, {k: [hook(k, place, record, script=script)] for k in KINDS})
    out, err = tmp_path / "stdout", tmp_path / "stderr"
    out.write_text("before\n")
    b.config["annotations"] = {"run.oci.hooks.stdout": str(out), "run.oci.hooks.stderr": str(err)}
    container = runtime.start(b)
    container.wait_for("up")
    opened = {os.readlink(fd) for fd in container.proc("fd").iterdir()}
    assert not {str(out), str(err)} & opened
    container.delete("--force")
    # startContainer's and poststart's hooks run at the same time.
    written = out.read_text().splitlines()
    assert written[:4] == ["before", "out prestart", "out createRuntime", "out createContainer"]
    assert sorted(written[4:]) == ["out poststart", "out poststop", "out startContainer"]
    assert sorted(err.read_text().splitlines()) == sorted(f"err {k}" for k in KINDS)


@pytest.mark.not_on("runc", reason="an extension of crun's")
def test_output_that_goes_nowhere(
    runtime: Runtime, bundle: MakeBundle, place: Path, record: Path, busybox: Path, tmp_path: Path
) -> None:
    hooks = {"createContainer": [hook("createContainer", place, record)]}
    for path, said in (("relative", "not an absolute path"), (f"{tmp_path}/none/file", "no such file or directory")):
        b = with_hooks(bundle().sh(UP), record, hooks)
        b.config["annotations"] = {"run.oci.hooks.stderr": path}
        result = runtime.create(b, check=False).result
        assert result.rc == 1
        assert said in result.text and path in result.text
        assert order(record) == []


@pytest.mark.not_on("runc", reason="an extension of crun's")
def test_poststop_runs_though_its_output_goes_nowhere(
    runtime: Runtime, bundle: MakeBundle, place: Path, record: Path, busybox: Path, tmp_path: Path
) -> None:
    b = with_hooks(bundle().sh("true"), record, {"poststop": [hook("poststop", place, record)]})
    b.config["annotations"] = {"run.oci.hooks.stdout": f"{tmp_path}/none/file"}
    container = runtime.start(b)
    container.wait()
    result = container.delete()
    assert result.rc == 0
    assert "no such file or directory" in result.text
    assert order(record) == ["poststop"]
