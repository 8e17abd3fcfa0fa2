"""The C library, reached only through ``_ctypes``: raw system calls by number.

``ctypes`` (the package) costs 3 ms to import, ``_ctypes`` (the C module under it) 0.8 ms.  gpurun needs one thing of
them, ``syscall(2)``, so it builds just that.  Every wrapper in this package goes through :func:`syscall`, which raises
:class:`OSError` with the kernel's errno and retries nothing.
"""

from __future__ import annotations

import _ctypes
from errno import ENOSYS, EPERM
from posix import strerror, uname

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


class _Pointer(_ctypes._SimpleCData):  # type: ignore[misc,type-arg]
    """``void *``: takes integers of any sign up to 64 bits, ``None``, ``bytes`` and :func:`buffer` objects."""

    _type_ = "P"


class _Long(_ctypes._SimpleCData):  # type: ignore[misc,type-arg]
    _type_ = "l"


class _Char(_ctypes._SimpleCData):  # type: ignore[misc,type-arg]
    _type_ = "c"


class _Syscall(_ctypes.CFuncPtr):  # type: ignore[misc]
    _flags_ = _ctypes.FUNCFLAG_CDECL | _ctypes.FUNCFLAG_USE_ERRNO  # type: ignore[attr-defined]
    _restype_ = _Long
    _argtypes_ = (_Pointer,) * 7


_syscall: Any = _Syscall(_ctypes.dlsym(_ctypes.dlopen(None, 0), "syscall"))  # type: ignore[attr-defined,arg-type]
_machine = uname().machine

#: System call numbers of this machine.  From 424 on they are the same everywhere.
NR: dict[str, int] = {
    "open_tree": 428,
    "move_mount": 429,
    "fsopen": 430,
    "fsconfig": 431,
    "fsmount": 432,
    "fspick": 433,
    "pidfd_open": 434,
    "clone3": 435,
    "close_range": 436,
    "openat2": 437,
    "pidfd_getfd": 438,
    "mount_setattr": 442,
    "landlock_create_ruleset": 444,
    "landlock_add_rule": 445,
    "landlock_restrict_self": 446,
}
if _machine == "x86_64":
    NR.update(
        rt_sigaction=13,
        mount=165, umount2=166, pivot_root=155, unshare=272, setns=308, prctl=157, prlimit64=302, seccomp=317, bpf=321,
        keyctl=250, capget=125, capset=126, sethostname=170, setdomainname=171, personality=135,
        ioprio_set=251, sched_setattr=314, set_mempolicy=238, statfs=137, fstatfs=138, getcpu=309, ioctl=16,
        sched_setaffinity=203, clone=56, syncfs=306, statx=332,
    )  # fmt: skip
elif _machine == "aarch64":
    NR.update(
        rt_sigaction=134,
        mount=40, umount2=39, pivot_root=41, unshare=97, setns=268, prctl=167, prlimit64=261, seccomp=277, bpf=280,
        keyctl=219, capget=90, capset=91, sethostname=161, setdomainname=162, personality=92,
        ioprio_set=30, sched_setattr=274, set_mempolicy=237, statfs=43, fstatfs=44, getcpu=168, ioctl=29,
        sched_setaffinity=122, clone=220, syncfs=267, statx=291,
    )  # fmt: skip


def syscall(number: int, *args: Any) -> int:
    """Call the kernel: *args* are integers, ``bytes`` (NUL-terminated where the call wants a string), buffers or None.

    Returns the kernel's result; raises :class:`OSError` with its errno (and no file name: the caller knows it).
    """
    result: int = _syscall(number, *args, *(0,) * (6 - len(args)))
    if result == -1:
        errno = _ctypes.get_errno()  # type: ignore[attr-defined]
        raise OSError(errno, strerror(errno))
    return result


#: Arguments that the kernel refuses at once, with EBADF, EFAULT or EINVAL.  Of move_mount, fsopen and fsmount it says EPERM
#: to whoever may not mount, before it looks at anything else.
_WRONG: dict[str, tuple[Any, ...]] = {
    "openat2": (-1, b"\0", None, 0),
    "clone3": (None, 0),
    "pidfd_open": (-1, 0xFFFFFFFF),
    "close_range": (1, 0, 0),
    "setns": (-1, 0),
    "open_tree": (-1, b"\0", 0x1000),
    "move_mount": (-1, b"\0", -1, b"\0", 0xFFFF0000),
    "mount_setattr": (-1, b"\0", 0xFFFF0000, None, 0),
    "fsopen": (None, 0),
    "fsconfig": (-1, 0, None, None, 0),
    "fsmount": (-1, 0, 0),
}


def is_refused(name: str) -> bool:
    """Whether a seccomp filter refuses the call *name* to this process: an engine's old profile, or a site's own.

    A filter answers ENOSYS or EPERM, as the kernel does for reasons of its own.  So the call is asked with arguments that
    no kernel takes: a kernel that has the call answers with another error then.
    """
    try:
        syscall(NR[name], *_WRONG[name])
    except OSError as e:
        return e.errno in (ENOSYS, EPERM)
    return False


def buffer(size_or_data: int | bytes) -> Any:
    """A writable C buffer of that size (zeroed) or with that content; ``.raw`` is its bytes."""
    if isinstance(size_or_data, int):
        return (_Char * size_or_data)()
    made: Any = (_Char * len(size_or_data))()
    made.raw = size_or_data
    return made


def address(buf: Any) -> int:
    """The address of a :func:`buffer`, for structures that point to others; the buffer must be kept alive."""
    return int(_ctypes.addressof(buf))


def overwrite_arguments(data: bytes) -> None:
    """Write *data* where the kernel has put this process's arguments, one behind the other; it must not be longer than they.

    The C library's ``program_invocation_name`` (program_invocation_name(3)) is the address of the first.
    """
    first = _Pointer.from_address(_ctypes.dlsym(_ctypes.dlopen(None, 0), "program_invocation_name")).value  # type: ignore[attr-defined,arg-type]
    place: Any = (_Char * len(data)).from_address(first)
    place.raw = data


def cstring(path: str) -> bytes:
    """*path* as the kernel takes it: the file system's bytes (PEP 383 surrogates undone), NUL-terminated."""
    return path.encode("utf-8", "surrogateescape") + b"\0"
