"""What is still known of a container whose state file is damaged: its config.json beside it, which names the cgroup."""

from __future__ import annotations

import posix

from gpurun.cgroup.scope import expand_slice, scope_names
from gpurun.cgroup.tree import cgroup_path, find_tree, join_root, own_cgroup
from gpurun.engine import state as store
from gpurun.errors import GpurunError
from gpurun.linux.files import read_file
from gpurun.oci.config import read_config


def cgroup_of_config(root: str, container_id: str) -> tuple[str, str]:
    """(directory of the cgroup, systemd unit) that the saved config.json names; empty where it tells none that is there, or
    one that another container of the state root has.

    Its unit is one of the system's service manager: of a user's the cgroup goes with its last process.
    """
    try:
        config = read_config(read_file(f"{root}/{container_id}/config.json", store.MAX_SAVED_CONFIG))
        named = config.linux.cgroups_path
        unit = ""
        if named.count(":") == 2 and not named.startswith("/"):
            slice_name, unit = scope_names(named, container_id)
            path = join_root(find_tree().root, f"{expand_slice(slice_name)}/{unit}")
        else:
            path = cgroup_path(find_tree(), named, container_id, own_cgroup())
        posix.stat(f"{path}/cgroup.type")  # the root of the tree has none
    except (GpurunError, OSError):
        return "", ""
    others = [_cgroup_of(root, name) for name in store.container_ids(root) if name != container_id]
    return ("", "") if path in others else (path, unit if posix.geteuid() == 0 else "")


def _cgroup_of(root: str, container_id: str) -> str:
    try:
        return store.load(root, container_id).cgroup
    except store.DamagedState as e:
        return e.left.cgroup
    except GpurunError:
        return ""
