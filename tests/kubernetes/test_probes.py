"""What the kubelet's probes are answered: by the server itself, and by each part about its work."""

from __future__ import annotations

import http.client
import os
import re
import shutil
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from gpurun.errors import GpurunError
from gpurun.gpu.nvidia.host.roots import Roots
from gpurun.kubernetes.config import PluginConfig
from gpurun.kubernetes.node import has_hardware
from gpurun.kubernetes.probes import Probes, serve_probes
from tests.kubernetes.cluster import REAL, cluster
from tests.kubernetes.nodes import GPU, node
from tests.needs_nodes import needs_nodes
from tests.simdriver import Options, SimulatedDriver


def asked(port: int, path: str) -> tuple[int, str]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    try:
        connection.request("GET", path)
        answer = connection.getresponse()
        return answer.status, answer.read().decode()
    finally:
        connection.close()


def test_the_server() -> None:
    now = [0.0]
    probes = Probes(10.0, lambda: now[0])
    with serve_probes("127.0.0.1", 0, probes) as port:
        assert asked(port, "/readyz") == (503, "it is starting\n") and asked(port, "/healthz?verbose") == (200, "ok\n")
        probes.tell("")
        assert asked(port, "/readyz") == (200, "ok\n") and asked(port, "/metrics")[0] == 404
        now[0] = 11.0
        assert asked(port, "/healthz") == (503, "no sign of life for 11 s\n")
        probes.beat()
        assert asked(port, "/healthz")[0] == 200
        probes.beat(100.0)
        now[0] = 120.0
        assert asked(port, "/healthz")[0] == 200
        with pytest.raises(GpurunError, match="address already in use"), serve_probes("127.0.0.1", port, probes):
            pass
    with pytest.raises(ConnectionError):
        asked(port, "/healthz")


def test_clients_that_say_nothing_do_not_pile_up() -> None:
    """They are as many as there are threads for, and one more is closed at once; a probe is answered when they have gone."""
    probes = Probes()
    with serve_probes("", 0, probes) as port:
        silent = [socket.create_connection(("127.0.0.1", port)) for _ in range(16)]
        try:
            deadline = time.monotonic() + 30
            while True:  # those of the sixteen that have no thread yet take the place of this one
                with socket.create_connection(("127.0.0.1", port)) as one_more:
                    one_more.settimeout(1)
                    try:
                        assert one_more.recv(1) == b""
                        break
                    except TimeoutError:
                        assert time.monotonic() < deadline
        finally:
            for one in silent:
                one.close()
        while True:
            try:
                assert asked(port, "/healthz")[0] == 200
                break
            except (ConnectionError, http.client.HTTPException):
                assert time.monotonic() < deadline


@needs_nodes
def test_the_plugin_is_ready_when_the_kubelet_knows_it() -> None:
    with node() as made:
        made.kubelet.refuse = "not now"
        made.start_plugin()
        made.kubelet.wait(lambda: made.kubelet.refused > 1)
        assert "not now" in made.probes.not_ready()
        made.kubelet.refuse = ""
        # Registered is ready; the kubelet reads what there is a moment later.
        made.kubelet.wait(lambda: not made.probes.not_ready() and made.kubelet.capacity(GPU) == 2)
        assert not made.probes.not_alive()
        made.kubelet.stop()
        (made.kubelet.plugins / "kubelet.sock").unlink(missing_ok=True)
        made.kubelet.wait(lambda: "the kubelet does not run" in made.probes.not_ready())
        made.kubelet.start()
        made.kubelet.wait(lambda: not made.probes.not_ready() and made.kubelet.capacity(GPU) == 2)
        proc = made.driver.path / "proc/driver/nvidia"
        proc.rename(proc.with_name("away"))
        made.kubelet.wait(lambda: "no GPU" in made.probes.not_ready())


