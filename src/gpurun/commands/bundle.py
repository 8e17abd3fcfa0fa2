"""bundle: make a bundle of an image that is here as files."""

from __future__ import annotations

import json
import os
import posix
import shutil
import tempfile
from pathlib import Path

from gpurun import log
from gpurun.engine.caller.device_edits import own_environment
from gpurun.engine.caller.site_config import read_leases, site_path
from gpurun.errors import GpurunError, UsageError, oserror_text, shown
from gpurun.gpu.request.settings import site_settings
from gpurun.images.config import SiteLabels, container_config, diff_ids, reader
from gpurun.images.layers import Limits, Unpacker, diff_id_of
from gpurun.images.overlay import NoOverlay
from gpurun.images.overlay_bundle import make_overlay, mount_bundle, remove_bundle, undo_overlay
from gpurun.images.source import Image, read_image
from gpurun.images.store import DIRECTORY, Layer

TYPE_CHECKING = False
if TYPE_CHECKING:
    from gpurun.invocation import Invocation

#: So many of the labels that are left out are named.
_NAMED = 8
_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64", "riscv64": "riscv64", "ppc64le": "ppc64le", "s390x": "s390x"}


def bundle(invocation: Invocation) -> int:
    """``bundle SOURCE -o DIR [COMMAND...]``: all of DIR is made, or nothing is left of it.  --mount DIR, --remove DIR."""
    source, *command = invocation.args
    store = os.path.abspath(invocation.option("layers") or DIRECTORY)
    output = invocation.option("output")
    if invocation.flag("mount") or invocation.flag("remove"):
        return _existing(invocation, os.path.realpath(source), store)
    if not output:
        raise UsageError("bundle: where it is to be is not said: bundle SOURCE --output DIR")
    size = invocation.option("max-size")
    limits = Limits() if not size else Limits(bytes=_bytes(size))
    parent, name = os.path.split(os.path.abspath(output))
    directory = Path(os.path.realpath(parent), name)  # as the kernel calls it, for an overlay is mounted there
    machine = posix.uname().machine
    architecture = invocation.option("architecture") or _ARCHITECTURES.get(machine, machine)
    try:
        # Only for root: programs of the image may have set-user-ID bits, which count for whoever can reach them.
        directory.mkdir(mode=0o700)
    except FileExistsError:
        raise GpurunError(f"{directory} is there already: name a new directory") from None
    except OSError as e:
        raise GpurunError(oserror_text(e)) from None
    try:
        with tempfile.TemporaryDirectory(prefix=".", dir=directory) as scratch:
            image = read_image(Path(source), Path(scratch), invocation.option("tag"), architecture)
            root = image.root or _root(image, directory, store if invocation.flag("overlay") else "", limits)
            rootless = posix.geteuid() != 0
            config, left_out = container_config(
                image.config, image.root or "rootfs", command, rootless, reader(root), _site_labels()
            )
            if left_out:
                names = ", ".join([shown(key) for key in left_out[:_NAMED]]) + (", ..." if len(left_out) > _NAMED else "")
                log.warning(f"labels of the image that would instruct the runtime are left out: {names}")
            text = json.dumps(config, indent="\t", ensure_ascii=False) + "\n"
            (directory / "config.json").write_text(text, encoding="utf-8", errors="surrogateescape")
    except BaseException as e:
        undo_overlay(str(directory))
        shutil.rmtree(directory, ignore_errors=True)
        if isinstance(e, OSError):
            raise GpurunError(f"{source}: {oserror_text(e)}") from None
        raise
    return 0


def _site_labels() -> SiteLabels:
    own_env = own_environment()
    return SiteLabels(
        site_settings(own_env).annotation_prefixes,
        tuple([name for name, _ in read_leases(site_path(posix.environ)).per_label]),
    )


def _existing(invocation: Invocation, directory: str, store: str) -> int:
    if len(invocation.args) > 1 or invocation.option("output") or invocation.flag("overlay"):
        raise UsageError("bundle: --mount and --remove take the directory of a bundle, and nothing else")
    if invocation.flag("mount") and invocation.flag("remove"):
        raise UsageError("bundle: --mount and --remove at once")
    try:
        if invocation.flag("mount"):
            mount_bundle(directory)
        else:
            remove_bundle(directory, store)
    except OSError as e:
        raise GpurunError(oserror_text(e)) from None
    return 0


def _root(image: Image, directory: Path, store: str, limits: Limits) -> str:
    """The root of the bundle, of the image's layers: an overlay of those in *store*, or (with none) unpacked."""
    ids = diff_ids(image.config, len(image.layers))
    skipped = -1
    if store:
        try:
            layers = [Layer(path, ids[i] if ids else diff_id_of(path)) for i, path in enumerate(image.layers)]
            skipped = make_overlay(str(directory), layers, store, limits)
        except NoOverlay as e:
            log.warning(f"the layers are unpacked into the bundle, for there can be no overlay: {e}")
            for name in ("overlay", "rootfs"):
                shutil.rmtree(directory / name, ignore_errors=True)
    if skipped < 0:
        skipped = _unpacked(image, directory / "rootfs", ids, limits)
    if skipped:
        log.info(f"{skipped} device nodes of the image's /dev are left out: a container has its own")
    return str(directory / "rootfs")


def _unpacked(image: Image, root: Path, ids: tuple[str, ...], limits: Limits) -> int:
    root.mkdir(mode=0o755)
    unpacker = Unpacker(str(root), limits)
    try:
        for number, layer in enumerate(image.layers):
            unpacker.add(layer, ids[number] if ids else "")
    finally:
        unpacker.close()
    return unpacker.skipped


def _bytes(text: str) -> int:
    from gpurun.engine.caller.update import parse_bytes

    size = parse_bytes(text, "max-size")
    if size <= 0:
        raise GpurunError(f"--max-size: {text} is no size")
    return size
