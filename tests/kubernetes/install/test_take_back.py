"""All of gpurun taken from a node: with pods and without, beside parts that run, killed anywhere, by a note that lies."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gpurun.errors import GpurunError
from gpurun.kubernetes.config_source import LABEL
from gpurun.kubernetes.dra.checkpoint import Checkpoint, PreparedClaim, PreparedDevice
from gpurun.kubernetes.install import steps
from gpurun.kubernetes.install.host import on_node
from gpurun.kubernetes.install.leavings import Leavings
from gpurun.kubernetes.install.node_setup import RECORD, NodeSetup, with_defaults
from gpurun.kubernetes.labels import labels_left
from tests.forms import stride
from tests.kubernetes.api_server import ApiServer
from tests.kubernetes.host_trees import contents
from tests.kubernetes.node_install import ENV, NODES, command, install, killed_at, needs_chroot, prepare

pytestmark = needs_chroot

PLACES = Leavings("/var/lib/kubelet", "/run/cdi")
SPEC = {"cdiVersion": "0.5.0", "kind": "k8s.device-plugin.nvidia.com/gpu", "devices": [], "containerEdits": {
    "hooks": [{"hookName": "createContainer", "path": "/opt/gpurun/bin/gpurun", "args": ["gpurun", "hook"]}]}}  # fmt: skip
THEIRS = json.dumps(SPEC).replace("/opt/gpurun/bin/gpurun", "/usr/bin/nvidia-cdi-hook")
UID = "0d0e8c66-0000-4000-8000-000000000001"


def use(root: Path) -> None:
    """What a device plugin and a DRA driver that were killed have left."""
    write(root / "run/cdi/k8s.device-plugin.nvidia.com-gpu.json", json.dumps(SPEC))
    write(root / f"run/cdi/k8s.gpu.nvidia.com-claim_{UID}.json", json.dumps(SPEC))
    write(root / f"run/cdi/.k8s.gpu.nvidia.com-claim_{UID}.json.0123456789abcdef.new", "")
    for maker in ("amd.com", "intel.com"):  # their files have no hooks
        for name in (f"k8s.device-plugin.{maker}-gpu", f"k8s.gpu.{maker}-claim"):
            spec = {"cdiVersion": "0.7.0", "kind": "/".join(name.rsplit("-", 1)), "devices": []}
            suffix = f"_{UID}" if name.endswith("claim") else ""
            write(root / f"run/cdi/{name}{suffix}.json", json.dumps(spec))
        Checkpoint(f"{root}/var/lib/kubelet/plugins/gpu.{maker}/checkpoint.json").put(
            PreparedClaim(UID, "team", "claim", "completed", "boot", ())
        )
        dead_socket(root / f"var/lib/kubelet/plugins/gpu.{maker}/dra.sock")
    kubelet = root / "var/lib/kubelet"
    device = PreparedDevice("r", "node-1", "gpu-0", "GPU-1", "GPU-1", ("k8s.gpu.nvidia.com/claim=x",))
    checkpoint = Checkpoint(str(kubelet / "plugins/gpu.nvidia.com/checkpoint.json"))
    checkpoint.put(PreparedClaim(UID, "team", "claim", "completed", "boot", (device,)))
    write(kubelet / "plugins/gpu.nvidia.com/.checkpoint.json.0123456789abcdef.new", "{")
    for name in ("device-plugins/gpurun-nvidia.com-gpu.sock", "plugins/gpu.nvidia.com/dra.sock",
                 "plugins_registry/gpu.nvidia.com-reg.sock"):  # fmt: skip
        dead_socket(kubelet / name)


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def dead_socket(path: Path) -> socket.socket:
    """A socket on which nobody listens."""
    path.parent.mkdir(parents=True, exist_ok=True)
    made = socket.socket(socket.AF_UNIX)
    fd = os.open(path.parent, os.O_PATH)
    made.bind(f"/proc/self/fd/{fd}/{path.name}")  # the path of a Unix socket has at most 107 bytes
    os.close(fd)
    return made


def others(root: Path) -> None:
    """What is not gpurun's, beside that."""
    write(root / "run/cdi/nvidia.json", json.dumps(SPEC))
    write(root / "run/cdi/k8s.gpu.nvidia.com-claim_by-nvidia.json", THEIRS)
    write(root / "run/cdi/k8s.gpu.nvidia.com-claim_.json.bak", "mine")
    write(root / "run/cdi/k8s.gpu.amd.com-claim_other.json", json.dumps({"kind": "k8s.gpu.intel.com/claim"}))
    write(root / "run/cdi/amd.json", json.dumps({"cdiVersion": "0.6.0", "kind": "amd.com/gpu", "devices": []}))
    write(root / "var/lib/kubelet/plugins/other/checkpoint.json", "{}")
    dead_socket(root / "var/lib/kubelet/device-plugins/nvidia-gpu.sock")


