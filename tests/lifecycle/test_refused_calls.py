"""System calls that a seccomp filter refuses, one at a time: the table of docs/refused-calls.md."""

from __future__ import annotations

import errno
import os
import re

import pytest

from tests.conftest import REPOSITORY, MakeBundle
from tests.native.execs import FOREVER
from tests.native.leaks import Leaks
from tests.native.refusing import refuse
from tests.native.runtime import ENVIRONMENT, Runtime
from tests.native.waiting import wait_until
from tests.needs_nodes import require_nodes
from tests.simdriver import SimulatedDriver, minor

pytestmark = pytest.mark.native

_TEXT = (REPOSITORY / "docs/refused-calls.md").read_text(encoding="utf-8").partition("| call | gpurun |")[2]
ROWS = {call: dict(zip(("gpurun", "crun", "runc"), cells, strict=True)) for call, *cells in re.findall(
    r"^\| (\w+) \| (.*?) \| (.*?) \| (.*?) \|$", _TEXT, re.MULTILINE)}  # fmt: skip
STOOD_IN = tuple(call for call, cells in ROWS.items() if cells["gpurun"] == "ok")


def test_the_table_has_all_calls() -> None:
    assert len(ROWS) == 12 and len(STOOD_IN) == 7


@pytest.mark.parametrize("error", ["ENOSYS", "EPERM"])
@pytest.mark.parametrize("call", ROWS)
def test_one_call(runtime: Runtime, bundle: MakeBundle, leaks: Leaks, call: str, error: str) -> None:
    cell = ROWS[call].get(runtime.name.partition("-")[0], "")
    if not cell:
        pytest.skip("not in the table")
    if runtime.name in ("crun", "runc"):
        leaks.allow_rootfs_changes()
    before = refuse((call,), getattr(errno, error))
    b = bundle().sh(FOREVER)
    container = runtime.create(b, check=False, preexec=before)
    if cell == "refused, with its name":
        assert container.result.rc == 1
        assert f": a seccomp filter refuses {call}(2), and nothing else " in container.result.text
        return
    if error == "EPERM" and "EPERM" in cell and "threads" in cell:
        assert container.result.rc != 0
        return
    assert container.result.rc == 0, container.result.text
    assert runtime("start", container.id, preexec=before).rc == 0
    container.wait_for("up")
    done = runtime("exec", container.id, "true", preexec=before)
    assert (done.rc == 0) is ("exec" not in cell), done.text
    if cell.startswith("exec refused"):
        assert ": a seccomp filter refuses setns(2), and nothing else enters a container" in done.text
    done = runtime("kill", container.id, "KILL", preexec=before)
    assert (done.rc == 0) is (error not in cell or error == "ENOSYS"), done.text
    if done.rc == 0:
        container.wait()
        assert runtime("delete", container.id, preexec=before).rc == 0


@pytest.mark.gpurun_only
@pytest.mark.parametrize("error", [errno.ENOSYS, errno.EPERM])
@pytest.mark.parametrize("mapped", [False, True])
def test_a_gpu_with_all_that_can_be_refused(
    runtime: Runtime, bundle: MakeBundle, host: SimulatedDriver, mapped: bool, error: int
) -> None:
    """Mounts have their attributes, /proc's files are masked, and the GPU is there."""
    script = """
        cat /proc/driver/nvidia/version; ls /dev | grep nvidia; cat /proc/mounts; head -c1 /proc/kcore | wc -c
        (: >/proc/sys/kernel/hostname) 2>&1; (: >/tmp/x) 2>&1; ls -l /proc/self/fd | grep -c .
    """
    b = bundle().sh(script).mount("/tmp", "/etc", "rbind", "ro", "nosuid", "nodev", "noexec")
    b.process["env"] += ["NVIDIA_VISIBLE_DEVICES=all", "NVIDIA_DRIVER_CAPABILITIES=all"]
    if mapped:
        b = b.user_namespace()
    env = dict(os.environ) | host.env
    plain = runtime.output(b, env=env)
    filtered = runtime.output(b, env=env, preexec=refuse(STOOD_IN, error))
    assert "NVRM version" in plain and "nvidiactl" in plain and plain.count("Read-only file system") >= 2

    def told(text: str) -> list[str]:
        return sorted(re.sub(r"size=\d+k|inode64|,\S*uid=\S*", "", line) for line in text.splitlines())

    assert told(filtered) == told(plain)


