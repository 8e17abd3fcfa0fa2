"""exec: the process is in the container, all of it, and nothing of the host comes in with it."""

from __future__ import annotations

import json
import os
import pty
import signal
import socket
import time
from pathlib import Path

import pytest

from tests.conftest import MakeBundle
from tests.native.bed import Bed
from tests.native.leaks import Leaks
from tests.native.runtime import Container, Runtime
from tests.native.terminal import Listener, read_all
from tests.native.waiting import wait_until

pytestmark = pytest.mark.native

FOREVER = "trap 'exit 0' TERM; echo up; while :; do sleep 0.02; done"
NAMESPACES = ("cgroup", "ipc", "mnt", "net", "pid", "user", "uts")


def start(runtime: Runtime, bundle: object) -> Container:
    container = runtime.start(bundle)  # type: ignore[arg-type]
    container.wait_for("up")
    return container


def output(container: Container, *args: str, options: tuple[str, ...] = ()) -> str:
    result = container.runtime("exec", *options, container.id, *args)
    assert result.rc == 0, result
    return result.out


def detached(container: Container, *args: str, options: tuple[str, ...] = ()) -> int:
    """The pid of a detached process."""
    pid_file = container.files / f"exec.{time.monotonic_ns()}"
    result = container.runtime("exec", "--detach", "--pid-file", str(pid_file), *options, container.id, *args)
    assert result.rc == 0, result
    return int(pid_file.read_text())


def end(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)


def namespaces(pid: int) -> dict[str, str]:
    return {name: os.readlink(f"/proc/{pid}/ns/{name}") for name in NAMESPACES}


@pytest.mark.parametrize("kind", ["all", "user", "shared pid", "host network", "no cgroup"])
def test_namespaces_are_the_containers(runtime: Runtime, bundle: MakeBundle, kind: str) -> None:
    b = bundle().sh(FOREVER)
    if kind == "user":
        b.user_namespace()
    elif kind == "shared pid":
        b.without_namespace("pid")
    elif kind == "host network":
        b.without_namespace("network")
        b.config["mounts"] = [m for m in b.config["mounts"] if m["destination"] != "/sys"]
    elif kind == "no cgroup":
        b.without_namespace("cgroup")
    container = start(runtime, b)
    pid = detached(container, "sleep", "1000")
    assert namespaces(pid) == namespaces(container.pid)
    assert os.readlink(f"/proc/{pid}/root") == os.readlink(f"/proc/{container.pid}/root")
    assert Path(f"/proc/{pid}/cgroup").read_text() == container.proc("cgroup").read_text()
    end(pid)


@pytest.mark.gpurun_only
def test_time_namespace(runtime: Runtime, bundle: MakeBundle) -> None:
    b = bundle().sh(FOREVER).namespace("time")
    b.linux["timeOffsets"] = {"boottime": {"secs": 86400 * 365}}
    container = start(runtime, b)
    assert float(output(container, "cat", "/proc/uptime").split()[0]) > 86400 * 365


def test_user_namespace(runtime: Runtime, bundle: MakeBundle) -> None:
    container = start(runtime, bundle().sh(FOREVER).user_namespace())
    text = output(container, "sh", "-c", "id -u; cat /proc/self/uid_map", options=("--user", "1000"))
    assert text.split() == ["1000", "0", "100000", "65536"]
    pid = detached(container, "sleep", "1000", options=("--user", "1000"))
    assert os.stat(f"/proc/{pid}").st_uid == 101000
    end(pid)


def test_user_that_is_not_mapped(runtime: Runtime, bundle: MakeBundle) -> None:
    container = start(runtime, bundle().sh(FOREVER).user_namespace(size=1000))
    result = runtime("exec", "--user", "5000", container.id, "id")
    assert result.rc == 255


def test_without_a_mount_namespace(runtime: Runtime, bundle: MakeBundle, leaks: Leaks) -> None:
    leaks.allow_rootfs_changes()
    if runtime.name == "runc":
        pytest.skip("runc needs a mount namespace")
    b = bundle().sh(FOREVER).without_namespace("mount")
    b.config["mounts"] = []
    for name in ("maskedPaths", "readonlyPaths"):
        b.linux[name] = []
    container = runtime.create(b, check=False)
    if container.result.rc:
        pytest.skip(f"such a container cannot be made here: {container.result.text}")
    container.start()
    container.wait_for("up")
    assert "busybox" in output(container, "ls", "/bin")
    assert runtime("exec", container.id, "ls", str(b.rootfs)).rc != 0


def test_processes_see_each_other(runtime: Runtime, bundle: MakeBundle) -> None:
    container = start(runtime, bundle().sh(FOREVER))
    pid = detached(container, "sleep", "12345")
    assert "sleep 12345" in output(container, "ps")
    end(pid)


