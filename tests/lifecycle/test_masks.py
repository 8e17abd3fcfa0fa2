"""What a container may not write or read: a root that is read-only, masked and read-only paths."""

from __future__ import annotations

import os

import pytest

from tests.conftest import MakeBundle
from tests.native.leaks import Leaks
from tests.native.runtime import Runtime

pytestmark = pytest.mark.native


def test_read_only_root(runtime: Runtime, bundle: MakeBundle) -> None:
    b = bundle().sh("echo x >/tmp/x; echo y >/dev/shm/y && cat /dev/shm/y")
    b.config["root"]["readonly"] = True
    result = runtime.run(b)
    assert "Read-only file system" in result.err
    assert result.out == "y\n"


def test_writes_into_the_root_arrive(runtime: Runtime, bundle: MakeBundle, leaks: Leaks) -> None:
    leaks.allow_rootfs_changes()
    b = bundle().sh("echo kept >/etc/kept")
    runtime.output(b)
    assert (b.rootfs / "etc/kept").read_text() == "kept\n"


def test_masked_paths(runtime: Runtime, bundle: MakeBundle) -> None:
    b = bundle().sh("cat /etc/secret; ls -A /var; stat -c %F /etc/secret; cat /proc/kcore | wc -c; touch /var/x")
    (b.rootfs / "etc/secret").write_text("hidden")
    (b.rootfs / "var/inside").mkdir()
    b.linux["maskedPaths"] += ["/etc/secret", "/var", "/var", "/nonexistent/path"]
    result = runtime.run(b)
    assert result.out.splitlines() == ["character special file", "0"]
    assert "Read-only file system" in result.err


def test_a_mask_does_not_lend_the_host_its_null(runtime: Runtime, bundle: MakeBundle) -> None:
    """What covers a file must not be a way to change the mode or the owner of the host's /dev/null."""
    b = (
        bundle()
        .capabilities("CAP_FOWNER", "CAP_CHOWN")
        .sh("chmod 666 /etc/secret; chown 0 /etc/secret; echo x >/etc/secret; cat /etc/secret")
    )
    (b.rootfs / "etc/secret").write_text("hidden")
    b.linux["maskedPaths"] += ["/etc/secret"]
    changed = 0
    for _ in range(5):  # others on this host may touch it as well, a container that can does so each time
        before = os.stat("/dev/null")
        result = runtime.run(b)
        after = os.stat("/dev/null")
        assert (result.rc, result.out) == (0, "")
        assert (after.st_mode, after.st_uid) == (before.st_mode, before.st_uid)
        if after.st_ctime_ns == before.st_ctime_ns:
            break
        changed += 1
    assert changed < 5


def test_read_only_paths(runtime: Runtime, bundle: MakeBundle) -> None:
    b = (
        bundle()
        .capabilities("CAP_SYS_ADMIN", "CAP_NET_ADMIN")
        .sh(
            "cat /etc/passwd | wc -l; echo x >>/etc/passwd; echo 1 >/proc/sys/net/ipv4/ip_forward; touch /tmp/x && rm /tmp/x"
        )
    )
    b.linux["readonlyPaths"] += ["/etc", "/nonexistent/path"]
    result = runtime.run(b)
    assert result.rc == 0
    assert result.err.count("Read-only file system") == 2


@pytest.mark.parametrize("path", ["/", "/usr/.."])
@pytest.mark.parametrize("user_namespace", [False, True])
def test_the_root_as_a_read_only_path(runtime: Runtime, bundle: MakeBundle, path: str, user_namespace: bool) -> None:
    """For the first process and for those of exec; what is mounted in it stays as it is, as with root.readonly."""
    b = bundle().user_namespace() if user_namespace else bundle()
    b.linux["readonlyPaths"] = [path]
    script = "for i in /tmp /dev/shm; do touch $i/x 2>/dev/null && echo $i; done"
    container = runtime.start(b.sh(f"{script}; echo up; sleep 1000"))
    assert container.wait_for("up") == "/dev/shm\nup\n"
    assert runtime("exec", container.id, "sh", "-c", script).out == "/dev/shm\n"


@pytest.mark.parametrize("first", ["/usr", "/etc"])
def test_the_root_by_way_of_what_is_mounted_in_it_as_a_read_only_path(
    runtime: Runtime, bundle: MakeBundle, leaks: Leaks, first: str
) -> None:
    """An image's link that leads through a mount and back: a bind of the root on itself would lie where no process is."""
    leaks.allow_rootfs_changes()
    b = bundle()
    (b.rootfs / "up").symlink_to(f"{first[1:]}/..")
    b.linux["readonlyPaths"] = [first, "/up"]
    script = "touch /tmp/x && echo tmp; cut -d' ' -f5 /proc/self/mountinfo | grep -cx /; touch /dev/shm/x && echo shm"
    assert runtime.run(b.sh(script)).out == "1\nshm\n"


def test_another_mount_of_the_rootfs_as_a_read_only_path(runtime: Runtime, bundle: MakeBundle, leaks: Leaks) -> None:
    leaks.allow_rootfs_changes()
    b = bundle().sh("touch /tmp/x && echo a; touch /var/tmp/y || echo b")
    b.linux["readonlyPaths"] = ["/var"]
    b.mount("/var", str(b.rootfs), "bind")
    assert runtime.output(b) == "a\nb\n"


def test_masks_with_a_read_only_root(runtime: Runtime, bundle: MakeBundle) -> None:
    b = bundle().sh("cat /proc/kcore | wc -c; ls -A /sys/firmware")
    b.config["root"]["readonly"] = True
    assert runtime.output(b) == "0\n"
