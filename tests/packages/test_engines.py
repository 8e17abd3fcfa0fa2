"""What README promises a newcomer, in fresh Debian 12 and 13: install the package, tell Docker and containerd with one
command each, run a container with GPUs through each of them, take it all back; nothing is left.

The GPUs are those of the simulated driver. A shim gives its runtime no environment, so what the engines are told of is a
script of two lines that names the driver's tree and calls /usr/bin/gpurun.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from tests.clients.bed import CONTROLLERS
from tests.native.abilities import controllers
from tests.packages.test_deb import debs  # noqa: F401 (a fixture)
from tests.packages.trees import REPOSITORY, TreeUnavailable, debian, run
from tests.simdriver import Options, make

pytestmark = [
    pytest.mark.native,
    pytest.mark.packages,
    pytest.mark.slow,
    pytest.mark.skipif(
        os.geteuid() != 0 or not shutil.which("dpkg-buildpackage") or not shutil.which("busybox"),
        reason="needs root, dpkg-dev and a static busybox",
    ),
]

IMAGE = "test/busybox:1"
#: $1 packages, $2 the driver, $3 the image, $4 this repository, $5 libraries of the CRI client, $6 what takes limits
#: out that this machine has no controllers for. The daemons have a network and a cgroup tree of their own, and stores in
#: memory (an overlay takes no overlay as its upper directory).
SCRIPT = r"""
exec 2>&1
export LC_ALL=C GPURUN_SYSROOT="$2"
apt-get -qq update; apt-get -qq -y install docker.io containerd procps python3 >/dev/null
command -v docker >/dev/null || apt-get -qq -y install docker-cli >/dev/null
mkdir -p /etc/docker; [ -e /etc/docker/daemon.json ] || echo '{"storage-driver": "overlay2"}' >/etc/docker/daemon.json
# What an administrator has there: this machine may give no process a lower score for the OOM killer.
own='sandbox_image = "docker.io/test/pause:1"\nrestrict_oom_score_adj = true # mine'
sed -i "/^ *\[plugins.\"io.containerd.grpc.v1.cri\"\]/a $own" /etc/containerd/config.toml
cp /etc/containerd/config.toml /tmp/before.toml; cp /etc/docker/daemon.json /tmp/before.json
files() {
    ls -A /run | sed 's,^,/run/,'
    find / -xdev -regex '/\(tmp\|proc\|sys\|run\|var/lib/dpkg\|var/lib/apt\|var/log\|var/cache\)' -prune -o -print
}
files | sort >/tmp/before
apt-get -qq -y install "$1/gpurun.deb" >/dev/null
cat >/usr/local/bin/simulated <<END
#!/bin/sh
export GPURUN_SYSROOT=$2
case " \$* " in *" create "*) exec $6 /usr/bin/gpurun "\$@" ;; *) exec /usr/bin/gpurun "\$@" ;; esac
END
chmod 755 /usr/local/bin/simulated
cat >/tmp/engines <<'END'
umount -l /sys/fs/cgroup; mount -t cgroup2 none /sys/fs/cgroup
for dir in containerd docker; do mkdir -p /var/lib/$dir; mount -t tmpfs none /var/lib/$dir; done
gpurun install docker --path /usr/local/bin/simulated
gpurun install containerd --path /usr/local/bin/simulated
containerd --log-level warn >/run/containerd.log 2>&1 &
daemons=$!
for i in $(seq 300); do ctr version >/dev/null 2>&1 && break; sleep .1; done
dockerd --bridge none --iptables=false >/run/dockerd.log 2>&1 &
daemons="$! $daemons"
for i in $(seq 600); do docker version >/dev/null 2>&1 && break; sleep .1; done
docker load -qi "$3" >/dev/null || tail -5 /run/dockerd.log
look='ls /dev | grep -cE "^nvidia[0-9]+$"; grep -c libcuda.so /proc/mounts'
look="$look; (: <>/dev/nvidiactl) 2>&1 | grep -c 'such device'"
run() { docker run --rm --runtime gpurun --network none "$@" test/busybox:1 sh -c "$look" 2>&1 | xargs; }
echo "docker: $(run -e NVIDIA_VISIBLE_DEVICES=all)"
echo "docker --gpus 1: $(run --gpus 1)"
made=$(docker create --network none test/busybox:1)
docker commit -c 'CMD ["sleep", "2147483647"]' $made test/pause:1 >/dev/null; docker rm $made >/dev/null
docker save test/pause:1 test/busybox:1 >/run/images.tar; ctr -n k8s.io images import /run/images.tar >/dev/null
export CRI_ADDRESS=/run/containerd/containerd.sock PYTHONPATH=$4:$4/src:$5 PYTHONDONTWRITEBYTECODE=1
cri() { python3 -m tests.clients.cri "$@"; }
host='linux.security_context.namespace_options:={"network":"NODE"}'
pod="metadata.name=p metadata.uid=u metadata.namespace=n log_directory=/run/logs $host"
P=$(cri RunPodSandbox runtime_handler=gpurun $(printf 'config.%s ' $pod) -q pod_sandbox_id)
C=$(cri CreateContainer pod_sandbox_id="$P" $(printf 'sandbox_config.%s ' $pod) config.metadata.name=c \
    config.log_path=c.log config.image.image=docker.io/test/busybox:1 "config.$host" \
    'config.envs:=[{"key":"NVIDIA_VISIBLE_DEVICES","value":"0,1"}]' -q container_id -- sh -c "$look")
