"""What /proc says of a process (proc(5))."""

from __future__ import annotations

import posix

from gpurun.errors import GpurunError
from gpurun.linux.files import read_file


def stat(pid: int) -> tuple[str, int] | None:
    """(state letter, start time in clock ticks since boot) of *pid*; None when there is no such process.

    Raises :class:`GpurunError` for a file of another form.
    """
    try:
        data = read_file(f"/proc/{pid}/stat", 4096)
    except (FileNotFoundError, ProcessLookupError):
        return None
    fields = stat_fields(data)
    if len(fields) < 20 or not fields[19].isdigit():
        raise GpurunError(f"/proc/{pid}/stat is not as the kernel writes it: {data[:200]!r}")
    return fields[0].decode("ascii", "replace"), int(fields[19])


def stat_fields(data: bytes) -> list[bytes]:
    """The fields of a /proc/pid/stat from the third on, the state letter.

    The name of the program before them is in parentheses and may hold anything, parentheses and blanks included.
    """
    return data.rpartition(b")")[2].split()


def parent(pid: int) -> int:
    """The parent of *pid*; 0 when there is no such process, or when it has none that we see."""
    try:
        fields = stat_fields(read_file(f"/proc/{pid}/stat", 4096))
    except OSError:
        return 0
    return int(fields[1]) if len(fields) > 1 and fields[1].isdigit() else 0


def cgroups(pid: int | str) -> list[tuple[str, str]]:
    """(controllers, path) of each line of /proc/pid/cgroup (cgroups(7)), as the process that reads sees the paths.

    The controllers are separated by commas; cgroup v2 has none.  Raises OSError.
    """
    return parse_cgroups(read_file(f"/proc/{pid}/cgroup", 1 << 20).decode("utf-8", "surrogateescape"))


def parse_cgroups(text: str) -> list[tuple[str, str]]:
    """The lines of a /proc/pid/cgroup.  A path may hold all but a newline, also what str.splitlines() takes for one."""
    lines = [line.split(":", 2) for line in text.split("\n")]
    return [(line[1], line[2]) for line in lines if len(line) == 3]


def boot_id() -> str:
    """What is another after each boot of the kernel (random(4)); empty without a procfs."""
    try:
        return read_file("/proc/sys/kernel/random/boot_id", 64).decode().strip()
    except OSError:
        return ""


def oom_kills() -> int:
    """How many processes of this host the kernel has killed for want of memory since it booted; -1 when it does not say."""
    try:
        words = read_file("/proc/vmstat").split()
    except OSError:
        return -1
    after = words[words.index(b"oom_kill") + 1 :] if b"oom_kill" in words else []  # Linux 4.13
    return int(after[0]) if after and after[0].isdigit() else -1


def in_user_namespace() -> bool:
    """Whether we are in a user namespace other than the host's first one, whose map is the identity of all ids."""
    return read_file("/proc/self/uid_map", 4096).split() != [b"0", b"0", b"4294967295"]


def is_alive(pid: int, start_time: int) -> bool:
    """Whether *pid* is still the process that started at *start_time* and has not ended (a zombie has)."""
    found = stat(pid)
    return found is not None and found[1] == start_time and found[0] not in ("Z", "X")


def open_pidfd(pid: int, start_time: int) -> int | None:
    """A pidfd of the process *pid* that started at *start_time*, or None when it has ended or *pid* is 0.

    It is looked at again after opening: pids are reused.
    """
    if pid == 0:
        return None
    try:
        pidfd = posix.pidfd_open(pid, 0)
    except ProcessLookupError:
        return None
    if not is_alive(pid, start_time):
        posix.close(pidfd)
        return None
    return pidfd
