"""A CDI specification moved to another root (``cdi transform root``): paths below *old* become paths below *new*.

Pure.  For a specification that was made in a container (a driver container sees the host at another place) or is to be
used in one.
"""

from __future__ import annotations

from gpurun.errors import UsageError
from gpurun.record import replace

TYPE_CHECKING = False
if TYPE_CHECKING:
    from gpurun.cdi.document import CdiEdits, CdiHook, CdiSpec

SIDES = ("host", "container")


def transform_root(spec: CdiSpec, old: str, new: str, relative_to: str = "host") -> CdiSpec:
    """*spec* with the paths of the side *relative_to* (``host`` or ``container``) moved.  Raises :class:`UsageError`."""
    if relative_to not in SIDES:
        raise UsageError(f'--relative-to: "{relative_to}" is neither {SIDES[0]} nor {SIDES[1]}')
    if old == new:
        return spec
    host = relative_to == "host"
    return replace(
        spec,
        edits=_edits(spec.edits, old, new, host),
        devices=tuple([replace(device, edits=_edits(device.edits, old, new, host)) for device in spec.devices]),
    )


def move_path(path: str, old: str, new: str) -> str:
    """*path* below *new* if it is *old* or below it, else as it is."""
    base = old.rstrip("/")
    if path != base and not path.startswith(base + "/"):
        return path
    return new.rstrip("/") + path[len(base) :] or "/"


def _edits(edits: CdiEdits, old: str, new: str, host: bool) -> CdiEdits:
    nodes = []
    for node in edits.device_nodes:
        if host:
            path = move_path(node.host_path or node.path, old, new)
            nodes.append(replace(node, host_path="" if path == node.path else path))
        else:
            path = move_path(node.path, old, new)
            nodes.append(replace(node, path=path, host_path=node.host_path or ("" if path == node.path else node.path)))
    field = "host_path" if host else "container_path"
    mounts = tuple([replace(mount, **{field: move_path(getattr(mount, field), old, new)}) for mount in edits.mounts])
    hooks = tuple([_hook(hook, old, new, host) for hook in edits.hooks])
    return replace(edits, device_nodes=tuple(nodes), hooks=hooks, mounts=mounts)


def _hook(hook: CdiHook, old: str, new: str, host: bool) -> CdiHook:
    """A program is found on the host but for startContainer; what it works on is the host's up to createContainer."""
    if (hook.stage != "startContainer") is host:
        hook = replace(hook, path=move_path(hook.path, old, new))
    if (hook.stage not in ("createContainer", "startContainer")) is host:
        hook = replace(hook, args=tuple([_moved_word(word, old, new) for word in hook.args]))
    return hook


def _moved_word(word: str, old: str, new: str) -> str:
    """An argument of a hook: a path, or a link ``target::path``."""
    target, colons, path = word.partition("::")
    return f"{move_path(target, old, new)}::{move_path(path, old, new)}" if colons else move_path(word, old, new)