def test_no_descriptor_comes_along(runtime: Runtime, bundle: MakeBundle) -> None:
    container = start(runtime, bundle().sh(FOREVER))
    leak = os.open("/", os.O_RDONLY)
    try:
        result = runtime("exec", container.id, "ls", "/proc/self/fd", pass_fds=[leak])
        assert result.out.split() == ["0", "1", "2", "3"], "3 is the directory that ls reads"
    finally:
        os.close(leak)


def test_preserved_descriptors(runtime: Runtime, bundle: MakeBundle) -> None:
    container = start(runtime, bundle().sh(FOREVER))
    read, write = os.pipe()
    os.write(write, b"through the pipe")
    os.close(write)
    script = "cat <&3; ls /proc/self/fd | wc -l"

    def at_three() -> None:
        os.dup2(read, 3)

    try:
        command = ("exec", "--preserve-fds", "1", container.id, "sh", "-c", script)
        result = runtime(*command, preexec=at_three, pass_fds=[3])
        assert (result.rc, result.out) == (0, "through the pipe5\n")
    finally:
        os.close(read)
    result = runtime("exec", "--preserve-fds", "40", container.id, "ls", "/proc/self/fd")
    assert (result.rc, len(result.out.split())) == (0, 4), "what is not there is skipped, as by crun"


def test_born_in_the_containers_cgroup(runtime: Runtime, bundle: MakeBundle, bed: Bed) -> None:
    container = start(runtime, bundle().sh(FOREVER))
    pid = detached(container, "sleep", "1000")
    assert str(pid) in (bed.cgroup(container.cgroup()) / "cgroup.procs").read_text().split()
    end(pid)


def test_sub_cgroup(runtime: Runtime, bundle: MakeBundle, bed: Bed) -> None:
    container = start(runtime, bundle().sh(FOREVER))
    (bed.cgroup(container.cgroup()) / "sub/deep").mkdir(parents=True)
    pid = detached(container, "sleep", "1000", options=("--cgroup", "sub/deep"))
    assert f"0::{container.cgroup()}/sub/deep\n" in Path(f"/proc/{pid}/cgroup").read_text()
    end(pid)


@pytest.mark.parametrize("path", ["../..", "a/../../b", "nosuch"])
def test_bad_sub_cgroup(runtime: Runtime, bundle: MakeBundle, path: str) -> None:
    container = start(runtime, bundle().sh(FOREVER))
    result = runtime("exec", "--cgroup", path, container.id, "true")
    assert result.rc == 255


@pytest.mark.needs("hugetlb")
def test_where_the_container_has_moved_to_cgroups_of_its_own(runtime: Runtime, bundle: MakeBundle, bed: Bed) -> None:
    """systemd in a container does that; its cgroup itself can take no process then."""
    if runtime.name == "runc":
        pytest.skip("runc 1.1 on a hybrid machine looks elsewhere")
    container = start(runtime, bundle().sh("echo up; exec sleep 1000"))
    path = container.cgroup()
    directory = bed.cgroup(path)
    (directory / "init").mkdir()
    for process in (directory / "cgroup.procs").read_text().split():
        (directory / "init/cgroup.procs").write_text(process)
    (directory / "cgroup.subtree_control").write_text("+hugetlb")
    pid = detached(container, "sleep", "1000")
    assert f"0::{path}/init\n" in Path(f"/proc/{pid}/cgroup").read_text()
    end(pid)


def processes_in(container: Container, bed: Bed) -> int:
    return len((bed.cgroup(container.cgroup()) / "cgroup.procs").read_text().split())


def test_paused(runtime: Runtime, bundle: MakeBundle, bed: Bed) -> None:
    container = start(runtime, bundle().sh(FOREVER))
    assert runtime("pause", container.id).rc == 0
    result = runtime("exec", container.id, "true")
    assert result.rc == 255
    assert "cannot exec in a paused container (use --ignore-paused to override)" in result.text
    files = runtime.new_files()
    before = processes_in(container, bed)
    command = runtime.popen("exec", "--ignore-paused", container.id, "echo", "thawed", files=files)
    wait_until(lambda: processes_in(container, bed) > before)
    assert command.poll() is None, "it waits for the container to go on"
    assert runtime("resume", container.id).rc == 0
    assert command.wait(30) == 0
    assert (files / "out").read_text() == "thawed\n"


@pytest.mark.gpurun_only
def test_killed_while_it_waits_for_a_paused_container(runtime: Runtime, bundle: MakeBundle, bed: Bed) -> None:
    container = start(runtime, bundle().sh(FOREVER))
    runtime("pause", container.id)
    files = runtime.new_files()
    before = processes_in(container, bed)
    command = runtime.popen("exec", "--ignore-paused", container.id, "touch", "/tmp/ran", files=files)
    wait_until(lambda: processes_in(container, bed) > before)
    command.kill()
    command.wait()
    runtime("resume", container.id)
    end_of_wait = time.monotonic() + 20
    while len(runtime("ps", "--format", "json", container.id).out.split(",")) > 2:
        assert time.monotonic() < end_of_wait
        runtime.reap()  # it has become our child
    runtime.reap()
    assert not (container.bundle.rootfs / "tmp/ran").exists()


