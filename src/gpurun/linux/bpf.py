"""bpf(2), as much of it as device programs on cgroups need: load, attach, replace, query, detach.

Descriptors are close-on-exec (the kernel makes them so).  RLIMIT_MEMLOCK is not changed: since Linux 5.11 the memory of
programs is charged to the memory cgroup, and raising the limit would only fail where CAP_SYS_RESOURCE is missing.

All functions raise :class:`OSError` with the kernel's errno.  Reference: bpf(2), include/uapi/linux/bpf.h (union bpf_attr).
"""

from __future__ import annotations

from _struct import pack, unpack_from
from errno import EAGAIN, ENOSPC

from gpurun.linux.libc import NR, address, buffer, syscall

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

BPF_PROG_LOAD = 5
BPF_PROG_ATTACH = 8
BPF_PROG_DETACH = 9
BPF_PROG_GET_FD_BY_ID = 13
BPF_OBJ_GET_INFO_BY_FD = 15
BPF_PROG_QUERY = 16

BPF_PROG_TYPE_CGROUP_DEVICE = 15
BPF_CGROUP_DEVICE = 6  # attach type

BPF_F_ALLOW_MULTI = 2
BPF_F_REPLACE = 4  # Linux 5.6
BPF_F_QUERY_EFFECTIVE = 1

INSN_SIZE = 8
# The kernel answers EAGAIN when a signal interrupts the verifier.
_LOAD_ATTEMPTS = 30
# Up to `revision`: kernels that know this member write it even when the size given ends before it.
_QUERY_SIZE = 64
_QUERY_SLOTS = 64


def _bpf(command: int, attr: Any, size: int) -> int:
    return syscall(NR["bpf"], command, attr, size)


#: What programs are called unless said otherwise: at most 15 letters, digits, ``_`` or ``.``.
NAME = "gpurun_devices"


def prog_load(instructions: bytes) -> int:
    """Load a BPF_PROG_TYPE_CGROUP_DEVICE program (an array of struct bpf_insn); returns its descriptor."""
    code, text = buffer(instructions), buffer(b"Apache-2.0\0")
    attr = pack(
        "=IIQQIIQII16s",
        BPF_PROG_TYPE_CGROUP_DEVICE,
        len(instructions) // INSN_SIZE,
        address(code),
        address(text),
        0,  # log_level
        0,  # log_size
        0,  # log_buf
        0,  # kern_version
        0,  # prog_flags
        NAME.encode(),
    )
    for attempt in range(_LOAD_ATTEMPTS):
        try:
            return _bpf(BPF_PROG_LOAD, attr, len(attr))
        except OSError as e:
            if e.errno != EAGAIN or attempt == _LOAD_ATTEMPTS - 1:
                raise
    raise AssertionError("unreachable")


def prog_attach(cgroup_fd: int, prog_fd: int, replace_fd: int | None = None) -> None:
    """Attach a device program to a cgroup, beside others (BPF_F_ALLOW_MULTI), or atomically in place of *replace_fd*."""
    flags = BPF_F_ALLOW_MULTI if replace_fd is None else BPF_F_ALLOW_MULTI | BPF_F_REPLACE
    attr = pack("=IIIII", cgroup_fd, prog_fd, BPF_CGROUP_DEVICE, flags, replace_fd or 0)
    _bpf(BPF_PROG_ATTACH, attr, len(attr))


def prog_detach(cgroup_fd: int, prog_fd: int) -> None:
    """Detach a device program from a cgroup; ENOENT when it is not attached there."""
    attr = pack("=III", cgroup_fd, prog_fd, BPF_CGROUP_DEVICE)
    _bpf(BPF_PROG_DETACH, attr, len(attr))


def prog_query(cgroup_fd: int, effective: bool = False) -> tuple[int, ...]:
    """The ids of the device programs attached to the cgroup itself; with *effective* of all that count for its processes,
    those of the cgroups above it too."""
    flags = BPF_F_QUERY_EFFECTIVE if effective else 0
    slots = _QUERY_SLOTS
    while True:
        ids = buffer(4 * slots)
        attr = buffer(pack("=IIIIQI", cgroup_fd, BPF_CGROUP_DEVICE, flags, 0, address(ids), slots).ljust(_QUERY_SIZE, b"\0"))
        try:
            _bpf(BPF_PROG_QUERY, attr, _QUERY_SIZE)
        except OSError as e:
            if e.errno != ENOSPC:
                raise
            slots = max(2 * slots, int(unpack_from("=I", attr.raw, 24)[0]))  # the kernel says how many there are
            continue
        count = int(unpack_from("=I", attr.raw, 24)[0])
        return tuple(unpack_from(f"={count}I", ids.raw))


def prog_get_fd_by_id(prog_id: int) -> int:
    """A descriptor of a loaded program; EPERM without CAP_SYS_ADMIN (CAP_BPF does not do), ENOENT when it is gone."""
    attr = pack("=III", prog_id, 0, 0)
    return _bpf(BPF_PROG_GET_FD_BY_ID, attr, len(attr))


def prog_instructions(prog_fd: int) -> bytes:
    """The instructions of a loaded program as the verifier left them (``xlated``); EPERM without CAP_SYS_ADMIN.

    For a device program they are those it was loaded with: its context is not rewritten.
    """
    # struct bpf_prog_info: type, id, tag[8], jited_prog_len, xlated_prog_len, jited_prog_insns, xlated_prog_insns, ...
    size = 40
    info = buffer(size)
    attr = pack("=IIQ", prog_fd, size, address(info))
    _bpf(BPF_OBJ_GET_INFO_BY_FD, attr, len(attr))
    length = int(unpack_from("=I", info.raw, 20)[0])
    code = buffer(length)
    info = buffer(pack("=20xIQQ", length, 0, address(code)))
    attr = pack("=IIQ", prog_fd, size, address(info))
    _bpf(BPF_OBJ_GET_INFO_BY_FD, attr, len(attr))
    return bytes(code.raw)


def prog_name(prog_fd: int) -> str:
    """The name that a program was loaded with."""
    size = 80  # struct bpf_prog_info up to the name, which begins at 64
    info = buffer(size)
    attr = pack("=IIQ", prog_fd, size, address(info))
    _bpf(BPF_OBJ_GET_INFO_BY_FD, attr, len(attr))
    return bytes(info.raw[64:80]).partition(b"\0")[0].decode("ascii", "replace")
