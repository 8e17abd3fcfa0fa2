"""What to change in a client's configuration so that it knows gpurun, or knows it no more; what checks it; who calls gpurun.

Reading decides everything, and changes nothing: :func:`plan_install` and :func:`plan_uninstall` return the changes.
"""

from __future__ import annotations

import fnmatch
import glob
import os
import re
import shutil
import stat
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
#: Of a user's own client, below ~/.config.
USER_FILES = {"docker": "docker/daemon.json", "podman": "containers/containers.conf"}
DROP_INS = {"containerd": "conf.d/gpurun.toml", "podman": "containers.conf.d/gpurun.conf", "crio": "crio.conf.d/gpurun.conf"}
#: The lists of runtimes that Podman has built in, by their keys in containers.conf(5).
_PODMANS = {
    toml_files.PODMAN_JSON: ("crun", "runc", "kata", "runsc", "youki", "krun", "ocijail"),
    toml_files.PODMAN_NO_CGROUP: ("crun", "krun"),
}
_PODMAN_FILES = ("/usr/share/containers/containers.conf", "/etc/containers/containers.conf")
#: How much of a runtime's program is read to see whether it is a script that calls gpurun.
_SCRIPT = 65536
_VERSION = re.compile(r"\bv?(\d+)\.(\d+)")


class Setup(Record):
    """*client* is to know the runtime *entry*; *path* is its file, empty for the usual one, *drop_in* a file of our own."""

    client: str
    entry: RuntimeEntry
    path: str = ""
    drop_in: str = ""

    def file(self) -> str:
        """The configuration file that is written: the one that was named, or the client's own."""
        return self.path or FILES[self.client]


def user_file(client: str) -> str:
    """The configuration file of the *client* of the user who calls; raises :class:`UsageError` for a client of root's."""
    if client not in USER_FILES:
        raise UsageError(f"--user is for {' and '.join(sorted(USER_FILES))}, not for {client}: leave it out")
    config = os.environ.get("XDG_CONFIG_HOME") or os.path.expanduser("~/.config")
    return f"{os.path.abspath(config)}/{USER_FILES[client]}"


def client_of_kubernetes() -> str:
    """The client that this node's kubelet has its containers made by."""
    crio = os.path.exists("/etc/crio") or shutil.which("crio")
    return "crio" if crio and not os.path.exists(FILES["containerd"]) else "containerd"


def runtime_class(name: str) -> str:
    """The object by which pods name the runtime *name* (``runtimeClassName``)."""
    return f"apiVersion: node.k8s.io/v1\nkind: RuntimeClass\nmetadata:\n  name: {name}\nhandler: {name}\n"


def plan_install(setup: Setup) -> tuple[Change, ...]:
    """The changes after which the client knows the runtime; none where it does.  Raises :class:`ConfigError`, OSError.

    A file that means the same already stays as it is, however it is written: a client is not restarted for a blank line, or
    for a header that another version of gpurun writes and this one does not.
    """
    made = [change for change in _plan_install(setup) if not _same(setup.client, change.path, change.before, change.text)]
    return tuple([replace(change, keep=change.keep and not _is_configured(setup, change)) for change in made])


def _same(client: str, path: str, before: str | None, after: str | None) -> bool:
    """Whether the texts of the file *path* mean the same to the *client*."""
    if before == after or before is None or after is None:
        return before == after
    meaning = docker.meaning if client == "docker" else toml_files.meaning
    return bool(meaning(before, path) == meaning(after, path))


def _is_configured(setup: Setup, change: Change) -> bool:
    """Whether the file of *change* already names gpurun, so that it is not the file from before gpurun."""
    if setup.client not in ("docker", "containerd"):
        return True  # a file of our own
    ours = setup.entry.binary
    known = [entry.binary for entry in _entries(setup.client, change.before, change.path)]
    return any(_calls(binary, {ours}) or (binary.startswith("/") and _calls(ours, {binary})) for binary in known)


def _plan_install(setup: Setup) -> list[Change]:
    path = setup.file()
    if setup.drop_in and setup.client != "containerd":
        raise UsageError(f"--drop-in is for containerd, not for {setup.client}: leave it out")
    if setup.client == "docker":
        text = read(path)
        return [
            Change(
                path,
                docker.add_runtime(text, path, _kept_default(setup.entry, docker.entry(text or "", path, setup.entry.name))),
                text,
            )
        ]
    if setup.client == "containerd":
        return _containerd(setup, path)
    main, drop_in = _main_and_own(path, setup.client)
    own = read(drop_in)
    if setup.client == "podman":
        text = toml_files.podman(drop_in, own, setup.entry, _podman_lists(main, drop_in))
        return [Change(drop_in, text, own)]
    made = toml_files.crio(main, read(main), drop_in, setup.entry, own=own)
    return [Change(file, text, own) for file, text in made]


