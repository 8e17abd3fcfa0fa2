"""Mount options (``mounts[].options`` and fstab words) → flags as numbers; pure.

runtime-spec config.md "Mounts" and mount(8).  Words that are no flag go to the file system as data, in their order.
"""

from __future__ import annotations

from gpurun.linux import mount as m
from gpurun.record import Record

_RO, _NOSUID, _NODEV, _NOEXEC = m.MOUNT_ATTR_RDONLY, m.MOUNT_ATTR_NOSUID, m.MOUNT_ATTR_NODEV, m.MOUNT_ATTR_NOEXEC
_ATIME = m.MOUNT_ATTR__ATIME
#: What a bind mount loses of its source's flags, once any flag is named.
_REPLACED = _RO | _NOSUID | _NODEV | _NOEXEC | m.MOUNT_ATTR_NOSYMFOLLOW

#: word → (attributes set, attributes cleared) of the mount itself.
ATTRIBUTES: dict[str, tuple[int, int]] = {
    "ro": (_RO, 0),
    "rw": (0, _RO),
    "nosuid": (_NOSUID, 0),
    "suid": (0, _NOSUID),
    "nodev": (_NODEV, 0),
    "dev": (0, _NODEV),
    "noexec": (_NOEXEC, 0),
    "exec": (0, _NOEXEC),
    "nosymfollow": (m.MOUNT_ATTR_NOSYMFOLLOW, 0),
    "symfollow": (0, m.MOUNT_ATTR_NOSYMFOLLOW),
    "noatime": (m.MOUNT_ATTR_NOATIME, _ATIME),
    "atime": (0, _ATIME),
    "relatime": (m.MOUNT_ATTR_RELATIME, _ATIME),
    "norelatime": (0, _ATIME),
    "strictatime": (m.MOUNT_ATTR_STRICTATIME, _ATIME),
    "nostrictatime": (0, _ATIME),
    "nodiratime": (m.MOUNT_ATTR_NODIRATIME, 0),
    "diratime": (0, m.MOUNT_ATTR_NODIRATIME),
}

#: word → (mount(2) flag of times, whether it is set): what none of these is set for keeps the times of its source.
_TIMES: dict[str, tuple[int, bool]] = {
    "noatime": (m.MS_NOATIME, True),
    "atime": (m.MS_NOATIME, False),
    "relatime": (m.MS_RELATIME, True),
    "norelatime": (m.MS_RELATIME, False),
    "strictatime": (m.MS_STRICTATIME, True),
    "nostrictatime": (m.MS_STRICTATIME, False),
    "nodiratime": (m.MS_NODIRATIME, True),
    "diratime": (m.MS_NODIRATIME, False),
}

#: word → (which flags, flags set, flags cleared).  The words of the mount's attributes exist with an ``r`` before them, too:
#: the same, for every mount of the tree.
_FLAGS: dict[str, tuple[str, int, int]] = {
    **{word: ("attributes", *bits) for word, bits in ATTRIBUTES.items()},
    **{word: ("times", flag if on else 0, 0 if on else flag) for word, (flag, on) in _TIMES.items()},
    **{f"r{word}": ("recursive", *bits) for word, bits in ATTRIBUTES.items()},
}

#: word → fields of :class:`MountOptions` that are true by it.
_SWITCHES = {
    "bind": ("bind",),
    "rbind": ("bind", "recursive"),
    "tmpcopyup": ("copy_up",),
    "copy-symlink": ("copy_symlink",),
    "remount": ("remount",),
    "defaults": (),
    "": (),
}

#: word → key of the superblock (fsconfig(2) flag), for words that old mount(2) flags carried.
SUPERBLOCK: dict[str, tuple[str, bool]] = {
    "sync": ("sync", True),
    "async": ("sync", False),
    "dirsync": ("dirsync", True),
    "mand": ("mand", True),
    "nomand": ("mand", False),
    "iversion": ("iversion", True),
    "noiversion": ("iversion", False),
    "lazytime": ("lazytime", True),
    "nolazytime": ("lazytime", False),
    "silent": ("silent", True),
    "loud": ("silent", False),
}

PROPAGATION: dict[str, tuple[int, bool]] = {
    "shared": (m.MS_SHARED, False),
    "rshared": (m.MS_SHARED, True),
    "slave": (m.MS_SLAVE, False),
    "rslave": (m.MS_SLAVE, True),
    "private": (m.MS_PRIVATE, False),
    "rprivate": (m.MS_PRIVATE, True),
    "unbindable": (m.MS_UNBINDABLE, False),
    "runbindable": (m.MS_UNBINDABLE, True),
}


