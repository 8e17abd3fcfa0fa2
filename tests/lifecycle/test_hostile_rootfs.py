"""Images made to lead the runtime astray: links where it mounts, makes or writes.  Nothing outside the rootfs may change."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.conftest import MakeBundle, runtime_version
from tests.native.bundle import Bundle
from tests.native.leaks import Leaks
from tests.native.listing import tree_listing
from tests.native.runtime import Runtime

pytestmark = pytest.mark.native


@pytest.fixture
def outside(runtime: Runtime) -> Path:
    """A directory of the host that an image would like to reach."""
    directory = runtime.directory / "outside"
    directory.mkdir()
    (directory / "file").write_text("of the host\n")
    (directory / "dir").mkdir()
    return directory


@pytest.fixture(autouse=True)
def _rootfs_may_change(leaks: Leaks) -> None:
    leaks.allow_rootfs_changes()


def replace(b: Bundle, name: str, target: str) -> None:
    """The image has a link *name* → *target* instead of what was there."""
    path = b.rootfs / name
    if path.is_dir() and not path.is_symlink():
        path.rmdir()
    elif path.exists():
        path.unlink()
    path.symlink_to(target)


def attempt(runtime: Runtime, b: Bundle) -> str:
    """Run *b* or be refused; either is right.  All that was said."""
    container = runtime.create(b, check=False)
    if container.result.rc == 0:
        container.start()
        container.wait()
    return container.out + container.err


def test_links_that_stay_inside_are_followed(runtime: Runtime, bundle: MakeBundle) -> None:
    """/var/run → /run is in most images."""
    given = runtime.directory / "given"
    given.mkdir()
    (given / "inner").write_text("given\n")
    b = bundle().args("cat", "/run/app/inner").mount("/var/run/app", str(given), "bind")
    replace(b, "var/run", "/run")
    assert runtime.output(b) == "given\n"


def test_device_below_a_link(runtime: Runtime, bundle: MakeBundle, outside: Path) -> None:
    before = tree_listing(outside)
    b = bundle().args("true")
    replace(b, "var/link", str(outside))
    b.linux["devices"] = [{"path": "/var/link/node", "type": "c", "major": 1, "minor": 3}]
    attempt(runtime, b)
    assert tree_listing(outside) == before


def test_working_directory_behind_a_link(runtime: Runtime, bundle: MakeBundle, outside: Path) -> None:
    before = tree_listing(outside)
    b = bundle().sh("touch made")
    replace(b, "var/link", str(outside))
    b.process["cwd"] = "/var/link/new"
    attempt(runtime, b)
    assert tree_listing(outside) == before


@pytest.mark.parametrize("kind", ["maskedPaths", "readonlyPaths"])
def test_restricted_path_behind_a_link(runtime: Runtime, bundle: MakeBundle, outside: Path, kind: str) -> None:
    b = bundle().sh("echo x >/etc/inside && cat /etc/inside")
    replace(b, "var/link", str(outside))
    b.linux[kind] += ["/var/link/file", "/var/link"]
    attempt(runtime, b)
    (outside / "file").write_text("still writable\n")


def test_passwd_as_a_link_to_the_host(runtime: Runtime, bundle: MakeBundle, outside: Path) -> None:
    """HOME is looked up in the image's passwd, in the image's root."""
    (outside / "passwd").write_text("root:x:0:0::/leaked:/bin/sh\n")
    b = bundle().sh("echo home $HOME")
    replace(b, "etc/passwd", str(outside / "passwd"))
    assert "leaked" not in attempt(runtime, b)


@pytest.mark.gpurun_only  # runc: invalid argument, and argument list too long
@pytest.mark.parametrize("home", [b"/root\0/x", b"/" + b"x" * 200_000], ids=["a NUL", "200 kB"])
def test_a_home_that_is_no_path(runtime: Runtime, bundle: MakeBundle, home: bytes) -> None:
    """Neither can be a variable's value: the process gets / as if it had none, in create and in exec."""
    b = bundle().sh("echo home $HOME; sleep 1000")
    (b.rootfs / "etc").mkdir(exist_ok=True)
    (b.rootfs / "etc/passwd").write_bytes(b"root:x:0:0::" + home + b":/bin/sh\n")
    container = runtime.start(b)
    assert container.wait_for("home") == "home /\n"
    assert runtime("exec", container.id, "sh", "-c", "echo $HOME").out == "/\n"


@pytest.mark.gpurun_only
def test_a_home_of_other_bytes(runtime: Runtime, bundle: MakeBundle) -> None:
    """What is no UTF-8 is a path all the same."""
    b = bundle().sh("printf %s $HOME | od -An -tx1")
    (b.rootfs / "etc").mkdir(exist_ok=True)
    (b.rootfs / "etc/passwd").write_bytes(b"root:x:0:0::/h\xff:/bin/sh\n")
    assert runtime.output(b).split() == ["2f", "68", "ff"]


@pytest.mark.gpurun_only
@pytest.mark.parametrize("kind", ["fifo", "endless"])
def test_passwd_that_never_ends(runtime: Runtime, bundle: MakeBundle, kind: str) -> None:
    b = bundle().sh("echo home $HOME")
    (b.rootfs / "etc/passwd").unlink()
    if kind == "fifo":
        os.mkfifo(b.rootfs / "etc/passwd")
    else:
        with open(b.rootfs / "etc/passwd", "wb") as f:
            f.truncate(1 << 40)
    attempt(runtime, b)  # runc waits here for ever


def test_rootfs_as_a_link(runtime: Runtime, bundle: MakeBundle) -> None:
    b = bundle().args("echo", "hi")
    real = b.directory / "real"
    b.rootfs.rename(real)
    b.rootfs.symlink_to("real")
    attempt(runtime, b)
    b.rootfs.unlink()
    real.rename(b.rootfs)


@pytest.mark.parametrize("path", ["/nonexistent", "missing", "config.json"])
def test_rootfs_that_is_no_directory(runtime: Runtime, bundle: MakeBundle, path: str) -> None:
    b = bundle()
    b.config["root"]["path"] = path
    old = runtime_version().startswith("runc 1.1") and path == "config.json"
    assert ("not a directory" if old else path) in runtime.refused(b)


def test_mount_over_the_root(runtime: Runtime, bundle: MakeBundle) -> None:
    runtime.refused(bundle().mount("/", "/usr", "rbind"))
    runtime.refused(bundle().mount("/var/..", "/usr", "rbind"))
