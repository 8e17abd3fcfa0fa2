"""`gpurun kubernetes install-node`: until a signal, its restart of the engine, bad options."""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from gpurun.errors import GpurunError
from gpurun.kubernetes.install import restart
from tests.kubernetes.api_server import ApiServer
from tests.kubernetes.host_trees import contents
from tests.kubernetes.node_install import (
    ENV,
    NODES,
    command,
    needs_chroot,
    prepare,
    runtimes,
    source,
)
from tests.native.waiting import wait_until

pytestmark = needs_chroot

BUILT = Path(__file__).resolve().parents[2] / "build/gpurun"

ENGINE = r"""
import ctypes, os, signal, socket, sys
ctypes.CDLL(None).prctl(15, b"containerd")  # PR_SET_NAME
path = sys.argv[1]
if os.path.exists(path):
    os.unlink(path)
listener = socket.socket(socket.AF_UNIX)
listener.bind(path)
listener.listen()
signal.signal(signal.SIGHUP, signal.SIG_DFL if sys.argv[2] == "ends" else signal.SIG_IGN)
print('listening', flush=True)
while True:
    listener.accept()[0].close()
"""


@pytest.mark.parametrize("how", ["ends", "goes on", "is another program"])
def test_a_signal(tmp_path: Path, how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(restart, "_WAIT_S", 30.0 if how == "ends" else 1.0)
    path = f"/tmp/engine-{os.getpid()}.sock"
    script = ENGINE if how != "is another program" else ENGINE.replace('b"containerd"', 'b"dockerd"')
    loop = 'trap "kill \\$pid; exit" TERM; while :; do "$@" & pid=$!; wait $pid; sleep .2; done'
    supervisor = subprocess.Popen(
        ["bash", "-c", loop, "sh", sys.executable, "-c", script, path, how], stdout=subprocess.PIPE
    )
    try:
        assert supervisor.stdout is not None and supervisor.stdout.readline() == b"listening\n"
        first = restart.listener(path)
        if how == "ends":
            restart.restart("containerd", "signal", path)
            assert restart.listener(path) != first
        else:
            said = "goes on after SIGHUP" if how == "goes on" else "is dockerd: no signal is sent to it"
            with pytest.raises(GpurunError, match=said):
                restart.restart("containerd", "signal", path)
            assert restart.listener(path) == first
    finally:
        supervisor.send_signal(signal.SIGTERM)
        supervisor.communicate(timeout=30)
        os.unlink(path)


def until_ready(process: subprocess.Popen[str], ready: Path) -> None:
    """Wait for the file that says that the node has gpurun; fails with what the command says when it ends before."""
    wait_until(ready.exists, meanwhile=lambda: None if process.poll() is None else process.communicate()[1])


def test_the_command_until_a_signal(root: Path) -> None:
    start = prepare(root, NODES["version 2"])
    os.close(source(root))
    ready = root.parent / "ready"
    words = ("--program", str(root.parent / "program"), "--restart-mode", "systemd", "--ready-file", str(ready))
    process = subprocess.Popen(command(root, "install-node", *words), env=ENV, stderr=subprocess.PIPE, text=True)
    until_ready(process, ready)
    assert "gpurun" in runtimes(root, "etc/containerd/conf.d/gpurun.toml")
    process.terminate()
    said = process.communicate(timeout=60)[1]
    assert process.returncode == 0 and not ready.exists() and contents(root) == start, said
    once = subprocess.run(command(root, "install-node", *words, "--oneshot"), env=ENV, capture_output=True, text=True)
    assert once.returncode == 0 and (root / "opt/gpurun/bin/gpurun").exists(), once.stderr
    back = subprocess.run(command(root, "uninstall-node"), env=ENV, capture_output=True, text=True)
    assert back.returncode == 0 and contents(root) == start, back.stderr


def test_a_new_installer_waits_for_one_that_ends(root: Path) -> None:
    """A DaemonSet that is deleted and made again at once: its new pod comes while the old one takes all back."""
    os.close(source(root))
    ready, lock = root.parent / "ready", root / "run/gpurun-node-install.lock"
    words = ("--program", str(root.parent / "program"), "--restart-mode", "systemd", "--ready-file", str(ready))
    with open(lock, "w") as ending:
        fcntl.flock(ending, fcntl.LOCK_EX)
        process = subprocess.Popen(command(root, "install-node", *words), env=ENV, stderr=subprocess.PIPE, text=True)
        assert process.stderr is not None
        assert "waiting until it has finished" in process.stderr.readline()
        assert not ready.exists() and process.poll() is None
    until_ready(process, ready)
    process.terminate()
    assert process.communicate(timeout=60)[0] is None and process.returncode == 0


@pytest.mark.sweep(1)
@pytest.mark.parametrize("over", [True, False])
def test_the_built_program_asks_whether_its_daemonset_goes_on(root: Path, over: bool) -> None:
    """As in a pod: without site-packages, until the client of the API server is needed."""
    start = prepare(root, NODES["version 2"])
    os.close(source(root))
    environment = root.parent / "environment"
    (environment / "bin").mkdir(parents=True)
    shutil.copy(BUILT, environment / "bin/gpurun")
    (environment / "pyvenv.cfg").touch()
    library = environment / f"lib/python{sys.version_info[0]}.{sys.version_info[1]}"
    library.mkdir(parents=True)
    (library / "site-packages").symlink_to(sysconfig.get_path("purelib"))
    server = ApiServer()
    if not over:
        server.put("daemonsets", {
            "metadata": {"name": "install", "namespace": "ns"}, "spec": {"template": {"spec": {}}},
        })  # fmt: skip
    ready = root.parent / "ready"
    words = ["--restart-mode", "systemd", "--ready-file", str(ready), "--daemonset", "ns/install", "--node-name", "node-1"]
    words += ["--program", str(root.parent / "program"), "--kubeconfig", str(server.kubeconfig(root.parent / "kubeconfig"))]
    program = [str(environment / "bin/gpurun"), *command(root, "install-node", *words)[3:]]
    process = subprocess.Popen(program, stderr=subprocess.PIPE, text=True)
    until_ready(process, ready)
    process.terminate()
    said = process.communicate(timeout=60)[1]
    server.stop()
    assert process.returncode == 0 and (contents(root) == start) is over, said


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--engine", "docker"), '--engine: \\"docker\\" is not one of containerd, crio, none'),
        (("--restart-mode", "reboot"), '--restart-mode: \\"reboot\\" is not one of signal, systemd, none'),
        (("--install-dir", "opt"), '--install-dir: \\"opt\\" is not an absolute path on the node'),
        (("--on-exit", "ask"), "--on-exit ask needs --daemonset NAMESPACE/NAME"),
        (("--on-exit", "never"), '--on-exit: \\"never\\" is not one of ask, remove, keep'),
        ((), "--program build/gpurun"),
    ],
)
def test_a_bad_option_is_one_sentence(root: Path, words: tuple[str, ...], said: str) -> None:
    start = contents(root)
    done = subprocess.run(command(root, "install-node", *words), env=ENV, capture_output=True, text=True)
    assert done.returncode == 1 and said in done.stderr and "Traceback" not in done.stderr
    assert contents(root) == start
