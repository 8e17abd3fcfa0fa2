"""Making the cgroup of a container: its directory, its controllers, its limits, its device program.

Paths are those of :func:`gpurun.cgroup.tree.cgroup_path`.  Every name below the root of the tree is opened by itself, from
the descriptor of the directory above it: it cannot be a link, nor a place where something else is mounted.

What is done to a cgroup that is there already is in :mod:`gpurun.cgroup.control`, which needs no C library; those functions
can be had from here too.

Reference: admin-guide/cgroup-v2.rst, "Core Interface Files"; cgroups(7).
"""

from __future__ import annotations

import posix
from errno import EINVAL, ENOENT

from gpurun.cgroup.control import DIRECTORY, freeze, is_frozen, kill, oom_kill_count, processes, remove, thaw
from gpurun.cgroup.resources import needs_domain
from gpurun.decimals import decimal
from gpurun.errors import GpurunError, StepError
from gpurun.linux import bpf, fs
from gpurun.linux.files import Fd, read_fd, read_file

TYPE_CHECKING = False
if TYPE_CHECKING:
    from gpurun.cgroup.resources import CgroupWrite

__all__ = [
    "add_process",
    "attach_devices",
    "check_dmem",
    "check_memory_before_update",
    "check_partition",
    "check_usable",
    "create",
    "freeze",
    "is_frozen",
    "kill",
    "load_devices",
    "oom_kill_count",
    "open_dir",
    "processes",
    "remove",
    "thaw",
    "undo_create",
    "write_resources",
]

#: The controllers that also work among threads: for them a cgroup with processes may give to those below it.
_THREADED = ("cpu", "cpuset", "perf_event", "pids")

_BENEATH = fs.RESOLVE_BENEATH | fs.RESOLVE_NO_SYMLINKS | fs.RESOLVE_NO_MAGICLINKS | fs.RESOLVE_NO_XDEV


#: What the kernel lists in /sys/kernel/cgroup/delegate, for kernels that do not list it.
_DELEGATED = ("cgroup.procs", "cgroup.subtree_control", "cgroup.threads")


def check_usable(path: str, root: str) -> None:
    """Raise :class:`GpurunError` when the cgroup *path* of the tree at *root* cannot be a new container's.

    That is one which is there and in use, and one that is frozen or below a frozen one: there create would wait for ever.
    """
    count = len(processes(path))
    if count:
        raise GpurunError(f"container's cgroup is not empty: {count} process(es) found")
    if is_frozen(path):
        raise GpurunError("container's cgroup unexpectedly frozen")
    above = path.rpartition("/")[0]
    while above.startswith(f"{root.rstrip('/')}/"):
        if is_frozen(above):
            raise GpurunError(
                f"container's cgroup unexpectedly frozen: {above} is frozen, with everything below it; thaw it first"
            )
        above = above.rpartition("/")[0]


def create(path: str, root: str, writes: tuple[CgroupWrite, ...] = (), new: bool = True) -> tuple[str, ...]:
    """Make the cgroup *path* of the tree at *root* and what is missing above it.

    Returns the directories made, outermost first.  In every cgroup above it all its controllers are enabled, so that
    limits have their files.  *writes* are the limits that will be set in it: some need a cgroup of type "domain".
    One that is not *new* has been made, and is held by a process, on our behalf.

    Raises :class:`GpurunError` when the cgroup cannot be a new container's (:func:`check_usable`) or is of the wrong type,
    and :class:`StepError` when the kernel refuses; what was made until then is removed again.
    """
    if new:
        check_usable(path, root)
    domain = needs_domain(writes)
    made: list[str] = []
    with Fd(open_dir(root)) as fd:
        try:
            current = root.rstrip("/")
            for name in path[len(current) :].strip("/").split("/"):
                # Some controllers cannot be enabled in some places (rootless, a parent that holds processes): then a limit
                # that needs one fails when it is written, and a container without such a limit is none the worse.
                _enable_controllers(fd, domain)
                current = f"{current}/{name}"
                _enter(fd, name, current, made)
                _check_type(fd, current, domain)
            if current not in made:
                _check_no_internal_processes(fd, current)
        except BaseException:
            undo_create(tuple(made))
            raise
    return tuple(made)


def undo_create(made: tuple[str, ...]) -> None:
    """Remove what :func:`create` made, as far as no other container uses it by now."""
    for directory in reversed(made):
        try:
            posix.rmdir(directory)
        except FileNotFoundError:
            continue  # the container's own has been removed before
        except OSError:
            return  # another container has moved in (EBUSY): the ones above are in use too


def _enter(fd: int, name: str, path: str, made: list[str]) -> None:
    """Make the child *name* of the cgroup that *fd* is unless it is there; *fd* becomes that child."""
    try:
        try:
            posix.mkdir(name, 0o755, dir_fd=fd)
            made.append(path)
        except FileExistsError:
            pass
        child = fs.openat2(fd, name, DIRECTORY, _BENEATH)
    except OSError as e:
        raise StepError("cannot make the cgroup", path, e.errno or EINVAL) from None
    posix.dup2(child, fd, False)
    posix.close(child)