@pytest.mark.gpurun_only
def test_a_gpu_on_a_read_only_root(runtime: Runtime, bundle: MakeBundle, host: SimulatedDriver) -> None:
    """Overlays make room for it, whose layers must be mounted where mount(2) is called; in the end they are read-only."""
    b = bundle().sh("ls /usr/lib | grep -c .; (: >/usr/lib/x) 2>&1; grep -c ' overlay ' /proc/mounts; cat /usr/lib/kept")
    b.process["env"] += ["NVIDIA_VISIBLE_DEVICES=all"]
    for name in ("lib", "tmp", "usr/bin", "usr/lib", "var/run", "etc"):
        (b.rootfs / name).mkdir(parents=True, exist_ok=True)
    (b.rootfs / "usr/lib/kept").write_text("kept\n")
    b.write()
    runtime.bed.run("mount", "--bind", str(b.rootfs), str(b.rootfs))
    runtime.bed.run("mount", "-o", "remount,ro,bind", str(b.rootfs))
    try:
        env = dict(os.environ) | host.env
        plain = runtime.output(b, env=env)
        for error in (errno.ENOSYS, errno.EPERM):
            assert runtime.output(b, env=env, preexec=refuse(STOOD_IN, error)) == plain
        assert "Read-only file system" in plain and plain.endswith("kept\n")
    finally:
        runtime.cleanup()
        runtime.bed.run("umount", str(b.rootfs))


@pytest.mark.gpurun_only
@pytest.mark.parametrize("error", [errno.ENOSYS, errno.EPERM])
def test_without_a_mount_namespace(runtime: Runtime, bundle: MakeBundle, error: int) -> None:
    """Its rootfs is mounted on itself by the caller, who needs what stands in as well; nothing stays."""
    b = bundle().without_namespace("mount").sh("grep -c ' /tmp ' /proc/mounts; (: >/tmp/x) 2>/dev/null || echo read-only")
    b.mount("/tmp", "/etc", "rbind", "ro")
    del b.linux["maskedPaths"], b.linux["readonlyPaths"]
    before = runtime.bed.mounts()
    done = runtime.run(b, preexec=refuse(STOOD_IN, error))
    assert (done.rc, done.out) == (0, "1\nread-only\n"), done
    assert runtime.bed.mounts() == before


@pytest.mark.gpurun_only
@pytest.mark.parametrize("error", [errno.ENOSYS, errno.EPERM])
def test_an_id_mapped_mount_takes_mount_setattr(runtime: Runtime, bundle: MakeBundle, error: int) -> None:
    b = bundle().user_namespace()
    source = b.directory / "data"
    source.mkdir()
    b.config["mounts"].append({"destination": "/tmp", "type": "bind", "source": str(source), "options": ["rbind", "idmap"]})
    said = runtime.refused(b, preexec=refuse(("mount_setattr",), error))
    assert f'cannot map the ids of "{source}": a seccomp filter refuses mount_setattr(2), and no other call maps' in said


@pytest.mark.parametrize("command", ["run", "exec"])
def test_close_range_with_any_error(runtime: Runtime, bundle: MakeBundle, command: str) -> None:
    """A filter says what it likes, and nothing else refuses it: descriptors are closed one by one, and none is left open."""
    before = refuse(("close_range",), errno.ENOMEM)
    if command == "run":
        done = runtime.run(bundle().sh("ls /proc/self/fd"), preexec=before)
    else:
        done = runtime("exec", runtime.start(bundle().sh(FOREVER)).id, "ls", "/proc/self/fd", preexec=before)
    assert (done.rc, done.out.split()) == (0, ["0", "1", "2", "3"]), done  # 3 is the directory that ls reads


