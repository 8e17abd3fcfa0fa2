"""A bundle of an image: the root is unpacked, or is a directory that is there, and config.json is the image's."""

from __future__ import annotations

import json
import os
import posix
import shutil
import tempfile

from gpurun.engine.site_config import read_leases, site_path
from gpurun.errors import GpurunError, clean, oserror_text
from gpurun.gpu.nvidia.request.settings import site_settings
from gpurun.images.config import NO_SITE, SiteLabels, container_config, reader
from gpurun.images.source import read_source
from gpurun.images.unpack import Limits, unpack
from gpurun.linux.files import write_atomically
from gpurun.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64", "riscv64": "riscv64", "ppc64le": "ppc64le", "s390x": "s390x"}
#: So many of the labels that are left out are named.
_NAMED = 8


class BundleRequest(Record):
    """*source* as :func:`gpurun.images.source.read_source` takes it, *output* the directory that is made.

    *command* stands in place of the image's own; *architecture* is Go's name, empty for this machine's.
    """

    source: str
    output: str
    command: tuple[str, ...] = ()
    tag: str = ""
    architecture: str = ""
    limits: Limits = Limits()
    site: SiteLabels = NO_SITE


def site_labels(environ: Mapping[str, str]) -> SiteLabels:
    """What this host has a use for, by its configuration files; *environ* is gpurun's own environment.

    Raises :class:`GpurunError`.
    """
    path = site_path({os.fsencode(name): os.fsencode(value) for name, value in environ.items()})
    return SiteLabels(site_settings(environ).annotation_prefixes, tuple([name for name, _ in read_leases(path).per_label]))


def make_bundle(asked: BundleRequest, environ: Mapping[str, str]) -> tuple[str, ...]:
    """Make all of the bundle, or leave nothing of it; returns warnings.  Raises :class:`GpurunError`.

    *environ* is what skopeo and umoci see.
    """
    source = read_source(asked.source, asked.tag)
    directory = os.path.abspath(asked.output)
    machine = posix.uname().machine
    try:
        # Only for root: programs of the image may have set-user-ID bits, which count for whoever can reach them.
        posix.mkdir(directory, 0o700)
    except FileExistsError:
        raise GpurunError(f"{directory} is there already: name a new directory") from None
    except OSError as e:
        raise GpurunError(oserror_text(e)) from None
    try:
        image: dict[str, Any] = {}
        root = source.path
        if source.transport:
            root = f"{directory}/rootfs"
            architecture = asked.architecture or _ARCHITECTURES.get(machine, machine)
            with tempfile.TemporaryDirectory(prefix=".", dir=directory) as scratch:
                image = unpack(source, scratch, root, architecture, asked.limits, environ)
        config, left_out = container_config(
            image, "rootfs" if source.transport else root, asked.command, posix.geteuid() != 0, reader(root), asked.site
        )
        text = json.dumps(config, indent="\t", ensure_ascii=False) + "\n"
        write_atomically(f"{directory}/config.json", text.encode("utf-8", "surrogateescape"), 0o666)
    except BaseException as e:
        shutil.rmtree(directory, ignore_errors=True)
        if isinstance(e, OSError):
            raise GpurunError(f"{clean(asked.source)}: {oserror_text(e)}") from None
        raise
    if not left_out:
        return ()
    names = ", ".join([clean(key) for key in left_out[:_NAMED]]) + (", ..." if len(left_out) > _NAMED else "")
    return (f"labels of the image that would instruct the runtime are left out: {names}",)