def take_back(root: Path) -> tuple[list[str], list[str]]:
    answer = json.loads(on_node(str(root), lambda: steps.take_back(PLACES)))
    return answer["done"], answer["left"]


def everything(root: Path) -> dict[str, str]:
    """:func:`contents`, with the names of sockets."""
    sockets = {str(path.relative_to(root)): "" for path in (root / "var/lib/kubelet").rglob("*") if path.is_socket()}
    return contents(root) | sockets


def start(root: Path) -> dict[str, str]:
    others(root)
    prepare(root, NODES["version 2"])
    return everything(root)


def test_all_of_it(root: Path) -> None:
    before = start(root)
    install(root)
    use(root)
    told, left = take_back(root)
    assert left == [] and any("checkpoint.json is gone" in text for text in told)
    assert everything(root) == before
    assert not (root / "opt/gpurun").exists() and not (root / "var/lib/kubelet/plugins/gpu.nvidia.com").exists()
    assert take_back(root) == ([], []), "the second time there is nothing to do"


def test_a_node_without_the_installer(root: Path) -> None:
    before = start(root)
    use(root)
    assert take_back(root)[1] == [] and everything(root) == before


def test_with_a_pod_that_runs(root: Path) -> None:
    """The program stays until its container has ended; everything else goes at once."""
    before = start(root)
    install(root)
    use(root)
    note = root / "run/containerd/io.containerd.runtime.v2.task/k8s.io/abc/runtime"
    write(note, "/opt/gpurun/bin/gpurun")
    _, left = take_back(root)
    assert left == ["/opt/gpurun/bin/gpurun is needed by 1 containers until they end: abc"]
    note.unlink()
    assert set(everything(root)) - set(before) == {"opt/gpurun/bin/gpurun", RECORD[1:]}
    assert take_back(root)[1] == [] and everything(root) == before


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("device-plugins/gpurun-nvidia.com-gpu.sock", "the device plugin still runs on this node"),
        ("plugins/gpu.nvidia.com/dra.sock", "a DRA driver called gpu.nvidia.com still runs on this node"),
    ],
)
def test_beside_a_part_that_runs(root: Path, name: str, said: str) -> None:
    """It would write again what is removed, or has what it needs taken away."""
    before = start(root)
    use(root)
    (root / "var/lib/kubelet" / name).unlink()
    part = dead_socket(root / "var/lib/kubelet" / name)
    part.listen()
    there = everything(root)
    assert take_back(root) == ([], [said]) and everything(root) == there
    part.close()
    assert take_back(root)[1] == [] and everything(root) == before


@pytest.mark.parametrize(
    "checkpoint", ['{"checksum": 1, "v1": {}}', "no JSON", "[]", '{"version": 1, "digest": "", "claims": []}']
)
def test_the_files_of_nvidias_parts_stay(root: Path, checkpoint: str) -> None:
    """They have the same names."""
    write(root / "run/cdi/k8s.device-plugin.nvidia.com-gpu.json", THEIRS)
    write(root / "var/lib/kubelet/plugins/gpu.nvidia.com/checkpoint.json", checkpoint)
    dead_socket(root / "var/lib/kubelet/plugins/gpu.nvidia.com/dra.sock")
    before = everything(root)
    assert take_back(root) == ([], []) and everything(root) == before


