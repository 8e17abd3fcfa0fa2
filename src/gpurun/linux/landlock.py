"""Landlock: a process takes rights to files, to the network and to other processes from itself, for good (landlock(7)).

What the kernel does not know is left out of what is asked: the version of its interface says which rights there are.
"""

from __future__ import annotations

import posix
from _struct import pack

from gpurun.linux.files import O_CLOEXEC, Fd
from gpurun.linux.fs import O_PATH
from gpurun.linux.libc import NR, syscall

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

_CREATE_RULESET_VERSION = 1
_RULE_PATH_BENEATH = 1

# LANDLOCK_ACCESS_FS_*
EXECUTE = 1 << 0
WRITE_FILE = 1 << 1
REMOVE_DIR = 1 << 4
REMOVE_FILE = 1 << 5
MAKE_CHAR = 1 << 6
MAKE_DIR = 1 << 7
MAKE_REG = 1 << 8
MAKE_SOCK = 1 << 9
MAKE_FIFO = 1 << 10
MAKE_BLOCK = 1 << 11
MAKE_SYM = 1 << 12
REFER = 1 << 13
TRUNCATE = 1 << 14
IOCTL_DEV = 1 << 15
#: All rights to change something below a directory, to run a file, and to ioctl(2) on a device; reading is not among them.
CHANGE = (
    EXECUTE | WRITE_FILE | REMOVE_DIR | REMOVE_FILE | MAKE_CHAR | MAKE_DIR | MAKE_REG | MAKE_SOCK | MAKE_FIFO | MAKE_BLOCK
    | MAKE_SYM | REFER | TRUNCATE | IOCTL_DEV
)  # fmt: skip
# LANDLOCK_ACCESS_NET_*
BIND_TCP, CONNECT_TCP = 1, 2
# LANDLOCK_SCOPE_*
SCOPE_SIGNAL = 2

#: Interface number → the rights to files that come with it.
_SINCE = ((2, REFER), (3, TRUNCATE), (5, IOCTL_DEV))
_NETWORK_SINCE, _SCOPES_SINCE = 4, 6


def interface() -> int:
    """The number of the kernel's Landlock interface, 0 where there is none or it is not for this process."""
    try:
        return syscall(NR["landlock_create_ruleset"], None, 0, _CREATE_RULESET_VERSION)
    except OSError:
        return 0


def restrict(
    taken: int, kept: Iterable[tuple[str, int]], network: int = BIND_TCP | CONNECT_TCP, scopes: int = SCOPE_SIGNAL
) -> bool:
    """Take the rights *taken* to all files from this thread and what it starts, but those of *kept*: (path, rights), for
    all below it where it is a directory; a path that is not there is left out.  *network* and *scopes* are taken as well,
    as far as the kernel has them.

    False where the kernel has no Landlock.  Needs no_new_privs or CAP_SYS_ADMIN (EPERM); raises OSError.
    """
    number = interface()
    if not number:
        return False
    for since, right in _SINCE:
        if number < since:
            taken &= ~right
    words = [taken]
    words += [network] if number >= _NETWORK_SINCE else []
    words += [scopes] if number >= _SCOPES_SINCE else []
    attributes = pack(f"{len(words)}Q", *words)
    with Fd(syscall(NR["landlock_create_ruleset"], attributes, len(attributes), 0)) as rules:
        for path, rights in kept:
            _keep(rules, path, rights & taken)
        syscall(NR["landlock_restrict_self"], rules, 0)
    return True


def _keep(rules: int, path: str, rights: int) -> None:
    try:
        at = posix.open(path, O_PATH | O_CLOEXEC)
    except OSError:
        return
    with Fd(at):
        syscall(NR["landlock_add_rule"], rules, _RULE_PATH_BENEATH, pack("=Qi", rights, at), 0)
