"""Containers without a mount namespace of their own: their mounts are among the host's as long as they are there."""

from __future__ import annotations

import subprocess
from collections.abc import Callable

import pytest

from tests.conftest import MakeBundle
from tests.native.bundle import Bundle
from tests.native.leaks import Leaks
from tests.native.runtime import Runtime

pytestmark = pytest.mark.native

#: What takes them away again is gpurun's delete; under others they stay on the host.
CLEANS_UP = pytest.mark.gpurun_only
RUNC = pytest.mark.not_on("runc", reason="makes all of the host's mounts private, and leaves its own among them")


@pytest.fixture
def shared(bundle: MakeBundle) -> Callable[[], Bundle]:
    """A bundle with all usual mounts, and without a namespace for them."""

    def make() -> Bundle:
        b = bundle().without_namespace("mount")
        del b.linux["maskedPaths"], b.linux["readonlyPaths"]
        return b

    return make


@RUNC
def test_enters_the_rootfs(runtime: Runtime, bundle: MakeBundle, leaks: Leaks) -> None:
    leaks.allow_rootfs_changes()  # there is no mount to hide device nodes in
    b = bundle().without_namespace("mount").sh("echo $$; ls / /dev; echo x >/dev/null")
    b.config["mounts"] = []
    del b.linux["maskedPaths"], b.linux["readonlyPaths"]
    b.linux["devices"] = []
    words = runtime.output(b).split()
    assert {"1", "bin", "null"} <= set(words)
    assert "home" not in words


@RUNC
@pytest.mark.parametrize("readonly", [False, True])
def test_a_read_only_root(runtime: Runtime, bundle: MakeBundle, leaks: Leaks, readonly: bool) -> None:
    """The host's own directory does not become so; hooks run as ever.  runc and crun make nothing read-only."""
    leaks.allow_rootfs_changes()
    b = bundle().without_namespace("mount").sh("echo up; touch /tmp/x 2>/dev/null || echo read-only")
    b.config["root"]["readonly"] = readonly
    b.config["mounts"] = []
    del b.linux["maskedPaths"], b.linux["readonlyPaths"]
    touch = {"path": "/bin/sh", "args": ["sh", "-c", "cat >/dev/null; touch hook; touch rootfs/hook"]}
    b.config["hooks"] = {"createRuntime": [touch]}
    done = runtime.run(b)
    works = readonly and runtime.name.startswith("gpurun")
    assert (done.rc, done.out) == (0, "up\nread-only\n" if works else "up\n"), done
    assert (b.directory / "hook").exists() and (b.rootfs / "hook").exists()


@CLEANS_UP
def test_its_mounts_are_private_and_go_with_it(runtime: Runtime, shared: MakeBundle) -> None:
    b = shared().sh("sleep 1000").mount("/tmp", "/dev", "rbind")
    before = runtime.bed.mounts()
    container = runtime.start(b)
    new = [line for line in runtime.bed.mounts() if line not in before]
    points = [line.split()[4] for line in new]
    assert points[0] == str(b.rootfs) and f"{b.rootfs}/proc" in points and f"{b.rootfs}/dev/shm" in points
    assert not [line for line in new if " shared:" in line.split(" - ")[0]]
    assert container.delete("--force").rc == 0
    assert runtime.bed.mounts() == before


@CLEANS_UP
def test_in_the_foreground(runtime: Runtime, shared: MakeBundle) -> None:
    before = runtime.bed.mounts()
    assert runtime.output(shared().sh("ls /proc/1/comm; touch /dev/shm/x && echo up")) == "/proc/1/comm\nup\n"
    assert runtime.bed.mounts() == before


@CLEANS_UP
def test_a_rootfs_by_way_of_a_link(runtime: Runtime, shared: MakeBundle) -> None:
    b = shared().sh("echo up")
    (b.directory / "link").symlink_to(b.rootfs)
    b.config["root"]["path"] = "link"
    before = runtime.bed.mounts()
    assert runtime.output(b) == "up\n"
    assert runtime.bed.mounts() == before


@CLEANS_UP
def test_a_create_that_fails(runtime: Runtime, shared: MakeBundle) -> None:
    b = shared()
    b.config["hooks"] = {"createRuntime": [{"path": "/bin/false"}]}
    before = runtime.bed.mounts()
    runtime.refused(b)
    assert runtime.bed.mounts() == before
    del b.config["hooks"]
    runtime.refused(b.mount("/tmp", "/nonexistent/source", "bind"))
    assert runtime.bed.mounts() == before


@CLEANS_UP
def test_who_has_unmounted_it_before(runtime: Runtime, shared: MakeBundle) -> None:
    """One unmount takes all away, and delete is content."""
    b = shared().sh("sleep 1000")
    before = runtime.bed.mounts()
    container = runtime.start(b)
    runtime.bed.run("umount", "-l", str(b.rootfs))
    assert runtime.bed.mounts() == before
    assert container.delete("--force").rc == 0


@CLEANS_UP
def test_two_of_one_rootfs(runtime: Runtime, shared: MakeBundle) -> None:
    """The mounts of the second cover those of the first, which is deleted when they are gone."""
    b = shared().sh("sleep 1000")
    before = runtime.bed.mounts()
    first = runtime.start(b)
    del b.linux["cgroupsPath"]
    second = runtime.start(b)
    done = first.delete("--force")
    assert done.rc == 1 and "unmount first what is mounted over it, then delete again" in done.text
    assert second.delete("--force").rc == 0
    assert first.delete("--force").rc == 0
    assert runtime.bed.mounts() == before


@CLEANS_UP
def test_nothing_is_mounted_in_other_namespaces(runtime: Runtime, shared: MakeBundle) -> None:
    """Those who get the host's mounts, as containers with a volume do, get the directory and not what is mounted in it."""
    b = shared().sh("sleep 1000")
    command = ["unshare", "-m", "--propagation", "slave", "sh", "-c", "echo up; read -r _; cat /proc/self/mountinfo"]
    other = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, preexec_fn=runtime.bed.enter()
    )
    assert other.stdout is not None and other.stdout.readline() == "up\n"
    runtime.start(b)
    seen = other.communicate("\n", timeout=60)[0]
    assert [p for p in (line.split()[4] for line in seen.splitlines()) if p.startswith(f"{b.rootfs}/")] == []
