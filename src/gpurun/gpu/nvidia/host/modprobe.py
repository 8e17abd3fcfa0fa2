"""Having the driver's modules loaded and its device nodes made, by NVIDIA's own program for that: ``nvidia-modprobe``.

The driver makes no nodes; ``nvidia-modprobe`` does, when something first uses CUDA on the host.  After a boot without that,
/dev/nvidia-uvm is missing, and maybe its module.  The program is asked only when something is missing, never inside a user
namespace (there it could do nothing), and not for longer than :data:`TIMEOUT_S`.  Where there is none, nodes whose numbers
/proc/devices lists are made only in the container.
"""

from __future__ import annotations

import posix
import time
from _stat import S_ISREG

from gpurun.decimals import decimal
from gpurun.gpu.host.reads import exists, names_in, read_text
from gpurun.gpu.nvidia.host.nodes import MAX_MINOR, read_majors
from gpurun.gpu.nvidia.host.roots import PROC, Roots, dev_root, driver_root_path
from gpurun.linux.files import O_CLOEXEC

TIMEOUT_S = 5.0
_PROGRAM = "/usr/bin/nvidia-modprobe"
_ENVIRONMENT = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin"}
_SIGKILL = 9
_WRITABLE_BY_OTHERS = 0o022


def missing(roots: Roots, capabilities: tuple[str, ...]) -> tuple[tuple[str, ...], ...]:
    """The calls of ``nvidia-modprobe`` (their arguments) that a container with *capabilities* needs; none in a good host."""
    dev = dev_root(roots)
    calls: list[tuple[str, ...]] = []
    if not exists(f"{roots.sysroot}{PROC}/version") or not exists(f"{dev}/dev/nvidiactl"):
        calls.append(("-c=0",))
    for bus_id in names_in(f"{roots.sysroot}{PROC}/gpus"):
        minor = _minor(f"{roots.sysroot}{PROC}/gpus/{bus_id}/information")
        if minor and not exists(f"{dev}/dev/nvidia{minor}") and (f"-c={minor}",) not in calls:
            calls.append((f"-c={minor}",))
    computes = "compute" in capabilities or "video" in capabilities
    if computes and ("nvidia-uvm" not in read_majors(roots) or not exists(f"{dev}/dev/nvidia-uvm")):
        calls.append(("-u", "-c=0"))
    if "display" in capabilities and not exists(f"{dev}/dev/nvidia-modeset"):
        calls.append(("-m",))
    return tuple(calls)


def can_make_present(roots: Roots) -> bool:
    """Whether :func:`make_present` has what it needs here; looks only."""
    return in_initial_user_namespace() and bool(_program(driver_root_path(roots)))


def make_present(roots: Roots, capabilities: tuple[str, ...]) -> bool:
    """Have made what is missing; whether anything was tried.  What is still missing then is reported by the discovery.

    Where :func:`can_make_present` has said yes.
    """
    root = driver_root_path(roots)
    program = _program(root)
    # The driver's container is its own world; with GPURUN_SYSROOT the program is a part of the simulation.
    chroot = root if roots.driver_root != "/" and not roots.sysroot else ""
    deadline = time.monotonic() + TIMEOUT_S
    calls = missing(roots, capabilities)
    for arguments in calls:
        _run(_PROGRAM if chroot else program, arguments, chroot, deadline)
    return bool(calls)


def in_initial_user_namespace() -> bool:
    """Whether this process is in the user namespace that the host booted with."""
    return read_text("/proc/self/uid_map").split() == ["0", "0", "4294967295"]


def _minor(path: str) -> str:
    for line in read_text(path).splitlines():
        name, _, value = line.partition(":")
        if name.strip() == "Device Minor" and decimal(value.strip(), MAX_MINOR) is not None:
            return value.strip()
    return ""


def _program(root: str) -> str:
    """The program's path, empty when there is none or others can write it: it may be setuid."""
    path = root.rstrip("/") + _PROGRAM
    try:
        found = posix.stat(path)
    except OSError:
        return ""
    good = S_ISREG(found.st_mode) and found.st_uid == 0 and not found.st_mode & _WRITABLE_BY_OTHERS
    return path if good else ""


def _run(program: str, arguments: tuple[str, ...], chroot: str, deadline: float) -> None:
    """Run it in a process group of its own, without input, output or our environment, until *deadline* at most."""
    pid = posix.fork()
    if pid == 0:
        try:
            posix.setpgid(0, 0)
            null = posix.open("/dev/null", posix.O_RDWR | O_CLOEXEC)
            for fd in (0, 1, 2):
                posix.dup2(null, fd)
            if chroot:
                posix.chroot(chroot)
            posix.chdir("/")
            posix.execve(program, [program, *arguments], _ENVIRONMENT)
        finally:
            posix._exit(127)
    while posix.waitpid(pid, posix.WNOHANG)[0] == 0:
        if time.monotonic() >= deadline:
            _kill(pid)
            return
        time.sleep(0.002)


def _kill(pid: int) -> None:
    """End the group; one that the driver holds in the kernel is left behind, not waited for."""
    for send, whom in ((posix.killpg, pid), (posix.kill, pid)):
        try:
            send(whom, _SIGKILL)
        except OSError:
            pass  # it has ended just now
    for _ in range(100):
        if posix.waitpid(pid, posix.WNOHANG)[0]:
            return
        time.sleep(0.002)
