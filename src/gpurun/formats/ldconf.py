"""What tells an image's own tools where the driver's libraries are: files for ldconfig, the path of musl's loader.  Pure.

gpurun writes the loader's cache itself (:mod:`gpurun.formats.ldcache`).  A later ``ldconfig`` in the container, which every
installation of a library runs, makes it anew from /etc/ld.so.conf: the directories must stand there, or CUDA is lost.
"""

from __future__ import annotations

CONF_DIR = "/etc/ld.so.conf.d"
COMPAT_CONF = f"{CONF_DIR}/00-compat-gpurun.conf"
_OWN_CONF = f"{CONF_DIR}/00-gpurun.conf"
_SYSTEM_CONF = f"{CONF_DIR}/zz-gpurun.conf"
_MUSL_DEFAULT = b"/lib:/usr/local/lib:/usr/lib"
_TRIPLETS = ("x86_64-linux-gnu", "i386-linux-gnu", "aarch64-linux-gnu", "arm-linux-gnueabihf")
#: Where some distribution's ldconfig looks by itself, and another's does not.
_SYSTEM_DIRS = frozenset(
    [f"{usr}/{lib}" for usr in ("", "/usr") for lib in ("lib", "lib64", "lib32", *[f"lib/{t}" for t in _TRIPLETS])]
)


def conf_texts(directories: tuple[str, ...]) -> tuple[tuple[str, bytes], ...]:
    """(path, content) of the files for /etc/ld.so.conf.d that make ldconfig find what is in *directories*.

    Directories with only the driver's files come first, so that its libraries win over stale ones; system directories, which
    hold the image's libraries as well, come last, so that their order among the image's stays what it was.
    """
    own = [d for d in directories if d not in _SYSTEM_DIRS]
    system = [d for d in directories if d in _SYSTEM_DIRS]
    return tuple(
        [
            (path, "".join([f"{d}\n" for d in found]).encode("utf-8", "surrogateescape"))
            for path, found in ((_OWN_CONF, own), (_SYSTEM_CONF, system))
            if found
        ]
    )


def musl_path(image: bytes | None, directories: tuple[str, ...]) -> bytes | None:
    """The path file of musl's loader, *image* (``None``: it has none), with *directories* at its end;
    ``None`` when they stand there already.  The image's own libraries keep going first."""
    text = _MUSL_DEFAULT if image is None or not image.strip() else image.rstrip(b"\n")
    there = text.replace(b"\n", b":").split(b":")
    added = [d for d in [d.encode("utf-8", "surrogateescape") for d in directories] if d not in there]
    return b"\n".join([text, *added]) + b"\n" if added else None
