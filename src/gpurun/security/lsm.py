"""Labels of Linux security modules: AppArmor profiles and SELinux contexts (apparmor(7), selinux(8)).

What the process is to become is written to its ``attr/exec`` file and takes effect at execve(2); the file is always reached
through a descriptor of a verified /proc, for an image may try to lead the write astray.
"""

from __future__ import annotations

import posix

from gpurun.errors import ConfigError, GpurunError, Step, StepError
from gpurun.linux.files import Fd, read_file, write_all
from gpurun.linux.fs import RESOLVE_BENEATH, RESOLVE_NO_MAGICLINKS, RESOLVE_NO_SYMLINKS, RESOLVE_NO_XDEV, openat2

_RESOLVE = RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS | RESOLVE_NO_MAGICLINKS | RESOLVE_NO_XDEV


def apparmor_enabled() -> bool:
    """Whether this kernel runs AppArmor."""
    return _first("/sys/module/apparmor/parameters/enabled") == b"Y"


def selinux_enabled() -> bool:
    """Whether this kernel runs SELinux with a policy: without one every process has the context ``kernel``."""
    try:
        posix.stat("/sys/fs/selinux/enforce")
        return read_file("/proc/self/attr/current", 4096).rstrip(b"\0\n") != b"kernel"
    except OSError:
        return False  # no selinuxfs: SELinux is off


def _first(path: str) -> bytes:
    try:
        return read_file(path, 16)[:1]
    except OSError:
        return b""  # no such module


def check_apparmor(profile: str, json_path: str, enabled: bool) -> str:
    """*profile* if it can be applied; raises :class:`ConfigError`."""
    if profile and not enabled:
        raise ConfigError(
            json_path, f'"{profile}" cannot be applied: AppArmor is not enabled on this host; remove the field'
        )
    if "\n" in profile:
        raise ConfigError(json_path, "contains a line break, which no profile's name has")
    return profile


def check_selinux(label: str, json_path: str, enabled: bool) -> str:
    """*label* if it can be applied; raises :class:`ConfigError` with runc's text."""
    if label and not enabled:
        raise ConfigError(json_path, "selinux label is specified in config, but selinux is disabled or not supported")
    return label


def known_context(label: str) -> str:
    """*label* where this kernel runs SELinux, else "": of a config that another runtime has accepted."""
    return label if label and selinux_enabled() else ""


def check_restored_context(pid: int, label: str) -> None:
    """Raises :class:`GpurunError` unless the process *pid* has the SELinux context *label*: a criu that was built without
    libselinux restores processes in its own, which confines nothing.
    """
    try:
        with Fd(posix.open("/sys/fs/selinux/context", posix.O_RDWR | posix.O_CLOEXEC)) as fd:
            write_all(fd, label.encode("utf-8", "surrogateescape") + b"\0")
            wanted = posix.read(fd, 4096).rstrip(b"\0")  # as the kernel writes it
        found = read_file(f"/proc/{pid}/attr/current", 4096).rstrip(b"\0\n")
    except OSError as e:
        raise StepError("look at the SELinux context", f'"{label}"', e.errno) from None
    if found != wanted:
        raise GpurunError(
            f"criu has restored the process with the SELinux context {found.decode(errors='replace')}, and not with the "
            f"container's, {label}: restore it with a criu that was built with libselinux"
        )


def apply_apparmor(proc_fd: int, profile: str) -> None:
    """The next execve(2) of this process enters *profile*.  Raises :class:`StepError`."""
    try:
        _write_attr(proc_fd, "apparmor/exec", f"exec {profile}")
    except FileNotFoundError:  # a kernel before 5.8 has one directory for all modules
        try:
            _write_attr(proc_fd, "exec", f"exec {profile}")
        except OSError as e:
            raise _apparmor_error(profile, e) from None
    except OSError as e:
        raise _apparmor_error(profile, e) from None


def leave_own_profile() -> bool:
    """Become ``unconfined`` for AppArmor where this process is in a profile that confines nothing; whether that was so.

    Such a profile is there to be allowed user namespaces (Ubuntu; the package has one). Profiles of containers let
    themselves be signalled by ``unconfined``, by the engine, runc and crun, and by no other name: who is refused leaves.
    """
    try:
        with Fd(posix.open("/proc/self/attr/apparmor/current", posix.O_RDWR | posix.O_CLOEXEC)) as fd:
            if not posix.read(fd, 4096).rstrip(b"\0\n").endswith(b" (unconfined)"):
                return False
            posix.pwrite(fd, b"changeprofile unconfined", 0)  # the kernel takes it only at the beginning
            return True
    except OSError:
        return False  # no AppArmor, or one that keeps who is in a profile there


def _apparmor_error(profile: str, error: OSError) -> StepError:
    return StepError("unable to apply apparmor profile", f'"{profile}" (is it loaded?)', error.errno)


def apply_selinux(proc_fd: int, label: str, attribute: str = "exec") -> None:
    """The next execve(2) of this process has the context *label*; *attribute* ``keycreate`` labels keyrings instead."""
    with Step("set the SELinux label", f'"{label}" ({attribute})'):
        _write_attr(proc_fd, attribute, label)


def _write_attr(proc_fd: int, name: str, value: str) -> None:
    pid = posix.readlink("self", dir_fd=proc_fd)
    with Fd(openat2(proc_fd, f"{pid}/attr/{name}", posix.O_WRONLY, _RESOLVE)) as fd:
        if value:
            write_all(fd, value.encode("utf-8", "surrogateescape"))
        else:
            posix.write(fd, b"")  # a write of nothing is what takes it back: write_all makes none


def apply_labels(proc_fd: int, apparmor: str, selinux: str) -> None:
    """What the next execve(2) of this process changes to; empty strings for nothing."""
    if apparmor:
        apply_apparmor(proc_fd, apparmor)
    if selinux:
        apply_selinux(proc_fd, selinux)
