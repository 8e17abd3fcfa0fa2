"""restore's side of devices: which GPUs the container gets now, and what it had for them made anew.

What came from the host was external to CRIU, which is given the files of the driver that is there, so that programs find
open what they had open.  For what is not there any more it gets placeholders.  When all processes are made, and none runs,
placeholders and what gpurun had written itself are taken away, and the edits are applied as ``gpu attach`` does it.
"""

from __future__ import annotations

import posix

from gpurun.cdi.edits import ContainerEdits
from gpurun.engine import state as store
from gpurun.engine.checkpoint.criu_options import config_file, path_in
from gpurun.engine.checkpoint.saved_devices import SavedDevices, external_name
from gpurun.engine.gpus.device_edits import own_environment
from gpurun.errors import GpuError, Step
from gpurun.gpu.device import units_of
from gpurun.gpu.leases.survey import survey
from gpurun.gpu.nvidia.cuda_checkpoint import obstacle
from gpurun.gpu.nvidia.host.driver import module_version
from gpurun.gpu.nvidia.request.settings import roots_of, site_settings
from gpurun.hook.running import DeviceChange, change
from gpurun.linux.files import O_CLOEXEC, Fd
from gpurun.linux.fs import O_DIRECTORY, O_PATH
from gpurun.ns.directory_cache import DirectoryCache
from gpurun.ns.journal import Journal
from gpurun.ns.namespaces import host_id
from gpurun.ns.path import open_in_root, refuse_kernels_own
from gpurun.record import replace

TYPE_CHECKING = False
if TYPE_CHECKING:
    from gpurun.engine.plan.container import Plan
    from gpurun.oci.config import Config


def check_devices(plan: Plan, saved: SavedDevices | None, config: Config) -> None:
    """Refuse what cannot go on with the devices of *plan*.

    Raises :class:`GpuError`, before anything is touched.
    """
    edits = plan.init.edits
    if saved is None:
        if replace(edits, warnings=()) != ContainerEdits():
            raise GpuError(
                "the images do not say which mounts were made for devices: they are of a container without GPUs, or another "
                "runtime has saved them"
            )
        return
    own_env = own_environment()
    roots = roots_of(own_env, site_settings(own_env))
    driver = module_version(roots)
    if saved.computing:
        why = obstacle(driver, config_file(config, plan.init.rootfs))
        if why:
            raise GpuError(f"when it was saved, {saved.computing}: {why}")
        nodes = frozenset([(node.major, node.minor) for node in edits.device_nodes])
        nodes |= {(step.major, step.minor) for step in plan.init.devices}
        names = {unit.name for unit in units_of(survey(own_env, ask=False).units, nodes)}
        lost = [name for _, name in saved.gpus if name not in names]
        if lost:
            raise GpuError(
                f"when it was saved, {saved.computing}: its programs can continue only with the same GPUs, and the "
                f"container would not get {lost[0]} (CRIU's CUDA plugin has no device map)"
            )
    brought = {*sources(plan), *[step.destination for step in plan.init.mounts]}
    missing = [path for path in saved.used if path not in brought]
    if missing:
        more = f" (and {len(missing) - 1} more)" if len(missing) > 1 else ""
        is_now = f"driver {driver}" if driver else "what the devices bring"
        was = f", of driver {saved.driver}," if saved.driver else ""
        raise GpuError(
            f"the container's programs use {missing[0]}{more}{was} and {is_now} does not have it: restore it where it is"
        )


def sources(plan: Plan) -> dict[str, str]:
    """Mount point, without links as far as the rootfs has it now → what the edits of *plan* bring there from the host."""
    edits = plan.init.edits
    with Fd(posix.open(plan.rootfs, O_PATH | O_DIRECTORY | O_CLOEXEC)) as root:
        known: dict[str, str] = {}

        def place(path: str) -> str:
            directory, _, name = path.rpartition("/")
            if directory not in known:
                known[directory] = (path_in(root, directory) if directory else "") or directory
            return f"{known[directory].rstrip('/')}/{name}"

        found = {place(mount.container_path): mount.host_path for mount in edits.mounts}
        for tree in edits.proc_trees:
            found |= {bind.container_path: bind.host_path for bind in tree.binds}
        found |= {node.path: node.host_path or node.path for node in edits.device_nodes}
        for link in edits.links:  # where the image has a file of that name, the library is mounted over it
            target = link.target if link.target.startswith("/") else f"{link.path.rpartition('/')[0]}/{link.target}"
            if place(target) in found:
                found.setdefault(place(link.path), found[place(target)])
    return found


