"""How the loaders of an image find the driver's libraries: glibc's by its cache and ldconfig's files, musl's by its path.

Pure composition is in :mod:`gpurun.formats.ldcache` and :mod:`gpurun.formats.ldconf`; here it meets the image.
"""

from __future__ import annotations

import posix

from gpurun.cdi.edits import directories
from gpurun.errors import StepError
from gpurun.formats.ldcache import CacheError, compose
from gpurun.formats.ldconf import musl_path
from gpurun.hook.compat import compat_libraries
from gpurun.hook.image_files import rewrite, rewrite_in_place
from gpurun.ns.path import UNUSABLE, open_in_root

TYPE_CHECKING = False
if TYPE_CHECKING:
    from gpurun.cdi.edits import CacheEntry, FileEdit, ForwardCompat
    from gpurun.hook.rootfs_target import Target

_LD_CACHE = "/etc/ld.so.cache"
_GLIBC_LOADERS = {"x86_64": "/lib64/ld-linux-x86-64.so.2", "aarch64": "/lib/ld-linux-aarch64.so.1"}
_STEP = "compose the loader's cache"


def tell_loaders(
    target: Target, entries: tuple[CacheEntry, ...], files: tuple[FileEdit, ...], compat: ForwardCompat | None = None
) -> None:
    """Make the loaders of the image find *entries*; *files* are what its ldconfig needs for that.  Libraries of the image
    itself that *compat* speaks of come before them.

    Raises :class:`StepError` when that fails: a GPU program that does not find its driver must not start.
    """
    machine = posix.uname().machine
    musl = f"ld-musl-{machine}"
    if _exists(target, f"/lib/{musl}.so.1"):
        rewrite(
            target, f"/etc/{musl}.path", lambda image: musl_path(image, directories(entries)), "extend the loader's path"
        )
        glibc = _GLIBC_LOADERS.get(machine, "")
        if not _exists(target, _LD_CACHE) and not _exists(target, glibc):
            return  # nothing in there reads a cache
    if compat is not None:
        newer, more = compat_libraries(target.root_fd, compat)
        entries, files = newer + entries, more + files
    if not entries:
        return  # an image without a cache stays without one
    rewrite(target, _LD_CACHE, lambda image: compose_cache(image, entries), _STEP)
    for file in files:
        put_in_image(target, file)


def compose_cache(image: bytes | None, entries: tuple[CacheEntry, ...]) -> bytes:
    """*image* with *entries* in it; one that the image's own loader would not read either counts as none."""
    try:
        return compose(image, entries)
    except CacheError:
        return compose(None, entries)


def put_in_image(target: Target, file: FileEdit) -> None:
    """Write *file* into the image, where that has its directory and can be written."""
    if not target.readonly:
        rewrite_in_place(target, file.path, lambda _: file.content, parents=False)


def _exists(target: Target, path: str) -> bool:
    try:
        posix.close(open_in_root(target.root_fd, path))
    except OSError as e:
        if e.errno not in UNUSABLE:
            raise StepError("look in the rootfs for", path, e.errno) from None
        return False  # absent, or nothing that a loader could open either
    return True
