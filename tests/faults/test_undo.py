"""What was made for a container cannot all be taken back: delete and create say so, and can try it again."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.conftest import MakeBundle
from tests.native.bed import Bed
from tests.native.bundle import Bundle
from tests.native.inject import Injection
from tests.native.leaks import Leaks
from tests.native.listing import tree_listing
from tests.native.runtime import ENVIRONMENT, Container, Runtime
from tests.simdriver import SimulatedDriver

pytestmark = [pytest.mark.native, pytest.mark.gpurun_only]

FOREVER = "echo up; while :; do sleep 0.01; done"
CACHE = b"the image's"


def gpu_bundle(bundle: MakeBundle) -> Bundle:
    b = bundle()
    b.process["env"] += ["NVIDIA_VISIBLE_DEVICES=all"]
    (b.rootfs / "etc/ld.so.conf.d").mkdir()
    (b.rootfs / "etc/ld.so.cache").write_bytes(CACHE)
    return b


def ended(runtime: Runtime, b: Bundle, host: SimulatedDriver) -> Container:
    container = runtime.create(b, env=ENVIRONMENT | host.env)
    assert tree_listing(b.rootfs) != b.rootfs_before
    container.kill("KILL")
    container.wait()
    return container


@pytest.mark.parametrize("force", [(), ("--force",)])
def test_too_few_descriptors(runtime: Runtime, bundle: MakeBundle, host: SimulatedDriver, force: tuple[str, ...]) -> None:
    """prlimit --nofile=6:6 gpurun delete: nothing is forgotten, and the next delete does it all."""
    b = gpu_bundle(bundle)
    before = tree_listing(b.rootfs, exact=True)
    container = ended(runtime, b, host)
    done = runtime("delete", *force, container.id, tracer=("prlimit", "--nofile=6:6"))
    assert done.rc == 1, done
    assert f"the rootfs {b.rootfs}" in done.err and "too many open files" in done.err and done.err.count("\n") == 1
    assert container.state()["status"] == "stopped"
    assert container.delete(*force) == (0, "", "")
    assert tree_listing(b.rootfs, exact=True) == before


@pytest.mark.sweep(2)
@pytest.mark.parametrize(
    ("calls", "error"),
    [
        ("unlinkat,unlink", "EIO"),
        ("rename,renameat,renameat2", "EIO"),
        ("openat2", "ENOMEM"),
        ("unlinkat,unlink", "EROFS"),
    ],
)
def test_what_is_left_is_told_and_the_next_delete_does_it(
    runtime: Runtime, bundle: MakeBundle, host: SimulatedDriver, tmp_path: Path, calls: str, error: str
) -> None:
    b = gpu_bundle(bundle)
    before = tree_listing(b.rootfs, exact=True)
    failed = 0
    for when in ("1", "2", "5", "8+", "1+"):  # the compiled front leaves to the launcher what fails once
        b.linux.pop("cgroupsPath", None)
        container = ended(runtime, b, host)
        injection = Injection(tmp_path / "log", calls, error, when)
        with injection as tracer:
            done = runtime("delete", container.id, tracer=tracer)
        failed += done.rc
        assert (done.rc, done.err.count("\n"), (runtime.root / container.id).exists()) in ((1, 1, True), (0, 0, False)), done
        assert done.rc == 0 or "the rootfs" in done.err or str(runtime.root) in done.err
        assert done.rc == 0 or container.delete() == (0, "", "")
        assert tree_listing(b.rootfs, exact=True) == before
    assert failed


def test_force_gives_up_on_what_the_kernel_refuses(
    runtime: Runtime, bundle: MakeBundle, leaks: Leaks, host: SimulatedDriver, tmp_path: Path
) -> None:
    """A rootfs that is read-only by now would keep the container for ever."""
    leaks.allow_rootfs_changes()
    container = ended(runtime, gpu_bundle(bundle), host)
    for force in ((), ("--force",)):
        injection = Injection(tmp_path / "log", "unlinkat", "EROFS")
        with injection as tracer:
            done = runtime("delete", *force, container.id, tracer=tracer)
        assert injection.injected
        assert done.rc == (0 if force else 1) and "read-only file system" in done.err
    assert not (runtime.root / container.id).exists()


def test_a_container_that_fills_its_disk(
    runtime: Runtime, bundle: MakeBundle, leaks: Leaks, host: SimulatedDriver, busybox: Path
) -> None:
    """The loader's cache is given back all the same: the file itself has been kept, and a rename needs no room."""
    b = gpu_bundle(bundle)
    (b.rootfs / "etc/ld.so.cache").write_bytes(bytes(range(256)) * 1000)
    disk = runtime.directory / "disk"
    disk.mkdir()

    def in_bed(*argv: str) -> str:
        return subprocess.run(argv, check=True, preexec_fn=runtime.bed.enter(), capture_output=True, text=True).stdout

    in_bed("mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", str(disk))
    try:
        in_bed("cp", "-a", f"{b.rootfs}/.", str(disk))
        digest = in_bed("md5sum", f"{disk}/etc/ld.so.cache")
        names = in_bed("find", str(disk), "-printf", "%P %y %m %U %G %i %TY%Tm%Td%TT %l\\n")
        b.config["root"]["path"] = str(disk)
        container = runtime.create(b.sh("cat /dev/zero >/fill; rm -f /dev/null; echo full"), env=ENVIRONMENT | host.env)
        assert in_bed("md5sum", f"{disk}/etc/ld.so.cache") != digest
        container.start()
        container.wait_for("full")
        assert "No space left" in container.err
        container.wait()
        assert container.delete() == (0, "", "")
        in_bed("rm", f"{disk}/fill")
        assert in_bed("md5sum", f"{disk}/etc/ld.so.cache") == digest
        after = in_bed("find", str(disk), "-printf", "%P %y %m %U %G %i %TY%Tm%Td%TT %l\\n")
        assert sorted(after.splitlines()[1:]) == sorted(names.splitlines()[1:])  # but the root's time: `fill` was in it
    finally:
        in_bed("umount", "-l", str(disk))


