"""``nvidia-ctk runtime configure``: what to change in an engine's configuration, as text.

A configuration may be written by hand: what gpurun does not know in it stays, comments included where the format has them.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys

from gpurun.clients.files import Change, read
from gpurun.errors import GpurunError, UsageError, program_error_text
from gpurun.record import Record

RUNTIME = "nvidia-container-runtime"
HOOK = "nvidia-container-runtime-hook"
_PATHS = {
    "docker": "/etc/docker/daemon.json",
    "containerd": "/etc/containerd/config.toml",
    "crio": "/etc/crio/crio.conf",
}
#: Files that the engines read beside their own (containerd only when configured to).
DROP_INS = {"containerd": "/etc/containerd/conf.d/99-nvidia.toml", "crio": "/etc/crio/crio.conf.d/99-nvidia.toml"}
#: How an engine is asked for its configuration; the first one that answers.  CRI-O before 1.30 has a program for it.
_DUMP = {
    "containerd": (("containerd", "config", "dump"),),
    "crio": (("crio", "status", "config"), ("crio-status", "config")),
}
_HOOK_MODES, _FILE_MODES = ("oci-hook", "hook"), ("", "config-file", "config")


class Request(Record):
    """The command line: *engine* is ``docker``, ``containerd`` or ``crio``; *drop_in* None is the engine's usual one."""

    engine: str
    dry_run: bool = False
    path: str = ""
    drop_in: str | None = None
    config_source: str = "file"
    executable_path: str = ""
    config_mode: str = "config-file"
    hook_file: str = ""
    name: str = "nvidia"
    binary: str = ""
    hook: str = ""
    default: bool = False
    cdi: bool = False


def changes(request: Request) -> tuple[Change, ...]:
    """What is to be written; reads the engine's files and changes nothing.  Raises :class:`GpurunError`."""
    if request.config_mode in _HOOK_MODES:
        _check_absolute("--nvidia-runtime-hook-path", request.hook)
        return (Change(request.hook_file, oci_hook(request.hook or beside(HOOK))),)
    if request.engine not in _PATHS:
        raise UsageError(f"--runtime={request.engine}: it must be docker, containerd or crio")
    if request.config_source not in ("file", "command"):
        raise UsageError(f"--config-source={request.config_source}: it must be file or command")
    path = request.path or _PATHS[request.engine]
    if request.engine == "docker":
        if request.drop_in:
            raise UsageError(f"--drop-in-config={request.drop_in}: docker reads no other file than daemon.json")
        text = docker(read(path), path, request.name, request.binary or RUNTIME, request.default, request.cdi)
        return (Change(path, text),)
    from gpurun.clients import toml_files

    binary = "" if request.binary == RUNTIME else request.binary
    _check_absolute("--nvidia-runtime-path", binary)
    _check_absolute("--drop-in-config", request.drop_in or "")
    drop_in = DROP_INS[request.engine] if request.drop_in is None else request.drop_in
    if request.drop_in is None and request.path:  # another file: then beside that one, unless it is said where
        drop_in = f"{os.path.dirname(os.path.abspath(path))}/{'/'.join(drop_in.split('/')[-2:])}"
    source = _dump(request) if request.config_source == "command" else None
    options = toml_files.RuntimeEntry(request.name, binary or beside(RUNTIME), request.default, request.cdi, unlike="nvidia")
    edit = toml_files.containerd if request.engine == "containerd" else toml_files.crio
    return tuple([Change(p, t) for p, t in edit(path, read(path), drop_in, options, source)])


def unused_options(request: Request) -> tuple[str, ...]:
    """A sentence for each option that is left out, as NVIDIA's program leaves it out, and for what is deprecated."""
    said = []
    if request.config_mode in _HOOK_MODES:
        return (f"--config-mode={request.config_mode} is deprecated: the engines' own configuration is what lasts",)
    if request.config_mode not in _FILE_MODES:
        said.append(f"--config-mode={request.config_mode} is not known and left out: the configuration file is changed")
    if request.engine == "docker" and request.executable_path:
        said.append("--executable-path is not for docker and left out")
    if request.engine == "docker" and request.config_source == "command":
        said.append("--config-source=command is not for docker: its file is read")
    if request.engine == "crio" and request.cdi:
        said.append("--cdi.enabled is left out: CRI-O always has it")
    return tuple(said)


def _check_absolute(option: str, path: str) -> None:
    """Who runs it looks nothing up on a PATH."""
    if path and not path.startswith("/"):
        raise UsageError(f'{option}="{path}" is not an absolute path')


def docker(text: str | None, path: str, name: str, binary: str, default: bool, cdi: bool) -> str:
    """dockerd's ``daemon.json``, with the runtime *name*; *text* None is no file.

    Raises :class:`ConfigError` for a text that dockerd could not read.
    """
    from gpurun.clients.docker import read_document

    document = read_document(text, path)
    if default:
        document["default-runtime"] = name
    document.setdefault("runtimes", {})[name] = {"args": [], "path": binary}
    if cdi:
        document.setdefault("features", {})["cdi"] = True
    return json.dumps(document, indent=4, sort_keys=True) + "\n"


def oci_hook(binary: str) -> str:
    """A file for hooks.d(5), the deprecated way in which Podman and CRI-O add the hook to every container."""
    path = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
    document = {
        "version": "1.0.0",
        "hook": {"path": binary, "args": [os.path.basename(binary), "prestart"], "env": [f"PATH={path}"]},
        "when": {"always": True, "commands": [".*"]},
        "stages": ["prestart"],
    }
    return json.dumps(document, indent=2) + "\n"


def beside(name: str) -> str:
    """The program *name* next to the one that was called, when it is there; else where NVIDIA's packages put it."""
    called = shutil.which(sys.argv[0]) if sys.argv and sys.argv[0] else None
    if called:
        path = f"{os.path.dirname(os.path.abspath(called))}/{name}"
        if os.access(path, os.X_OK):
            return path
    return f"/usr/bin/{name}"


def _dump(request: Request) -> str:
    """The configuration as the engine itself says it is.  Raises :class:`GpurunError` when it cannot be asked."""
    first, *others = _DUMP[request.engine]
    commands = [(request.executable_path or first[0], *first[1:]), *others]
    problem = ""
    for command in commands:
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=True, stdin=subprocess.DEVNULL)
            return done.stdout
        except FileNotFoundError:
            problem = problem or f"{command[0]}: not found: give --executable-path, or --config-source=file"
        except subprocess.SubprocessError as e:
            problem = problem or f"`{' '.join(command)}` failed: {program_error_text(e)}: try --config-source=file"
    raise GpurunError(problem)