def _enable_controllers(fd: int, domain: bool) -> None:
    """Give all that the cgroup has to those below it, as far as it goes.

    One that holds processes can give only what also works among threads, and what is below it then is threaded.  That is of
    no use for limits that need a *domain*, and is not done for them: the limit's own error says what is in the way.
    """
    try:
        enabled = _read(fd, "cgroup.subtree_control").split()
        missing = [f"+{name}" for name in _read(fd, "cgroup.controllers").split() if name not in enabled]
    except OSError:
        return  # a cgroup that is being removed; making the next one in it says so
    if not missing:
        return
    try:
        _write(fd, "cgroup.subtree_control", " ".join(missing))
    except OSError:
        if domain and _read(fd, "cgroup.procs").strip():
            return
        for one in missing:
            try:
                _write(fd, "cgroup.subtree_control", one)
            except OSError:
                pass  # why: see create()


def _check_type(fd: int, path: str, domain: bool) -> None:
    """A threaded cgroup takes no domain controllers; an invalid one becomes threaded if it may."""
    try:
        kind = _read(fd, "cgroup.type").strip()
    except OSError:
        return  # no such file in the root of the tree (of a cgroup namespace)
    if kind == "domain invalid":
        if domain:
            raise GpurunError(
                f'cannot enter cgroupv2 "{path}" with domain controllers -- it is in an invalid state: '
                "a cgroup beside or above it is threaded, choose another linux.cgroupsPath"
            )
        try:
            _write(fd, "cgroup.type", "threaded")
        except OSError as e:
            raise StepError("cannot make the cgroup threaded:", path, e.errno or EINVAL) from None
    elif kind in ("threaded", "domain threaded") and domain:
        raise GpurunError(f'cannot enter cgroupv2 "{path}" with "{kind}" mode as domain controllers are requested')


def _check_no_internal_processes(fd: int, path: str) -> None:
    """A cgroup that gives controllers to those below it takes no processes ("No Internal Process Constraint")."""
    try:
        given = [name for name in _read(fd, "cgroup.subtree_control").split() if name not in _THREADED]
    except OSError:
        return
    if given:
        raise GpurunError(
            f'the cgroup "{path}" cannot hold processes: it enables controllers ({" ".join(given)}) for '
            f"the cgroups below it: "
            "choose another linux.cgroupsPath"
        )


def open_dir(path: str) -> int:
    """A descriptor of the cgroup, for clone3(2) with CLONE_INTO_CGROUP and for the functions that take one.

    Raises :class:`StepError`.
    """
    try:
        return posix.open(path, DIRECTORY)
    except OSError as e:
        raise StepError("cannot open the cgroup", path, e.errno or EINVAL) from None


def add_process(fd: int, pid: int, path: str = "") -> None:
    """Move the process *pid* into the cgroup that *fd* is; *path* is its name for the error.  Raises :class:`StepError`."""
    try:
        _write(fd, "cgroup.procs", str(pid))
    except OSError as e:
        raise StepError(f"cannot move process {pid} into the cgroup", path, e.errno or EINVAL) from None


def write_resources(fd: int, writes: tuple[CgroupWrite, ...]) -> None:
    """Make all *writes* of :func:`gpurun.cgroup.resources.plan_resources` in the cgroup that *fd* is.

    Raises :class:`StepError` naming file, value and the JSON path that asked for it.
    """
    for planned in writes:
        write = planned
        try:
            try:
                _write(fd, write.file, write.value)
            except FileNotFoundError:
                if write.otherwise is None:
                    raise
                write = write.otherwise
                _write(fd, write.file, write.value)
        except OSError as e:
            if e.errno in write.ignore:
                continue
            if e.errno == ENOENT and (why := _why_missing(fd, write.file.partition(".")[0])):
                raise GpurunError(f"cannot set {write.where}: there is no {write.file}: {why}") from None
            raise StepError(f'cannot set {write.where}: writing "{write.value}" to', write.file, e.errno or EINVAL) from None


def _why_missing(fd: int, controller: str) -> str:
    """Which cgroup above keeps *controller* from the cgroup that *fd* is, and why; "" when it has it, or none has."""
    with Fd(posix.dup(fd)) as here:
        try:
            while controller not in _read(here, "cgroup.controllers").split():
                above = fs.openat2(here, "..", DIRECTORY, 0)
                posix.dup2(above, here, False)
                posix.close(above)
                if controller in _read(here, "cgroup.controllers").split():
                    path = posix.readlink(f"/proc/self/fd/{here}")
                    count = len(_read(here, "cgroup.procs").split())
                    why = (
                        f', for {count} process(es) are in "{path}" itself: move them, or name another place'
                        if count
                        else ""
                    )
                    return f'the cgroup v2 controller "{controller}" is not given to cgroups in "{path}"{why}'
            return ""
        except OSError:
            return ""  # above the root of the tree there is no such file


