"""NVIDIA_GPU_MEMORY_REQUEST and NVIDIA_GPU_MEMORY_LIMIT: how much of each of its GPUs' memory a container is to have.  Pure.

The variables are those of the hook ``apply-cuda-memory-limits`` of NVIDIA's toolkit 1.20.1, in MiB: the request is the soft
limit, of the two that NVML knows, and as large as the limit unless it is named.  What went before that hook wrote them in
the plural.
"""

from __future__ import annotations

from gpurun.decimals import decimal
from gpurun.errors import ConfigError, clean

_REQUEST = ("NVIDIA_GPU_MEMORY_REQUEST", "NVIDIA_GPU_MEMORY_REQUESTS")
_LIMIT = ("NVIDIA_GPU_MEMORY_LIMIT", "NVIDIA_GPU_MEMORY_LIMITS")
_MAX_MIB = (1 << 44) - 1


def read_memory_limits(env: tuple[str, ...], no_limit: int) -> tuple[int, int, str] | None:
    """(soft limit, hard limit, where) in bytes that ``process.env`` asks for; None for none.

    *no_limit* stands for a limit that is not named.  Raises :class:`ConfigError`.
    """
    variables = dict([e.partition("=")[::2] for e in env if e.startswith((_REQUEST[0], _LIMIT[0]))])
    request = next((name for name in _REQUEST if name in variables), "")
    limit = next((name for name in _LIMIT if name in variables), "")
    if not request and not limit:
        return None
    hard = _bytes(limit, variables[limit]) if limit else no_limit
    soft = _bytes(request, variables[request]) if request else hard
    if soft > hard:
        text = f"{soft >> 20} MiB are more than the limit, the {hard >> 20} MiB of {limit}"
        raise ConfigError(f"process.env {request}", text)
    return soft, hard, f"process.env {limit or request}"


def _bytes(name: str, value: str) -> int:
    number = decimal(value, _MAX_MIB)
    if number is None:
        raise ConfigError(f"process.env {name}", f"'{clean(value)}' must be a number of MiB, such as 8192")
    return number << 20
