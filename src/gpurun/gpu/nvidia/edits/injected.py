"""GPUs that a container has without having asked gpurun: an engine has put their nodes into config.json itself.

``docker run --device /dev/nvidia0``, CDI devices that Docker, Podman or containerd inject.  Nothing is added for them but
one thing: /proc/driver/nvidia is not namespaced, so it would show every GPU of the host and have the driver's libraries make
their nodes.  Which GPUs are the container's, its nodes say (by number: a node may have any path), also those bound from the
host, as Podman does without root; and rules of the device cgroup that name the major.

Left as it is for who has the nodes that administer MIG, which is all of the host's GPUs, and where the site says so
(``filter-engine-devices`` in the table ``[gpurun]`` of config.toml).
"""

from __future__ import annotations

import posix
from _stat import S_ISCHR

from gpurun.cdi.edits import ContainerEdits, EditMount, ProcTree
from gpurun.decimals import decimal
from gpurun.gpu.host.reads import read_text
from gpurun.gpu.nvidia.edits.proc_files import PROC_PATH, proc_tree
from gpurun.gpu.nvidia.host.device_numbers import MAX_GPU_MINOR, NVIDIA_MAJOR
from gpurun.gpu.nvidia.host.driver import proc_files
from gpurun.gpu.nvidia.host.gpus import gpus_of
from gpurun.gpu.nvidia.host.nodes import MAX_MINOR, read_majors
from gpurun.gpu.nvidia.host.roots import PROC
from gpurun.gpu.nvidia.request.selection import Selected
from gpurun.record import replace

TYPE_CHECKING = False
if TYPE_CHECKING:
    from gpurun.gpu.nvidia.host.roots import Roots
    from gpurun.gpu.request.injected import Injected

#: In the place of a directory with ``dev/``: what the host's nodes are like is not asked, only which GPUs there are.
_NO_DEV = PROC
_REASON = "only the GPUs whose nodes the config has are to be seen"
_CAPS_MINORS = "/proc/driver/nvidia-caps/mig-minors"


def with_filter(made: ContainerEdits | None, injected: Injected, roots: Roots) -> ContainerEdits | None:
    """*made* (what the container's own request brings) and the filtered /proc/driver/nvidia for the GPUs of *injected*.

    Unchanged on a host without the driver.  Asked for both ways, the GPUs of both are seen.
    """
    files = proc_files(roots)
    if not files:
        return made
    edits = made or ContainerEdits()
    majors = read_majors(roots)
    numbers = {(d.major, d.minor) for d in injected.devices if d.type in ("c", "u")} | _bound_nodes(injected)
    if not any(major == NVIDIA_MAJOR and minor <= MAX_GPU_MINOR for major, minor in numbers):
        return made  # another of the driver's devices is bound
    numbers |= {(node.major, node.minor) for node in edits.device_nodes}
    caps = majors.get("nvidia-caps")
    if caps is not None and numbers & {(caps, minor) for minor in _administration(roots)}:
        return made
    named = [r for r in injected.rules if r.allow and r.type == "c" and r.major == NVIDIA_MAJOR and r.access != "m"]
    selected = []
    for gpu in gpus_of(roots, _NO_DEV, majors, graphics=False):
        if (NVIDIA_MAJOR, gpu.minor) in numbers or any(rule.minor in (None, gpu.minor) for rule in named):
            mig = tuple([m for m in gpu.mig if m.nodes and all((n.major, n.minor) in numbers for n in m.nodes)])
            selected.append(Selected(gpu, not mig, mig))
    tree = proc_tree(files, f"{roots.sysroot}{PROC}", tuple(selected))
    near = tuple(dict.fromkeys([*edits.numa_nodes, *[s.gpu.numa_node for s in selected]]))
    return replace(edits, proc_trees=_merge_tree(edits.proc_trees, tree), numa_nodes=near)


def _merge_tree(trees: tuple[ProcTree, ...], tree: ProcTree) -> tuple[ProcTree, ...]:
    """*trees* with what *tree* shows besides; files that are there already are not written again."""
    if not any(one.path == PROC_PATH for one in trees):
        return (*trees, replace(tree, reason=_REASON))
    return tuple([replace(one, binds=_both(one.binds, tree.binds)) if one.path == PROC_PATH else one for one in trees])


def _both(first: tuple[EditMount, ...], second: tuple[EditMount, ...]) -> tuple[EditMount, ...]:
    there = {bind.container_path for bind in first}
    return first + tuple([bind for bind in second if bind.container_path not in there])


def _bound_nodes(injected: Injected) -> set[tuple[int, int]]:
    """The numbers of the character devices of the driver that are bound from the host."""
    found = set()
    for mount in injected.mounts:
        if "/dev/nvidia" not in mount.source:
            continue
        try:
            stat = posix.stat(mount.source)
        except OSError:
            continue  # the mount itself will tell
        if S_ISCHR(stat.st_mode):
            found.add((posix.major(stat.st_rdev), posix.minor(stat.st_rdev)))
    return found


def _administration(roots: Roots) -> tuple[int, ...]:
    """The minors of the capabilities that administer and watch the MIG devices of all GPUs."""
    lines = [line.split() for line in read_text(roots.sysroot + _CAPS_MINORS).splitlines()]
    found = [decimal(line[1], MAX_MINOR) for line in lines if len(line) == 2 and line[0] in ("config", "monitor")]
    return tuple([minor for minor in found if minor is not None])
