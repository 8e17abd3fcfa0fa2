"""What a container is given of devices with DRM nodes, as edits of a CDI file.  Pure."""

from __future__ import annotations

from gpurun.cdi.document import CdiEdits, CdiMount, CdiNode

TYPE_CHECKING = False
if TYPE_CHECKING:
    from gpurun.cdi.edits import ContainerEdits

#: For a bind mount of what udev's link on the host leads to.
_OPTIONS = ("bind", "rw", "nosuid", "noexec")


def cdi_edits(made: ContainerEdits) -> CdiEdits:
    """*made* (:mod:`gpurun.gpu.host.drm_edits`) for a CDI file: nodes by path, for numbers may be others after a boot.

    CDI has no links, so udev's names are mounts of the nodes, as in Intel's files.
    """
    nodes = {node.path.rpartition("/")[2]: node for node in made.device_nodes}
    mounts = [(nodes[link.target.rpartition("/")[2]], link.path) for link in made.links]
    return CdiEdits(
        device_nodes=tuple(
            [
                CdiNode(n.path, n.host_path if n.host_path != n.path else "", permissions="rw", gid=n.gid or None)
                for n in nodes.values()
            ]
        ),
        mounts=tuple([CdiMount(node.host_path or node.path, path, _OPTIONS) for node, path in mounts]),
        additional_gids=made.additional_gids,
    )