def plan_uninstall(setup: Setup) -> tuple[Change, ...]:
    """The changes after which the client knows the runtime no more."""
    path, name = setup.file(), setup.entry.name
    if setup.client in ("podman", "crio"):
        if binary_of(setup) is None:
            return ()
        main, drop_in = _main_and_own(path, setup.client)
        there = read(drop_in) or ""
        if setup.client == "podman":
            left = toml_files.without_podman(there, drop_in, name, _podman_lists(main, drop_in))
        else:
            left = toml_files.without_crio(there, drop_in, name)
        return (Change(drop_in, left or None, there, False),)
    if setup.client == "containerd" and setup.drop_in and (ours := _plan_drop_in_removal(setup, path)):
        return ours  # else a file of version 1, which imports nothing
    made = []
    for file in [path] if setup.client == "docker" else _files_of_containerd(path):
        before = read(file)
        if before is None:
            continue
        found = (docker.entry if setup.client == "docker" else toml_files.containerd_entry)(before, file, name)
        if found is None:
            continue
        kept = read(file + KEPT)
        if _is_ours(setup.client, file, kept, before, found):
            made.append(Change(file, kept, before))
            continue
        text = (docker.remove_runtime if setup.client == "docker" else toml_files.without_containerd)(before, file, name)
        made.append(Change(file, text or (None if kept is None else kept), before, False))
        if kept is not None and _same(setup.client, file, kept, text or kept):
            made.append(Change(file + KEPT, None, kept))  # it has been written again since; there is nothing in it to keep
    return tuple(made)


def _is_ours(client: str, file: str, kept: str | None, text: str, found: RuntimeEntry) -> bool:
    """Whether *text* is what gpurun has made of *kept* (None: of no file), and it has not been changed since."""
    for cdi in (False, True):
        wanted = replace(found, cdi=cdi)
        if client == "docker":
            made = docker.add_runtime(kept, file, wanted)
        else:
            start = f"version = {toml_files.version_of(text, file)}\n" if kept is None else kept
            made = toml_files.containerd(file, start, "", wanted)[0][1]
        if made == text:
            return True
    return False


def _containerd(setup: Setup, path: str) -> list[Change]:
    """The runtime goes into the file whose table of the CRI plugin counts: containerd before 2.1 takes the last one."""
    text = read(path)
    if setup.drop_in:
        return _containerd_drop_in(setup, path, text)
    counts = _that_counts(path)
    if not counts:
        own = _beside(path, "containerd")
        imported = any(fnmatch.fnmatch(own, pattern) for pattern in toml_files.imports_of(text or "", path))
        counts = own if imported else path
    before = read(counts)
    entry = _kept_default(setup.entry, toml_files.containerd_entry(before or "", counts, setup.entry.name))
    start = before if before is not None else f"version = {_version_for(text, path)}\n"
    made_text = toml_files.containerd(counts, start, "", entry)[0][1]
    return [Change(counts, made_text, before)]


def _containerd_drop_in(setup: Setup, path: str, text: str | None) -> list[Change]:
    """A file of our own, which repeats the table of the CRI plugin of the file that counts without it."""
    own = os.path.abspath(setup.drop_in)
    before = read(own)
    counts = _that_counts(path, own)
    entry = _kept_default(setup.entry, toml_files.containerd_entry(before or "", own, setup.entry.name))
    start = text if text else f"{toml_files.MADE}version = {_version_for(text, path)}\n"
    made = toml_files.containerd(path, start, own, entry, read(counts) if counts not in ("", path) else None)
    return [Change(file, new, text if file == path else before) for file, new in made]


def _plan_drop_in_removal(setup: Setup, path: str) -> tuple[Change, ...]:
    """The file of our own goes, and so does its directory from the imports, if that was put there only for it."""
    own = os.path.abspath(setup.drop_in)
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
        if text != same and _same("containerd", path, kept, text):
            made.append(Change(path + KEPT, None, kept))  # as above, in uninstalled()
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


