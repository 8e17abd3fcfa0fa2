"""Mount options (``mounts[].options`` and fstab words) → flags as numbers; pure.

runtime-spec config.md "Mounts" and mount(8).  Words that are no flag go to the file system as data, in their order.
"""

from __future__ import annotations

from gpurun.linux import mount as m
from gpurun.record import Record

_RO, _NOSUID, _NODEV, _NOEXEC = m.MOUNT_ATTR_RDONLY, m.MOUNT_ATTR_NOSUID, m.MOUNT_ATTR_NODEV, m.MOUNT_ATTR_NOEXEC
_ATIME = m.MOUNT_ATTR__ATIME

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

#: The words that exist with an ``r`` before them: the same, for every mount of the tree.
RECURSIVE = frozenset(
    [
        "ro",
        "rw",
        "nosuid",
        "suid",
        "nodev",
        "dev",
        "noexec",
        "exec",
        "nodiratime",
        "diratime",
        "relatime",
        "norelatime",
        "noatime",
        "atime",
        "strictatime",
        "nostrictatime",
        "nosymfollow",
        "symfollow",
    ]
)

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
    """The options of one mount.  *attr_set*/*attr_clr* are MOUNT_ATTR_*; *explicit* is everything that was named."""

    attr_set: int = 0
    attr_clr: int = 0
    rec_set: int = 0
    rec_clr: int = 0
    propagation: tuple[tuple[int, bool], ...] = ()  # (MS_*, recursive), in the order given
    superblock: tuple[str, ...] = ()
    data: tuple[str, ...] = ()
    bind: bool = False
    recursive: bool = False
    copy_up: bool = False
    idmap: str = ""  # "", "idmap" or "ridmap"
    remount: bool = False


def parse_options(words: tuple[str, ...]) -> MountOptions:
    """Sort *words* into flags, propagation and data; of contradicting words the later wins."""
    attr_set = attr_clr = rec_set = rec_clr = 0
    propagation: list[tuple[int, bool]] = []
    superblock: dict[str, bool] = {}
    data: list[str] = []
    bind = recursive = copy_up = remount = False
    idmap = ""
    for word in words:
        if word in ATTRIBUTES:
            on, off = ATTRIBUTES[word]
            attr_set, attr_clr = attr_set & ~off | on, attr_clr & ~on | off
        elif word in PROPAGATION:
            propagation.append(PROPAGATION[word])
        elif word[:1] == "r" and word[1:] in RECURSIVE:
            on, off = ATTRIBUTES[word[1:]]
            rec_set, rec_clr = rec_set & ~off | on, rec_clr & ~on | off
        elif word in SUPERBLOCK:
            key, value = SUPERBLOCK[word]
            superblock[key] = value
        elif word == "bind":
            bind = True
        elif word == "rbind":
            bind = recursive = True
        elif word == "tmpcopyup":
            copy_up = True
        elif word in ("idmap", "ridmap"):
            idmap = word
        elif word == "remount":
            remount = True
        elif word not in ("defaults", ""):
            data.append(word)
    return MountOptions(
        attr_set=attr_set,
        attr_clr=attr_clr,
        rec_set=rec_set,
        rec_clr=rec_clr,
        propagation=tuple(propagation),
        superblock=tuple([k for k, on in superblock.items() if on]),
        data=tuple(data),
        bind=bind,
        recursive=recursive,
        copy_up=copy_up,
        idmap=idmap,
        remount=remount,
    )


def option_names() -> tuple[str, ...]:
    """Every word that is understood as a flag, sorted: ``mountOptions`` of the features document."""
    words = {"bind", "rbind", "defaults", "remount", "tmpcopyup", "idmap", "ridmap", *ATTRIBUTES, *SUPERBLOCK, *PROPAGATION}
    return tuple(sorted(words | {"r" + word for word in RECURSIVE}))