@pytest.mark.parametrize(("calls", "error"), [("rmdir", "EBUSY"), ("rmdir", "EIO"), ("kill", "EPERM")])
def test_a_create_that_cannot_take_back_what_it_made(
    runtime: Runtime, bundle: MakeBundle, bed: Bed, tmp_path: Path, calls: str, error: str
) -> None:
    """The state directory stays, and with it all that delete --force needs to know."""
    b = bundle()
    b.linux["cgroupsPath"] = f"{bed.subtree}/x{calls}{error}"
    path = bed.cgroup(b.linux["cgroupsPath"])
    where = f"/sys/fs/cgroup{b.linux['cgroupsPath']}"
    # The hook freezes the init, which would else end by itself as soon as create gives up, and need not be killed.
    hook = {"path": "/bin/sh", "args": ["sh", "-c", f"echo 1 >{where}/cgroup.freeze; exit 1"]}
    b.config["hooks"] = {"createRuntime": [hook]}
    injection = Injection(tmp_path / "log", calls, error, path=where if calls == "rmdir" else None)
    with injection as tracer:
        container = runtime.create(b, check=False, tracer=tracer)
    assert injection.injected
    assert container.result.rc == 1
    assert "createRuntime" in container.err and "delete --force" in container.err
    assert (runtime.root / container.id / "state").exists()
    assert container.delete("--force").rc == 0
    assert not (runtime.root / container.id).exists() and not path.exists()


def test_a_process_that_a_hook_leaves_in_the_cgroup(runtime: Runtime, bundle: MakeBundle, bed: Bed, busybox: Path) -> None:
    """It is ended with the container that was not made."""
    b = bundle()
    b.config["hooks"] = {
        "createContainer": [{"path": "/bin/sh", "args": ["sh", "-c", "sleep 1000 </dev/null >/dev/null 2>&1 & exit 1"]}]
    }
    b.linux["cgroupsPath"] = f"{bed.subtree}/hooked"
    container = runtime.create(b, check=False)
    assert container.result.rc == 1 and "createContainer" in container.err
    assert container.err.count("\n") == 1
    assert not (runtime.root / container.id).exists() and not bed.cgroup(b.linux["cgroupsPath"]).exists()


def children() -> set[int]:
    return {int(pid) for pid in Path("/proc/thread-self/children").read_text().split()}


def test_a_message_of_exec_that_cannot_be_read(runtime: Runtime, bundle: MakeBundle, tmp_path: Path) -> None:
    """Whichever it is: exec has ended and reaped all that it started, also the process that it had not heard of yet.  One
    that stays, though it has ended, keeps the container's pid namespace, and so its init."""
    container = runtime.create(bundle().args("sleep", "1000"))
    container.start()
    met = 0
    for number in range(1, 20):
        injection = Injection(tmp_path / "log", "recvmsg", "ENOMEM", str(number), children=False)
        before = children()
        with injection as tracer:
            result = runtime("exec", container.id, "true", tracer=tracer)
        if not injection.injected:
            assert result.rc == 0
            break
        met += 1
        assert result.rc == 255 and "cannot allocate memory" in result.err and result.err.count("\n") == 1, result
        assert children() <= before, f"left by exec, whose recvmsg #{number} failed"
    assert met >= 6  # three messages, or four with a starter, each of which is looked at and read
    assert container.delete("--force") == (0, "", "")
