"""``amd-ctk runtime configure``: AMD's runtime in dockerd's daemon.json, and out of it.

AMD's program replaces all ``features`` and, with ``--remove``, deletes /etc/cdi.  Here what others have written stays.
"""

from __future__ import annotations

import json

from gpurun.clients import docker
from gpurun.clients.files import read, write
from gpurun.clients.toml_files import RuntimeEntry
from gpurun.formats.jsonedit import without_member

RUNTIME, PROGRAM = "amd", "amd-container-runtime"


def configure(path: str, remove: bool, default: bool, unset: bool) -> list[str]:
    """Change the file *path* (empty: what it would become is among the lines), and return what is said of it.

    With *unset* the runtime is not the default any more, with *remove* it goes; else it is added, as the default with
    *default*.  Raises :class:`GpurunError`, OSError: then the file is as it was.
    """
    before = read(path) if path else None
    said = [f"Loading configuration from: {path}"] if before is not None else []
    if unset:
        after, more = without_default(before or "", path)
    elif remove:
        after, more = remove_runtime(before or "", path), []
    else:
        after, more = docker.add_runtime(before, path, RuntimeEntry(RUNTIME, PROGRAM, default, True)), []
    said += more
    if not path:
        return [*said, after.rstrip("\n")]
    if after != (before or ""):
        write(path, after)
        said.append(f"Updated the config file: {path}")
    return [*said, "Please restart docker daemon"]


def without_default(text: str, path: str) -> tuple[str, list[str]]:
    """The daemon.json *text* in which another runtime is the default, and what is said of it.  Raises :class:`ConfigError`.

    Returns (text, lines).
    """
    default = docker.read_document(text, path).get("default-runtime")
    if default not in (None, RUNTIME):
        return text, [f"The default runtime is {default}, and stays"]
    if default is None:
        return text, ["The default runtime is Docker's own"]
    return without_member(text, ("default-runtime",)), [f"Removed {RUNTIME} as the default runtime"]


def remove_runtime(text: str, path: str) -> str:
    """The daemon.json *text* without AMD's runtime; CDI is turned off again where no runtime is left that may need it.

    Raises :class:`ConfigError` for a text that dockerd could not read.
    """
    if RUNTIME not in docker.read_document(text, path).get("runtimes", {}):
        return text
    made = docker.remove_runtime(text, path, RUNTIME)
    left = docker.read_document(made, path)
    if left.get("features", {}).get("cdi") is True and not left.get("runtimes"):
        made = without_member(made, ("features", "cdi"))
    return made if made and json.loads(made) else "{}\n"
