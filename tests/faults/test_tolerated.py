"""Errors that mean "this caller may not" where a caller is rootless, and an error anywhere else."""

from __future__ import annotations

import errno
import os
import resource
from pathlib import Path

import pytest

from gpurun.engine.inside.lookup import home_directory
from gpurun.errors import StepError
from gpurun.ns.devices import lend_nodes, make_device
from gpurun.ns.directory_cache import DirectoryCache
from gpurun.ns.mount_plan import DeviceStep
from tests.conftest import MakeBundle
from tests.native.inject import Injection
from tests.native.runtime import Runtime

FOREVER = "echo up; while :; do sleep 0.01; done"


@pytest.mark.sweep(4)
@pytest.mark.native
@pytest.mark.gpurun_only
@pytest.mark.parametrize("user_namespace", [False, True])
@pytest.mark.parametrize("when", ["1", "2"])
@pytest.mark.parametrize("error", ["ENOMEM", "EPERM", "EINVAL"])
def test_a_device_program_that_is_not_there(
    runtime: Runtime, bundle: MakeBundle, tmp_path: Path, user_namespace: bool, when: str, error: str
) -> None:
    """Root's container gets its device program or is none, whatever the error and whatever its namespaces."""
    b = bundle().sh(FOREVER)
    if user_namespace:
        b.user_namespace()
    injection = Injection(tmp_path / "log", "bpf", error, when)
    with injection as tracer:
        text = runtime.refused(b, tracer=tracer)
    assert injection.injected
    assert "cannot restrict devices: bpf(" in text and text.count("\n") == 1


@pytest.mark.native
@pytest.mark.gpurun_only
@pytest.mark.parametrize("user_namespace", [False, True])
def test_a_device_node_that_cannot_be_given_away(
    runtime: Runtime, bundle: MakeBundle, tmp_path: Path, user_namespace: bool
) -> None:
    b = bundle().sh("stat -c %u:%g:%t:%T /dev/full")
    if user_namespace:
        b.user_namespace()
    injection = Injection(tmp_path / "log", "fchownat", "EPERM")
    with injection as tracer:
        text = runtime.refused(b, tracer=tracer)
    assert injection.injected
    assert "make the device node" in text and "operation not permitted" in text and text.count("\n") == 1


STEP = DeviceStep("/dev/full", "c", 1, 7, 0o666, 5, 6)


def fail(error: int) -> object:
    def failing(*args: object, **options: object) -> None:
        raise OSError(error, os.strerror(error))

    return failing


@pytest.mark.parametrize("error", [errno.EPERM, errno.ENOSPC])
def test_owner_of_a_node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: int) -> None:
    if os.geteuid() != 0:
        pytest.skip("makes device nodes")
    root = os.open(tmp_path, os.O_PATH | os.O_DIRECTORY)
    places = DirectoryCache(root)
    with monkeypatch.context() as patched:
        patched.setattr("posix.chown", fail(error))
        patched.setattr("gpurun.ns.devices._bind_node", lambda *_: pytest.fail("the host's node must not stand in for it"))
        with pytest.raises(StepError) as caught:
            make_device(places, STEP, STEP.path, False)
        assert caught.value.errno == error
        with pytest.raises(StepError) as caught:
            lend_nodes((STEP,), lambda uid, gid: (uid, gid))
        assert caught.value.errno == error
    assert not (tmp_path / "dev/full").exists()
    places.close()
    os.close(root)


def test_no_node_at_all_is_no_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """mknod(2) is not permitted: then the host's own node is bound."""
    if os.geteuid() != 0:
        pytest.skip("makes a tmpfs")
    root = os.open(tmp_path, os.O_PATH | os.O_DIRECTORY)
    places = DirectoryCache(root)
    bound: list[str] = []
    monkeypatch.setattr("posix.mknod", fail(errno.EPERM))
    monkeypatch.setattr("gpurun.ns.devices._bind_node", lambda places, step, host_path, *rest: bound.append(host_path))
    make_device(places, STEP, STEP.path, False)
    assert bound == ["/dev/full"]
    assert lend_nodes((STEP,), lambda uid, gid: (uid, gid)) == -1
    places.close()
    os.close(root)


@pytest.mark.parametrize("kind", ["none", "no directory", "loop", "directory", "fifo", "link out", "other user"])
def test_home_of_an_image_without_users(tmp_path: Path, kind: str) -> None:
    (tmp_path / "etc").mkdir()
    passwd = tmp_path / "etc/passwd"
    if kind == "no directory":
        (tmp_path / "etc").rmdir()
        (tmp_path / "etc").write_text("")
    elif kind == "loop":
        passwd.symlink_to("passwd")
    elif kind == "directory":
        passwd.mkdir()
    elif kind == "fifo":
        os.mkfifo(passwd)
    elif kind == "link out":
        passwd.symlink_to("../../../../../etc/passwd")
    elif kind == "other user":
        passwd.write_text("x:x:5:5::/home/x:/bin/sh\n")
    root = os.open(tmp_path, os.O_PATH | os.O_DIRECTORY)
    assert home_directory(root, -1, 0) == "/"
    os.close(root)


def test_home_that_cannot_be_told(tmp_path: Path) -> None:
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc/passwd").write_text("root:x:0:0::/root:/bin/sh\n")
    root = os.open(tmp_path, os.O_PATH | os.O_DIRECTORY)
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (root + 1, limits[1]))
    try:
        with pytest.raises(StepError, match="/etc/passwd of the container: too many open files"):
            home_directory(root, -1, 0)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    assert home_directory(root, -1, 0) == "/root"
    os.close(root)
