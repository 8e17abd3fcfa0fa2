"""What to change in a client's configuration so that it knows gpurun, or knows it no more; what checks and restarts it.

Reading decides everything, and changes nothing: :func:`installed` and :func:`uninstalled` return the changes.
"""

from __future__ import annotations

import fnmatch
import glob
import os
import re
import shutil
import subprocess

from gpurun.clients import docker, toml_files
from gpurun.clients.files import KEPT, Change, read
from gpurun.clients.toml_files import RuntimeEntry
from gpurun.errors import UsageError
from gpurun.record import Record, replace

CLIENTS = ("docker", "containerd", "podman", "crio")
KUBERNETES = "kubernetes"
#: The file of a client, and the directory whose files it reads besides.  Names with a letter come after those with a number.
FILES = {
    "docker": "/etc/docker/daemon.json",
    "containerd": "/etc/containerd/config.toml",
    "podman": "/etc/containers/containers.conf",
    "crio": "/etc/crio/crio.conf",
}
DROP_INS = {"containerd": "conf.d/gpurun.toml", "podman": "containers.conf.d/gpurun.conf", "crio": "crio.conf.d/gpurun.conf"}
#: The lists of runtimes that Podman has built in, by their keys in containers.conf(5).
_PODMANS = {
    toml_files.PODMAN_JSON: ("crun", "runc", "kata", "runsc", "youki", "krun", "ocijail"),
    toml_files.PODMAN_NO_CGROUP: ("crun", "krun"),
}
_PODMAN_FILES = ("/usr/share/containers/containers.conf", "/etc/containers/containers.conf")
_VERSION = re.compile(r"\bv?(\d+)\.(\d+)")


class Wish(Record):
    """*client* is to know the runtime *entry*; *path* is its file, empty for the usual one, *drop_in* a file of our own."""

    client: str
    entry: RuntimeEntry
    path: str = ""
    drop_in: str = ""

    def file(self) -> str:
        return self.path or FILES[self.client]


def client_of_kubernetes() -> str:
    """The client that this node's kubelet has its containers made by."""
    crio = os.path.exists("/etc/crio") or shutil.which("crio")
    return "crio" if crio and not os.path.exists(FILES["containerd"]) else "containerd"


def runtime_class(name: str) -> str:
    """The object by which pods name the runtime *name* (``runtimeClassName``)."""
    return f"apiVersion: node.k8s.io/v1\nkind: RuntimeClass\nmetadata:\n  name: {name}\nhandler: {name}\n"


def installed(wish: Wish) -> tuple[Change, ...]:
    """The changes after which the client knows the runtime; none where it does.  Raises :class:`ConfigError`, OSError."""
    made = [change for change in _installed(wish) if change.text != change.before]
    return tuple(made)


def _installed(wish: Wish) -> list[Change]:
    path = wish.file()
    if wish.drop_in and wish.client != "containerd":
        raise UsageError(f"--drop-in is for containerd: {wish.client} has one file, or always gets one of its own")
    if wish.client == "docker":
        text = read(path)
        return [
            Change(
                path,
                docker.added(text, path, _kept_default(wish.entry, docker.entry(text or "", path, wish.entry.name))),
                text,
            )
        ]
    if wish.client == "containerd":
        return _containerd(wish, path)
    drop_in = _beside(path, wish.client)
    if wish.client == "podman":
        text = toml_files.podman(wish.entry, *[_podman_list(key, path, drop_in, wish.entry.name) for key in _PODMANS])
        return [Change(drop_in, text, read(drop_in))]
    made = toml_files.crio(path, read(path), drop_in, wish.entry)
    return [Change(file, text, read(file)) for file, text in made]


def uninstalled(wish: Wish) -> tuple[Change, ...]:
    """The changes after which the client knows the runtime no more."""
    path, name = wish.file(), wish.entry.name
    if wish.client in ("podman", "crio"):
        drop_in = _beside(path, wish.client)
        before = read(drop_in)
        return (Change(drop_in, None, before),) if before is not None else ()
    if wish.client == "containerd" and wish.drop_in and (ours := _drop_in_taken_out(wish, path)):
        return ours  # else a file of version 1, which imports nothing
    made = []
    for file in [path] if wish.client == "docker" else _files_of_containerd(path):
        before = read(file)
        if before is None:
            continue
        found = (docker.entry if wish.client == "docker" else toml_files.containerd_entry)(before, file, name)
        if found is None:
            continue
        kept = read(file + KEPT)
        if kept is not None and _is_ours(wish.client, file, kept, before, found):
            made.append(Change(file, kept, before))
            continue
        text = (docker.taken_out if wish.client == "docker" else toml_files.without_containerd)(before, file, name)
        made.append(Change(file, text or (None if kept is None else kept), before))
    return tuple(made)


def _is_ours(client: str, file: str, kept: str, text: str, found: RuntimeEntry) -> bool:
    """Whether *text* is what gpurun has made of *kept*, and nobody has changed it since."""
    for cdi in (False, True):
        wanted = replace(found, cdi=cdi)
        if client == "docker":
            made = docker.added(kept, file, wanted)
        else:
            made = toml_files.containerd(file, kept, "", wanted)[0][1]
        if made == text:
            return True
    return False


