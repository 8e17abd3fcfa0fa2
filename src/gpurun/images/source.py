"""Where an image is: an OCI image layout (a directory or an archive of one), what `docker save` writes, or a bare root.

Reference: image-spec image-layout.md, image-index.md, manifest.md; the archive of `docker save` has a ``manifest.json``.
"""

from __future__ import annotations

import hashlib
import json
import os
import tarfile
import tempfile
from pathlib import Path
from typing import IO, Any

from gpurun.errors import ConfigError, GpurunError
from gpurun.images.compression import decompressed
from gpurun.record import Record

_MAX_DOCUMENT = 16 << 20
_LAYERS = ("rootfs.diff", "image.layer", ".tar")  # parts of the media types of layers
_REF_NAME = "org.opencontainers.image.ref.name"


class Image(Record):
    """An image: *config* is its configuration (image-spec config.md), *layers* are files, the lowest first.

    A layer is a tar archive, compressed or not; *root* is a directory that is the root itself, then there are no layers.
    """

    config: dict[str, Any]
    layers: tuple[str, ...]
    root: str = ""


class _Files:
    """The files of a layout or an archive by name; those of an archive are copied to *scratch* when they are asked for."""

    def __init__(self, source: Path, scratch: Path) -> None:
        self._source, self._scratch, self._tar = source, scratch, None if source.is_dir() else _open_tar(source, scratch)

    def has(self, name: str) -> bool:
        if self._tar is not None:
            return any(member.name.removeprefix("./") == name for member in self._tar.getmembers())
        return (self._source / name).is_file()

    def file(self, name: str) -> Path:
        """A file with what is there under *name*; raises :class:`GpurunError`.  No link leads out of the source."""
        if name.startswith("/") or ".." in name.split("/"):
            raise GpurunError(f'{self._source}: the image names the file "{name}", which is outside of it')
        if self._tar is None:
            path = self._source / name
            if path.is_symlink() or not path.is_file() or not path.resolve().is_relative_to(self._source.resolve()):
                raise GpurunError(f"{self._source}: {name} is missing, or is no regular file of it")
            return path
        member = next((m for m in self._tar.getmembers() if m.name.removeprefix("./") == name), None)
        if member is not None and member.issym():  # older archives of docker save have links for layers that they share
            target = os.path.normpath(f"{os.path.dirname(name)}/{member.linkname}")
            member = next((m for m in self._tar.getmembers() if m.name.removeprefix("./") == target), None)
        taken = self._tar.extractfile(member) if member is not None and member.isreg() else None
        if taken is None:
            raise GpurunError(f"{self._source}: {name} is missing, or is no regular file of it")
        with taken, tempfile.NamedTemporaryFile(dir=self._scratch, delete=False) as copy:
            while piece := taken.read(1 << 20):
                copy.write(piece)
        return Path(copy.name)

    def document(self, name: str) -> Any:
        return _json(self.file(name), name)

    def blob(self, digest: Any, size: Any = None) -> Path:
        """The content of that *digest*, which is computed and compared, as is its *size* in bytes."""
        algorithm, colon, value = str(digest).partition(":")
        lengths = {"sha256": 64, "sha512": 128}
        if not colon or len(value) != lengths.get(algorithm) or not set(value) <= set("0123456789abcdef"):
            raise GpurunError(f'{self._source}: "{digest}" is no digest of sha256 or sha512')
        path = self.file(f"blobs/{algorithm}/{value}")
        if isinstance(size, int) and path.stat().st_size != size:
            raise GpurunError(f"{self._source}: {digest} has {path.stat().st_size} bytes, {size} are said to be")
        check_digest(path, algorithm, value, f"{self._source}: {digest}")
        return path


def check_digest(path: Path, algorithm: str, value: str, what: str) -> None:
    """Raise :class:`GpurunError` unless the file has that digest."""
    made = hashlib.new(algorithm)
    with path.open("rb") as data:
        while piece := data.read(1 << 20):
            made.update(piece)
    if made.hexdigest() != value:
        raise GpurunError(f"{what}: the content has another digest: it is damaged, or not what it says")


def read_image(source: Path, scratch: Path, tag: str, architecture: str) -> Image:
    """The image of *source*; *tag* chooses among several, *architecture* (Go's name) among those of an index.

    *scratch* is an empty directory for what must be copied.  Raises :class:`GpurunError`.
    """
    if not source.exists():
        raise GpurunError(f"{source}: no such file or directory")
    if source.is_dir() and not (source / "oci-layout").exists() and not (source / "manifest.json").exists():
        return Image({}, (), str(source.resolve()))
    files = _Files(source, scratch)
    if files.has("oci-layout") and files.has("index.json"):
        return _of_index(files, files.document("index.json"), tag, architecture, str(source))
    if files.has("manifest.json"):
        return _of_docker(files, tag, str(source))
    return Image({}, (str(source),))


