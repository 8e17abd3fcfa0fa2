"""What a site can leave out of what containers get, in the words of NVIDIA's generator: its feature flags and its hooks.

They are options of ``cdi generate``, and lists below ``modes.jit-cdi`` of config.toml for devices served without a file (the
modes auto and jit-cdi).  The work of a hook is data here, so a hook that is switched off is data left out.
"""

from __future__ import annotations

from gpurun.cdi.edits import ContainerEdits, EditMount, ProcTree
from gpurun.gpu.nvidia.edits.proc_files import PROC_OPTIONS, PROC_PATH, PROFILE_DIR
from gpurun.record import replace

TYPE_CHECKING = False
if TYPE_CHECKING:
    from gpurun.gpu.nvidia.host.driver import Driver

#: In the order in which they have to run; chmod is for runtimes that make /dev/dri unreadable, and off unless asked for.
HOOKS = (
    "create-symlinks",
    "enable-cuda-compat",
    "update-ldcache",
    "disable-device-node-modification",
    "update-application-profile",
    "chmod",
)
NO_GIDS, NO_IPC = "no-additional-gids-for-device-nodes", "disable-ipc-discoverer"
ONE_DEVICE = "disable-multiple-csv-devices"
COHERENT = "enable-coherent-annotations"  # of generated files; a container gets nothing of it
#: Flag → why it changes nothing here; empty for those that do.
FEATURES = {
    NO_GIDS: "",
    NO_IPC: "",
    "enable-explicit-driver-libraries": "the libraries are found by their names anyway",
    "disable-nvsandboxutils": "no such library is used",
    "disable-nvsandbox-utils": "no such library is used",  # the flag's first name
    COHERENT: "",
    ONE_DEVICE: "",
}


def without_features(driver: Driver, flags: tuple[str, ...]) -> Driver:
    """*driver* without the files that *flags* leave out: with ``disable-ipc-discoverer`` the sockets of its services."""
    if NO_IPC not in flags:
        return driver
    return replace(driver, files=tuple([file for file in driver.files if file.kind not in ("socket", "mps")]))


def without_hooks(edits: ContainerEdits, names: tuple[str, ...], proc_path: str) -> ContainerEdits:
    """*edits* without the work of the hooks *names* (``all``: of every one); *proc_path* is the driver's directory in the
    host's procfs.

    Without disable-device-node-modification ``params`` is the host's own; which GPUs are to be seen there is no hook's work.
    """
    off = HOOKS if "all" in names else names
    trees = edits.proc_trees
    if "update-application-profile" in off:
        trees = tuple([tree for tree in trees if tree.path != PROFILE_DIR])
    if "disable-device-node-modification" in off:
        trees = tuple([_with_own_params(tree, proc_path) if tree.path == PROC_PATH else tree for tree in trees])
    no_cache = "update-ldcache" in off
    return replace(
        edits,
        links=() if "create-symlinks" in off else edits.links,
        ldcache=() if no_cache else edits.ldcache,
        image_files=() if no_cache else edits.image_files,
        forward_compat=None if no_cache or "enable-cuda-compat" in off else edits.forward_compat,
        proc_trees=trees,
    )


def _with_own_params(tree: ProcTree, proc_path: str) -> ProcTree:
    path = f"{PROC_PATH}/params"
    if not any(file.path == path for file in tree.files):
        return tree
    bind = EditMount(
        f"{proc_path}/params", path, PROC_OPTIONS, "file", "the site leaves disable-device-node-modification out"
    )
    return replace(tree, files=tuple([file for file in tree.files if file.path != path]), binds=(*tree.binds, bind))
