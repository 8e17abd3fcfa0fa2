"""What a tree of files is, to be compared with what it was."""

from __future__ import annotations

import hashlib
import os
import stat
from pathlib import Path


def tree_listing(root: Path, exact: bool = False) -> dict[str, tuple[object, ...]]:
    """Every file under *root* by its path: mode, owner, device number, size, link text or content (below 1 MiB).

    *exact*: also *root* itself, as ``.``, the times of change, and content of any size.  A file that goes while this looks
    is not in it: the init of a killed ``create`` may end its last system call meanwhile.
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
            except FileNotFoundError:
                continue
            size = s.st_size if stat.S_ISREG(s.st_mode) else 0
            times = (s.st_mtime_ns,) if exact else ()
            found[os.path.relpath(path, root)] = (s.st_mode, s.st_uid, s.st_gid, s.st_rdev, size, *times, what)
    return found
