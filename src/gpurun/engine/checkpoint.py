"""checkpoint: all processes of a container and what they hold, saved to files by CRIU.

CRIU freezes the container, reads it out through its own parasite, and then ends it or lets it go on.  What it cannot know is
told by us: which mounts and namespaces come from outside, and which pipes and files the standard streams were.
"""

from __future__ import annotations

import posix
from fcntl import F_GETFL, fcntl

from gpurun.cgroup.control import thaw
from gpurun.cgroup.tree import find_tree
from gpurun.criu import rpc
from gpurun.criu.swrk import FIRST_EXTRA, Swrk, find_criu
from gpurun.engine import lifecycle
from gpurun.engine import state as store
from gpurun.engine.criu import (
    DESCRIPTORS,
    EXTERNAL_NAMESPACES,
    CriuOptions,
    Outside,
    cgroup_yard,
    common_options,
    directories,
    failure,
    mount_ids,
    outside,
    path_in,
)
from gpurun.engine.signals import default_signals
from gpurun.errors import GpurunError, StepError, oserror_text
from gpurun.jsontext import dumps
from gpurun.linux.files import O_CLOEXEC, read_file
from gpurun.linux.fs import O_DIRECTORY, O_PATH
from gpurun.oci.config import read_config
from gpurun.record import Record, replace

LOG = "dump.log"


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
    criu = find_criu()
    config = read_config(read_file(f"{options.root}/{options.id}/config.json", 64 << 20))  # as it was at create
    foreign = outside(config, state.bundle)
    if set(posix.listdir(store.directory(options.root, options.id))) & {"created", "edits", "gpus"}:
        raise GpurunError("a container with GPUs or other devices of CDI cannot be checkpointed")
    page_server = _page_server(options.page_server)
    if options.status_fd >= 0:
        _check_status_fd(options.status_fd)
    asked = _with_cgroups(common_options(options.criu, config, FIRST_EXTRA), options, state)
    paths = directories(options.criu)
    _check_parent(options)
    _check_features(criu, options)
    asked = replace(
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
    if not options.pre_dump:
        streams = external_streams(state)
        external = (*_namespaces(foreign, state), *_files(streams))
        asked = replace(asked, ext_mnt=_external_mounts(foreign, state), external=external)
        _write_descriptors(options.criu.image_path, streams)
    try:
        _dump(criu, paths, options, asked)
    except BaseException:
        if now == "running" and state.cgroup:
            thaw(state.cgroup)  # CRIU does that itself, unless it was killed
        raise
    if options.leave_running or options.pre_dump:
        return ()
    return lifecycle.delete(options.root, options.id, force=True)


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
    that lies outside of the container, else a path that means nothing to CRIU."""
    streams = (state.streams.split("\t") + ["", "", ""])[:3]
    mounts = mount_ids(state.pid)
    found = []
    for fd, name in enumerate(streams):
        text = name
        try:
            if name.startswith("/") and posix.readlink(f"/proc/{state.pid}/fd/{fd}") == name:
                stat = posix.stat(f"/proc/{state.pid}/fd/{fd}")
                mount = _mount_id(state.pid, fd)
                if stat.st_mode & 0o170000 == 0o100000 and mount not in mounts:
                    text = f"file[{int(mount):x}:{stat.st_ino:x}]"
        except OSError:
            pass  # it has closed it
        found.append(text)
    return found[0], found[1], found[2]


def _mount_id(pid: int, fd: int) -> str:
    for line in read_file(f"/proc/{pid}/fdinfo/{fd}").decode().splitlines():
        if line.startswith("mnt_id:"):
            return line[7:].strip()
    return ""


def _files(streams: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(dict.fromkeys([name for name in streams if name.startswith("file[")]))


def _write_descriptors(directory: str, streams: tuple[str, ...]) -> None:
    path = f"{directory}/{DESCRIPTORS}"
    try:
        store.write_atomically(path, dumps(list(streams)).encode("utf-8", "surrogateescape"), 0o600)
    except OSError as e:
        raise StepError("write", path, e.errno) from None


def _external_mounts(foreign: Outside, state: store.State) -> tuple[tuple[str, str], ...]:
    """(mount point, name in the image) of each mount from outside, as the container has it now."""
    root = posix.open(f"/proc/{state.pid}/root", O_PATH | O_DIRECTORY | O_CLOEXEC)
    try:
        found = [(path_in(root, path), path_in(root, path)) for path, _ in foreign.external_paths]
        for path in foreign.masked_paths:
            masked = path_in(root, path)
            if masked and posix.stat(masked.lstrip("/"), dir_fd=root).st_mode & 0o170000 != 0o040000:
                found.append((masked, "/dev/null"))
    finally:
        posix.close(root)
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
    address, _, port = text.rpartition(":")
    if not address or not port:
        raise GpurunError("Use --page-server ADDRESS:PORT to specify page server")
    if not port.isdigit() or int(port) > 65535:
        raise GpurunError(f'--page-server: "{port}" is no port number')
    return address.strip("[]"), int(port)


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
    if found.st_mode & 0o170000 != 0o040000:
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
