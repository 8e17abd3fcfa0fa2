"""What a container's mounts share with the host's, on a host where all mounts are shared, as systemd makes them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import MakeBundle
from tests.native.bed import Bed
from tests.native.bundle import Bundle
from tests.native.leaks import Leaks
from tests.native.runtime import Container, Runtime

pytestmark = pytest.mark.native


def test_a_mask_is_no_way_to_the_hosts_null(runtime: Runtime, bundle: MakeBundle) -> None:
    """What covers a masked file is the host's /dev/null: what the container mounts over it stays in the container."""
    script = "cd /dev/shm; echo owned >o; for f in /proc/keys /etc/secret; do mount --bind o $f && cat $f; done"
    b = bundle().capabilities("CAP_SYS_ADMIN").sh(script)
    (b.rootfs / "etc/secret").write_text("hidden")
    b.linux["maskedPaths"] += ["/etc/secret"]
    try:
        assert runtime.output(b) == "owned\n" * 2
        assert runtime.bed.run("stat", "-c", "%F", "/dev/null") == "character special file\n"
        assert not [line for line in runtime.bed.mounts() if line.split()[4] == "/dev/null"]
    finally:
        while any(line.split()[4] == "/dev/null" for line in runtime.bed.mounts()):
            runtime.bed.run("umount", "/dev/null")


#: linux.rootfsPropagation → what / (of a rootfs on a shared mount) and a bind mount of a shared directory of the host's,
#: without an option of its own, then share, and whether what is mounted in that is seen (inside → on the host, on the host →
#: inside).
WORDS: dict[str, tuple[set[str], set[str], bool, bool]] = {
    "": (set(), {"master"}, False, True),
    "slave": ({"master"}, {"master"}, False, True),
    "rslave": ({"master"}, {"master"}, False, True),
    "private": (set(), set(), False, False),
    "rprivate": (set(), set(), False, False),
    "unbindable": ({"unbindable"}, set(), False, False),
    "runbindable": ({"unbindable"}, {"unbindable"}, False, False),
    "shared": ({"shared"}, {"shared"}, True, True),
    "rshared": ({"shared"}, {"shared"}, True, True),
}


def tags(container: Container, path: str) -> set[str]:
    """What the container's mount on *path* shares with others."""
    lines = [line.partition(" - ")[0].split() for line in container.proc("mountinfo").read_text().splitlines()]
    (found,) = [{tag.split(":")[0] for tag in fields[6:]} for fields in lines if fields[4] == path]
    return found


def own_mount(bed: Bed, path: Path, propagation: str) -> None:
    """Mount the directory on itself, apart from the mount that it is on."""
    for options in (["--bind", str(path)], ["--make-private"], [f"--make-{propagation}"]):
        bed.run("mount", *options, str(path))


@pytest.fixture
def volume(runtime: Runtime, leaks: Leaks) -> Iterator[Path]:
    """A directory of the host's with a mount of its own, which is shared; what is left in it is taken away."""
    directory = runtime.directory / "volume"
    directory.mkdir()
    (directory / "file").write_text("the host's\n")
    own_mount(runtime.bed, directory, "shared")
    for name in ("from-host", "from-container"):
        (directory / name).mkdir()
    directory.chmod(0o777)
    yield directory
    runtime.cleanup()
    runtime.bed.run("umount", "-R", str(directory))


@pytest.fixture(params=["on the host's root", "on a shared mount", "on a private mount"])
def bundle_at(request: pytest.FixtureRequest, runtime: Runtime, bundle: MakeBundle) -> Iterator[MakeBundle]:
    """A bundle on a mount of that kind."""
    mounted = []

    def make() -> Bundle:
        b = bundle()
        if "root" not in request.param:
            own_mount(runtime.bed, b.directory, request.param.split()[2])
            mounted.append(str(b.directory))
        return b

    yield make
    runtime.cleanup()
    for path in mounted:
        runtime.bed.run("umount", path)


@pytest.fixture
def on_private_mount(request: pytest.FixtureRequest) -> bool:
    """Whether ``bundle_at`` is of that kind."""
    return "on a private mount" in request.node.callspec.params.values()


