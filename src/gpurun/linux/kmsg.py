"""The kernel's log, from its oldest record to its newest.

Reference: Documentation/ABI/testing/dev-kmsg.
"""

from __future__ import annotations

import posix

from gpurun.linux.files import Fd

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

_LONGEST = 8192  # bytes of a record; into less than one the kernel reads nothing


def kernel_messages(path: str = "/dev/kmsg") -> Iterator[bytes]:
    """The texts of the records that are the kernel's own, bytes that cannot be printed (and backslashes) as ``\\xNN``.

    None where the log may not be read (kernel.dmesg_restrict) or is not there.  Whoever may write to it can put any text
    in, but not as the kernel's (facility 0).
    """
    try:
        fd = posix.open(path, posix.O_RDONLY | posix.O_NONBLOCK | posix.O_CLOEXEC)
    except OSError:
        return
    with Fd(fd):
        while True:
            try:
                record = posix.read(fd, _LONGEST)
            except BrokenPipeError:
                continue  # overwritten before we came to it: the next read has the oldest that is left
            except OSError:
                return  # BlockingIOError: that was all
            if not record:
                return
            head, _, rest = record.partition(b";")
            priority = head.partition(b",")[0]
            if priority.isdigit() and int(priority) < 8:
                yield rest.partition(b"\n")[0]  # what follows are the names of devices