def test_what_is_no_file_is_not_opened(root: Path) -> None:
    """A FIFO would block for good, a link names somebody else's file."""
    victim = root / "etc/shadow"
    write(victim, json.dumps(SPEC))
    for name in ("run/cdi/k8s.device-plugin.nvidia.com-gpu.json", "var/lib/kubelet/plugins/gpu.nvidia.com/checkpoint.json"):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        os.mkfifo(root / name)
    (root / f"run/cdi/k8s.gpu.nvidia.com-claim_{UID}.json").symlink_to("/etc/shadow")
    signal.alarm(60)  # ends the test that waits
    try:
        assert take_back(root) == ([], [])
    finally:
        signal.alarm(0)
    assert victim.exists()


def test_killed_at_any_step(root: Path) -> None:
    before = start(root)
    step = 0
    while True:
        step += stride()
        install(root)
        use(root)
        was_killed = killed_at(step, root, lambda: steps.take_back(PLACES))
        assert take_back(root)[1] == [], step
        assert everything(root) == before, step
        if not was_killed:
            break
    assert step > 40


SETUP = with_defaults(NodeSetup("containerd", restart="systemd"))
LIES: dict[str, Callable[[dict[str, Any]], object]] = {
    "a file of the system": lambda note: note["setup"].update(drop_in="/etc/passwd"),
    "a program of the system": lambda note: note["setup"].update(directory="/opt/../usr"),
    "no path": lambda note: note["setup"].update(directory="opt"),
    "a path with a line": lambda note: note["setup"].update(directory="/opt/a\nb"),
    "the kernel's": lambda note: note["setup"].update(config="/proc/1/root/etc/x.toml"),
    "no text": lambda note: note["setup"].update(directory=["/opt"]),
    "no such engine": lambda note: note["setup"].update(engine="docker"),
    "no such restart": lambda note: note["setup"].update(restart="rm -rf /"),
    "no truth": lambda note: note.update(removing="no"),
    "too much": lambda note: note["setup"].update(more="1"),
    "nothing": lambda note: note.clear(),
}


@pytest.mark.parametrize("lie", LIES)
def test_a_note_that_lies_is_not_obeyed(root: Path, lie: str) -> None:
    prepare(root, NODES["version 2"])
    write(root / "etc/passwd", "root:x:0:0:root:/root:/bin/sh\n")
    write(root / "usr/bin/gpurun", "of the distribution")
    install(root)
    note = json.loads((root / RECORD[1:]).read_text())
    LIES[lie](note)
    (root / RECORD[1:]).write_text(json.dumps(note))
    before = contents(root)
    with pytest.raises(GpurunError) as error:
        take_back(root)
    assert RECORD in str(error.value) and str(error.value).count("\n") == 0 and "remove" in str(error.value)
    assert contents(root) == before and (root / "usr/bin/gpurun").exists()


@pytest.mark.parametrize("kind", ["a link", "a FIFO", "somebody's", "everybody's", "deep", "large"])
def test_a_note_that_is_none_is_not_obeyed(root: Path, kind: str) -> None:
    install(root)
    note = root / RECORD[1:]
    if kind == "a link":
        note.rename(root / "var/elsewhere")
        note.symlink_to("/var/elsewhere")
    elif kind == "a FIFO":
        note.unlink()
        os.mkfifo(note)
    elif kind == "somebody's":
        os.chown(note, 1000, 1000)
    elif kind == "everybody's":
        note.chmod(0o666)
    else:
        note.write_text("[" * 60000 if kind == "deep" else " " * 70000 + note.read_text())
    there = (root / "opt/gpurun/bin/gpurun").read_text()
    signal.alarm(60)
    try:
        with pytest.raises(GpurunError, match=RECORD):
            take_back(root)
    finally:
        signal.alarm(0)
    assert (root / "opt/gpurun/bin/gpurun").read_text() == there