cri StartContainer container_id="$C" >/dev/null
cri ContainerStatus container_id="$C" --until status.state=EXITED -q status.state >/dev/null
echo "containerd: $(cut -d' ' -f4- /run/logs/c.log | xargs)"
cri StopPodSandbox pod_sandbox_id="$P" >/dev/null; cri RemovePodSandbox pod_sandbox_id="$P" >/dev/null
gpurun uninstall docker --path /usr/local/bin/simulated
gpurun uninstall containerd --path /usr/local/bin/simulated
for pid in $daemons; do kill $pid; wait $pid || :; done
umount /var/lib/docker /var/lib/containerd
END
unshare -nCm sh -eu /tmp/engines "$@"
# The script, what engines leave in /run.
rm -rf /usr/local/bin/simulated /run/logs /run/images.tar /run/containerd /run/docker* /run/*.log /run/xtables.lock
cmp /etc/containerd/config.toml /tmp/before.toml && cmp /etc/docker/daemon.json /tmp/before.json && echo as before
apt-get -qq -y purge gpurun >/dev/null
# What the daemons make for themselves is theirs.
theirs='/etc/docker/key.json|/etc/cni|/etc/cni/net.d|/run/nri|/var/lib/containerd|/var/lib/docker'
echo left:; files | sort | comm -13 /tmp/before - | grep -vxE "$theirs" || :
"""


@pytest.mark.parametrize("suite", ["bookworm", "trixie"])
def test_installed_told_run_and_purged(debs: Path, tmp_path: Path, suite: str) -> None:  # noqa: F811
    try:
        tree = debian(suite)
    except TreeUnavailable as e:
        pytest.skip(str(e))
    driver = make(tmp_path / "driver", Options(gpus=2))
    image = tmp_path / "image.tar"
    mkimage = REPOSITORY / "tests/beds/mkimage"
    subprocess.run([sys.executable, mkimage, shutil.which("busybox") or "", image, IMAGE], check=True)
    libraries = Path(sysconfig.get_path("purelib")).resolve()
    adapt = "" if controllers() >= CONTROLLERS else f"python3 {REPOSITORY}/tests/beds/native-adapt"
    words: list[str | Path] = [debs, driver.path, image, REPOSITORY, libraries, adapt]
    done = run(tree, SCRIPT, *words, show=(debs, tmp_path, REPOSITORY, libraries))
    lines = done.stdout.splitlines()
    assert done.returncode == 0, done.stdout
    for line in ("docker: 2 1 1", "docker --gpus 1: 1 1 1", "containerd: 2 1 1"):
        assert line in lines, done.stdout
    assert lines[lines.index("as before") :] == ["as before", "left:"], done.stdout
