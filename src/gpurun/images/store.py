"""Layers that bundles share: ``/var/lib/gpurun/layers``, each unpacked once.

    LAYER/             what one layer changes, over those below it, as overlayfs keeps it (whiteouts are device nodes 0:0)
    bundles/ID.json    a bundle, and the layers that are its: written before they are unpacked
    unfinished/        what is being unpacked or removed; nothing of it counts
    lock               flock(2), held while anything of this is changed

A layer's name is its chain id (image-spec config.md, "Layer ChainID"): that of the layer with all below it.  For what a
layer is depends on them: a directory of which the archive says nothing keeps the owner that a lower layer gave it, a hard
link names a file of another layer, a link in a path leads where a lower layer has laid it.  So each layer is unpacked into
an overlay of those below, and it is the kernel that writes whiteouts.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import re
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from gpurun.errors import GpurunError
from gpurun.images.layers import Limits, Unpacker
from gpurun.images.overlay import make_like, overlay_root
from gpurun.linux.libc import NR, syscall
from gpurun.record import Record

DIRECTORY = "/var/lib/gpurun/layers"
_NAME = re.compile("[0-9a-f]{64}")  # of a layer: nothing else in the directory is touched


class Layer(Record):
    """The file *archive*, whose content without compression has the digest *diff_id*."""

    archive: str
    diff_id: str


class BundleRecord(Record):
    """What the store knows of a bundle: its directory, and the names of its layers, the lowest first."""

    bundle: str
    layers: tuple[str, ...]


class Store:
    """The layers in *directory*, which is made where it is missing.  Raises OSError, and :class:`GpurunError`."""

    def __init__(self, directory: str) -> None:
        self.directory = directory
        for path, mode in ((directory, 0o700), (f"{directory}/bundles", 0o700), (self._unfinished, 0o700)):
            os.makedirs(path, mode, exist_ok=True)
        found = os.stat(directory)
        if found.st_uid != os.geteuid() or found.st_mode & 0o022:
            raise GpurunError(f"{directory}: others may write there: layers belong to who unpacks them alone (mode 0700)")

    @property
    def _unfinished(self) -> str:
        return f"{self.directory}/unfinished"

    def path(self, name: str) -> str:
        """The directory of a layer."""
        return f"{self.directory}/{name}"

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Nobody else changes anything in the block; what one that was killed had not finished is taken away."""
        fd = os.open(f"{self.directory}/lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX)
            for entry in os.scandir(self._unfinished):
                shutil.rmtree(entry.path) if entry.is_dir(follow_symlinks=False) else os.unlink(entry.path)
            yield
        finally:
            os.close(fd)

    def unpack(self, layers: Sequence[Layer], limits: Limits) -> int:
        """Have each of *layers*, the lowest first, under its name; within :meth:`locked`.

        Returns how many device nodes were left out.  Raises :class:`GpurunError`, and NoOverlay where that is what fails.
        """
        names = chain_ids(layers)
        unpacker: Unpacker | None = None
        try:
            for number, (layer, name) in enumerate(zip(layers, names, strict=True)):
                if os.path.isdir(self.path(name)):
                    continue
                below = [self.path(one) for one in names[:number]]
                place = tempfile.mkdtemp(dir=self._unfinished)
                made, work = f"{place}/layer", f"{place}/work"
                os.mkdir(work)
                with self._root_over(below, made, work) as root:
                    if unpacker is None:
                        unpacker = Unpacker(root, limits)
                    else:
                        unpacker.move(root)
                    unpacker.add(layer.archive, layer.diff_id)
                _sync(made)
                os.rename(made, self.path(name))
                shutil.rmtree(place)
            return unpacker.skipped if unpacker is not None else 0
        finally:
            if unpacker is not None:
                unpacker.close()

    @contextmanager
    def _root_over(self, below: list[str], made: str, work: str) -> Iterator[str]:
        if not below:
            os.mkdir(made, 0o755)
            yield made
            return
        make_like(made, below[-1])
        with overlay_root(below, made, work) as root:
            yield root

    def note(self, identity: str, record: BundleRecord) -> None:
        """Write down that the layers of *record* are in use; within :meth:`locked`, before they are unpacked."""
        text = json.dumps({"bundle": record.bundle, "layers": record.layers})
        temporary = f"{self._unfinished}/{identity}"
        with open(temporary, "w", encoding="utf-8", errors="surrogateescape") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.rename(temporary, self._note(identity))

    def noted(self, identity: str) -> BundleRecord | None:
        """What is written down under *identity*; None when nothing is.  Raises :class:`GpurunError`."""
        path = self._note(identity)
        try:
            with open(path, encoding="utf-8", errors="surrogateescape") as file:
                made: Any = json.load(file)
            return BundleRecord(str(made["bundle"]), tuple([str(name) for name in made["layers"]]))
        except FileNotFoundError:
            return None
        except (ValueError, KeyError, TypeError):
            raise GpurunError(f"{path} is damaged: no layer can be removed while it says nothing of its own") from None

    def _note(self, identity: str) -> str:
        return f"{self.directory}/bundles/{identity}.json"

    def identities(self) -> list[str]:
        """The bundles that are written down."""
        return sorted(n.removesuffix(".json") for n in os.listdir(f"{self.directory}/bundles") if n.endswith(".json"))

    def forget(self, identity: str) -> None:
        """Take back :meth:`note`, and the layers that no other bundle has; within :meth:`locked`."""
        if identity:
            try:
                os.unlink(self._note(identity))
            except FileNotFoundError:
                pass  # killed after it, at an earlier time
        used = {name for one in self.identities() for name in (self.noted(one) or BundleRecord("", ())).layers}
        for name in os.listdir(self.directory):
            if name in used or not _NAME.fullmatch(name):
                continue
            unused = f"{self._unfinished}/{name}"
            os.rename(self.path(name), unused)  # so that nothing that is half there has a layer's name
            shutil.rmtree(unused)


def chain_ids(layers: Sequence[Layer]) -> tuple[str, ...]:
    """The name of each of *layers*: the digits of its chain id."""
    names: list[str] = []
    for layer in layers:
        above = layer.diff_id.removeprefix("sha256:")
        names.append(hashlib.sha256(f"sha256:{names[-1]} sha256:{above}".encode()).hexdigest() if names else above)
    return tuple(names)


def _sync(directory: str) -> None:
    """All of the file system is on the disk: a name that counts must not outlive a power failure without its content."""
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        syscall(NR["syncfs"], fd)
    finally:
        os.close(fd)
