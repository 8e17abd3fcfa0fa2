"""Device names → edits: what the CDI files of this host say that a container with these devices gets, each with its reason.

Specification: CDI 1.1.0 and the reference library's injection: all names are resolved before anything is done; the
edits of a file come once, before those of its first device; nodes are completed from the host's.

Files are bound like those of our own discovery, so what they leave in the image is taken away again; directories and
other file systems go among the mounts of the config, by their depth.
"""

from __future__ import annotations

import posix
from _stat import S_IFBLK, S_IFCHR, S_IFIFO, S_IFMT, S_ISDIR

from gpurun.cdi.document import NO_PERMISSIONS
from gpurun.cdi.edits import PROCESS_ID, ContainerEdits, DeviceNode, EditMount, Hook
from gpurun.errors import ConfigError, GpuError, clean
from gpurun.linux.files import O_CLOEXEC, Fd
from gpurun.linux.fs import O_PATH
from gpurun.oci.config import Mount

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from gpurun.cdi.document import CdiEdits, CdiIntelRdt, CdiMount, CdiNode
    from gpurun.cdi.files import Found, Registry

_TYPES = {S_IFCHR: "c", S_IFBLK: "b", S_IFIFO: "p"}
_MAX_TOLD = 16  # names in a message: there are as many as an image likes


def resolve(
    names: tuple[str, ...], registry: Registry, advice: Callable[[str], str | None] | None = None
) -> tuple[Found, ...]:
    """The devices *names* of *registry*, each once, in their order; *advice* says what to do where none of a kind is there.

    Raises :class:`GpuError` that names all which are not there, where they were looked for, what was left out that could
    have had them, and what to do.
    """
    names = tuple(dict.fromkeys(names))
    missing = [name for name in names if name not in registry.devices]
    if not missing:
        return tuple([registry.devices[name] for name in names])
    kinds = {name.partition("=")[0] for name in missing}
    there = [name for name in registry.devices if name.partition("=")[0] in kinds]
    hints = [text for where, text in registry.errors if where in missing or where.startswith("/")]
    more = f" and {len(missing) - _MAX_TOLD} more" if len(missing) > _MAX_TOLD else ""
    text = f"unresolvable CDI devices {', '.join([clean(name) for name in missing[:_MAX_TOLD]])}{more}"
    if there:
        text += f": of that kind there are {', '.join(sorted(there)[:_MAX_TOLD])}"
    notes = [*([f"looked in {', '.join(registry.dirs)}"] if registry.dirs else []), *hints[:4]]
    if notes:
        text += f" ({'; '.join(notes)})"
    if hints:  # one file more would not help
        raise GpuError(f"{text}: repair or remove those files: `gpurun cdi validate` says all that is wrong with them")
    said = [one for kind in sorted(kinds) if (one := advice(kind))] if advice is not None else []
    if said:
        raise GpuError(f"{text}: {', '.join(said)}")
    raise GpuError(f"{text}: `gpurun cdi list` shows the devices that the files there have")


def inject(names: tuple[str, ...], registry: Registry, advice: Callable[[str], str | None] | None = None) -> ContainerEdits:
    """The edits of the devices *names*; hooks are all there still, known ones too.

    Raises :class:`GpuError` for names that cannot be resolved, :class:`ConfigError` for edits this host cannot serve.
    """
    nodes: dict[str, DeviceNode] = {}
    env: dict[str, str] = {}
    binds: dict[str, EditMount] = {}
    mounts: dict[str, Mount] = {}
    net: dict[str, str] = {}
    hooks: list[Hook] = []
    gids: list[int] = []
    rdt: dict[str, Any] | None = None
    for path, reason, edits in _in_order(resolve(names, registry, advice)):
        for entry in edits.env:
            env[entry.partition("=")[0]] = entry
        for node in edits.device_nodes:
            nodes.pop(node.path, None)
            nodes[node.path] = complete_node(node, path, reason)
        for mount in edits.mounts:
            binds.pop(mount.container_path, None)
            mounts.pop(mount.container_path, None)
            made = _mount(mount, path, reason)
            if isinstance(made, EditMount):
                binds[mount.container_path] = made
            else:
                mounts[mount.container_path] = made
        for hook in edits.hooks:
            hooks.append(Hook(hook.stage, hook.path, hook.args, hook.env, hook.timeout, reason))
        net.update(edits.net_devices)
        if edits.intel_rdt is not None:
            rdt = _intel_rdt(edits.intel_rdt)
        gids += [gid for gid in edits.additional_gids if gid]
    return ContainerEdits(
        env=tuple(env.values()),
        device_nodes=tuple(nodes.values()),
        mounts=tuple(binds.values()),
        additional_gids=tuple(dict.fromkeys(gids)),
        hooks=tuple(hooks),
        config_mounts=tuple(mounts.values()),
        net_devices=tuple(net.items()),
        intel_rdt=rdt,
    )