@pytest.mark.sweep(12)
@pytest.mark.gpurun_only  # both peers leave volumes shared where the flag is not recursive, crun's default is private
@pytest.mark.parametrize("user_namespace", [False, True])
@pytest.mark.parametrize("word", WORDS)
def test_what_rootfs_propagation_shares(
    runtime: Runtime, bundle_at: MakeBundle, volume: Path, word: str, user_namespace: bool, on_private_mount: bool
) -> None:
    """As runc's main branch has it: a root that is to be a slave gets what is mounted in the rootfs on the host."""
    root, shares, gets_out, gets_in = WORDS[word]
    if on_private_mount:
        root = root - {"master"}
    if user_namespace and gets_out:  # nothing leaves a user namespace (mount_namespaces(7))
        shares, gets_out = {"master"} | ({"shared"} if word == "rshared" else set()), False
    b = bundle_at().capabilities("CAP_SYS_ADMIN")
    if user_namespace:
        b.user_namespace()
    if word:
        b.linux["rootfsPropagation"] = word
    container = runtime.start(b.mount("/tmp", str(volume), "rbind").sh("sleep 1000"))
    assert (tags(container, "/"), tags(container, "/tmp")) == (root, shares)
    assert tags(container, "/proc") == (root - {"master"} if word[:1] == "r" else set())

    bed = runtime.bed
    bed.run("mount", "-t", "tmpfs", "none", f"{volume}/from-host")
    bed.run("mount", "-t", "tmpfs", "none", f"{b.rootfs}/usr")
    inside = [line.split()[4] for line in container.proc("mountinfo").read_text().splitlines()]
    assert ("/tmp/from-host" in inside) == gets_in
    assert ("/usr" in inside) == ("master" in root), "nothing comes from the host unasked"

    before = bed.mounts()
    mount = "mount -t tmpfs none /tmp/from-container && mount -t tmpfs none /usr && mount -t tmpfs none /proc/fs"
    done = runtime("exec", container.id, "sh", "-c", mount)
    assert done.rc == 0, done.text
    new = [line.split()[4] for line in bed.mounts() if line not in before]
    assert new == ([f"{volume}/from-container"] if gets_out else [])
    bed.run("umount", f"{b.rootfs}/usr")


def test_a_read_only_path_in_a_volume_is_the_hosts_to_write(runtime: Runtime, bundle: MakeBundle, volume: Path) -> None:
    """The bind that makes it read-only is shared with the host, as the volume is; that it is read-only is not."""
    b = bundle().mount("/tmp", str(volume), "rbind", "rshared").sh("touch /tmp/from-host/x || echo refused")
    b.linux.update({"rootfsPropagation": "shared", "readonlyPaths": ["/tmp/from-host"]})
    container = runtime.start(b)
    container.wait()
    assert container.out == "refused\n"
    runtime.bed.run("touch", f"{volume}/from-host/during")
    assert container.delete().rc == 0
    runtime.bed.run("touch", f"{volume}/from-host/after")


@pytest.mark.parametrize("word", ["slave", "private", "unbindable"])
def test_a_volume_that_asks_to_be_shared_is(runtime: Runtime, bundle: MakeBundle, volume: Path, word: str) -> None:
    """A flag that is not recursive is that of the root alone."""
    b = bundle().capabilities("CAP_SYS_ADMIN").mount("/tmp", str(volume), "rbind", "rshared").sh("sleep 1000")
    b.linux["rootfsPropagation"] = word
    container = runtime.start(b)
    of_the_root = {"slave": {"master"}, "private": set(), "unbindable": {"unbindable"}}[word]
    assert (tags(container, "/tmp"), tags(container, "/")) == ({"shared"}, of_the_root)
    done = runtime("exec", container.id, "mount", "-t", "tmpfs", "none", "/tmp/from-container")
    assert done.rc == 0, done.text
    assert f"{volume}/from-container" in [line.split()[4] for line in runtime.bed.mounts()]
