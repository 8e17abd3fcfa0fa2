"""Labels on a host with and without the security module that they are for."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
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


PROFILE = """
profile gpurun-test flags=(attach_disconnected,mediate_deleted) {
  file, capability, mount, umount, signal, ptrace, network, unix,
  deny /tmp/** w,
}
"""


@pytest.fixture
def profile(tmp_path: Path) -> Iterator[str]:
    """A profile under which nothing can be written below /tmp."""
    if not shutil.which("apparmor_parser"):
        pytest.skip("apparmor_parser is not installed")
    (tmp_path / "profile").write_text(PROFILE)
    subprocess.run(["apparmor_parser", "-rK", str(tmp_path / "profile")], check=True)
    yield "gpurun-test"
    subprocess.run(["apparmor_parser", "-R", str(tmp_path / "profile")], check=True)


@pytest.mark.conforms(
    "config.md: Linux Process", level="MUST", what="`apparmorProfile` is the AppArmor profile of the process"
)
@with_apparmor
@pytest.mark.parametrize("no_new_privileges", [True, False])
def test_apparmor_profile(runtime: Runtime, bundle: MakeBundle, profile: str, no_new_privileges: bool) -> None:
    """The process is in it from its first instruction; the runtime itself was not, and could write."""
    b = bundle().sh("cat /proc/self/attr/current; touch /tmp/file || echo refused")
    b.process.update(apparmorProfile=profile, noNewPrivileges=no_new_privileges)
    b.mount("/tmp", "tmpfs", kind="tmpfs")
    assert runtime.output(b).split("\n")[:2] == [f"{profile} (enforce)", "refused"]


@pytest.mark.conforms("config.md: Linux Process", level="MUST", what="`selinuxLabel` is the SELinux context of the process")
@with_selinux
def test_selinux_context_of_the_process(runtime: Runtime, bundle: MakeBundle) -> None:
    own = Path("/proc/self/attr/current").read_text().strip("\0\n")
    b = bundle().args("cat", "/proc/self/attr/current")
    b.process["selinuxLabel"] = own
    assert runtime.output(b).strip("\0\n") == own
