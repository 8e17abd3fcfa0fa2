"""restore: a container made again from what checkpoint has saved.

Around it all is as in create: the same plan, state directory, cgroup, limits and hooks.  But there is no init of ours: CRIU,
born in the container's cgroup and in a mount namespace of its own, makes the namespaces, mounts and processes as they were,
and the first of them as our child.  There is no FIFO either: what is restored runs.
"""

from __future__ import annotations

import posix
from _struct import pack

from gpurun.cgroup import manager
from gpurun.criu import rpc
from gpurun.criu.swrk import FIRST_EXTRA, Swrk, find_criu
from gpurun.engine import cgroup, place
from gpurun.engine import state as store
from gpurun.engine.child import end_child
from gpurun.engine.create import (
    Created,
    CreateOptions,
    check_rootfs,
    device_edits,
    plan_bundle,
    read_bundle,
    record,
    take_back,
    with_filter,
)
from gpurun.engine.criu import (
    DESCRIPTORS,
    EXTERNAL_NAMESPACES,
    CriuOptions,
    Outside,
    cgroup_yard,
    common_options,
    directories,
    failure,
    has_cgroup_image,
    outside,
    path_in,
)
from gpurun.engine.hooks import in_directory, run_hooks
from gpurun.engine.signals import default_signals
from gpurun.errors import ConfigError, GpurunError, StepError, oserror_text
from gpurun.hook.edits import ContainerEdits
from gpurun.jsontext import dumps
from gpurun.linux import mount as lm
from gpurun.linux import proc
from gpurun.linux import process as lp
from gpurun.linux.files import O_CLOEXEC, read_file
from gpurun.linux.fs import AT_RECURSIVE, O_DIRECTORY, O_PATH
from gpurun.ns.loopback import loopback_up
from gpurun.ns.mount import attach
from gpurun.ns.namespaces import NAMESPACES, host_id
from gpurun.ns.path import make_target
from gpurun.oci.config import Config, read_config
from gpurun.oci.reader import as_object, parse_json
from gpurun.record import Record, replace

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from gpurun.engine.plan import Plan

LOG = "restore.log"


class RestoreOptions(Record):
    """What the command line says; *create* is what it has in common with create's."""

    create: CreateOptions
    criu: CriuOptions
    tcp_close: bool = False
    lsm_profile: str = ""
    lsm_mount_context: str = ""


def restore(options: RestoreOptions) -> Created:
    """Make the container of *options* from its image; it runs when this returns.

    Raises :class:`GpurunError`; then nothing of the container is left.
    """
    create = options.create
    store.check_id(create.id)
    data, plan = plan_bundle(create)
    config = read_config(data)
    original = read_bundle(create.bundle, create.config)[1]
    if replace(device_edits(original), warnings=()) != ContainerEdits():
        raise ConfigError("process.env", "a container with GPUs or other devices of CDI cannot be restored")
    foreign = outside(config, create.bundle)
    check_rootfs(plan)
    terminal = plan.init.process.terminal
    if terminal or create.console_socket:
        from gpurun.engine.terminal import check_console

        check_console(terminal, create.detached, create.console_socket)
    plan = with_filter(plan, create.root)
    criu = find_criu()
    streams = _read_descriptors(options.criu.image_path)
    namespaces = _open_namespaces(foreign)
    undo: list[Callable[[], None]] = []
    try:
        asked = _request(options, config, foreign, tuple(namespaces), streams)
        return _apply(options, plan, data, criu, tuple(namespaces.values()), asked, undo)
    except BaseException:
        take_back(undo)
        raise
    finally:
        for fd in namespaces.values():
            posix.close(fd)


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
    options: RestoreOptions, config: Config, foreign: Outside, namespaces: tuple[str, ...], streams: tuple[str, ...]
) -> rpc.Options:
    inherit = {key: FIRST_EXTRA + i for i, key in enumerate(namespaces)}
    for fd, name in enumerate(streams):
        if name.startswith(("pipe:[", "file[")):
            inherit.setdefault(name, fd)
    joins = [j for j in foreign.namespaces.joins if j.flag not in EXTERNAL_NAMESPACES]
    return replace(
        common_options(options.criu, config, FIRST_EXTRA + len(namespaces)),
        log_file=LOG,
        evasive_devices=True,
        rst_sibling=True,
        tcp_close=options.tcp_close,
        lsm_profile=options.lsm_profile,
        lsm_mount_context=options.lsm_mount_context,
        inherit_fd=tuple(inherit.items()),
        join_ns=tuple([(NAMESPACES[join.type][1], join.path) for join in joins]),
    )


