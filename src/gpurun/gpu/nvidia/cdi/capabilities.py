"""NVIDIA_DRIVER_CAPABILITIES for devices from CDI files: a file has all of the driver, who says so gets less.

What the files of a driver are called says which capability needs them (:mod:`gpurun.gpu.nvidia.host.file_names`); what
no capability claims stays.  Only a container that sets the variable is asked: without it a CDI device is the whole device.
"""

from __future__ import annotations

from gpurun.cdi.edits import ContainerEdits
from gpurun.gpu.nvidia.edits.proc_files import PROFILE_DIR
from gpurun.gpu.nvidia.host.file_names import BINARIES, CONFIGS, UNVERSIONED, VERSIONED, X_MODULES, library_capabilities
from gpurun.paths import clean_path
from gpurun.record import replace

_PREFIXES = ("nvidia.com/gpu=", "nvidia.com/mig=")
_SERVICES = {"/nvidia-persistenced/": "utility", "/nvidia-fabricmanager/": "utility", "/nvidia-mps": "compute"}


def concerns(names: tuple[str, ...]) -> bool:
    """Whether one of the devices *names* is a GPU of NVIDIA's."""
    return any(name.startswith(_PREFIXES) for name in names)


def needed_for(path: str) -> tuple[str, ...]:
    """The capabilities that need the driver's file *path* (in the container); none for what is not known."""
    name = path.rpartition("/")[2]
    stem = name.partition(".so")[0] if ".so" in name else ""
    found = [c for c, stems in VERSIONED.items() if stem and stem in stems]
    found += [c for c, names in UNVERSIONED.items() if any(name.startswith(n) for n in names)]
    found += [c for c, names in BINARIES.items() if name in names]
    found += [c for c, _, _, patterns in CONFIGS if any(_is(name, pattern) for pattern in patterns)]
    found += ["graphics" for pattern, _, _ in X_MODULES if stem and stem == pattern.partition(".so")[0]]
    found += [c for words, c in _SERVICES.items() if words in path]
    return tuple(dict.fromkeys(found))


def _is(name: str, pattern: str) -> bool:
    """Whether *name* is *pattern*, in which ``VERSION`` stands for any version."""
    before, version, after = pattern.partition("VERSION")
    return name.startswith(before) and name.endswith(after) if version else name == pattern


def with_files_of(edits: ContainerEdits, capabilities: tuple[str, ...]) -> ContainerEdits:
    """*edits* of CDI devices without the files and nodes that none of *capabilities* needs; hooks are still to be done."""
    needed = library_capabilities(capabilities)
    mounts = tuple([m for m in edits.mounts if _is_wanted(needed_for(m.container_path), needed)])
    nodes = tuple([n for n in edits.device_nodes if _is_node_wanted(n.path, needed, capabilities)])
    left_out = {n.gid for n in edits.device_nodes if n not in nodes} - {n.gid for n in nodes}
    return replace(
        edits,
        mounts=mounts,
        device_nodes=nodes,
        config_mounts=tuple([m for m in edits.config_mounts if _is_wanted(needed_for(m.destination), needed)]),
        additional_gids=tuple([gid for gid in edits.additional_gids if gid not in left_out]),
    )


def without_loose_ends(edits: ContainerEdits, before: ContainerEdits, capabilities: tuple[str, ...]) -> ContainerEdits:
    """*edits*, of which the hooks are done, without what leads to files and nodes that only *before* had."""
    gone = {m.container_path for m in before.mounts} | {n.path for n in before.device_nodes}
    gone -= {m.container_path for m in edits.mounts} | {n.path for n in edits.device_nodes}
    links = list(edits.links)
    while True:  # a link may lead to a link
        loose = [link for link in links if _target(link.path, link.target) in gone]
        if not loose:
            break
        gone |= {link.path for link in loose}
        links = [link for link in links if link not in loose]
    needed = library_capabilities(capabilities)
    return replace(
        edits,
        links=tuple(links),
        forward_compat=edits.forward_compat if "compute" in needed else None,
        proc_trees=tuple([t for t in edits.proc_trees if t.path != PROFILE_DIR or "graphics" in needed]),
    )


def _is_wanted(of: tuple[str, ...], needed: tuple[str, ...]) -> bool:
    return not of or any(capability in needed for capability in of)


def _is_node_wanted(path: str, needed: tuple[str, ...], capabilities: tuple[str, ...]) -> bool:
    if path.startswith("/dev/nvidia-uvm"):
        return "compute" in needed
    if path == "/dev/nvidia-modeset":
        return "display" in capabilities
    return not path.startswith("/dev/dri/") or "graphics" in needed


def _target(path: str, target: str) -> str:
    return clean_path(target if target.startswith("/") else f"{path.rpartition('/')[0]}/{target}")
