"""User namespaces as maps: what a joined one maps, and one made only to carry the map of an id-mapped mount
(user_namespaces(7), mount_setattr(2) MOUNT_ATTR_IDMAP)."""

from __future__ import annotations

import posix

from gpurun.errors import ConfigError, GpurunError, StepError, oserror_text
from gpurun.linux.files import O_CLOEXEC, Fd, read_file, write_all
from gpurun.linux.process import CLONE_NEWUSER, PR_SET_DUMPABLE, prctl, setns, unshare

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import TypeVar

    T = TypeVar("T")


def read_maps(path: str, where: str) -> tuple[str, str]:
    """The uid and gid maps of the user namespace that the file *path* names, as lines of /proc/pid/uid_map.

    Only a process in a namespace can be asked for its maps, so one is sent there.  Raises :class:`ConfigError` at *where*.
    Returns (uid map, gid map).
    """
    try:
        fd = posix.open(path, posix.O_RDONLY | O_CLOEXEC)
    except OSError as e:
        raise ConfigError(where, f"open the user namespace {oserror_text(OSError(e.errno, '', path))}") from None
    with Fd(fd):
        try:
            return _beside(lambda: _enter(fd), _read_maps)
        except OSError as e:
            raise ConfigError(where, f"join the user namespace {oserror_text(OSError(e.errno, '', path))}") from None


def make_user_namespace(uid_map: str, gid_map: str) -> int:
    """A descriptor of a new user namespace with those maps and no process in it; raises :class:`StepError`."""

    def write_and_open(pid: int) -> int:
        for name, text in (("uid_map", uid_map), ("gid_map", gid_map)):
            with Fd(posix.open(f"/proc/{pid}/{name}", posix.O_WRONLY | O_CLOEXEC)) as file:
                try:
                    write_all(file, text.encode())
                except OSError as e:
                    raise StepError("make a user namespace with the map", f'"{text.strip()}"', e.errno) from None
        return posix.open(f"/proc/{pid}/ns/user", posix.O_RDONLY | O_CLOEXEC)

    return _beside(lambda: unshare(CLONE_NEWUSER), write_and_open)


def _enter(fd: int) -> None:
    prctl(PR_SET_DUMPABLE, 0)  # root in that namespace must not look into this copy of us
    setns(fd, CLONE_NEWUSER)


def _read_maps(pid: int) -> tuple[str, str]:
    return tidy(read_file(f"/proc/{pid}/uid_map").decode()), tidy(read_file(f"/proc/{pid}/gid_map").decode())


def tidy(lines: str) -> str:
    """The lines of a map with single blanks, as we write them."""
    return "".join([" ".join(line.split()) + "\n" for line in lines.splitlines()])


def same_map(first: str, second: str) -> bool:
    """Whether two maps are the same, however they are cut into lines."""
    return _merge(first) == _merge(second)


def _merge(lines: str) -> list[tuple[int, int, int]]:
    merged: list[tuple[int, int, int]] = []
    for inside, outside, count in sorted([tuple([int(word) for word in line.split()]) for line in lines.splitlines()]):
        if merged:
            last = merged[-1]
            if last[0] + last[2] == inside and last[1] + last[2] == outside:
                merged[-1] = (last[0], last[1], last[2] + count)
                continue
        merged.append((inside, outside, count))
    return merged


def _beside(prepare: Callable[[], None], work: Callable[[int], T]) -> T:
    """``work(pid)`` of a child that has done ``prepare()`` and waits until we are done.

    It is made with fork(2), for the reason in :mod:`gpurun.ns.helper_process`.
    """
    ready_r, ready_w = posix.pipe2(O_CLOEXEC)
    done_r, done_w = posix.pipe2(O_CLOEXEC)
    pid = posix.fork()
    if pid == 0:
        try:
            prepare()
            posix.write(ready_w, b"\0")
            posix.close(done_w)
            posix.read(done_r, 1)
        except OSError as e:
            posix.write(ready_w, bytes([(e.errno or 22) & 0xFF]))
        finally:
            posix._exit(0)
    try:
        posix.close(ready_w)
        posix.close(done_r)
        answer = posix.read(ready_r, 1)
        if not answer:
            raise GpurunError("a helper process ended without an answer")
        if answer[0]:
            raise OSError(answer[0], posix.strerror(answer[0]))
        return work(pid)
    finally:
        posix.close(ready_r)
        posix.close(done_w)
        posix.waitpid(pid, 0)
