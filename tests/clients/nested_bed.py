"""The bed of clients in a privileged container of gpurun's: its daemons, its clients and all that they make are in there."""

from __future__ import annotations

import os
import shlex
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.clients.bed import BEDS, ClientBed, ClientBedUnavailable, _shown
from tests.clients.outers import FIRST_ID, Outer
from tests.conftest import runtime_path
from tests.native.images import debian_tar

#: What a container needs to be a machine of Docker's, Podman's and containerd's.
PACKAGES: tuple[str, ...] = (
    "docker.io",
    "containerd",
    "podman",
    "runc",
    "crun",
    "conmon",
    "tini",
    "catatonit",
    "containernetworking-plugins",
)
PACKAGES += ("iproute2", "iptables", "procps", "kmod", "uidmap", "fuse-overlayfs", "libcap2-bin", "jq", "ca-certificates")
PACKAGES += ("busybox-static", "python3-minimal", "libpython3-stdlib")
IMAGE = "test/machine:1"


def engines_tar() -> Path:
    """The root file system of such a container; skips where it cannot be made."""
    return debian_tar("machine", *PACKAGES)


class NestedBed(ClientBed):
    """As :class:`ClientBed`, in a privileged container that gpurun runs: what ``docker:dind`` is on a CI runner, and with a
    user namespace of its own what sysbox makes.  Its root file system is a Debian with the daemons."""

    def __init__(self, outer: Outer, runtimes: dict[str, str], directory: Path) -> None:
        self.outer = outer
        super().__init__(runtimes, directory)

    def _start(self, place: list[str], env: dict[str, str]) -> None:
        around = self._wrapper("outer", runtime_path(), None)
        self.archive().chmod(0o644)
        if self.outer.options:
            for path in (self.directory, *self.directory.rglob("*")):
                os.chown(path, FIRST_ID, FIRST_ID)
        run = ["docker", "run", "--runtime", around.docker]
        if self.outer.engine == "podman":
            run = ["podman", "--runtime", around.binary, "run"]
        run += ["-i", "--rm", "--privileged", "--network", "none", *self.outer.options]
        for name, value in env.items():
            run += ["-e", f"{name}={value}"]
        for shown in [path for path in _shown() if path != "/var/tmp"]:
            run += ["-v", f"{shown}:{shown}:ro"]
        run += ["-v", "/var/tmp", "-v", f"{self.directory}:{self.directory}", IMAGE, *place]
        made = f'{self.outer.engine} import {shlex.quote(str(engines_tar()))} {IMAGE} >&2 && exec "$@"'
        outer = [str(BEDS / "native-run"), "--", "sh", "-c", made, "sh", *run]
        super()._start(outer, {"NATIVE_RUNTIMES": f"{around.docker}={around.binary}"})


@contextmanager
def nested_bed(outer: Outer, runtimes: dict[str, str]) -> Iterator[NestedBed]:
    """A bed in such a container; skips where none can be made."""
    directory = Path(tempfile.mkdtemp(prefix="gpurun-clients.", dir="/var/tmp"))
    directory.chmod(0o711)
    try:
        try:
            bed = NestedBed(outer, runtimes, directory)
        except ClientBedUnavailable as e:
            pytest.skip(str(e))
        try:
            yield bed
        finally:
            bed.close()
    finally:
        shutil.rmtree(directory)
