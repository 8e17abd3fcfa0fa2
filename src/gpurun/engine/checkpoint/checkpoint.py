"""checkpoint: all processes of a container and what they hold, saved to files by CRIU.

CRIU freezes the container, reads it out through its own parasite, and then ends it or lets it go on.  What it cannot know is
passed by us: which mounts and namespaces come from outside, and which pipes and files the standard streams were.
"""

from __future__ import annotations

import posix
from _stat import S_ISDIR, S_ISREG
from fcntl import F_GETFL, F_SETPIPE_SZ, fcntl

from gpurun.cgroup.control import freeze, thaw
from gpurun.cgroup.tree import find_tree
from gpurun.criu import rpc
from gpurun.criu.swrk import FIRST_EXTRA, Swrk, find_criu
from gpurun.decimals import decimal
from gpurun.engine import kept
from gpurun.engine import state as store
from gpurun.engine.caller.delete import delete
from gpurun.engine.checkpoint.criu_options import (
    DESCRIPTORS,
    EXTERNAL_NAMESPACES,
    CriuOptions,
    Outside,
    cgroup_yard,
    common_options,
    config_file,
    directories,
    failure,
    outside,
    path_in,
)
from gpurun.engine.checkpoint.saved_devices import RECORDS, external_name, write_devices
from gpurun.engine.gpus.device_edits import injected_devices, own_environment
from gpurun.engine.signals import default_signals
from gpurun.errors import GpurunError, Step, oserror_text
from gpurun.formats.jsontext import dumps
from gpurun.gpu.resolve import replace_engine_hooks
from gpurun.linux.files import O_CLOEXEC, Fd, read_file, write_atomically
from gpurun.linux.fs import O_DIRECTORY, O_PATH, mount_id
from gpurun.linux.mountinfo import mounts
from gpurun.oci.config import read_config
from gpurun.paths import clean_path
from gpurun.record import Record, replace

TYPE_CHECKING = False
if TYPE_CHECKING:
    from gpurun.engine.checkpoint.saved_devices import SavedDevices
    from gpurun.oci.config import Config

LOG = "dump.log"
#: Seconds in which a process must have emptied its GPUs, or have filled them again: tens of GiB go through the PCI bus.
CUDA_TIMEOUT_S = 120
#: CRIU takes the largest pipe whose buffers the kernel has at hand: what fills so many pages, at so many bytes each.
_PIPE_PAGES, _PIPE_BUFFER_BYTES = 8, 40


class CheckpointOptions(Record):
    """What the command line says.  *parent_path* is relative to the image path; *status_fd* is -1 for none."""

    id: str
    root: str
    criu: CriuOptions
    parent_path: str = ""
    leave_running: bool = False
    tcp_skip_in_flight: bool = False
    link_remap: bool = False
    status_fd: int = -1
    page_server: str = ""  # ADDRESS:PORT
    pre_dump: bool = False


def checkpoint(options: CheckpointOptions) -> tuple[str, ...]:
    """Save a running (or paused) container; unless it is to run on, it is then gone, with its state.

    Returns warnings.  Raises :class:`GpurunError`; then the container runs on as before.
    """
    state = store.load(options.root, options.id)
    now = store.status(options.root, state)
    if now not in ("running", "paused"):
        raise GpurunError(f"Container cannot be checkpointed in {now} state")
    if kept.is_changing(options.root, options.id):
        from gpurun.engine.gpus.attach_steps import settle

        settle(options.root, options.id)
    criu = find_criu()
    as_created = read_file(f"{options.root}/{options.id}/config.json", store.MAX_SAVED_CONFIG)
    config = read_config(as_created)
    foreign = _without_taken(outside(config, state.bundle), config)
    saved = _devices(options, state, config, foreign)
    page_server = _page_server(options.page_server)
    if options.status_fd >= 0:
        _check_status_fd(options.status_fd)
    asked = _with_cgroups(common_options(options.criu, config, state.rootfs, FIRST_EXTRA), options, state)
    asked = _with_process(asked, options, state, page_server)
    paths = directories(options.criu)
    _check_parent(options)
    _check_features(criu, options)
    if not options.pre_dump:
        streams = external_streams(state)
        external = (*_namespaces(foreign, state), *_files(streams))
        devices = [(point, external_name(point)) for point, _ in saved.mounts] if saved is not None else []
        asked = replace(asked, ext_mnt=(*_external_mounts(foreign, state), *devices), external=external)
        _write_descriptors(options.criu.image_path, streams)
        write_devices(options.criu.image_path, saved)
    computing = saved is not None and saved.computing != ""
    if computing:
        asked = replace(asked, timeout=CUDA_TIMEOUT_S)
        if now == "paused":
            thaw(state.cgroup)  # CUDA's own threads empty the GPU: CRIU freezes all when they have
    try:
        _dump(criu, paths, options, asked)
    except BaseException:
        if now == "running" and state.cgroup:
            thaw(state.cgroup)  # CRIU does that itself, unless it was killed
        raise
    finally:
        if computing and now == "paused" and store.status(options.root, state) == "running":
            freeze(state.cgroup)
    if options.leave_running or options.pre_dump:
        return ()
    return delete(options.root, options.id, force=True)


