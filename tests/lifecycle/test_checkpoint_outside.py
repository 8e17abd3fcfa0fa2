"""What leads out of a container that is saved and restored: its streams, mounts, network, connections, and its memory."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import time
from pathlib import Path

import pytest

from tests.conftest import MakeBundle
from tests.native.bundle import Bundle
from tests.native.checkpoint import COUNT, counted, counting, restored, save, saved, wait_count
from tests.native.runtime import ENVIRONMENT, Container, Result, Runtime
from tests.native.terminal import Listener, read_all

pytestmark = pytest.mark.native


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
