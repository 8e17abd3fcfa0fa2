"""Making the container's first process in its namespaces and its cgroup (clone3(2), setns(2), user_namespaces(7)).

The usual case is one clone3(2): the child is born in nearly all new namespaces and in its cgroup.  When a user or pid
namespace is joined, any other beside a new user namespace, or a time namespace made, a helper goes first: it enters or
makes these, clones the child and ends.  Whoever calls from a starter makes all of them as siblings of it (CLONE_PARENT):
create is to be their parent and to wait for them.

The child runs in a copy of this interpreter, so what it does here is little and imports nothing.

A child that the kernel kills at birth, for the reason in :mod:`gpurun.ns.birth`, has said nothing: another one is cloned
where we are, asks to be moved into the cgroup before anything else, and goes the same way.
"""

from __future__ import annotations

import posix
from errno import EACCES, ENOSPC, EPERM

from gpurun.errors import GpurunError, Step, StepError, error_text, oserror_text
from gpurun.linux.files import O_CLOEXEC, Fd, write_all
from gpurun.linux.process import (
    CAP_SETFCAP,
    CAP_SETGID,
    CAP_SETUID,
    CLONE_NEWCGROUP,
    CLONE_NEWIPC,
    CLONE_NEWNET,
    CLONE_NEWNS,
    CLONE_NEWTIME,
    CLONE_NEWUSER,
    CLONE_PARENT,
    SIGKILL,
    BornElsewhere,
    become_root,
    clone3,
    has_capabilities,
    setns,
    unshare,
)
from gpurun.ns.namespaces import NAMESPACES, Join, NamespacePlan

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable


def open_joins(plan: NamespacePlan) -> tuple[tuple[Join, int], ...]:
    """Descriptors of the namespaces to join, all opened before any is entered.

    Returns ((namespace, descriptor), ...).  Raises :class:`GpurunError` for one that cannot be opened.
    """
    opened: list[tuple[Join, int]] = []
    for join in plan.joins:
        try:
            opened.append((join, posix.open(join.path, posix.O_RDONLY | O_CLOEXEC)))
        except OSError as e:
            for _, fd in opened:
                posix.close(fd)
            raise GpurunError(f"open the {join.type} namespace {join.path}: {oserror_text(OSError(e.errno, ''))}") from None
    return tuple(opened)


def spawn(
    plan: NamespacePlan,
    joins: tuple[tuple[Join, int], ...],
    cgroup_fd: int,
    report_pid: Callable[[int], None],
    relation: int = CLONE_PARENT,
) -> int:
    """Make a process in the namespaces of *plan*, born in the cgroup; returns its pid, and 0 in the process itself.

    It is a sibling of this process (*relation* CLONE_PARENT) or a child (0, which is for a plan that needs no helper).
    ``report_pid(pid)`` is called for each process that is made, at once, so that our parent can end and reap it; after an
    error (raised in the caller) all have been reported.  A mount namespace to join is left to the new process: it still has
    to see the host's files.  Raises :class:`GpurunError` when a process cannot be made or cannot enter a namespace.
    """
    made = _spawn(plan, joins, cgroup_fd, True, report_pid, relation)
    if made < 0 and cgroup_fd >= 0:
        made = _spawn(plan, joins, cgroup_fd, False, report_pid, relation)
    if made < 0:
        raise GpurunError("the process of the container ended while its namespaces were made")
    return made


def _spawn(
    plan: NamespacePlan,
    joins: tuple[tuple[Join, int], ...],
    cgroup_fd: int,
    inside: bool,
    report_pid: Callable[[int], None],
    relation: int,
) -> int:
    """As :func:`spawn`; the child is born *inside* the cgroup, or moved there.  -1 when it ended without an answer."""
    ask_r, ask_w = posix.pipe2(O_CLOEXEC)
    answer_r, answer_w = posix.pipe2(O_CLOEXEC)
    helper = plan.needs_helper
    flags = plan.new & ~_late(plan, helper)
    try:
        pid, pidfd = clone3(relation | (0 if helper else flags), cgroup_fd if inside else -1)
    except BornElsewhere:
        for fd in (ask_r, ask_w, answer_r, answer_w):
            posix.close(fd)
        return -1
    except OSError as e:
        raise StepError("clone3(2) a process", _describe_place(plan), e.errno, _remedy(plan, e.errno)) from None
    if pid == 0:
        try:
            posix.close(ask_r)
            posix.close(answer_w)
            _in_child(plan, joins, (ask_w, answer_r), helper, inside)
            posix.close(ask_w)
            posix.close(answer_r)
        except BaseException:  # which would go on as the caller
            posix._exit(1)
        return 0
    for fd in (pidfd, ask_w, answer_r):
        posix.close(fd)
    report_pid(pid)
    with Fd(ask_r), Fd(answer_w):
        try:
            made = _serve(plan, pid, ask_r, answer_w, cgroup_fd)
        except BaseException:
            posix.kill(pid, SIGKILL)
            raise
    if made not in (pid, -1):
        report_pid(made)
    return made


