"""The image of the chart's pods: the layout that is written, and with `make test-packages` what is in it."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
WRITER = REPOSITORY / "tools/oci_image.py"


def rootfs(path: Path) -> bytes:
    with tarfile.open(path, "w") as archive:
        entry = tarfile.TarInfo("usr/bin/gpurun")
        entry.size, entry.mode = 5, 0o755
        archive.addfile(entry, io.BytesIO(b"hello"))
    return path.read_bytes()


def write(directory: Path, name: str = "localhost/gpurun:1") -> Path:
    target = directory / "image.tar"
    words = [sys.executable, WRITER, directory / "rootfs.tar", target, name, "amd64", "org.opencontainers.image.version=1"]
    subprocess.run(list(map(str, words)), check=True, env=os.environ | {"SOURCE_DATE_EPOCH": "1700000000"})
    return target


def blob(archive: tarfile.TarFile, descriptor: dict[str, object]) -> bytes:
    digest = str(descriptor["digest"])
    file = archive.extractfile(f"blobs/{digest.replace(':', '/')}")
    assert file is not None
    data = file.read()
    assert (digest, descriptor["size"]) == (f"sha256:{hashlib.sha256(data).hexdigest()}", len(data))
    return data


def test_the_layout(tmp_path: Path) -> None:
    layer = rootfs(tmp_path / "rootfs.tar")
    with tarfile.open(write(tmp_path)) as archive:
        names = archive.getnames()
        assert {"oci-layout", "index.json"} < set(names) and len(names) == 2 + 2 + 3
        assert {entry.mtime for entry in archive} == {1700000000}
        file = archive.extractfile("index.json")
        assert file is not None
        (described,) = json.load(file)["manifests"]
        assert described["annotations"] == {
            "org.opencontainers.image.ref.name": "1", "io.containerd.image.name": "localhost/gpurun:1"
        }  # fmt: skip
        manifest = json.loads(blob(archive, described))
        (packed,) = manifest["layers"]
        assert gzip.decompress(blob(archive, packed)) == layer
        config = json.loads(blob(archive, manifest["config"]))
        assert config["rootfs"]["diff_ids"] == [f"sha256:{hashlib.sha256(layer).hexdigest()}"]
        assert config["config"]["Entrypoint"] == ["/usr/bin/gpurun"] and config["created"] == "2023-11-14T22:13:20Z"


def test_the_same_layer_is_the_same_image(tmp_path: Path) -> None:
    rootfs(tmp_path / "rootfs.tar")
    first = write(tmp_path).read_bytes()
    assert write(tmp_path).read_bytes() == first
    assert sorted(path.name for path in tmp_path.iterdir()) == ["image.tar", "rootfs.tar"]


def podman(directory: Path, *words: str, check: bool = True) -> subprocess.CompletedProcess[str]:
    """Podman with a store of its own; it refuses a runroot of more than 50 characters."""
    assert len(f"{directory}/run") <= 50
    where = ("--root", f"{directory}/root", "--runroot", f"{directory}/run", "--storage-driver", "vfs")
    return subprocess.run(["podman", *where, *words], capture_output=True, text=True, check=check, timeout=600)


@pytest.mark.skipif(os.geteuid() != 0 or not shutil.which("podman"), reason="needs root and Podman")
def test_podman_takes_it(tmp_path: Path) -> None:
    rootfs(tmp_path / "rootfs.tar")
    with tempfile.TemporaryDirectory(dir="/var/tmp") as short:
        store = Path(short)
        assert "localhost/gpurun:1" in podman(store, "load", "--input", str(write(tmp_path))).stdout
        told = json.loads(podman(store, "image", "inspect", "localhost/gpurun:1").stdout)[0]
    assert told["Config"]["Entrypoint"] == ["/usr/bin/gpurun"] and told["Architecture"] == "amd64"


@pytest.mark.packages
@pytest.mark.slow
@pytest.mark.skipif(os.geteuid() != 0 or not shutil.which("mmdebstrap"), reason="needs root and mmdebstrap")
def test_the_image_itself(tmp_path: Path) -> None:
    """All that the chart's pods call is in it: each program of it begins its work there, and asks for nothing else."""
    made = subprocess.run(
        [REPOSITORY / "tools/image", "localhost/gpurun:test"], capture_output=True, text=True, timeout=1500
    )
    assert made.returncode == 0, made.stderr[-2000:]
    target = REPOSITORY / made.stdout.split(":")[0]
    tree = tmp_path / "tree"
    tree.mkdir()
    with tarfile.open(target) as archive:
        sizes = {entry.size: entry for entry in archive if entry.isfile()}
        layer = archive.extractfile(sizes[max(sizes)])
        assert layer is not None
        with (tmp_path / "layer.tar.gz").open("wb") as copy:
            shutil.copyfileobj(layer, copy)
    subprocess.run(["tar", "-xpzf", tmp_path / "layer.tar.gz", "-C", tree], check=True)
    script = r"""
        gpurun --version
        gpurun metrics --once && echo metrics: ok
        no='--kubeconfig /nonexistent'
        for what in device-plugin "dra-driver $no" "labels --oneshot --patch-node $no"; do
          gpurun kubernetes $what 2>&1 | tail -1
        done
        gpurun kubernetes install-node --oneshot --restart-mode none --engine containerd
        gpurun kubernetes uninstall-node
        for program in setpriv unshare chroot; do command -v $program; done
    """
    alone = ["unshare", "--mount", "--pid", "--fork", f"--mount-proc={tree}/proc", "chroot", str(tree)]
    run = subprocess.run([*alone, "sh", "-c", script], capture_output=True, text=True, timeout=300)
    out = run.stdout + run.stderr
    assert "metrics: ok" in out and "not installed" not in out and "Traceback" not in out, out
    assert "no GPU" in out and out.count("kubeconfig /nonexistent") == 2, out
    assert "containerd knows gpurun" in out and "/opt/gpurun/bin/gpurun is gone" in out, out
    assert all(f"/{name}" in out for name in ("setpriv", "unshare", "chroot")), out
