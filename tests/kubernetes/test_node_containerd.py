"""The installer beside a real containerd: it is told by a drop-in and restarted by a signal, its containers go on."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.clients.bed import BEDS, IMAGE, NEEDED

pytestmark = [
    pytest.mark.clients,
    pytest.mark.native,
    pytest.mark.skipif(
        os.geteuid() != 0 or not all(map(shutil.which, NEEDED)), reason=f"needs root and {', '.join(NEEDED)}"
    ),
]

PROGRAM = BEDS.parents[1] / "build/gpurun"
#: $1 is the program, $2 an image. The host's root is also at /run/host, as a pod has it.
SCRIPT = r"""
exec 2>&1
dir=/run/opt/gpurun bin=/run/opt/gpurun/bin/gpurun
containerd config default | sed 's,sandbox_image = .*,sandbox_image = "pause:1",' >/etc/containerd/config.toml
cp /etc/containerd/config.toml /run/before.toml
mkdir /run/host && mount --rbind / /run/host && mount --make-rslave /run/host
pkill -x --ns $$ dockerd; pkill -x --ns $$ containerd
for i in $(seq 100); do pgrep -x --ns $$ 'dockerd' || pgrep -x --ns $$ containerd || break; sleep .1; done >/dev/null
# What systemd does on a node: whoever ends is started again.
(while :; do containerd --log-level warn >>/run/containerd.log 2>&1; sleep .2; done) &
for i in $(seq 100); do ctr version >/dev/null 2>&1 && break; sleep .1; done
ctr image import "$2" >/dev/null || tail -5 /run/containerd.log
first=$(pgrep -x --ns $$ containerd)
"$1" kubernetes install-node --host-root /run/host --install-dir $dir --ready-file /run/ready &
installer=$!
for i in $(seq 300); do [ -e /run/ready ] && break; sleep .1; done
[ "$first" != "$(pgrep -x --ns $$ containerd)" ] && echo restarted
containerd config dump >/run/dump
count() { grep -c "$1" /run/dump; }
echo "named: $(count 'BinaryName = "/run/opt/gpurun/bin/gpurun"') pause: $(count pause:1)"
for i in $(seq 100); do ctr plugins ls | grep -q 'cri .* ok$\|cri.*runtime.* ok$' && break; sleep .1; done
ctr plugins ls -d id==cri | grep -i error
echo "cri: $(ctr plugins ls | awk '$2 == "cri" || $1 == "io.containerd.cri.v1" && $2 == "runtime" { print $NF }')"
grep 'enable_cdi = true' /etc/containerd/conf.d/gpurun.toml
ctr run -d --runc-binary $bin "$(ctr image ls -q | head -n 1)" kept sleep 1000 && echo started
kill $installer; wait $installer; echo "installer: $?"
cmp /etc/containerd/config.toml /run/before.toml && [ ! -e /etc/containerd/conf.d ] && echo as before
[ -x $bin ] && echo the program stays
ctr task exec --exec-id a kept echo it goes on
ctr task kill -s KILL kept
for i in $(seq 100); do ctr task ls | grep -q STOPPED && break; sleep .1; done
ctr task delete kept >/dev/null
"$1" kubernetes uninstall-node --host-root /run/host
[ ! -e $dir ] && [ -z "$(ls -A /var/lib/gpurun)" ] && echo all of it is gone
kill %1; pkill -x --ns $$ containerd; umount -l /run/host
"""


def test_a_node_with_containerd(tmp_path: Path) -> None:
    image = tmp_path / "image.tar"
    subprocess.run([sys.executable, BEDS / "mkimage", shutil.which("busybox") or "", image, IMAGE], check=True)
    command = [BEDS / "native-run", "--", "bash", "-c", SCRIPT, "sh", PROGRAM, image]
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, timeout=300)
    lines = done.stdout.splitlines()
    said = ["restarted", "named: 1 pause: 1", "cri: ok", "enable_cdi = true", "started", "installer: 0", "as before"]
    for wanted in (*said, "the program stays", "it goes on", "all of it is gone"):
        assert wanted in lines, done.stdout[-4000:]