def make_points(root_fd: int, journal_fd: int, saved: SavedDevices, covered: list[str], plan: Plan) -> None:
    """Make the mount points of *saved* in the rootfs, written in the journal; not those below *covered*, which are CRIU's.

    Called in a mount namespace of its own, in which the binds of the config are mounted.  What is made belongs to the root
    of the container's user namespace, which puts links beside it.
    """
    above = [*covered, *saved.trees, *[point for point, kind in saved.mounts if kind == "dir"]]
    wanted = [pair for pair in saved.mounts if not any(pair[0].startswith(f"{path}/") for path in above)]
    missing = _missing(root_fd, [point for point, _ in wanted])
    journal = Journal(root_fd, journal_fd)
    places = DirectoryCache(root_fd, journal, refuse_kernels_own)
    try:
        for point, kind in wanted:
            with Step("make the mount point", point):
                posix.close(places.made(point) if kind == "dir" else places.file(point))
    finally:
        places.close()
        journal.close()
    ids = plan.namespaces
    uid, gid = [host_id(maps, 0) if maps else 0 for maps in (ids.uids, ids.gids)]
    if uid <= 0:
        return
    for path in missing:
        directory, _, name = path.rpartition("/")
        with Step("give to the container", path), Fd(open_in_root(root_fd, directory or "/")) as parent:
            posix.chown(name, uid, max(gid, 0), dir_fd=parent, follow_symlinks=False)


def _missing(root_fd: int, points: list[str]) -> list[str]:
    """What is not there of *points* and of the directories above them."""
    found: dict[str, None] = {}
    for point in points:
        parts = point[1:].split("/")
        for depth in range(len(parts), 0, -1):
            path = "/" + "/".join(parts[:depth])
            if path in found or path_in(root_fd, path):
                break
            found[path] = None
    return list(found)


def externals(directory: str, saved: SavedDevices, plan: Plan) -> tuple[tuple[tuple[str, str], ...], tuple[str, ...]]:
    """(name in the image, source) of each mount of *saved*, and the mount points of those that are placeholders.

    A placeholder for a directory in which others lie is one below *directory*, with their mount points.
    """
    found: list[tuple[str, str]] = []
    stale: list[str] = []
    brought = sources(plan)
    of_directories: dict[str, str] = {}
    top = f"{directory}/placeholders"
    posix.mkdir(top, 0o711)
    for number, (point, kind) in enumerate(saved.mounts):
        above = max([path for path in of_directories if point.startswith(f"{path}/")], key=len, default="")
        if above:
            _make_in(of_directories[above], point[len(above) + 1 :], kind)
        source = brought.get(point, "")
        if not source or _is_directory(source) != (kind == "dir"):
            source = "/dev/null"
            stale.append(point)
            if kind == "dir":
                source = "/proc/tty"  # which the root of a user namespace can reach too, and on which nothing is mounted
                if any(other.startswith(f"{point}/") for other, _ in saved.mounts):
                    source = of_directories[point] = f"{top}/{number}"
                    posix.mkdir(source, 0o755)
        found.append((external_name(point), source))
    return tuple(found), tuple(stale)


def _is_directory(path: str) -> bool:
    return posix.stat(path).st_mode & 0o170000 == 0o040000


def _make_in(directory: str, name: str, kind: str) -> None:
    parts = name.split("/")
    for depth in range(1, len(parts) + (1 if kind == "dir" else 0)):
        try:
            posix.mkdir(f"{directory}/{'/'.join(parts[:depth])}", 0o755)
        except FileExistsError:
            pass
    if kind == "file":
        posix.close(posix.open(f"{directory}/{name}", posix.O_WRONLY | posix.O_CREAT | O_CLOEXEC, 0o644))


def remove_placeholders(directory: str) -> None:
    """Remove what :func:`placeholders` has made; nothing is mounted there."""
    try:
        store.remove_tree(f"{directory}/placeholders")
    except FileNotFoundError:
        pass


def renew_devices(root: str, plan: Plan, pid: int, saved: SavedDevices, stale: tuple[str, ...]) -> None:
    """In the mount namespace of *pid*, whose processes do not run yet: take *stale* placeholders away and apply the edits.

    Raises :class:`GpurunError`.
    """
    paths = {node.path for node in plan.init.edits.device_nodes} | {step.path for step in plan.init.devices}
    rootfs = posix.stat(plan.rootfs)
    wanted = DeviceChange(
        plan.init.edits,
        readonly=plan.init.readonly,
        label=plan.init.mount_label,
        mounts=(*saved.trees, *stale),
        names=tuple([path for path in saved.nodes if path not in paths]),
        restoring=(rootfs.st_dev, rootfs.st_ino),
    )
    path = f"{store.directory(root, plan.id)}/created"
    with Fd(posix.open(path, posix.O_WRONLY | posix.O_APPEND | O_CLOEXEC)) as journal:
        change(pid, wanted, journal)