def test_labels_of_others_stay() -> None:
    labels = {"nvidia.com/gpu.count": "2", "nvidia.com/mig.capable": "true", "nvidia.com/gpu.present": "true", LABEL: "x"}
    assert labels_left({"labels": {"amd.com/gpu.vram": "64G", "amd.com/other": "x"}}) == {"amd.com/gpu.vram": None}
    assert labels_left({"labels": labels | {"kubernetes.io/os": "linux"}}) == {
        "nvidia.com/gpu.count": None,
        "nvidia.com/mig.capable": None,
    }
    nfd = {"nfd.node.kubernetes.io/feature-labels": "cpu-model.id,nvidia.com/gpu.count"}
    assert labels_left({"labels": labels, "annotations": nfd}) == {"nvidia.com/mig.capable": None}
    assert labels_left({}) == {}


def test_who_waits_for_all_nodes(tmp_path: Path) -> None:
    """As the Job of the chart does."""
    server = ApiServer()
    daemonset: dict[str, Any] = {"metadata": {"name": "uninstall", "namespace": "ns", "generation": 1}, "status": {}}
    server.put("daemonsets", daemonset)
    words = ["--daemonset", "ns/uninstall", "--interval", "0.1", "--kubeconfig", str(server.kubeconfig(tmp_path / "config"))]
    process = subprocess.Popen(command(tmp_path, "uninstall-node", *words), env=ENV, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stderr is not None
        for wanted, ready in ((3, 0), (3, 2), (3, 3)):
            assert process.poll() is None
            daemonset["status"] = {"observedGeneration": 1, "desiredNumberScheduled": wanted, "numberReady": ready}
            server.put("daemonsets", daemonset)
            next(line for line in process.stderr if f"done on {ready} of {wanted} nodes" in line)
        assert process.wait(60) == 0 and server.used == {("get", "daemonsets")}
    finally:
        process.kill()
        process.communicate()
        server.stop()


def test_the_command(root: Path, tmp_path: Path) -> None:
    """As a pod of the uninstalling DaemonSet has it: it waits for a container, then for a signal."""
    before = start(root)
    install(root)
    use(root)
    note = root / "run/containerd/io.containerd.runtime.v2.task/k8s.io/abc/runtime"
    write(note, "/opt/gpurun/bin/gpurun")
    server = ApiServer()
    server.put("nodes", {"metadata": {"name": "node-1", "labels": {"nvidia.com/gpu.count": "2", "zone": "a"}}})
    words = ["--patch-node", "--node-name", "node-1", "--kubeconfig", str(server.kubeconfig(tmp_path / "kubeconfig"))]
    words += ["--cdi-dir", "/run/cdi"]
    once = subprocess.run(command(root, "uninstall-node", *words), env=ENV, capture_output=True, text=True)
    assert once.returncode == 1 and "not everything is gone yet: /opt/gpurun/bin/gpurun is needed" in once.stderr
    process = subprocess.Popen(
        command(root, "uninstall-node", *words, "--wait", "--interval", "0.1"), env=ENV, stderr=subprocess.PIPE, text=True
    )
    try:
        assert process.stderr is not None
        next(line for line in process.stderr if "is needed by 1 containers" in line)
        note.unlink()
        next(line for line in process.stderr if "nothing of gpurun is left" in line)
        assert everything(root) == before and server.all("nodes")[0]["metadata"]["labels"] == {"zone": "a"}
        assert server.used == {("get", "nodes"), ("patch", "nodes")}
        process.terminate()
        assert process.wait(60) == 0
    finally:
        process.kill()
        process.communicate()
        server.stop()
    deadline = time.monotonic() + 60
    again = subprocess.run(command(root, "uninstall-node", "--cdi-dir", "/run/cdi"), env=ENV, capture_output=True, text=True)
    assert again.returncode == 0 and "nothing of gpurun is left" in again.stderr and time.monotonic() < deadline