def check_partition(fd: int, writes: tuple[CgroupWrite, ...]) -> None:
    """Raise :class:`GpurunError` for an invalid partition of CPUs: the kernel accepts the write, and says so in the file."""
    for write in writes:
        if write.file == "cpuset.cpus.partition":
            content = _read(fd, write.file).strip()
            if "invalid" in content:
                raise GpurunError(f"{write.where}: the kernel refuses to reserve the CPUs for this container: {content}")


def check_dmem(fd: int, writes: tuple[CgroupWrite, ...]) -> None:
    """Raise :class:`GpurunError` where a limit of GPU memory among *writes* is not in force: of one that is below what the
    cgroup has already, older kernels say nothing and keep the old one."""
    for write in writes:
        region, _, text = write.value.partition(" ")
        wanted = decimal(text.strip())
        if write.file != "dmem.max" or wanted is None:
            continue
        found = dict([line.partition(" ")[::2] for line in _read(fd, write.file).split("\n")]).get(region, "")
        if found == "max" or (decimal(found) or 0) > wanted:
            raise GpurunError(f"{write.where}: the kernel keeps {write.file} of {region} at {found}: more is in use now")


def check_memory_before_update(fd: int, limit: int, swap: int) -> None:
    """What ``checkBeforeUpdate`` asks for: refuse new limits (bytes, 0 or -1 for none) that the usage has reached already.

    The check is best effort, as runc's: without ``memory.current`` there is none.  Raises :class:`GpurunError` in runc's
    words.
    """
    try:
        usage = int(_read(fd, "memory.current"))
    except OSError:
        return
    if 0 < swap <= usage:
        raise GpurunError(f"rejecting memory+swap limit {swap} <= usage {usage}")
    if 0 < limit <= usage:
        raise GpurunError(f"rejecting memory limit {limit} <= usage {usage}")


def load_devices(program: bytes) -> int:
    """Load *program* (:func:`gpurun.cgroup.devices.device_program`) into the kernel; returns its descriptor.

    This is most of the cost of restricting devices, and needs no cgroup.  Raises :class:`StepError`.
    """
    try:
        return bpf.prog_load(program)
    except OSError as e:
        raise StepError("cannot restrict devices: bpf(BPF_PROG_LOAD)", "", e.errno or EINVAL) from None


def attach_devices(fd: int, program_fd: int, beside: bool = False) -> None:
    """Make the loaded program *program_fd* the device program of the cgroup that *fd* is.

    *beside* leaves the programs that are there: systemd's own, which it puts back whenever it likes; all of them decide.

    A program that is the only one is replaced atomically; of several all are detached once the new one is attached: there
    is no moment at which the container's devices are open, nor one at which they are shut.

    Raises :class:`StepError`.
    """
    step = "BPF_PROG_QUERY"
    old: list[int] = []
    try:
        old = [] if beside else _attached_programs(fd)
        step = "BPF_PROG_ATTACH"
        if len(old) == 1:
            bpf.prog_attach(fd, program_fd, old[0])
        else:
            bpf.prog_attach(fd, program_fd)
            step = "BPF_PROG_DETACH"
            for one in old:
                bpf.prog_detach(fd, one)
    except OSError as e:
        raise StepError(f"cannot restrict devices: bpf({step})", "", e.errno or EINVAL) from None
    finally:
        for one in old:
            posix.close(one)


def _attached_programs(fd: int) -> list[int]:
    """Descriptors of the device programs on the cgroup; those of others that we may not touch stay as they are."""
    found: list[int] = []
    for prog_id in bpf.prog_query(fd):
        try:
            found.append(bpf.prog_get_fd_by_id(prog_id))
        except (PermissionError, FileNotFoundError):
            pass  # FileNotFoundError: detached and freed since the query
    return found


def _read(fd: int, name: str) -> str:
    with Fd(fs.openat2(fd, name, posix.O_RDONLY, _BENEATH)) as file:
        return read_fd(file).decode()


def _write(fd: int, name: str, value: str) -> None:
    """One write(2): the kernel takes each as a whole setting."""
    with Fd(fs.openat2(fd, name, posix.O_WRONLY, _BENEATH)) as file:
        posix.write(file, value.encode())


def delegate(fd: int, uid: int, listed: str = "/sys/kernel/cgroup/delegate") -> None:
    """Give the cgroup that *fd* is, and its files that may be given away, to *uid* (of the host): its owner can make cgroups
    below it and move its processes there, but not change its own limits.  Raises :class:`StepError`."""
    try:
        names = tuple(read_file(listed).decode().split())
    except OSError:
        names = _DELEGATED
    try:
        posix.chown(fd, uid, -1)
        for name in names:
            if "/" in name:
                continue
            try:
                posix.chown(name, uid, -1, dir_fd=fd, follow_symlinks=False)
            except FileNotFoundError:
                pass  # of a controller that is not enabled here
    except OSError as e:
        raise StepError("give the cgroup to the user", str(uid), e.errno) from None
