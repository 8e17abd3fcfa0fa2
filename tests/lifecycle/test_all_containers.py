"""`list --all`, and what is said of a container that is in another state directory than where it was looked for."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from gpurun.commands import all_containers
from gpurun.engine import state as store
from gpurun.errors import GpurunError
from tests.conftest import MakeBundle
from tests.deadline import within
from tests.native.runtime import ENVIRONMENT, Runtime

pytestmark = [pytest.mark.native, pytest.mark.gpurun_only]


def test_the_containers_of_a_root(runtime: Runtime, bundle: MakeBundle) -> None:
    b = bundle().args("sleep", "60")
    b.config["annotations"] = {"nerdctl/name": "web"}
    running, waiting = runtime.start(b), runtime.create(bundle().args("true"))
    (runtime.root / "nothing").mkdir()
    found = {one.id: one for one in all_containers.containers_in(str(runtime.root))}
    assert set(found) == {running.id, waiting.id}
    web = found[running.id]
    assert (web.name, web.engine, web.runtime, web.status, web.pid) == ("web", "nerdctl", "gpurun", "running", running.pid)
    assert (found[waiting.id].status, found[waiting.id].name) == ("created", "")
    rows = all_containers.rows([web])
    assert rows[1][:4] == (running.id, "web", "nerdctl", "running")
    (runtime.root / "nothing").rmdir()


@pytest.mark.parametrize("other", ["runc", "crun"])
def test_those_of_other_runtimes(runtime: Runtime, bundle: MakeBundle, tmp_path: Path, other: str) -> None:
    path = shutil.which(other)
    if path is None:
        pytest.skip(f"{other} is not installed")
    b = bundle().args("sleep", "60")
    foreign = Runtime(path, runtime.bed, runtime.directory / other)
    foreign.directory.mkdir()
    probe = foreign.create(bundle().args("true"), check=False)
    if "RLIM_MEMLOCK" in probe.result.text:
        pytest.skip(f"this {other} raises RLIMIT_MEMLOCK, which is not permitted here")
    probe.delete("--force")
    try:
        container = foreign.start(b)
        (one,) = all_containers.containers_in(str(foreign.root))
        assert (one.id, one.runtime, one.status, one.pid) == (container.id, other, "running", container.pid)
        assert one.bundle == str(b.directory)
        container.kill("KILL")
        container.wait()
        (one,) = all_containers.containers_in(str(foreign.root))
        assert (one.status, one.pid) == ("stopped", 0)
    finally:
        foreign.cleanup()


@pytest.fixture
def elsewhere(runtime: Runtime, bundle: MakeBundle, monkeypatch: pytest.MonkeyPatch) -> str:
    """The id of a container that runs in a root of an engine's; that of the caller is another one."""
    monkeypatch.setattr(all_containers, "state_roots", lambda root, given: (root, str(runtime.root)))
    return runtime.start(bundle().args("sleep", "60")).id


def test_where_it_is(elsewhere: str, runtime: Runtime, tmp_path: Path) -> None:
    said = all_containers.where_it_is(elsewhere, str(tmp_path))
    assert (
        said
        == f" in {tmp_path}: gpurun's {elsewhere} is in {runtime.root}: gpurun --root {runtime.root} COMMAND {elsewhere}"
    )
    said = all_containers.where_it_is("nobody", str(tmp_path))
    assert said.startswith(f': there is no "nobody" in {tmp_path} and ') and "`gpurun list --all`" in said


def call(*words: str, **env: str) -> subprocess.CompletedProcess[str]:
    path = os.environ.get("RUNTIME") or "build/gpurun"
    return subprocess.run([path, *words], capture_output=True, text=True, env={**ENVIRONMENT, **env}, timeout=60)


def test_state_says_where_it_has_looked(tmp_path: Path) -> None:
    done = call("state", "nobody-has-this-id")
    assert done.returncode == 1
    assert 'container does not exist: there is no \\"nobody-has-this-id\\" in /run/gpurun' in done.stderr
    # An engine that names its root gets the words that it looks for, and nothing else.
    done = call("--root", str(tmp_path), "state", "nobody-has-this-id")
    assert done.stderr.endswith('msg="container does not exist"\n')


def test_the_command(runtime: Runtime, bundle: MakeBundle) -> None:
    container = runtime.start(bundle().args("sleep", "60"))
    found = json.loads(runtime("list", "--all", "--format", "json").out)
    assert container.id in [one["id"] for one in found if one["root"] == str(runtime.root)]
    assert container.id in runtime("list", "-a", "-q").out.split()
    table = runtime("list", "--all").out.splitlines()
    assert table[0].split() == ["ID", "NAME", "ENGINE", "STATUS", "PID", "RUNTIME", "ROOT"]
    assert any(line.split()[0] == container.id for line in table)


@pytest.mark.skipif(os.geteuid() != 0, reason="files of another user need root")
@pytest.mark.parametrize("trap", ["state", "state.json", "status", "bundle"])
def test_files_of_another_user_that_block(tmp_path: Path, trap: str) -> None:
    """A FIFO in the place of a file that root reads, or a path to one in a file that he reads."""
    user = 54321
    root = tmp_path / "crun"
    (root / "theirs").mkdir(parents=True)
    if trap == "bundle":
        os.mkfifo(tmp_path / "config.json")
        status = {"pid": os.getpid(), "process-start-time": 1, "bundle": str(tmp_path), "created": "now"}
        (root / "theirs/status").write_text(json.dumps(status))
    else:
        os.mkfifo(root / "theirs" / trap, 0o666)
    for path in (root, *root.rglob("*")):
        os.chown(path, user, user)
    with within(60):
        found = all_containers.containers_in(str(root))
    assert [one.id for one in found] == (["theirs"] if trap == "bundle" else [])


@pytest.mark.skipif(os.geteuid() != 0, reason="files of another user need root")
def test_a_link_of_another_user_to_a_state_of_ours(tmp_path: Path) -> None:
    """Who could have root believe the state in a directory of root's own, would choose what is killed and removed."""
    (tmp_path / "ours/mine").mkdir(parents=True)
    os.mkfifo(tmp_path / "ours/mine/state")
    (tmp_path / "theirs").mkdir()
    (tmp_path / "theirs/mine").symlink_to(tmp_path / "ours/mine")
    for path in (tmp_path / "theirs", tmp_path / "theirs/mine"):
        os.chown(path, 54321, 54321, follow_symlinks=False)
    with within(60):
        with pytest.raises(GpurunError, match="belongs to user 54321"):
            store.load(str(tmp_path / "theirs"), "mine")
        with pytest.raises(GpurunError, match=r"read .*/ours/mine/state: not a regular file"):
            store.load(str(tmp_path / "ours"), "mine")