def _with_process(
    asked: rpc.Options, options: CheckpointOptions, state: store.State, page_server: tuple[str, int] | None
) -> rpc.Options:
    """*asked* with the process that is saved, and how; *page_server* is (address, port)."""
    return replace(
        asked,
        log_file=LOG,
        pid=state.pid,
        root=state.rootfs,
        leave_running=options.leave_running,
        tcp_skip_in_flight=options.tcp_skip_in_flight,
        link_remap=options.link_remap,
        freeze_cgroup=state.cgroup,
        page_server=page_server,
        parent_img=options.parent_path,
        track_mem=bool(options.parent_path),
    )


def _without_taken(foreign: Outside, config: Config) -> Outside:
    """*foreign* without mounts that an engine's CDI file has brought and gpurun has made itself: so does restore."""
    taken = replace_engine_hooks(injected_devices(config), own_environment())
    if taken is None:
        return foreign
    paths = {mount.container_path for mount in taken.mounts}
    return replace(foreign, mounts=tuple([step for step in foreign.mounts if clean_path(step.destination) not in paths]))


def _devices(options: CheckpointOptions, state: store.State, config: Config, foreign: Outside) -> SavedDevices | None:
    """What the container has for devices; raises :class:`GpurunError` where its programs cannot be saved."""
    if not RECORDS & set(posix.listdir(store.directory(options.root, options.id))):
        return None
    from gpurun.engine.checkpoint.checkpoint_devices import saved_devices

    saved = saved_devices(options.root, state, config, foreign)
    if saved is not None and saved.computing:
        from gpurun.gpu.nvidia.cuda_checkpoint import obstacle

        why = obstacle(saved.driver, config_file(config, state.rootfs))
        if why:
            raise GpurunError(f"{saved.computing}: {why}")
    return saved


def _with_cgroups(asked: rpc.Options, options: CheckpointOptions, state: store.State) -> rpc.Options:
    """*asked* with what is to be saved of the cgroups: nothing, unless the container has made some below its own (or the
    caller says so), for restore makes the container's itself."""
    mode = asked.manage_cgroups_mode
    if mode is None:
        below = bool(state.cgroup) and any(entry.is_dir() for entry in posix.scandir(state.cgroup))
        mode = rpc.CGROUP_MODES["soft" if below else "ignore"]
    asked = replace(asked, manage_cgroups_mode=mode)
    if not mode:
        return asked
    return replace(asked, cgroup_yard=cgroup_yard(store.directory(options.root, options.id), find_tree().root))


def _dump(criu: str, paths: tuple[str, ...], options: CheckpointOptions, asked: rpc.Options) -> None:
    swrk = Swrk(criu, paths, before_exec=default_signals)
    try:

        def notified(answer: rpc.Answer, passed: tuple[int, ...]) -> None:
            if answer.script == "status-ready" and options.status_fd >= 0:
                posix.write(options.status_fd, b"\0")  # whoever waits for the page server may go on
                posix.close(options.status_fd)

        answer = swrk.converse(rpc.request(rpc.PRE_DUMP if options.pre_dump else rpc.DUMP, asked), notified)
    finally:
        code = swrk.end()
    log = f"{options.criu.work_path or options.criu.image_path}/{LOG}"
    if not answer.success:
        raise failure(answer, "save the container", log)
    if code and not options.pre_dump:  # after a pre-dump CRIU waits for the next one, and our hanging up is an error to it
        raise GpurunError(f"criu ended with status {code} (see {log})")


def external_streams(state: store.State) -> tuple[str, str, str]:
    """What the descriptors 0 to 2 of the init are, in CRIU's words: ``pipe:[N]``, ``file[MOUNT:INODE]`` for a regular file
    that lies outside of the container, else a path that means nothing to CRIU.  Returns (stdin, stdout, stderr).
    """
    streams = (state.streams.split("\t") + ["", "", ""])[:3]
    mounted = {mount.id for mount in mounts(state.pid)}
    found = []
    for fd, name in enumerate(streams):
        text = name
        try:
            if name.startswith("/") and posix.readlink(f"/proc/{state.pid}/fd/{fd}") == name:
                stat = posix.stat(f"/proc/{state.pid}/fd/{fd}")
                mount = mount_id(fd, state.pid)
                if S_ISREG(stat.st_mode) and mount not in mounted:
                    text = f"file[{int(mount):x}:{stat.st_ino:x}]"
        except OSError:
            pass  # it has closed it
        found.append(text)
    return found[0], found[1], found[2]