def _of_index(files: _Files, index: Any, tag: str, architecture: str, where: str) -> Image:
    found = [entry for entry in _entries(index, where) if not tag or _called(entry, tag)]
    if not found:
        names = ", ".join(filter(None, [_name(entry) for entry in _entries(index, where)])) or "none has a name"
        raise GpurunError(f'{where}: no image is called "{tag}" there: {names}')
    if len({entry.get("digest") for entry in found}) > 1 and not tag:
        fitting = [entry for entry in found if _fits(entry, architecture)]
        if not fitting or len({_name(entry) for entry in found}) > 1:
            names = ", ".join(filter(None, [_name(entry) for entry in found]))
            raise GpurunError(f"{where}: there are several images, say which with --tag{f': {names}' if names else ''}")
        found = fitting
    for _ in range(4):  # an index may be of indexes
        entry = next((one for one in found if _fits(one, architecture)), None)
        if entry is None:
            there = ", ".join(sorted({str((one.get("platform") or {}).get("architecture")) for one in found}))
            raise GpurunError(f"{where}: no image for linux/{architecture} is there, only for {there}")
        document = _json(files.blob(entry.get("digest"), entry.get("size")), where)
        if "manifests" not in document:
            return _of_manifest(files, document, where)
        found = _entries(document, where)
    raise GpurunError(f"{where}: an index of indexes of indexes is no image")


def _entries(index: Any, where: str) -> list[dict[str, Any]]:
    entries = index.get("manifests") if isinstance(index, dict) else None
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        raise GpurunError(f"{where}: its index lists no manifests")
    return entries


def _name(entry: dict[str, Any]) -> str:
    return str((entry.get("annotations") or {}).get(_REF_NAME, ""))


def _called(entry: dict[str, Any], tag: str) -> bool:
    names = {str(value) for value in (entry.get("annotations") or {}).values()}
    return tag in names or any(name.endswith((f":{tag}", f"/{tag}")) for name in names)


def _fits(entry: dict[str, Any], architecture: str) -> bool:
    platform = entry.get("platform") or {}
    return bool(platform.get("architecture", architecture) == architecture and platform.get("os", "linux") == "linux")


def _of_manifest(files: _Files, manifest: dict[str, Any], where: str) -> Image:
    config, layers = manifest.get("config"), manifest.get("layers")
    if not isinstance(config, dict) or not isinstance(layers, list):
        raise GpurunError(f"{where}: its manifest names no config and no layers")
    for layer in layers:
        if not isinstance(layer, dict) or not any(part in str(layer.get("mediaType")) for part in _LAYERS):
            raise GpurunError(f"{where}: this is no image of a container: it has a {_kind(layer)}")
    made = _json(files.blob(config.get("digest"), config.get("size")), where)
    return Image(made, tuple([str(files.blob(layer.get("digest"), layer.get("size"))) for layer in layers]))


def _kind(layer: Any) -> str:
    return str(layer.get("mediaType") if isinstance(layer, dict) else layer)[:100]


def _of_docker(files: _Files, tag: str, where: str) -> Image:
    images = files.document("manifest.json")
    if not isinstance(images, list) or not all(isinstance(image, dict) for image in images):
        raise GpurunError(f"{where}: manifest.json lists no images")
    tags = [str(name) for image in images for name in image.get("RepoTags") or ()]
    found = [
        i for i in images if not tag or any(n == tag or n.endswith((f":{tag}", f"/{tag}")) for n in i.get("RepoTags") or ())
    ]
    if len(found) != 1:
        what = f'no image is called "{tag}" there' if not found else "there are several images, say which with --tag"
        raise GpurunError(f"{where}: {what}: {', '.join(tags) or 'none has a name'}")
    layers = found[0].get("Layers")
    if not isinstance(layers, list) or not isinstance(found[0].get("Config"), str):
        raise GpurunError(f"{where}: manifest.json names no config and no layers")
    config = files.document(found[0]["Config"])
    return Image(config if isinstance(config, dict) else {}, tuple([str(files.file(str(name))) for name in layers]))


def _json(path: Path, where: str) -> Any:
    if path.stat().st_size > _MAX_DOCUMENT:
        raise ConfigError(where, f"{path.name} is larger than {_MAX_DOCUMENT >> 20} MiB")
    try:
        return json.loads(path.read_bytes())
    except (ValueError, RecursionError) as e:
        raise ConfigError(where, f"{path.name} is not valid JSON: {e}") from None


def _open_tar(source: Path, scratch: Path) -> tarfile.TarFile:
    """The archive, whose members can be read in any order: one that is compressed is copied to *scratch* without."""
    opened: IO[bytes] = source.open("rb")
    stream = decompressed(opened, str(source))
    if stream is not opened:
        with tempfile.NamedTemporaryFile(dir=scratch, delete=False) as copy:
            while piece := stream.read(1 << 20):
                copy.write(piece)
        stream.close()
        opened = open(copy.name, "rb")
    try:
        return tarfile.open(fileobj=opened, mode="r:")
    except tarfile.TarError as e:
        raise GpurunError(f"{source}: is no tar archive: {e}") from None
