"""The parts that only look at GPUs, without a capability and with a read-only root, as `privileged: false` has them."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.kubernetes.api_server import ApiServer
from tests.kubernetes.nodes import GPU, node
from tests.nvml import compile_stub
from tests.simdriver import Options, make

pytestmark = pytest.mark.skipif(
    os.geteuid() != 0 or not all(map(shutil.which, ("setpriv", "unshare"))), reason="drops what root has; needs util-linux"
)

#: $0 stays writable, as the volumes of a pod do.
ALONE = 'mount --bind "$0" "$0" && mount -o remount,bind,ro / && exec "$@"'
NO_PRIVILEGE = ("setpriv", "--bounding-set=-all", "--inh-caps=-all", "--ambient-caps=-all", "--no-new-privs")


def command(writable: Path, *words: str) -> list[str]:
    alone = ["unshare", "--mount", "--propagation", "private", "sh", "-c", ALONE, str(writable)]
    return [*alone, *NO_PRIVILEGE, sys.executable, "-B", "-m", "gpurun", *words]


def test_it_is_without_privileges(tmp_path: Path) -> None:
    """What the other tests here rest on."""
    script = f"cat /proc/self/status; touch {tmp_path}/written; touch /etc/written; touch /var/tmp/written"
    done = subprocess.run([*command(tmp_path)[:8], *NO_PRIVILEGE, "sh", "-c", script], capture_output=True, text=True)
    assert "CapEff:\t0000000000000000" in done.stdout and "NoNewPrivs:\t1" in done.stdout, done.stderr
    assert (tmp_path / "written").exists() and done.stderr.count("Read-only file system") == 2


def test_the_device_plugin() -> None:
    with node() as made:
        words = ["kubernetes", "device-plugin", "--kubelet-dir", str(made.kubelet.directory), "--cdi-dir", str(made.cdi_dir)]
        env = os.environ | made.driver.env | {"PYTHONPATH": "src"}
        process = subprocess.Popen(command(made.directory, *words), env=env, stderr=subprocess.PIPE, text=True)
        try:
            made.kubelet.wait(lambda: made.kubelet.capacity(GPU) == 2 or process.poll() is not None)
            assert process.poll() is None
            assert "CapEff:\t0000000000000000" in Path(f"/proc/{process.pid}/status").read_text()
            (device,) = made.kubelet.run_container("one", GPU).cdi_devices
            (spec,) = made.cdi_dir.glob("*.json")
            assert device.name.rpartition("=")[2] in spec.read_text()
            process.terminate()
            assert process.wait(60) == 0
        finally:
            process.kill()
            said = process.communicate()[1]
        assert "Traceback" not in said, said


@pytest.mark.parametrize("patch", [True, False])
def test_labels(tmp_path: Path, patch: bool) -> None:
    driver = make(tmp_path / "host", Options(gpus=2))
    server = ApiServer()
    server.put("nodes", {"metadata": {"name": "node-1", "labels": {}}})
    config = str(server.kubeconfig(tmp_path / "kubeconfig"))
    words = ["--patch-node", "--node-name", "node-1", "--kubeconfig", config] if patch else ["-o", str(tmp_path / "gfd")]
    env = os.environ | driver.env | {"PYTHONPATH": "src"}
    try:
        done = subprocess.run(
            command(tmp_path, "kubernetes", "labels", "--oneshot", *words),
            env=env,
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert done.returncode == 0 and "Traceback" not in done.stderr, done.stderr
        labels = server.all("nodes")[0]["metadata"]["labels"] if patch else (tmp_path / "gfd").read_text()
        assert "nvidia.com/gpu.count" in labels
    finally:
        server.stop()


def test_metrics(tmp_path: Path) -> None:
    driver = make(tmp_path / "host", Options(gpus=2))
    library = next(path for path in driver.path.rglob("libnvidia-ml.so.*") if not path.is_symlink())
    library.unlink()
    compile_stub(library, events=tmp_path / "events")
    env = os.environ | driver.env | {"PYTHONPATH": "src"}
    words = ["--root", str(tmp_path / "state"), "metrics", "--once"]
    done = subprocess.run(command(tmp_path, *words), env=env, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0 and "DCGM_FI_DEV" in done.stdout and "Traceback" not in done.stderr, done.stderr
