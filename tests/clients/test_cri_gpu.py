"""GPUs in pods, through containerd's CRI plugin: by a container's environment, and by the annotations of a device plugin."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.clients.bed import IMAGE, ClientBed, ClientBedUnavailable, make_bed
from tests.clients.cri.daemon import CriDaemon
from tests.clients.operation import Operation
from tests.conftest import runtime_path
from tests.native.runtime import Result
from tests.simdriver import Options, make, minor, uuid

pytestmark = [pytest.mark.native, pytest.mark.clients, pytest.mark.gpurun_only, pytest.mark.slow]

LOOK = "ls /dev | grep 'nvidia[0-9c]' | tr '\\n' ' '; grep -o 'libcuda.so[^ ]*' /proc/mounts | head -n 1; : <>/dev/nvidiactl"


@pytest.fixture(scope="module")
def daemon() -> Iterator[CriDaemon]:
    with tempfile.TemporaryDirectory(prefix="gpurun-cri.", dir="/var/tmp") as name:
        Path(name).chmod(0o755)
        host = make(Path(name) / "driver", Options(gpus=2))
        try:
            link = Path(name) / "nvidia-container-runtime.cdi"
            link.symlink_to(runtime_path())
            bed = make_bed({"tested": runtime_path(), "cdi": str(link)}, host.path)
        except ClientBedUnavailable as e:
            pytest.skip(str(e))
        spec = Path(name) / "nvidia.yaml"
        subprocess.run([runtime_path(), "cdi", "generate", "--output", spec], env=os.environ | host.env, check=True)
        try:
            assert bed.run("sh", "-c", f"mkdir -p /run/cdi && cp {spec} /run/cdi/").rc == 0
            made = CriDaemon(bed)
            shutil.copy(spec, made.directory / "cdi")
            yield made
            made.close()
        finally:
            bed.close()
            shutil.rmtree(bed.directory)


def run(daemon: CriDaemon, fields: str, handler: str = "tested") -> Result:
    """What :data:`LOOK` says in a container with these fields, in a pod with this handler."""
    return operate(daemon, f'run_ {fields} -- sh -c "$LOOK"', handler)


def operate(daemon: CriDaemon, words: str, handler: str = "tested") -> Result:
    bed: ClientBed = daemon.bed
    runtime = bed.runtimes[handler]
    env = daemon.environment() | {"C": "gpu", "IMAGE": IMAGE, "BEDS": str(bed.beds), "LOOK": LOOK}
    env |= {"DOCKER_RUNTIME": runtime.docker, "BINARY": runtime.binary}
    script = Operation("cri", "", words).whole
    return bed.run("bash", "-c", script, **env)


def test_environment(daemon: CriDaemon) -> None:
    result = run(daemon, """envs:='[{"key":"NVIDIA_VISIBLE_DEVICES","value":"all"}]'""")
    assert "nvidia0 nvidia1 nvidiactl libcuda.so." in result.out, result.text
    assert "Operation not permitted" not in result.out, "the container's own device program must allow them"


def test_no_request(daemon: CriDaemon) -> None:
    result = run(daemon, "")
    assert "nvidia" not in result.out.replace("/dev/nvidiactl", ""), result.text


def test_annotation(daemon: CriDaemon) -> None:
    """containerd 1.6 knows no CDI: the runtime, in its mode `cdi`, reads the annotations that the handler lets through.

    Newer ones put the same devices in themselves, and let the annotations through as well.
    """
    result = run(daemon, """annotations:='{"cdi.k8s.io/device-plugin_a":"nvidia.com/gpu=1"}'""", "cdi")
    assert result.out.count("nvidiactl") >= 1 and "libcuda.so." in result.out, result.text
    nodes = [word for word in result.out.split() if word in ("nvidia0", "nvidia1")]
    assert len(nodes) == 1, result.text


def test_a_gpu_comes_and_goes(daemon: CriDaemon) -> None:
    """In a pod that runs, by the id that the kubelet knows: EPERM before, ENXIO between (no driver), EPERM after."""
    result = operate(
        daemon,
        """up
LOOK='mknod /tmp/gpu c 195 NUMBER; (: <>/tmp/gpu) 2>&1; rm /tmp/gpu; ls -d /dev/nvidia[0-9]; echo $NVIDIA_VISIBLE_DEVICES'
look() { in_ sh -c "$LOOK" 2>&1; }
echo before; look
"$BINARY" gpu attach "$BOX" 1
echo between; look
"$BINARY" gpu detach "$BOX" 1
echo after; look
echo end""".replace("NUMBER", str(minor(1, 2))),
    )
    assert result.rc == 0, result.text
    before, between, after = re.split("between|after", result.out.partition("before")[2].partition("end")[0])
    assert "Operation not permitted" in before and "No such device or address" not in before, result.text
    assert "No such device or address" in between and "/dev/nvidia0" in between and uuid(1) in between, result.text
    assert "Operation not permitted" in after and "/dev/nvidia0\n" not in after and "none" in after, result.text


def test_unknown_gpu(daemon: CriDaemon) -> None:
    result = run(daemon, """envs:='[{"key":"NVIDIA_VISIBLE_DEVICES","value":"7"}]'""")
    assert result.rc == 1
    assert "7: unknown device" in result.text