class MountOptions(Record):
    """The options of one mount.  *attr_set*/*attr_clr* are MOUNT_ATTR_*; a bind mount loses *replaced* with them."""

    attr_set: int = 0
    attr_clr: int = 0
    replaced: int = 0
    rec_set: int = 0
    rec_clr: int = 0
    propagation: tuple[tuple[int, bool], ...] = ()  # (MS_*, recursive), in the order given
    superblock: tuple[str, ...] = ()
    data: tuple[str, ...] = ()
    bind: bool = False
    recursive: bool = False
    copy_up: bool = False
    idmap: str = ""  # "", "idmap" or "ridmap"
    idmap_ranges: str = ""  # what follows "idmap=", for ns/idmap_option.py
    copy_symlink: bool = False
    remount: bool = False


#: What has been parsed: a container's devices bring dozens of mounts with the same few options.
_parsed: dict[tuple[str, ...], MountOptions] = {}


def parse_options(words: tuple[str, ...]) -> MountOptions:
    """Sort *words* into flags, propagation and data; of contradicting words the later wins."""
    found = _parsed.get(words)
    if found is None:
        found = _parsed[words] = _parse(words)
    return found


def _parse(words: tuple[str, ...]) -> MountOptions:
    flags = {"attributes": (0, 0), "times": (0, 0), "recursive": (0, 0)}  # (set, cleared)
    named = False
    switches: dict[str, bool] = {}
    propagation: list[tuple[int, bool]] = []
    superblock: dict[str, bool] = {}
    data: list[str] = []
    idmap = ranges = ""
    for word in words:
        if word in _FLAGS:
            which, set_, clear = _FLAGS[word]
            before_set, before_clear = flags[which]
            flags[which] = (before_set & ~clear | set_, before_clear & ~set_ | clear)
            named = named or which != "recursive"
        elif word in _SWITCHES:
            switches.update([(field, True) for field in _SWITCHES[word]])
        elif word in PROPAGATION:
            propagation.append(PROPAGATION[word])
        elif word in SUPERBLOCK:
            key, value = SUPERBLOCK[word]
            superblock[key] = value
        elif word.partition("=")[0] in ("idmap", "ridmap"):
            idmap, _, ranges = word.partition("=")
        else:
            data.append(word)
    attr_set, attr_clr = flags["attributes"]
    times_set, times_clr = _times(flags["times"][0])
    return MountOptions(
        attr_set=attr_set | times_set,
        attr_clr=attr_clr | times_clr,
        replaced=_REPLACED & ~attr_set if named else 0,
        rec_set=flags["recursive"][0],
        rec_clr=flags["recursive"][1],
        propagation=tuple(propagation),
        superblock=tuple([k for k, on in superblock.items() if on]),
        data=tuple(data),
        idmap=idmap,
        idmap_ranges=ranges,
        **switches,
    )


def _times(flags: int) -> tuple[int, int]:
    """(attributes set, cleared) for the MS_*ATIME *flags*, as mount(2) reads them; of none, nothing is changed."""
    if not flags:
        return 0, 0
    if flags & m.MS_STRICTATIME:
        set_ = m.MOUNT_ATTR_STRICTATIME
    else:
        set_ = m.MOUNT_ATTR_NOATIME if flags & m.MS_NOATIME else m.MOUNT_ATTR_RELATIME
    if flags & m.MS_NODIRATIME:
        return set_ | m.MOUNT_ATTR_NODIRATIME, _ATIME
    return set_, _ATIME | m.MOUNT_ATTR_NODIRATIME


def split_escaped(text: str, separator: str) -> list[str]:
    """The parts of *text* between the character *separator*, in which a backslash takes the meaning from the next one.

    So overlayfs writes paths in its options; the parts keep their backslashes.
    """
    parts, start, at = [], 0, 0
    while at < len(text):
        if text[at] == separator:
            parts.append(text[start:at])
            start = at + 1
        at += 2 if text[at] == "\\" else 1
    return [*parts, text[start:]]


def likely_option(word: str, more: tuple[str, ...] = ()) -> str:
    """`` (did you mean "nosuid"?)`` where the option *word* looks like one that is understood, or like one of *more*."""
    try:
        from difflib import get_close_matches  # only for an error text, never while a container is made
    except ImportError:  # a small Python
        return ""
    close = get_close_matches(word.partition("=")[0], [*more, *option_names()], 1, 0.7)
    return f' (did you mean "{close[0]}"?)' if close else ""


def option_names() -> tuple[str, ...]:
    """Every word that is understood as a flag, sorted: ``mountOptions`` of the features document."""
    return tuple(sorted({*_FLAGS, *_SWITCHES, *SUPERBLOCK, *PROPAGATION, "idmap", "ridmap"} - {""}))
