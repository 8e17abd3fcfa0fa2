"""Checkpoints that are refused or fail, and leave nothing; where there is no CRIU."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.conftest import MakeBundle
from tests.native.checkpoint import counting, save, saved
from tests.native.leaks import Leaks
from tests.native.runtime import Runtime

pytestmark = pytest.mark.native


def test_a_failing_hook_leaves_nothing(runtime: Runtime, bundle: MakeBundle, image: Path) -> None:
    b = bundle()
    first = counting(runtime, b)
    saved(first, image)
    b.config["hooks"] = {"createRuntime": [{"path": "/bin/false"}]}
    b.write()
    done = runtime("restore", "-d", "--bundle", str(b.directory), "--image-path", str(image), first.id)
    assert done.rc == 1 and "createRuntime hook #0" in done.text
    assert "does not exist" in runtime("state", first.id).text


@pytest.mark.parametrize("name", ["core-1.img", "pstree.img", "inventory.img", "mountpoints-*.img"])
def test_a_damaged_image_leaves_nothing(runtime: Runtime, bundle: MakeBundle, image: Path, name: str) -> None:
    b = bundle()
    first = counting(runtime, b)
    saved(first, image)
    next(image.glob(name)).write_bytes(b"nonsense")
    done = runtime("restore", "-d", "--bundle", str(b.directory), "--image-path", str(image), first.id)
    assert done.rc == 1 and "criu failed" in done.text and "restore.log" in done.text
    assert "does not exist" in runtime("state", first.id).text


@pytest.mark.parametrize("status", ["created", "stopped"])
def test_only_what_runs(runtime: Runtime, bundle: MakeBundle, image: Path, status: str) -> None:
    container = runtime.create(bundle().sh("exit 0"))
    if status == "stopped":
        container.start()
        container.wait()
    done = save(container, image)
    assert done.rc == 1 and f"Container cannot be checkpointed in {status} state" in done.text


def test_nothing_to_restore(runtime: Runtime, bundle: MakeBundle, image: Path) -> None:
    b = bundle()
    b.write()
    name = runtime.new_id()
    done = runtime("restore", "-d", "--bundle", str(b.directory), "--image-path", str(image), name)
    assert done.rc == 1 and "no such file or directory" in done.text
    assert "does not exist" in runtime("state", name).text


def test_restore_over_one_that_is_there(runtime: Runtime, bundle: MakeBundle, image: Path) -> None:
    container = counting(runtime, bundle())
    saved(container, image, "--leave-running")
    done = runtime("restore", "-d", "--bundle", str(container.bundle.directory), "--image-path", str(image), container.id)
    assert done.rc == 1 and "container with given ID already exists" in done.text
    assert container.state()["status"] == "running"


@pytest.mark.gpurun_only
@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--parent-path", "/absolute"), "--parent-path must be relative"),
        (("--parent-path", "../nowhere"), "invalid --parent-path"),
        (("--page-server", "nonsense"), "Use --page-server ADDRESS:PORT"),
        (("--page-server", "127.0.0.1:port"), "is not a port number"),
        (("--page-server", "127.0.0.1:65536"), "is not a port number"),
        (("--manage-cgroups-mode", "x"), "manage-cgroups-mode"),
        (("--network-lock", "x"), "network-lock"),
        (("--empty-ns", "user"), 'namespace "user" is not supported'),
        (("--status-fd", "77", "--lazy-pages"), "invalid --status-fd argument 77"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else None,
)
def test_wrong_options(runtime: Runtime, bundle: MakeBundle, image: Path, options: tuple[str, ...], said: str) -> None:
    container = counting(runtime, bundle())
    done = save(container, image, *options)
    assert done.rc == 1 and said in done.text
    assert container.state()["status"] == "running"


@pytest.mark.gpurun_only
def test_without_criu(runtime: Runtime, bundle: MakeBundle, leaks: Leaks, tmp_path: Path) -> None:
    leaks.allow_rootfs_changes()
    env = {"PATH": "/nonexistent"}
    container = runtime.start(bundle().sh("sleep 1000"))
    (tmp_path / "inventory.img").write_text("")  # restore looks for it first
    images = ("--image-path", str(tmp_path))
    restore = ("restore", "-d", *images, "--bundle", str(container.bundle.directory), "x")
    for command in (("checkpoint", *images, container.id), restore):
        done = runtime(*command, env=env)
        assert done.rc == 1 and "there is no criu in /nonexistent" in done.text
    features = json.loads(runtime("features", env=env).out)["annotations"]
    assert features["org.opencontainers.runc.checkpoint.enabled"] == "false"


@pytest.mark.gpurun_only
def test_features_say_so(runtime: Runtime, image: Path) -> None:
    features = json.loads(runtime("features").out)
    assert features["annotations"]["org.opencontainers.runc.checkpoint.enabled"] == "true"
    assert "org.criu.config" in features["potentiallyUnsafeConfigAnnotations"]


@pytest.mark.gpurun_only
def test_settings_of_the_container_itself_are_refused(runtime: Runtime, bundle: MakeBundle, tmp_path: Path) -> None:
    b = bundle().sh("sleep 1000")
    settings = b.rootfs / "criu.conf"
    settings.write_text("action-script /evil\n")
    b.config["annotations"] = {"org.criu.config": str(settings)}
    (tmp_path / "bin").mkdir()
    criu = tmp_path / "bin/criu"  # is there, and must not be run
    criu.write_text(f"#!/bin/sh\ntouch {tmp_path}/ran\n")
    criu.chmod(0o755)
    env = {"PATH": str(criu.parent)}
    images = tmp_path / "images"
    images.mkdir()
    (images / "inventory.img").write_text("")
    (images / "descriptors.json").write_text('["/dev/null", "/dev/null", "/dev/null"]')
    container = runtime.start(b)
    done = runtime("checkpoint", "--image-path", str(images), container.id, env=env)
    assert done.rc == 1 and f"{settings} is a file of the container's root" in done.text
    assert container.state()["status"] == "running"
    name = runtime.new_id()
    done = runtime("restore", "-d", "--bundle", str(b.directory), "--image-path", str(images), name, env=env)
    assert done.rc == 1 and f"{settings} is a file of the container's root" in done.text
    assert "does not exist" in runtime("state", name).text
    assert not (tmp_path / "ran").exists()


@pytest.mark.gpurun_only
@pytest.mark.parametrize("what", ["idmap", "mount namespace"])
def test_what_criu_would_lose_is_refused(runtime: Runtime, bundle: MakeBundle, image: Path, what: str) -> None:
    b = bundle()
    if what == "idmap":
        (runtime.directory / "d").mkdir()
        b.mount("/d", str(runtime.directory / "d"), "bind")
        mapping = [{"containerID": 0, "hostID": 1000, "size": 10}]
        b.config["mounts"][-1] |= {"uidMappings": mapping, "gidMappings": mapping}
    else:
        b.without_namespace("mount")
        b.linux.pop("maskedPaths"), b.linux.pop("readonlyPaths")
        b.config["mounts"] = []
    container = counting(runtime, b)
    done = save(container, image)
    assert done.rc == 1 and ("id-mapped" if what == "idmap" else "mount namespace") in done.text
    assert container.state()["status"] == "running"
