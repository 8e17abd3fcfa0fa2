"""restore: a container made again from what checkpoint has saved.

Around it all is as in create: the same plan, state directory, cgroup, limits and hooks.  But there is no init of ours: CRIU,
born in the container's cgroup and in a mount namespace of its own, makes the namespaces, mounts and processes as they were,
and the first of them as our child.  There is no FIFO either: what is restored runs.
"""

from __future__ import annotations

import posix
from _struct import pack
from errno import ENOENT, ENOTDIR

from gpurun import log
from gpurun.cdi.edits import ContainerEdits
from gpurun.cgroup import manager
from gpurun.criu import rpc
from gpurun.criu.swrk import FIRST_EXTRA, Swrk, find_criu
from gpurun.engine import state as store
from gpurun.engine.caller import cgroup
from gpurun.engine.caller.bundle import CreateOptions, plan_checked, read_bundle
from gpurun.engine.caller.create import Created, check_rootfs, record, with_filter, with_secret_keyring
from gpurun.engine.caller.rollback import CHECKPOINT, ROOTFS, Rollback
from gpurun.engine.checkpoint.criu_options import (
    DESCRIPTORS,
    EXTERNAL_NAMESPACES,
    Outside,
    RestoreOptions,
    cgroup_yard,
    common_options,
    directories,
    failure,
    has_cgroup_image,
    outside,
)
from gpurun.engine.checkpoint.restore_devices import (
    check_devices,
    externals,
    remove_placeholders,
)
from gpurun.engine.checkpoint.restore_mounts import own_mounts, prepare_mount_points
from gpurun.engine.checkpoint.restore_request import restore_request, with_moved
from gpurun.engine.checkpoint.restore_stages import RestoredDevices, Stages
from gpurun.engine.checkpoint.saved_devices import read_devices
from gpurun.engine.signals import default_signals
from gpurun.errors import ConfigError, GpurunError, StepError, oserror_text
from gpurun.linux import process as lp
from gpurun.linux import procfs
from gpurun.linux.files import O_CLOEXEC, Fd, read_file
from gpurun.ns.journal_store import open_journal, undo_traces
from gpurun.ns.namespaces import NAMESPACES, host_id
from gpurun.oci.config import Config, read_config
from gpurun.oci.reader import parse_json
from gpurun.record import Record, replace

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from gpurun.engine.gpus.leases import StoredLease
    from gpurun.engine.plan.container import Plan

LOG = "restore.log"


def restore(options: RestoreOptions) -> Created:
    """Make the container of *options* from its image; it runs when this returns.

    Raises :class:`GpurunError`; then nothing of the container is left.
    """
    create = options.create
    store.check_id(create.id)
    _check_images(options.criu.image_path)
    saved = read_devices(options.criu.image_path)
    own = (create.root, create.id)
    data, config = read_bundle(create.bundle, create.config)
    asking = restore_request(data, config, saved, options.gpu_map, own)
    own_leases: list[StoredLease] = []
    had = frozenset([name for _, name in saved.gpus] if saved is not None else ())
    data, plan = plan_checked(create, *asking, check_rootfs, own_leases, had)
    plan = with_moved(plan, config, asking[1])
    config = read_config(data)
    if saved is not None or plan.init.edits != ContainerEdits():
        check_devices(plan, saved, config)
    foreign = outside(config, create.bundle)
    terminal = plan.init.process.terminal
    if terminal or create.console_socket:
        from gpurun.engine.terminal import check_console

        check_console(terminal, create.detached, create.console_socket)
    plan = with_filter(plan, create.root)
    criu = find_criu()
    streams = _read_descriptors(options.criu.image_path)
    namespaces = _open_namespaces(foreign)
    rollback = Rollback()
    try:
        request = _request(options, config, plan.init.rootfs, foreign, tuple(namespaces), streams)
        asked = _Asked(criu, tuple(namespaces.values()), request)
        return _apply(options, plan, data, asked, rollback, RestoredDevices(saved, tuple(own_leases)))
    except BaseException:
        rollback.take_back(create.id)
        raise
    finally:
        for fd in namespaces.values():
            posix.close(fd)


