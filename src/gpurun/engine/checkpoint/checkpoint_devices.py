"""checkpoint's side of devices: which mounts and nodes of a container are gpurun's doing, and which its processes use.

Nothing was noted for it when the container was made: what is mounted in it, and is neither of its config nor its own, came
from gpurun.  Only a container that may mount (CAP_SYS_ADMIN) can have mounts of its own; its own they are unless they show
what it could not reach.
"""

from __future__ import annotations

import posix
from _stat import S_ISCHR, S_ISDIR
from errno import ENOENT, ESRCH

from gpurun.cgroup import control
from gpurun.engine import state as store
from gpurun.engine.checkpoint.criu_options import Outside, path_in
from gpurun.engine.checkpoint.saved_devices import RECORDS, SavedDevices
from gpurun.engine.gpus.attach_view import units_had
from gpurun.engine.gpus.attached import load_attached
from gpurun.engine.gpus.device_edits import own_environment
from gpurun.errors import GpuError, StepError, clean
from gpurun.gpu.leases.container_nodes import command_of, node_paths
from gpurun.gpu.leases.survey import survey
from gpurun.gpu.nvidia.host.driver import module_version
from gpurun.gpu.nvidia.request.settings import roots_of, site_settings
from gpurun.gpu.request.share import read_share
from gpurun.gpu.vendors import find_vendor
from gpurun.linux.files import O_CLOEXEC, Fd, read_file
from gpurun.linux.fs import O_DIRECTORY, O_PATH
from gpurun.linux.mountinfo import MountEntry, mounts
from gpurun.ns.path import open_in_root

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

    from gpurun.gpu.device import GpuDevice
    from gpurun.oci.config import Config

_MAPS = 64 << 20
_ENDED = (ENOENT, ESRCH)


def saved_devices(root: str, state: store.State, config: Config, foreign: Outside) -> SavedDevices | None:
    """What a restore has to know of the devices of the running container *state*; ``None`` where it has none.

    Raises :class:`GpuError` for what no checkpoint can save.
    """
    if not RECORDS & set(posix.listdir(store.directory(root, state.id))):
        return None
    share = read_share(config.process.env, config.annotations)
    if share is not None:
        raise GpuError(
            f"a container with a share of a GPU ({share.text}) cannot be checkpointed: neither CRIU nor cuda-checkpoint "
            "saves a client of MPS"
        )
    with Fd(posix.open(f"/proc/{state.pid}/root", O_PATH | O_DIRECTORY | O_CLOEXEC)) as root_fd:
        known = {path_in(root_fd, path) for path in _config_points(config, foreign)} | {"/"}
        sets = config.process.capabilities
        may_mount = sets is not None and "CAP_SYS_ADMIN" in sets.bounding
        ours = device_mounts(mounts(state.pid), mounts(), known, _binds(root_fd, foreign), may_mount)
        points = tuple(dict.fromkeys([(one.point, _kind(root_fd, one)) for one in ours if not _is_tree(one)]))
        nodes = node_paths(root_fd)
    covers = [one.point for one in ours if one.fstype == "overlay" and one.root == "/"]
    if covers:
        raise GpuError(
            f"a container whose image lies on a read-only file system cannot be checkpointed: {covers[0]} is covered by an "
            "overlay, which CRIU cannot save (give it a rootfs that can be written, with root.readonly if need be)"
        )
    pids = control.processes(state.cgroup) if state.cgroup else (state.pid,)
    own_env = own_environment()
    roots = roots_of(own_env, site_settings(own_env))
    found = survey(own_env, ask=False)
    units = found.units
    gpus = units_had(root, state, load_attached(root, state.id), units, own_env)
    require_saved_by_criu(pids, gpus)
    return SavedDevices(
        driver=module_version(roots),
        gpus=tuple([(unit.index, unit.name) for unit in gpus]),
        mounts=points,
        trees=tuple(dict.fromkeys([one.point for one in ours if _is_tree(one)])),
        nodes=nodes,
        used=_points_in_use(pids, [point for point, _ in points]),
        computing=_computing(pids, frozenset(nodes), found.numbers),
    )


def require_saved_by_criu(pids: tuple[int, ...], units: tuple[GpuDevice, ...]) -> None:
    """Raises :class:`GpuError` where one of *pids* has one of *units* open whose programs gpurun cannot have CRIU save."""
    for vendor in dict.fromkeys([unit.vendor for unit in units if not find_vendor(unit.vendor).saved]):
        numbers = frozenset([number for unit in units if unit.vendor == vendor for number in unit.numbers])
        computing = _computing(pids, frozenset(), numbers)
        if computing:
            raise GpuError(
                f"{computing}: gpurun cannot save programs that use GPUs of {find_vendor(vendor).title}: end the program, "
                "or have it close the GPU, before the checkpoint"
            )