def _containerd(wish: Wish, path: str) -> list[Change]:
    """The runtime goes into the file whose table of the CRI plugin counts: containerd before 2.1 takes the last one."""
    text = read(path)
    if wish.drop_in:
        return _containerd_drop_in(wish, path, text)
    counts = _that_counts(path)
    if not counts:
        own = _beside(path, "containerd")
        imported = any(fnmatch.fnmatch(own, pattern) for pattern in toml_files.imports_of(text or "", path))
        counts = own if imported else path
    before = read(counts)
    entry = _kept_default(wish.entry, toml_files.containerd_entry(before or "", counts, wish.entry.name))
    start = before if before is not None else f"version = {_version_for(text, path)}\n"
    made_text = toml_files.containerd(counts, start, "", entry)[0][1]
    return [Change(counts, made_text, before)]


def _containerd_drop_in(wish: Wish, path: str, text: str | None) -> list[Change]:
    """A file of our own, which repeats the table of the CRI plugin of the file that counts without it."""
    own = os.path.abspath(wish.drop_in)
    before = read(own)
    counts = _that_counts(path, own)
    entry = _kept_default(wish.entry, toml_files.containerd_entry(before or "", own, wish.entry.name))
    start = text if text else f"{toml_files.MADE}version = {_version_for(text, path)}\n"
    made = toml_files.containerd(path, start, own, entry, read(counts) if counts not in ("", path) else None)
    return [Change(file, new, text if file == path else before) for file, new in made]


def _drop_in_taken_out(wish: Wish, path: str) -> tuple[Change, ...]:
    """The file of our own goes, and so does its directory from the imports, if that was put there for it alone."""
    own = os.path.abspath(wish.drop_in)
    before, main, kept = read(own), read(path), read(path + KEPT)
    ours = [(own + KEPT, read(own + KEPT)), (own, before)]
    made = [Change(file, None, text) for file, text in ours if text is not None]
    pattern = toml_files.pattern_of(own)
    alone = not [file for file in glob.glob(pattern) if file != own]
    if main is None or not alone or pattern not in toml_files.imports_of(main, path):
        return tuple(made)
    if kept is not None and pattern not in toml_files.imports_of(kept, path):
        text = toml_files.without_import(main, path, pattern)
        same = toml_files.without_import(toml_files.with_import(kept, path, own), path, pattern)
        made.append(Change(path, kept if text == same else text, main))
    elif kept is None and toml_files.imports_alone(main, path, pattern):  # made for it
        made.append(Change(path, None, main))
    return tuple(made)


def _that_counts(path: str, but: str = "") -> str:
    """The last of containerd's files that says something of the CRI plugin's runtimes, empty when none does."""
    found = ""
    for file in _files_of_containerd(path):
        if file != but and toml_files.has_cri(read(file) or "", file):
            found = file
    return found


def _kept_default(wanted: RuntimeEntry, found: RuntimeEntry | None) -> RuntimeEntry:
    """Who has made it the default runtime once need not say so again."""
    return replace(wanted, default=wanted.default or (found is not None and found.default))


def _version_for(text: str | None, path: str) -> int:
    """The version of a file that is made: the one of the main file, else the newest that the containerd here reads."""
    if text:
        return toml_files.version_of(text, path)
    return 3 if _version_of("containerd") >= (2, 0) else 2


def _version_of(program: str) -> tuple[int, int]:
    """Major and minor version of *program*, (0, 0) where it is not here."""
    try:
        done = subprocess.run([program, "--version"], capture_output=True, text=True, timeout=30, stdin=subprocess.DEVNULL)
    except (OSError, subprocess.SubprocessError):
        return (0, 0)
    found = _VERSION.search(done.stdout)
    return (int(found[1]), int(found[2])) if found else (0, 0)


def _files_of_containerd(path: str) -> list[str]:
    """The files that containerd reads, in the order in which they count."""
    files = [path]
    for file in files:  # which grows: what is imported may import
        for pattern in toml_files.imports_of(read(file) or "", file):
            files += [found for found in sorted(glob.glob(pattern)) if found not in files]
    return files


def _beside(path: str, client: str) -> str:
    return f"{os.path.dirname(os.path.abspath(path))}/{DROP_INS[client]}"


def _podman_list(key: str, path: str, own: str, name: str) -> tuple[str, ...]:
    """Podman's list *key* of runtimes, without the file *own* and without the runtime *name*."""
    names = _PODMANS[key]
    for file in (_PODMAN_FILES[0], path, *sorted(glob.glob(f"{os.path.dirname(own)}/*.conf"))):
        if file != own:
            names = toml_files.podman_list(read(file) or "", file, key, names)
    return tuple([known for known in names if known != name])


def check_command(client: str, path: str) -> tuple[str, ...]:
    """What lets the client itself read its configuration; empty where it has nothing for that, or is not here."""
    if not shutil.which({"docker": "dockerd"}.get(client, client)):
        return ()
    if client == "containerd":
        return ("containerd", "--config", path, "config", "dump")
    if client == "docker":
        done = subprocess.run(["dockerd", "--help"], capture_output=True, text=True, timeout=30)
        return ("dockerd", "--validate", "--config-file", path) if "--validate" in done.stdout else ()
    if client == "crio":
        return ("crio", "--config", path, "--config-dir", f"{os.path.dirname(path)}/crio.conf.d", "config")
    return ("podman", "--version")


def restart_command(client: str, whole: bool) -> tuple[str, ...]:
    """What makes the running client read its configuration; *whole*: more has changed than it reads again when told to."""
    if client == "podman":
        return ()
    return ("systemctl", "reload" if client == "docker" and not whole else "restart", client)
