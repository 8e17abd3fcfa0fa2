"""Making the container's first process in its namespaces and its cgroup (clone3(2), setns(2), user_namespaces(7)).

The usual case is one clone3(2): the child is born in all new namespaces and in its cgroup.  When a user or pid namespace is
joined, or a time namespace made, a helper goes first: it enters or makes these, clones the child and ends.  All are made as
siblings of the caller (CLONE_PARENT), which is a child of create itself: create is to be their parent and to wait for them.

The child runs in a copy of this interpreter, so what it does here is little and imports nothing.
"""

from __future__ import annotations

import posix
from errno import EPERM

from gpurun.errors import GpurunError, StepError, oserror_text
from gpurun.linux.files import O_CLOEXEC, write_all
from gpurun.linux.process import (
    CLONE_NEWCGROUP,
    CLONE_NEWNS,
    CLONE_NEWTIME,
    CLONE_NEWUSER,
    CLONE_PARENT,
    clone3,
    setns,
    unshare,
)
from gpurun.ns.namespaces import Join, NamespacePlan

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable


def open_joins(plan: NamespacePlan) -> tuple[tuple[Join, int], ...]:
    """Descriptors of the namespaces to join, all opened before any is entered."""
    opened: list[tuple[Join, int]] = []
    for join in plan.joins:
        try:
            opened.append((join, posix.open(join.path, posix.O_RDONLY | O_CLOEXEC)))
        except OSError as e:
            for _, fd in opened:
                posix.close(fd)
            raise GpurunError(f"open the {join.type} namespace {join.path}: {oserror_text(OSError(e.errno, ''))}") from None
    return tuple(opened)


def spawn(plan: NamespacePlan, joins: tuple[tuple[Join, int], ...], cgroup_fd: int, told: Callable[[int], None]) -> int:
    """Make a process in the namespaces of *plan*, born in the cgroup; returns its pid, and 0 in the process itself.

    ``told(pid)`` is called for each process that is made, at once, so that our parent can end and reap it; after an error
    (raised in the caller) all have been told.  A mount namespace to join is left to the new process: it still has to see the
    host's files.
    """
    ask_r, ask_w = posix.pipe2(O_CLOEXEC)
    answer_r, answer_w = posix.pipe2(O_CLOEXEC)
    flags = plan.new & ~CLONE_NEWCGROUP
    helper = plan.needs_helper
    pid, pidfd = clone3(CLONE_PARENT | (0 if helper else flags), cgroup_fd)
    if pid == 0:
        posix.close(ask_r)
        posix.close(answer_w)
        _in_child(plan, joins, (ask_w, answer_r), helper)
        posix.close(ask_w)
        posix.close(answer_r)
        return 0
    for fd in (pidfd, ask_w, answer_r):
        posix.close(fd)
    told(pid)
    try:
        made = _serve(plan, pid, ask_r, answer_w)
    except BaseException:
        posix.kill(pid, 9)
        raise
    finally:
        posix.close(ask_r)
        posix.close(answer_w)
    if made != pid:
        told(made)
    return made


def _serve(plan: NamespacePlan, pid: int, ask_r: int, answer_w: int) -> int:
    """Do for the child *pid* what only we may: write its id maps and clock offsets; returns the pid of the init.

    The child asks with lines: ``maps``, ``offsets``, ``pid N``, ``done``, ``error TEXT``.
    """
    pending = b""
    while True:
        chunk = posix.read(ask_r, 4096)
        if not chunk:
            raise GpurunError("the process of the container ended while its namespaces were made")
        pending += chunk
        while b"\n" in pending:
            line, _, pending = pending.partition(b"\n")
            word, _, rest = line.decode("utf-8", "replace").partition(" ")
            if word == "maps":
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
    if rootless and plan.gid_map.split()[1:] == [str(posix.getegid()), "1"]:
        _write_proc(pid, "setgroups", "deny")  # else nobody may map even the own group (user_namespaces(7))
    for name, text, helper in (("uid_map", plan.uid_map, "newuidmap"), ("gid_map", plan.gid_map, "newgidmap")):
        try:
            _write_proc(pid, name, text)
        except StepError as e:
            if e.errno != EPERM or not rootless:
                raise
            _run_mapper(helper, pid, text, e)


def _run_mapper(helper: str, pid: int, text: str, refused: StepError) -> None:
    for directory in ("/usr/bin", "/usr/local/bin", "/bin"):
        path = f"{directory}/{helper}"
        if posix.access(path, posix.X_OK):
            child = posix.posix_spawn(path, [helper, str(pid), *text.split()], {})
            status = posix.waitpid(child, 0)[1]
            if status:
                raise GpurunError(f"{helper} refuses the map of the user namespace: see /etc/subuid and /etc/subgid")
            return
    raise GpurunError(f"{refused} (and there is no {helper} to do it: install uidmap)")


def _write_proc(pid: int, name: str, text: str) -> None:
    path = f"/proc/{pid}/{name}"
    try:
        fd = posix.open(path, posix.O_WRONLY | O_CLOEXEC)
        try:
            write_all(fd, text.encode())  # the kernel takes these files in one write
        finally:
            posix.close(fd)
    except OSError as e:
        raise StepError("write", f'"{text.strip()}" to {path}', e.errno) from None


def _in_child(plan: NamespacePlan, joins: tuple[tuple[Join, int], ...], pipes: tuple[int, int], helper: bool) -> None:
    """The new process' part; returns in all namespaces, or ends having told why not."""
    ask_w, answer_r = pipes

    def ask(word: str) -> None:
        posix.write(ask_w, word.encode() + b"\n")
        if not posix.read(answer_r, 1):
            posix._exit(1)  # the parent gave up

    try:
        new = plan.new
        if helper:
            _join(joins)
            if new & CLONE_NEWUSER:
                unshare(CLONE_NEWUSER)
                ask("maps")
                _become_root()
            if new & CLONE_NEWTIME:
                unshare(CLONE_NEWTIME)
                if plan.time_offsets:
                    ask("offsets")
            rest = new & ~(CLONE_NEWUSER | CLONE_NEWTIME | CLONE_NEWCGROUP)
            pid, _ = clone3(rest | CLONE_PARENT)
            if pid:
                posix.write(ask_w, b"pid %d\n" % pid)
                posix._exit(0)
        else:
            if new & CLONE_NEWUSER:
                ask("maps")
                _become_root()
            _join(joins)
        if new & CLONE_NEWCGROUP:
            # Only now: clone3 would take the root of the new namespace from the parent's cgroup.
            unshare(CLONE_NEWCGROUP)
        if not helper:
            posix.write(ask_w, b"done\n")
        return
    except BaseException as e:  # whatever it is, this copy of the caller must not go on as the caller
        text = oserror_text(e) if isinstance(e, OSError) else str(e)
        posix.write(ask_w, b"error " + text.encode("utf-8", "replace").replace(b"\n", b" ") + b"\n")
    posix._exit(1)


def _become_root() -> None:
    """Take the ids of the user namespace's root; the caller's groups mean nothing in it."""
    posix.setresgid(0, 0, 0)
    posix.setresuid(0, 0, 0)


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
                raise StepError("join the namespace", join.path, 1) from None
            failed.append((join, fd))
        except OSError as e:
            raise StepError("join the namespace", join.path, e.errno) from None
    for join, fd in user:
        try:
            setns(fd, join.flag)
        except OSError as e:
            raise StepError("join the namespace", join.path, e.errno) from None
        _become_root()
    for join, fd in failed:
        try:
            setns(fd, join.flag)
        except OSError as e:
            raise StepError("join the namespace", join.path, e.errno) from None
