"""What a state directory keeps for later commands: what devices have added for exec, the GPUs, the seccomp filter."""

from __future__ import annotations

import posix

from gpurun.decimals import decimal
from gpurun.errors import GpurunError
from gpurun.linux.files import read_file, write_atomically

TYPE_CHECKING = False
if TYPE_CHECKING:
    from gpurun.gpu.vendors import GivenGpu

#: The record of a change of GPUs (:class:`gpurun.engine.gpus.attached.GpuChange`).
CHANGE = "gpu-change"


def save_edits(root: str, container_id: str, env: tuple[str, ...], gids: tuple[int, ...]) -> None:
    """Keep what exec must add to each process; nothing is written when there is nothing."""
    if env or gids:
        text = "\0".join([" ".join([str(gid) for gid in gids]), *env])
        write_atomically(f"{root}/{container_id}/edits", text.encode("utf-8", "surrogateescape"), 0o600)


def load_edits(root: str, container_id: str) -> tuple[tuple[str, ...], tuple[int, ...]]:
    """(variables, groups) that :func:`save_edits` has kept."""
    try:
        text = read_file(f"{root}/{container_id}/edits").decode("utf-8", "surrogateescape")
    except FileNotFoundError:
        return (), ()
    gids, *env = text.split("\0")
    return tuple(env), _numbers(f"{root}/{container_id}/edits", gids)


def is_changing(root: str, container_id: str) -> bool:
    """Whether an attach or a detach has been begun and not ended."""
    return posix.access(f"{root}/{container_id}/{CHANGE}", posix.F_OK)


def save_gpus(root: str, container_id: str, gpus: tuple[GivenGpu, ...]) -> None:
    """Keep which GPUs the container has, for what it is asked of their use; nothing is written when it has none."""
    if gpus:
        text = " ".join([gpu.text for gpu in gpus])
        write_atomically(f"{root}/{container_id}/gpus", text.encode("utf-8", "surrogateescape"), 0o600)


def load_given(root: str, container_id: str) -> tuple[GivenGpu, ...]:
    """The GPUs that :func:`save_gpus` has kept, or an older gpurun has.  Raises :class:`GpurunError` for a damaged file."""
    from gpurun.gpu.vendors import read_given

    path = f"{root}/{container_id}/gpus"
    try:
        return tuple([read_given(word) for word in read_file(path).decode("utf-8", "surrogateescape").split()])
    except FileNotFoundError:
        return ()
    except ValueError:
        raise GpurunError(f"{path} is damaged: it does not list GPUs") from None


def _numbers(path: str, text: str) -> tuple[int, ...]:
    numbers = [decimal(word) for word in text.split()]
    found = tuple([number for number in numbers if number is not None])
    if len(found) < len(numbers):
        raise GpurunError(f"{path} is damaged: it does not list numbers")
    return found


def save_seccomp(root: str, container_id: str, program: bytes, flags: int) -> None:
    """Keep the container's filter for exec."""
    write_atomically(f"{root}/{container_id}/seccomp", flags.to_bytes(8, "little") + program, 0o600)


def load_seccomp(root: str, container_id: str) -> tuple[bytes, int] | None:
    """(program, flags) that :func:`save_seccomp` has kept; None for a container without a filter."""
    try:
        data = read_file(f"{root}/{container_id}/seccomp")
    except FileNotFoundError:
        return None
    return data[8:], int.from_bytes(data[:8], "little")