def _apply(
    options: RestoreOptions,
    plan: Plan,
    data: bytes,
    criu: str,
    namespaces: tuple[int, ...],
    asked: rpc.Options,
    undo: list[Callable[[], None]],
) -> Created:
    create = options.create
    state = record(create, plan, data, undo)
    directory = store.directory(create.root, create.id)
    root = f"{directory}/root"
    posix.mkdir(root, 0o700)
    externals = _prepare_mount_points(plan)
    asked = _with_cgroups(replace(asked, root=root, ext_mnt=externals), options, plan)
    placeholder = cgroup.make(plan, undo, f"{directory}/exclusive")
    program_fd = cgroup.load_devices(plan)
    cgroup_fd = manager.open_dir(plan.cgroup.path) if plan.cgroup.path else -1

    def before_exec() -> None:
        default_signals()
        _own_mounts(plan.rootfs, root)
        if plan.namespaces.new & lp.CLONE_NEWCGROUP and not asked.manage_cgroups_mode:
            lp.unshare(lp.CLONE_NEWCGROUP)

    take_back_access = _lend_images(options.criu.image_path, plan)
    undo.append(take_back_access)
    swrk = Swrk(criu, directories(options.criu), cgroup_fd, namespaces, before_exec)
    if cgroup_fd >= 0:
        posix.close(cgroup_fd)
    cgroup.release(placeholder)
    serving = _Serving(options, plan, state, program_fd, undo)
    answer = None
    try:
        answer = swrk.converse(rpc.request(rpc.RESTORE, asked), serving.notified)
    finally:
        code = swrk.end()
        if answer is None or not answer.success or code:
            serving.reap()
    log = f"{options.criu.work_path or options.criu.image_path}/{LOG}"
    if not answer.success:
        raise failure(answer, "restore the container", log)
    if code or not serving.state.pid:
        raise GpurunError(f"criu ended with status {code} (see {log})")
    posix.rmdir(root)
    take_back_access()
    undo.remove(take_back_access)
    if create.pid_file:
        store.write_pid_file(create.pid_file, serving.state.pid)
    return Created(serving.state, plan, serving.pidfd, serving.master)


def _lend_images(path: str, plan: Plan) -> Callable[[], None]:
    """Let the root of the container's user namespace reach the images; returns what takes that back.

    Restored processes read their own images, as that root, once they are it; the directory is ours and 0700, as memory
    should be.  An access control list (acl(5)) lets in that one user and nobody else.
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
    and it is told that what was the container's cgroup is now at this place.
    """
    mode = asked.manage_cgroups_mode
    if mode is None:
        mode = rpc.CGROUP_MODES["soft" if plan.cgroup.path and has_cgroup_image(options.criu.image_path) else "ignore"]
    asked = replace(asked, manage_cgroups_mode=mode)
    if not mode:
        return asked
    roots = []
    for line in read_file("/proc/self/cgroup").decode("utf-8", "surrogateescape").splitlines():
        _, names, path = line.split(":", 2)
        own = plan.cgroup.path[len(plan.cgroup.root.rstrip("/")) :] if not names and plan.cgroup.path else path
        roots += [(name, own) for name in names.split(",")]
    directory = store.directory(options.create.root, plan.id)
    return replace(asked, cg_root=tuple(roots), cgroup_yard=cgroup_yard(directory, plan.cgroup.root))


class _Serving:
    """What is done at CRIU's notifications, and what comes of it."""

    def __init__(
        self, options: RestoreOptions, plan: Plan, state: store.State, program_fd: int, undo: list[Callable[[], None]]
    ) -> None:
        self.options, self.plan, self.state, self.program_fd, self.undo = options, plan, state, program_fd, undo
        self.pidfd = self.master = -1

    def notified(self, answer: rpc.Answer, passed: tuple[int, ...]) -> None:
        """Do what belongs to the stage ``answer.script``."""
        if answer.script == "setup-namespaces":
            self._set_up(answer.pid)
        elif answer.script == "orphan-pts-master" and passed:
            self._hand_over_terminal(passed[0])
        elif answer.script == "post-restore":
            self._note(answer.pid)

    def reap(self) -> None:
        """The first process is our child even if CRIU has given up and killed it."""
        if self.state.pid:
            return  # then there is a step in undo for it
        try:
            while posix.waitpid(-1, posix.WNOHANG)[0]:
                pass
        except ChildProcessError:
            pass

    def _set_up(self, pid: int) -> None:
        plan = self.plan
        if plan.namespaces.new & lp.CLONE_NEWNET:
            _loopback_of(pid)
            place.lend(plan, pid, f"{store.directory(self.options.create.root, plan.id)}/resctrl", self.undo)
        hooks = plan.hooks
        if hooks.poststop:
            self.undo.insert(0, lambda: run_hooks("poststop", hooks.poststop, store.state_json(self.state, "stopped")))
        if hooks.prestart or hooks.create_runtime:
            text = store.state_json(self.state, "creating", pid=pid)
            run_hooks("prestart", hooks.prestart, text, in_directory(plan.bundle))
            run_hooks("createRuntime", hooks.create_runtime, text, in_directory(plan.bundle))

    def _hand_over_terminal(self, master: int) -> None:
        from gpurun.engine.terminal import connect_socket, send_master

        if self.options.create.console_socket:
            send_master(connect_socket(self.options.create.console_socket), posix.dup(master))
        else:
            self.master = posix.dup(master)

    def _note(self, pid: int) -> None:
        """All processes are there, and none runs yet: from now on it is a container like any other."""
        self.pidfd = posix.pidfd_open(pid, 0)
        self.undo.append(lambda: end_child(pid, self.pidfd))
        found = proc.stat(pid)
        if found is None:
            raise GpurunError("the restored process ended at once")
        root = self.options.create.root
        self.state = replace(self.state, pid=pid, start_time=found[1], created=store.rfc3339_now())
        _save_config(root, self.plan.id, pid)
        cgroup.restrict(self.plan, self.program_fd, f"{store.directory(root, self.plan.id)}/exclusive")
        store.save(root, self.state)


