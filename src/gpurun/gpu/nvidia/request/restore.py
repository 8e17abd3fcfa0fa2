"""What restore does where a GPU of the container is gone, or leased to another container.  Pure.

By annotation, ``dev.gpurun.gpu.restore=free``, which every engine carries from create to restore; else the site says it, in
the table ``[restore]`` of /etc/gpurun/config.toml:

    [restore]
    gpus = "free"                      # same (default): the GPUs that it names or none; free: free ones in their place
    gpu-map = ["GPU-5d1f...=GPU-77a0..."]  # what --gpu-map says, of containers that had that GPU
"""

from __future__ import annotations

from gpurun.errors import ConfigError, clean
from gpurun.gpu.vendors import is_free
from gpurun.oci.annotations import GPU_RESTORE
from gpurun.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

GPUS = ("same", "free")
_TABLE = "restore."


class RestorePolicy(Record):
    """The table, with its defaults."""

    gpus: str = "same"
    gpu_map: tuple[tuple[str, str], ...] = ()


def read_restore_policy(values: Mapping[str, Any], path: str) -> RestorePolicy:
    """The policy in *values* of the file *path*, ``restore.KEY`` → value; raises :class:`ConfigError`."""
    found: dict[str, Any] = {}
    for key, value in values.items():
        if not key.startswith(_TABLE):
            continue
        where = f"{path}: {key}"
        if key == "restore.gpus":
            if value not in GPUS:
                raise ConfigError(where, f"must be one of {', '.join(GPUS)}")
            found["gpus"] = value
        elif key == "restore.gpu-map":
            if type(value) is not list or not all(type(pair) is str for pair in value):
                raise ConfigError(where, "must be an array of strings")
            found["gpu_map"] = tuple(read_map(tuple(value), where).items())
        else:
            raise ConfigError(where, "is unknown; known are gpus and gpu-map")
    return RestorePolicy(**found)


def read_map(pairs: tuple[str, ...], where: str) -> dict[str, str]:
    """``OLD=NEW``, each once, as found at *where*; raises :class:`ConfigError`."""
    found: dict[str, str] = {}
    for pair in pairs:
        old, _, new = pair.partition("=")
        if not old or not new or "," in new or is_free(new):
            raise ConfigError(where, f"{clean(pair)}: must be OLD=NEW, each a GPU by its index or UUID")
        if old in found:
            raise ConfigError(where, f"{clean(old)} is given twice")
        found[old] = new
    return found


def gpus_policy(annotations: Mapping[str, str], site: RestorePolicy) -> str:
    """One of :data:`GPUS`; raises :class:`ConfigError`."""
    value = annotations.get(GPU_RESTORE, "")
    if value and value not in GPUS:
        raise ConfigError(f"annotations.{GPU_RESTORE}", f"'{clean(value)}': must be one of {', '.join(GPUS)}")
    return value or site.gpus