def _late(plan: NamespacePlan, helper: bool) -> int:
    """The namespaces that the new process makes itself, once it is in its cgroup and its user namespace has its maps.

    clone3(2) would take the root of a cgroup namespace from the parent's cgroup, and what comes with an IPC or a network
    namespace (/dev/mqueue, /proc/net) would belong to nobody in the user namespace.  With a *helper* the maps come first.
    """
    owned = CLONE_NEWIPC | CLONE_NEWNET if plan.new & CLONE_NEWUSER and not helper else 0
    return CLONE_NEWCGROUP | owned


def _describe_place(plan: NamespacePlan) -> str:
    return f"in new namespaces ({_names(plan.new)})" if plan.new else "in the container's cgroup"


def _names(flags: int) -> str:
    return ", ".join([name for name, (flag, _) in NAMESPACES.items() if flags & flag])


def _remedy(plan: NamespacePlan, errno: int | None) -> str:
    """What to do about clone3(2)'s answer (clone(2), user_namespaces(7))."""
    if errno == ENOSPC:
        return "there are as many namespaces as user.max_*_namespaces allows (sysctl)"
    if errno == EACCES and plan.new & CLONE_NEWUSER:
        return (
            "AppArmor may keep the program that called from making user namespaces: gpurun needs a profile that allows them "
            "(debian/apparmor/gpurun), and the kernel's log names the one that it was in"
        )
    if errno != EPERM:
        return ""
    if plan.new & CLONE_NEWUSER:
        return (
            "this host does not let unprivileged users create user namespaces (kernel.unprivileged_userns_clone, "
            "kernel.apparmor_restrict_unprivileged_userns), or gpurun runs in a chroot, where the kernel refuses them"
        )
    return (
        "this takes CAP_SYS_ADMIN: run gpurun as root, or give the container a user namespace "
        "(`gpurun spec --rootless` writes such a config.json)"
    )


def _serve(plan: NamespacePlan, pid: int, ask_r: int, answer_w: int, cgroup_fd: int) -> int:
    """Do for the child *pid* what only we may: write its id maps and clock offsets; returns the pid of the init, -1 when the
    child ended before it had asked for anything.

    The child asks with lines: ``cgroup``, ``maps``, ``offsets``, ``pid N``, ``done``, ``error TEXT``.
    """
    pending = b""
    asked = False
    while True:
        chunk = posix.read(ask_r, 4096)
        if not chunk:
            if not asked:
                return -1
            raise GpurunError("the process of the container ended while its namespaces were made")
        asked = True
        pending += chunk
        while b"\n" in pending:
            line, _, pending = pending.partition(b"\n")
            word, _, rest = line.decode("utf-8", "replace").partition(" ")
            if word == "cgroup":
                from gpurun.cgroup.manager import add_process

                add_process(cgroup_fd, pid)
                posix.write(answer_w, b"\n")
            elif word == "maps":
                _write_maps(pid, plan)
                posix.write(answer_w, b"\n")
            elif word == "offsets":
                _write_proc(pid, "timens_offsets", plan.time_offsets)
                posix.write(answer_w, b"\n")
            elif word == "pid":
                return int(rest)
            elif word == "done":
                return pid
            else:
                raise GpurunError(rest)


def _write_maps(pid: int, plan: NamespacePlan) -> None:
    """The id maps of *pid*: written by us, or by newuidmap(1) and newgidmap(1) when we lack the privilege for them."""
    rootless = posix.geteuid() != 0
    if plan.gid_map.split()[1:] == [str(posix.getegid()), "1"] and not has_capabilities(CAP_SETGID):
        _write_proc(pid, "setgroups", "deny")  # else not even the own group may be mapped (user_namespaces(7))
    for name, text, helper in (("uid_map", plan.uid_map, "newuidmap"), ("gid_map", plan.gid_map, "newgidmap")):
        try:
            _write_proc(pid, name, text)
        except StepError as e:
            if e.errno != EPERM:
                raise
            if not rootless:
                raise GpurunError(f"{e}: {_why_no_map(name)}") from None
            _run_mapper(helper, pid, text, e)


