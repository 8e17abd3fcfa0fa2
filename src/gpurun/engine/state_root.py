"""The state root, the directory that has the state directories of containers: made, and what to do where it cannot be."""

from __future__ import annotations

import posix
from errno import EACCES

from gpurun.errors import StepError
from gpurun.linux.files import mkdir_p
from gpurun.paths import runtime_directory


def make_root(root: str) -> None:
    """Make the state root, 0700; one that is there already stays as it is.  Raises :class:`StepError`.

    The one in $XDG_RUNTIME_DIR is sticky, or systemd-tmpfiles would clear it away after six hours (file-hierarchy(7)).
    """
    given = posix.environ.get(b"XDG_RUNTIME_DIR", b"").decode("utf-8", "surrogateescape")
    runtime_dir = runtime_directory(given, posix.geteuid())
    sticky = bool(runtime_dir) and root.startswith(f"{runtime_dir}/")
    try:
        mkdir_p(root, 0o700, last_mode=0o1700 if sticky else 0o700)
    except OSError as e:
        raise StepError("make the state root", str(e.filename), e.errno, remedy(e.errno, str(e.filename))) from None


def remedy(errno: int | None, missing: str = "", root: str = "") -> str:
    """What to do where a state root, *root* if it is named, or what is in it cannot be read, or *missing* cannot be made."""
    if errno != EACCES:
        return ""
    if closed := _closed_above(root):
        return f"you may not look into {closed}: --root names a directory of your own"
    if missing and missing == runtime_directory("", posix.geteuid()):
        return "you are not logged in: `loginctl enable-linger`, or --root names a directory of your own"
    if missing:
        above = missing.rpartition("/")[0] or "/"
        return f"you may not write to {above}: --root names a directory of your own"
    return "it is another user's: --root names a directory of your own"


def _closed_above(path: str) -> str:
    """The first directory above *path* that the caller may not search: nobody can say then whether *path* is there, and
    whose it is.  "" where there is none."""
    names = path.split("/")[:-1]
    above = ["/".join(names[: count + 1]) or "/" for count in range(len(names))]
    return next((one for one in above if not posix.access(one, posix.X_OK, effective_ids=True)), "")