def _in_order(found: tuple[Found, ...]) -> list[tuple[str, str, CdiEdits]]:
    """(file, reason, edits) in the order of application."""
    ordered = []
    begun = set()
    for one in found:
        path, spec = one.file.path, one.file.spec
        if path not in begun:
            begun.add(path)
            ordered.append((path, f"every device of {path}", spec.edits))
        ordered.append((path, f"device {spec.kind}={one.device.name} of {path}", one.device.edits))
    return ordered


def complete_node(node: CdiNode, file: str, reason: str = "") -> DeviceNode:
    """*node* with what the file does not say taken from the host's node.  Raises :class:`ConfigError`."""
    host_path = node.host_path or node.path
    kind, major, minor, mode = node.type, node.major, node.minor, node.file_mode
    complete = bool(kind and (major or kind == "p"))
    where = f"{file}: device node {node.path}"
    try:
        stat = posix.lstat(host_path)
    except OSError as e:
        if not complete:
            raise ConfigError(where, f"failed to stat CDI host device {host_path}: {e.strerror}") from None
    else:
        found = _TYPES.get(S_IFMT(stat.st_mode), "")
        if found and mode is None:
            mode = stat.st_mode & 0o7777
        if not complete:
            if not found or (kind not in ("", found) and not (kind == "u" and found == "c")):
                raise ConfigError(where, f"{host_path} on the host is not a device node of type {kind or 'b, c or p'}")
            kind = found
            if found != "p" and not major:
                major, minor = posix.major(stat.st_rdev), posix.minor(stat.st_rdev)
    if not (0 <= major < 1 << 12 and 0 <= minor < 1 << 20):
        raise ConfigError(where, f"{major}:{minor} is not a valid device number: the highest is 4095:1048575")
    permissions = "" if node.permissions == NO_PERMISSIONS else node.permissions or "rwm"
    return DeviceNode(
        node.path,
        node.host_path,
        "c" if kind == "u" else kind,
        major,
        minor,
        0o666 if mode is None else mode & 0o7777,
        PROCESS_ID if node.uid is None else node.uid,
        PROCESS_ID if node.gid is None else node.gid,
        permissions,
        reason,
    )


def _mount(mount: CdiMount, file: str, reason: str) -> EditMount | Mount:
    """A file's bind mount, or an entry for ``mounts`` of the config."""
    bind = mount.type == "bind" or bool({"bind", "rbind"} & set(mount.options))
    if not bind:
        if not mount.type:
            where = f"{file}: mount {mount.container_path}"
            raise ConfigError(where, "names neither a type nor one of the options bind and rbind")
        return Mount(mount.container_path, mount.type, mount.host_path, mount.options)
    real, stat = _host_file(mount, file)
    if S_ISDIR(stat.st_mode):
        return Mount(mount.container_path, "bind", real, mount.options)
    return EditMount(real, mount.container_path, mount.options, "file", reason)


def _host_file(mount: CdiMount, file: str) -> tuple[str, posix.stat_result]:
    """The real path of the mount's source, and what it is."""
    try:
        fd = posix.open(mount.host_path, O_PATH | O_CLOEXEC)
    except OSError as e:
        what = (
            f"{mount.host_path} of the host: {e.strerror}: was the driver replaced since the file was written? Write it anew"
        )
        raise ConfigError(f"{file}: mount {mount.container_path}", what) from None
    with Fd(fd):
        return posix.readlink(f"/proc/self/fd/{fd}"), posix.fstat(fd)


def _intel_rdt(rdt: CdiIntelRdt) -> dict[str, Any]:
    """As ``linux.intelRdt`` has it."""
    values: dict[str, Any] = {}
    for key, text in (("closID", rdt.clos_id), ("l3CacheSchema", rdt.l3_cache_schema), ("memBwSchema", rdt.mem_bw_schema)):
        if text:
            values[key] = text
    if rdt.schemata is not None:
        values["schemata"] = list(rdt.schemata)
    if rdt.enable_monitoring:
        values["enableMonitoring"] = True
    return values