@needs_nodes
def test_a_node_without_a_gpu_is_ready() -> None:
    """Else the rollout of a DaemonSet on all nodes would never end."""
    for hardware in (True, False):
        with node(Options(no_module=True)) as made:
            if not hardware:
                shutil.rmtree(made.driver.path / "sys/bus/pci/devices", ignore_errors=True)
                (made.driver.path / "sys/bus/pci/devices").mkdir(parents=True)
            made.config = PluginConfig(fail_on_init_error=False)
            made.start_plugin()
            made.kubelet.wait(lambda: made.probes.not_ready() != "it is starting")
            assert bool(made.probes.not_ready()) is hardware and made.failure is None


def test_hardware(tmp_path: Path) -> None:
    roots = Roots(sysroot=str(tmp_path))
    assert has_hardware(roots), "nobody says that there is none"
    for name, vendor, kind, wanted in (
        ("0000:00:01.0", "0x8086", "0x030000", False),  # a GPU of somebody else's
        ("0000:00:02.0", "0x10de", "0x040300", False),  # the sound of a GPU
        ("0000:00:03.0", "0x10de", "0x068000", False),  # an NVSwitch
        ("0000:00:04.0", "0x10de", "0x030200", True),
    ):
        device = tmp_path / "sys/bus/pci/devices" / name
        device.mkdir(parents=True)
        (device / "vendor").write_text(f"{vendor}\n")
        (device / "class").write_text(f"{kind}\n")
        assert has_hardware(roots) is wanted


@needs_nodes
@pytest.mark.skipif(REAL, reason="plays the kubelet of the node")
def test_the_dra_driver_is_ready_when_the_kubelet_knows_it() -> None:
    with cluster() as made:
        made.start()
        made.until(lambda: len(made.published()) == 2)
        made.until(lambda: made.probes.not_ready() == "gpu.nvidia.com: not registered with the kubelet")
        made.info()  # registers it
        made.until(lambda: not made.probes.not_ready())
        made.registry.unlink()  # a kubelet that starts anew asks again
        made.until(lambda: made.probes.not_ready() and made.registry.exists())
        made.info()
        made.until(lambda: not made.probes.not_ready())


def test_labels_are_ready_when_they_are_written(sim: SimulatedDriver, tmp_path: Path) -> None:
    path, config = tmp_path / "gfd", tmp_path / "config.yaml"
    config.write_text("flags: {migStrategy: wrong}\n")
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    words = [sys.executable, "-m", "gpurun", "kubernetes", "labels", "--config-file", str(config), "-o", str(path)]
    words += ["--health-listen", f"127.0.0.1:{port}", "--interval", "0.2"]
    process = subprocess.Popen(words, env=os.environ | sim.env | {"PYTHONPATH": "src"}, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stderr is not None
        next(line for line in process.stderr if "migStrategy" in line)
        status, said = asked(port, "/readyz")
        assert status == 503 and re.search("migStrategy: 'wrong' is unknown", said) and asked(port, "/healthz")[0] == 200
        config.write_text("version: v1\n")
        deadline = time.monotonic() + 60
        while asked(port, "/readyz")[0] != 200:
            assert time.monotonic() < deadline
        assert path.exists()
        process.terminate()
        assert process.wait(60) == 0
    finally:
        process.kill()
        process.communicate()


def test_where_nobody_can_listen(sim: SimulatedDriver) -> None:
    for words, said in (
        (["labels", "--health-listen", "nowhere"], '--health-listen: "nowhere" is not ADDRESS:PORT'),
        (["labels", "--health-listen", "127.0.0.1:x"], '--health-listen: "127.0.0.1:x" is not ADDRESS:PORT'),
        (["labels", "--health-listen", "no host:1"], "listen at no host, port 1, for probes: Name or service not known"),
    ):
        command = [sys.executable, "-m", "gpurun", "kubernetes", *words]
        done = subprocess.run(command, env=os.environ | sim.env | {"PYTHONPATH": "src"}, capture_output=True, text=True)
        assert done.returncode == 1 and said in done.stderr.replace('\\"', '"') and "Traceback" not in done.stderr
