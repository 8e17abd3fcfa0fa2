"""Engines inside containers of gpurun's: Docker, Podman, containerd in Docker and in Podman, with GPUs through both layers.

The outer container has two GPUs of four, by a lease; its engine's containers have one of them, or both, or those of the two
that are free.  The life of a container without GPUs is the same with runc inside.
"""

from __future__ import annotations

import fnmatch
import secrets
import shutil
from collections.abc import Iterator

import pytest

from tests.clients.bed import ClientBed
from tests.clients.gpu_bed import gpu_bed
from tests.clients.nested_bed import engines_tar
from tests.conftest import runtime_path
from tests.native.runtime import Result
from tests.simdriver import Options

pytestmark = [pytest.mark.native, pytest.mark.clients, pytest.mark.slow, pytest.mark.gpurun_only]

IMAGE = "test/engines:1"
#: Before all that is done inside.  A container of an engine starts in a cgroup that must be empty before controllers can be
#: enabled below it; /proc/devices is the kernel's, and tells of no simulated driver.
PRELUDE = """
set -e
mkdir /sys/fs/cgroup/init
xargs -rn1 </sys/fs/cgroup/cgroup.procs >/sys/fs/cgroup/init/cgroup.procs 2>/dev/null || :
mount --bind /opt/nested/devices /proc/devices
mount -t tmpfs run /run
mkdir -p /etc/docker /etc/containers
echo '{"runtimes": {"gpurun": {"path": "/opt/nested/gpurun"}, "peer": {"path": "/usr/sbin/runc"}}}' >/etc/docker/daemon.json
cat >/etc/containers/containers.conf <<TOML
[containers]
default_ulimits = []
pids_limit = 0
[engine]
cgroup_manager = "cgroupfs"
events_logger = "file"
TOML
echo '{"default": [{"type": "insecureAcceptAnything"}]}' >/etc/containers/policy.json
RUNTIME=/opt/nested/$R
[ $R = gpurun ] || RUNTIME=/usr/sbin/runc
containerd_up() {
  containerd >/tmp/containerd.log 2>&1 &
  until ctr version >/dev/null 2>&1; do kill -0 $!; sleep .1; done
}
"""
#: Engine → how it comes up; `c GPUS NAME OPTIONS COMMAND` runs a container, `keep` one that goes on.
ENGINES = {
    "docker": """
        containerd_up
        dockerd --containerd /run/containerd/containerd.sock --iptables=false --bridge=none >/tmp/dockerd.log 2>&1 &
        until docker version >/dev/null 2>&1; do kill -0 $! || { tail -n 5 /tmp/dockerd.log; exit 1; }; sleep .1; done
        docker load -qi /opt/nested/image.tar >/dev/null
        r() { docker run --runtime $R --network none -e NVIDIA_VISIBLE_DEVICES=$1 "${@:2}"; }
        c() { r $1 --rm test/busybox:1 sh -c "$2"; }
        keep() { r $2 -d --name $1 test/busybox:1 sleep 1000; }
        in_() { docker exec "$@"; }
        gone() { docker rm -f $1 >/dev/null; }
    """,
    "podman": """
        p() { podman --runtime $RUNTIME "$@"; }
        p load -qi /opt/nested/image.tar >/dev/null
        r() { p run --network none -e NVIDIA_VISIBLE_DEVICES=$1 "${@:2}"; }
        c() { r $1 --rm test/busybox:1 sh -c "$2"; }
        keep() { r $2 -d --name $1 test/busybox:1 sleep 1000; }
        in_() { p exec "$@"; }
        gone() { p rm -f -t 0 $1 >/dev/null; }
    """,
    "containerd": """
        containerd_up
        ctr images import /opt/nested/image.tar >/dev/null
        r() { ctr run --runc-binary $RUNTIME --env NVIDIA_VISIBLE_DEVICES=$1 "${@:2}"; }
        c() { r $1 --rm docker.io/test/busybox:1 c$RANDOM sh -c "$2"; }
        keep() { r $2 -d docker.io/test/busybox:1 $1 sleep 1000; }
        in_() { ctr tasks exec --exec-id e$RANDOM "$@"; }
        gone() { ctr tasks rm -f $1 >/dev/null; ctr containers rm $1; }
    """,
}
#: What is done inside, with GPUs, and what is said.
GPUS = """
    c all 'echo both: $(ls /dev | grep -c "nvidia[0-9]") $(ls /proc/driver/nvidia/gpus | wc -l)
           grep -c libcuda.so /proc/mounts; for f in /dev/nvidia[0-9]; do (: <>$f) 2>&1; done; :'
    c 1 'echo one: $(ls /dev | grep -c "nvidia[0-9]") $(ls /proc/driver/nvidia/gpus | wc -l)'
    c void 'echo none: $(ls /dev | grep -c nvidia)'
    keep first free:1 >/dev/null
    keep second free:1 >/dev/null
    (in_ first ls /dev; in_ second ls /dev) | grep 'nvidia[0-9]' | sort -u | wc -l
    keep third free:1 2>&1 | grep -o '1 GPU wanted, 0 of 2 free' || echo 'there was another one'
    [ $ENGINE = containerd ] || gone third || :
    gone second
    c free:1 'echo again: $(ls /dev | grep -c "nvidia[0-9]")'
    gone first
"""
SAID = ["both: 2 2", "1", *["sh: can't create *: No such device or address"] * 2, "one: 1 1", "none: 0", "2"]
SAID += ["1 GPU wanted, 0 of 2 free", "again: 1"]
#: And without: the life of a container.
LIFE = """
    c void 'echo hello; id -u; test -w /dev/null && echo writable'
    keep first void >/dev/null
    in_ first echo from exec
    (in_ first sh -c 'exit 3') || echo exit code $?
    gone first
    find /sys/fs/cgroup/init/.. -mindepth 1 -type d | grep -vc /init || :
"""
LIVED = ["hello", "0", "writable", "from exec", "exit code 3", "0"]
USERNS = ("--uidmap", "0:100000:65536", "--gidmap", "0:100000:65536")
OUTERS = {"docker": (), "podman": (), "podman, a user namespace": USERNS}