@pytest.mark.gpurun_only
def test_a_mount_on_another_ones_root(runtime: Runtime, bundle: MakeBundle) -> None:
    """No path leads to the lower one; all that can be seen is read-only."""
    b = bundle().sh("grep -E ' /tmp(/| )' /proc/mounts; : >/tmp/below/x")
    source = b.directory / "data"
    (source / "below").mkdir(parents=True)
    twice = 'cd "$1"; shift; for size in 64k 128k; do mount -t tmpfs -o size=$size t below; done; exec "$@"'
    b.mount("/tmp", str(source), "rbind", "rro")
    tracer = ("unshare", "-m", "--propagation", "private", "sh", "-ec", twice, "sh", str(source))
    done = runtime.run(b, tracer=tracer, preexec=refuse(("mount_setattr",), errno.ENOSYS))
    seen = [line.split()[3].split(",") for line in done.out.splitlines()]
    assert len(seen) == 3 and "ro" in seen[0] and "ro" in seen[-1] and "size=128k" in seen[-1], done.text
    assert "Read-only file system" in done.err


@pytest.mark.parametrize("error", [errno.ENOSYS, errno.EPERM])
def test_exec_where_the_container_has_cgroups_of_its_own(runtime: Runtime, bundle: MakeBundle, error: int) -> None:
    """Its cgroup itself can take no process then, whether one is born there or moved: the first process's takes it."""
    if runtime.name == "runc":
        pytest.skip("its threads cannot be made with EPERM, and on a hybrid machine it looks elsewhere")
    container = runtime.start(bundle().sh(FOREVER))
    path = container.cgroup()
    directory = runtime.bed.cgroup(path)
    (directory / "init").mkdir()
    (directory / "init/cgroup.procs").write_text(str(container.pid))
    wait_until(lambda: (directory / "cgroup.procs").read_text() == "")  # a sleep of the loop has ended
    (directory / "cgroup.subtree_control").write_text("+hugetlb")
    done = runtime("exec", container.id, "cat", "/proc/self/cgroup", preexec=refuse(("clone3",), error))
    assert done.rc == 0 and "/init\n" in done.out, done


@pytest.mark.gpurun_only
@pytest.mark.parametrize("error", [errno.ENOSYS, errno.EPERM])
@pytest.mark.parametrize("mapped", [False, True])
def test_a_gpu_comes_and_goes(runtime: Runtime, bundle: MakeBundle, host: SimulatedDriver, mapped: bool, error: int) -> None:
    """The host's mounts stay as they are: our root directory is the host's then, and our mount namespace the container's.

    From the container's user namespace nobody comes back to the host's mount namespace.
    """
    require_nodes(host.real_nodes)
    env = ENVIRONMENT | host.env
    before, mounts = refuse(STOOD_IN, error), runtime.bed.mounts()
    b = bundle().sh(FOREVER)
    container = runtime.start(b.user_namespace() if mapped else b, env=env, preexec=before)
    look = "ls /dev; grep 'libnvidia-ml.so' /proc/mounts; ls /proc/driver/nvidia/gpus | wc -l"
    assert "nvidia" not in runtime("exec", container.id, "ls", "/dev").out
    done = runtime("gpu", "attach", container.id, "0", env=env, preexec=before)
    assert done.rc == 0, done
    seen = runtime("exec", container.id, "sh", "-c", look).out
    assert f"nvidia{minor(0, 2)}\n" in seen and f"nvidia{minor(1, 2)}\n" not in seen and " ro," in seen, seen
    assert seen.endswith("\n1\n"), "what is masked of the other GPU is seen"
    assert runtime("gpu", "detach", container.id, "0", env=env, preexec=before).rc == 0
    assert f"nvidia{minor(0, 2)}\n" not in runtime("exec", container.id, "ls", "/dev").out
    assert runtime.bed.mounts() == mounts
