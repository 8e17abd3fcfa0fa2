"""What is said of a newer system call that a seccomp filter refuses and that nothing stands in for."""

from __future__ import annotations

from gpurun.linux.libc import is_refused
from gpurun.linux.process import CAP_SYS_ADMIN, has_capabilities

#: Each call, and what is lost without it.
_LOST = {
    "openat2": "nothing else keeps a path of the image inside it while the image changes",
    "open_tree": "nothing else mounts by descriptor what was looked at before",
    "move_mount": "nothing else mounts by descriptor what was looked at before",
    "pidfd_open": "nothing else names a process so that no other is taken for it",
    "setns": "nothing else enters a container",
}


def why_refused(text: str) -> str:
    """What the message *text* of an error is to say besides: the calls that a filter refuses; "" for none."""
    if not text.rstrip('"').endswith(("function not implemented", "operation not permitted")):
        return ""
    found = [name for name in _LOST if is_refused(name) and (name != "move_mount" or has_capabilities(CAP_SYS_ADMIN))]
    if not found:
        return ""
    calls = ", ".join([f"{name}(2)" for name in found])
    return f": a seccomp filter refuses {calls}, and {_LOST[found[0]]}"
