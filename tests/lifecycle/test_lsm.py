"""Labels on a host with and without the security module that they are for."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpurun.security.lsm import apparmor_enabled, selinux_enabled
from tests.conftest import MakeBundle
from tests.native.runtime import Runtime

pytestmark = pytest.mark.native

with_apparmor = pytest.mark.skipif(not apparmor_enabled(), reason="this kernel does not run AppArmor")
with_selinux = pytest.mark.skipif(not selinux_enabled(), reason="this kernel does not run SELinux")


@pytest.mark.gpurun_only
@pytest.mark.skipif(apparmor_enabled(), reason="this kernel runs AppArmor")
def test_apparmor_profile_where_there_is_no_apparmor(runtime: Runtime, bundle: MakeBundle) -> None:
    b = bundle()
    b.process["apparmorProfile"] = "docker-default"
    text = runtime.refused(b)
    assert 'process.apparmorProfile: "docker-default" cannot be applied: AppArmor is not enabled on this host' in text


@pytest.mark.skipif(selinux_enabled(), reason="this kernel runs SELinux")
def test_selinux_label_where_there_is_no_selinux(runtime: Runtime, bundle: MakeBundle) -> None:
    b = bundle()
    b.process["selinuxLabel"] = "system_u:system_r:container_t:s0"
    assert "selinux label is specified in config, but selinux is disabled or not supported" in runtime.refused(b)


@pytest.mark.gpurun_only
@pytest.mark.skipif(selinux_enabled(), reason="this kernel runs SELinux")
def test_mount_label_where_there_is_no_selinux(runtime: Runtime, bundle: MakeBundle) -> None:
    b = bundle()
    b.linux["mountLabel"] = "system_u:object_r:container_file_t:s0"
    assert "linux.mountLabel: selinux label is specified" in runtime.refused(b)


def test_empty_labels_ask_for_nothing(runtime: Runtime, bundle: MakeBundle) -> None:
    b = bundle()
    b.process["apparmorProfile"] = b.process["selinuxLabel"] = b.linux["mountLabel"] = ""
    runtime.output(b)


@with_apparmor
def test_apparmor_unconfined(runtime: Runtime, bundle: MakeBundle) -> None:
    b = bundle().args("cat", "/proc/self/attr/current")
    b.process["apparmorProfile"] = "unconfined"
    assert runtime.output(b).strip() == "unconfined"


@with_apparmor
def test_apparmor_profile_that_is_not_loaded(runtime: Runtime, bundle: MakeBundle) -> None:
    b = bundle()
    b.process["apparmorProfile"] = "no-such-profile"
    assert "apparmor profile" in runtime.refused(b)


@with_selinux
def test_selinux_context_of_the_process(runtime: Runtime, bundle: MakeBundle) -> None:
    own = Path("/proc/self/attr/current").read_text().strip("\0\n")
    b = bundle().args("cat", "/proc/self/attr/current")
    b.process["selinuxLabel"] = own
    assert runtime.output(b).strip("\0\n") == own
