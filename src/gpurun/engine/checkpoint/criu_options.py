"""What checkpoint and restore have in common: the options of both, and how a container's parts are called for CRIU.

The names are those that runc and crun use, so that images can be exchanged with them: an external mount is its path in the
container, an external namespace ``extRootNetNS``, and ``descriptors.json`` says what the standard streams were.
"""

from __future__ import annotations

import posix
from _stat import S_ISREG, S_ISVTX
from errno import ENOENT

from gpurun.criu import rpc
from gpurun.criu.swrk import make_directory, reasons
from gpurun.errors import ConfigError, GpurunError, Step, StepError, clean, strerror_lower
from gpurun.formats import protobuf
from gpurun.linux.files import O_CLOEXEC, Fd, read_file
from gpurun.linux.fs import O_PATH
from gpurun.linux.owners import is_own_or_roots
from gpurun.linux.process import CLONE_NEWNET, CLONE_NEWNS, CLONE_NEWPID
from gpurun.linux.procfs import cgroups
from gpurun.ns.mount_plan import DeviceStep, MountStep, join_path, plan_devices, plan_mounts
from gpurun.ns.namespaces import NamespacePlan, plan_namespaces
from gpurun.ns.path import open_in_root
from gpurun.oci.annotations import CRIU_CONFIG
from gpurun.paths import clean_path
from gpurun.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from gpurun.engine.caller.bundle import CreateOptions
    from gpurun.oci.config import Config

DESCRIPTORS = "descriptors.json"
_MAX_IMAGE = 64 << 20  # bytes
#: Namespaces that CRIU does not save and is given back: CLONE_NEW* flag → (name in /proc/PID/ns, CRIU's key)
EXTERNAL_NAMESPACES = {CLONE_NEWNET: ("net", "extRootNetNS"), CLONE_NEWPID: ("pid", "extRootPidNS")}
#: Where sites keep CRIU's settings for containers: our own file, else the one that runc reads.
CONFIG_FILES = ("/etc/criu/gpurun.conf", "/etc/criu/runc.conf")


class CriuOptions(Record):
    """What the command line says to both.  Paths are absolute; *work_path* may be empty."""

    image_path: str
    work_path: str = ""
    tcp_established: bool = False
    ext_unix_sk: bool = False
    shell_job: bool = False
    file_locks: bool = False
    lazy_pages: bool = False
    auto_dedup: bool = False
    manage_cgroups: str = ""
    network_lock: str = ""
    empty_ns: tuple[str, ...] = ()


class RestoreOptions(Record):
    """What the command line says to restore; *create* is what it has in common with create's."""

    create: CreateOptions
    criu: CriuOptions
    tcp_close: bool = False
    gpu_map: tuple[str, ...] = ()
    lsm_profile: str = ""
    lsm_mount_context: str = ""


def directories(options: CriuOptions) -> tuple[str, ...]:
    """The directories that CRIU works in, made if they are not there: of the images, and of the rest."""
    paths = (options.image_path, options.work_path or options.image_path)
    for path in paths:
        make_directory(path)
    return paths


def common_options(options: CriuOptions, config: Config, rootfs: str, first: int) -> rpc.Options:
    """The members of CRIU's options that dump and restore share; *first* is the descriptor of the first of its directories.

    *rootfs* is the directory of its root.  Raises :class:`GpurunError` for words it does not know.
    """
    for word in options.empty_ns:
        if word != "network":
            raise GpurunError(f'namespace "{word}" is not supported: --empty-ns can be network')
    return rpc.Options(
        images_dir_fd=first,
        work_dir_fd=first + 1,
        config_file=config_file(config, rootfs),
        tcp_established=options.tcp_established,
        ext_unix_sk=options.ext_unix_sk,
        shell_job=options.shell_job,
        file_locks=options.file_locks,
        lazy_pages=options.lazy_pages,
        auto_dedup=options.auto_dedup,
        manage_cgroups_mode=_word(rpc.CGROUP_MODES, options.manage_cgroups, "manage-cgroups-mode"),
        network_lock=_word(rpc.NETWORK_LOCKS, options.network_lock, "network-lock"),
        empty_ns=CLONE_NEWNET,  # network devices are the caller's: CNI, libnetwork, or the hooks bring them
    )


def _word(known: dict[str, int], word: str, option: str) -> int | None:
    if word and word not in known:
        raise GpurunError(f'invalid --{option} "{word}", it must be one of {", ".join(known)}')
    return known[word] if word else None


def config_file(config: Config, rootfs: str) -> str:
    """The file whose settings go before ours: the annotation names it, and names none when it is empty.

    Such a file names programs that CRIU runs on the host.  Raises :class:`ConfigError` for one that anybody but root or the
    caller can write, or that is below *rootfs*.
    """
    named = config.annotations.get(CRIU_CONFIG)
    if named is None:
        return next((path for path in CONFIG_FILES if posix.access(path, posix.R_OK)), "")
    if not named:
        return ""
    where = f"annotations.{CRIU_CONFIG}"
    if not named.startswith("/") or "\0" in named:
        raise ConfigError(where, f'"{clean(named)}" is not an absolute path on the host')
    try:
        with Fd(posix.open(named, O_PATH | O_CLOEXEC)) as fd:
            found = posix.fstat(fd)
            path = posix.readlink(f"/proc/self/fd/{fd}")
        problem = _problem(path, found, rootfs)
    except OSError as e:
        raise ConfigError(where, f"{clean(named)}: {strerror_lower(e.errno)}") from None
    if problem:
        raise ConfigError(where, f"{clean(named)} {problem}, and CRIU runs programs that such a file names")
    return path