def device_mounts(
    table: list[MountEntry],
    host: list[MountEntry],
    known: set[str],
    binds: Iterable[tuple[str, str]],
    may_mount: bool,
) -> list[MountEntry]:
    """Those of a container's *table* of mounts that gpurun made for devices.  Pure.

    *known* are the mount points of its config, *binds* (mount point, source) those of them that show the host, whose own
    mounts (*host*) may lie below.  *may_mount*: it may have mounts of its own.
    """
    of_host = {one.point: (one.device, one.root) for one in host}
    devices = {one.device for one in host}
    base = [one for one in table if one.point in known]
    found = []
    for one in table:
        if one.point in known:
            continue
        below = [source + one.point[len(point) :] for point, source in binds if one.point.startswith(f"{point}/")]
        if any(of_host.get(path) == (one.device, one.root) for path in below):
            continue
        if may_mount and not _is_ours(one, base, devices):
            continue
        found.append(one)
    return found


def _is_ours(one: MountEntry, base: list[MountEntry], host_devices: set[str]) -> bool:
    """Whether a container that may mount could not have made this mount itself."""
    if one.point.startswith("/proc/driver"):
        return True
    if any(one.device == other.device and _is_below(one.root, other.root) for other in base):
        return False
    return one.device in host_devices or one.root != "/"


def _is_below(path: str, top: str) -> bool:
    return path == top or path.startswith(top.rstrip("/") + "/")


def _is_tree(one: MountEntry) -> bool:
    """A tmpfs that gpurun has filled: CRIU saves and restores it, and restore puts a new one in its place."""
    return one.fstype == "tmpfs" and one.root == "/" and one.point.startswith("/proc/")


def _config_points(config: Config, foreign: Outside) -> list[str]:
    points = [step.destination for step in foreign.mounts]
    points += [device.path for device in foreign.devices]
    return [*points, *foreign.masked_paths, *config.linux.readonly_paths, "/dev/console"]


def _binds(root_fd: int, foreign: Outside) -> list[tuple[str, str]]:
    return [(path_in(root_fd, step.destination), step.source) for step in foreign.mounts if step.kind == "bind"]


def _kind(root_fd: int, one: MountEntry) -> str:
    with Fd(open_in_root(root_fd, one.point)) as fd:
        return "dir" if S_ISDIR(posix.fstat(fd).st_mode) else "file"


def _points_in_use(pids: tuple[int, ...], points: list[str]) -> tuple[str, ...]:
    """Those of *points* that a process has open or mapped: itself, or what is below it."""
    paths: set[str] = set()
    for pid in pids:
        try:
            text = read_file(f"/proc/{pid}/maps", _MAPS).decode("utf-8", "surrogateescape")
        except OSError as e:
            if e.errno in _ENDED:
                continue
            raise StepError("see what the process has mapped:", str(pid), e.errno) from None
        paths.update([line[line.index("/") :] for line in text.split("\n") if "/" in line])
        paths.update([path for _, path in _open_files(pid)])
    return tuple([point for point in points if any(_is_below(path, point) for path in paths)])


def _computing(pids: tuple[int, ...], nodes: frozenset[str], numbers: frozenset[tuple[int, int]]) -> str:
    """The first process that has one of *nodes* open, as a sentence calls it; "" where none has.

    A node of a GPU counts by its *numbers* (major, minor), whatever the container calls it.
    """
    for pid in pids:
        for name, path in _open_files(pid):
            if path in nodes or _device(f"/proc/{pid}/fd/{name}") in numbers:
                return f"process {pid} ({clean(command_of(pid) or '?')}) has {path} open"
    return ""


def _device(path: str) -> tuple[int, int] | None:
    """(major, minor) of the character device that *path* leads to; None for anything else."""
    try:
        found = posix.stat(path)
    except OSError:
        return None  # closed meanwhile
    return (posix.major(found.st_rdev), posix.minor(found.st_rdev)) if S_ISCHR(found.st_mode) else None


def _open_files(pid: int) -> list[tuple[str, str]]:
    """(descriptor, path) of what *pid* has open; what it closes meanwhile hides no other.  Raises :class:`StepError`."""
    directory, found = f"/proc/{pid}/fd", []
    try:
        names = posix.listdir(directory)
    except OSError as e:
        if e.errno in _ENDED:
            return []
        raise StepError("see what the process has open:", str(pid), e.errno) from None
    for name in names:
        try:
            found.append((name, posix.readlink(f"{directory}/{name}")))
        except FileNotFoundError:
            continue
    return found
