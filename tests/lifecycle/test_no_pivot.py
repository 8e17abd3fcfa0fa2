"""``--no-pivot``: chroot(2) in the place of pivot_root(2), and what of the host is hidden then."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import MakeBundle
from tests.native.runtime import Runtime

pytestmark = pytest.mark.native


@pytest.fixture
def source(runtime: Runtime) -> Path:
    """A directory of the host's."""
    made = runtime.directory / "given"
    made.mkdir()
    return made


def test_no_pivot(runtime: Runtime, bundle: MakeBundle) -> None:
    b = bundle().sh("ls /; echo; cat /proc/self/mountinfo")
    listing, mounts = runtime.output(b, "--no-pivot").split("\n\n")
    assert "bin" in listing.split()
    assert "home" not in listing.split()
    assert all(str(runtime.directory) not in line.split()[4] for line in mounts.splitlines())


@pytest.mark.gpurun_only
def test_no_pivot_and_private_propagation(runtime: Runtime, bundle: MakeBundle) -> None:
    b = bundle()
    b.linux["rootfsPropagation"] = "rprivate"
    text = runtime.refused(b, "--no-pivot")
    assert "linux.rootfsPropagation: rootfsPropagation of [r]private is not safe without pivot_root" in text


def test_no_pivot_hides_the_hosts_proc(runtime: Runtime, bundle: MakeBundle) -> None:
    """While any whole /proc is in the mount namespace, the kernel lets a user namespace mount another one without masks."""
    b = (
        bundle()
        .capabilities("CAP_SETFCAP")
        .sh("unshare -mrpf sh -c 'mount -t proc none /proc && echo bare' || echo refused")
    )
    assert runtime.output(b, "--no-pivot") == "refused\n"


@pytest.mark.gpurun_only
@pytest.mark.parametrize("covers", ["", "/deep"], ids=["by the one above", "by its own directory"])
def test_no_pivot_hides_a_proc_of_the_hosts_that_is_covered(
    runtime: Runtime, bundle: MakeBundle, source: Path, in_bed: Callable[..., None], covers: str
) -> None:
    (source / "deep").mkdir()
    in_bed("mount", "-t", "proc", "proc", f"{source}/deep")
    in_bed("mount", "-t", "tmpfs", "tmpfs", f"{source}{covers}")
    b = bundle().capabilities("CAP_SETFCAP")
    b.sh("unshare -mrpf sh -c 'mount -t proc none /proc && echo bare' || echo refused")
    try:
        assert runtime.output(b, "--no-pivot") == "refused\n"
    finally:
        in_bed("umount", f"{source}{covers}")
        in_bed("umount", f"{source}/deep")


@pytest.mark.gpurun_only
def test_no_pivot_where_a_proc_of_the_hosts_cannot_be_reached(
    runtime: Runtime, bundle: MakeBundle, source: Path, in_bed: Callable[..., None]
) -> None:
    """Below a directory that root of the user namespace may not search: it would stay, and so the container is refused."""
    (source / "deep").mkdir()
    in_bed("mount", "-t", "proc", "proc", f"{source}/deep")
    source.chmod(0o700)
    try:
        text = runtime.refused(bundle().user_namespace(), "--no-pivot")
    finally:
        in_bed("umount", f"{source}/deep")
    assert f"--no-pivot: take away the host's {source}/deep: permission denied" in text
