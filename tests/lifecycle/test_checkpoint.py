"""checkpoint and restore through CRIU: what a container was in the middle of, it goes on with."""

from __future__ import annotations

import functools
import json
import os
import shutil
import socket
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import MakeBundle
from tests.lifecycle.test_terminal import Listener, listener, read_all  # noqa: F401 - listener is a fixture
from tests.native.bed import Bed
from tests.native.bundle import Bundle
from tests.native.leaks import Leaks
from tests.native.runtime import ENVIRONMENT, Container, Result, Runtime

# What it counts is only in its memory; the streams are the container's own, for runc cannot take files that lie outside.
COUNT = "exec </dev/null >/dev/null 2>&1; i=0; while :; do i=$((i+1)); echo $i >>/tmp/count; sleep 0.01; done"


@functools.cache
def why_not() -> str:
    """Why CRIU cannot be used here; "" if it can."""
    if not shutil.which("criu"):
        return "criu is not installed"
    done = subprocess.run(["criu", "check"], capture_output=True, text=True, check=False, timeout=60)
    return "" if done.returncode == 0 else f"criu check: {done.stderr.strip().splitlines()[-1:]}"


@pytest.fixture
def image(runtime: Runtime, leaks: Leaks) -> Path:
    """Where to save to; the containers of these tests write into their rootfs."""
    if why_not():
        pytest.skip(why_not())
    leaks.allow_rootfs_changes()
    return runtime.directory / "image"


pytestmark = pytest.mark.native


def save(container: Container, image: Path, *options: str) -> Result:
    return container.runtime("checkpoint", *options, "--image-path", str(image), container.id)


def saved(container: Container, image: Path, *options: str) -> None:
    done = save(container, image, *options)
    assert done.rc == 0, done.text
    if "--leave-running" not in options:
        container.wait()
        gone = container.runtime("state", container.id)
        assert gone.rc == 1 and "container does not exist" in gone.text


def restored(container: Container, image: Path, *options: str, container_id: str = "", **how: Any) -> Container:
    """The container made again from *image*, under its own id unless another is given."""
    runtime, bundle = container.runtime, container.bundle
    files = runtime._files()
    name = container_id or container.id
    pid_file = str(files / "pid")
    bundle.write()
    done = runtime(
        *("restore", "--detach", "--bundle", str(bundle.directory), "--pid-file", pid_file),
        *("--image-path", str(image), *options, name),
        files=files,
        **how,
    )
    assert done.rc == 0, done.text
    made = Container(runtime, name, bundle, done, files)
    runtime.containers.append(made)
    return made


def counted(bundle: Bundle) -> list[int]:
    path = bundle.rootfs / "tmp/count"
    return [int(line) for line in path.read_text().split("\n")[:-1]] if path.exists() else []


def wait_count(bundle: Bundle, more_than: int) -> None:
    end = time.monotonic() + 30
    while not counted(bundle) or counted(bundle)[-1] <= more_than:
        assert time.monotonic() < end, f"it stopped counting at {counted(bundle)[-1:]}"
        time.sleep(0.005)


def counting(runtime: Runtime, b: Bundle, *options: str) -> Container:
    container = runtime.start(b.sh(COUNT), *options)
    wait_count(b, 3)
    return container


def test_it_goes_on_where_it_was(runtime: Runtime, bundle: MakeBundle, image: Path) -> None:
    b = bundle()
    first = counting(runtime, b)
    saved(first, image)
    stood = counted(b)
    time.sleep(0.1)
    assert counted(b) == stood, "it must not run while it is only a file"
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


def test_pipes_go_on(runtime: Runtime, bundle: MakeBundle, image: Path) -> None:
    """What a shim connects to a container are pipes: at restore they are others."""
    b = bundle().sh("while read line; do echo got $line; echo err $line >&2; done; exit 7")
    pipes = [os.pipe() for _ in range(6)]
    try:
        (in0, out0, err0), (in1, out1, err1) = pipes[:3], pipes[3:]
        files = runtime._files()
        first = _with_streams(runtime, files, (in0[0], out0[1], err0[1]), *_run(runtime, b, files))
        container = Container(runtime, runtime.ids[-1], b, first, files)
        os.write(in0[1], b"one\n")
        assert os.read(out0[0], 100) == b"got one\n" and os.read(err0[0], 100) == b"err one\n"
        saved(container, image)
        files = runtime._files()
        arguments = ["restore", "-d", "--bundle", str(b.directory), "--pid-file", str(files / "pid")]
        arguments += ["--image-path", str(image), container.id]
        second = _with_streams(runtime, files, (in1[0], out1[1], err1[1]), *arguments)
        assert second.rc == 0, second
        container = Container(runtime, container.id, b, second, files)
        os.write(in1[1], b"two\n")
        assert os.read(out1[0], 100) == b"got two\n" and os.read(err1[0], 100) == b"err two\n"
        for fd in (in1[1], in1[0], out1[1]):
            os.close(fd)
        assert container.wait() == 7
        assert os.read(out1[0], 1) == b"", "nothing else may hold the pipe open"
        pipes[3:5] = [(-1, -1), (out1[0], -1)]
    finally:
        for fd in [fd for pair in pipes for fd in pair if fd >= 0]:
            os.close(fd)


