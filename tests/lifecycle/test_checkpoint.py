"""checkpoint and restore through CRIU: what a container was in the middle of, it goes on with."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import MakeBundle
from tests.native.bed import Bed
from tests.native.checkpoint import COUNT, counted, counting, restored, saved, wait_count
from tests.native.runtime import Container, Runtime

pytestmark = pytest.mark.native


def test_it_goes_on_where_it_was(runtime: Runtime, bundle: MakeBundle, image: Path) -> None:
    b = bundle()
    first = counting(runtime, b)
    saved(first, image)  # its init has ended, and in a pid namespace nobody outlives that
    stood = counted(b)
    second = restored(first, image)
    assert second.pid_text == str(second.state()["pid"])
    assert second.state()["status"] == "running"
    wait_count(b, stood[-1] + 3)
    assert counted(b) == list(range(1, len(counted(b)) + 1)), "nothing twice, nothing left out"
    # It is a container like any other, and our child (we are the subreaper): wait() reaps it.
    assert runtime("exec", second.id, "true").rc == 0
    assert second.kill("KILL").rc == 0
    assert second.wait() == 137
    assert second.delete().rc == 0


def test_more_than_once(runtime: Runtime, bundle: MakeBundle, image: Path) -> None:
    b = bundle()
    container = counting(runtime, b)
    for _ in range(2):
        stood = counted(b)[-1]
        saved(container, image)
        container = restored(container, image)
        wait_count(b, stood + 3)
    assert counted(b) == list(range(1, len(counted(b)) + 1))


def test_leave_running(runtime: Runtime, bundle: MakeBundle, image: Path) -> None:
    b = bundle()
    container = counting(runtime, b)
    saved(container, image, "--leave-running")
    stood = counted(b)[-1]
    wait_count(b, stood + 3)
    assert container.state()["status"] == "running"


def test_under_another_id_and_in_another_cgroup(runtime: Runtime, bundle: MakeBundle, image: Path, bed: Bed) -> None:
    b = bundle()
    first = counting(runtime, b)
    saved(first, image)
    other = runtime.new_id()
    b.linux["cgroupsPath"] = f"{bed.subtree}/{other}"
    second = restored(first, image, container_id=other)
    wait_count(b, counted(b)[-1] + 3)
    assert second.cgroup() == f"{bed.subtree}/{other}"
    assert not bed.cgroup(f"{bed.subtree}/{first.id}").exists()


@pytest.mark.gpurun_only  # runc 1.3: the host's whole tree is at /sys/fs/cgroup afterwards
@pytest.mark.parametrize("mode", [(), ("--manage-cgroups-mode", "ignore"), ("--manage-cgroups-mode=soft",)], ids=" ".join)
def test_the_cgroup_is_the_containers(
    runtime: Runtime, bundle: MakeBundle, image: Path, bed: Bed, mode: tuple[str, ...]
) -> None:
    b = bundle().mount("/sys/fs/cgroup", "cgroup", "ro", kind="cgroup")
    first = counting(runtime, b)
    saved(first, image, *mode)
    second = restored(first, image, *mode)
    assert second.cgroup() == f"{bed.subtree}/{second.id}"
    assert runtime("exec", second.id, "grep", "0::", "/proc/1/cgroup").out == "0::/\n"
    procs = runtime("exec", second.id, "cat", "/sys/fs/cgroup/cgroup.procs").out.split()
    assert "1" in procs and set(procs) <= set(map(str, range(1, 5000)))
    host = bed.cgroup(second.cgroup()) / "cgroup.procs"
    assert str(second.pid) in host.read_text().split()


@pytest.mark.gpurun_only
def test_cgroups_that_the_container_has_made(runtime: Runtime, bundle: MakeBundle, image: Path, bed: Bed) -> None:
    b = bundle().mount("/sys/fs/cgroup", "cgroup", "rw", kind="cgroup")
    b.sh(f"mkdir -p /sys/fs/cgroup/inner/deep && echo 1 >/sys/fs/cgroup/inner/deep/cgroup.procs && {COUNT}")
    first = runtime.start(b)
    wait_count(b, 3)
    saved(first, image)
    second = restored(first, image)
    wait_count(b, counted(b)[-1] + 3)
    assert second.cgroup() == f"{bed.subtree}/{second.id}/inner/deep"


def test_devices_stay_forbidden(runtime: Runtime, bundle: MakeBundle, image: Path) -> None:
    b = bundle().capabilities("CAP_MKNOD")
    first = counting(runtime, b)
    saved(first, image)
    second = restored(first, image)
    said = runtime("exec", second.id, "sh", "-c", "mknod /tmp/kmsg c 1 11; cat /dev/null && cat /tmp/kmsg")
    assert said.rc == 1 and "Operation not permitted" in said.err
    (b.rootfs / "tmp/kmsg").unlink()


def test_seccomp_and_capabilities_hold(runtime: Runtime, bundle: MakeBundle, image: Path) -> None:
    b = bundle()
    rule = {"names": ["mkdir", "mkdirat"], "action": "SCMP_ACT_ERRNO"}
    b.linux["seccomp"] = {"defaultAction": "SCMP_ACT_ALLOW", "syscalls": [rule]}
    first = counting(runtime, b)

    def facts(container: Container) -> list[str]:
        lines = container.proc("status").read_text().splitlines()
        return [line for line in lines if line.startswith(("Cap", "Seccomp", "NoNewPrivs", "Uid", "Groups"))]

    before = facts(first)
    saved(first, image)
    second = restored(first, image)
    assert facts(second) == before
    assert runtime("exec", second.id, "mkdir", "/tmp/x").rc == 1, "exec runs under the filter too"


def test_exec_is_in_the_same_namespaces(runtime: Runtime, bundle: MakeBundle, image: Path) -> None:
    """CRIU restores into a new time namespace."""
    b = bundle()
    first = counting(runtime, b)
    saved(first, image)
    second = restored(first, image)
    kinds = [kind for kind in os.listdir("/proc/self/ns") if "for_children" not in kind]
    script = ";".join(f"stat -L -c '{kind} %i' /proc/self/ns/{kind}" for kind in kinds)
    inside = dict(line.split() for line in runtime("exec", second.id, "sh", "-c", script).out.splitlines())
    wanted = {kind: str(os.stat(second.proc(f"ns/{kind}")).st_ino) for kind in kinds}
    assert inside == wanted


@pytest.mark.gpurun_only  # runc: the mapped root cannot reach the images
def test_user_namespace(runtime: Runtime, bundle: MakeBundle, image: Path) -> None:
    b = bundle().user_namespace()
    first = counting(runtime, b)
    saved(first, image)
    second = restored(first, image)
    wait_count(b, counted(b)[-1] + 3)
    assert second.proc("uid_map").read_text().split() == ["0", "100000", "65536"]
    assert image.stat().st_mode & 0o777 == 0o700 and not os.listxattr(image), "what was lent is taken back"
    assert runtime("exec", second.id, "sh", "-c", "echo x >/dev/null; id -u").out == "0\n"


def test_paused(runtime: Runtime, bundle: MakeBundle, image: Path) -> None:
    """containerd pauses a container before it has it saved."""
    b = bundle()
    first = counting(runtime, b)
    assert runtime("pause", first.id).rc == 0
    saved(first, image)
    stood = counted(b)[-1]
    second = restored(first, image)
    assert second.state()["status"] == "running"
    wait_count(b, stood + 3)


def test_paused_and_left_alone(runtime: Runtime, bundle: MakeBundle, image: Path) -> None:
    b = bundle()
    first = counting(runtime, b)
    assert runtime("pause", first.id).rc == 0
    saved(first, image, "--leave-running")
    assert first.state()["status"] == "paused"
    stood = counted(b)[-1]
    assert runtime("resume", first.id).rc == 0
    wait_count(b, stood + 3)


def test_in_the_foreground(runtime: Runtime, bundle: MakeBundle, image: Path) -> None:
    """restore without --detach waits, passes the exit code on, and deletes."""
    b = bundle()
    script = "exec </dev/null >/dev/null 2>&1; echo 1 >>/tmp/count; while [ ! -e /tmp/go ]; do sleep 0.01; done; exit 42"
    first = runtime.start(b.sh(script))
    wait_count(b, 0)
    saved(first, image)
    (b.rootfs / "tmp/go").touch()
    done = runtime("restore", "--bundle", str(b.directory), "--image-path", str(image), first.id)
    assert done.rc == 42, done
    assert "does not exist" in runtime("state", first.id).text


def test_hooks(runtime: Runtime, bundle: MakeBundle, image: Path) -> None:
    """createRuntime runs at restore (networks are made there), poststop when the saved container has gone."""
    b = bundle()
    order = runtime.directory / "order"

    def hook(name: str) -> dict[str, Any]:
        script = f'read -r state; echo "{name} $state" >>{order}'
        return {
            "path": "/bin/sh",
            "args": ["sh", "-c", f"tr -d '\\n' | {{ {script}; }} "],
            "env": [f"PATH={os.environ['PATH']}"],
        }

    b.config["hooks"] = {name: [hook(name)] for name in ("createRuntime", "poststop")}
    first = counting(runtime, b)
    saved(first, image)
    second = restored(first, image)
    ran = [line.partition(" ") for line in order.read_text().splitlines()]
    names = [name for name, _, _ in ran]
    assert names == ["createRuntime", "poststop", "createRuntime"]
    assert json.loads(ran[2][2])["pid"] == second.pid