def _why_no_map(name: str) -> str:
    """Why root, maybe of a user namespace, may not write a map (user_namespaces(7))."""
    wanted = ("CAP_SETUID", CAP_SETUID) if name == "uid_map" else ("CAP_SETGID", CAP_SETGID)
    lacking = [word for word, number in (wanted, ("CAP_SETFCAP", CAP_SETFCAP)) if not has_capabilities(number)]
    if lacking:
        return f"gpurun runs without {' and '.join(lacking)}, which this takes"
    field = name.replace("_map", "Mappings")
    return f"linux.{field} may name only ids that gpurun's own user namespace has (/proc/self/{name})"


def _run_mapper(helper: str, pid: int, text: str, refused: StepError) -> None:
    for directory in ("/usr/bin", "/usr/local/bin", "/bin"):
        path = f"{directory}/{helper}"
        if posix.access(path, posix.X_OK):
            with Step("start", path):
                child = posix.posix_spawn(path, [helper, str(pid), *text.split()], {})
            code = posix.waitstatus_to_exitcode(posix.waitpid(child, 0)[1])
            if code:
                ids = "/etc/subuid" if helper == "newuidmap" else "/etc/subgid"
                how = f"was killed by signal {-code}" if code < 0 else "says why on stderr"
                shown = "; ".join(text.strip().splitlines())
                raise GpurunError(
                    f'{helper} refuses the map of the user namespace ("{shown}") and {how}: {ids} must give this user '
                    f"these ids (and {path} be setuid root, or have cap_set{helper[3:6]}): `gpurun gpu doctor --rootless`"
                )
            return
    raise GpurunError(f"{refused} (and there is no {helper} to do it: install uidmap)")


def _write_proc(pid: int, name: str, text: str) -> None:
    path = f"/proc/{pid}/{name}"
    try:
        with Fd(posix.open(path, posix.O_WRONLY | O_CLOEXEC)) as fd:
            write_all(fd, text.encode())  # the kernel takes these files in one write
    except OSError as e:
        raise StepError("write", f'"{text.strip()}" to {path}', e.errno) from None


def _in_child(
    plan: NamespacePlan, joins: tuple[tuple[Join, int], ...], pipes: tuple[int, int], helper: bool, inside: bool
) -> None:
    """The new process' part; returns in all namespaces, or ends after it has said why not."""
    ask_w, answer_r = pipes

    def ask(word: str) -> None:
        posix.write(ask_w, word.encode() + b"\n")
        if not posix.read(answer_r, 1):
            posix._exit(1)  # the parent gave up

    try:
        new = plan.new
        if not inside:
            ask("cgroup")
        if helper:
            _join(joins)
            if new & CLONE_NEWUSER:
                unshare(CLONE_NEWUSER)
                ask("maps")
                become_root()
            if new & CLONE_NEWTIME:
                unshare(CLONE_NEWTIME)
                if plan.time_offsets:
                    ask("offsets")
            rest = new & ~(CLONE_NEWUSER | CLONE_NEWTIME | _late(plan, helper))
            pid, _ = clone3(rest | CLONE_PARENT)
            if pid:
                posix.write(ask_w, b"pid %d\n" % pid)
                posix._exit(0)
        else:
            if new & CLONE_NEWUSER:
                ask("maps")
                become_root()
            _join(joins)
        late = new & _late(plan, helper)
        if late:
            try:
                unshare(late)
            except OSError as e:
                raise StepError("unshare(2)", _names(late), e.errno, _remedy(plan, e.errno)) from None
        if not helper:
            posix.write(ask_w, b"done\n")
        return
    except BaseException as e:  # whatever it is, this copy of the caller must not go on as the caller
        posix.write(ask_w, b"error " + error_text(e).encode("utf-8", "replace").replace(b"\n", b" ") + b"\n")
    posix._exit(1)


def _join(joins: tuple[tuple[Join, int], ...]) -> None:
    """Enter the namespaces: those that need host privilege before the user namespace, those it owns after it."""
    left = [(join, fd) for join, fd in joins if join.flag != CLONE_NEWNS]
    user = [(join, fd) for join, fd in left if join.flag == CLONE_NEWUSER]
    others = [(join, fd) for join, fd in left if join.flag != CLONE_NEWUSER]
    failed: list[tuple[Join, int]] = []
    for join, fd in others:
        try:
            setns(fd, join.flag)
        except PermissionError:
            if not user:
                raise StepError("join the namespace", join.path, EPERM) from None
            failed.append((join, fd))
        except OSError as e:
            raise StepError("join the namespace", join.path, e.errno) from None
    for join, fd in user:
        with Step("join the namespace", join.path):
            setns(fd, join.flag)
        become_root()
    for join, fd in failed:
        with Step("join the namespace", join.path):
            setns(fd, join.flag)