@pytest.fixture(scope="module")
def bed() -> Iterator[ClientBed]:
    tar = engines_tar()
    with gpu_bed("tested", Options(gpus=4)) as made:
        nested = made.directory / "nested"
        nested.mkdir()
        shutil.copy(runtime_path(), nested / "gpurun")
        shutil.copy(made.archive(), nested / "image.tar")
        assert made.sysroot is not None
        shutil.copy(made.sysroot / "proc/devices", nested / "devices")
        for engine in ("docker", "podman"):
            imported = made.run(engine, "import", str(tar), IMAGE)
            assert imported.rc == 0, imported.text
        yield made


def inside(bed: ClientBed, outer: str, engine: str, body: str, runtime: str = "gpurun") -> Result:
    """What *body* says in a container of *outer*'s with two GPUs, after the inner *engine* has come up with *runtime*."""
    program = outer.partition(",")[0]
    known = bed.runtimes["tested"]
    run = ["podman", "--runtime", known.binary, "run"]
    if program == "docker":
        run = ["docker", "run", "--runtime", known.docker]
    store = {"docker": "/var/lib/docker", "containerd": "/var/lib/containerd", "podman": "/var/lib/containers"}[engine]
    options = ["--rm", "--privileged", "--network", "none", "--name", f"t{secrets.token_hex(4)}", *OUTERS[outer]]
    options += ["-v", f"{bed.directory}/nested:/opt/nested:ro", "-v", store, "-v", "/var/lib/containerd"]
    options += ["-e", f"R={runtime}", "-e", f"ENGINE={engine}", "-e", "NVIDIA_VISIBLE_DEVICES=free:2"]
    return bed.run(*run, *options, IMAGE, "bash", "-c", PRELUDE + ENGINES[engine] + body)


def fits(lines: list[str], wanted: list[str]) -> bool:
    return len(lines) == len(wanted) and all(map(fnmatch.fnmatchcase, lines, wanted))


CASES = [(outer, engine) for outer in OUTERS for engine in ENGINES]


@pytest.mark.sweep(3)
@pytest.mark.parametrize("outer, engine", CASES)
def test_gpus_through_both(bed: ClientBed, outer: str, engine: str) -> None:
    done = inside(bed, outer, engine, GPUS)
    assert fits(done.out.splitlines(), SAID), done.text


@pytest.mark.sweep(3)
@pytest.mark.parametrize("runtime", ["gpurun", "peer"])
@pytest.mark.parametrize("outer, engine", CASES)
def test_a_life(bed: ClientBed, outer: str, engine: str, runtime: str) -> None:
    if (runtime, engine) == ("peer", "containerd") and "cpu" not in bed.controllers:
        pytest.skip("ctr asks for a weight of the CPU, which runc refuses without the controller cpu")
    done = inside(bed, outer, engine, LIFE, runtime)
    assert done.out.splitlines() == LIVED, done.text