def test_seccomp_filter_is_the_containers(runtime: Runtime, bundle: MakeBundle) -> None:
    b = bundle().sh(FOREVER)
    rule = {"names": ["mkdir", "mkdirat"], "action": "SCMP_ACT_ERRNO", "errnoRet": 1}
    b.linux["seccomp"] = {"defaultAction": "SCMP_ACT_ALLOW", "syscalls": [rule]}
    container = start(runtime, b)
    result = runtime("exec", container.id, "mkdir", "/tmp/x")
    assert result.rc == 1
    assert "Operation not permitted" in result.err


def test_terminal(runtime: Runtime, bundle: MakeBundle) -> None:
    container = start(runtime, bundle().sh(FOREVER))
    listener = Listener(runtime.directory / "console.sock")
    size = {"height": 33, "width": 44}
    process = {"terminal": True, "consoleSize": size, "cwd": "/", "env": ["PATH=/bin"]}
    process["args"] = ["sh", "-c", "test -t 0 && test -t 1 && test -t 2 && echo all three; stty size 2>/dev/null; sleep 0.1"]
    path = container.files / "process.json"
    path.write_text(json.dumps(process))
    pid = detached(container, options=("--process", str(path), "--console-socket", str(listener.path)))
    data, (master,) = listener.message()
    assert data
    assert "all three" in read_all(master)
    os.close(master)
    listener.socket.close()
    assert os.waitpid(pid, 0) == (pid, 0)


def test_terminal_in_the_foreground(runtime: Runtime, bundle: MakeBundle) -> None:
    """Ours is connected to the process', both ways, and the exit code comes back."""
    container = start(runtime, bundle().sh(FOREVER))
    enter = runtime.bed.enter(None)
    pid, master = pty.fork()
    if pid == 0:
        try:
            enter()
            script = "test -t 0 && echo ready; read -r word; echo got $word; exit 6"
            os.execv(runtime.path, [*runtime.argv, "exec", "--tty", container.id, "sh", "-c", script])
        finally:
            os._exit(99)
    shown = read_all(master, "ready")
    os.write(master, b"something\n")
    shown += read_all(master)
    os.close(master)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 6
    assert "got something" in shown


@pytest.mark.parametrize("options", [("--tty", "--detach"), ("--console-socket", "/nonexistent")])
def test_what_does_not_go_together(runtime: Runtime, bundle: MakeBundle, options: tuple[str, ...]) -> None:
    container = start(runtime, bundle().sh(FOREVER))
    result = runtime("exec", *options, container.id, "true")
    assert result.rc == 255
    assert "console socket" in result.text


@pytest.mark.not_on("runc 1.1", reason="has no --pidfd-socket")
def test_pidfd_socket(runtime: Runtime, bundle: MakeBundle) -> None:
    container = start(runtime, bundle().sh(FOREVER))
    listener = Listener(runtime.directory / "pidfd.sock")
    pid = detached(container, "sleep", "1000", options=("--pidfd-socket", str(listener.path)))
    data, (pidfd,) = listener.message()
    assert data == b"setns"
    assert f"Pid:\t{pid}\n" in Path(f"/proc/self/fdinfo/{pidfd}").read_text()
    os.close(pidfd)
    listener.socket.close()
    end(pid)


def test_the_hosts_null_device_stays_the_hosts(runtime: Runtime, bundle: MakeBundle) -> None:
    """As an ordinary user with /dev/null for streams: its owner on the host must not change (the fixture looks)."""
    container = start(runtime, bundle().sh(FOREVER))
    null = os.stat("/dev/null")
    script = "stat -L -c %d /proc/self/fd/0; test -w /dev/stdin && echo ok"
    text = output(container, "sh", "-c", script, options=("--user", "1000"))
    assert "ok" in text
    assert int(text.split()[0]) != null.st_dev
    after = os.stat("/dev/null")
    assert (after.st_uid, after.st_gid) == (null.st_uid, null.st_gid)


def test_a_link_in_place_of_passwd(runtime: Runtime, bundle: MakeBundle) -> None:
    """HOME is looked up in the container's tree, where no link leads out."""
    b = bundle().sh(FOREVER)
    (b.rootfs / "etc/passwd").unlink()
    (b.rootfs / "etc/passwd").symlink_to("../../../../../../../etc/passwd")
    container = start(runtime, b)
    assert "HOME=/\n" in output(container, "env")


def test_sockets_of_the_caller_do_not_come_along(runtime: Runtime, bundle: MakeBundle) -> None:
    container = start(runtime, bundle().sh(FOREVER))
    ours, theirs = socket.socketpair()
    with ours, theirs:
        pid = detached(container, "sleep", "1000")
        links = [os.readlink(f"/proc/{pid}/fd/{fd}") for fd in os.listdir(f"/proc/{pid}/fd")]
        assert len(links) == 3, links
        end(pid)
