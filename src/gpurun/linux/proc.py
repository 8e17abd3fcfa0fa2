"""What /proc says of a process (proc(5))."""

from __future__ import annotations

from gpurun.linux.files import read_file


def stat(pid: int) -> tuple[str, int] | None:
    """(state letter, start time in clock ticks since boot) of *pid*; None when there is no such process."""
    try:
        data = read_file(f"/proc/{pid}/stat", 4096)
    except (FileNotFoundError, ProcessLookupError):
        return None
    # The name of the program is in parentheses and may hold anything, parentheses and blanks included.
    fields = data[data.rindex(b")") + 2 :].split()
    return fields[0].decode(), int(fields[19])


def oom_kills() -> int:
    """How many processes of this host the kernel has killed for want of memory since it booted; -1 when it does not say."""
    try:
        words = read_file("/proc/vmstat").split()
    except OSError:
        return -1
    return int(words[words.index(b"oom_kill") + 1]) if b"oom_kill" in words else -1  # Linux 4.13


def in_user_namespace() -> bool:
    """Whether we are in a user namespace other than the host's first one, whose map is the identity of all ids."""
    return read_file("/proc/self/uid_map", 4096).split() != [b"0", b"0", b"4294967295"]


def is_alive(pid: int, start_time: int) -> bool:
    """Whether *pid* is still the process that started at *start_time* and has not ended (a zombie has)."""
    found = stat(pid)
    return found is not None and found[1] == start_time and found[0] not in ("Z", "X")
