"""What leads out of a container that is saved and restored: its streams, mounts, network, connections, and its memory."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from gpurun.linux import libc, mount, process
from tests.conftest import MakeBundle
from tests.native.bundle import Bundle
from tests.native.checkpoint import COUNT, counted, counting, restored, save, saved, wait_count
from tests.native.runtime import ENVIRONMENT, Container, Result, Runtime
from tests.native.terminal import Listener, read_all
from tests.native.waiting import wait_until

pytestmark = pytest.mark.native


def test_pipes_go_on(runtime: Runtime, bundle: MakeBundle, image: Path) -> None:
    """What a shim connects to a container are pipes: at restore they are others."""
    b = bundle().sh("while read line; do echo got $line; echo err $line >&2; done; exit 7")
    pipes = [os.pipe() for _ in range(6)]
    try:
        (in0, out0, err0), (in1, out1, err1) = pipes[:3], pipes[3:]
        files = runtime.new_files()
        first = _with_streams(runtime, files, (in0[0], out0[1], err0[1]), *_run(runtime, b, files))
        container = Container(runtime, runtime.ids[-1], b, first, files)
        os.write(in0[1], b"one\n")
        assert os.read(out0[0], 100) == b"got one\n" and os.read(err0[0], 100) == b"err one\n"
        saved(container, image)
        files = runtime.new_files()
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
    runtime.prepare(b, name)
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


@pytest.mark.gpurun_only  # with runc only the first of the masks is still read-only
@pytest.mark.parametrize("older", [False, True])
def test_what_the_host_shares_is_not_restored(runtime: Runtime, bundle: MakeBundle, image: Path, older: bool) -> None:
    """Masked files are read-only and private, all of them, and the root is private.  In the image of an *older* gpurun
    masked files are peers of the host's /dev, and the root is a slave of the host's."""
    masked = ["/proc/keys", "/proc/timer_list", "/proc/interrupts", "/etc/secret", "/proc/acpi", "/usr"]
    b = bundle()
    (b.rootfs / "etc/secret").write_text("hidden")
    b.linux["maskedPaths"] = masked
    first = counting(runtime, b)
    before = {path: what for path, what in _mounts(first).items() if path in (*masked, "/")}
    assert before.pop("/") == ("rw,relatime",) and {"/etc/secret", "/usr"} <= before.keys()
    assert all(is_readonly_and_private(what) for what in before.values()), before
    if older:
        for path in masked[:4]:
            inside = ["nsenter", "-t", str(first.pid), "-m", "/bin/mount"]
            subprocess.run([*inside, "--make-shared", path], check=True, timeout=60)
        slave_of_the_hosts(first)
    saved(first, image)
    second = restored(first, image)
    after = _mounts(second)
    assert all(is_readonly_and_private(after[path]) for path in before), after
    assert after["/"] == ("rw,relatime",)


def is_readonly_and_private(what: tuple[str, ...]) -> bool:
    """Of a mount that :func:`_mounts` tells: other options are the container's /dev at first, and CRIU's afterwards."""
    return len(what) == 1 and "ro" in what[0].split(",")


def slave_of_the_hosts(container: Container) -> None:
    """Make the root of a container a slave of the mount that its rootfs is on (move_mount(2), MOVE_MOUNT_SET_GROUP)."""
    namespace, rootfs = str(container.proc("ns/mnt")), str(container.bundle.rootfs)
    enter = container.runtime.bed.enter()

    def change() -> None:
        enter()
        tree = mount.open_tree_path(rootfs, recursive=False)
        process.setns(os.open(namespace, os.O_RDONLY), process.CLONE_NEWNS)
        root = os.open("/", os.O_PATH)
        flags = mount.MOVE_MOUNT_F_EMPTY_PATH | mount.MOVE_MOUNT_T_EMPTY_PATH | 0x100
        libc.syscall(libc.NR["move_mount"], tree, b"\0", root, b"\0", flags)
        mount.mount_setattr(root, propagation=mount.MS_SLAVE)

    subprocess.run(["/bin/true"], preexec_fn=change, check=True, timeout=60)
    assert "master:" in "".join(_mounts(container)["/"])


def _mounts(container: Container) -> dict[str, tuple[str, ...]]:
    """Mount point → its options and what it shares."""
    lines = [line.partition(" - ")[0].split() for line in container.proc("mountinfo").read_text().splitlines()]
    return {fields[4]: tuple(fields[5:]) for fields in lines}


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
        wait_until(lambda: os.readlink(f"/proc/{holder.pid}/ns/net") != os.readlink("/proc/self/ns/net"))
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
    if done.rc and "opt: Operation not supported" in done.text:
        pytest.skip("CRIU before 4.2 asks sockets for what they have not any more since Linux 6.16 (SO_PASSCRED of TCP)")
    assert done.rc == 0, done.text
    first.wait()
    stood = counted(b)[-1]
    restored(first, image, "--tcp-established")
    wait_count(b, stood + 2)
    assert counted(b) == list(range(1, len(counted(b)) + 1))


def test_terminal(runtime: Runtime, bundle: MakeBundle, image: Path, listener: Listener) -> None:
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
