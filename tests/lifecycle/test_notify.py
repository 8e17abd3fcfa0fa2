"""NOTIFY_SOCKET and LISTEN_FDS: a container that a systemd unit runs (sd_notify(3), sd_listen_fds(3))."""

from __future__ import annotations

import os
import socket
import subprocess
from collections.abc import Callable

import pytest

from tests.native.bundle import Bundle
from tests.native.runtime import ENVIRONMENT, Runtime

MakeBundle = Callable[..., Bundle]

SENDER = """
import os, socket
s = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
s.connect(os.environ["NOTIFY_SOCKET"])
s.send(b"STATUS=starting\\nREADY=1\\n")
"""


def host_python(bundle: Bundle, code: str) -> Bundle:
    """The host's own interpreter in the container: busybox cannot send a datagram."""
    for path in ("/usr", "/lib", "/lib64"):
        if os.path.exists(path):
            (bundle.rootfs / path[1:]).mkdir(exist_ok=True)
            bundle.config["mounts"].append({"destination": path, "source": path, "options": ["rbind", "ro"]})
    bundle.process["args"] = ["/usr/bin/python3", "-IS", "-c", code]
    return bundle


@pytest.mark.not_on("crun", reason="sends no MAINPID")
@pytest.mark.not_on("runc 1.1", reason="never says it")
def test_readiness_is_passed_on(runtime: Runtime, bundle: MakeBundle) -> None:
    unit = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    path = runtime.directory / "unit.sock"
    unit.bind(str(path))
    unit.settimeout(20)
    env = {**ENVIRONMENT, "NOTIFY_SOCKET": str(path)}
    container = runtime.create(host_python(bundle(), SENDER + "\nimport time; time.sleep(1000)"), env=env)
    assert (runtime.root / container.id).exists()
    starting = runtime.popen("start", container.id, files=runtime.new_files(), env=env)
    assert unit.recv(4096) == b"READY=1\n"
    assert unit.recv(4096) == b"MAINPID=%d\n" % container.pid
    data, fds, _, _ = socket.recv_fds(unit, 4096, 1)
    assert data == b"BARRIER=1"
    with pytest.raises(subprocess.TimeoutExpired):
        starting.wait(0.2)  # it waits until the barrier is lifted
    os.close(fds[0])
    assert starting.wait(20) == 0
    unit.close()


@pytest.mark.gpurun_only
def test_the_way_to_the_unit_leaves_no_trace_in_the_image(runtime: Runtime, bundle: MakeBundle) -> None:
    unit = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    path = runtime.directory / "unit.sock"
    unit.bind(str(path))
    b = bundle().sh("echo $NOTIFY_SOCKET")
    before = sorted(str(p) for p in b.rootfs.rglob("*"))
    result = runtime.run(b, env={**ENVIRONMENT, "NOTIFY_SOCKET": str(path)})
    unit.close()
    assert (result.rc, result.out) == (0, "/run/notify/notify.sock\n")
    assert not [p for p in (str(p) for p in b.rootfs.rglob("*")) if p not in before and "notify" in p]


def test_sockets_of_the_unit(runtime: Runtime, bundle: MakeBundle) -> None:
    """LISTEN_FDS counts only when LISTEN_PID is the runtime itself; inside, the process is number 1."""
    read, write = os.pipe()
    os.write(write, b"from the unit")
    os.close(write)
    b = bundle().sh("echo $LISTEN_FDS $LISTEN_PID; cat <&3")
    runtime.prepare(b, container_id := runtime.new_id())
    command = " ".join([*runtime.argv, "run", "--bundle", str(b.directory), container_id])
    enter = runtime.bed.enter(None)

    def before_exec() -> None:
        enter()
        os.dup2(read, 3)

    script = f"export LISTEN_FDS=1 LISTEN_PID=$$; exec {command}"
    result = subprocess.run(
        ["sh", "-c", script], pass_fds=[3], preexec_fn=before_exec, capture_output=True, text=True, timeout=30, check=False
    )
    os.close(read)
    assert (result.returncode, result.stdout) == (0, "1 1\nfrom the unit"), result.stderr
