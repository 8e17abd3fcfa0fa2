"""What a GPU container leaves in the images of Docker and containerd: work done in it, and nothing of the driver's."""

from __future__ import annotations

import os
import secrets
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.clients.bed import IMAGE, ClientBed, ClientBedUnavailable
from tests.conftest import runtime_path
from tests.native.images import debian_tar
from tests.simdriver import Options, make

pytestmark = [pytest.mark.native, pytest.mark.clients, pytest.mark.gpurun_only]

DEBIAN = "test/debian:1"
ASKING = ("--env", "NVIDIA_VISIBLE_DEVICES=all")
DOCKER = ("docker", "run", "--runtime", "test", "--security-opt", "seccomp=unconfined")


@pytest.fixture(scope="module")
def clients() -> Iterator[ClientBed]:
    path = runtime_path()
    if not os.access(path, os.X_OK):
        pytest.fail(f"{path} is missing: run `make build` first, or set RUNTIME")
    tar = debian_tar()
    with tempfile.TemporaryDirectory(prefix="gpurun-clients.", dir="/var/tmp") as name:
        try:
            bed = ClientBed({"test": path}, Path(name), make(Path(name) / "driver", Options(gpus=2)).path)
        except ClientBedUnavailable as e:
            pytest.skip(str(e))
        imported = bed.run("docker", "import", shutil.copy(tar, name), DEBIAN)
        assert imported.rc == 0, imported.text
        yield bed
        bed.close()


def test_an_image_committed_from_a_gpu_container_has_nothing_of_the_driver(clients: ClientBed) -> None:
    name = f"t{secrets.token_hex(4)}"
    work = "touch /etc/made && ldconfig && ldconfig -p | grep -c 'libcuda.so.1 '"
    done = clients.run(*DOCKER, "--name", name, *ASKING, DEBIAN, "sh", "-c", work)
    assert done.rc == 0 and done.out.strip() == "1", done.text
    changed = clients.run("docker", "diff", name).out
    assert "A /etc/made" in changed and "nvidia" not in changed and "gpurun" not in changed, changed
    kept = clients.run("docker", "commit", name, "test/kept:1")
    assert kept.rc == 0, kept.text
    look = "find / -xdev ( -name *nvidia* -o -name libcuda* -o -name *gpurun* ) -not -path /proc/*"
    # The variable is in the image's configuration now, as any other would be.
    found = clients.run(*DOCKER, "--rm", "--env", "NVIDIA_VISIBLE_DEVICES=void", "test/kept:1", *look.split())
    assert (found.rc, found.out) == (0, ""), found.text
    again = clients.run(*DOCKER, "--rm", *ASKING, "test/kept:1", "sh", "-c", "ldconfig -p | grep -c 'libcuda.so.1 '")
    assert again.out.strip() in ("1", "2"), again.text
    assert clients.run("docker", "rm", name).rc == 0


def test_a_read_only_container_of_docker(clients: ClientBed) -> None:
    done = clients.run(*DOCKER, "--rm", "--read-only", *ASKING, DEBIAN, "sh", "-c", "ldconfig -p | grep -c 'libcuda.so.1 '")
    assert done.out.strip() == "1", done.text


def test_a_read_only_snapshot_of_containerd(clients: ClientBed) -> None:
    """``ctr run --read-only`` gives a file system that nobody can make a mount point in."""
    look = "/usr/bin/nvidia-smi -L; touch /usr/bin/x"
    ctr = ("ctr", "run", "--rm", "--read-only", "--runc-binary", clients.runtimes["test"].binary, *ASKING)
    done = clients.run(*ctr, f"docker.io/{IMAGE}", f"t{secrets.token_hex(4)}", "sh", "-c", look)
    assert "GPU 1:" in done.out and "Read-only file system" in done.err, done.text
