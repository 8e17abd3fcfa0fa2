"""gpu attach, gpu detach, update --gpus: GPUs that come to a running container and go.

A container is named by its id in any state directory that is known, or by the name that its engine gives it.
"""

from __future__ import annotations

from gpurun import log
from gpurun.commands.gpu_use import state_roots
from gpurun.engine import state as store
from gpurun.engine.caller import attach as engine
from gpurun.engine.caller.device_edits import own_environment
from gpurun.engine.caller.leases import open_store
from gpurun.errors import GpurunError, UsageError, shown
from gpurun.gpu.leases.names import of_cgroup, of_container
from gpurun.gpu.leases.seen import cgroup_of
from gpurun.linux.procfs import is_alive, parent
from gpurun.oci.config import read_config

TYPE_CHECKING = False
if TYPE_CHECKING:
    from gpurun.invocation import Invocation

_SHORT = 12  # characters of an id, as engines show it


def attach(words: tuple[str, ...], invocation: Invocation) -> int:
    """``gpu attach CONTAINER DEVICE...``; returns the exit code."""
    root, container_id, devices = _arguments("attach", words, invocation)
    _tell(engine.attach(root, container_id, devices, invocation.option("capabilities")))
    return 0


def detach(words: tuple[str, ...], invocation: Invocation) -> int:
    """``gpu detach CONTAINER DEVICE...``; returns the exit code."""
    root, container_id, devices = _arguments("detach", words, invocation)
    _tell(engine.detach(root, container_id, devices, invocation.flag("force")))
    return 0


def _arguments(what: str, words: tuple[str, ...], invocation: Invocation) -> tuple[str, str, tuple[str, ...]]:
    if len(words) < 2:
        raise UsageError(f"gpu {what}: name a container and the devices, such as `gpurun gpu {what} web-1 0`")
    roots = state_roots(invocation.globals.root, invocation.globals.root_given)
    root, container_id = find(words[0], roots)
    devices = tuple([part.strip() for word in words[1:] for part in word.split(",") if part.strip()])
    return root, container_id, devices


def find(word: str, roots: tuple[str, ...]) -> tuple[str, str]:
    """(state directory, id) of the one container that *word* names.  Raises :class:`GpurunError`."""
    try:
        named = {lease.id for lease in open_store(own_environment()).own_leases() if lease.name == word}
    except GpurunError:
        named = set()  # an id, or a name that its engine has written down, does without
    found = []
    for root in roots:
        try:
            ids = store.container_ids(root)
        except OSError:
            continue
        for container_id in ids:
            if word == container_id:
                return root, container_id
            begins = len(word) >= _SHORT and container_id.startswith(word)
            if begins or container_id in named or _is_called(root, container_id, word):
                found.append((root, container_id))
    if len(found) == 1:
        return found[0]
    if not found:
        raise GpurunError(f"container does not exist: {shown(word)} is no id and no name of one in {', '.join(roots)}")
    raise GpurunError(f"{shown(word)} is the name of {len(found)} containers: {', '.join([one[1][:64] for one in found])}")


def _is_called(root: str, container_id: str, word: str) -> bool:
    """Whether the engine of a container that lives calls it *word*."""
    try:
        state = store.load(root, container_id)
        if not is_alive(state.pid, state.start_time):
            return False
        with open(f"{root}/{container_id}/config.json", "rb") as file:
            config = read_config(file.read())
    except (GpurunError, OSError):
        return False
    mounts = tuple([(mount.source, mount.destination) for mount in config.mounts])
    known = of_container(container_id, config.annotations, mounts, parent(state.pid))
    return word in (known.name, of_cgroup(cgroup_of(state.pid)).name)


def _tell(warnings: tuple[str, ...]) -> None:
    for warning in warnings:
        log.warning(warning)
