"""File systems with options that are too long for fsconfig(2), which takes 255 bytes of a value.

An overlay of many layers is what has them.  Since Linux 6.7 it takes each layer by itself (``lowerdir+``, see
filesystems/overlayfs.rst); what is still too long goes to mount(2), which takes a page of all options together.

Imported only for mounts that may need it (:func:`gpurun.ns.mount.may_have_long_options`).
"""

from __future__ import annotations

import posix
from errno import EINVAL

from gpurun.errors import GpurunError
from gpurun.linux.mount import is_older_needed
from gpurun.linux.older_mounts import OPTION_FLAGS, mount_detached, option
from gpurun.ns.mount import FSCONFIG_BYTES, filesystem, fits_fsconfig
from gpurun.ns.options import split_escaped

TYPE_CHECKING = False
if TYPE_CHECKING:
    from gpurun.ns.mount import Option


def filesystem_with_long_options(fstype: str, options: tuple[Option, ...], attributes: int, source: str) -> int:
    """A descriptor of a detached mount, as :func:`gpurun.ns.mount.filesystem` makes it, of options of any length.

    Raises OSError with what the kernel says, and :class:`GpurunError` when the options are longer than mount(2) takes.
    """
    if fstype == "overlay" and not is_older_needed():
        layered = with_single_layers(options)
        if layered is not None and fits_fsconfig(source, layered):
            try:
                return filesystem(fstype, layered, attributes, source)
            except OSError as e:
                if e.errno != EINVAL:
                    raise
                # An older kernel; or an option is wrong, and then mount(2) says so too.
    return _by_mount2(fstype, options, attributes, source)


def with_single_layers(options: tuple[Option, ...]) -> tuple[Option, ...] | None:
    """*options* with an option for each layer of ``lowerdir``; None when that cannot be taken apart."""
    found: list[Option] = []
    for key, value in options:
        if key != "lowerdir" or value is None:
            found.append((key, value))
            continue
        single = "lowerdir+"
        names = split_escaped(value, ":")
        for i, name in enumerate(names):
            if name:
                found.append((single, _unescape(name)))
            elif not 0 < i < len(names) - 1 or not names[i - 1]:
                return None
            else:
                single = "datadir+"  # after "::" come layers that only hold data
    return tuple(found)


def _unescape(name: str) -> str:
    if "\\" not in name:
        return name
    out, at = "", 0
    while at < len(name):
        at += name[at] == "\\" and at + 1 < len(name)
        out += name[at]
        at += 1
    return out


def _by_mount2(fstype: str, options: tuple[Option, ...], attributes: int, source: str) -> int:
    """The file system as mount(2) makes it, in a mount namespace of its own that ends with its only process."""
    flags = 0
    words = []
    for key, value in options:
        if value is None and key in OPTION_FLAGS:
            flags |= OPTION_FLAGS[key]
        elif value is None:
            words.append((key, key))
        else:
            words.append((key, option(key, value)))
    directory, data = within_a_page(fstype, words)
    return mount_detached(fstype, flags, data, attributes, source, directory)


def within_a_page(fstype: str, words: list[tuple[str, str]]) -> tuple[str, str]:
    """(directory that relative paths are of or "", the options as mount(2) takes them).

    Returns (directory, options).  Raises :class:`GpurunError` when they fit neither one page nor fsconfig(2).
    """
    limit = posix.sysconf("SC_PAGESIZE") - 1
    data = ",".join([word for _, word in words])
    if _size(data) <= limit:
        return "", data
    directory = ""
    if fstype == "overlay":
        directory = _common_directory([name for key, word in words if key == "lowerdir" for name in _layers(word) if name])
        if directory:
            words = [(key, _relative(word, directory) if key == "lowerdir" else word) for key, word in words]
    shorter = ",".join([word for _, word in words])
    if _size(shorter) > limit:
        raise GpurunError(
            f"its options are {_size(data)} bytes; mount(2) takes {limit}, "
            f"and each of them by itself would have to be at most {FSCONFIG_BYTES}"
        )
    return _unescape(directory), shorter


def _layers(word: str) -> list[str]:
    return split_escaped(word.removeprefix("lowerdir="), ":")


def _relative(word: str, directory: str) -> str:
    return "lowerdir=" + ":".join([name.removeprefix(f"{directory}/") for name in _layers(word)])


def _common_directory(paths: list[str]) -> str:
    """The longest directory that all of *paths*, which are absolute, are in; "" when that is the root or there is none."""
    common = paths[0].split("/")[:-1]
    for path in paths:
        parts = path.split("/")[:-1]
        same = 0
        while same < min(len(common), len(parts)) and common[same] == parts[same]:
            same += 1
        common = common[:same]
    return "/".join(common)


def _size(text: str) -> int:
    return len(text.encode("utf-8", "surrogateescape"))
