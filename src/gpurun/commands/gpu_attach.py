"""gpu attach, gpu detach, update --gpus: GPUs that come to a running container and go.

A container is named by its id in any state directory that is known, or by the name that its engine gives it.
"""

from __future__ import annotations

from gpurun import log
from gpurun.commands.containers import find
from gpurun.commands.gpu_use import state_roots
from gpurun.engine.gpus import attach as engine
from gpurun.errors import UsageError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from gpurun.invocation import Invocation


def attach(words: tuple[str, ...], invocation: Invocation) -> int:
    """``gpu attach CONTAINER DEVICE...``; returns the exit code."""
    root, container_id, devices = _arguments("attach", words, invocation)
    log.warnings(engine.attach(root, container_id, devices, invocation.option("capabilities")))
    return 0


def detach(words: tuple[str, ...], invocation: Invocation) -> int:
    """``gpu detach CONTAINER DEVICE...``; returns the exit code."""
    root, container_id, devices = _arguments("detach", words, invocation)
    log.warnings(engine.detach(root, container_id, devices, invocation.flag("force")))
    return 0


def _arguments(what: str, words: tuple[str, ...], invocation: Invocation) -> tuple[str, str, tuple[str, ...]]:
    if len(words) < 2:
        raise UsageError(f"gpu {what}: name a container and the devices, such as `gpurun gpu {what} web-1 0`")
    roots = state_roots(invocation.globals.root, invocation.globals.root_given)
    root, container_id = find(words[0], roots)
    devices = tuple([part.strip() for word in words[1:] for part in word.split(",") if part.strip()])
    return root, container_id, devices
