"""Podman's operations and Docker's as a user without root, with four runtimes: gpurun and gpurun-fast as crun and runc."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator
from typing import NamedTuple

import pytest

from tests.clients.bed import ClientBed, ClientBedUnavailable, abilities, make_bed, program, versions
from tests.clients.beside import hold_to
from tests.clients.operation import Operation, rootless_operations
from tests.clients.report import VERSIONS
from tests.clients.test_operations import IN_GUEST
from tests.conftest import REPOSITORY

pytestmark = [pytest.mark.clients, pytest.mark.slow, pytest.mark.native]

UID = 4343
#: The user, with ids of its own to give away, a home on a tmpfs, and the image.
SETUP = f"""
set -e
RL=/run/rootless
mkdir -p $RL/home $RL/runtime
echo 'tester:x:{UID}:{UID}::/run/rootless/home:/bin/sh' >>/etc/passwd
cp /etc/group $RL/group
echo 'tester:x:{UID}:' >>$RL/group
mount --bind $RL/group /etc/group
echo 'tester:500000:65536' | tee -a /etc/subuid >>/etc/subgid
sed 's/^log_driver.*/&\\ndefault_ulimits = []\\npids_limit = 0/' "$CONTAINERS_CONF" >$RL/containers.conf
chown {UID}:{UID} $RL/home $RL/runtime
chmod 700 $RL/runtime
# The host's is root's alone; a user's network goes through it.
mknod -m 666 $RL/tun c 10 200
mkdir -p /dev/net
[ ! -e /dev/net/tun ] || mount --bind $RL/tun /dev/net/tun
# As on a host whose cgroup is delegated to the user.
chown {UID}:{UID} /sys/fs/cgroup /sys/fs/cgroup/cgroup.{{procs,threads,subtree_control}}
# Podman binds it into containers that share the host's ipc namespace.
mkdir -p /dev/mqueue
mountpoint -q /dev/mqueue || mount -t mqueue mqueue /dev/mqueue
mount --make-rshared /
"""
#: Its daemon; rootlesskit covers /run, so what runc is to follow is elsewhere.  It shows what /run has by then, which is to
#: be the place of the operations' directories.
DOCKER = """
set -e
command mkdir -p $RL/home/.config/docker $DATA /run/t
echo "$CONFIG" >$RL/home/.config/docker/daemon.json
chown -R 4343:4343 $RL/home/.config $DATA
user DOCKERD_ROOTLESS_ROOTLESSKIT_NET=slirp4netns bash "$SCRIPT" --data-root $DATA \
  </dev/null >$DATA.log 2>&1 &
export DOCKER_HOST=unix://$RL/runtime/docker.sock
for i in {1..300}; do ! docker version >/dev/null 2>&1 || break; kill -0 $!; sleep .2; done
docker load -qi $ARCHIVE
"""
SCRIPT = "/usr/share/docker.io/contrib/dockerd-rootless.sh"  # Debian's
OPERATIONS = [pytest.param(o, marks=[pytest.mark.short] if o.short else []) for o in rootless_operations()]


class Rootless(NamedTuple):
    bed: ClientBed
    names: tuple[str, ...]  # the runtimes of the bed
    docker: bool  # whether there is a rootless Docker


def set_up(bed: ClientBed) -> bool:
    """The user, the image and the daemon in *bed*; whether there is a rootless Docker."""
    for name in bed.runtimes:  # a wrapper is the user's, and writes there
        calls = bed.directory / name / "calls"
        calls.touch()
        calls.chmod(0o666)
    done = bed.run("bash", "-c", SETUP)
    assert done.rc == 0, done.text
    bed.archive().chmod(0o644)
    load = f"{rootless_operations()[0].prelude}\ntrap EXIT\npodman load -qi {bed.archive()}"
    loaded = bed.run("bash", "-c", load)
    assert loaded.rc == 0, loaded.text
    script = program("dockerd-rootless.sh") or SCRIPT
    docker = bool(program("rootlesskit") and program("slirp4netns") and os.access(script, os.R_OK))
    if docker:
        known = {r.docker: {"path": r.binary} for r in bed.runtimes.values()}
        config = {"runtimes": known, "exec-opts": ["native.cgroupdriver=cgroupfs"], "storage-driver": "vfs"}
        env = {
            "CONFIG": json.dumps(config),
            "SCRIPT": script,
            "DATA": f"{bed.directory}/docker",
            "ARCHIVE": str(bed.archive()),
        }
        started = bed.run("bash", "-c", f"{rootless_operations()[0].prelude}\ntrap EXIT\n{DOCKER}", **env)
        assert started.rc == 0, started.text
    return docker


@pytest.fixture(scope="module")
def rootless(request: pytest.FixtureRequest) -> Iterator[Rootless]:
    if IN_GUEST or not program("newuidmap"):
        pytest.skip("newuidmap (package uidmap) is not here")
    paths = {"gpurun": str(REPOSITORY / "build/gpurun"), "fast": str(REPOSITORY / "build/gpurun-fast")}
    paths |= {"crun": program("crun"), "peer": program("runc")}
    found = {name: path for name, path in paths.items() if path and os.access(path, os.X_OK)}
    try:
        bed = make_bed(found)
    except ClientBedUnavailable as e:
        pytest.skip(str(e))
    try:
        request.config.stash[VERSIONS] = versions(bed)
        yield Rootless(bed, tuple(found), set_up(bed))
    finally:
        bed.close()
        shutil.rmtree(bed.directory)


@pytest.mark.sweep(12)
@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda o: f"{o.client}: {o.name}")
def test_operation(operation: Operation, rootless: Rootless, record_property: Callable[[str, object], None]) -> None:
    bed = rootless.bed
    if reason := operation.skipped(abilities(bed), IN_GUEST):
        pytest.skip(reason)
    if operation.client == "rootless-docker" and not rootless.docker:
        pytest.skip("rootlesskit or slirp4netns is not here")
    hold_to(bed, operation, rootless.names, record_property)
