"""What the site asks for: ``/etc/gpurun/config.toml``, read at each create, absent on most hosts.

    [placement]
    memory.high = "0.9"
    memory.swap = "off"
    io.weight = 200

Names and values of ``[placement]`` are those of the annotations without their prefix (:mod:`gpurun.cgroup.placement`).
GPURUN_CONFIG in the environment of gpurun itself names another file.
"""

from __future__ import annotations

from errno import ENOENT, ENOTDIR

from gpurun.errors import ConfigError, StepError
from gpurun.linux.files import read_file

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from gpurun.cgroup.placement import Site

DEFAULT_PATH = "/etc/gpurun/config.toml"
_TABLE = "placement."


def site_path(environ: Mapping[bytes, bytes]) -> str:
    """The file that *environ* names, else the usual one."""
    return environ.get(b"GPURUN_CONFIG", b"").decode("utf-8", "surrogateescape") or DEFAULT_PATH


def read_site(path: str) -> Site | None:
    """What the file *path* asks for; None where there is none.

    Raises :class:`ConfigError` naming the line or the key that is wrong, :class:`StepError` when it cannot be read.
    """
    try:
        data = read_file(path, 1 << 20)
    except OSError as e:
        if e.errno in (ENOENT, ENOTDIR):
            return None
        raise StepError("read", path, e.errno) from None
    from gpurun.cgroup.placement import Site
    from gpurun.hook.toml import parse

    policies = []
    for key, value in parse(data.decode("utf-8", "surrogateescape"), path).items():
        if not key.startswith(_TABLE):
            raise ConfigError(f"{path}: {key}", "is unknown: the file has one table, [placement]")
        if value is True or value is False:
            value = "true" if value else "false"
        elif isinstance(value, int):
            value = str(value)
        elif not isinstance(value, str):
            raise ConfigError(f"{path}: {key}", "must be a string, a number or true or false")
        policies.append((key[len(_TABLE) :], value))
    return Site(path, tuple(policies))
