"""The configurations of containerd and CRI-O, edited with tomlkit: comments and order stay."""

from __future__ import annotations

import copy
import fnmatch
import os
from typing import Any

import tomlkit
from tomlkit.exceptions import TOMLKitError

from gpurun.errors import ConfigError
from gpurun.record import Record

#: The CRI plugin's table, by the version of the configuration; later versions have that of 3.
_CRI = {
    1: ("plugins", "cri"),
    2: ("plugins", "io.containerd.grpc.v1.cri"),
    3: ("plugins", "io.containerd.cri.v1.runtime"),
}
_DEFAULT_VERSION = 2  # of a file that is made: every containerd since 1.3 reads it
_SHIM = "io.containerd.runc.v2"
#: The runtime that containerd knows by itself, where no file names any.
_RUNC = {"runtime_type": _SHIM}
_DIRECTORY_PATTERN = "*.toml"
#: Keys of Podman's ``[engine]``.  Since Podman 2.1 its code reads the second one in the singular, which no version of the
#: manual page says; a key that it does not know it leaves out with a warning in its log.
PODMAN_JSON = "runtime_supports_json"
PODMAN_NO_CGROUP = "runtime_supports_nocgroup"
#: Begins a file that was made only to import another one, and goes with that.
MADE = "# Made by gpurun, for what it imports.\n"


class RuntimeEntry(Record):
    """The runtime to tell of: *name*, the program *binary*, whether it is the *default*, whether to turn *cdi* on.

    Its options are those of the default runtime, unless the name of that begins with *unlike*.
    """

    name: str
    binary: str
    default: bool = False
    cdi: bool = False
    unlike: str = ""


def containerd(
    path: str, text: str | None, drop_in: str, wanted: RuntimeEntry, effective: str | None = None
) -> list[tuple[str, str]]:
    """(file, content) to write for containerd.

    *text* is the file at *path* (None: there is none) and *effective* what ``containerd config dump`` says, when it was
    asked.  From version 2 on, what is new goes to the file *drop_in* (unless that is empty), which has to repeat the whole
    table of the CRI plugin: containerd before 2.1 takes the tables of plugins whole from the last file that has them.
    """
    main = _parse(text or "", path)
    source = main if effective is None else _parse(effective, "`containerd config dump`")
    version = _version(main if text else source if effective else {"version": _DEFAULT_VERSION}, path)
    cri = _CRI[min(version, max(_CRI))]
    if version == 1 or not drop_in:  # a file of version 1 imports nothing
        _set_version(main, version)
        _containerd_runtime(_table(main, cri, path), _find(source, cri), version, wanted, path)
        return [(path, tomlkit.dumps(main))]
    extra = tomlkit.document()
    extra["version"] = version
    table = _table(extra, cri, drop_in)
    for key, value in _find(source, cri).items():
        table[key] = _plain(value)
    _containerd_runtime(table, _find(source, cri), version, wanted, drop_in)
    written = [(drop_in, tomlkit.dumps(extra))]
    imported = with_import(tomlkit.dumps(main), path, drop_in, version)
    if imported != text:
        written.insert(0, (path, imported))
    return written


def pattern_of(drop_in: str) -> str:
    """What containerd's file imports to read the file *drop_in*: all of its directory."""
    return f"{os.path.dirname(drop_in)}/{_DIRECTORY_PATTERN}"


def with_import(text: str, path: str, drop_in: str, version: int = 0) -> str:
    """containerd's file *path*, which imports the file *drop_in*; as it is when it does already.

    Raises :class:`ConfigError` where ``imports`` is not an array.
    """
    main = _parse(text, path)
    imports = main.get("imports", [])
    if not isinstance(imports, list):
        raise ConfigError(f"{path}: imports", "is not an array")
    if any(fnmatch.fnmatch(drop_in, _absolute(str(i), path)) for i in imports):
        return text
    _set_version(main, version or _version(main, path))
    main["imports"] = [*imports, pattern_of(drop_in)]
    return _imports_first(main)


