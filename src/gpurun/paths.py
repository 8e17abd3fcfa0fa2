"""Lexical work on path strings, for paths that the host's administrator or caller gave: the file system is not asked.

Paths inside a rootfs are another matter and are never resolved this way: see :mod:`gpurun.ns.path`.
"""

from __future__ import annotations

import posix


def clean_path(path: str) -> str:
    """*path* taken from ``/``, with ``.``, ``..`` and empty elements resolved; ``..`` stops at ``/``."""
    elements: list[str] = []
    for element in path.split("/"):
        if element == "..":
            del elements[-1:]
        elif element not in ("", "."):
            elements.append(element)
    return "/" + "/".join(elements)


def absolute_path(path: str) -> str:
    """*path* as an absolute clean one; a relative one is below the current directory."""
    return clean_path(path if path.startswith("/") else f"{posix.getcwd()}/{path}")


def runtime_directory(given: str, euid: int) -> str:
    """Where a user's state is for as long as they are logged in: *given*, their $XDG_RUNTIME_DIR, or where logind makes it.

    "" for root without the variable.
    """
    return given.rstrip("/") or (f"/run/user/{euid}" if euid else "")
