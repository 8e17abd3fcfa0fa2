"""Extras → edits: what GPUDirect Storage, InfiniBand, IMEX channels or MIG administration add to a plan.  Pure."""

from __future__ import annotations

from gpurun.cdi.edits import DeviceClass, DeviceNode, EditMount
from gpurun.record import replace

TYPE_CHECKING = False
if TYPE_CHECKING:
    from gpurun.cdi.edits import ContainerEdits, ProcTree
    from gpurun.gpu.nvidia.host.extras import Extra

_READONLY = ("ro", "nosuid", "nodev", "rbind", "rprivate")
_LIVE = ("ro", "nosuid", "nodev", "noexec", "rbind", "rprivate")
_NODES = ("nosuid", "noexec", "rbind", "rprivate")  # a directory of device nodes


def add_extras(made: ContainerEdits, extras: tuple[Extra, ...], proc: str, proc_path: str) -> ContainerEdits:
    """*made* with *extras*; *proc* is /proc/driver/nvidia in the container, *proc_path* on the host."""
    nodes = [
        DeviceNode(n.path, n.host_path, "c", n.major, n.minor, n.mode, 0, n.gid, "rw", extra.reason)
        for extra in extras
        for n in extra.nodes
    ]
    mounts = [_mount(f.host_path, f.path, f.kind, extra.reason) for extra in extras for f in extra.files]
    mounts += [EditMount(d.host_path, d.path, _NODES, "dir", e.reason) for e in extras for d in e.directories]
    binds = {
        name: EditMount(f"{proc_path}/{name}", f"{proc}/{name}", _LIVE, "dir" if name.endswith("/mig") else "file", e.reason)
        for e in extras
        for name in e.proc
    }
    gids = {n.gid for e in extras for n in e.nodes if n.gid and n.mode & 0o006 != 0o006}
    return replace(
        made,
        device_nodes=made.device_nodes + tuple(nodes),
        device_classes=made.device_classes
        + tuple({m: DeviceClass("c", m, "rw", e.reason) for e in extras for m in e.majors}.values()),
        mounts=made.mounts + tuple({m.container_path: m for m in mounts}.values()),
        proc_trees=tuple([_with_binds(t, binds) if t.path == proc else t for t in made.proc_trees]),
        additional_gids=tuple(sorted({*made.additional_gids, *gids})),
        warnings=made.warnings + tuple([w for e in extras for w in e.warnings]),
    )


def _mount(source: str, target: str, kind: str, reason: str) -> EditMount:
    directory = kind == "directory"
    return EditMount(source, target, _LIVE if directory else _READONLY, "dir" if directory else "file", reason)


def _with_binds(tree: ProcTree, binds: dict[str, EditMount]) -> ProcTree:
    """*tree* with *binds*, and without what lies in a directory that is bound whole."""
    whole = tuple([b.container_path + "/" for b in binds.values() if b.kind == "dir"])
    kept = [b for b in tree.binds if not b.container_path.startswith(whole)] if whole else list(tree.binds)
    return replace(tree, binds=(*kept, *binds.values()))