def _run(runtime: Runtime, b: Bundle, files: Path) -> tuple[str, ...]:
    name = runtime.new_id()
    runtime._prepare(b, name)
    return "run", "-d", "--bundle", str(b.directory), "--pid-file", str(files / "pid"), name


def _with_streams(runtime: Runtime, files: Path, streams: tuple[int, int, int], *arguments: str) -> Result:
    enter = runtime.bed.enter()
    done = subprocess.run(
        [*runtime.argv, "--log", str(files / "log"), *arguments],
        stdin=streams[0],
        stdout=streams[1],
        stderr=streams[2],
        env=ENVIRONMENT,
        preexec_fn=enter,
        timeout=60,
        check=False,
    )
    return Result(done.returncode, "", (files / "log").read_text() if (files / "log").exists() else "")


@pytest.mark.gpurun_only  # runc: CRIU cannot look up a file that is on no mount of the container
def test_output_to_a_file_goes_on_in_another(runtime: Runtime, bundle: MakeBundle, image: Path) -> None:
    first = runtime.start(bundle().sh("i=0; while :; do i=$((i+1)); echo $i; sleep 0.01; done"))
    first.wait_for("3\n")
    saved(first, image)
    last = int(first.out.split()[-1])
    second = restored(first, image)
    second.wait_for(f"{last + 1}\n")
    assert second.out.startswith(f"{last + 1}\n")
    assert json.loads((image / "descriptors.json").read_text())[1].startswith("file[")


def test_mounts_from_outside(runtime: Runtime, bundle: MakeBundle, image: Path) -> None:
    """Binds are mounted again, from where the config says; mount points that went away meanwhile are made again."""
    b = bundle()
    for name in ("directory", "outer", "inner"):
        (runtime.directory / name).mkdir()
    (runtime.directory / "file").write_text("from outside\n")
    (b.rootfs / "real").mkdir()
    (b.rootfs / "link").symlink_to("/real")
    b.mount("/link/directory", str(runtime.directory / "directory"), "rbind", "rw")
    b.mount("/etc/file", str(runtime.directory / "file"), "bind", "ro")
    b.mount("/outer", str(runtime.directory / "outer"), "bind")
    b.mount("/outer/in/ner", str(runtime.directory / "inner"), "bind")
    b.mount("/tmp/t", "tmpfs", "size=64k", kind="tmpfs")
    first = runtime.start(b.sh(f"echo kept >/tmp/t/kept; {COUNT}"))
    wait_count(b, 3)
    saved(first, image)
    shutil.rmtree(runtime.directory / "outer/in")
    (b.rootfs / "etc/file").unlink()
    second = restored(first, image)
    script = "cat /tmp/t/kept /etc/file; touch /real/directory/a /outer/in/ner/b; touch /etc/file"
    said = runtime("exec", second.id, "sh", "-c", script)
    assert said.out == "kept\nfrom outside\n" and "Read-only" in said.err
    assert (runtime.directory / "directory/a").exists() and (runtime.directory / "inner/b").exists()


def test_propagated_mounts_of_the_host(runtime: Runtime, bundle: MakeBundle, image: Path) -> None:
    """The default propagation is rslave: mounts of the container are slaves of the host's."""
    b = bundle()
    place = runtime.directory / "shared"
    place.mkdir()
    inside = runtime.bed.enter()
    subprocess.run(["mount", "--bind", "--make-shared", str(place), str(place)], preexec_fn=inside, check=True)
    try:
        b.mount("/data", str(place), "rbind", "rslave")
        first = counting(runtime, b)
        saved(first, image)
        restored(first, image)
        wait_count(b, counted(b)[-1] + 3)
    finally:
        runtime.cleanup()
        subprocess.run(["umount", str(place)], preexec_fn=inside, check=True)


@pytest.mark.gpurun_only  # runc leaves lo down
def test_the_loopback_device_is_up(runtime: Runtime, bundle: MakeBundle, image: Path) -> None:
    b = bundle()
    first = counting(runtime, b)
    saved(first, image)
    second = restored(first, image)
    assert "LOOPBACK,UP" in runtime("exec", second.id, "ip", "link", "show", "lo").out


