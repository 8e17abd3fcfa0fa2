"""What the site asks for: ``/etc/gpurun/config.toml``, read at each create, absent on most hosts.

    [placement]
    memory.high = "0.9"
    memory.swap = "off"
    io.weight = 200

    [leases]
    shared = "refuse"

    [shares]
    allow = "annotations"

    [restore]
    gpus = "free"

    [amd]
    unknown = "ignore"

``[leases]`` and ``[shares]`` are of :mod:`gpurun.gpu.leases.policy`, ``[restore]`` of
:mod:`gpurun.gpu.nvidia.request.restore`; a maker's table is for devices that the host does not have
(:class:`gpurun.gpu.vendors.Vendor`). Names and values of ``[placement]`` are those of the annotations without their
prefix (:mod:`gpurun.cgroup.placement`). GPURUN_CONFIG in the environment of gpurun itself names another file, which must be
there.
"""

from __future__ import annotations

import posix
from errno import ENOENT, ENOTDIR

from gpurun.errors import ConfigError, GpurunError, StepError, clean
from gpurun.gpu.vendors import IGNORE_UNKNOWN, REFUSE_UNKNOWN, VENDORS
from gpurun.linux.files import read_file

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from gpurun.cgroup.placement import Site
    from gpurun.gpu.leases.policy import LeasePolicy, SharePolicy
    from gpurun.gpu.nvidia.request.restore import RestorePolicy

DEFAULT_PATH = "/etc/gpurun/config.toml"
_TABLE = "placement."
_MAKERS = tuple([(f"{vendor.name}.", vendor.unknown) for vendor in VENDORS if vendor.unknown])
_OTHERS = ("leases.", "shares.", "restore.", *[table for table, _ in _MAKERS])
_TABLES = ", ".join(["[placement]", *[f"[{table.rstrip('.')}]" for table in _OTHERS]])


def site_path(environ: Mapping[bytes, bytes]) -> str:
    """The file that *environ* names, else the usual one, which need not be there.

    Raises :class:`ConfigError` for a file that is named and is not there: the policies in it would not hold.
    """
    path = environ.get(b"GPURUN_CONFIG", b"").decode("utf-8", "surrogateescape")
    if not path:
        return DEFAULT_PATH
    try:
        posix.stat(path)
    except OSError as e:
        if e.errno in (ENOENT, ENOTDIR):
            raise ConfigError("GPURUN_CONFIG", f"there is no file {clean(path)}") from None
    return path


def site_mistakes(environ: Mapping[bytes, bytes]) -> tuple[str, ...]:
    """What is wrong with the site's file: the first mistake of each table, or why it cannot be read at all."""
    try:
        path = site_path(environ)
    except ConfigError as e:
        return (str(e),)
    found = []
    for read in (_read_placement, read_leases, read_shares, read_restore, read_unknown):
        try:
            read(path)
        except GpurunError as e:
            found.append(str(e))
    return tuple(dict.fromkeys(found))  # a file that is no TOML is the same mistake each time


def _read_placement(path: str) -> None:
    site = read_site(path)
    if site is not None:
        from gpurun.cgroup.placement import read_policies

        read_policies({}, site)


def read_site(path: str) -> Site | None:
    """What the file *path* asks for; None where there is none.

    Raises :class:`ConfigError` naming the line or the key that is wrong, :class:`StepError` when it cannot be read.
    """
    values = _values(path)
    if values is None:
        return None
    from gpurun.cgroup.placement import Site

    policies = []
    for key, value in values.items():
        if key.startswith(_OTHERS):
            continue
        if not key.startswith(_TABLE):
            raise ConfigError(f"{path}: {key}", f"is unknown: the tables of this file are {_TABLES}")
        if value is True or value is False:
            value = "true" if value else "false"
        elif isinstance(value, int):
            value = str(value)
        elif not isinstance(value, str):
            raise ConfigError(f"{path}: {key}", "must be a string, a whole number, or true or false")
        policies.append((key[len(_TABLE) :], value))
    return Site(path, tuple(policies))


def read_leases(path: str) -> LeasePolicy:
    """What the file *path* says of leases of GPUs; raises as :func:`read_site`."""
    from gpurun.gpu.leases.policy import read_policy

    return read_policy(_values(path) or {}, path)


def read_shares(path: str) -> SharePolicy:
    """What the file *path* says of shares of a GPU; raises as :func:`read_site`."""
    from gpurun.gpu.leases.policy import read_share_policy

    return read_share_policy(_values(path) or {}, path)


def read_restore(path: str) -> RestorePolicy:
    """What the file *path* says of restored containers; raises as :func:`read_site`."""
    from gpurun.gpu.nvidia.request.restore import read_restore_policy

    return read_restore_policy(_values(path) or {}, path)


def read_unknown(path: str) -> dict[str, str]:
    """Variable → value, of what the file *path* says of devices that the host does not have; raises as :func:`read_site`."""
    values = _values(path) or {}
    found = {}
    for table, variable in _MAKERS:
        for key, value in values.items():
            if not key.startswith(table):
                continue
            if key != f"{table}unknown":
                raise ConfigError(f"{path}: {key}", f"is unknown: the table [{table.rstrip('.')}] has one key, unknown")
            if value not in (REFUSE_UNKNOWN, IGNORE_UNKNOWN):
                raise ConfigError(f"{path}: {key}", f'must be "{REFUSE_UNKNOWN}" or "{IGNORE_UNKNOWN}"')
            found[variable] = str(value)
    return found


def _values(path: str) -> dict[str, Any] | None:
    try:
        data = read_file(path)
    except OSError as e:
        if e.errno in (ENOENT, ENOTDIR):
            return None
        raise StepError("read", path, e.errno) from None
    from gpurun.document_cache import read_toml

    return read_toml(data, path)
