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

#: The CRI plugin's table, by the version of the configuration.
_CRI = {
    1: ("plugins", "cri"),
    2: ("plugins", "io.containerd.grpc.v1.cri"),
    3: ("plugins", "io.containerd.cri.v1.runtime"),
}
_SHIM = "io.containerd.runc.v2"
_DIRECTORY_PATTERN = "*.toml"


class RuntimeEntry(Record):
    """The runtime to tell of: *name*, the program *binary*, whether it is the *default*, whether to turn *cdi* on."""

    name: str
    binary: str
    default: bool = False
    cdi: bool = False


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
    version = _version(main if text else source if effective else {"version": 2}, path)
    if version == 1 or not drop_in:
        if version > 1:
            main["version"] = version
        _containerd_runtime(_table(main, _CRI[version], path), _find(source, _CRI[version]), version, wanted, path)
        return [(path, tomlkit.dumps(main))]
    extra = tomlkit.document()
    extra["version"] = version
    table = _table(extra, _CRI[version], drop_in)
    for key, value in _find(source, _CRI[version]).items():
        table[key] = _plain(value)
    _containerd_runtime(table, _find(source, _CRI[version]), version, wanted, drop_in)
    written = [(drop_in, tomlkit.dumps(extra))]
    pattern = f"{os.path.dirname(drop_in)}/{_DIRECTORY_PATTERN}"
    imports = main.get("imports", [])
    if not isinstance(imports, list):
        raise ConfigError(f"{path}: imports", "is not an array")
    if not any(fnmatch.fnmatch(drop_in, _absolute(str(i), path)) for i in imports):
        main["version"] = version
        main["imports"] = [*imports, pattern]
        written.insert(0, (path, _imports_first(main)))
    return written


def crio(
    path: str, text: str | None, drop_in: str, wanted: RuntimeEntry, effective: str | None = None
) -> list[tuple[str, str]]:
    """(file, content) to write for CRI-O, which reads the files of ``crio.conf.d`` by itself.  CDI is always on there."""
    main = _parse(text or "", path)
    source = main if effective is None else _parse(effective, "`crio status config`")
    runtimes = _find(source, ("crio", "runtime", "runtimes"))
    target = tomlkit.document() if drop_in else main
    where = drop_in or path
    runtime = _table(target, ("crio", "runtime"), where)
    if wanted.default:
        runtime["default_runtime"] = wanted.name
    like: dict[str, Any] = next((runtimes[n] for n in ("runc", "crun") if isinstance(runtimes.get(n), dict)), {})
    entry = {k: _plain(v) for k, v in like.items()} | {"runtime_path": wanted.binary, "runtime_type": "oci"}
    entry.pop("runtime_root", None)  # the states of two runtimes do not go into one directory
    _table(runtime, ("runtimes",), where)[wanted.name] = entry
    return [(where, tomlkit.dumps(target))]


def _containerd_runtime(table: Any, source: dict[str, Any], version: int, wanted: RuntimeEntry, path: str) -> None:
    section = _table(table, ("containerd",), path)
    runtimes = _table(section, ("runtimes",), path)
    entry = _like(source, wanted.name)
    entry.setdefault("options", {})["BinaryName"] = wanted.binary
    if version == 1:
        entry["options"]["Runtime"] = wanted.binary
    runtimes[wanted.name] = entry
    if wanted.default:
        section["default_runtime_name"] = wanted.name
        if version == 1:
            section["default_runtime"] = copy.deepcopy(entry)
    if wanted.cdi:
        table["enable_cdi"] = True


def _like(source: dict[str, Any], name: str) -> dict[str, Any]:
    """A runtime's table like that of the default runtime, else of runc or crun, else what containerd itself assumes."""
    section = source.get("containerd", {})
    runtimes = section.get("runtimes", {})
    for candidate in (section.get("default_runtime_name"), "runc", "crun"):
        if candidate and candidate != name and isinstance(runtimes.get(candidate), dict):
            found: dict[str, Any] = _plain(runtimes[candidate])
            return found
    return {
        "runtime_type": _SHIM, "runtime_root": "", "runtime_engine": "", "privileged_without_host_devices": False,
    }  # fmt: skip


def _parse(text: str, source: str) -> Any:
    try:
        return tomlkit.parse(text)
    except TOMLKitError as e:
        raise ConfigError(source, f"is not TOML: {e}") from None


def _version(document: Any, path: str) -> int:
    version = document.get("version", 1)
    if version not in _CRI:
        raise ConfigError(f"{path}: version", f"{version} is unknown, known are 1, 2 and 3")
    return int(version)


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
