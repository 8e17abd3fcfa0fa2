"""What a tree of files is, to be compared with what it was."""

from __future__ import annotations

import hashlib
import os
import stat
from errno import EINVAL, EISDIR, ENOENT, ENOTDIR
from pathlib import Path

_CHANGED = (ENOENT, EINVAL, EISDIR, ENOTDIR)  # of readlink(2) and read(2), when it is no link any more, or no file


def tree_listing(root: Path, exact: bool = False) -> dict[str, tuple[object, ...]]:
    """Every file under *root* by its path: mode, owner, device number, size, link text or content (below 1 MiB).

    *exact*: also *root* itself, as ``.``, the times of change, and content of any size.  A file that goes while this looks,
    or becomes another one, is not in it: a killed ``create`` may end its last system call, and a neighbour exchanges files.
    """
    found: dict[str, tuple[object, ...]] = {}
    for directory, names, files in os.walk(root):
        for path in ((directory,) if exact else ()) + tuple(os.path.join(directory, name) for name in (*names, *files)):
            what: object = None
            try:
                s = os.lstat(path)
                if stat.S_ISLNK(s.st_mode):
                    what = os.readlink(path)
                elif stat.S_ISREG(s.st_mode) and (exact or s.st_size < 1 << 20):
                    what = hashlib.blake2b(Path(path).read_bytes()).hexdigest()
            except OSError as e:
                if e.errno not in _CHANGED:
                    raise
                continue
            size = s.st_size if stat.S_ISREG(s.st_mode) else 0
            times = (s.st_mtime_ns,) if exact else ()
            found[os.path.relpath(path, root)] = (s.st_mode, s.st_uid, s.st_gid, s.st_rdev, size, *times, what)
    return found