def _save_config(root: str, container_id: str, pid: int) -> None:
    """CRIU restores into a new time namespace, for the clocks to go on from where they stood: exec must join that too."""
    if posix.stat("/proc/self/ns/time").st_ino == posix.stat(f"/proc/{pid}/ns/time").st_ino:
        return
    path = f"{store.directory(root, container_id)}/config.json"
    config = as_object(parse_json(read_file(path, 64 << 20), path), path)
    namespaces = config["linux"]["namespaces"]
    if not any(namespace["type"] == "time" for namespace in namespaces):
        namespaces.append({"type": "time"})
        store.write_atomically(path, dumps(config).encode("utf-8", "surrogateescape"), 0o600)


def _loopback_of(pid: int) -> None:
    """Bring up ``lo`` in the network namespace of *pid*: CRIU leaves a network that is not its own as the kernel made it."""
    child = posix.fork()
    if child == 0:
        try:
            lp.setns(posix.open(f"/proc/{pid}/ns/net", posix.O_RDONLY | O_CLOEXEC), lp.CLONE_NEWNET)
            loopback_up()
            posix._exit(0)
        finally:
            posix._exit(1)
    if posix.waitpid(child, 0)[1]:
        raise GpurunError("cannot bring up the loopback device of the restored container")


def _own_mounts(rootfs: str, root: str) -> None:
    """In CRIU's process: a mount namespace in which *root* shows the rootfs.  CRIU needs a mount point that nothing is
    mounted over; nobody else sees it, and it goes away with CRIU."""
    lp.unshare(lp.CLONE_NEWNS)
    lm.mount("", "/", "", lm.MS_SLAVE | lm.MS_REC)
    lm.mount(rootfs, root, "", lm.MS_BIND | lm.MS_REC)


def _prepare_mount_points(plan: Plan) -> tuple[tuple[str, str], ...]:
    """Make the mount points that the rootfs and the bind sources lack, as create would.

    It is done in a process with a mount namespace of its own, where each bind is mounted for those inside it.
    Returns (name in the image, source) of what is mounted from outside.
    """
    read, write = posix.pipe2(O_CLOEXEC)
    child = posix.fork()
    if child == 0:
        try:
            posix.write(write, b"\0".join([a.encode("utf-8", "surrogateescape") for a in _walk_mounts(plan)]) or b"\0")
            posix._exit(0)
        except BaseException as e:  # this copy must not go on as the caller
            text = oserror_text(e) if isinstance(e, OSError) else str(e)
            posix.write(write, text.encode("utf-8", "replace"))
        finally:
            posix._exit(1)
    posix.close(write)
    from gpurun.linux.files import read_fd

    said = read_fd(read).decode("utf-8", "surrogateescape")
    posix.close(read)
    if posix.waitpid(child, 0)[1]:
        raise GpurunError(f"cannot prepare the mount points: {said}")
    words = said.split("\0")
    return tuple(zip(words[::2], words[1::2], strict=False))


def _walk_mounts(plan: Plan) -> list[str]:
    """Mount what :func:`_prepare_mount_points` says; names and sources in turn."""
    init = plan.init
    lp.unshare(lp.CLONE_NEWNS)
    lm.mount("", "/", "", lm.MS_PRIVATE | lm.MS_REC)
    lm.mount(plan.rootfs, plan.rootfs, "", lm.MS_BIND | lm.MS_REC)
    root = posix.open(plan.rootfs, O_PATH | O_DIRECTORY | O_CLOEXEC)
    found: list[str] = []
    covered: list[str] = []
    for step in init.mounts:
        if step.options.remount:
            continue
        bind = step.kind == "bind"
        if not any(step.destination.startswith(f"{path}/") for path in covered):
            directory = not bind or posix.stat(step.source).st_mode & 0o170000 == 0o040000
            try:
                target = make_target(root, step.destination, directory)
                if bind:
                    tree = lm.open_tree(-100, step.source, lm.OPEN_TREE_CLONE | AT_RECURSIVE)
                    attach(tree, target)
                    posix.close(tree)
                posix.close(target)
            except OSError as e:
                raise StepError("make the mount point", step.destination, e.errno) from None
        if bind:
            found += [path_in(root, step.destination) or step.destination, step.source]
        else:
            covered.append(step.destination)  # its content is CRIU's to restore
    for device in init.devices:
        found += [device.path, device.path]
    if init.masked_paths:
        found += ["/dev/null", "/dev/null"]
    return found