def _files(streams: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(dict.fromkeys([name for name in streams if name.startswith("file[")]))


def _write_descriptors(directory: str, streams: tuple[str, ...]) -> None:
    path = f"{directory}/{DESCRIPTORS}"
    with Step("write", path):
        write_atomically(path, dumps(list(streams)).encode("utf-8", "surrogateescape"), 0o600)


def _external_mounts(foreign: Outside, state: store.State) -> tuple[tuple[str, str], ...]:
    """(mount point, name in the image) of each mount from outside, as the container has it now."""
    with Fd(posix.open(f"/proc/{state.pid}/root", O_PATH | O_DIRECTORY | O_CLOEXEC)) as root:
        found = [(path_in(root, path), path_in(root, path)) for path, _ in foreign.external_paths]
        for path in foreign.masked_paths:
            masked = path_in(root, path)
            if masked and not S_ISDIR(posix.stat(masked.lstrip("/"), dir_fd=root).st_mode):
                found.append((masked, "/dev/null"))
    return tuple(dict([pair for pair in found if pair[0]]).items())


def _namespaces(foreign: Outside, state: store.State) -> tuple[str, ...]:
    found = []
    for join in foreign.namespaces.joins:
        if join.flag in EXTERNAL_NAMESPACES:
            name, key = EXTERNAL_NAMESPACES[join.flag]
            found.append(f"{name}[{posix.stat(f'/proc/{state.pid}/ns/{name}').st_ino}]:{key}")
    return tuple(found)


def _page_server(text: str) -> tuple[str, int] | None:
    if not text:
        return None
    address, _, digits = text.rpartition(":")
    if not address or not digits:
        raise GpurunError("Use --page-server ADDRESS:PORT to specify page server")
    port = decimal(digits, 65535)
    if port is None:
        raise GpurunError(f'--page-server: "{digits}" is not a port number')
    return address.strip("[]"), port


def _check_status_fd(fd: int) -> None:
    try:
        mode = fcntl(fd, F_GETFL) & posix.O_ACCMODE
    except OSError as e:
        raise GpurunError(f"invalid --status-fd argument {fd}: {oserror_text(e)}") from None
    if mode == posix.O_RDONLY:
        raise GpurunError(f"invalid --status-fd argument {fd}: not writable")


def _check_parent(options: CheckpointOptions) -> None:
    parent = options.parent_path
    if not parent:
        return
    if parent.startswith("/"):
        raise GpurunError("--parent-path must be relative")
    path = f"{options.criu.image_path}/{parent}"
    try:
        found = posix.stat(path)
    except OSError as e:
        raise GpurunError(f"invalid --parent-path: {oserror_text(e)}") from None
    if not S_ISDIR(found.st_mode):
        raise GpurunError(f"invalid --parent-path: {path}: not a directory")


def _check_features(criu: str, options: CheckpointOptions) -> None:
    """Ask CRIU first for what not every kernel can do: it would find out in the middle."""
    if not options.pre_dump and not options.criu.lazy_pages:
        return
    swrk = Swrk(criu, before_exec=default_signals)
    try:
        answer = swrk.converse(rpc.feature_request(), lambda *_: None)
    finally:
        swrk.end()
    if not answer.success:
        raise GpurunError("criu cannot say what it can do here: try `criu check`")
    if options.pre_dump and not answer.memory_tracking:
        raise GpurunError("--pre-dump: this kernel does not track written memory (CONFIG_MEM_SOFT_DIRTY)")
    if options.criu.lazy_pages and not answer.lazy_pages:
        raise GpurunError("--lazy-pages: this kernel lacks what CRIU needs of userfaultfd(2)")
    if options.criu.lazy_pages:
        _check_pipe()


def _check_pipe() -> None:
    """Whether the server of --lazy-pages can have its pipe.  CRIU does not look: it serves without one, and who restores
    fails at the first page that is asked for (pipe(7), "/proc/sys/fs/pipe-max-size")."""
    page = posix.sysconf("SC_PAGESIZE")
    size = (_PIPE_PAGES * page // _PIPE_BUFFER_BYTES) * page
    receive, send = posix.pipe2(O_CLOEXEC)
    with Fd(receive), Fd(send):
        try:
            fcntl(send, F_SETPIPE_SZ, size)
        except PermissionError:
            least = 1 << (size - 1).bit_length()  # the kernel rounds up
            raise GpurunError(
                f"--lazy-pages: CRIU serves memory by a pipe of {least >> 20} MiB, which takes CAP_SYS_RESOURCE here:"
                f" sysctl fs.pipe-max-size={least} allows it without"
            ) from None