def test_a_network_namespace_from_outside(runtime: Runtime, bundle: MakeBundle, image: Path) -> None:
    name = f"t{os.getpid()}"
    subprocess.run(["ip", "netns", "add", name], check=True)
    holder = subprocess.Popen(["ip", "netns", "exec", name, "sleep", "1000"])
    try:
        end = time.monotonic() + 10
        while os.readlink(f"/proc/{holder.pid}/ns/net") == os.readlink("/proc/self/ns/net"):
            assert time.monotonic() < end
            time.sleep(0.01)
        path = f"/proc/{holder.pid}/ns/net"
        b = bundle().namespace("network", path)
        first = counting(runtime, b)
        saved(first, image)
        second = restored(first, image)
        assert os.readlink(second.proc("ns/net")) == os.readlink(path)
    finally:
        holder.kill()
        holder.wait()
        subprocess.run(["ip", "netns", "del", name], check=True)


def test_tcp_connections(runtime: Runtime, bundle: MakeBundle, image: Path) -> None:
    """An open connection is refused without --tcp-established, and goes on with it."""
    if not shutil.which("iptables"):
        pytest.skip("CRIU holds connections by iptables, which is not installed")
    b = bundle().sh(
        "exec </dev/null >/dev/null 2>&1; nc -l -p 4000 -e sh -c 'while read x; do echo $x >>/tmp/count; done' & sleep 0.3;"
        "(i=0; while :; do i=$((i+1)); echo $i; sleep 0.05; done) | nc 127.0.0.1 4000"
    )
    first = runtime.start(b)
    wait_count(b, 2)
    refused = save(first, image)
    if refused.rc == 0:
        pytest.fail("a connection was saved without --tcp-established")
    assert first.state()["status"] == "running"
    wait_count(b, counted(b)[-1] + 1)
    done = save(first, image, "--tcp-established")
    if done.rc and ("iptables" in done.text or "nft" in done.text or "network" in done.text):
        pytest.skip(f"this kernel has no packet filter for CRIU: {done.text.strip()[-200:]}")
    assert done.rc == 0, done.text
    first.wait()
    stood = counted(b)[-1]
    restored(first, image, "--tcp-established")
    wait_count(b, stood + 2)
    assert counted(b) == list(range(1, len(counted(b)) + 1))


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


def test_terminal(runtime: Runtime, bundle: MakeBundle, image: Path, listener: Listener) -> None:  # noqa: F811
    """The master of the restored terminal is sent to the console socket, as at create."""
    b = bundle().sh("while read x; do echo got $x; done")
    b.process["terminal"] = True
    first = runtime.start(b, "--console-socket", str(listener.path))
    _, (master,) = listener.message()
    os.write(master, b"one\n")
    assert "got one" in read_all(master, "got one")
    saved(first, image)
    os.close(master)
    restored(first, image, "--console-socket", str(listener.path))
    data, (master,) = listener.message()
    assert data
    os.write(master, b"two\n")
    assert "got two" in read_all(master, "got two")
    os.close(master)


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


def test_a_failing_hook_leaves_nothing(runtime: Runtime, bundle: MakeBundle, image: Path) -> None:
    b = bundle()
    first = counting(runtime, b)
    saved(first, image)
    b.config["hooks"] = {"createRuntime": [{"path": "/bin/false"}]}
    b.write()
    done = runtime("restore", "-d", "--bundle", str(b.directory), "--image-path", str(image), first.id)
    assert done.rc == 1 and "createRuntime hook #0" in done.text
    assert "does not exist" in runtime("state", first.id).text


def test_a_damaged_image_leaves_nothing(runtime: Runtime, bundle: MakeBundle, image: Path) -> None:
    b = bundle()
    first = counting(runtime, b)
    saved(first, image)
    next(image.glob("core-*.img")).write_bytes(b"nonsense")
    done = runtime("restore", "-d", "--bundle", str(b.directory), "--image-path", str(image), first.id)
    assert done.rc == 1 and "criu failed" in done.text and "restore.log" in done.text
    assert "does not exist" in runtime("state", first.id).text


@pytest.mark.parametrize("status", ["created", "stopped"])
def test_only_what_runs(runtime: Runtime, bundle: MakeBundle, image: Path, status: str) -> None:
    container = runtime.create(bundle().sh("exit 0"))
    if status == "stopped":
        container.start()
        container.wait()
    done = save(container, image)
    assert done.rc == 1 and f"Container cannot be checkpointed in {status} state" in done.text


def test_nothing_to_restore(runtime: Runtime, bundle: MakeBundle, image: Path) -> None:
    b = bundle()
    b.write()
    name = runtime.new_id()
    done = runtime("restore", "-d", "--bundle", str(b.directory), "--image-path", str(image), name)
    assert done.rc == 1 and "no such file or directory" in done.text
    assert "does not exist" in runtime("state", name).text