def _check_images(path: str) -> None:
    """Refuse a directory without the first file of every checkpoint.  Raises :class:`GpurunError`."""
    try:
        posix.stat(f"{path}/inventory.img")
    except OSError as e:
        if e.errno not in (ENOENT, ENOTDIR):
            raise StepError("read", f"{path}/inventory.img", e.errno) from None
        text = "is not a checkpoint (it has no inventory.img): --image-path must name the directory that `checkpoint` wrote"
        raise GpurunError(f"{path} {text}") from None


def _read_descriptors(image_path: str) -> tuple[str, ...]:
    path = f"{image_path}/{DESCRIPTORS}"
    try:
        value = parse_json(read_file(path), path)
    except OSError as e:
        raise GpurunError(f"there is no checkpoint: {path}: {oserror_text(OSError(e.errno, ''))}") from None
    if type(value) is not list or not all(type(name) is str for name in value):
        raise ConfigError(path, "must be an array of strings")
    return tuple(value)


def _open_namespaces(foreign: Outside) -> dict[str, int]:
    """Descriptors of the namespaces that CRIU is given, by their keys."""
    opened: dict[str, int] = {}
    for join in foreign.namespaces.joins:
        if join.flag == lp.CLONE_NEWCGROUP:
            raise ConfigError("linux.namespaces", "CRIU cannot restore into a cgroup namespace that is there")
        if join.flag in EXTERNAL_NAMESPACES:
            try:
                opened[EXTERNAL_NAMESPACES[join.flag][1]] = posix.open(join.path, posix.O_RDONLY | O_CLOEXEC)
            except OSError as e:
                raise ConfigError("linux.namespaces", f"the {join.type} namespace {oserror_text(e)}") from None
    return opened


def _request(
    options: RestoreOptions,
    config: Config,
    rootfs: str,
    foreign: Outside,
    namespaces: tuple[str, ...],
    streams: tuple[str, ...],
) -> rpc.Options:
    inherit = {key: FIRST_EXTRA + i for i, key in enumerate(namespaces)}
    for fd, name in enumerate(streams):
        if name.startswith(("pipe:[", "file[")):
            inherit.setdefault(name, fd)
    joins = [j for j in foreign.namespaces.joins if j.flag not in EXTERNAL_NAMESPACES]
    return replace(
        common_options(options.criu, config, rootfs, FIRST_EXTRA + len(namespaces)),
        log_file=LOG,
        evasive_devices=True,
        rst_sibling=True,
        tcp_close=options.tcp_close,
        lsm_profile=options.lsm_profile,
        lsm_mount_context=options.lsm_mount_context,
        inherit_fd=tuple(inherit.items()),
        join_ns=tuple([(NAMESPACES[join.type][1], join.path) for join in joins]),
    )


class _Asked(Record):
    """What CRIU is asked for: its path, descriptors of namespaces that it is given, the request as far as it is known."""

    criu: str
    namespaces: tuple[int, ...]
    request: rpc.Options


def _apply(
    options: RestoreOptions, plan: Plan, data: bytes, asked: _Asked, rollback: Rollback, devices: RestoredDevices
) -> Created:
    create = options.create
    plan = with_secret_keyring(plan)
    state = record(create, plan, data, rollback)
    directory = store.directory(create.root, create.id)
    root = f"{directory}/root"
    posix.mkdir(root, 0o700)
    from_outside = _mount_points(create, plan, devices, rollback)
    request = _with_cgroups(replace(asked.request, root=root, ext_mnt=from_outside), options, plan)
    placeholder = cgroup.make(plan, rollback, directory)
    program_fd = cgroup.load_devices(plan)
    take_back_access = _lend_images(options.criu.image_path, plan)
    rollback.add(CHECKPOINT, take_back_access)
    swrk = _start_criu(options, plan, replace(asked, request=request))
    cgroup.release(placeholder)
    stages = Stages(options, plan, state, program_fd, rollback, devices)
    _run_criu(swrk, request, stages, f"{options.criu.work_path or options.criu.image_path}/{LOG}")
    stages.check_label()  # an old criu says nothing of resuming
    posix.rmdir(root)
    remove_placeholders(directory)
    take_back_access()
    rollback.forget(CHECKPOINT)
    if create.pid_file:
        store.write_pid_file(create.pid_file, stages.state.pid)
    return Created(stages.state, plan, stages.pidfd, stages.master)


