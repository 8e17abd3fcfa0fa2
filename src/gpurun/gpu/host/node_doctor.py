"""What the doctor says of device nodes of GPUs without a library on the host: are they there, and who may open them."""

from __future__ import annotations

from gpurun.gpu.host.access import closed_nodes, group_name
from gpurun.gpu.host.finding import Finding

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from gpurun.gpu.host.reads import HostNode


def examine_nodes(
    subject: str, computing: Sequence[HostNode], others: Sequence[HostNode], trigger: str, rule: str, closed: str
) -> list[Finding]:
    """Whether the nodes are there, and whether this user can open those for *computing*.

    *others* are only for drawing.  *trigger* has udev make nodes, *rule* gives them to a group; *closed* begins the
    sentence about nodes that this user cannot open.
    """
    missing = [node.host_path for node in (*computing, *others) if not node.exists]
    shut = closed_nodes([node.host_path for node in computing if node.exists], mode_mends=rule)
    found = []
    if missing:
        found.append(Finding(subject, "fail", f"the host lacks {', '.join(missing)}: {trigger} makes them"))
    if shut:
        found.append(Finding(subject, "fail", f"{closed}: {shut}"))
    return found or [Finding(subject, "ok", "all there, and this user can open them")]


def examine_groups(subject: str, nodes: Sequence[HostNode], rule: str) -> Finding:
    """Whether a container's process that is not root can open *nodes*: it gets their groups, but not the group root."""
    there = [node for node in nodes if node.exists]
    shut = [n.host_path for n in there if n.mode & 0o006 != 0o006 and (not n.gid or n.mode & 0o060 != 0o060)]
    if shut:
        text = f"only root or its group can open {', '.join(shut)}, so in a container only root can: {rule}"
        return Finding(subject, "note", text)
    return Finding(subject, "ok", ", ".join(sorted({group_name(node.gid) for node in there})))
