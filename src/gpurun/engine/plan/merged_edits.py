"""What device edits change in the config itself, before it is planned: mounts, hooks, network devices, resctrl.  Pure.

Specification: CDI 1.1.0, the edits of ``containerEdits``.  An engine may have injected the same devices already: what is
there is replaced by destination or path, and a hook that is there is not added again, so nothing happens twice.
"""

from __future__ import annotations

from gpurun.cdi.edits import PROCESS_ID, ContainerEdits, Hook
from gpurun.errors import ConfigError
from gpurun.formats.jsontext import dumps
from gpurun.oci.config import HOOK_NAMES, Config, Hooks, OciHook
from gpurun.oci.reader import parse_json
from gpurun.paths import clean_path
from gpurun.record import replace

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from gpurun.cdi.edits import DeviceNode
    from gpurun.oci.config import Mount, User

#: The stages that come when create has ended: their hooks are read from the saved config.
_LATE = ("poststart", "poststop")
_SHARED = ("shared", "rshared")
_PROPAGATIONS = tuple([r + word for r in ("", "r") for word in ("shared", "slave", "private", "unbindable")])
#: Values of rootfsPropagation that cut all mounts off the host's: what is called shared in such a container is shared among
#: containers of its own.
_APART = ("", "rslave", "rprivate", "runbindable")


def merge_into_config(config: Config, edits: ContainerEdits) -> tuple[Config, ContainerEdits]:
    """*config* with that part of *edits* which is the config's, and the rest of *edits*.  Returns (config, edits)."""
    if edits == ContainerEdits():
        return config, edits
    user = config.process.user
    nodes = tuple([_with_owner(node, user) for node in edits.device_nodes])
    paths = {node.path for node in nodes}
    linux = config.linux
    linux = replace(
        linux,
        devices=tuple([device for device in linux.devices if device.path not in paths]),
        net_devices={**(linux.net_devices or {}), **{host: {"name": name} for host, name in edits.net_devices}}
        if edits.net_devices
        else linux.net_devices,
        intel_rdt=edits.intel_rdt if edits.intel_rdt is not None else linux.intel_rdt,
    )
    mounts = config.mounts
    ours = {clean_path(mount.destination) for mount in edits.config_mounts}
    ours.update([clean_path(mount.container_path) for mount in edits.mounts])
    if ours:
        mounts = tuple([mount for mount in mounts if clean_path(mount.destination) not in ours])
    if edits.config_mounts:
        mounts += edits.config_mounts
        # What is mounted deeper comes later, whoever asked for it; of equals the order stays.
        mounts = tuple(sorted(mounts, key=lambda mount: clean_path(mount.destination).count("/")))
    edits = _apart_from_host(config, edits)
    config = replace(config, mounts=mounts, linux=linux, hooks=_hooks(config.hooks, edits))
    left = replace(edits, device_nodes=nodes, hooks=(), replaced_hooks=(), config_mounts=(), net_devices=(), intel_rdt=None)
    return config, left


def _apart_from_host(config: Config, edits: ContainerEdits) -> ContainerEdits:
    """*edits* without files that a volume, which shares its mounts with the host, shows at their place already.

    Anything else on such a volume would be mounted on the host as well, and stay there when the container is gone: that
    raises :class:`ConfigError`.
    """
    if config.linux.rootfs_propagation in _APART:
        return edits
    root_shared = config.linux.rootfs_propagation in _SHARED
    volumes = {clean_path(mount.destination): (i, mount) for i, mount in enumerate(config.mounts)}

    def is_there(path: str, host_path: str = "") -> bool:
        """Whether *path* is on such a volume, which has the very file *host_path* there; one that has not is refused."""
        above = [place for place in volumes if place != "/proc" and path.startswith(f"{place.rstrip('/')}/")]
        place = max(above, key=len, default="")
        i, mount = volumes.get(place, (0, None))
        if mount is None or not _is_shared(mount, root_shared):
            return False
        if host_path and clean_path(f"{mount.source}/{path[len(place.rstrip('/')) :]}") == host_path:
            return True
        text = f"shares what is mounted in it with the host, and {path} of the devices would be: use rslave or rprivate"
        raise ConfigError(f"mounts[{i}].options", text)

    for tree in edits.proc_trees:
        try:
            is_there(tree.path)
        except ConfigError as e:
            if not tree.path.startswith("/sys/"):
                raise
            # What is covered there is not kept from the container by anything else either: it goes on without.
            warnings = (*edits.warnings, f"{tree.path} shows the GPUs of all: {e}")
            edits = replace(edits, proc_trees=tuple([t for t in edits.proc_trees if t != tree]), warnings=warnings)
    if edits.ldcache:
        is_there("/etc/ld.so.cache")
    return replace(edits, mounts=tuple([m for m in edits.mounts if not is_there(m.container_path, m.host_path)]))


def _is_shared(mount: Mount, root_shared: bool) -> bool:
    """Whether what is mounted in the volume may be mounted on the host as well: without an option of its own it is what the
    host's own mount is, which most are."""
    words = [option for option in mount.options if option in _PROPAGATIONS]
    if words:
        return words[-1] in _SHARED
    return root_shared and (mount.type == "bind" or "bind" in mount.options or "rbind" in mount.options)


def _with_owner(node: DeviceNode, user: User) -> DeviceNode:
    """*node*, that of the container's process where it is to be the process' own."""
    if PROCESS_ID not in (node.uid, node.gid):
        return node
    return replace(
        node,
        uid=user.uid if node.uid == PROCESS_ID else node.uid,
        gid=user.gid if node.gid == PROCESS_ID else node.gid,
    )


def _hooks(hooks: Hooks, edits: ContainerEdits) -> Hooks:
    stages = []
    for stage, field in zip(HOOK_NAMES, Hooks._fields, strict=True):
        done = [_oci_hook(hook) for hook in edits.replaced_hooks if hook.stage == stage]
        there = [hook for hook in getattr(hooks, field) if hook not in done]
        added = [_oci_hook(hook) for hook in edits.hooks if hook.stage == stage]
        stages.append(tuple(there + [hook for hook in added if hook not in there]))
    return Hooks(*stages)


def _oci_hook(hook: Hook) -> OciHook:
    return OciHook(hook.path, hook.args, hook.env or None, hook.timeout)


def saved_config(data: bytes, edits: ContainerEdits) -> bytes:
    """The config to be saved with the container: *data*, with the hooks of *edits* for the time after create in it."""
    late = [hook for hook in edits.hooks if hook.stage in _LATE]
    if not late:
        return data
    document = parse_json(data, "config.json")
    hooks = document["hooks"] = dict(document.get("hooks") or {})
    for hook in late:
        entry: dict[str, Any] = {"path": hook.path, "args": list(hook.args)}
        if hook.env:
            entry["env"] = list(hook.env)
        if hook.timeout is not None:
            entry["timeout"] = hook.timeout
        there = list(hooks.get(hook.stage) or ())
        if entry not in there:
            hooks[hook.stage] = [*there, entry]
    return dumps(document).encode("utf-8", "surrogateescape")
