"""tools/oci_image.py ROOTFS.tar IMAGE.tar NAME ARCHITECTURE [KEY=VALUE...]: an OCI image of one layer, its layout as a tar.

containerd (`ctr images import`), Podman and Docker load it, skopeo copies it to a registry. Two images of the same layer are
the same file: times are SOURCE_DATE_EPOCH's, 0 without it. KEY=VALUE are labels. The image specification is
https://github.com/opencontainers/image-spec.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import os
import sys
import tarfile
import tempfile
import time
from typing import IO, Any

PREFIX = "application/vnd.oci.image"
ENTRY = ["/usr/bin/gpurun"]
PATH = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_CHUNK = 1 << 20


def main(arguments: list[str]) -> None:
    rootfs, target, name, architecture, *labels = arguments
    epoch = int(os.environ.get("SOURCE_DATE_EPOCH", "0"))
    directory = os.path.dirname(os.path.abspath(target))
    with tempfile.TemporaryFile(dir=directory) as layer, open(rootfs, "rb") as source:
        diff_id = compress(source, layer)
        made = f"{target}.{os.getpid()}"
        try:
            with tarfile.open(made, "w", format=tarfile.PAX_FORMAT) as archive:
                write(archive, layer, diff_id, name, architecture, dict(word.split("=", 1) for word in labels), epoch)
            os.rename(made, target)
        finally:
            if os.path.exists(made):
                os.unlink(made)


def compress(source: IO[bytes], layer: IO[bytes]) -> str:
    """Write *source* into *layer* with gzip; the digest of what was read."""
    digest = hashlib.sha256()
    with gzip.GzipFile(filename="", mode="wb", fileobj=layer, mtime=0, compresslevel=6) as packed:
        while data := source.read(_CHUNK):
            digest.update(data)
            packed.write(data)
    return f"sha256:{digest.hexdigest()}"


def write(
    archive: tarfile.TarFile,
    layer: IO[bytes],
    diff_id: str,
    name: str,
    architecture: str,
    labels: dict[str, str],
    epoch: int,
) -> None:
    """Write the layout: the layer, the image's configuration, its manifest and the index."""
    created = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(epoch))
    config = {
        "created": created, "architecture": architecture, "os": "linux",
        "config": {"Env": [PATH], "Entrypoint": ENTRY, "Cmd": ["--help"], "Labels": labels},
        "rootfs": {"type": "layers", "diff_ids": [diff_id]},
        "history": [{"created": created, "created_by": "make image"}],
    }  # fmt: skip
    directories(archive, epoch)
    packed = blob(archive, layer, epoch) | {"mediaType": f"{PREFIX}.layer.v1.tar+gzip"}
    manifest = {
        "schemaVersion": 2, "mediaType": f"{PREFIX}.manifest.v1+json",
        "config": document(archive, config, epoch) | {"mediaType": f"{PREFIX}.config.v1+json"}, "layers": [packed],
        "annotations": labels,
    }  # fmt: skip
    described = document(archive, manifest, epoch) | {
        "mediaType": f"{PREFIX}.manifest.v1+json",
        "platform": {"architecture": architecture, "os": "linux"},
        "annotations": {"org.opencontainers.image.ref.name": name.rpartition(":")[2], "io.containerd.image.name": name},
    }
    index = {"schemaVersion": 2, "mediaType": f"{PREFIX}.index.v1+json", "manifests": [described]}
    add(archive, "index.json", io.BytesIO(text(index)), len(text(index)), epoch)
    layout = text({"imageLayoutVersion": "1.0.0"})
    add(archive, "oci-layout", io.BytesIO(layout), len(layout), epoch)


def document(archive: tarfile.TarFile, value: Any, epoch: int) -> dict[str, Any]:
    return blob(archive, io.BytesIO(text(value)), epoch)


def blob(archive: tarfile.TarFile, file: IO[bytes], epoch: int) -> dict[str, Any]:
    """Add *file* under its digest; its descriptor without a media type."""
    file.seek(0)
    digest, size = hashlib.sha256(), 0
    while data := file.read(_CHUNK):
        digest.update(data)
        size += len(data)
    file.seek(0)
    add(archive, f"blobs/sha256/{digest.hexdigest()}", file, size, epoch)
    return {"digest": f"sha256:{digest.hexdigest()}", "size": size}


def add(archive: tarfile.TarFile, name: str, file: IO[bytes], size: int, epoch: int) -> None:
    entry = tarfile.TarInfo(name)
    entry.size, entry.mtime, entry.mode = size, epoch, 0o644
    archive.addfile(entry, file)


def directories(archive: tarfile.TarFile, epoch: int) -> None:
    for name in ("blobs", "blobs/sha256"):
        entry = tarfile.TarInfo(name)
        entry.type, entry.mtime, entry.mode = tarfile.DIRTYPE, epoch, 0o755
        archive.addfile(entry)


def text(value: Any) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()


if __name__ == "__main__":
    main(sys.argv[1:])