def without_import(text: str, path: str, pattern: str) -> str:
    """containerd's file *path*, which imports *pattern* no more."""
    main = _parse(text, path)
    left = [i for i in main.get("imports", []) if _absolute(str(i), path) != pattern]
    if left:
        main["imports"] = left
    else:
        main.pop("imports", None)
    return tomlkit.dumps(main)


def imports_alone(text: str, path: str, pattern: str) -> bool:
    """Whether containerd's file *path* was made to import *pattern*, and says nothing else."""
    main = meaning(text, path)
    return text.startswith(MADE) and set(main) <= {"version", "imports"} and imports_of(text, path) == [pattern]


def has_cri(text: str, path: str) -> bool:
    """Whether containerd's file *path* says something of the runtimes of the CRI plugin."""
    document = _parse(text, path)
    return any(_find(document, (*names, "containerd")) for names in _CRI.values())


def imports_of(text: str, path: str) -> list[str]:
    """The patterns of the files that containerd's file *path* imports, absolute."""
    patterns = _parse(text, path).get("imports", [])
    return [_absolute(str(pattern), path) for pattern in patterns] if isinstance(patterns, list) else []


def containerd_entry(text: str, path: str, name: str) -> RuntimeEntry | None:
    """What containerd's file *path* says of the runtime *name*; None when that is nothing."""
    return next((entry for entry in containerd_entries(text, path) if entry.name == name), None)


def containerd_entries(text: str, path: str) -> list[RuntimeEntry]:
    """The runtimes that containerd's file *path* names."""
    document = _parse(text, path)
    found = []
    for names in _CRI.values():
        section = _find(document, (*names, "containerd"))
        for name, entry in _find(section, ("runtimes",)).items():
            if isinstance(entry, dict) and entry:
                binary = str(_find(entry, ("options",)).get("BinaryName", ""))
                found.append(RuntimeEntry(name, binary, section.get("default_runtime_name") == name))
    return found


def without_containerd(text: str, path: str, name: str) -> str:
    """containerd's file *path* without the runtime *name*; empty when nothing but a version would be left."""
    document = _parse(text, path)
    for names in _CRI.values():
        section = _find(document, (*names, "containerd"))
        runtimes = _find(section, ("runtimes",))
        if name in runtimes:
            del runtimes[name]
        if _plain(runtimes) == {"runc": _RUNC}:  # what containerd has where nothing is said
            del runtimes["runc"]
        if section.get("default_runtime_name") == name:
            if "runc" in runtimes:
                section["default_runtime_name"] = "runc"
            else:
                del section["default_runtime_name"]
        for depth in range(len(names) + 2, 0, -1):  # tables that were made for it
            *outer, last = (*names, "containerd", "runtimes")[:depth]
            parent = _find(document, tuple(outer))
            if last in parent and not parent[last]:
                del parent[last]
    return "" if set(document) <= {"version"} else tomlkit.dumps(document)


def version_of(text: str, path: str) -> int:
    """The version of containerd's file *path*.  Raises :class:`ConfigError`."""
    return _version(_parse(text, path), path)


def podman(path: str, text: str | None, wanted: RuntimeEntry, lists: dict[str, tuple[str, ...]]) -> str:
    """Our file *path* of Podman's drop-ins, containers.conf(5), with the runtime *wanted* besides those that *text* has.

    *lists* has the other runtimes that report errors as JSON (:data:`PODMAN_JSON`), and those that Podman calls for
    ``--cgroups=disabled`` (:data:`PODMAN_NO_CGROUP`).
    """
    engine = _find(_parse(text or "", path), ("engine",))
    runtimes = {
        **{name: _plain(value) for name, value in _find(engine, ("runtimes",)).items()},
        wanted.name: [wanted.binary],
    }
    default = str(engine.get("runtime", ""))
    if default == wanted.name:
        default = ""
    return _podman_text(wanted.name if wanted.default else default, runtimes, lists)