def test_restore_over_one_that_is_there(runtime: Runtime, bundle: MakeBundle, image: Path) -> None:
    container = counting(runtime, bundle())
    saved(container, image, "--leave-running")
    done = runtime("restore", "-d", "--bundle", str(container.bundle.directory), "--image-path", str(image), container.id)
    assert done.rc == 1 and "container with given ID already exists" in done.text
    assert container.state()["status"] == "running"


@pytest.mark.gpurun_only
@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--parent-path", "/absolute"), "--parent-path must be relative"),
        (("--parent-path", "../nowhere"), "invalid --parent-path"),
        (("--page-server", "nonsense"), "Use --page-server ADDRESS:PORT"),
        (("--page-server", "127.0.0.1:port"), "is no port number"),
        (("--manage-cgroups-mode", "x"), "manage-cgroups-mode"),
        (("--network-lock", "x"), "network-lock"),
        (("--empty-ns", "user"), 'namespace "user" is not supported'),
        (("--status-fd", "77", "--lazy-pages"), "invalid --status-fd argument 77"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else None,
)
def test_wrong_options(runtime: Runtime, bundle: MakeBundle, image: Path, options: tuple[str, ...], said: str) -> None:
    container = counting(runtime, bundle())
    done = save(container, image, *options)
    assert done.rc == 1 and said in done.text
    assert container.state()["status"] == "running"


@pytest.mark.gpurun_only
def test_without_criu(runtime: Runtime, bundle: MakeBundle, leaks: Leaks) -> None:
    leaks.allow_rootfs_changes()
    env = {"PATH": "/nonexistent"}
    container = runtime.start(bundle().sh("sleep 1000"))
    for command in (("checkpoint", container.id), ("restore", "-d", "--bundle", str(container.bundle.directory), "x")):
        done = runtime(*command, env=env)
        assert done.rc == 1 and "there is no criu in /nonexistent" in done.text
    features = json.loads(runtime("features", env=env).out)["annotations"]
    assert features["org.opencontainers.runc.checkpoint.enabled"] == "false"


@pytest.mark.gpurun_only
def test_features_say_so(runtime: Runtime, image: Path) -> None:
    features = json.loads(runtime("features").out)
    assert features["annotations"]["org.opencontainers.runc.checkpoint.enabled"] == "true"
    assert "org.criu.config" in features["potentiallyUnsafeConfigAnnotations"]


@pytest.mark.gpurun_only
@pytest.mark.parametrize("what", ["idmap", "mount namespace"])
def test_what_criu_would_lose_is_refused(runtime: Runtime, bundle: MakeBundle, image: Path, what: str) -> None:
    b = bundle()
    if what == "idmap":
        (runtime.directory / "d").mkdir()
        b.mount("/d", str(runtime.directory / "d"), "bind")
        mapping = [{"containerID": 0, "hostID": 1000, "size": 10}]
        b.config["mounts"][-1] |= {"uidMappings": mapping, "gidMappings": mapping}
    else:
        b.without_namespace("mount")
        b.linux.pop("maskedPaths"), b.linux.pop("readonlyPaths")
        b.config["mounts"] = []
    container = counting(runtime, b)
    done = save(container, image)
    assert done.rc == 1 and ("id-mapped" if what == "idmap" else "mount namespace") in done.text
    assert container.state()["status"] == "running"


def test_lazy_pages(runtime: Runtime, bundle: MakeBundle, image: Path) -> None:
    """Memory stays behind: who is to fetch it is told when it can be.  Without anybody who does, the container goes on."""
    check = subprocess.run(["criu", "check", "--feature", "uffd-noncoop"], capture_output=True, check=False, timeout=60)
    if check.returncode:
        pytest.skip("this kernel lacks what CRIU needs of userfaultfd(2)")
    b = bundle()
    first = counting(runtime, b)
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    ready, tell = os.pipe()
    files = runtime._files()
    dump = runtime.popen(
        *("checkpoint", "--lazy-pages", "--page-server", f"127.0.0.1:{port}", "--status-fd", str(tell)),
        *("--image-path", str(image), first.id),
        files=files,
        pass_fds=(tell,),
    )
    os.close(tell)
    try:
        assert os.read(ready, 2) == b"\0", (files / "err").read_text()
        assert (image / "inventory.img").exists()
        stood = counted(b)[-1]
        with socket.create_connection(("127.0.0.1", port)) as s:
            s.sendall(b"\xff" * 64)  # which is no request for pages
        assert dump.wait(30) == 1
        assert "criu failed to save the container" in (files / "err").read_text()
        wait_count(b, stood + 3)
    finally:
        os.close(ready)
        dump.kill()
        dump.wait()
