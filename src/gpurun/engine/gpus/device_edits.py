"""What the devices that a config asks for add to the container: the engine's one question to the room of GPUs."""

from __future__ import annotations

import posix

from gpurun.cdi.edits import ContainerEdits
from gpurun.engine.site_config import read_unknown, site_path
from gpurun.gpu.host.access import closed_nodes, is_confined
from gpurun.gpu.request.injected import Injected
from gpurun.gpu.resolve import Inquiry, gpu_edits, may_ask, may_share
from gpurun.record import replace

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from gpurun.gpu.request.free import FreeRequest
    from gpurun.gpu.resolve import Allocate, Check, Sharer
    from gpurun.oci.config import Config


def device_edits(
    config: Config,
    prepare: Check | None = None,
    cache: str = "",
    environ: Mapping[bytes, bytes] = posix.environ,
    allocate: Allocate | None = None,
    sharer: Sharer | None = None,
) -> ContainerEdits:
    """What the devices that the config asks for add to the container; with *prepare* the host's missing nodes are made, once
    that had no objection (:func:`gpu_edits`).

    *cache* is a directory in which answers are kept, *environ* where gpurun's own settings are looked for.  *allocate*
    leases free GPUs and *sharer* gives shares; without one it is only looked which those would be.
    """
    capabilities = config.process.capabilities
    privileged = capabilities is not None and "CAP_SYS_ADMIN" in capabilities.bounding
    own_env = own_environment(environ)
    if may_ask(config.process.env):
        own_env = with_site(own_env, environ)

    def preview(request: FreeRequest) -> tuple[tuple[str, ...], tuple[str, ...]]:
        from gpurun.engine.gpus import leases

        return leases.preview(request, own_env, config)

    if sharer is None and may_share(config.process.env, config.annotations):
        from gpurun.engine.gpus.shares import sharing_of

        sharing = sharing_of(config, "", "", own_env, note=False)
        if sharing is not None:
            sharer, allocate = sharing.give, sharing.free
    mounts = tuple([(mount.source, mount.destination) for mount in config.mounts])
    process = config.process
    edits = gpu_edits(
        Inquiry(
            process.env,
            config.annotations,
            privileged,
            own_env,
            mounts=mounts,
            injected=injected_devices(config),
            prepare=prepare,
            cache=cache,
            allocate=allocate or preview,
            sharer=sharer,
        )
    )
    return _as_the_caller_can(edits, config) if edits else ContainerEdits()


def _as_the_caller_can(edits: ContainerEdits, config: Config) -> ContainerEdits:
    """*edits* with the groups that the container of a caller without root can have, and a warning where it cannot open nodes
    that it is given."""
    if not (edits.device_nodes or edits.additional_gids) or not is_confined():
        return edits
    from gpurun.engine.gpus.groups import group_map, groups_inside, overflow_group

    known = group_map(config)
    overflow = overflow_group() if edits.additional_gids else -1
    has = frozenset([gid for gid in edits.additional_gids if groups_inside((gid,), known, overflow)])
    edits = replace(edits, additional_gids=groups_inside(edits.additional_gids, known, overflow))
    closed = closed_nodes([node.host_path or node.path for node in edits.device_nodes], known.keeps, has=has)
    if not closed:
        return edits
    return replace(edits, warnings=(*edits.warnings, f"the container cannot open device nodes: {closed}"))


def own_environment(environ: Mapping[bytes, bytes] = posix.environ) -> dict[str, str]:
    """Our environment as text."""
    return {k.decode("utf-8", "surrogateescape"): v.decode("utf-8", "surrogateescape") for k, v in environ.items()}


def with_site(own_env: dict[str, str], environ: Mapping[bytes, bytes] = posix.environ) -> dict[str, str]:
    """*own_env* with what the site's file says of devices that the host does not have, unless it says so itself.

    Raises :class:`GpurunError` for a file that cannot be read.
    """
    return {**read_unknown(site_path(environ)), **own_env}


def injected_devices(config: Config) -> Injected:
    """What in *config* may be an engine's own doing for devices."""
    linux = config.linux
    rules = linux.resources.devices if linux.resources is not None else ()
    private = any(namespace.type == "mount" for namespace in linux.namespaces)
    hooks = config.hooks
    return Injected(hooks.create_container, config.mounts, linux.devices, rules, private, hooks.create_runtime)