def without_podman(text: str, path: str, name: str, lists: dict[str, tuple[str, ...]]) -> str:
    """Our file *path* without the runtime *name*; empty when it has no other one."""
    engine = _find(_parse(text, path), ("engine",))
    runtimes = {key: _plain(value) for key, value in _find(engine, ("runtimes",)).items() if key != name}
    default = str(engine.get("runtime", ""))
    return _podman_text("" if default == name else default, runtimes, lists) if runtimes else ""


def _podman_text(default: str, runtimes: dict[str, Any], lists: dict[str, tuple[str, ...]]) -> str:
    engine = tomlkit.table()
    if default:
        engine["runtime"] = default
    for key, others in lists.items():
        engine[key] = [*[name for name in others if name not in runtimes], *runtimes]
    engine["runtimes"] = runtimes
    document = tomlkit.document()
    document["engine"] = engine
    return tomlkit.dumps(document)


def podman_binary(text: str, path: str, name: str) -> str | None:
    """The first program of the runtime *name* in Podman's file *path*; None where it has no such runtime."""
    paths = _find(_parse(text, path), ("engine", "runtimes")).get(name)
    return str(paths[0]) if isinstance(paths, list) and paths else None


def crio_binary(text: str, path: str, name: str) -> str | None:
    """The program of the runtime *name* in CRI-O's file *path*; None where it has no such runtime."""
    entry = _find(_parse(text, path), ("crio", "runtime", "runtimes")).get(name)
    return str(entry.get("runtime_path", "")) if isinstance(entry, dict) else None


def without_crio(text: str, path: str, name: str) -> str:
    """Our file *path* of CRI-O's drop-ins without the runtime *name*; empty when it has no other one."""
    document = _parse(text, path)
    runtime = _find(document, ("crio", "runtime"))
    runtimes = _find(runtime, ("runtimes",))
    runtimes.pop(name, None)
    if runtime.get("default_runtime") == name:
        del runtime["default_runtime"]
    return tomlkit.dumps(document) if runtimes else ""


def podman_list(text: str, path: str, key: str, before: tuple[str, ...]) -> tuple[str, ...]:
    """The list *key* of ``[engine]`` after Podman's file *path*; *before* is what the files read earlier have left.

    A list replaces the earlier one, unless it has ``{append = true}`` among its values (containers.conf(5)).
    """
    found = _find(_parse(text, path), ("engine",)).get(key)
    if not isinstance(found, list):
        return before
    names = tuple([str(name) for name in found if isinstance(name, str)])
    appends = any(isinstance(value, dict) and value.get("append") is True for value in found)
    return before + names if appends else names


def crio(
    path: str, text: str | None, drop_in: str, wanted: RuntimeEntry, effective: str | None = None, own: str | None = None
) -> list[tuple[str, str]]:
    """(file, content) to write for CRI-O, which reads the files of ``crio.conf.d`` by itself.  CDI is always on there.

    *own* is what *drop_in* has already: other runtimes in it stay.
    """
    main = _parse(text or "", path)
    source = main if effective is None else _parse(effective, "`crio status config`")
    section = _find(source, ("crio", "runtime"))
    like = _like(_find(source, ("crio", "runtime", "runtimes")), section.get("default_runtime"), wanted) or {}
    target = _parse(own or "", drop_in) if drop_in else main
    target_file = drop_in or path
    runtime = _table(target, ("crio", "runtime"), target_file)
    _set_default(runtime, "default_runtime", wanted)
    entry = like | {"runtime_path": wanted.binary, "runtime_type": "oci"}
    entry.pop("runtime_root", None)  # the states of two runtimes do not go into one directory
    _table(runtime, ("runtimes",), target_file)[wanted.name] = entry
    return [(target_file, tomlkit.dumps(target))]


