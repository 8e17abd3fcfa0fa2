"""Images for tests, written with the standard library alone: layers, layouts, archives as `docker save` writes them."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import tarfile
from pathlib import Path
from typing import Any

Entry = tuple[str, str, Any]  # (name, kind, content): kinds are file, dir, link, hard, fifo, char


def layer(*entries: Entry, **more: dict[str, Any]) -> bytes:
    """A tar archive; *more* has attributes of members by name, with ``_`` for what a keyword cannot have."""
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for name, kind, content in entries:
            member = tarfile.TarInfo(name)
            member.mode, member.mtime = (0o755 if kind == "dir" else 0o644), 1_000_000
            data = b""
            if kind == "file":
                data = content.encode() if isinstance(content, str) else content
                member.size = len(data)
            elif kind == "dir":
                member.type = tarfile.DIRTYPE
            elif kind == "link":
                member.type, member.linkname = tarfile.SYMTYPE, content
            elif kind == "hard":
                member.type, member.linkname = tarfile.LNKTYPE, content
            elif kind == "fifo":
                member.type = tarfile.FIFOTYPE
            elif kind == "char":
                member.type = tarfile.CHRTYPE
                member.devmajor, member.devminor = content
            for key, value in more.get(name.replace("/", "_").replace(".", "_"), {}).items():
                setattr(member, key, value)
            archive.addfile(member, io.BytesIO(data))
    return made.getvalue()


CONFIG: dict[str, Any] = {
    "architecture": "amd64",
    "os": "linux",
    "config": {
        "Entrypoint": ["/bin/sh", "-c"],
        "Cmd": ["echo $GREETING"],
        "Env": ["GREETING=hello"],
        "WorkingDir": "/srv",
        "User": "alice",
        "Labels": {"org.example": "yes"},
        "StopSignal": "SIGINT",
    },
}


def put(directory: Path, data: bytes, kind: str) -> dict[str, Any]:
    """Add a blob; its descriptor."""
    digest = hashlib.sha256(data).hexdigest()
    blobs = directory / "blobs/sha256"
    blobs.mkdir(parents=True, exist_ok=True)
    (blobs / digest).write_bytes(data)
    return {"mediaType": f"application/vnd.oci.image.{kind}", "digest": f"sha256:{digest}", "size": len(data)}


def diff_ids(*layers: bytes) -> list[str]:
    return [f"sha256:{hashlib.sha256(data).hexdigest()}" for data in layers]


def layout(
    directory: Path,
    *layers: bytes,
    tag: str = "latest",
    config: dict[str, Any] = CONFIG,
    compress: bool = True,
    raw: bytes = b"",
) -> Path:
    """An OCI image layout with one image, or with one more; *raw* is its configuration as text, in the place of *config*."""
    made = [
        put(directory, gzip.compress(data, mtime=0), "layer.v1.tar+gzip")
        if compress
        else put(directory, data, "layer.v1.tar")
        for data in layers
    ]
    config = {"rootfs": {"type": "layers", "diff_ids": diff_ids(*layers)}, **config}
    manifest = {
        "schemaVersion": 2,
        "config": put(directory, raw or json.dumps(config).encode(), "config.v1+json"),
        "layers": made,
    }
    entry = put(directory, json.dumps(manifest).encode(), "manifest.v1+json")
    entry["platform"] = {"architecture": config.get("architecture", "amd64"), "os": "linux"}
    entry["annotations"] = {"org.opencontainers.image.ref.name": tag}
    (directory / "oci-layout").write_text('{"imageLayoutVersion": "1.0.0"}')
    index = directory / "index.json"
    before = json.loads(index.read_text())["manifests"] if index.exists() else []
    index.write_text(json.dumps({"schemaVersion": 2, "manifests": [*before, entry]}))
    return directory


def docker_save(path: Path, *layers: bytes, tag: str = "image:latest", config: dict[str, Any] = CONFIG) -> Path:
    """What `docker save` has written since its beginning."""
    config = {"rootfs": {"type": "layers", "diff_ids": diff_ids(*layers)}, **config}
    names = [f"{hashlib.sha256(data).hexdigest()}/layer.tar" for data in layers]
    manifest = [{"Config": "config.json", "RepoTags": [tag], "Layers": names}]
    with tarfile.open(path, "w") as archive:
        for name, data in (
            ("manifest.json", json.dumps(manifest).encode()),
            ("config.json", json.dumps(config).encode()),
            *zip(names, layers, strict=True),
        ):
            member = tarfile.TarInfo(name)
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    return path


USERS: tuple[Entry, ...] = (
    ("etc", "dir", None),
    ("etc/passwd", "file", "root:x:0:0::/:/bin/sh\nalice:x:1000:100::/:/bin/sh\n"),
    ("etc/group", "file", "root:x:0:\nusers:x:100:\nvideo:x:44:alice\n"),
)
