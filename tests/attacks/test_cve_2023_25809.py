"""CVE-2023-25809: the host's cgroups can be written to where there is no cgroup namespace."""

from __future__ import annotations

import pytest

from tests.conftest import MakeBundle
from tests.native.bed import Bed
from tests.native.runtime import Runtime


@pytest.mark.native
@pytest.mark.attack("CVE-2023-25809", "the host's cgroups can be written to where there is no cgroup namespace")
@pytest.mark.parametrize("user_namespace", [False, True])
def test_the_hosts_cgroups_cannot_be_written_to(
    runtime: Runtime, bundle: MakeBundle, bed: Bed, user_namespace: bool
) -> None:
    probe = bed.cgroup(bed.subtree) / "probe"
    probe.mkdir()  # root of the host can: only how it is mounted holds a container
    probe.rmdir()
    script = "test -e /sys/fs/cgroup/cgroup.procs || exit 9; mkdir /sys/fs/cgroup/made 2>/dev/null && exit 1; exit 0"
    b = bundle().sh(script).without_namespace("cgroup")
    if user_namespace:
        b.user_namespace()
    b.mount("/sys/fs/cgroup", "cgroup", "nosuid", "noexec", "nodev", "relatime", "ro", kind="cgroup")
    result = runtime.run(b)
    if result.rc == 9:
        pytest.skip("this runtime shows the cgroups of version 1 here")
    assert result.rc == 0, "a cgroup of the host's was made"