def _containerd_runtime(table: Any, source: dict[str, Any], version: int, wanted: RuntimeEntry, path: str) -> None:
    section = _table(table, ("containerd",), path)
    runtimes = _table(section, ("runtimes",), path)
    like = _find(source, ("containerd",))
    entry = _like(_find(like, ("runtimes",)), like.get("default_runtime_name"), wanted)
    if entry in (None, _RUNC):
        entry = {
            "runtime_type": _SHIM, "runtime_root": "", "runtime_engine": "", "privileged_without_host_devices": False,
        }  # fmt: skip
    if not entry.get("runtime_type"):
        entry["runtime_type"] = _SHIM
    _set_binary(entry, version, wanted)
    if version < 3 and not runtimes and not wanted.unlike:
        # containerd 1 takes the table whole: its own runc, which is the default runtime of pods, would be gone.
        runtimes["runc"] = dict(_RUNC)
    runtimes[wanted.name] = entry
    _set_default(section, "default_runtime_name", wanted)
    if wanted.default and version == 1 and isinstance(section.get("default_runtime"), dict):
        _set_binary(section["default_runtime"], version, wanted)  # it counts before default_runtime_name
    if wanted.cdi:
        table["enable_cdi"] = True


def _set_binary(entry: Any, version: int, wanted: RuntimeEntry) -> None:
    options = entry.setdefault("options", {})
    options["BinaryName"] = wanted.binary
    if version == 1:
        options["Runtime"] = wanted.binary


def _set_default(section: Any, key: str, wanted: RuntimeEntry) -> None:
    """Make it the default runtime, or see that it is not."""
    if wanted.default:
        section[key] = wanted.name
    elif section.get(key) == wanted.name:
        del section[key]


def _like(runtimes: dict[str, Any], default: object, wanted: RuntimeEntry) -> dict[str, Any] | None:
    """A copy of the table of the *default* runtime, unless *wanted* is not to be like it; else of runc, else of crun."""
    own = wanted.unlike and isinstance(default, str) and default.startswith(wanted.unlike)
    first = default if isinstance(default, str) and not own else ""
    for name in (first, "runc", "crun"):
        if name and isinstance(runtimes.get(name), dict):
            return {key: _plain(value) for key, value in runtimes[name].items()}
    return None


def _parse(text: str, source: str) -> Any:
    try:
        return tomlkit.parse(text)
    except TOMLKitError as e:
        raise ConfigError(source, f"is not TOML: {e}") from None
    except RecursionError:
        raise ConfigError(source, "is nested too deeply") from None


def meaning(text: str, path: str) -> Any:
    """What the file *path* says: its values, without how they are written; a table without keys says nothing."""
    return _said(_plain(_parse(text, path)))


def _said(value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    found = {key: _said(one) for key, one in value.items()}
    return {key: one for key, one in found.items() if one != {}}


def _version(document: Any, path: str) -> int:
    version = document.get("version", 1)
    if not isinstance(version, int) or version < 1:
        raise ConfigError(f"{path}: version", f"{version} is not a version of containerd's configuration")
    return int(version)


def _set_version(document: Any, version: int) -> None:
    if document.get("version") != version:
        document["version"] = version


def _table(parent: Any, names: tuple[str, ...], path: str) -> Any:
    """The table *names* below *parent*, made where it is not there."""
    for name in names:
        if name not in parent:
            parent[name] = tomlkit.table(is_super_table=name != names[-1])
        parent = parent[name]
        if not isinstance(parent, dict):
            raise ConfigError(f"{path}: {name}", "is not a table")
    return parent


def _find(document: dict[str, Any], names: tuple[str, ...]) -> dict[str, Any]:
    """The table *names* of *document*, empty when there is none."""
    for name in names:
        document = document.get(name, {})
        if not isinstance(document, dict):
            raise ConfigError(name, "is not a table")
    return document


def _plain(value: Any) -> Any:
    """*value* without tomlkit's memory of where it stood."""
    return value.unwrap() if hasattr(value, "unwrap") else copy.deepcopy(value)


def _absolute(pattern: str, path: str) -> str:
    return pattern if pattern.startswith("/") else f"{os.path.dirname(os.path.abspath(path))}/{pattern}"


def _imports_first(document: Any) -> str:
    """The text of *document* with ``imports`` before the first table, where TOML wants a top-level key."""
    text = tomlkit.dumps(document)
    if tomlkit.parse(text).get("imports") != document["imports"]:
        raise AssertionError("imports ended in a table")
    return text
