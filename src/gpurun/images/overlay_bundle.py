"""A bundle whose rootfs is an overlay: ``overlay/upper`` in it has what its containers change, the layers are the store's.

The overlay is mounted at ``rootfs`` until the bundle is removed, or the machine is started anew.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
import stat
from collections.abc import Sequence

from gpurun.errors import GpurunError, Step, oserror_text
from gpurun.images.layers import Limits
from gpurun.images.overlay import (
    NoOverlay,
    check_mounted_nowhere_else,
    check_overlay,
    detached_overlay,
    make_like,
    mounted_at,
)
from gpurun.images.store import BundleRecord, Layer, Store, chain_ids
from gpurun.linux.fs import O_DIRECTORY, O_NOFOLLOW, O_PATH
from gpurun.linux.mount import MNT_DETACH, UMOUNT_NOFOLLOW, move_mount, umount2
from gpurun.linux.mountinfo import mounts
from gpurun.record import Record


class _Overlay(Record):
    """``overlay/overlay.json`` of a bundle: which store has its layers, and under which identity they are written down."""

    store: str
    id: str


def make_overlay(directory: str, layers: Sequence[Layer], store_directory: str, limits: Limits) -> int:
    """Mount the overlay of *layers*, the lowest first, at ``rootfs`` of the bundle *directory*, which is new.

    Returns how many device nodes were left out.  Raises NoOverlay, :class:`GpurunError` and OSError; nothing is left
    mounted then, or written down in the store.
    """
    if os.geteuid() != 0:
        raise NoOverlay("it takes root")
    if not layers:
        raise NoOverlay("the image has no layers")
    try:
        store = Store(store_directory)
    except OSError as e:
        raise NoOverlay(f"no layers can be kept: {oserror_text(e)}") from None
    place = f"{directory}/overlay"
    os.mkdir(place, 0o700)
    with store.locked():  # whoever comes to the store next takes away what lies in this directory
        check_overlay(f"{store.directory}/unfinished", place)
    identity = secrets.token_hex(16)
    with open(f"{place}/overlay.json", "w", encoding="utf-8", errors="surrogateescape") as file:
        json.dump({"store": store.directory, "id": identity}, file)
    names = chain_ids(layers)
    try:
        with store.locked():
            store.note(identity, BundleRecord(directory, names))
            skipped = store.unpack(layers, limits)
        make_like(f"{place}/upper", store.path(names[-1]))
        os.mkdir(f"{place}/work", 0o700)
        os.mkdir(f"{directory}/rootfs", 0o755)
        _mount(directory, [store.path(name) for name in names])
    except BaseException:
        undo_overlay(directory)
        raise
    return skipped


def undo_overlay(directory: str) -> None:
    """Take back what :func:`make_overlay` has made, but for the files of the bundle."""
    made = _read(directory)
    for _ in mounted_at(f"{directory}/rootfs"):
        umount2(f"{directory}/rootfs", MNT_DETACH | UMOUNT_NOFOLLOW)
    if made is not None:
        store = Store(made.store)
        with store.locked():
            store.forget(made.id)


def mount_bundle(directory: str) -> None:
    """Mount the overlay of the bundle *directory* again, after the machine was started anew; raises :class:`GpurunError`."""
    made = _read(directory)
    if made is None:
        raise GpurunError(f"{directory} is no bundle that was made with --overlay")
    if mounted_at(f"{directory}/rootfs"):
        return
    store = Store(made.store)
    with store.locked():
        noted = store.noted(made.id)
        missing = [name for name in noted.layers if not os.path.isdir(store.path(name))] if noted is not None else [made.id]
        if noted is None or missing:
            raise GpurunError(f"{directory}: its layers are not in {made.store} any more: make the bundle anew")
        if noted.bundle != directory:
            if _is(noted.bundle, made):
                raise GpurunError(f"{directory} is a copy of {noted.bundle}: make a bundle of the image instead")
            store.note(made.id, BundleRecord(directory, noted.layers))  # it was moved
        _mount(directory, [store.path(name) for name in noted.layers])


def remove_bundle(directory: str, store_directory: str) -> None:
    """Unmount and remove the bundle *directory*, and the layers that no other has; raises :class:`GpurunError`.

    One that was made or removed in part, by a process that was killed, is taken away as well, as is what the store at
    *store_directory* has of one whose directory is gone.
    """
    made = _read(directory)
    path = f"{directory}/rootfs"
    if made is None and not os.path.isdir(store_directory):
        raise _no_bundle(directory)
    store = Store(made.store if made is not None else store_directory)
    known = [one for one in store.identities() if (store.noted(one) or BundleRecord("", ())).bundle == directory]
    if made is None and not known:
        raise _no_bundle(directory)
    for device in mounted_at(path):
        check_mounted_nowhere_else(path, device)
    others = [entry.point for entry in mounts() if entry.point.startswith(f"{directory}/") and entry.point != path]
    if others:
        raise GpurunError(f"{others[0]} is mounted in the bundle: unmount it first")
    for _ in mounted_at(path):
        try:
            umount2(path, UMOUNT_NOFOLLOW)
        except OSError as e:
            raise GpurunError(f"{path} is in use: a process works there, or has a file open: {oserror_text(e)}") from None
    if os.path.isdir(directory):
        shutil.rmtree(directory)
    with store.locked():
        noted = store.noted(made.id) if made is not None else None
        if made is not None and (noted is None or noted.bundle == directory or not _is(noted.bundle, made)):
            known.append(made.id)
        for one in dict.fromkeys(known):
            store.forget(one)


def _no_bundle(directory: str) -> GpurunError:
    return GpurunError(f"{directory} is no bundle that was made with --overlay: `rm -r` removes one that is unpacked")


def _is(directory: str, made: _Overlay) -> bool:
    return _read(directory) == made


def _read(directory: str) -> _Overlay | None:
    """What the bundle says of its overlay; None where it has none.  Raises :class:`GpurunError`."""
    path = f"{directory}/overlay/overlay.json"
    try:
        found = os.stat(directory)
        with open(path, encoding="utf-8", errors="surrogateescape") as file:
            made = json.load(file)
        store, identity = str(made["store"]), str(made["id"])
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as e:
        raise GpurunError(oserror_text(e)) from None
    except (ValueError, KeyError, TypeError):
        store = identity = ""
    if found.st_uid != os.geteuid() or stat.S_IMODE(found.st_mode) & 0o022:
        raise GpurunError(f"{directory}: others may write there: what it says of its layers is not believed")
    if not store.startswith("/") or not identity.isalnum():
        raise GpurunError(f"{path} is damaged")
    return _Overlay(store, identity)


def _mount(directory: str, lower: list[str]) -> None:
    tree = detached_overlay(lower, f"{directory}/overlay/upper", f"{directory}/overlay/work")
    try:
        with Step("mount the overlay at", f"{directory}/rootfs"):
            target = os.open(f"{directory}/rootfs", O_PATH | O_DIRECTORY | O_NOFOLLOW | os.O_CLOEXEC)
            try:
                move_mount(tree, target)
            finally:
                os.close(target)
    finally:
        os.close(tree)
