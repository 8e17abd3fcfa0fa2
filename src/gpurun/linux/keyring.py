"""Session keyrings (keyctl(2), session-keyring(7))."""

from __future__ import annotations

from errno import ENOSYS

from gpurun.errors import StepError
from gpurun.linux.libc import NR, cstring, syscall

_KEYCTL_JOIN_SESSION_KEYRING = 1


def join_session_keyring(name: str) -> None:
    """Make (or join) the session keyring *name*: the container must not hold the keys of the runtime's session."""
    try:
        syscall(NR["keyctl"], _KEYCTL_JOIN_SESSION_KEYRING, cstring(name), 0, 0, 0)
    except OSError as e:
        if e.errno != ENOSYS:  # a kernel without keyrings has no keys to protect
            raise StepError("join the session keyring", f"{name} (--no-new-keyring goes without)", e.errno) from None
