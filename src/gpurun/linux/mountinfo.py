"""The mounts that a process sees: /proc/pid/mountinfo (proc_pid_mountinfo(5))."""

from __future__ import annotations

import posix

from gpurun.errors import GpurunError
from gpurun.linux.files import O_CLOEXEC, Fd, read_fd
from gpurun.record import Record

#: The largest table that is read, in bytes: some hundred thousand mounts, as many as fs.mount-max lets there be.
MAX_TABLE = 64 << 20


class MountEntry(Record):
    """One line; the paths are as the process sees them, without the escapes of the file."""

    id: str
    root: str  # the directory of the file system that is mounted
    point: str
    fstype: str
    device: str = ""  # major:minor of the file system
    parent: str = ""  # the id of the mount that it is on
    read_only: bool = False  # whether the file system is, whatever the mount is


def mounts(pid: int | str = "self") -> list[MountEntry]:
    """The mounts of the process *pid*, in the order in which they were made; raises as :func:`read_mounts`."""
    with Fd(posix.open(f"/proc/{pid}/mountinfo", posix.O_RDONLY | O_CLOEXEC)) as table:
        return read_mounts(table)


def read_mounts(table: int) -> list[MountEntry]:
    """The mounts in the mountinfo that is open; raises OSError, and GpurunError where it is too large to be read whole."""
    text = read_fd(table, MAX_TABLE)
    if len(text) == MAX_TABLE:  # what is not seen could be the mount that is looked for
        raise GpurunError(f"mountinfo is larger than {MAX_TABLE >> 20} MiB: the mounts of this host cannot be listed")
    return parse_mounts(text.decode("utf-8", "surrogateescape"))


def parse_mounts(text: str) -> list[MountEntry]:
    """The mounts of the text of a mountinfo; raises :class:`GpurunError` where it is not as the kernel writes it."""
    found = []
    for line in text.split("\n"):
        before, dash, after = line.partition(" - ")
        if dash:
            try:
                mount_id, parent, device, root, point = before.split(" ", 5)[:5]
                fstype, _, rest = after.partition(" ")
                read_only = rest.rpartition(" ")[2].split(",")[0] == "ro"
                found.append(MountEntry(mount_id, _unescape(root), _unescape(point), fstype, device, parent, read_only))
            except ValueError:
                raise GpurunError(f'mountinfo has a line that is not as the kernel writes it: "{line[:200]}"') from None
    return found


def _unescape(text: str) -> str:
    r"""*text* without the escapes of space, tab, newline and backslash: a ``\`` and three octal digits."""
    if "\\" not in text:
        return text
    first, *rest = text.split("\\")
    return first + "".join([chr(int(part[:3], 8)) + part[3:] for part in rest])