def _main_and_own(path: str, client: str) -> tuple[str, str]:
    """The main file of Podman or CRI-O, and the file that gpurun writes: one beside the main file *path*, or *path* itself
    where that is in the directory whose files the client reads besides."""
    directory = os.path.dirname(os.path.abspath(path))
    if os.path.basename(directory) != os.path.dirname(DROP_INS[client]):
        return path, _beside(path, client)
    return f"{os.path.dirname(directory)}/{os.path.basename(FILES[client])}", os.path.abspath(path)


def _podman_lists(path: str, own: str) -> dict[str, tuple[str, ...]]:
    """Podman's lists of runtimes, by their keys, without what the file *own* says."""
    files = [_PODMAN_FILES[0], path, *sorted(glob.glob(f"{os.path.dirname(own)}/*.conf"))]
    if os.geteuid():  # the host's files count for users too
        files[1:1] = [_PODMAN_FILES[1], *sorted(glob.glob(f"{_PODMAN_FILES[1]}.d/*.conf"))]
    lists = dict(_PODMANS)
    for key in lists:
        for file in files:
            if file != own:
                lists[key] = toml_files.podman_list(read(file) or "", file, key, lists[key])
    return lists


def binary_of(setup: Setup) -> str | None:
    """The program that the client calls for the runtime of *setup*, None where it knows no such runtime."""
    name = setup.entry.name
    if setup.client in ("podman", "crio"):
        _, drop_in = _main_and_own(setup.file(), setup.client)
        return (toml_files.podman_binary if setup.client == "podman" else toml_files.crio_binary)(
            read(drop_in) or "", drop_in, name
        )
    return next(
        (entry.binary for file in places(setup) for entry in _entries(setup.client, read(file), file) if entry.name == name),
        None,
    )


def places(setup: Setup) -> list[str]:
    """The files that `install` may change."""
    path = setup.file()
    if setup.client == "docker":
        return [path]
    if setup.client == "containerd":
        return list(dict.fromkeys([*_files_of_containerd(path), setup.drop_in or _beside(path, "containerd")]))
    return [_main_and_own(path, setup.client)[1]]


def callers(client: str, changes: tuple[Change, ...], programs: set[str], path: str = "") -> list[str]:
    """The names of the runtimes of *client* after *changes* that call one of *programs*, also by way of a script."""
    after = {change.path: change.text for change in changes}
    found = []
    for main in {path or FILES[client], FILES[client]}:
        for file in places(Setup(client, RuntimeEntry("", ""), main)):
            text = after[file] if file in after else read(file)
            found += [entry.name for entry in _entries(client, text, file) if _calls(entry.binary, programs)]
    return found


def _entries(client: str, text: str | None, file: str) -> list[RuntimeEntry]:
    return (docker.entries if client == "docker" else toml_files.containerd_entries)(text or "", file)


def _calls(binary: str, programs: set[str]) -> bool:
    """Whether *binary* is one of *programs*, or a script in which one of them stands."""
    if not binary.startswith("/"):  # not gpurun's: gpurun writes absolute paths
        return False
    if binary in programs or os.path.realpath(binary) in {os.path.realpath(program) for program in programs}:
        return True
    try:
        fd = os.open(binary, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        with open(fd, "rb") as file:
            text = file.read(_SCRIPT) if stat.S_ISREG(os.fstat(fd).st_mode) else b""
    except OSError:
        return False
    return text.startswith(b"#!") and any(program.encode() in text for program in programs)


def check_command(client: str, path: str) -> tuple[str, ...]:
    """What lets the client itself read its configuration *path*; empty where it has nothing for that, or is not here.

    Without a file a client has its built-in configuration, which needs no check; but each refuses a file that is named to it
    and not there.
    """
    if not shutil.which({"docker": "dockerd"}.get(client, client)):
        return ()
    if client == "podman":
        return ("podman", "--version")
    if client == "crio":  # which reads its directory of drop-ins also without the main file
        main, own = _main_and_own(path, client)
        return ("crio", "--config", main if os.path.exists(main) else "", "--config-dir", os.path.dirname(own), "config")
    if not os.path.exists(path):
        return ()
    if client == "containerd":
        return ("containerd", "--config", path, "config", "dump")
    done = subprocess.run(["dockerd", "--help"], capture_output=True, text=True, timeout=30)
    return ("dockerd", "--validate", "--config-file", path) if "--validate" in done.stdout else ()
