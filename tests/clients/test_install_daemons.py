"""`gpurun install docker` and `containerd`: this machine's daemons start with what was written, and run a GPU container."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.clients.bed import BEDS, IMAGE, NEEDED
from tests.simdriver import Options, make

pytestmark = [
    pytest.mark.clients,
    pytest.mark.native,
    pytest.mark.skipif(
        os.geteuid() != 0 or not all(map(shutil.which, NEEDED)), reason=f"needs root and {', '.join(NEEDED)}"
    ),
]

PROGRAM = BEDS.parents[1] / "build/gpurun"
#: In the bed, with a /usr/local/bin of its own; a shim gives its runtime no environment, so a script names the driver.
SCRIPT = r"""
exec 2>&1
mount -t tmpfs -o mode=755 bin /usr/local/bin
cp "$1" /usr/local/bin/gpurun
printf '#!/bin/sh\nexport GPURUN_SYSROOT=%s\nexec /usr/local/bin/gpurun "$@"\n' "$2" >/usr/local/bin/simulated
chmod 755 /usr/local/bin/simulated
export GPURUN_SYSROOT=$2
containerd config default >/etc/containerd/config.toml
cp /etc/containerd/config.toml /run/before.toml; cp /etc/docker/daemon.json /run/before.json
gpurun install docker --default --path /usr/local/bin/simulated
gpurun install containerd --path /usr/local/bin/simulated
pkill -x --ns $$ dockerd; pkill -x --ns $$ containerd
for i in $(seq 100); do pgrep -x --ns $$ 'dockerd|containerd' >/dev/null || break; sleep .1; done
containerd --log-level warn >/run/containerd.log 2>&1 &
for i in $(seq 100); do ctr version >/dev/null 2>&1 && break; sleep .1; done
dockerd >/run/dockerd.log 2>&1 &
for i in $(seq 200); do docker version >/dev/null 2>&1 && break; sleep .1; done
docker load -qi "$3" >/dev/null || tail -5 /run/dockerd.log
echo "default: $(docker info --format '{{.DefaultRuntime}}')"
echo "cri: $(ctr plugins ls | awk '$2 == "cri" || $1 == "io.containerd.cri.v1" && $2 == "runtime" { print $NF }')"
echo "gpus: $(docker run --rm --network none --gpus all "$4" sh -c 'ls /dev | grep -cE "^nvidia[0-9]+$"')"
gpurun uninstall docker --path /usr/local/bin/simulated
gpurun uninstall containerd --path /usr/local/bin/simulated
cmp /etc/containerd/config.toml /run/before.toml && cmp /etc/docker/daemon.json /run/before.json && echo as before
echo left:; find /etc/containerd /etc/docker /usr/local/bin -name '*-gpurun*' -o -name 'nvidia-*'
kill %1 %2; wait
"""


def test_daemons_start_with_what_was_written(tmp_path: Path) -> None:
    driver = make(tmp_path / "driver", Options(gpus=2))
    image = tmp_path / "image.tar"
    subprocess.run([sys.executable, BEDS / "mkimage", shutil.which("busybox") or "", image, IMAGE], check=True)
    command = [BEDS / "native-run", "--", "bash", "-c", SCRIPT, "sh", PROGRAM, driver.path, image, IMAGE]
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, timeout=300)
    lines = done.stdout.splitlines()
    assert "default: gpurun" in lines and "cri: ok" in lines and "gpus: 2" in lines, done.stdout
    assert "docker reads it after: systemctl restart docker" in done.stdout, "names are new, so a reload is not enough"
    assert "/usr/local/bin/nvidia-container-runtime-hook -> /usr/local/bin/gpurun" in lines
    assert lines[lines.index("as before") :] == ["as before", "left:"]
