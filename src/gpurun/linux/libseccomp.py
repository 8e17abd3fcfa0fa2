"""libseccomp, as much of it as compiling a filter needs, reached only through ``_ctypes`` (see :mod:`gpurun.linux.libc`).

The library makes the BPF and nothing else: installing it is :mod:`gpurun.linux.seccomp`'s.  Functions that fail return a
negative errno, which is raised here as :class:`OSError`.  Reference: seccomp_init(3) and its neighbours; libseccomp 2.5.
"""

from __future__ import annotations

import _ctypes
import posix
from _struct import pack, unpack
from errno import EEXIST, EINVAL

from gpurun.linux.files import Fd, read_fd
from gpurun.linux.libc import _Char, _Pointer

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

SONAME = "libseccomp.so.2"

# enum scmp_filter_attr
SCMP_FLTATR_CTL_OPTIMIZE = 8

# seccomp_syscall_resolve_name: there is no such name
NR_SCMP_ERROR = -1


class _Int(_ctypes._SimpleCData):  # type: ignore[misc,type-arg]
    _type_ = "i"


class _IntFunction(_ctypes.CFuncPtr):  # type: ignore[misc]
    """``int f(...)``.  Arguments of 32 bits may be given as pointers: the calling conventions pass both in one register."""

    _flags_ = _ctypes.FUNCFLAG_CDECL  # type: ignore[attr-defined]
    _restype_ = _Int


class _PointerFunction(_ctypes.CFuncPtr):  # type: ignore[misc]
    _flags_ = _ctypes.FUNCFLAG_CDECL  # type: ignore[attr-defined]
    _restype_ = _Pointer


def directories() -> tuple[str, ...]:
    """Where distributions of this machine's architecture put libraries."""
    triplet = f"{posix.uname().machine}-linux-gnu"
    return (f"/usr/lib/{triplet}", f"/lib/{triplet}", "/usr/lib64", "/lib64", "/usr/lib", "/lib", "/usr/local/lib")


def find(paths: tuple[str, ...] = ()) -> tuple[str, str]:
    """(path, identity) of the library without loading it; the *identity* changes when it is upgraded.  ("", "") when it is
    in none of the usual directories: then only the dynamic loader knows."""
    for directory in paths or directories():
        path = f"{directory}/{SONAME}"
        try:
            found = posix.stat(path)
        except OSError:
            continue
        try:
            name = posix.readlink(path)  # libseccomp.so.2.5.4
        except OSError:
            name = SONAME
        return path, f"{name} {found.st_dev} {found.st_ino} {found.st_size} {found.st_mtime_ns}"
    return "", ""


class Library:
    """The loaded library; raises :class:`OSError` when it cannot be loaded or lacks a function."""

    def __init__(self, path: str = "") -> None:
        handle = _ctypes.dlopen(path or SONAME, 0)  # type: ignore[attr-defined]

        def function(kind: Any, name: str, count: int) -> Any:
            made = kind(_ctypes.dlsym(handle, name))  # type: ignore[attr-defined]
            made.argtypes = (_Pointer,) * count
            return made

        self._version = function(_PointerFunction, "seccomp_version", 0)
        self._init = function(_PointerFunction, "seccomp_init", 1)
        self._release = function(_IntFunction, "seccomp_release", 1)
        self._arch_add = function(_IntFunction, "seccomp_arch_add", 2)
        self._arch_native = function(_IntFunction, "seccomp_arch_native", 0)
        self._attr_set = function(_IntFunction, "seccomp_attr_set", 3)
        self._resolve = function(_IntFunction, "seccomp_syscall_resolve_name", 1)
        self._resolve_arch = function(_IntFunction, "seccomp_syscall_resolve_name_arch", 2)
        self._rule_add = function(_IntFunction, "seccomp_rule_add_array", 5)
        self._export = function(_IntFunction, "seccomp_export_bpf", 2)

    def version(self) -> str:
        """``2.5.4``: struct scmp_version has three unsigned ints."""
        at: Any = (_Char * 12).from_address(self._version())
        return ".".join([str(n) for n in unpack("3I", at.raw)])

    def native(self) -> int:
        """The token of this machine's architecture."""
        return int(self._arch_native()) & 0xFFFFFFFF

    def resolve(self, name: str, arch: int | None = None) -> int:
        """The number of a system call, on *arch* if given; negative where it is not a call of its own (or a pseudo number),
        NR_SCMP_ERROR for a name that the library does not know."""
        raw = name.encode("utf-8", "surrogateescape") + b"\0"
        return int(self._resolve(raw) if arch is None else self._resolve_arch(arch, raw))


class Filter:
    """A filter in the making; :meth:`release` must be called."""

    def __init__(self, library: Library, default_action: int) -> None:
        self._library = library
        self._context: int | None = library._init(default_action)
        if not self._context:
            raise OSError(EINVAL, "")

    def release(self) -> None:
        """Free libseccomp's memory; the filter cannot be used after that."""
        if self._context:
            self._library._release(self._context)
            self._context = None

    def add_arch(self, token: int) -> None:
        """Let the filter also judge calls of the architecture *token*; one that is there already is fine."""
        result = self._library._arch_add(self._context, token)
        if result != -EEXIST:
            _check(result)

    def set_attribute(self, attribute: int, value: int) -> None:
        """seccomp_attr_set(3).  Raises OSError."""
        _check(self._library._attr_set(self._context, attribute, value))

    def add_rule(self, action: int, number: int, conditions: tuple[tuple[int, int, int, int], ...]) -> None:
        """*conditions* (argument, operator, datum a, datum b) must all hold; no argument may occur twice."""
        packed = b"".join([pack("IIQQ", *condition) for condition in conditions])
        _check(self._library._rule_add(self._context, action, number, len(conditions), packed or None))

    def export(self) -> bytes:
        """The program: an array of struct sock_filter."""
        with Fd(posix.memfd_create("seccomp", 1)) as fd:  # MFD_CLOEXEC
            _check(self._library._export(self._context, fd))
            posix.lseek(fd, 0, 0)
            return read_fd(fd)


def _check(result: int) -> None:
    if result < 0:
        raise OSError(-result, posix.strerror(-result))