def _start_criu(options: RestoreOptions, plan: Plan, asked: _Asked) -> Swrk:
    """CRIU, born in the container's cgroup and in a mount namespace of its own, with the rootfs where it is asked to be."""

    def before_exec() -> None:
        default_signals()
        own_mounts(plan.rootfs, asked.request.root)
        if plan.namespaces.new & lp.CLONE_NEWCGROUP and not asked.request.manage_cgroups_mode:
            lp.unshare(lp.CLONE_NEWCGROUP)

    with Fd(manager.open_dir(plan.cgroup.path) if plan.cgroup.path else -1) as cgroup_fd:
        return Swrk(asked.criu, directories(options.criu), cgroup_fd, asked.namespaces, before_exec)


def _run_criu(swrk: Swrk, request: rpc.Options, stages: Stages, log: str) -> None:
    """Let CRIU do what *request* says, and wait for its end; raises :class:`GpurunError`, which names its *log*."""
    answer = None
    try:
        answer = swrk.converse(rpc.request(rpc.RESTORE, request), stages.notified)
    finally:
        code = swrk.end()
        if answer is None or not answer.success or code:
            stages.reap()
    if not answer.success:
        raise failure(answer, "restore the container", log)
    if code or not stages.state.pid:
        raise GpurunError(f"criu ended with status {code} (see {log})")


def _mount_points(
    create: CreateOptions, plan: Plan, devices: RestoredDevices, rollback: Rollback
) -> tuple[tuple[str, str], ...]:
    """Make the mount points that CRIU needs; returns (name in the image, source) of what is mounted from outside."""
    if devices.saved is None:
        return prepare_mount_points(plan)

    def leave_rootfs_as_it_was() -> None:
        log.warnings(undo_traces(create.root, create.id))

    rollback.add(ROOTFS, leave_rootfs_as_it_was)
    with Fd(open_journal(create.root, plan.id, plan.rootfs)) as journal:
        found = prepare_mount_points(plan, devices.saved, journal)
    directory = store.directory(create.root, create.id)
    rollback.add(CHECKPOINT, lambda: remove_placeholders(directory))
    more, devices.stale = externals(directory, devices.saved, plan)
    return found + more


def _lend_images(path: str, plan: Plan) -> Callable[[], None]:
    """Let the root of the container's user namespace reach the images; returns what takes that back.

    Restored processes read their own images, as that root, once they are it; the directory is ours and 0700, as memory
    should be.  An access control list (acl(5)) lets in only that one user.
    """
    uid = host_id(plan.namespaces.uids, 0) if plan.namespaces.uids else 0
    if uid <= 0:
        return lambda: None
    mode = posix.stat(path).st_mode & 0o7777
    read_search = 0o5
    entries = ((1, mode >> 6 & 7, -1), (2, read_search, uid), (4, mode >> 3 & 7, -1), (0x10, 7, -1), (0x20, mode & 7, -1))
    name = "system.posix_acl_access"
    try:
        posix.setxattr(path, name, pack("<I", 2) + b"".join([pack("<HHI", t, p, i & 0xFFFFFFFF) for t, p, i in entries]))
    except OSError:
        return lambda: None  # a file system without such lists: the images may be readable all the same

    def take_back_access() -> None:
        posix.removexattr(path, name)
        posix.chmod(path, mode)

    return take_back_access


def _with_cgroups(asked: rpc.Options, options: RestoreOptions, plan: Plan) -> rpc.Options:
    """*asked* with what is to be done about cgroups.

    Without cgroups in the image all processes stay in CRIU's, which is the container's.  Else CRIU makes those below it,
    and CRIU is configured so that what was the container's cgroup is now at this place.
    """
    mode = asked.manage_cgroups_mode
    if mode is None:
        mode = rpc.CGROUP_MODES["soft" if plan.cgroup.path and has_cgroup_image(options.criu.image_path) else "ignore"]
    asked = replace(asked, manage_cgroups_mode=mode)
    if not mode:
        return asked
    roots = []
    for names, path in procfs.cgroups("self"):
        own = plan.cgroup.path[len(plan.cgroup.root.rstrip("/")) :] if not names and plan.cgroup.path else path
        roots += [(name, own) for name in names.split(",")]
    directory = store.directory(options.create.root, plan.id)
    return replace(asked, cg_root=tuple(roots), cgroup_yard=cgroup_yard(directory, plan.cgroup.root))
