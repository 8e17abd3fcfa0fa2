"""Labels of Linux security modules: AppArmor profiles and SELinux contexts (apparmor(7), selinux(8)).

What the process is to become is written to its ``attr/exec`` file and takes effect at execve(2); the file is always reached
through a descriptor of a verified /proc, for an image may try to lead the write astray.
"""

from __future__ import annotations

import posix

from gpurun.errors import ConfigError, StepError
from gpurun.linux.files import read_file, write_all
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


def check_apparmor(profile: str, where: str, enabled: bool) -> str:
    """*profile* if it can be applied; raises :class:`ConfigError`."""
    if profile and not enabled:
        raise ConfigError(where, f'"{profile}" cannot be applied: AppArmor is not enabled on this host; remove the field')
    if "\n" in profile:
        raise ConfigError(where, "contains a line break, which no profile's name has")
    return profile


def check_selinux(label: str, where: str, enabled: bool) -> str:
    """*label* if it can be applied; raises :class:`ConfigError` with runc's text."""
    if label and not enabled:
        raise ConfigError(where, "selinux label is specified in config, but selinux is disabled or not supported")
    return label


def apply_apparmor(proc_fd: int, profile: str) -> None:
    """The next execve(2) of this process enters *profile*."""
    try:
        _write_attr(proc_fd, "apparmor/exec", f"exec {profile}")
    except FileNotFoundError:  # a kernel before 5.8 has one directory for all modules
        try:
            _write_attr(proc_fd, "exec", f"exec {profile}")
        except OSError as e:
            raise _apparmor_error(profile, e) from None
    except OSError as e:
        raise _apparmor_error(profile, e) from None


def _apparmor_error(profile: str, error: OSError) -> StepError:
    return StepError("unable to apply apparmor profile", f'"{profile}" (is it loaded?)', error.errno)


def apply_selinux(proc_fd: int, label: str, attribute: str = "exec") -> None:
    """The next execve(2) of this process has the context *label*; *attribute* ``keycreate`` labels keyrings instead."""
    try:
        _write_attr(proc_fd, attribute, label)
    except OSError as e:
        raise StepError("set the SELinux label", f'"{label}" ({attribute})', e.errno) from None


def _write_attr(proc_fd: int, name: str, value: str) -> None:
    pid = posix.readlink("self", dir_fd=proc_fd)
    fd = openat2(proc_fd, f"{pid}/attr/{name}", posix.O_WRONLY, _RESOLVE)
    try:
        write_all(fd, value.encode("utf-8", "surrogateescape"))
    finally:
        posix.close(fd)


def apply_labels(proc_fd: int, apparmor: str, selinux: str) -> None:
    """What the next execve(2) of this process changes to; empty strings for nothing."""
    if apparmor:
        apply_apparmor(proc_fd, apparmor)
    if selinux:
        apply_selinux(proc_fd, selinux)