def _problem(path: str, found: posix.stat_result, rootfs: str) -> str:
    """Why the settings in the file *found* at *path*, which has no links, cannot be taken; "" where they can."""
    if not S_ISREG(found.st_mode):
        return "is not a regular file"
    root = ""
    try:
        with Fd(posix.open(rootfs, O_PATH | O_CLOEXEC)) as fd:
            root = posix.readlink(f"/proc/self/fd/{fd}")
    except OSError:
        pass  # what uses it says so
    if root and path.startswith(f"{root.rstrip('/')}/"):
        return "is a file of the container's root"
    if not is_own_or_roots(found, path):
        return f"belongs to the user {found.st_uid}"
    if found.st_mode & 0o022:
        return "can be written by others"
    while path != "/":
        path = path.rpartition("/")[0] or "/"
        above = posix.stat(path)
        if not is_own_or_roots(above, path) or (above.st_mode & 0o022 and not above.st_mode & S_ISVTX):
            return f"can be replaced by others, who can write to {clean(path)}"
    return ""


class Outside(Record):
    """What of a container is not in its image on disk: what CRIU must know of."""

    namespaces: NamespacePlan
    mounts: tuple[MountStep, ...]
    devices: tuple[DeviceStep, ...]
    masked_paths: tuple[str, ...]

    @property
    def external_paths(self) -> tuple[tuple[str, str], ...]:
        """(path in the container, path on the host) of what is mounted from the host: binds, and device nodes where a
        container cannot make its own."""
        found = [(step.destination, step.source) for step in self.mounts if step.kind == "bind"]
        found += [(device.path, device.path) for device in self.devices]
        return tuple(dict(found).items())


def outside(config: Config, bundle: str) -> Outside:
    """The parts of *config* that matter.  Raises :class:`ConfigError` for what CRIU would lose without a word."""
    namespaces = plan_namespaces(config.linux)
    mounts = plan_mounts(config, bundle, clean_path(join_path(bundle, config.root_path)), namespaces)
    if not namespaces.has(CLONE_NEWNS):
        raise ConfigError("linux.namespaces", "checkpoint and restore need a mount namespace")
    for step in mounts:
        if step.idmap is not None:
            raise ConfigError(step.where, "CRIU cannot restore an id-mapped mount")
    return Outside(namespaces, mounts, plan_devices(config.linux.devices), config.linux.masked_paths)


def cgroup_yard(directory: str, tree_root: str) -> str:
    """A directory that shows CRIU the cgroup tree, in the state *directory*; "" where CRIU must look by itself.

    It would mount a cgroup2 of its own, and the tree has one superblock: nsdelegate and its like would be off for the whole
    host afterwards (criu#3029).  On a hybrid host it wants the hierarchies of cgroup v1 as well.
    """
    if any(controllers for controllers, _ in cgroups("self")):
        return ""
    path = f"{directory}/yard"
    with Step("make", path):
        try:
            posix.mkdir(path, 0o700)
            posix.symlink(tree_root, f"{path}/unified")
        except FileExistsError:
            pass  # of a checkpoint before, which was killed or left the container running
    return path


def has_cgroup_image(image_path: str) -> bool:
    """Whether the image has cgroups to be made again: those of a container that has some below its own."""
    try:
        data = read_file(f"{image_path}/cgroup.img", _MAX_IMAGE)
    except FileNotFoundError:
        return False
    # Two magic numbers, the size, the message (criu's images/cgroup.proto): its field 2 are the controllers, whose field 2
    # are their cgroups.
    size = int.from_bytes(data[8:12], "little")
    controllers = protobuf.fields(data[12 : 12 + size]).get(2, [])
    return any(2 in protobuf.fields(one) for one in controllers if isinstance(one, bytes))


def path_in(root_fd: int, path: str) -> str:
    """*path* without links, as seen from the root that *root_fd* is; "" when it is not there.

    Raises :class:`StepError` where it cannot be looked up.
    """
    try:
        fd = open_in_root(root_fd, path)
        base = posix.readlink(f"/proc/self/fd/{root_fd}").rstrip("/")
        with Fd(fd):
            return posix.readlink(f"/proc/self/fd/{fd}").removeprefix(base)
    except OSError as e:
        if e.errno == ENOENT:
            return ""
        raise StepError("look up in the container", path, e.errno) from None


def failure(answer: rpc.Answer, what: str, log: str) -> GpurunError:
    """The error of a request *what* that CRIU has refused; *log* is its log file, which says why."""
    why = reasons(log) or answer.error or f"errno {answer.errno}"
    return GpurunError(f"criu failed to {what}: {why} (see {log})")
