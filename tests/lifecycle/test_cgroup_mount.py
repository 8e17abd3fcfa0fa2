"""The cgroup that a container sees below /sys/fs/cgroup: writable or not, and delegated to a user namespace."""

from __future__ import annotations

import pytest

from tests.conftest import MakeBundle
from tests.native.bundle import Bundle
from tests.native.runtime import Runtime

pytestmark = pytest.mark.native


def cgroup_bundle(bundle: Bundle, *options: str) -> Bundle:
    (bundle.rootfs / "sys/fs/cgroup").mkdir(parents=True, exist_ok=True)
    return bundle.mount("/sys/fs/cgroup", "cgroup", "nosuid", "noexec", "nodev", *options, kind="cgroup")


def test_writable_cgroup_with_a_cgroup_namespace(runtime: Runtime, bundle: MakeBundle) -> None:
    b = cgroup_bundle(bundle(), "rw").sh(
        "mkdir /sys/fs/cgroup/inner && echo $$ >/sys/fs/cgroup/inner/cgroup.procs && grep ^0: /proc/self/cgroup"
    )
    assert runtime.output(b) == "0::/inner\n"


def test_read_only_cgroup(runtime: Runtime, bundle: MakeBundle) -> None:
    b = cgroup_bundle(bundle(), "ro").sh("mkdir /sys/fs/cgroup/inner || echo refused")
    assert runtime.output(b) == "refused\n"


@pytest.mark.not_on("runc", reason="only its systemd driver delegates")
@pytest.mark.parametrize("user", [0, 1000])
def test_cgroup_is_delegated_to_a_user_namespace(runtime: Runtime, bundle: MakeBundle, user: int) -> None:
    b = cgroup_bundle(bundle().user_namespace(), "rw").sh(
        "cd /sys/fs/cgroup && stat -c %u . cgroup.procs cgroup.max.depth && mkdir inner && echo $$ >inner/cgroup.procs"
    )
    b.process["user"] = {"uid": user, "gid": user}
    assert runtime.output(b).split() == [str(user), str(user), "65534"]


def test_cgroup_is_not_delegated_read_only(runtime: Runtime, bundle: MakeBundle) -> None:
    b = cgroup_bundle(bundle().user_namespace(), "ro").args("stat", "-c", "%u", "/sys/fs/cgroup")
    assert runtime.output(b) == "65534\n"
