"""The one container that a person means: by its id, the first characters of it, or the name that its engine gives it.

Engines give their runtime a state directory of their own, an id of 64 digits, and seldom a name; people know the name.
"""

from __future__ import annotations

from gpurun import log
from gpurun.commands.all_containers import is_ours
from gpurun.commands.gpu_use import state_roots
from gpurun.engine import state as store
from gpurun.engine.gpus.device_edits import own_environment
from gpurun.engine.gpus.leases import open_store
from gpurun.errors import GpurunError, clean
from gpurun.gpu.leases.container_nodes import cgroup_of
from gpurun.gpu.leases.names import of_cgroup, of_container
from gpurun.linux.files import read_file
from gpurun.linux.procfs import is_alive, parent
from gpurun.oci.config import read_config
from gpurun.record import replace

TYPE_CHECKING = False
if TYPE_CHECKING:
    from gpurun.gpu.leases.names import Known
    from gpurun.invocation import Invocation

_SHORT = 12  # characters of an id, as engines show it


def find(word: str, roots: tuple[str, ...]) -> tuple[str, str]:
    """(state directory, id) of the one container in *roots* that *word* names, running or stopped.

    Raises :class:`GpurunError` where there is none, or more than one.
    """
    found = found_by(word, roots)
    if len(found) == 1:
        return found[0]
    if not found:
        raise GpurunError(
            f"container does not exist: {clean(word)} is neither an id nor the name of a container in {', '.join(roots)}"
        )
    raise _ambiguous(word, found)


def found_by(word: str, roots: tuple[str, ...]) -> list[tuple[str, str]]:
    """(state directory, id) of each container in *roots* that *word* may mean; of an id that is whole, only that one."""
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
                return [(root, container_id)]
            begins = len(word) >= _SHORT and container_id.startswith(word)
            if begins or container_id in named or word in (one.name for one in _known(root, container_id)):
                found.append((root, container_id))
    return found


def _known(root: str, container_id: str) -> tuple[Known, ...]:
    """What its engine calls the container."""
    try:
        state = store.load(root, container_id)
        config = read_config(read_file(f"{root}/{container_id}/config.json", store.MAX_SAVED_CONFIG))
        lives = bool(state.pid) and is_alive(state.pid, state.start_time)
    except (GpurunError, OSError):
        return ()
    mounts = tuple([(mount.source, mount.destination) for mount in config.mounts])
    bundle = state.bundle if is_ours(root) else ""
    known = of_container(container_id, config.annotations, mounts, parent(state.pid) if lives else 0, bundle)
    return (known, of_cgroup(cgroup_of(state.pid))) if lives else (known,)


def _ambiguous(word: str, found: list[tuple[str, str]]) -> GpurunError:
    listed = ", ".join([container_id[:64] for _, container_id in found])
    return GpurunError(f"{clean(word)} is the name of {len(found)} containers: {listed}")


def with_name(invocation: Invocation) -> Invocation:
    """*invocation* for the container that its first word names, where no container of its state directory has that id.

    As it is where nothing has that name.  `delete --force` follows no name: scripts use it for containers that may have
    gone already, and a name may be that of another container.  Raises :class:`GpurunError` for a name of several.
    """
    options = invocation.globals
    found = found_by(invocation.args[0], state_roots(options.root, options.root_given))
    if not found:
        return invocation
    if len(found) > 1:
        raise _ambiguous(invocation.args[0], found)
    root, container_id = found[0]
    if invocation.command == "delete" and invocation.flag("force"):
        command = f"gpurun --root {root} delete --force {container_id}"
        log.warning(f"no container has the id {clean(invocation.args[0])}: `{command}` removes the one of that name")
        return invocation
    args = (container_id, *invocation.args[1:])
    return replace(invocation, args=args, globals=replace(options, root=root))
